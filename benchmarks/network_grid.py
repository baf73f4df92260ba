"""Which points the study of network sensitivity runs: the full study, and a quick one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from network_points import FRESH, RESETS_ALWAYS, RESETS_NEVER, Cell, Point

DALLY = "dally"
TIMERS = {
    "auto": DALLY,
    "break-even": "dally:timer=break-even",
    "break-even, oracle": "dally:timer=break-even,oracle=true",
    "manual": "dally:timer=manual",
    "always-wait": "dally:timer=always-wait",
    "never-wait": "dally:timer=never-wait",
}
BASELINES = {
    "FIFO, consolidated": "fifo-backfill:placement=consolidated",
    "Tiresias, consolidated": "tiresias:placement=consolidated",
    "Tiresias": "tiresias",
    "Gandiva": "gandiva",
    "FIFO, tier-aware": "fifo-backfill",
}
NO_PREEMPTION = "dally:preempt=false"
POLICIES = (*BASELINES.values(), *TIMERS.values(), NO_PREEMPTION)
RESETS = {
    "a paid timer is kept (as it is)": DALLY,
    "reset at every start": RESETS_ALWAYS,
    "never reset": RESETS_NEVER,
}
LAWS = ("max-min", "interleaved", "colliding", "isolated")
LAW_POLICIES = (*BASELINES.values(), DALLY, TIMERS["break-even"], TIMERS["always-wait"], TIMERS["never-wait"])


@dataclass(frozen=True)
class Study:
    """The grid.

    Attributes:
        nics: fabric speeds at oversubscription `over` and load 1.
        others: further fabrics, as (NIC, oversubscription), at load 1.
        loads: further loads, each at the NICs in `load_nics`; `batch` is one that is all at once.
        special: (mix, NIC, oversubscription) at which laws and reset rules are compared.
        seeds, fresh: how many seeds find, and how many others confirm.
        scale: of the number of jobs.
    """

    mixes: tuple[str, ...] = ("lingjun", "muri", "philly")
    nics: tuple[float, ...] = (10, 25, 50, 100, 200, 400, 800, 1600)
    over: float = 4
    others: tuple[tuple[float, float], ...] = ((10, 1), (25, 1), (100, 1), (25, 8), (100, 8))
    loads: tuple[float, ...] = (0.6, 0.8, 1.2)
    load_nics: tuple[float, ...] = (10, 25, 100)
    batch: float = 20.0
    batch_nics: tuple[float, ...] = (10, 25)
    special: tuple[tuple[str, float, float], ...] = (("lingjun", 25, 4), ("muri", 10, 4))
    seeds: int = 5
    fresh: int = 10
    scale: float = 1.0

    def cells(self) -> Iterator[Cell]:
        """Every cell of the search, each once. Raw Philly gets fewer: most of them are alike."""
        for mix in self.mixes:
            real = mix == "philly"
            fabrics = [(nic, self.over, 1.0) for nic in self.nics]
            fabrics += [(nic, over, 1.0) for nic, over in self.others if not real or nic == 25]
            nics = [nic for nic in self.load_nics if not real or nic == 25]
            fabrics += [(nic, self.over, load) for load in self.loads for nic in nics]
            fabrics += [(nic, self.over, self.batch) for nic in self.batch_nics]
            for nic, over, load in fabrics:
                yield Cell(mix, nic, over, load, scale=self.scale)

    def points(self) -> list[Point]:
        """Everything but the confirmation."""
        points = [
            Point(cell, policy, seed)
            for cell in self.cells()
            for policy in POLICIES
            for seed in range(self.seeds)
        ]
        for cell, policies in self.extras():
            points += [Point(cell, policy, seed) for policy in policies for seed in range(self.seeds)]
        return list(dict.fromkeys(points))

    def extras(self) -> Iterator[tuple[Cell, Sequence[str]]]:
        """Laws and reset rules."""
        for mix, nic, over in self.special:
            if mix in self.mixes:
                yield Cell(mix, nic, over, scale=self.scale), tuple(RESETS.values())
                for law in LAWS:
                    yield Cell(mix, nic, over, law=law, scale=self.scale), LAW_POLICIES

    def confirmation(self, cell: Cell, baseline: str) -> list[Point]:
        """The same cell on jobs that it was not chosen by."""
        return [
            Point(cell, policy, FRESH + seed) for policy in (DALLY, baseline) for seed in range(self.fresh)
        ]


FULL = Study()
QUICK = Study(
    mixes=("lingjun", "muri"), nics=(10, 50, 400), others=((50, 1),), loads=(0.6,), load_nics=(50,), batch_nics=(),
    special=(("lingjun", 50, 4),), seeds=3, fresh=3,
)  # fmt: skip
