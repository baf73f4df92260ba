"""Jobs with wishes beyond GPUs, on a real Slurm: a type, features, whole nodes, licences, limits of arrays."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_slurm import Live, need_slurm, until
from patience import patience, slowly

from hemiola.core.hostlist import expand
from hemiola.core.topology import Topology
from hemiola.lab.slurm import SlurmLab
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.release import hand_back
from hemiola.live.engines.slurm.requests import TOP
from hemiola.live.engines.slurm.snapshot import slurm_topology

pytestmark = pytest.mark.xdist_group("kinds")  # its servers are started once


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    need_slurm()
    name = f"kinds-{secrets.token_hex(4)}"
    with SlurmLab(
        4,
        gpus=4,
        racks=2,
        gpu_types=("a100", "h100"),
        name=name,
        settings={
            "Licenses": "few:1",
            "KillWait": "6",
            "SchedulerParameters": "bf_interval=30,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
        },
    ) as slurm:
        yield slurm


def test_jobs_get_gpus_of_the_type_that_they_want(live: Live):
    with live.serving():
        first = live.submit("-N2 --gres=gpu:h100:4", "sleep 3")
        second = live.submit("--gpus=h100:4", "sleep 1")
        whatever = live.submit("-N1 --gres=gpu:2", "sleep 1")
        live.wait_state(first, "RUNNING")
        live.wait_state(whatever, "RUNNING")
        assert expand(live.hosts(first)) == ["h2", "h3"]
        assert live.hosts(whatever) in ("h0", "h1")
        assert live.state(second) == "PENDING", "it waits for its type, though others are free"
        assert [live.wait_outcome(job) for job in (first, second, whatever)] == ["finished"] * 3
        assert live.rows(ended=True)[second].host_list in ("h2", "h3")
        wide = live.submit("-N4 --gres=gpu:4", "sleep 1")  # of both types: no policy places that, but says so
        until(lambda: live.service.driver.impossible(), "it is known to be impossible")
        assert live.state(wide) == "PENDING"


def test_features_that_only_some_nodes_have_are_slurms_to_look_after(live: Live):
    for node, features in (("h0", "ib"), ("h1", "ib,big"), ("h2", "ib"), ("h3", "ib")):
        live.command("scontrol", "update", f"nodename={node}", f"AvailableFeatures={features}")
        live.command("scontrol", "update", f"nodename={node}", f"ActiveFeatures={features}")
    with live.serving():
        everywhere = live.submit("-N1 --gres=gpu:4 -C ib")
        some = live.submit("-N1 --gres=gpu:4 -C big", "sleep 2")
        either = live.submit("-N1 --gres=gpu:4 -C big|ib")
        live.wait_state(some, "RUNNING")
        assert live.hosts(some) == "h1"
        until(lambda: 1 in live.service.view.inventory.blocked, "its node is not ours")
        live.wait_state(either, "COMPLETED")
        assert live.wait_outcome(everywhere) == "finished"
        assert live.known(some) is live.known(either) is None
        live.wait_state(some, "COMPLETED")


def test_a_job_that_wants_whole_nodes_has_them_for_itself(live: Live):
    with live.serving():
        whole = live.submit("-N2 --gres=gpu:a100:1 --exclusive", "sleep 3")
        live.wait_state(whole, "RUNNING")
        assert live.service.view.jobs[live.record(whole).uuid].gpus == 8
        beside = live.submit("-N1 --gres=gpu:a100:1")
        live.wait_state(beside, "PENDING")
        assert live.wait_outcome(whole) == "finished"
        assert live.wait_outcome(beside) == "finished"
        assert live.rows(ended=True)[beside].restarts == 0
        theirs = live.submit("-N1 --exclusive -w h3", "sleep 2")  # it wants no GPU, and leaves none to others
        live.wait_state(theirs, "RUNNING")
        until(lambda: live.service.view.inventory.blocked.get(3, 0).bit_count() == 4, "the node is taken")
        live.wait_state(theirs, "COMPLETED")


def test_a_job_that_meets_a_limit_holds_no_gpus(live: Live):
    with live.serving():
        first = live.submit("-N1 --gres=gpu:h100:4 -L few", "sleep 4")
        live.wait_state(first, "RUNNING")
        second = live.submit("-N2 --gres=gpu:a100:4 -L few")
        until(lambda: "limit is reached: Licenses" in live.reason(second), "it is known why it waits")
        third = live.submit("-N2 --gres=gpu:a100:4")
        assert live.wait_outcome(third) == "finished"
        assert live.wait_outcome(second) == "finished"


def test_a_job_waits_for_one_that_takes_its_time_to_leave(
    live: Live, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    with live.serving("srtf"):
        stubborn = live.submit(
            "-N2 --gres=gpu:h100:4",
            f"trap '' TERM; touch {tmp_path}/deaf; sleep 60",
            comment="hemiola runtime=1h",
        )
        live.wait_state(stubborn, "RUNNING")
        until((tmp_path / "deaf").exists, "it heeds no signal")
        began_s = time.monotonic()
        urgent = live.submit("-N1 --gres=gpu:h100:4", "sleep 0.5", comment="hemiola runtime=1s")
        until(lambda: live.state(stubborn) == "COMPLETING", "it is told to go")
        assert live.wait_outcome(urgent) == "finished"
        assert time.monotonic() - began_s > 4.0, "it was not killed at once"
        assert "is left alone" not in caplog.text
        live.command("scancel", stubborn)


def run_beside(live: Live, *nodes: str, options: tuple[str, ...] = ()) -> None:
    """A job of others on each of these nodes, without GPUs."""
    before = live.rows().keys()
    for node in nodes:
        live.command(
            "sbatch", "-o/dev/null", "-pother", f"-w{node}", *options, f"--wrap=sleep {patience(30):.0f}"
        )
    until(
        lambda: (
            sum(row.state == "RUNNING" for job, row in live.rows().items() if job not in before) == len(nodes)
        ),
        "they run",
    )


def shut(live: Live, *nodes: str) -> None:
    """Let a job of another user have each of these nodes in a way that Slurm shows of none."""
    run_beside(live, *nodes, options=("--uid=65534", "--exclusive=user"))


def test_a_job_goes_where_the_processors_are_that_it_needs_and_keeps_no_other_waiting(live: Live):
    with live.serving("fifo-backfill"):
        run_beside(live, "h0", options=("-c", "12"))
        beside = live.submit("-N1 --gres=gpu:a100:1 -c 8")
        assert live.wait_outcome(beside) == "finished"
        run_beside(live, "h0", "h1", options=("-c", "2"))
        greedy = live.submit("-N1 --gres=gpu:a100:1 -c 15")
        modest = live.submit("-N1 --gres=gpu:a100:1 -c 2")
        assert live.wait_outcome(modest) == "finished"
        assert live.record(greedy).status == "waiting"
        ran = {job: row for job, row in live.rows(ended=True).items() if job in (beside, modest)}
        assert ran[beside].host_list == "h1"
        assert all(live.record(job).binds_failed == 0 for job in (greedy, beside, modest))
        live.command("scancel", greedy)


def test_a_job_that_a_node_refuses_is_tried_on_another_one(live: Live):
    with live.serving():
        shut(live, "h0")
        job = live.submit("-N1 --gres=gpu:a100:1")
        assert live.wait_outcome(job) == "finished"
        assert live.rows(ended=True)[job].host_list == "h1"


def test_a_node_that_refuses_a_job_is_given_back_soon(live: Live):
    with live.serving():
        shut(live, "h0")
        refused = live.submit("-N2 --gres=gpu:a100:1")
        until(lambda: live.record(refused).binds_failed > 0, "it is tried in vain")
        modest = live.submit("-N1 --gres=gpu:a100:4 -c 16")
        assert live.wait_outcome(modest) == "finished"
        live.command("scancel", refused)


def placed_in_vain(live: Live) -> str:
    """A job that is placed, and does not begin for some seconds."""
    job = live.submit("-N1 --gres=gpu:a100:4")
    until(lambda: live.rows()[job].bound_to and live.rows()[job].priority == TOP, "it is placed")
    return job


def test_an_administrators_hold_of_a_job_that_is_placed_is_kept(live: Live):
    with live.serving():
        shut(live, "h0", "h1")
        job = placed_in_vain(live)
        live.command("scontrol", "hold", job)
        until(lambda: live.reason(job) == "an administrator holds it", "its reason is the hold")
        assert live.wait_outcome(live.submit("--gres=gpu:h100:1")) == "finished", (
            "it has looked again and again"
        )
        row = live.rows()[job]
        assert (row.priority, row.reason) == (0, "JobHeldAdmin")
        live.command("scontrol", "release", job)
        until(lambda: live.record(job).binds_failed > 0, "it is tried again")
        live.command("scancel", job)


def test_a_job_that_is_placed_and_has_not_begun_is_handed_back_to_any_nodes(live: Live):
    with live.serving():
        shut(live, "h0", "h1")
        job = placed_in_vain(live)
    assert live.rows()[job].bound_to
    hand_back(live.slurm, "hemiola")
    row = live.rows()[job]
    assert (row.state, row.bound_to) == ("PENDING", "") and 0 < row.priority < TOP


def test_jobs_that_are_slurms_and_wait_keep_nobody_else_waiting(live: Live):
    with live.serving():
        live.command("sbatch", "-o/dev/null", "-pother", "-wh0", "--gres=gpu:4", "--wrap=sleep 60")
        until(lambda: any(row.state == "RUNNING" for row in live.rows().values()), "h0 is taken")
        wide = live.submit("-N3 -x h3 --gres=gpu:1")
        until(lambda: live.rows()[wide].reason == "Resources", "it waits for h0")
        job = live.submit("-N1 --gres=gpu:h100:4")
        live.wait_state(job, "RUNNING", "COMPLETED")
        waited_s = time.time() - live.rows(ended=True)[job].submit_s
        assert waited_s < min(25.0, slowly(8.0)), (
            "Slurm's main loop starts it, not the one of backfill, which comes every 30 s"
        )
        assert live.state(wide) == "PENDING"


SAME_TREE = """---
- topology: default
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "rack[0-1]"}
      - {switch: rack0, nodes: "h[0-1]"}
      - {switch: rack1, nodes: "h[2-3]"}
"""
"""For newer Slurms, whose commands look at it."""


def test_the_network_is_what_slurm_shows_where_its_files_do_not_say(live: Live, lab: SlurmLab):
    def network(of: Topology) -> tuple[object, ...]:
        racks = [(level.name, level.domains, level.domain_of_host.tolist()) for level in of.levels]
        return of.hosts.names, of.hosts.gpus.tolist(), of.gpu_types, racks

    class NoTree(Slurm):
        """A Slurm that was told of no topology prints nothing where another shows it."""

        def ask(self, command: str, *arguments: str) -> str:
            return "" if "topology" in arguments else super().ask(command, *arguments)

    written = slurm_topology(live.slurm)
    (elsewhere := Path(lab.environ["SLURM_CONF"]).with_name("topology.yaml")).write_text(SAME_TREE)
    try:
        assert network(slurm_topology(live.slurm)) == network(written)
        assert slurm_topology(live.slurm, {"nic": "200gbit"}).hosts.nic_bytes_per_s.tolist() == [25e9] * 4
        flat = slurm_topology(NoTree(Path(lab.environ["SLURM_CONF"])))
        assert network(flat) == (*network(written)[:3], [])
    finally:
        elsewhere.unlink()
