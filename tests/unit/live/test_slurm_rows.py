"""What Slurm prints, read strictly; jobs' shapes and labels; how a job is found again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_helpers import record
from replays import cluster

from hemiola.core.decisions import Move, Placement, Start
from hemiola.core.errors import EngineError, InputError
from hemiola.core.events import Arrived, Started
from hemiola.core.hostlist import expand
from hemiola.core.job import Demand, Profile, batch_job
from hemiola.live.engines.slurm.client import VERSION_S, Slurm
from hemiola.live.engines.slurm.diff import SlurmDiff, outcome_of, why_held
from hemiola.live.engines.slurm.job_spec import begin_of, hosts_of, is_slurms, job_of, shape, shrinks_live
from hemiola.live.engines.slurm.lending import lend
from hemiola.live.engines.slurm.requests import bind, shrink, unbind, unpark
from hemiola.live.engines.slurm.tracked_job import SlurmRecoveryKey, SlurmTrackedJob
from hemiola.live.engines.slurm.wire import (
    RunSpan,
    SlurmJobRow,
    SlurmNodeRow,
    Words,
    job_format,
    job_rows,
    node_rows,
    spans_in,
)
from hemiola.live.tracked_job import RecoveredJob, recovered
from hemiola.sched.machine import StateMachine
from hemiola.sched.view import ClusterView

LINE = (
    "3_2|RUNNING|None|2|2|h[0,2]|gres:gpu:h100:4|N/A|N/A|2|1795399342|1000|4294901757|1795399343|3|h[0,2]|1|"
    "1-02:03:04|hemiola|768|afterok:1(unfulfilled)|1|night|0|1|NO|N/A|1|"
    "cpu=16,mem=2000M,node=2,billing=16|gpu:2|N/A|500M|ib&(h100|h200)|"
)  # as Slurm 22.05 printed it
LATER = LINE.replace("gres:gpu:h100:4", "gres/gpu:h100:4").replace("|768|", "|3:0|")  # as 24.11
OLD, NEW = (22, 5), (26, 5)

EIGHT = {"": 8}


def row(**other: object) -> SlurmJobRow:
    return msgspec.structs.replace(job_rows(LINE, OLD)[0], **{"exclusive": False, "features": "", **other})


def test_a_line_of_squeue():
    wanted = [
        SlurmJobRow(
            "3_2", "RUNNING", "None", 2, 2, "h[0,2]", 4, 0, 0, 2, 1795399342, 1000, 4294901757, 1795399343, "3", "h[0,2]",
            1, 93784.0, "hemiola", 768, "afterok:1(unfulfilled)", True, "night", 0, 1, True, "h100", 0, True,
            "ib&(h100|h200)", "", (16, 2000 * 2.0**20), 2, 0.0, True,
        )
    ]  # fmt: skip
    assert job_rows(LINE + "\n", OLD) == job_rows(LATER, (24, 11)) == wanted
    for version in OLD, NEW:
        assert len(job_format(version).split(",")) == len(LINE.split("|")) - 2, "one stands in the constraint"


@pytest.mark.parametrize(
    ("version", "word", "wanted"),
    [((24, 11), "NO", True), ((24, 11), "OK", False), (NEW, "NO", False), (NEW, "NODE", True)],
)
def test_whole_nodes_stand_in_a_column_of_their_own_since_26_05(version, word, wanted):
    assert ("Exclusive:" in job_format(version)) is (version == NEW)
    (one,) = job_rows(LATER.replace("|NO|", f"|{word}|"), version)
    assert one.exclusive is wanted


def test_when_jobs_began_and_ended():
    assert spans_in("3_2|1795399342|1795399400|\n4|N/A|NONE|\n5|Unknown|0|\n") == {
        "3_2": RunSpan(1795399342, 1795399400), "4": RunSpan(None, None), "5": RunSpan(None, None),
    }  # fmt: skip
    with pytest.raises(EngineError, match="'soon' as StartTime"):
        spans_in("4|soon|NONE|\n")


def test_the_version_is_asked_for_again_as_slurm_may_be_upgraded(tmp_path, monkeypatch):
    def says(text: str) -> None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / "squeue").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    clock = [0.0]
    monkeypatch.setattr("hemiola.live.engines.slurm.client.time.monotonic", lambda: clock[0])
    slurm = Slurm()
    says("slurm-wlm 24.11.5")
    assert slurm.version() == (24, 11)
    says("slurm 26.05.5")
    assert slurm.version() == (24, 11)
    clock[0] += VERSION_S + 1
    assert slurm.version() == (26, 5)
    says("my own queue")
    clock[0] += VERSION_S + 1
    with pytest.raises(EngineError, match="calls its version 'my own queue"):
        slurm.version()


def test_many_jobs_are_asked_for_in_pieces(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version*) echo slurm 22.05.8; exit;; esac\n'
        'echo "$*" | wc -c >> "$0.asked"\necho JOBID\n'
    )
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    slurm = Slurm()
    ids = [f"1234567_{number}" for number in range(12_000)]
    assert slurm.jobs(ids=ids) == [] and slurm.jobs_and_words(ids) == {}
    asked = (tmp_path / "squeue.asked").read_text().split()
    assert len(asked) == 12 and max(map(int, asked)) < 131_072


def test_a_command_that_cannot_be_run_is_an_engine_that_is_away(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="squeue could not be run: Permission denied"):
        Slurm().version()
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(EngineError, match="squeue could not be run: Argument list too long"):
        Slurm().ask("squeue", "x" * 200_000)


def test_a_signal_that_ended_a_job():
    assert job_rows(LATER.replace("|3:0|", "|0:9|"), NEW)[0].exit_code == 9


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("UNLIMITED", None),
        ("365-00:00:00", None),
        ("10:00", 600.0),
        ("2-00:00:00", 172800.0),
        ("1:02:03", 3723.0),
        ("0:30", 30.0),
    ],
)
def test_time_limits(text, limit_s):
    assert job_rows(LINE.replace("1-02:03:04", text), OLD)[0].limit_s == limit_s


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("N/A", (0, "")),
        ("gpu:4", (4, "")),
        ("gres:gpu", (1, "")),
        ("gres:gpu:a100", (1, "a100")),
        ("gres:gpu:a100_40:2", (2, "a100_40")),
        ("gres:gpu:8(S:0-1)", (8, "")),
        ("gres:gpu:a:2,gres:gpu:b:3", (5, "")),
        ("gres:mps:50", (0, "")),
        ("gres/gpu:4", (4, "")),
        ("gres/gpu:h100:4", (4, "h100")),
        ("cpu=2,gres/gpu=3", (3, "")),
        ("gres/gpu:h100=3", (3, "h100")),
    ],
)
def test_gpus(text, gpus):
    (one,) = job_rows(LINE.replace("gres:gpu:h100:4", text), OLD)
    assert (one.gpus_per_host, one.gpu_type) == gpus


def test_lines_of_sinfo():
    assert node_rows(
        "h0|mixed|gpu:8|a|3/13/0/16|1000|300|(null)|\nh1|down+not_responding|gpu:h100:4(S:0-1)|a|0/0/16/16|1000|0|ib,h100|\n"
        "h2|idle+drain|(null)|b|0/0/16/16|1000|0|ib|\nh3|mixed+reserved+planned|gpu:8|a|0/16/0/16|1000|0|(null)|\n"
        "h4|allocated+maintenance|gpu:8|a|16/0/0/16|1000|0|(null)|\n"
    ) == [
        SlurmNodeRow("h0", "mixed", False, 8, "a", frozenset(), 16, 3, 1000 * 2.0**20, 300 * 2.0**20),
        SlurmNodeRow("h1", "down", True, 4, "a", frozenset({"ib", "h100"}), 16, 0, 1000 * 2.0**20),
        SlurmNodeRow("h2", "drained", False, 0, "b", frozenset({"ib"}), 16, 0, 1000 * 2.0**20),
        SlurmNodeRow("h3", "reserved", False, 8, "a", frozenset(), 16, 0, 1000 * 2.0**20),
        SlurmNodeRow("h4", "maint", False, 8, "a", frozenset(), 16, 16, 1000 * 2.0**20),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        LINE[:60], LINE + "one more|", "slurm_load_jobs error: Unable to contact slurm controller",
        LINE.replace("RUNNING", "RUN NING"), LINE.replace("h[0,2]", "h0; rm -rf /"), LINE + "\n" + LINE[:-9],
        LINE.replace("|None|", "|a|b|"),
    ],
)  # fmt: skip
def test_half_an_answer_or_one_that_does_not_say_what_has_nodes_is_refused_as_a_whole(text):
    with pytest.raises(EngineError, match="squeue printed"):
        job_rows(text, OLD)


PLAIN = LINE.replace("ib&(h100|h200)", "(null)")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("3_2", "3 2", "JobArrayID"), ("1795399342", "yesterday", "SubmitTime"), ("|1000|", "|root|", "UserID"),
        ("gres:gpu:h100:4", "gres:gpu:h 100:4", "tres-per-node"), ("|hemiola|", "|a b|", "Partition"),
        ("|2|2|", "|two|2|", "NumNodes"), ("|night|", "|to night|", "Reservation"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_read_is_strange_has_whole_nodes_and_refuses_no_other(old, new, name):
    strange, whole = job_rows(PLAIN.replace(old, new) + "\n" + LINE + "\n", OLD)
    assert strange.strange.endswith(f"as {name}") and strange.exclusive
    assert (strange.state, strange.host_list) == ("RUNNING", "h[0,2]")
    assert whole == job_rows(LINE, OLD)[0] and whole.strange == ""


def test_what_is_for_people_is_taken_as_it_is():
    (one,) = job_rows(PLAIN.replace("|None|", '|"burst <buffer>" = \x1b[31m & so on|'), OLD)
    assert (one.reason, one.strange) == ('"burst <buffer>" = ?[31m & so on', "")
    many = ",".join(f"afterok:{number}(unfulfilled)" for number in range(1000))
    (one,) = job_rows(PLAIN.replace("afterok:1(unfulfilled)", many), OLD)
    assert (one.dependency, one.strange) == (many[:4096], "")


def test_a_part_of_a_heterogeneous_job_is_slurms():
    (one,) = job_rows(PLAIN.replace("3_2", "12+0").replace("|NO|", "|OK|"), OLD)
    assert (one.id, one.exclusive, one.gpus_per_host) == ("12+0", False, 4)
    assert one.strange == "it is part of a heterogeneous job"


def test_a_job_whose_reservation_is_gone_waits_and_is_held_until_it_is_released():
    states = []
    for reason in ("Reservation night was deleted", "JobHeldUser", "Resources"):
        (one,) = job_rows(PLAIN.replace("RUNNING|None", f"RESV_DEL_HOLD|{reason}"), OLD)
        states.append((one.state, one.kept))
    assert states == [
        ("PENDING", "its reservation is gone, and it is held"),
        ("PENDING", ""),
        ("PENDING", ""),
    ]


def test_gpus_by_socket_are_slurms_and_taken():
    (one,) = job_rows(PLAIN.replace("gres:gpu:h100:4", "N/A").replace("|NO|N/A|", "|OK|gres:gpu:4|"), OLD)
    assert (one.gpus_per_socket, one.exclusive, one.takes_gpus) == (4, False, True)
    assert one.strange == "it asks for GPUs by socket"


def test_what_salloc_and_srun_ask_for_is_never_stopped():
    (batch,), (other,) = job_rows(PLAIN, OLD), job_rows(PLAIN.replace("|N/A|1|cpu", "|N/A|0|cpu"), OLD)
    assert batch.requeues and other.requeues
    jobs = [job_of(one, "u", Words(), EIGHT, 1.0, lambda model: None)[0] for one in (batch, other)]
    assert [job.pinned for job in jobs] == [False, True]


@given(st.text(alphabet="|0123abN/A()[]-_:,\n RUNG", max_size=300) | st.text(max_size=300))
def test_whatever_is_printed_gives_rows_or_a_refusal(text):
    with contextlib.suppress(EngineError):
        job_rows(text, OLD)
    with contextlib.suppress(EngineError):
        node_rows(text)


@given(st.lists(st.tuples(st.integers(0, len(LINE)), st.characters()), min_size=1, max_size=3))
def test_a_damaged_line_is_never_something_worse_than_a_refusal(damage):
    text = LINE
    for place, sign in damage:
        text = text[:place] + sign + text[place + 1 :]
    with contextlib.suppress(EngineError):
        job_rows(text, OLD)


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ({"gpus_per_host": 4, "hosts": 3}, (12, 3)),
        ({"gpus_per_host": 0, "gpus_per_job": 12, "hosts": 1}, (12, 2)),  # on hosts of eight
        ({"gpus_per_host": 0, "gpus_per_job": 9, "hosts": 1}, (9, 3)),  # two hosts cannot have equal parts
        ({"gpus_per_host": 0, "gpus_per_job": 8, "hosts": 2}, (8, 2)),
        ({"gpus_per_host": 0, "gpus_per_task": 3, "tasks": 4, "hosts": 1}, (12, 2)),  # two tasks on each
        ({"gpus_per_host": 0, "hosts": 1}, (0, 0)),
        ({"gpus_per_host": 2, "hosts": 3, "exclusive": True}, (24, 3)),
        ({"gpus_per_host": 0, "gpus_per_job": 9, "hosts": 1, "exclusive": True}, (24, 3)),
        ({"gpus_per_host": 0, "hosts": 1, "exclusive": True}, (0, 0)),
    ],
)
def test_shapes(given_, wanted):
    assert shape(row(**given_), 8) == wanted


def test_a_job_may_want_gpus_of_one_type():
    def wanted(most: dict[str, int], **other: object) -> tuple[str, int, int]:
        job, _ = job_of(row(hosts=2, **other), "u", Words(), most, 1.0, lambda model: None)
        return job.gpu_type, job.gpus, job.hosts

    both = {"": 8, "h100": 4, "a100": 8}
    assert wanted(both) == ("h100", 8, 2)
    assert wanted(EIGHT) == ("", 8, 2), "the topology knows no types"
    assert wanted({"": 8, "H100": 4}) == ("H100", 8, 2)
    assert wanted({"": 8, "NVIDIA-H100": 4}) == ("", 8, 2), "it knows others: Slurm says what is not possible"
    assert wanted(both, exclusive=True) == ("h100", 8, 2), "whole nodes of that type"
    assert wanted(both, exclusive=True, gpu_type="") == ("", 16, 2)


@pytest.mark.parametrize(
    ("features", "wanted"), [("", False), ("ib", False), ("ib&big", False), ("h100", True), ("ib|h100", True)]
)
def test_jobs_that_want_what_only_some_nodes_have(features: str, wanted: bool):
    assert is_slurms(row(features=features, bound_to=""), Words(), {"ib", "big"}) is wanted


def test_what_users_say_in_the_comment():
    known = Profile(name="m", demands=(Demand(8, 1.0, 1.0),))
    words = Words("hemiola model=resnet50 runtime=2h required=rack colour=red", "train")
    job, note = job_of(row(), "u", words, EIGHT, 100.0, lambda model: known)
    assert (job.duration_s, job.required, job.profile, job.model) == (7200.0, "rack", known, "resnet50")
    assert "'colour=red'" in note and "model, runtime" in note

    def unknown(model: str) -> Profile:
        raise InputError(f"no profile has the model {model!r}")

    job, note = job_of(row(), "u", words, EIGHT, 100.0, unknown)
    assert job.profile is None and "no profile has the model 'resnet50'" in note
    assert job_of(row(), "u", Words("my own words"), EIGHT, 100.0, unknown)[1] == ""
    assert job_of(row(limit_s=None), "u", Words(), EIGHT, 100.0, unknown)[0].duration_s == 100.0


UUID = "01234567-89ab-cdef-0123-456789abcdef"


def test_a_job_for_two_to_four_nodes_is_elastic():
    def unknown(model: str) -> Profile:
        raise InputError(model)

    asked = row(state="PENDING", hosts=2, most_hosts=4, gpus_per_host=8)
    words = Words("hemiola shrink=live")
    job, note = job_of(asked, "u", words, EIGHT, 100.0, unknown)
    assert (job.gpus, job.hosts, list(job.sizes), note) == (16, 2, [16, 24, 32], "")
    assert shrinks_live(words) and not shrinks_live(Words("hemiola shrink=restart"))
    assert (
        "shrink='soon': write one of live, restart"
        in job_of(asked, "u", Words("hemiola shrink=soon"), EIGHT, 1.0, unknown)[1]
    )
    # bound to three, it shows three; what it was submitted for stands in its AdminComment
    bound, mark = (
        row(state="RUNNING", hosts=3, most_hosts=3, gpus_per_host=8),
        f"hemiola:{UUID}:ranks=n[1-3]:nodes=2-4",
    )
    assert hosts_of(bound, Words(admin=mark)) == hosts_of(bound, Words(admin=f"{mark}:begin=60")) == (2, 4)
    assert begin_of(Words(admin=f"{mark}:begin=60")) == 60.0 and begin_of(Words(admin=mark)) is None
    again = job_of(bound, "u", Words(admin=mark), EIGHT, 1.0, unknown)[0]
    assert (again.gpus, again.hosts, list(again.sizes)) == (16, 2, [16, 24, 32])
    for admin in ("", "(null)", mark + "x", f"x{mark}", f"hemiola:{UUID}:ranks=n1"):
        assert hosts_of(bound, Words(admin=admin)) == (3, 3)
    assert hosts_of(row(state="RUNNING", hosts=2, most_hosts=4), Words()) == (2, 2), (
        "nobody knows how few would do"
    )
    assert hosts_of(
        row(state="PENDING", hosts=1, most_hosts=4, gpus_per_host=0, gpus_per_job=8), Words()
    ) == (1, 1)


@pytest.mark.parametrize(
    ("bound_to", "said", "wanted"),
    [
        ("", Words(), False),
        ("h0", Words(), True),
        ("h0", Words(admin="an administrator's remark"), True),
        ("h0", Words(admin=f"hemiola:{UUID}:ranks=h0"), False),
        ("h[0-1]", Words(admin=f"hemiola:{UUID}:ranks=h[0-1]:nodes=1-4"), False),
        ("h0", Words(admin="hemiola:advice:nodes=h0"), True),
        ("h1", Words(admin=f"hemiola:{UUID}:ranks=h0"), True),
        ("h[0-1]", Words(admin=f"hemiola:{UUID}:ranks=h0:nodes=1-4"), True),
        ("h[0-1]", Words(admin=f"hemiola:{UUID}:ranks=h0:bound=h[0-1]:nodes=1-4"), False),
        ("h[0-1]", Words(admin=f"hemiola:{UUID}:ranks=h[1,0]"), False),
        ("h0", Words(admin=f"hemiola:{UUID}:ranks=:begin=60"), True),
        ("", Words(admin=f"hemiola:{UUID}:ranks=h0"), False),
        ("", Words("hemiola:names-its-nodes "), False),
    ],
)
def test_jobs_that_name_their_nodes(bound_to: str, said: Words, wanted: bool):
    assert is_slurms(row(bound_to=bound_to), said) is wanted


def test_a_job_is_found_again_and_another_one_of_its_number_is_not():
    recovery_key = SlurmRecoveryKey((100,), 7, 0)
    assert recovery_key.is_same(row(submit_s=100, uid=7, restarts=0))
    assert not recovery_key.is_same(row(submit_s=200, uid=7, restarts=0)), (
        "submitted anew after the controller had lost it"
    )
    assert not recovery_key.is_same(row(submit_s=100, uid=8, restarts=0))
    assert recovery_key.is_same(row(submit_s=200, uid=7, restarts=1)), "requeued"
    half = SlurmRecoveryKey((100,), 7, 1)  # the restart was counted before its time was seen
    assert half.is_same(row(submit_s=200, uid=7, restarts=1))
    assert half.is_same(row(submit_s=100, uid=7, restarts=0)), (
        "a controller that came back with an older state"
    )
    assert not half.is_same(row(submit_s=300, uid=7, restarts=0))


def test_what_a_job_had_goes_on_while_nobody_looks():
    memory = RecoveredJob(
        uuid="u",
        engine_id="1",
        recovery_key=SlurmRecoveryKey((1,), 0, 0),
        running=True,
        since_s=50.0,
        served_s=5.0,
        withheld_s=7.0,
    )
    assert memory.history(80.0, running=True)["since_s"] == 50.0
    assert memory.history(80.0, running=False) == {
        "done_s": 0.0, "served_s": 35.0, "queued_s": 0.0, "withheld_s": 7.0, "preemptions": 0, "migrations": 0, "since_s": 80.0,
        "service_gpu_s": None,
    }  # fmt: skip
    works = msgspec.structs.replace(memory, done_s=4.0, settled_s=60.0, pace=0.5)
    for running in (True, False):
        assert works.history(80.0, running=running)["done_s"] == 14.0, "it was written 10 s after it began"
    elastic = msgspec.structs.replace(memory, service_gpu_s=70.0, gpus=24)
    assert elastic.history(80.0, running=False)["service_gpu_s"] == 70.0 + 24 * 30
    assert elastic.history(80.0, running=True)["service_gpu_s"] == 70.0
    waited = msgspec.structs.replace(elastic, running=False)
    assert waited.history(80.0, running=True)["service_gpu_s"] == 70.0
    ahead = msgspec.structs.replace(elastic, since_s=180.0)  # by a clock that was set back since
    assert ahead.history(80.0, running=True)["since_s"] == 80.0
    assert ahead.history(80.0, running=False)["served_s"] == 5.0


@pytest.mark.parametrize("running", [True, False])
def test_what_was_held_while_nobody_looked_has_not_waited(running: bool):
    recovery_key = msgspec.json.encode(SlurmRecoveryKey((10,), 0, 0)).decode()
    its = record("u", 10.0, status="held", since_s=50.0, queued_s=40.0, withheld_s=7.0, memory=recovery_key)
    (memory,) = recovered([its], SlurmRecoveryKey)
    had = memory.history(80.0, running=running)
    assert (had["since_s"], had["queued_s"], had["withheld_s"]) == (80.0, 40.0, 37.0)


def known(**other: object) -> SlurmTrackedJob:
    made = row(restarts=0, eligible_s=None, dependency="", reason="JobHeldUser", **other)
    return SlurmTrackedJob(batch_job(id="u", submit_s=0.0, gpus=8, duration_s=1.0), made)


def test_why_a_job_may_not_start():
    one = known()
    assert why_held(one, one.row, 10.0) == ""
    assert "administrator" in why_held(one, row(reason="JobHeldAdmin"), 10.0)
    assert why_held(one, row(dependency="afterok:1(unfulfilled)"), 10.0) == "it waits for afterok:1"
    assert "later" in why_held(one, row(dependency="", reason="None", restarts=0, eligible_s=20), 10.0)
    one.binds_failed, one.not_before_s = 2, 30.0
    assert "2 times" in why_held(one, one.row, 10.0) and why_held(one, one.row, 30.0) == ""


def test_orders():
    topology = cluster([8, 8], [8, 8])
    placement = Placement((3, 1), (0xF, 0xF))
    one = known(id="7")
    assert bind(one, placement, topology) == (
        "update jobid=7 ReqNodeList=n[1,3] AdminComment=hemiola:u:ranks=n[3,1]"
    )
    one.row = row(id="7", gpus_per_host=0, gpus_per_job=8, restarts=1)
    assert bind(one, placement, topology).startswith(
        "update jobid=7 NumNodes=2-2 ReqNodeList=n[1,3] StartTime=now+1 "
    )
    one.row, one.job = (
        row(id="7", restarts=0),
        batch_job(**msgspec.structs.asdict(one.job) | {"hosts": 2, "gpus_max": 16}),
    )
    assert bind(one, placement, topology) == (
        "update jobid=7 NumNodes=2-2 ReqNodeList=n[1,3] AdminComment=hemiola:u:ranks=n[3,1]:nodes=2-4"
    )
    assert shrink(one, Placement((3,), (0xF,)), topology) == (
        "update jobid=7 NodeList=n3 AdminComment=hemiola:u:ranks=n3:bound=h[0,2]:nodes=2-4"
    ), "should it wait again, what it is bound to is not its user's"
    assert unbind(one.row, (2, 4)) == "update jobid=7 ReqNodeList= NumNodes=2-4"
    assert unbind(one.row, (2, 2)) == "update jobid=7 ReqNodeList="
    one.row = row(id="7", restarts=0, tasks_per_host=2, cpus_per_host=4)
    assert " NumNodes=2-2 NumTasks=4 NumCPUs=8 ReqNodeList=" in bind(one, placement, topology)
    assert unbind(one.row, (1, 4)) == "update jobid=7 ReqNodeList= NumNodes=1-4 NumTasks=2 NumCPUs=4"
    assert unpark("7", 90.4) == ["uhold 7", "update jobid=7 StartTime=now+90"]
    assert unpark("7", -5.0) == ["uhold 7", "update jobid=7 StartTime=now"]


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [("COMPLETED", 0, ""), ("COMPLETING", 0, ""), ("FAILED", 768, "failed, exit code 3"), ("TIMEOUT", 0, "timeout"),
     ("NODE_FAIL", 0, "node fail"), ("CANCELLED", 15, "cancelled, exit code 15")],
)  # fmt: skip
def test_how_a_job_ended(state, code, words):
    assert outcome_of(row(state=state, exit_code=code)) == words


class Parts:
    """Of a watcher the part that a comparison uses."""

    def parts(self, row: SlurmJobRow) -> dict[int, int]:
        return {int(name.removeprefix("n")): row.gpus_per_host for name in expand(row.host_list)}


def test_a_job_that_begins_as_it_is_sent_elsewhere_is_stopped():
    """It was bound to n1 and released; it is moved to n2, and Slurm starts it on n1 before it can be held."""
    machine = StateMachine(ClusterView(cluster([8, 8], [8, 8]), estimates=None))  # type: ignore[arg-type]
    one = known(id="7", state="RUNNING", host_list="n1", hosts=1, most_hosts=1, gpus_per_host=8)
    elsewhere = Placement((2,), (0xFF,))
    machine.apply(Arrived(0.0, one.job))
    assert not machine.execute(Start("u", Placement((1,), (0xFF,)), ""))
    assert not machine.execute(Move("u", elsewhere, ""))
    one.wanted, one.bound_s, one.ran = elsewhere, None, False
    one.row = msgspec.structs.replace(one.row, bound_to="n1")
    for now_s, told_s, late in ((1.0, None, [one]), (1.0, 0.5, []), (100.0, 0.5, [one])):
        one.stopped_s = told_s
        changes = SlurmDiff(machine.view, Parts(), now_s)  # type: ignore[arg-type]
        assert changes.job(one, one.row)
        assert changes.late == late and changes.with_new([]) == []


@pytest.mark.parametrize(
    ("bound_to", "host", "why"),
    [("", "n2", "Slurm began it elsewhere by itself"), ("", "n1", ""), ("n1", "n1", "")],
)
def test_a_job_that_slurm_begins_before_it_is_released_runs_on(bound_to: str, host: str, why: str):
    machine = StateMachine(ClusterView(cluster([8, 8], [8, 8]), estimates=None))  # type: ignore[arg-type]
    one = known(
        id="7", state="RUNNING", host_list=host, hosts=1, most_hosts=1, gpus_per_host=8, bound_to=bound_to
    )
    machine.apply(Arrived(0.0, one.job))
    wanted = Placement((1,), (0xFF,))
    assert not machine.execute(Start("u", wanted, ""))
    one.wanted, one.bound_s, one.ran = wanted, None, False
    changes = SlurmDiff(machine.view, Parts(), 1.0)  # type: ignore[arg-type]
    assert changes.job(one, one.row)
    assert (changes.late, changes.began) == ([], [(one, why)])
    there = Placement((2,), (0xFF,)) if why else None
    assert changes.with_new([]) == [Started(1.0, "u", there)]
    assert (one.ran, one.bound_s) == (True, 1.0)


class Lending(Slurm):
    """Two partitions; on a node that is lent run both parts of a heterogeneous job, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def ask(self, command: str, *arguments: str) -> str:
        return "PartitionName=ours Nodes=h[0-1] \nPartitionName=theirs Nodes=(null) \n"

    def table(self, command: str, *arguments: str) -> str:
        return "12+0\n12+1\n13\n"

    def tell(self, orders: Sequence[str]) -> str:
        self.told += orders
        return ""


def test_parts_of_a_heterogeneous_job_on_lent_nodes_are_seen_and_requeued_together():
    slurm = Lending()
    lent = lend(slurm, "h0", giver="ours", taker="theirs", now=True)
    assert (lent.requeued, lent.stay) == ((), ("12+0", "12+1", "13"))
    assert slurm.told[2:] == ["requeue 12", "requeue 13"]


def test_all_nodes_may_be_lent_and_so_taken_back_by_who_had_none():
    slurm = Lending()
    assert lend(slurm, "h[0-1]", giver="ours", taker="theirs").hosts == ("h0", "h1")
    assert slurm.told == ["update PartitionName=ours Nodes=", "update PartitionName=theirs Nodes=h[0-1]"]
