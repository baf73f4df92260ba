"""Whose hosts are whose for now: loans between virtual clusters, as the state machine keeps them.

at home --Lend--> on loan --Reclaim--> recalled --nothing runs there--> at home
"""

from __future__ import annotations

from math import inf

import msgspec

from hemiola.core.decisions import Lend, Placement, Reclaim
from hemiola.core.virtual_cluster import Loan
from hemiola.sched.view import ClusterView

__all__ = ["Lending"]


class Lending:
    """Carries out loans on a view.

    Args:
        view: with the virtual clusters and the loans.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def lend(self, decision: Lend) -> str:
        """Give the hosts to the borrower; return why not."""
        view = self._view
        if why := self._lend_flaw(decision):
            return why
        for host in decision.hosts:
            view.loans[host] = Loan(decision.lender, decision.borrower, view.now, decision.due_s)
        return ""

    def _lend_flaw(self, decision: Lend) -> str:
        view = self._view
        for name in (decision.lender, decision.borrower):
            if name not in view.clusters:
                return f"no virtual cluster is called {name!r}"
        if decision.lender == decision.borrower:
            return "it would lend to itself"
        if not view.now < decision.due_s:  # a NaN is no time either
            return f"{decision.due_s} s is no time in the future"
        if why := _unclear(decision.hosts):
            return why
        for host in decision.hosts:
            if host not in view.clusters[decision.lender].hosts:
                return f"host {host} does not belong to {decision.lender}"
            if host in view.loans:
                return f"host {host} is on loan to {view.loans[host].borrower}"
            if not self._is_empty(host):
                return f"something runs on host {host}"
        return ""

    def reclaim(self, decision: Reclaim) -> str:
        """Want the hosts back; return why not."""
        view = self._view
        if not view.now <= decision.deadline_s < inf:
            return f"{decision.deadline_s} s is no time from now on"
        if why := _unclear(decision.hosts):
            return why
        for host in decision.hosts:
            loan = view.loans.get(host)
            if loan is None or loan.lender != decision.lender:
                return f"host {host} is not on loan from {decision.lender}"
        for host in decision.hosts:
            loan = view.loans[host]
            due_s = min(loan.due_s, decision.deadline_s)
            view.loans[host] = msgspec.structs.replace(loan, due_s=due_s, recalled=True)
            self._return(host)
        return ""

    def vacated(self, placement: Placement) -> None:
        """Something gave these GPUs back: hosts that were recalled return once they are empty."""
        for host in placement.hosts:
            self._return(host)

    def _return(self, host: int) -> None:
        loan = self._view.loans.get(host)
        if loan is not None and loan.recalled and self._is_empty(host):
            del self._view.loans[host]

    def _is_empty(self, host: int) -> bool:
        inventory = self._view.inventory
        return inventory.masks[host] | inventory.blocked.get(host, 0) == inventory.all_masks[host]


def _unclear(hosts: tuple[int, ...]) -> str:
    if not hosts:
        return "it names no host"
    return "" if len(set(hosts)) == len(hosts) else "it names a host twice"
