"""What no order of the same steps and transfers is faster than: processor, links, and what has to follow what.

Where steps keep their order, more is known. A transfer that is ready after step a, and that step w of the next iteration waits for, has the time between them. If
many are ready after a or later and awaited by w or earlier, one link has to carry them all in that time, while
the rank computes from w to a once in every iteration. So an iteration takes at least the steps from w to a and
the time of those transfers, for whatever w and a. The same holds for those that are awaited in the iteration in which
they are sent, with the steps before a and from w on. That the last gradients that backward computes are the first
that forward needs is what this knows and the busiest link does not.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hemiola.cost.prediction.account import link_uses
from hemiola.cost.prediction.lower import core_links
from hemiola.cost.prediction.setting import Setting
from hemiola.cost.prediction.steady import Run
from hemiola.cost.prediction.uncertainty import straggling

__all__ = ["bound_s", "transfer_bound_s"]

Floats = NDArray[np.float64]


def bound_s(setting: Setting, run: Run) -> float:
    """Least length of an iteration, whatever the order of steps and transfers."""
    own_s = float(_steps_s(setting, run).sum())
    uses = link_uses(setting, 1.0)
    return max(own_s, uses[0].busy if uses else 0.0, _busiest_processor_s(setting, run, own_s))


def transfer_bound_s(setting: Setting, run: Run) -> float:
    """Least length of an iteration, whatever the order of transfers; steps keep theirs."""
    seconds, busy = _steps_s(setting, run), _busy_s(setting)
    return max(
        bound_s(setting, run), *(_windows_s(run, seconds, busy, names_next) for names_next in (True, False))
    )


def _steps_s(setting: Setting, run: Run) -> Floats:
    return np.array([step.seconds for step in run.steps]) * straggling(setting)


def _busiest_processor_s(setting: Setting, run: Run, own_s: float) -> float:
    """How long the cores of one host, where they are shared, are busy with steps and with what transfers cost."""
    cores = core_links(setting, run.lowered.ranks, 0)
    work_s = own_s * max(setting.hardware.threads_per_rank, 1) + sum(cost.cpu_s for cost in setting.costs)
    return max(
        (count * work_s / cores.capacities[link] for link, count in Counter(cores.links).items()), default=0.0
    )


def _windows_s(run: Run, seconds: Floats, busy: list[float], names_next: bool) -> float:
    """The longest that any pair of steps makes of it.

    Args:
        busy: how long each transfer keeps a link.
        names_next: of transfers that the next iteration waits for, instead of those that the same one does.
    """
    sent = {number: step for step, each in enumerate(run.steps) for number in each.sends}
    pairs: dict[tuple[int, int], float] = {}
    awaited: set[int] = set()
    for step, each in enumerate(run.steps):
        for number in each.waits_before if names_next else each.waits:
            if number in sent and number not in awaited:
                awaited.add(number)
                pairs[sent[number], step] = pairs.get((sent[number], step), 0.0) + busy[number]
    if not pairs:
        return 0.0
    return _longest(pairs, np.concatenate([[0.0], np.cumsum(seconds)]), names_next)


def _longest(pairs: dict[tuple[int, int], float], before: Floats, names_next: bool) -> float:
    """Over all (a, w): the steps around the window, and what is sent at `a` or later and awaited at `w` or earlier."""
    sends = np.array(sorted({a for a, _ in pairs}))
    waits = np.array(sorted({w for _, w in pairs}))
    carried = np.zeros((len(sends), len(waits)))
    for (a, w), busy_s in pairs.items():
        carried[np.searchsorted(sends, a), np.searchsorted(waits, w)] += busy_s
    carried = carried[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
    computed = before[sends + 1][:, None] - before[waits][None, :]  # from w to a
    follows = sends[:, None] < waits[None, :]
    if names_next:
        return float(np.where(follows, 0.0, computed + carried).max())
    return float(np.where(follows, before[-1] + computed + carried, 0.0).max())


def _busy_s(setting: Setting) -> list[float]:
    """How long each transfer keeps the link that all of them together keep longest."""
    rates = setting.place.bytes_per_s
    loads = [{link: size / float(rates[link]) for link, size in cost.loads} for cost in setting.costs]
    total: dict[int, float] = {}
    for load in loads:
        for link, busy_s in load.items():
            total[link] = total.get(link, 0.0) + busy_s
    busiest = max(total, key=total.__getitem__, default=-1)
    return [load.get(busiest, 0.0) for load in loads]
