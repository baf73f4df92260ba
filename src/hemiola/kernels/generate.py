"""Workloads made from a seed: a short text says what kind, and the same text and seed say it again.

    generated:jobs=1000,gpus=512,load=0.8,mix=lingjun,arrivals=diurnal,duration_mean=2h,seed=0

Sizes and durations come from mixes (`JobMix`); arrivals are spread over just the time in which the jobs' work
is `load` of what `gpus` GPUs could do. Chance is NumPy's PCG64, one stream each for sizes, durations,
arrivals, models and which jobs are elastic, so that changing one leaves the others as they were. Times
are whole milliseconds, the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.job import Workload, batch_job
from hemiola.core.units import format_duration, parse_duration

__all__ = ["ARRIVALS", "MIXES", "generate", "is_generator_spec"]


# What kinds of jobs generated workloads are made of: sizes and durations after published figures.


@dataclass(frozen=True)
class JobMix:
    """Sizes and durations of jobs.

    Attributes:
        name: as a specification names it.
        shares: number of jobs, or weight, by GPUs per job; any scale.
        median_s: median run time.
        mean_s: mean run time before the cut.
        longest_s: no job runs longer.
        source: where the figures come from, and what in them is a choice.
    """

    name: str
    shares: dict[int, float]
    median_s: float
    mean_s: float
    longest_s: float
    source: str

    @property
    def mu(self) -> float:
        """Mean of the logarithm of the run time in seconds."""
        return math.log(self.median_s)

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the run time."""
        return math.sqrt(2 * math.log(self.mean_s / self.median_s))


def _halving(largest: int, ratio: float) -> dict[int, float]:
    """Powers of two up to `largest`, each `ratio` times as frequent as the one below it."""
    return {2**k: ratio**k for k in range(largest.bit_length())}


PHILLY = JobMix(
    "philly",
    {1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3},
    median_s=1144.0,
    mean_s=13135.9,
    longest_s=4628226.0,
    source="counts, median, mean and longest of the 82,247 jobs of AdaptDL's philly.csv, derived from "
    "Jeon et al., ATC'19; run time is drawn apart from size",
)
HELIOS = JobMix(
    "helios",
    _halving(2048, 0.44),
    median_s=206.0,
    mean_s=6651.7,
    longest_s=4320009.0,
    source="median, mean and longest run and largest job of Helios in AcmeTrace's cluster_summary.csv (Hu et "
    "al., SC'21, NSDI'24); shares fall by 0.44 per doubling, a choice that meets its median of 1 and "
    "mean of 3.7 GPUs",
)
ACME = JobMix(
    "acme",
    _halving(1024, 0.5),
    median_s=122.0,
    mean_s=1414.3,
    longest_s=1209604.0,
    source="median, mean and longest run and largest job of Seren in AcmeTrace's cluster_summary.csv (Hu et "
    "al., NSDI'24); shares halve per doubling, a choice that meets its median of 1 and comes near its "
    "mean of 5.7 GPUs (5.5)",
)
LINGJUN = JobMix(
    "lingjun",
    _halving(512, 0.78),
    median_s=2160.0,
    mean_s=10800.0,
    longest_s=1209600.0,
    source="in the style of the cluster of Crux (Cao et al., SIGCOMM'24), whose jobs are not at hand: shares "
    "fall by 0.78 per doubling to 512 GPUs, one job in ten asks for 128 or more (a choice); a mean "
    "run of 3 h makes 5,000 such jobs in two weeks 0.8 of 2,000 GPUs, the counts the paper gives",
)
MURI = JobMix(
    "muri",
    {1: 1814, 2: 287, 4: 645, 8: 773, 16: 3, 32: 108},
    median_s=3375.5,
    mean_s=99531.2,
    longest_s=4014063.0,
    source="counts, median, mean and longest of the 3,630 jobs of Muri's trace3.csv and trace4.csv (Zhao et "
    "al., SIGCOMM'22), after Philly; run time is drawn apart from size",
)

MIXES = {mix.name: mix for mix in (PHILLY, HELIOS, ACME, LINGJUN, MURI)}


# When jobs arrive: a fixed number of them, at random over a fixed time.

_DAY_S = 86400.0
_PEAK_S = 14 * 3600.0
_SWING = 0.6
_BURST_MEAN = 8.0
_BURST_GAP_S = 5.0
_STEPS_PER_DAY = 288

Arrivals = NDArray[np.float64]


def poisson(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """`count` ascending times, the first 0, of a Poisson process of constant rate."""
    return _from_first(np.sort(rng.random(count)) * horizon_s)


def diurnal(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """As `poisson`, with a rate that follows the hour: 1 + 0.6 cos, highest at 14 h; time begins at midnight.

    Clusters report such a daily rhythm (Hu et al., SC'21); its form and size are a choice.
    """
    steps = max(_STEPS_PER_DAY, math.ceil(horizon_s / _DAY_S * _STEPS_PER_DAY))
    times_s = np.linspace(0.0, horizon_s, steps + 1)
    turn = 2 * np.pi / _DAY_S
    arrived = times_s + _SWING / turn * (np.sin(turn * (times_s - _PEAK_S)) + math.sin(turn * _PEAK_S))
    return _from_first(np.interp(np.sort(rng.random(count)) * arrived[-1], arrived, times_s))


def burst(count: int, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """Bursts at the times of a Poisson process, of 8 jobs on average, 5 s apart on average.

    As when somebody submits a sweep of hyper-parameters; both numbers are a choice.
    """
    lengths = rng.geometric(1 / _BURST_MEAN, size=count)
    burst_of_job = np.repeat(np.arange(count), lengths)[:count]
    starts_s = rng.random(count) * horizon_s
    gaps_s = rng.exponential(_BURST_GAP_S, size=count)
    waited_s = np.cumsum(gaps_s)
    first_of_burst = np.searchsorted(burst_of_job, burst_of_job)
    return _from_first(np.sort(starts_s[burst_of_job] + waited_s - waited_s[first_of_burst]))


def _from_first(times_s: Arrivals) -> Arrivals:
    shifted: Arrivals = times_s - times_s[0]
    return shifted


ARRIVALS: dict[str, Callable[[int, float, np.random.Generator], Arrivals]] = {
    "poisson": poisson,
    "diurnal": diurnal,
    "burst": burst,
}


_PREFIX = "generated"
_KEYS = (
    "jobs",
    "gpus",
    "load",
    "mix",
    "arrivals",
    "duration_mean",
    "duration_max",
    "largest",
    "models",
    "elastic",
    "seed",
)
_MOST = 10_000_000
_SHORTEST_S = 1.0
_DECIMALS = 3
"""Of times: processors differ in an exponential's or a sine's last bit, and a policy may decide by it."""


@dataclass(frozen=True)
class _Spec:
    """What a specification asks for. `gpus` 0: not said; `models` empty: none are named."""

    jobs: int = 1000
    gpus: int = 0
    load: float = 0.8
    mix: JobMix = MIXES["philly"]
    arrivals: str = "poisson"
    duration_mean_s: float | None = None
    duration_max_s: float = math.inf
    largest: int = 0
    models: tuple[str, ...] = ()
    elastic: float = 0.0
    seed: int = 0

    @property
    def scale(self) -> float:
        """How much longer jobs are than the mix's."""
        return 1.0 if self.duration_mean_s is None else self.duration_mean_s / self.mix.mean_s


def is_generator_spec(text: str) -> bool:
    """Whether `text` asks for a generated workload rather than naming a file."""
    return text == _PREFIX or text.startswith(f"{_PREFIX}:")


def generate(spec: str, seed: int = 0, *, gpus: int | None = None) -> Workload:
    """The workload that `spec` asks for.

    Args:
        spec: "generated:key=value,...". Keys: jobs (1000), gpus, load (0.8), mix (philly), arrivals
            (poisson, diurnal or burst), duration_mean (the mix's own), duration_max (the mix's own
            longest; longer ones are cut), largest (GPUs of the largest job), models (a+b+c, drawn
            evenly), elastic (0; the share of jobs that run on a quarter of their GPUs, at least 1, up to
            twice as many, at most `gpus`), seed (0).
        seed: a further seed, for the repetitions of one experiment; both count.
        gpus: the cluster's GPUs, for a spec that does not say `gpus`.

    Raises:
        InputError: an unknown key or value, a number out of range, or no number of GPUs.

    Example:
        >>> w = generate("generated:jobs=3,gpus=8,mix=acme", seed=7)
        >>> [job.submit_s for job in w.jobs][0], len(w.jobs)
        (0.0, 3)
    """
    asked = _parse(spec)
    total = asked.gpus or gpus or 0
    if total < 1:
        raise InputError(f"{spec!r} does not say for how many GPUs", "add gpus=, such as gpus=512")
    if seed < 0:
        raise InputError(f"the seed is {seed}", "give 0 or more")
    for_sizes, for_durations, for_arrivals, for_models, for_elastic = _streams(asked.seed, seed)
    sizes = _sizes(asked, total, for_sizes)
    durations_s = _durations(asked, for_durations)
    horizon_s = math.fsum((sizes * durations_s).tolist()) / (asked.load * total)
    submits_s = np.round(ARRIVALS[asked.arrivals](asked.jobs, horizon_s, for_arrivals), _DECIMALS)
    least, most = _bounds(asked, total, sizes, for_elastic)
    rows = zip(
        submits_s.tolist(), sizes.tolist(), durations_s.tolist(), _models(asked, for_models),
        least.tolist(), most.tolist(), strict=True,
    )  # fmt: skip
    return Workload(
        jobs=tuple(
            batch_job(
                id=str(i),
                submit_s=submit_s,
                gpus=size,
                duration_s=duration_s,
                model=model,
                gpus_min=gpus_min,
                gpus_max=gpus_max,
            )
            for i, (submit_s, size, duration_s, model, gpus_min, gpus_max) in enumerate(rows)
        ),
        name=f"{asked.mix.name} x {asked.jobs}",
        format=_PREFIX,
        why=f"the specification {spec!r}, seed {seed}",
        notes=_notes(asked, total, horizon_s, int(np.count_nonzero(least))),
    )


def _streams(*seeds: int) -> list[np.random.Generator]:
    children = np.random.SeedSequence(seeds).spawn(5)
    return [np.random.Generator(np.random.PCG64(child)) for child in children]


def _models(asked: _Spec, rng: np.random.Generator) -> list[str]:
    if not asked.models:
        return [""] * asked.jobs
    return [asked.models[i] for i in rng.integers(len(asked.models), size=asked.jobs)]


def _sizes(asked: _Spec, total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """GPUs per job; sizes that the cluster cannot hold are never drawn."""
    most = min(total, asked.largest or total)
    fitting = {size: share for size, share in asked.mix.shares.items() if size <= most}
    weights = np.cumsum(list(fitting.values()))
    drawn = np.searchsorted(weights, rng.random(asked.jobs) * weights[-1], side="right")
    sizes: NDArray[np.int64] = np.array(list(fitting), dtype=np.int64)[drawn]
    return sizes


def _bounds(
    asked: _Spec, total: int, sizes: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The fewest and the most GPUs of each job; 0 and 0 for one that is not elastic."""
    elastic = rng.random(asked.jobs) < asked.elastic
    return np.where(elastic, np.maximum(sizes // 4, 1), 0), np.where(elastic, np.minimum(sizes * 2, total), 0)


def _durations(asked: _Spec, rng: np.random.Generator) -> NDArray[np.float64]:
    mix = asked.mix
    drawn = np.exp(mix.mu + mix.sigma * rng.standard_normal(asked.jobs)) * asked.scale
    longest_s = max(min(mix.longest_s * asked.scale, asked.duration_max_s), _SHORTEST_S)
    return np.clip(np.round(drawn, _DECIMALS), _SHORTEST_S, longest_s)


def _notes(asked: _Spec, total: int, horizon_s: float, elastic: int) -> tuple[str, ...]:
    notes = [
        f"jobs arrive over {format_duration(horizon_s)} and offer {asked.load:g} of {total} GPUs in that time",
        f"mix {asked.mix.name}: {asked.mix.source}",
    ]
    most = min(total, asked.largest or total)
    if max(asked.mix.shares) > most:
        notes.append(f"sizes above {most} GPUs were left out of the mix")
    if asked.duration_max_s < asked.mix.longest_s * asked.scale:
        notes.append(f"durations are cut at {format_duration(asked.duration_max_s)}")
    if asked.duration_mean_s is not None:
        notes.append(
            f"durations are scaled to a mean of {format_duration(asked.duration_mean_s)} before the cut"
        )
    if asked.elastic:
        notes.append(
            f"{elastic} of {asked.jobs} jobs are elastic: from a quarter of their GPUs, at least 1, "
            f"to twice as many, at most {total}"
        )
    return tuple(notes)


def _parse(spec: str) -> _Spec:
    if not is_generator_spec(spec):
        raise InputError(f"{spec!r} is no specification", f"begin it with {_PREFIX}:")
    given: dict[str, str] = {}
    for part in filter(None, spec.removeprefix(_PREFIX).removeprefix(":").split(",")):
        key, equals, value = part.partition("=")
        if key not in _KEYS or not equals:
            raise InputError(
                f"{spec!r}: {part!r} is not understood", f"known are {', '.join(_KEYS)}, as key=value"
            )
        if key in given:
            raise InputError(f"{spec!r} says {key} twice", "say it once")
        given[key] = value
    asked = _Spec()
    mean, longest = given.get("duration_mean"), given.get("duration_max")
    return _Spec(
        jobs=_whole(given, "jobs", asked.jobs, 1),
        gpus=_whole(given, "gpus", asked.gpus, 1),
        load=_load(given, asked.load),
        mix=MIXES[_choice(given, "mix", asked.mix.name, tuple(MIXES))],
        arrivals=_choice(given, "arrivals", asked.arrivals, tuple(ARRIVALS)),
        duration_mean_s=None if mean is None else _duration("duration_mean", mean),
        duration_max_s=math.inf if longest is None else _duration("duration_max", longest),
        largest=_whole(given, "largest", asked.largest, 1),
        models=tuple(filter(None, given.get("models", "").split("+"))),
        elastic=_share(given, "elastic", asked.elastic),
        seed=_whole(given, "seed", asked.seed, 0),
    )


def _whole(given: dict[str, str], key: str, default: int, least: int) -> int:
    text = given.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and least <= int(text) <= _MOST):
        raise InputError(f"{key} is {text!r}", f"give a whole number from {least} to {_MOST}")
    return int(text)


def _load(given: dict[str, str], default: float) -> float:
    load = _number(given, "load", default)
    if not 0 < load < math.inf:
        raise InputError(f"load is {given['load']!r}", "give a number above 0, such as 0.8")
    return load


def _share(given: dict[str, str], key: str, default: float) -> float:
    share = _number(given, key, default)
    if not 0 <= share <= 1:
        raise InputError(f"{key} is {given[key]!r}", "give a share from 0 to 1, such as 0.5")
    return share


def _number(given: dict[str, str], key: str, default: float) -> float:
    try:
        return float(given.get(key, default))
    except ValueError:
        return math.nan


def _choice(given: dict[str, str], key: str, default: str, known: tuple[str, ...]) -> str:
    value = given.get(key, default)
    if value not in known:
        raise InputError(f"{key} is {value!r}", f"known are {', '.join(known)}")
    return value


def _duration(key: str, text: str) -> float:
    duration_s = parse_duration(text)
    if duration_s < _SHORTEST_S:
        raise InputError(f"{key} is {text!r}", "give at least 1s")
    return duration_s
