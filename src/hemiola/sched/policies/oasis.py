"""OASiS: online scheduling with prices, workers and parameter servers on machines of their own.

In the style of Bao, Peng, Wu, Li, "Online Job Scheduling in Distributed Machine Learning Clusters", INFOCOM'18 (arXiv
1801.00936; abstract read): the same skeleton as PD-ORS, which came after it, without locality: workers and servers are in
separate pools of machines, each with prices of its own, so a job is never all on one host. Servers are on the hosts without
GPUs, or on every fourth where all have some (our choice). A job without servers is planned as PD-ORS does.
"""

from __future__ import annotations

from dataclasses import dataclass

from hemiola.sched.policies.pd_ors import PdOrs

__all__ = ["Oasis"]


@dataclass(frozen=True)
class Oasis(PdOrs):
    """PD-ORS in theory, with separate pools and no locality."""

    mode: str = "theory"
    name = "oasis"
    source = "in the style of Bao et al., OASiS, INFOCOM'18"
    separate = True
