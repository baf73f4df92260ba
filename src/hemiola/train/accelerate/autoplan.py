"""A plan for what was measured of an iteration and of the links, if it is worth it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from hemiola.core.errors import HemiolaError
from hemiola.core.plan import Plan
from hemiola.core.units import format_duration
from hemiola.train.accelerate.measured import measured_graph, problem_of
from hemiola.train.accelerate.probe import RankLinks
from hemiola.train.accelerate.processors import Cores
from hemiola.train.accelerate.profile import MeasuredIteration

__all__ = ["Advised", "advised"]

_BUCKETS_BYTES = tuple(count << 20 for count in (1, 2, 4, 8))


@dataclass(frozen=True)
class Advised:
    """What is proposed.

    Attributes:
        plan: None if none is worth it.
        bucket_bytes: in which DistributedDataParallel is fastest where no plan is followed; None for its own.
        bucket_s: predicted in those; None where they are DDP's own.
        words: what is predicted, or why there is no plan.
        figures: of `core.acceleration.Acceleration`.
    """

    plan: Plan | None
    words: str
    bucket_bytes: int | None = None
    bucket_s: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


def advised(
    name: str, measured: MeasuredIteration, parameters: dict[str, nn.Parameter], links: RankLinks, ranks: int, cores: Cores,
    min_gain: float,
) -> Advised:  # fmt: skip
    """The best plan for a model of this name, if it is predicted to gain so much.

    Args:
        min_gain: as a share: 0.03 for 1.03 times as fast.
    """
    from hemiola.cost.parallelism import DDP
    from hemiola.plan.planner import make_plan

    graph, seconds = measured_graph(name, measured, parameters)
    problem = problem_of(graph, seconds, links, ranks, cores, measured.noise)
    try:
        advice = make_plan(problem)
        buckets = [(problem.predict_strategy(DDP(size)).iteration_s, size) for size in _BUCKETS_BYTES]
        computing = max(0.0, 1 - advice.after.breakdown.exposed_s / advice.after.iteration_s)
        sending = max((link.busy for link in advice.after.links), default=0.0)
        mixed = problem_of(graph, seconds, links, ranks, cores, measured.noise, computing, sending)
        after = mixed.predict(advice.plan)
    except HemiolaError as error:
        return Advised(None, f"no plan could be made: {error}")
    before_s, after_s = advice.before.iteration_s, after.iteration_s
    gain = before_s / after_s - 1
    figures = {"predicted_before_s": before_s, "predicted_s": after_s}
    rate = f"{links.bytes_per_s * 8e-6:,.0f} Mbit/s"
    bucket: int | None
    bucket_s, bucket = min(buckets)
    if before_s / bucket_s - 1 <= min_gain:
        bucket_s, bucket = before_s, None
    if gain >= min_gain and advice.after.iteration_s <= bucket_s:  # both beside links as they are alone
        words = (
            f"{format_duration(after_s)} per iteration predicted instead of {format_duration(before_s)} "
            f"({1 + gain:.2f} times as fast) at {rate}"
        )
        figures["bound_s"] = after.transfer_bound_s  # PyTorch decides the order of operations
        return Advised(advice.plan, words, bucket, None if bucket is None else bucket_s, figures)
    if bucket is None:
        return Advised(None, f"no plan gains more than {max(gain, 0.0):.1%} at {rate}", None, None, figures)
    words = (
        f"no plan is faster than DDP in buckets of {bucket >> 20} MiB, which it has now: {format_duration(bucket_s)} "
        f"per iteration predicted instead of {format_duration(before_s)} at {rate}"
    )
    return Advised(None, words, bucket, bucket_s, figures | {"predicted_s": bucket_s})
