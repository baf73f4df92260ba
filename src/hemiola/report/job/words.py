"""A job's figures in plain words, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hemiola.analysis.job.metrics import JobComparison, JobMetrics, RankFigures
from hemiola.core.units import format_bytes, format_duration, format_rate

__all__ = [
    "EVIDENCE", "PART_ABOUT", "PART_WORDS", "bytes_or_dash", "compared", "duration", "evidence_words", "finding", "labels", "percent",
    "predicted_words", "ranks_words", "rate", "reasons", "seconds_scale", "signed", "steady_words", "within",
]  # fmt: skip

PART_WORDS = {
    "compute": "computing",
    "overlapped": "computing over communication",
    "wire": "waiting, own transfer under way",
    "others": "waiting for others",
    "exposed": "waiting for communication",
    "input": "waiting for input",
    "other": "other work",
    "idle": "nothing recorded",
}

PART_ABOUT = {
    "compute": "computing, no communication of this rank under way",
    "overlapped": "computing while communication is under way: hidden, it costs nothing",
    "exposed": "held up by communication",
    "input": "not computing: waiting for or preparing the next batch",
    "other": "copies, and the framework's own work",
    "idle": "nothing was recorded",
}

EVIDENCE = {
    "waits": "measured: the recording says when each rank stood still for communication",
    "transfers": "measured: from when each transfer was needed until its consumer went on",
    "inferred": "inferred: communication under way while the rank computes nothing, since the source records no waits",
}

_INPUT_BOUND = 0.1
"""Share of an iteration from which on waiting for input is the first thing to mend."""
_MATTERS = 0.1
"""A late rank is told of if so much of the waiting is for it."""


def duration(value_s: float) -> str:
    """A time, "–" where it is not known."""
    return "–" if math.isnan(value_s) else format_duration(0.0 if abs(value_s) < 1e-10 else value_s)


def within(error_s: float) -> str:
    """How well a clock is known."""
    return "not known" if math.isinf(error_s) else f"± {duration(error_s)}"


def signed(value_s: float) -> str:
    """A difference of times with its sign."""
    if math.isnan(value_s) or abs(value_s) < 1e-9:
        return "–" if math.isnan(value_s) else "0 s"
    return f"{'+' if value_s > 0 else ''}{format_duration(value_s)}"


def percent(share: float, digits: int = 0) -> str:
    """A share, "–" where it is not known."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def bytes_or_dash(size_bytes: float) -> str:
    """A size, "–" where it is not known."""
    return "–" if math.isnan(size_bytes) else format_bytes(size_bytes)


def rate(bytes_per_s: float) -> str:
    """A rate in bits per second, "–" where it is not known."""
    return "–" if math.isnan(bytes_per_s) else format_rate(bytes_per_s)


def seconds_scale(longest_s: float) -> tuple[float, str]:
    """(seconds per unit, unit's name) that suits times up to `longest_s` on an axis."""
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if longest_s >= 2 * scale:
            return scale, name
    return 1e-9, "ns"


def finding(metrics: JobMetrics) -> str:
    """The one number, in one sentence."""
    whole = metrics.iteration_s.median
    if not metrics.exposed_share and not metrics.efficiency.communication_s:
        said = "is predicted" if metrics.timeline.predicted else "was recorded"
        return f"No communication {said}; an iteration takes {duration(whole)}."
    if metrics.exposed_share < 0.005:
        return f"Communication holds up less than 0.5 % of each iteration of {duration(whole)}."
    held = percent(metrics.exposed_share, 0 if metrics.exposed_share >= 0.1 else 1)
    return f"{held} of each iteration waits for communication: {duration(metrics.exposed_share * whole)} of {duration(whole)}."


def reasons(metrics: JobMetrics) -> Iterator[str]:
    """What is behind the number, most telling first: each a sentence that stands alone."""
    starved = sum(rank.gpu_idle_s - rank.exposed_s for rank in _gpus(metrics)) > 0
    if starved:
        yield from _idle_gpus(metrics, ": that costs more than communication does")
    yield from _late(metrics)
    yield from _path(metrics)
    yield from _overlap(metrics)
    if not starved:
        yield from _idle_gpus(metrics, "")
    yield from _rest(metrics)


def _gpus(metrics: JobMetrics) -> list[RankFigures]:
    return [rank for rank in metrics.ranks if not math.isnan(rank.gpu_idle_s)]


def _idle_gpus(metrics: JobMetrics, verdict: str) -> Iterator[str]:
    """How long GPUs had nothing to do, and what went on instead; the verdict is for where there is communication."""
    ranks, said = _gpus(metrics), verdict if metrics.exposed_share else ""
    whole, idle, awaited, silent = (
        sum(getattr(rank, f"{part}_s") for rank in ranks)
        for part in ("iteration", "gpu_idle", "input", "idle")
    )
    if not whole or idle < 0.05 * whole:
        return
    meanwhile = {
        "while the host works": idle - awaited - silent, "while waiting for input": awaited, "while nothing is recorded": silent
    }  # fmt: skip
    who = "The GPU idles" if len(ranks) == 1 else "A GPU idles"
    yield f"{who} for {percent(idle / whole)} of each iteration, mostly {max(meanwhile, key=meanwhile.__getitem__)}{said}."


def _late(metrics: JobMetrics) -> Iterator[str]:
    exposed = metrics.mean("exposed") * len(metrics.ranks)
    if not metrics.stragglers or exposed <= 0:
        return
    worst = metrics.stragglers[0]
    share = worst.waited_s / exposed
    doubt_s = sum(sorted(one.clock_error_s for one in metrics.stragglers)[-2:])
    if share >= _MATTERS and worst.last:
        yield (
            f"Rank {worst.rank} comes last at {percent(worst.last_share)} of the collectives, {duration(worst.margin_s)} "
            f"after the one before it: {percent(share)} of all waiting is for it."
        )
    elif doubt_s >= _MATTERS * metrics.mean("exposed"):
        known = "not known" if math.isinf(doubt_s) else f"known only within {duration(doubt_s)}"
        yield f"Which rank is late cannot be told: how their clocks differ is {known}."
    else:
        yield "No rank is late enough to matter: the waiting is for the transfers themselves."


def _path(metrics: JobMetrics) -> Iterator[str]:
    kinds = metrics.path.by_kind()
    whole = sum(kinds.values())
    if not whole:
        return
    names = {
        "compute": "computing", "idle": "gaps", "wait": "waiting", "other": "other work", "input": "input", "copy": "copies"
    }  # fmt: skip
    parts = [
        f"{percent(s / whole)} {names.get(kind, kind)}" for kind, s in kinds.items() if s / whole >= 0.01
    ]
    named = [item for item in metrics.path_items if item.name]
    text = f"The critical path is {', '.join(parts)}"
    if named and named[0].share >= 0.05:
        text += f"; its largest piece is {named[0].name} ({percent(named[0].share)})"
    yield text + "."


def _overlap(metrics: JobMetrics) -> Iterator[str]:
    bounds = metrics.efficiency
    if not min(bounds.communication_s, bounds.computation_s):
        yield "No rank both computes and communicates: there is nothing to overlap."
        return
    known = "" if bounds.reason else f" (scheduling efficiency E = {bounds.efficiency:.2f})"
    yield (
        f"Hiding all communication that can be hidden behind computing would save at most {duration(metrics.saving_s)} of "
        f"{duration(metrics.iteration_s.median)}{known}."
    )
    if bounds.reason:
        yield f"Scheduling efficiency E has no meaning here: {bounds.reason}."


def _rest(metrics: JobMetrics) -> Iterator[str]:
    whole = metrics.mean("iteration")
    for part, words in (
        ("input", "waits for input"),
        ("idle", "has nothing recorded"),
        ("other", "is other work"),
    ):
        if metrics.mean(part) >= 0.05 * whole:
            yield f"{percent(metrics.mean(part) / whole)} of each iteration {words}."
    if metrics.mean("input") >= _INPUT_BOUND * whole:
        yield "It is input-bound: hemiola io probe URL says which reads would do, hemiola.prefetch(loader) makes them."


def compared(comparison: JobComparison, names: tuple[str, str]) -> str:
    """How this job stands to the other, in one sentence; names are (other, this)."""
    ratio = comparison.iteration_ratio
    parts = sorted(comparison.parts[:-1], key=lambda part: -abs(part.change_s))
    most = parts[0]
    if abs(ratio - 1) < 0.005:
        return f"{names[1]} and {names[0]} take the same time per iteration (within 0.5 %)."
    word = "shorter" if ratio < 1 else "longer"
    return (
        f"An iteration of {names[1]} is {percent(abs(1 - ratio), 1)} {word} than of {names[0]}; the largest change is in "
        f"{PART_WORDS[most.name]} ({signed(most.change_s)})."
    )


def labels(this: JobMetrics, other: JobMetrics) -> tuple[str, str]:
    """(other's, this job's) names, made different where they are not."""
    names = [_label(one) for one in (other, this)]
    if names[0] == names[1]:
        sources = [one.timeline.source for one in (other, this)]
        names = (
            sources
            if sources[0] != sources[1] and all(sources)
            else [f"{names[0]} (before)", f"{names[1]} (after)"]
        )
    return names[0], names[1]


def _label(metrics: JobMetrics) -> str:
    name = metrics.timeline.name or "job"
    return f"{name} (predicted)" if metrics.timeline.predicted else name


def steady_words(metrics: JobMetrics) -> str:
    """Which iterations the figures are of."""
    count, left_out = len(metrics.steady), len(metrics.warm_up)
    text = f"{count} iteration{'s' if count > 1 else ''}"
    return f"{text} ({left_out} of warm-up left out)" if left_out else text


def ranks_words(metrics: JobMetrics) -> str:
    """How many ranks on how many hosts; of a prediction, those that were asked for, not only those that are drawn."""
    timeline = metrics.timeline
    ranks, hosts = len(timeline.ranks), len({rank.host for rank in timeline.ranks if rank.host})
    drawn = ""
    if timeline.predicted:
        meant = _whole(timeline.facts.get("ranks"), ranks)
        hosts = _whole(timeline.facts.get("hosts"), hosts)
        if meant > ranks:
            drawn = f", {ranks:,} drawn for all of them"
        ranks = max(meant, ranks)
    placed = f" on {_many(hosts, 'host')}" if hosts else ""
    return f"{_many(ranks, 'rank')}{placed}{drawn}"


def predicted_words(metrics: JobMetrics) -> tuple[str, ...]:
    """What was predicted, and the interval; nothing of a recording."""
    facts = metrics.timeline.facts
    if not metrics.timeline.predicted:
        return ()
    found = [str(facts[key]) for key in ("hardware", "topology", "strategy") if facts.get(key)]
    share, low_s, high_s = (facts.get(key) for key in ("confidence", "low_s", "high_s"))
    if isinstance(share, float) and isinstance(low_s, float) and isinstance(high_s, float):
        found.append(f"{percent(share)} interval {duration(low_s)} to {duration(high_s)}")
    return tuple(found)


def evidence_words(metrics: JobMetrics) -> str:
    """What exposed communication rests on."""
    if metrics.timeline.predicted:
        return "predicted: the model says when a rank stands still for communication"
    return EVIDENCE[metrics.evidence]


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count > 1 else ''}"
