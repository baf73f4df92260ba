"""What no order of the same steps and transfers is faster than: processor, links, and what has to follow what.

Where steps keep their order, more is known. A transfer that is ready after step a, and that step w of the next iteration waits for, has the time between them. If
many are ready after a or later and awaited by w or earlier, one link has to carry them all in that time, while
the rank computes from w to a once in every iteration. So an iteration takes at least the steps from w to a and
the time of those transfers, for whatever w and a. The same holds for those that are awaited in the iteration in which
they are sent, with the steps before a and from w on. That the last gradients that backward computes are the first
that forward needs is what this knows and the busiest link does not. Where computing and sending share cores, all other
transfers take from the computing around the window, or else they keep the link longer within it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

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
    sent_s = sum(_sender_s(setting))
    return max(own_s, uses[0].busy if uses else 0.0, sent_s, _busiest_processor_s(setting, run, own_s))


def transfer_bound_s(setting: Setting, run: Run) -> float:
    """Least length of an iteration, whatever the order of transfers; steps keep theirs."""
    seconds, load = _steps_s(setting, run), _load(setting, run)
    return max(
        bound_s(setting, run), *(_windows_s(run, seconds, load, names_next) for names_next in (True, False))
    )


def _steps_s(setting: Setting, run: Run) -> Floats:
    return np.array([step.seconds for step in run.steps]) * straggling(setting)


def _busiest_processor_s(setting: Setting, run: Run, own_s: float) -> float:
    """How long the cores of one host, where they are shared, are busy with steps and with what transfers cost."""
    cpu_s = sum(cost.cpu_s for cost in setting.costs)
    return (own_s * max(setting.hardware.threads_per_rank, 1) + cpu_s) / _cores(setting, run)


def _cores(setting: Setting, run: Run) -> float:
    """What a rank has of them where it has least; inf where computing and sending do not meet."""
    cores = core_links(setting, run.lowered.ranks, 0)
    return min(
        (cores.capacities[link] / count for link, count in Counter(cores.links).items()), default=math.inf
    )


@dataclass(frozen=True, eq=False)
class _Load:
    """What transfers ask for.

    Attributes:
        busy_s: how long each keeps the link that all of them together keep longest.
        cpu_s: processor time of each on one rank.
        threads: with which a rank computes.
        cores: that it has for both; inf where computing and sending do not meet.
    """

    busy_s: list[float]
    cpu_s: list[float]
    threads: int
    cores: float

    def around_s(self, computed_s: Floats, busy_s: Floats, cpu_s: Floats) -> Floats:
        """What steps take around a window, and what the window is longer by, where these transfers are in one or the other.

        Args:
            computed_s: by themselves.
            busy_s, cpu_s: of the transfers that the window need not hold.
        """
        if math.isinf(self.cores):
            return computed_s
        longer_s = np.maximum(0.0, (computed_s * self.threads + cpu_s) / self.cores - computed_s)
        outside: Floats = np.minimum(1.0, self.cores * busy_s / np.maximum(cpu_s, 1e-12))
        return computed_s + longer_s * outside


def _load(setting: Setting, run: Run) -> _Load:
    cpu_s, threads = [cost.cpu_s for cost in setting.costs], max(setting.hardware.threads_per_rank, 1)
    return _Load(_busy_s(setting), cpu_s, threads, _cores(setting, run))


def _windows_s(run: Run, seconds: Floats, load: _Load, names_next: bool) -> float:
    """The longest that any pair of steps makes of it.

    Args:
        names_next: of transfers that the next iteration waits for, instead of those that the same one does.
    """
    sent = {number: step for step, each in enumerate(run.steps) for number in each.sends}
    pairs: dict[tuple[int, int], tuple[float, float]] = {}
    awaited: set[int] = set()
    for step, each in enumerate(run.steps):
        for number in each.waits_before if names_next else each.waits:
            if number in sent and number not in awaited:
                awaited.add(number)
                busy_s, cpu_s = pairs.get((sent[number], step), (0.0, 0.0))
                pairs[sent[number], step] = busy_s + load.busy_s[number], cpu_s + load.cpu_s[number]
    if not pairs:
        return 0.0
    return _longest(pairs, np.concatenate([[0.0], np.cumsum(seconds)]), load, names_next)


def _longest(
    pairs: dict[tuple[int, int], tuple[float, float]], before: Floats, load: _Load, names_next: bool
) -> float:
    """Over all (a, w): the steps around the window, and what is sent at `a` or later and awaited at `w` or earlier."""
    sends = np.array(sorted({a for a, _ in pairs}))
    waits = np.array(sorted({w for _, w in pairs}))
    carried = np.zeros((2, len(sends), len(waits)))
    for (a, w), amounts in pairs.items():
        carried[:, np.searchsorted(sends, a), np.searchsorted(waits, w)] += amounts
    busy_s, cpu_s = carried[:, ::-1].cumsum(axis=1)[:, ::-1].cumsum(axis=2)
    computed_s = before[sends + 1][:, None] - before[waits][None, :]  # from w to a
    if not names_next:
        computed_s = before[-1] + computed_s
    around_s = load.around_s(computed_s, sum(load.busy_s) - busy_s, sum(load.cpu_s) - cpu_s)
    follows = sends[:, None] < waits[None, :]
    return float(np.where(follows == names_next, 0.0, around_s + busy_s).max())


def _sender_s(setting: Setting) -> list[float]:
    """How long each transfer keeps a rank's sender, where all of them go through one."""
    rate = max((cost.rate_max_bytes_per_s for cost in setting.costs), default=math.inf)
    return [cost.sent_bytes / rate if setting.preemptive else 0.0 for cost in setting.costs]


def _busy_s(setting: Setting) -> list[float]:
    """How long each transfer keeps the link, or its rank's sender, that all of them together keep longest."""
    rates = setting.place.bytes_per_s
    loads = [{link: size / float(rates[link]) for link, size in cost.loads} for cost in setting.costs]
    total: dict[int, float] = {}
    for load in loads:
        for link, busy_s in load.items():
            total[link] = total.get(link, 0.0) + busy_s
    busiest = max(total, key=total.__getitem__, default=-1)
    of_link, of_sender = [load.get(busiest, 0.0) for load in loads], _sender_s(setting)
    return max(of_link, of_sender, key=sum)
