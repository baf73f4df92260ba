"""Every error that Hemiola raises on purpose.

    HemiolaError
    ├── InputError            a file or an argument says something impossible
    │   ├── RowError          one row of a table: file, line, column, value
    │   ├── FormatError       a file whose format is unknown or ambiguous
    │   └── UnitError         a quantity without a unit, or with an unknown one
    ├── TopologyError         a cluster that cannot exist
    ├── GraphError            a dataflow graph that cannot exist, or a model that cannot be captured
    ├── HardwareError         a description of hardware that cannot exist
    ├── PlanError             a plan that would not train its graph rightly
    ├── ScheduleError         a collective's schedule that would not give its result
    ├── LabError              the laboratory cannot be built or does not stand
    ├── StoreError            an object of a store is gone, changed, denied, or does not come
    ├── TransportError        a peer is gone, silent, a stranger, or sent what cannot be
    ├── EngineError           a cluster's engine is away, slow, or answers nonsense
    ├── PolicyError           an unknown policy, a bad parameter, a policy that broke a rule
    └── InternalError         a broken invariant: a defect of Hemiola itself

Each says what is wrong, which value, and what to do about it.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "DAMAGED",
    "EngineError",
    "FormatError",
    "GraphError",
    "HardwareError",
    "HemiolaError",
    "InputError",
    "InternalError",
    "LabError",
    "PlanError",
    "PolicyError",
    "RowError",
    "ScheduleError",
    "StoreError",
    "TopologyError",
    "TransportError",
    "UnitError",
]


DAMAGED = (msgspec.MsgspecError, RecursionError)
"""What msgspec raises of text that is none of what is wanted, however deeply it is nested."""


class HemiolaError(Exception):
    """The root: catch it to catch whatever Hemiola refuses.

    Args:
        what: what is wrong, naming the value.
        remedy: what the reader can do about it; shown as a hint.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.remedy}" if self.remedy else self.what


class InputError(HemiolaError):
    """A file or an argument says something impossible."""


class RowError(InputError):
    """One row of a table cannot be used."""

    def __init__(
        self, path: str, line: int, column: str, value: object, problem: str, remedy: str = ""
    ) -> None:
        super().__init__(f"{path}:{line}: column {column!r}: {value!r} {problem}", remedy)
        self.path = path
        self.line = line
        self.column = column
        self.value = value
        self.problem = problem


class FormatError(InputError):
    """A file whose format is unknown, or could be several."""


class UnitError(InputError):
    """A quantity without a unit, or with one that is not known."""


class TopologyError(HemiolaError):
    """A cluster that cannot exist."""


class GraphError(HemiolaError):
    """A dataflow graph that cannot exist, or a model that cannot be captured."""


class HardwareError(HemiolaError):
    """A description of hardware that cannot exist."""


class PlanError(HemiolaError):
    """A plan that would not train its graph rightly."""


class ScheduleError(HemiolaError):
    """A collective's schedule would not give every rank its result, or would wait for ever."""


class LabError(HemiolaError):
    """The laboratory cannot be built, or does not stand."""


class StoreError(HemiolaError):
    """An object of a store is gone, has changed, is denied, or does not come."""


class TransportError(HemiolaError):
    """A peer is gone, silent, a stranger, or sent what cannot be."""


class EngineError(HemiolaError):
    """A cluster's engine is away, slow, refuses, or answers what cannot be."""


class PolicyError(HemiolaError):
    """An unknown policy, a bad parameter, or a policy that broke a rule."""


class InternalError(HemiolaError):
    """A broken invariant: please report it."""
