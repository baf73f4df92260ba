"""What a job has had goes through journal, restart, event, view and page, with no fact lost; files without one are read."""

from __future__ import annotations

import json

import msgspec
import pytest
from journal_helpers import record

from hemiola.core.job import JobHistory, history_of
from hemiola.core.topology import Topology
from hemiola.cost.iteration import IterationModel
from hemiola.live.journal.records import JOB
from hemiola.live.tracked_job import adopted, recovered
from hemiola.live.web.responses import ended_job
from hemiola.live.web.snapshots import seen_in_journal
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView
from hemiola.simulator.cluster import Costs, SimulatedEstimates

HAD = JobHistory(done_s=7.0, served_s=20.0, queued_s=3.0, withheld_s=4.0, preemptions=2, migrations=1)


class Key(msgspec.Struct):
    """By which a driver would find the job again."""


def test_every_fact_differs_from_its_default() -> None:
    assert all(value != getattr(JobHistory(), name) for name, value in history_of(HAD).items())


def test_no_fact_is_lost_on_the_way_through_a_restart() -> None:
    cluster = Topology.flat(hosts=2, gpus_per_host=4)
    machine = StateMachine(ClusterView(cluster, SimulatedEstimates(IterationModel(cluster), Costs())))
    written = JOB.decode(JOB.encode(record("a", memory="{}", **history_of(HAD))), "here")
    (found,) = recovered([written], Key)
    machine.apply(adopted(written.job, None, found, 100.0))
    assert machine.view.jobs["a"].history(100.0) == HAD
    assert history_of(seen_in_journal(written)) == history_of(HAD)
    assert ended_job(None, written).migrations == HAD.migrations


@pytest.mark.parametrize("name", JobHistory.__struct_fields__)
def test_a_journal_without_the_fact_is_read(name: str) -> None:
    text = json.loads(JOB.encode(record("a", **history_of(HAD))))
    del text[name]
    assert JOB.decode(json.dumps(text), "here") == msgspec.structs.replace(
        record("a", **history_of(HAD)), **{name: getattr(JobHistory(), name)}
    )
