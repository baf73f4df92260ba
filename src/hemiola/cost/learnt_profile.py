"""From what a running job reports to the profile that tells how it would run elsewhere.

Each report gives what the law has terms for (`cost.iteration`), where the job runs: the iteration T, the bytes V, and the
exposed communication E. The law says E = max(0, V / r + a - o), so V / r + a - E is the hidden part o where E > 0, and
a lower bound of it where E = 0. Neighbours on the same links make r smaller than the model believes, and the bound
lower: so the quickest iterations on a placement count, and over placements the largest bound. What the network does
not explain of E (ranks that wait for a late one) goes along wherever the job runs: it counts as computation.
"""

from __future__ import annotations

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import Demand, Job, Profile
from hemiola.cost.iteration import IterationModel, Need
from hemiola.trace.reports import JobReport

__all__ = ["LEARNT", "learnt"]

LEARNT = "learnt/"
"""What names of such profiles begin with."""


def learnt(model: IterationModel, job: Job, placement: Placement, report: JobReport, name: str) -> Profile:
    """The profile of a job by a report of its quickest iterations on a placement.

    Args:
        job: with what was learnt of it before, if anything: what its iterations hid elsewhere, they hide here.
        name: what its user calls it.
    """
    before = job.profile if job.profile is not None and job.profile.name.startswith(LEARNT) else None
    sent_bytes = report.traffic_bytes if report.gpus > 1 else 0.0
    ring = Profile(name="ring", demands=(Demand(1, 1.0, 0.0),), all_reduced=report.all_reduced)
    sending = Need(0.0, sent_bytes, 0.0)  # given, for a model keeps what it asks of a profile
    send_s = model.alone_s(
        msgspec.structs.replace(job, gpus=report.gpus, profile=ring), placement, need=sending
    )
    exposed_s = report.iteration_s - report.compute_s
    known_s = before.overlap * before.demand(report.gpus).compute_s if before else 0.0
    hidden_s = max(0.0, send_s - exposed_s, known_s)
    compute_s = max(report.compute_s, report.iteration_s - max(0.0, send_s - hidden_s))
    costs = job.profile
    return Profile(
        name=f"{LEARNT}{job.user}/{name}",
        demands=(Demand(report.gpus, compute_s, sent_bytes),),
        overlap=min(1.0, hidden_s / compute_s),
        all_reduced=report.all_reduced,
        checkpoint_s=costs.checkpoint_s if costs else 0.0,
        restore_s=costs.restore_s if costs else 0.0,
        gpu_type=model.topology.hosts.gpu_types[placement.hosts[0]],
        source=f"learnt from iterations of {report.iteration_s:.3g} s on {len(placement.hosts)} hosts",
    )
