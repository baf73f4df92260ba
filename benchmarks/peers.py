"""What other simulators took for the same kind of work, as multiples of the same bare loop.

Their times are CPU seconds, measured once each on two shared EPYC cores with Python 3.11 by running
their published code on slices of the same Philly trace; they are quoted, not measured here. The
floor of that comparison took 0.024 s for 10,000 jobs and 0.05 s for 20,000.
"""

from __future__ import annotations

from clocks import table

FLOOR_S = {5_000: 0.012, 10_000: 0.024, 20_000: 0.05}
PEERS = (
    ("Tiresias simulator (2019), fifo", 10_000, 83.0),
    ("Tiresias simulator (2019), dlas-gpu", 10_000, 104.0),
    ("Gavel (2020), fifo", 5_000, 33.4),
    ("AccaSim, FIFO and first fit", 20_000, 43.4),
)


def measure() -> str:
    """The section of the report."""
    lines = [
        [name, f"{jobs:,}", f"{cpu_s:g}", f"{FLOOR_S[jobs]:g}", f"{cpu_s / FLOOR_S[jobs]:,.0f}"]
        for name, jobs, cpu_s in PEERS
    ]
    return "\n\n".join(
        [
            "Measured once each, earlier, on the same kind of machine, on slices of the same trace and 512 GPUs; "
            "the floor for 5,000 jobs is half of that for 10,000. None of them models a network here. Compare with "
            "the first table's multiples.",
            table(["simulator", "jobs", "CPU s", "floor, CPU s", "floors"], lines),
        ]
    )
