"""Workloads made from a seed: a short text says what kind, and the same text and seed say it again.

    generated:jobs=1000,gpus=512,load=0.8,mix=lingjun,arrivals=diurnal,duration_mean=2h,seed=0

Sizes and durations come from `mixes`; arrivals are spread over just the time in which the jobs' work
is `load` of what `gpus` GPUs could do. Chance is NumPy's PCG64, one stream each for sizes, durations,
arrivals, models and which jobs are elastic, so that changing one leaves the others as they were. Times
are whole milliseconds, the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemiola.core.errors import InputError
from hemiola.core.job import Job, Workload
from hemiola.core.units import format_duration, parse_duration
from hemiola.simulator.arrivals import ARRIVALS
from hemiola.simulator.mixes import MIXES, JobMix

__all__ = ["generate", "is_generator_spec"]

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
            Job(
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
