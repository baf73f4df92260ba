"""slurmrestd's answers: the same rows as squeue's, read as strictly; faults named, and nothing of half an answer used."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from fake_slurm import RUNS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_server import EMPTY, NONE, ONE, SAMPLES, SECRET, FakeRest, answer, sample, sample_of, slurm_at

from hemiola.core.errors import EngineError
from hemiola.core.job import batch_job
from hemiola.live.engines.slurm import requests
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.rest import client as rest
from hemiola.live.engines.slurm.rest import wire
from hemiola.live.engines.slurm.rest.client import offer_of, rest_slurm
from hemiola.live.engines.slurm.rest.wire import Requeue, Update, requests_of
from hemiola.live.engines.slurm.tracked_job import SlurmTrackedJob
from hemiola.live.engines.slurm.wire import PARKED_S, RunSpan, job_rows, node_rows

REAL = {"24.11.5": ((24, 11), "v0.0.42", ""), "26.05.5": ((26, 5), "v0.0.44", "/slurm/v0.0.45/jobs/requeue")}


class Commands(Slurm):
    """Slurm's, that only note what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def tell(self, requests: Any) -> str:
        self.told += requests
        return "5: scontrol grumbles\n" if any("5" in order for order in requests) else ""


@pytest.fixture(params=REAL)
def fake(request: pytest.FixtureRequest) -> Iterator[FakeRest]:
    with FakeRest(request.param) as one:
        yield one


# ---- what real ones said


@pytest.mark.parametrize("version", REAL)
def test_the_rows_are_those_that_squeue_gave_at_the_same_moment(version: str):
    with FakeRest(version) as fake:
        array = next(
            job["array_job_id"]["number"]
            for job in sample(version, "jobs")["jobs"]
            if "..." in job["array_task_string"]
        )
        fake.say(f"GET jobs/state/?job_id={array}", sample(version, "states"))
        slurm = slurm_at(fake)
        ours = {row.id: row for row in slurm.jobs(states="all")}
        wanted = {
            row.id: row for row in job_rows((SAMPLES / version / "squeue.txt").read_text(), REAL[version][0])
        }
        assert ours == wanted and len(ours) > 80
        live = {row.id for row in slurm.jobs()}
        ended = {"COMPLETED", "FAILED", "CANCELLED"}
        assert live == {row.id for row in wanted.values() if row.state not in ended}
        assert {row.id for row in slurm.jobs(states="PENDING", partition="other")} == {
            row.id
            for row in wanted.values()
            if row.state == "PENDING" and "other" in row.partition.split(",")
        }
        assert len([row for row in ours if row.startswith(f"{array}_")]) == 34, "which slurmrestd cut off"


@pytest.mark.parametrize("version", REAL)
def test_nodes_are_those_that_sinfo_gave(version: str):
    with FakeRest(version) as fake:
        slurm = slurm_at(fake)
        wanted = node_rows((SAMPLES / version / "sinfo.txt").read_text())

        def key(row):
            return row.name, row.partition

        assert sorted(slurm.nodes(), key=key) == sorted(wanted, key=key) and len(wanted) == 9
        assert {node.name for node in slurm.nodes("whole")} == {"h3"}
        assert {node.state for node in wanted} > {"draining"}


def test_free_text_and_details_come_with_the_rows(fake: FakeRest):
    slurm, jobs = slurm_at(fake), sample_of(fake)["jobs"]
    strange = next(job for job in jobs if job["name"].startswith("we|ird"))
    split = next(job for job in jobs if job["tres_per_task"] == "gres/gpu=1" and job["gres_detail"])
    excluding = next(job for job in jobs if job["excluded_nodes"])
    for job in strange, split, excluding:
        one_job(fake, job)
    ours, dealt = str(strange["job_id"]), str(split["job_id"])
    row, words = slurm.jobs_and_words([ours])[ours]
    assert (words.name, words.comment, words.admin) == ('we|ird "näme', "hemiola model=resnet50", "")
    assert (row.gpus_per_host, row.hosts, row.reason) == (4, 2, "JobHeldUser")
    assert slurm.words([ours]) == {ours: words}
    shares = slurm.shares(dealt)
    assert set(shares) == {"h0", "h1"} and sum(shares.values()) == 4, "Slurm divided them as it liked"
    chosen = str(excluding["job_id"])
    assert slurm.excluding([chosen, dealt]) == {chosen}


def test_when_jobs_began_and_ended():
    with FakeRest("26.05.5") as fake:
        ended, waiting = sample_of(fake)["jobs"][:2]
        slurm = slurm_at(fake)
        for job in ended, waiting:
            one_job(fake, job)
        assert slurm.spans([str(ended["job_id"]), str(waiting["job_id"])]) == {
            str(ended["job_id"]): RunSpan(ended["start_time"]["number"], ended["end_time"]["number"]),
            str(waiting["job_id"]): RunSpan(None, None),
        }  # fmt: skip


def test_jobs_that_slurm_does_not_know_any_more_are_left_out(fake: FakeRest):
    slurm = slurm_at(fake)
    fake.say("GET job/99999", sample(fake.real, "unknown"), 404)
    assert slurm.jobs(ids=["99999", "99999_3"], states="all") == [] and slurm.words(["99999"]) == {}
    assert slurm.excluding(["99999"]) == set() and slurm.shares("99999") == {}
    assert slurm.jobs_and_words([]) == {}


def test_a_list_counts_until_slurm_says_that_something_changed(
    fake: FakeRest, monkeypatch: pytest.MonkeyPatch
):
    slurm, body = slurm_at(fake), sample_of(fake)
    fake.say("GET jobs/", body)
    all_of_them = slurm.jobs(states="all")
    since = f"GET jobs/?update_time={body['last_update']['number']}"
    fake.say(
        since, {**EMPTY, "last_update": NONE, "warnings": [{"description": "No job changes since then"}]}
    )
    assert slurm.jobs(states="all") == all_of_them and len(slurm.words([row.id for row in all_of_them])) > 40
    fake.say(since, EMPTY)
    assert slurm.jobs() == [], "all have gone"
    fake.say(f"GET jobs/?update_time={ONE['number']}", {**EMPTY, "last_update": NONE})
    assert slurm.jobs() == []
    monkeypatch.setattr(rest, "KEPT_S", 0.0)
    assert slurm.jobs(states="all") == all_of_them, "after a while it is asked for whole"
    fake.say("GET jobs/", {**EMPTY, "last_update": NONE})
    assert slurm.jobs() == []


def test_stray_bytes_in_a_name_harm_nobody(fake: FakeRest):
    """slurmrestd passes on what users write, UTF-8 or not."""
    jobs = sample_of(fake)
    text = json.dumps(jobs, ensure_ascii=False).encode().replace("näme".encode(), b"n\xff\xfeme")
    fake.say("GET jobs/", text)
    fake.say("GET job/1", text)
    slurm = slurm_at(fake)
    strange = next(str(job["job_id"]) for job in jobs["jobs"] if job["name"].startswith("we|ird"))
    fake.say(f"GET job/{strange}", text)
    assert slurm.words([strange])[strange].name == 'we|ird "n\ufffd\ufffdme'


def one_job(fake: FakeRest, job: dict[str, Any]) -> None:
    fake.say(f"GET job/{job['job_id']}", {**EMPTY, "jobs": [job]})


# ---- what is offered


@pytest.mark.parametrize("version", REAL)
def test_the_newest_version_that_says_enough_is_taken(version: str):
    offer = offer_of((SAMPLES / version / "openapi.json").read_bytes(), "it")
    assert (offer.slurm, offer.version, offer.requeue) == (version, *REAL[version][1:])


def test_one_that_takes_no_lists_of_nodes_is_refused_with_the_way_out():
    with FakeRest("22.05.8") as fake, pytest.raises(EngineError) as caught:
        slurm_at(fake)
    assert caught.value.what.endswith("offers v0.0.38, which takes no list of nodes for a job")
    assert "leave out --rest" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("v0.0.4", "v0.0.9"), "none of which is known here: v0.0.40 to v0.0.44"),
        (
            lambda text: text.replace('"required_nodes"', '"wanted_nodes"'),
            "offers v0.0.42 without required_nodes",
        ),
        (lambda text: text.replace("/nodes/", "/knots/"), "offers v0.0.42 without GET nodes/"),
        (lambda text: text.replace("/slurm/", "/slurmdb/"), "openapi/slurmctld is not loaded"),
        (lambda text: text[:900], "no OpenAPI document"),
        (lambda text: '{"info":{"version":"1"},"paths":[]}', "no OpenAPI document"),
        (lambda text: "<html>Welcome to nginx!</html>", "no OpenAPI document"),
    ],
)
def test_other_documents_are_refused(change: Callable[[str], str], said: str):
    text = (SAMPLES / "24.11.5" / "openapi.json").read_text()
    with pytest.raises(EngineError, match=said):
        offer_of(change(text).encode(), "it")


def test_what_slurmrestd_lacks_is_asked_of_scontrol_or_named(fake: FakeRest, monkeypatch: pytest.MonkeyPatch):
    bare = slurm_at(fake)
    assert ("put running jobs back" in bare.lacks) is (fake.real == "24.11.5")
    assert "hold jobs as their users do" in bare.lacks and slurm_at(fake, Commands()).lacks == ""
    monkeypatch.setattr("hemiola.live.engines.slurm.rest.client.shutil.which", lambda name: None)
    monkeypatch.setenv("SLURM_JWT", SECRET)
    assert rest_slurm(fake.url, None, Commands(), acts=False).lacks
    with pytest.raises(EngineError, match=r"cannot hold jobs .* no scontrol here") as caught:
        rest_slurm(fake.url, None, Commands(), acts=True)
    assert "apt install slurm-client" in caught.value.remedy


def test_one_that_is_upgraded_is_looked_up_anew():
    with FakeRest("24.11.5") as fake:
        slurm = slurm_at(fake)
        newer = (SAMPLES / "26.05.5" / "openapi.json").read_bytes().replace(b"/v0.0.42/", b"/v0.0.41/")
        fake.answers = {"GET /openapi/v3": answer(newer)}
        fake.version = "v0.0.44"
        fake.say("GET jobs/", EMPTY)
        with pytest.raises(EngineError, match=r"no page jobs/ any more, and speaks v0\.0\.44 now"):
            slurm.jobs()
        assert slurm.jobs() == []


# ---- orders


def test_orders_as_requests():
    (bound,) = requests_of(
        "update jobid=12 NumNodes=2-2 NumTasks=4 NumCPUs=8 ReqNodeList=h[0-1] StartTime=now+1 AdminComment=hemiola:x:ranks=h[1,0]"
    )
    assert isinstance(bound, Update) and bound.job_id == "12" and bound.fields == {
        "minimum_nodes": 2, "maximum_nodes": 2, "tasks": 4, "minimum_cpus": 8, "required_nodes": ["h[0-1]"],
        "begin_time": "now+1", "admin_comment": "hemiola:x:ranks=h[1,0]",
    }  # fmt: skip
    (unbound,) = requests_of("update jobid=12 ReqNodeList=")
    assert isinstance(unbound, Update) and unbound.fields == {"required_nodes": [""]}
    assert [r.fields for r in requests_of(requests.release(["1", "2_3"]))] == [{"hold": False}] * 2  # type: ignore[union-attr]
    assert requests_of(requests.hold(["1", "2_3"])) == ["uhold 1,2_3"]
    assert requests_of(requests.put_back("2_3")) == [Requeue(("2_3",), "requeuehold 2_3")]
    first = requests_of(requests.go_first(["1", "2_3"]))
    assert [r.fields["priority"]["number"] for r in first] == [requests.TOP] * 2  # type: ignore[union-attr]
    assert [r.order for r in first] == [f"update jobid={one} Priority={requests.TOP}" for one in ("1", "2_3")]  # type: ignore[union-attr]
    known = SlurmTrackedJob(batch_job(id="u", submit_s=0.0, gpus=8, duration_s=1.0), RUNS, begin_s=60.0)
    later, free = (request for order in requests.park(known) for request in requests_of(order))
    assert isinstance(later, Update)
    assert later.fields == {
        "begin_time": f"now+{PARKED_S}", "required_nodes": [""], "admin_comment": "hemiola:u:ranks=:begin=60"
    }  # fmt: skip
    assert isinstance(free, Update) and free.order == "release 7"
    held, begins = (request for order in requests.unpark("7", 60.0) for request in requests_of(order))
    assert held == "uhold 7" and isinstance(begins, Update) and begins.fields == {"begin_time": "now+60"}


@pytest.mark.parametrize(
    "order", ["delete 12", "release", "update jobid=x ReqNodeList=h1", "release 1;2", "update jobid=1 Nice=5", "update jobid=1 ReqNodeList=h1\nrelease 2", "update PartitionName=x Nodes=h1", "update jobid=1 NumNodes=2", "update jobid=1 StartTime=noon"],
)  # fmt: skip
def test_what_has_no_request_stays_scontrols(order: str):
    assert requests_of(order) == [order]


def test_what_goes_over_rest_and_what_by_scontrol(fake: FakeRest):
    done = {"results": None, "errors": [], "warnings": []}
    alone = next(job for job in sample_of(fake)["jobs"] if job["array_task_id"]["set"])
    element = f"{alone['array_job_id']['number']}_{alone['array_task_id']['number']}"
    fake.say("GET jobs/", {**EMPTY, "jobs": [alone]})
    commands = Commands()
    slurm = slurm_at(fake, commands)
    assert [row.id for row in slurm.jobs()] == [element]
    for number in (1, 2, alone["job_id"]):
        fake.say(f"POST job/{number}", done)
    fake.answers[f"POST {slurm.offer.requeue}"] = answer(done)
    said = slurm.tell(
        [
            "update jobid=1 ReqNodeList=h1",
            f"release 1,2,{element}",
            "release 77_3",
            "uhold 2",
            "requeuehold 1",
        ]
    )
    assert said == ""
    sent, base = fake.posts(), f"/slurm/{fake.version}/job"
    assert sent[:4] == [
        (f"{base}/1", {"required_nodes": ["h1"]}), (f"{base}/1", {"hold": False}), (f"{base}/2", {"hold": False}),
        (f"{base}/{alone['job_id']}", {"hold": False}),
    ]  # fmt: skip
    if slurm.offer.requeue:
        assert sent[4:] == [(slurm.offer.requeue, {"flags": ["Hold"], "jobs": ["1"]})]
    else:
        assert sent[4:] == []
    assert commands.told == ["release 77_3", "uhold 2"] + ([] if slurm.offer.requeue else ["requeuehold 1"])


def test_complaints_name_their_jobs_and_stop_nothing(fake: FakeRest):
    slurm = slurm_at(fake, Commands())
    refused = {"errors": [{"description": "Job update requested failed", "error_number": 2014, "error": "Requested node\nconfiguration is not available", "source": "x"}], "warnings": []}  # fmt: skip
    fake.say("POST job/1", refused, 500)
    fake.say(
        "POST job/2",
        {"errors": [], "warnings": [{"description": 'Ignoring unknown field "hold"', "source": "#"}]},
    )
    fake.say("POST job/3", {"errors": [], "warnings": [{"description": "This version is deprecated"}]})
    said = slurm.tell(["update jobid=1 ReqNodeList=h1", "release 2,3", "uhold 5"])
    assert said.splitlines() == [
        "1: Job update requested failed: Requested node configuration is not available",
        "2: Ignoring unknown field \"hold\"", "5: scontrol grumbles",
    ]  # fmt: skip
    assert len(fake.posts()) == 3
    if slurm.offer.requeue:
        fake.answers[f"POST {slurm.offer.requeue}"] = answer(refused, 500)
        assert slurm.tell([requests.put_back("9")]).startswith("9: Job update requested failed")
    lonely = slurm_at(fake)
    assert "there is no scontrol here" in lonely.tell(["uhold 5"]) and "77_3" in lonely.tell(["release 77_3"])
    assert lonely.tell([]) == ""


# ---- garbage in fields

FIELDS: list[tuple[str, Any]] = [
    ("job_id", "7"), ("job_id", -1), ("job_id", None), ("job_state", "RUNNING"), ("job_state", []),
    ("job_state", ["PEND|ING"]), ("nodes", "h1;rm -rf"), ("nodes", "h1|h2"), ("nodes", None), ("priority", 5),
    ("priority", {"set": True, "infinite": False, "number": -1}), ("priority", {"set": True, "infinite": False, "number": 1.5}),
    ("submit_time", {"set": True}), ("restart_cnt", True), ("requeue", "yes"), ("batch_flag", "yes"), ("user_id", "root"), ("shared", "none"),
    ("array_task_string", "0-x"), ("exit_code", {"return_code": 1}),
]  # fmt: skip
STRANGE: list[tuple[str, Any]] = [
    ("required_nodes", "h1\n2|RUNNING"), ("partition", ""), ("partition", "a b"), ("tres_per_node", "gres/gpu:x y:4"),
    ("priority", {"set": True, "infinite": True, "number": 0}), ("priority", {"set": False, "infinite": False, "number": 1}),
    ("features", "a;b"), ("resv_name", "a b"), ("node_count", {"set": False, "infinite": False, "number": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_a_field_that_cannot_be_refuses_the_whole_answer(field: str, value: Any):
    with FakeRest("24.11.5") as fake:
        slurm, body = slurm_at(fake), sample_of(fake)
        job = next(one for one in body["jobs"] if one["array_job_id"]["number"])
        job[field] = value
        if field == "array_task_string":
            job["array_task_id"]["set"] = False
        fake.say("GET jobs/", body)
        with pytest.raises(EngineError, match=field):
            slurm.jobs(states="all")
        del job[field]
        fake.say("GET jobs/", body)
        with pytest.raises(EngineError, match=f"`{field}`"):
            slurm.jobs(states="all")


@pytest.mark.parametrize(("field", "value"), STRANGE)
def test_a_value_that_cannot_be_refuses_one_job(fake: FakeRest, field: str, value: Any):
    body = sample_of(fake)
    body["jobs"] = [job for job in body["jobs"] if "..." not in job["array_task_string"]]
    fake.say("GET jobs/", body)
    before = slurm_at(fake).jobs(states="all")
    next(one for one in body["jobs"] if one["array_job_id"]["number"])[field] = value
    fake.say("GET jobs/", body)
    after = slurm_at(fake).jobs(states="all")
    assert [row.id for row in after] == [row.id for row in before]
    strange = [row for row in after if row.strange]
    assert strange and all(field in row.strange and row.exclusive for row in strange)
    assert len(strange) < len(after)


def test_parts_of_heterogeneous_jobs_are_slurms_and_words_for_people_are_taken(fake: FakeRest):
    body = sample_of(fake)
    job = body["jobs"][0]
    body["jobs"] = [job]
    job["het_job_id"]["number"], job["state_description"] = job["job_id"], "\x1b[31mred=<1>"
    fake.say("GET jobs/", body)
    row = slurm_at(fake).jobs(states="all")[0]
    assert (row.strange, row.reason) == ("it is part of a heterogeneous job", "?[31mred=<1>")


@pytest.mark.parametrize(
    ("flag", "says", "why"),
    [
        ("SPECIAL_EXIT", "", "special exit"), ("RESV_DEL_HOLD", "Reservation night was deleted", "reservation"),
        ("REQUEUE_HOLD", "launch failure limit exceeded requeued held", "could not launch it"),
    ],
)  # fmt: skip
def test_jobs_that_slurm_holds_by_itself_wait(fake: FakeRest, flag: str, says: str, why: str):
    body = sample_of(fake)
    job = next(job for job in body["jobs"] if job["job_state"] == ["PENDING"])
    job["job_state"].append(flag)
    job["state_description"], job["priority"]["number"] = says, 0
    body["jobs"] = [job]
    fake.say("GET jobs/", body)
    (row,) = slurm_at(fake).jobs(states="PENDING")
    assert row.state == "PENDING" and why in row.kept


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3", [0, 1, 2, 3]), ("1,3,5-7%2", [1, 3, 5, 6, 7]), ("0-998:2%5", list(range(0, 999, 2))), ("4", [4]), ("7-3", []), ("0-4:0", [0])],
)  # fmt: skip
def test_elements_of_arrays_that_wait(text: str, numbers: list[int]):
    job = waiting(text)
    assert wire.elements_of(job) == [f"2_{number}" for number in numbers]


@pytest.mark.parametrize("text", ["0-999999999", "0-249999,0-1", "0-99999,0-99999,0-99999"])
def test_huge_arrays_are_not_expanded(text: str):
    began_s = time.process_time()
    with pytest.raises(EngineError, match="more than 250,000 jobs"):
        wire.elements_of(waiting(text))
    assert time.process_time() - began_s < 10.0


def waiting(text: str) -> wire.RestJob:
    jobs = msgspec.convert(sample("24.11.5", "jobs")["jobs"], list[wire.RestJob])
    array = next(job for job in jobs if job.array_task_string == "0-9%2")
    number = msgspec.structs.replace(array.array_job_id, number=2)
    return msgspec.structs.replace(array, array_job_id=number, array_task_string=text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), value=JSON)
def test_garbage_in_any_field_is_refused_or_read_never_a_crash(data: st.DataObject, value: Any):
    body = sample("26.05.5", "jobs")
    job = json.loads(json.dumps(body["jobs"][data.draw(st.integers(0, len(body["jobs"]) - 1))]))
    job[data.draw(st.sampled_from(sorted(wire.RestJob.__struct_fields__)))] = value
    with contextlib.suppress(EngineError, msgspec.ValidationError):
        record = msgspec.convert(job, wire.RestJob)
        for element in wire.elements_of(record) or []:
            row = wire.job_row(record, element)
            assert "\n" not in f"{row.state}{row.reason}{row.host_list}{row.bound_to}{row.partition}"


@pytest.mark.parametrize(
    ("state", "shown", "silent"),
    [
        (["IDLE"], "idle", False), (["MIXED", "DRAIN"], "draining", False), (["IDLE", "DRAIN"], "drained", False),
        (["DOWN", "NOT_RESPONDING"], "down", True), (["IDLE", "RESERVED"], "reserved", False),
        (["MIXED", "RESERVED", "PLANNED"], "reserved", False), (["IDLE", "FAIL"], "fail", False),
        (["ALLOCATED", "FAIL"], "failing", False), (["IDLE", "MAINTENANCE", "RESERVED"], "maint", False),
        (["IDLE", "PLANNED", "RESERVED"], "reserved", False), (["DOWN", "RESERVED"], "down", False),
        (["ALLOCATED", "MAINTENANCE"], "maint", False), (["IDLE", "REBOOT_REQUESTED"], "reboot", False),
        (["IDLE", "POWERED_DOWN"], "idle", False), (["IDLE", "NOT_RESPONDING"], "idle", True),
        (["IDLE", "NOT_RESPONDING", "POWERED_DOWN"], "idle", False), (["DOWN", "INVALID_REG"], "inval", False),
        (["IDLE", "COMPLETING"], "completing", False), (["IDLE", "COMPLETING", "DRAIN"], "draining", False),
    ],
)  # fmt: skip
def test_states_of_nodes_as_sinfo_says_them(state: list[str], shown: str, silent: bool):
    (row,) = wire.node_rows(
        [wire.RestNode("h1", state, "gpu:h100:8(S:0-1)", ["p"], ["ib"], 16, 3, 1000, 300)]
    )
    assert [row] == node_rows(f"h1|{'+'.join(state).lower()}|gpu:h100:8(S:0-1)|p|3/13/0/16|1000|300|ib|\n")
    assert (row.state, row.silent, row.gpus, row.features) == (shown, silent, 8, {"ib"})


@pytest.mark.parametrize("node", [("h 1", ["IDLE"]), ("h1", ["ID LE"]), ("h1|x", ["IDLE"])])
def test_nodes_that_cannot_be_are_refused(node: tuple[str, list[str]]):
    with pytest.raises(EngineError, match="of the node"):
        wire.node_rows([wire.RestNode(*node, "gpu:8", ["p"], [])])
