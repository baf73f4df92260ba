"""From what a running job reports to the profile that tells how it would run elsewhere.

Each report gives the law's terms where the job runs (`cost.iteration`): the compute time C, the bytes V, and the
exposed communication E = T - C. The law says E = max(0, V / r + a - o), so V / r + a - E is the hidden part o where
E > 0, and a lower bound of it where E = 0. Neighbours on the same links make r smaller than the model believes, and
the bound lower: so the quickest iterations on a placement count, and over placements the largest bound.
"""

from __future__ import annotations

import msgspec

from hemiola.core.decisions import Placement
from hemiola.core.job import Demand, Job, Profile
from hemiola.cost.iteration import IterationModel
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
    demand = Demand(report.gpus, report.compute_s, report.traffic_bytes if report.gpus > 1 else 0.0)
    bare = Profile(name="bare", demands=(Demand(report.gpus, 1e-12, demand.traffic_bytes),))
    send_s = model.alone_s(msgspec.structs.replace(job, gpus=report.gpus, profile=bare), placement)
    hidden_s = send_s - (report.iteration_s - report.compute_s)
    known_s = before.overlap * before.demand(report.gpus).compute_s if before else 0.0
    costs = job.profile
    return Profile(
        name=f"{LEARNT}{job.user}/{name}",
        demands=(demand,),
        overlap=min(1.0, max(0.0, hidden_s, known_s) / report.compute_s),
        all_reduced=report.all_reduced,
        checkpoint_s=costs.checkpoint_s if costs else 0.0,
        restore_s=costs.restore_s if costs else 0.0,
        gpu_type=model.topology.hosts.gpu_types[placement.hosts[0]],
        source=f"learnt from iterations of {report.iteration_s:.3g} s on {len(placement.hosts)} hosts",
    )
