"""Policies for tests on live engines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hemiola.core.decisions import Decision, Placement, Resize, Start, WakeAt
from hemiola.sched.policy import Policy
from hemiola.sched.view import ClusterView

__all__ = ["WholeHosts", "want"]


def want(hosts: int, file: Path) -> None:
    """From now on so many; the policy reads the file at any time, and never half of it."""
    draft = file.with_suffix(".new")
    draft.write_text(str(hosts))
    draft.rename(file)


@dataclass(frozen=True)
class WholeHosts(Policy):
    """Every job on as many whole hosts, from the first one on, as a file says at the moment."""

    file: str
    name = "whole-hosts"

    def decide(self, view: ClusterView) -> Iterable[Decision]:
        count = int(Path(self.file).read_text())
        place = Placement(tuple(range(count)), (0xFF,) * count)
        for job in list(view.waiting):
            yield Start(job, place, "so many to begin with")
        for state in list(view.running.values()):
            if state.gpus != place.gpus:
                yield Resize(state.id, place, "now so many")
        yield WakeAt(view.now + 0.1, "", "read it again")
