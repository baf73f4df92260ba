"""The planners of the field, one file each, and how to ask for some by name.

A planner from outside needs no entry here: `--planner mypackage.module:MyPlanner`, or `--planner my_planner.py:MyPlanner`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hemiola.core.chosen import Family, split_choices
from hemiola.core.errors import PlanError
from hemiola.plan.auto import Auto
from hemiola.plan.baselines import Ddp, FifoOrder, FirstUse
from hemiola.plan.bytescheduler import ByteScheduler
from hemiola.plan.caramel import Caramel
from hemiola.plan.p3 import P3
from hemiola.plan.planner import Planner
from hemiola.plan.tictac import Tac, Tic

__all__ = ["PLANNERS", "planners_from_text"]

PLANNERS: dict[str, type[Planner]] = {
    planner.name: planner
    for planner in (Auto, Ddp, FifoOrder, FirstUse, Tic, Tac, P3, ByteScheduler, Caramel)
}
_ALSO: dict[str, type[Planner]] = {"tictac": Tac}
"""Further names: who knows times, as a prediction does, orders by them."""

_PLANNER: Family[Planner] = Family(
    "planner", "improve(graph, topology, cost, plan)", "hemiola.plan.planner.Planner", PlanError
)


def planners_from_text(texts: str | Iterable[str]) -> tuple[Planner, ...]:
    """Planners in order; each text is one, or several with commas between them.

    One is "name", "name:parameter=value,...", or one of your own as `core.chosen` reads it.

    Raises:
        PlanError: an unknown name, parameter or value, naming what is known; or none at all.
    """
    known = PLANNERS | _ALSO
    texts = (texts,) if isinstance(texts, str) else texts
    found = tuple(_PLANNER.read(one, known) for text in texts for one in split_choices(text))
    if not found:
        raise PlanError("no planner is named", f"choose some of {', '.join(known)}")
    return found
