"""The executor once more, slow and clear: exact fractions, everything looked at anew at every instant.

Follows the rules written down in hemiola.kernels.executor and shares no code with it. `fragile` says that
two things coincided exactly which floats may tell apart, so that a comparison would be unfair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from hemiola.kernels.executor.tasks import Tasks

Time = Fraction
ZERO = Fraction(0)


@dataclass
class State:
    """How far one task is."""

    stage: str = "waiting"  # then queued, fixed, moving, ended
    ready: tuple[Time, int] = (ZERO, 0)
    start: Time = ZERO
    first_byte: Time = ZERO
    end: Time = ZERO
    until: Time = ZERO
    left: Fraction = ZERO
    rate: Fraction | float = ZERO
    origin: object = None  # of `until`: equal origins are equal floats


@dataclass
class Oracle:
    """Executes tasks; read `states` after `run`."""

    tasks: Tasks
    states: list[State] = field(default_factory=list)
    now: Time = ZERO
    choices: int = 0
    fragile: bool = False

    def __post_init__(self) -> None:
        t = self.tasks
        self.states = [State() for _ in range(len(t))]
        self.deps = [t.dep[t.dep_start[i] : t.dep_start[i + 1]].tolist() for i in range(len(t))]
        self.paths = [t.path[t.path_start[i] : t.path_start[i + 1]].tolist() for i in range(len(t))]
        self.size = [Fraction(x) for x in t.size_bytes.tolist()]
        self.duration = [Fraction(x) for x in t.duration_s.tolist()]
        self.release = [Fraction(x) for x in t.release_s.tolist()]
        self.capacity = [exact(x) for x in t.link_bytes_per_s.tolist()]
        self.cap = [exact(x) for x in t.rate_max_bytes_per_s.tolist()]

    def run(self) -> Oracle:
        while True:
            while self.end_and_make_ready() or self.dispatch():
                pass
            self.share()
            if not self.advance():
                return self

    def of(self, stage: str) -> list[int]:
        return [i for i, state in enumerate(self.states) if state.stage == stage]

    def end_and_make_ready(self) -> bool:
        """One pass of rule 1; whether anything changed."""
        changed = False
        for i in self.of("moving"):
            if self.states[i].left == 0 or self.limit(i) == math.inf:
                changed = self.finish(i)
        for i in self.of("fixed"):
            if self.states[i].until == self.now:
                changed = True
                self.move_or_finish(i)
        for i in self.of("waiting"):
            if self.release[i] <= self.now and all(self.states[k].stage == "ended" for k in self.deps[i]):
                changed = True
                self.states[i].stage, self.states[i].ready = "queued", (self.now, self.choices)
                if self.tasks.resource[i] < 0:
                    self.begin(i)
                    if self.duration[i] == 0 == self.size[i]:
                        self.finish(i)
        return changed

    def begin(self, i: int) -> None:
        state = self.states[i]
        state.stage, state.start, state.until = "fixed", self.now, self.now + self.duration[i]
        state.origin = (self.now, self.duration[i])
        if self.duration[i] == 0 and self.size[i] > 0:
            self.move_or_finish(i)

    def move_or_finish(self, i: int) -> None:
        if self.size[i] == 0:
            self.finish(i)
        else:
            state = self.states[i]
            state.stage, state.first_byte, state.left = "moving", self.now, self.size[i]

    def finish(self, i: int) -> bool:
        state = self.states[i]
        state.stage, state.end = "ended", self.now
        if self.size[i] == 0:
            state.first_byte = self.now
        return True

    def dispatch(self) -> bool:
        """Rule 2; whether any resource took a task."""
        resource = self.tasks.resource
        held = {resource[i] for i in self.of("fixed") + self.of("moving")}
        began = False
        self.choices += 1
        for r in range(self.tasks.resources):
            queue = [i for i in self.of("queued") if resource[i] == r]
            if queue and r not in held:
                self.begin(min(queue, key=self.rank))
                began = True
        return began

    def rank(self, i: int) -> tuple[int, tuple[Time, int], int]:
        in_order = self.tasks.in_order[self.tasks.resource[i]]
        return (0 if in_order else int(self.tasks.priority[i]), self.states[i].ready, i)

    def limit(self, i: int) -> Fraction | float:
        return min([self.cap[i], *(self.capacity[link] for link in self.paths[i])])

    def share(self) -> None:
        """Rule 3: raise all rates of a class together; whoever meets a limit stays there."""
        room = list(self.capacity)
        moving = self.of("moving")
        classes = [0] * len(self.states)
        if self.tasks.sharing == "priority":
            classes = self.tasks.priority.tolist()
        for one in sorted({classes[i] for i in moving}):
            rising = [i for i in moving if classes[i] == one]
            while rising:
                users = [sum(link in self.paths[i] for i in rising) for link in range(len(room))]
                shares = [room[k] / users[k] if users[k] else math.inf for k in range(len(room))]
                level = {i: min([self.cap[i], *(shares[k] for k in self.paths[i])]) for i in rising}
                lowest = min(level.values())
                for i in [i for i in rising if level[i] == lowest]:
                    self.states[i].rate = lowest
                    rising.remove(i)
                    for k in self.paths[i]:
                        room[k] -= lowest

    def advance(self) -> bool:
        """Go to the next instant; False if nothing is left to come."""
        coming: dict[Time, list[object]] = {}
        for i in self.of("fixed"):
            coming.setdefault(self.states[i].until, []).append(self.states[i].origin)
        for i in self.of("moving"):
            state = self.states[i]
            if state.rate > 0:
                coming.setdefault(self.now + state.left / Fraction(state.rate), []).append("flow")
        for i in self.of("waiting"):
            if all(self.states[k].stage == "ended" for k in self.deps[i]):
                coming.setdefault(self.release[i], []).append(("release", self.release[i]))
        if not coming:
            return False
        upcoming = min(coming)
        near = [time for time in coming if time - upcoming <= upcoming * Fraction(1, 10**9)]
        self.fragile |= len(near) > 1 or len(set(coming[upcoming])) > 1
        for i in self.of("moving"):
            moved = Fraction(self.states[i].rate) * (upcoming - self.now)
            self.states[i].left -= moved
        self.now = upcoming
        return True


def exact(value: float) -> Fraction | float:
    return value if math.isinf(value) else Fraction(value)
