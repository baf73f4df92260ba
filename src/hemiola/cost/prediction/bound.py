"""What no order of the same steps and transfers is faster than: processor, links, and what has to follow what.

Where steps keep their order, more is known. A transfer that is ready after step a, and that step w of the next iteration waits for, has the time between them. If
many are ready after a or later and awaited by w or earlier, one link has to carry them all in that time, while
the rank computes from w to a once in every iteration. So an iteration takes at least the steps from w to a and
the time of those transfers, for whatever w and a. The same holds for those that are awaited in the iteration in which
they are sent, with the steps before a and from w on. That the last gradients that backward computes are the first
that forward needs is what this knows and the busiest link does not. Where computing and sending share cores, transfers
that become ready before a take from the computing around the window what the processor does for them until then.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hemiola.cost.prediction.account import link_uses
from hemiola.cost.prediction.lower import core_links
from hemiola.cost.prediction.setting import Setting
from hemiola.cost.prediction.steady import SteadyRun
from hemiola.cost.prediction.uncertainty import straggling

__all__ = ["bound_s", "transfer_bound_s"]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


def bound_s(setting: Setting, run: SteadyRun) -> float:
    """Least length of an iteration, whatever the order of steps and transfers."""
    own_s = float(_steps_s(setting, run).sum())
    uses = link_uses(setting, 1.0)
    sent_s = sum(run.lowered.sender_s)
    return max(own_s, uses[0].busy if uses else 0.0, sent_s, _busiest_processor_s(setting, run, own_s))


def transfer_bound_s(setting: Setting, run: SteadyRun) -> float:
    """Least length of an iteration, whatever the order of transfers; steps keep theirs."""
    busy_s = _busy_s(setting, run)
    return max(bound_s(setting, run), *(_windows_s(setting, run, busy_s, next_) for next_ in (True, False)))


def _steps_s(setting: Setting, run: SteadyRun) -> Floats:
    return np.array([step.seconds for step in run.steps]) * straggling(setting)


def _busiest_processor_s(setting: Setting, run: SteadyRun, own_s: float) -> float:
    """How long the cores of one host, where they are shared, are busy with steps and with what transfers cost."""
    cpu_s = sum(cost.cpu_s for cost in setting.costs)
    return (own_s * max(setting.hardware.threads_per_rank, 1) + cpu_s) / _cores(setting, run)


def _cores(setting: Setting, run: SteadyRun) -> float:
    """What a rank has of them where it has least; inf where computing and sending do not meet."""
    cores = core_links(setting, run.lowered.ranks, 0)
    return min(
        (cores.capacities[link] / count for link, count in Counter(cores.links).items()), default=math.inf
    )


def _windows_s(setting: Setting, run: SteadyRun, busy_s: list[float], names_next: bool) -> float:
    """The longest that any pair of steps makes of it.

    Args:
        busy_s: how long each transfer keeps what all of them together keep longest.
        names_next: of transfers that the next iteration waits for, instead of those that the same one does.
    """
    sent = {number: step for step, each in enumerate(run.steps) for number in each.sends}
    pairs: dict[tuple[int, int], float] = {}
    awaited: set[int] = set()
    for step, each in enumerate(run.steps):
        for number in each.waits_before if names_next else each.waits:
            if number in sent and number not in awaited:
                awaited.add(number)
                pairs[sent[number], step] = pairs.get((sent[number], step), 0.0) + busy_s[number]
    if not pairs:
        return 0.0
    sends = np.array(sorted({a for a, _ in pairs}))
    waits = np.array(sorted({w for _, w in pairs}))
    carried = np.zeros((len(sends), len(waits)))
    for (a, w), seconds in pairs.items():
        carried[np.searchsorted(sends, a), np.searchsorted(waits, w)] += seconds
    within_s = carried[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
    around_s = _around_s(setting, run, sends, waits, names_next)
    follows = sends[:, None] < waits[None, :]
    return float(np.where(follows == names_next, 0.0, around_s + within_s).max())


def _around_s(setting: Setting, run: SteadyRun, sends: Steps, waits: Steps, names_next: bool) -> Floats:
    """From step w to step a, for all (a, w): the steps, and what transfers that begin meanwhile take from them.

    Their part of the processor's time begins when they are ready, and cores are shared evenly: until a, each has had
    all of it, or as much as the steps since then.
    """
    before = np.concatenate([[0.0], np.cumsum(_steps_s(setting, run))])
    computed_s: Floats = before[sends + 1][:, None] - before[waits][None, :]
    computed_s = computed_s if names_next else computed_s + before[-1]  # across the iteration's end
    cores = _cores(setting, run)
    if math.isinf(cores) or setting.library.at_once < len(setting.transfers):  # these wait for each other
        return computed_s
    ready = np.array([step for step, each in enumerate(run.steps) for _ in each.sends])
    cpu_s = np.array([setting.costs[number].cpu_s for each in run.steps for number in each.sends])
    since_s = before[sends + 1][:, None] - before[ready + 1][None, :]
    begin = (ready[:, None] >= waits[None, :]).astype(np.float64)
    if names_next:
        taken_s = np.clip(since_s, 0.0, cpu_s) @ begin
    else:
        taken_s = np.clip(since_s, 0.0, cpu_s).sum(axis=1)[:, None]
        taken_s = taken_s + np.minimum(since_s + before[-1], cpu_s) @ begin
    threads = max(setting.hardware.threads_per_rank, 1)
    longer_s: Floats = np.maximum(computed_s, (computed_s * threads + taken_s) / cores)
    return longer_s


def _busy_s(setting: Setting, run: SteadyRun) -> list[float]:
    """How long each transfer keeps the link, or its rank's sender, that all of them together keep longest."""
    rates = setting.place.bytes_per_s
    loads = [{link: size / float(rates[link]) for link, size in cost.loads} for cost in setting.costs]
    total: dict[int, float] = {}
    for load in loads:
        for link, busy_s in load.items():
            total[link] = total.get(link, 0.0) + busy_s
    busiest = max(total, key=total.__getitem__, default=-1)
    of_link, of_sender = [load.get(busiest, 0.0) for load in loads], run.lowered.sender_s
    return max(of_link, of_sender, key=sum)
