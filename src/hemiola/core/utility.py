"""What a job's end is worth to its owner, by how long it took."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Utility"]


class Utility(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A value that falls as time passes: value / (1 + exp(urgency * (d - due))), d seconds after the job's arrival.

    The sigmoid of OASiS and PD-ORS (Bao et al., INFOCOM'18): theta_1, theta_2 and theta_3, in seconds.

    Attributes:
        value: theta_1, what it is worth at once, times 2 where it is due at once.
        urgency_per_s: theta_2; 0 for a job whose time does not matter.
        due_s: theta_3, seconds after its arrival.

    Example:
        >>> Utility(20.0, 1.0, 2.0).at(2.0)
        10.0
    """

    value: float
    urgency_per_s: float = 0.0
    due_s: float = 0.0

    def log_at(self, duration_s: float) -> float:
        """Its logarithm, which is finite where the utility itself underflows."""
        if self.value <= 0.0:
            return -math.inf
        x = self.urgency_per_s * (duration_s - self.due_s)
        return math.log(self.value) - (max(x, 0.0) + math.log1p(math.exp(-abs(x))))

    def at(self, duration_s: float) -> float:
        """What it is worth if it ends so long after its arrival."""
        return math.exp(self.log_at(duration_s)) if self.value > 0.0 else 0.0

    def flaw(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        for name in ("value", "urgency_per_s", "due_s"):
            if not 0 <= getattr(self, name) < math.inf:
                return f"its utility has {name} {getattr(self, name)}"
        return ""
