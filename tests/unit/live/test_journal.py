"""What is written is read back equal, and only who leads writes: in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

import journal_helpers
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_helpers import HERE, KINDS, ended, record

from hemiola.core.decisions import Decision, Placement, Start, WakeAt
from hemiola.core.errors import InternalError
from hemiola.core.events import Adopted, Arrived, Event, Failed, Measured, Timer
from hemiola.core.job import Batch, Demand, Elastic, Profile
from hemiola.live.journal import Deposed, Instant, Journal, JournaledJob, JournalError, Opening
from hemiola.live.journal.records import DECISION, DECISIONS, EVENTS, JOB
from hemiola.simulator.cluster import Costs

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return journal_helpers.fresh(request.param, tmp_path)


@pytest.fixture
def journal(where: str) -> Iterator[Journal]:
    with Journal.open(where) as opened:
        yield opened


def begun(journal: Journal, holder: str = "one", now_s: float = 100.0) -> tuple[int, int]:
    """(epoch, run) of who leads now."""
    epoch = journal.lead(holder, now_s, 10.0)
    assert epoch is not None
    return epoch, journal.begin_run(epoch, journal_helpers.OPENING, now_s)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the journal keeps; of a struct every field is drawn."""
    if isinstance(kind, types.UnionType):
        return st.one_of([values_of(each) for each in get_args(kind)])
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return st.tuples(*map(values_of, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(values_of(get_args(kind)[0]), min_size=1, max_size=2).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(WORDS, values_of(get_args(kind)[1]), max_size=2)
    if kind is Profile:
        return st.builds(
            Profile,
            name=WORDS,
            demands=st.builds(lambda s: (Demand(1, s, 0.0), Demand(8, s, 1e6)), st.floats(1e-9, 1e9)),
            overlap=st.floats(0, 1),
        )
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.builds(kind, **{field.name: values_of(field.type) for field in fields})
    simple = {float: st.floats(allow_nan=False), str: WORDS, int: st.integers(), type(None): st.none()}
    simple[bool] = st.booleans()
    return simple[kind]


EVENT, DECIDED, A_JOB = values_of(Event), values_of(Decision), values_of(JournaledJob)


@given(EVENT, DECIDED, WORDS)
def test_every_event_and_decision_is_read_back_equal(event: Event, decision: Decision, refused: str) -> None:
    assert EVENTS.decode(EVENTS.encode((event, event)), "here") == (event, event)
    assert DECISION.decode(DECISION.encode(decision), "here") == decision
    assert DECISIONS.decode(DECISIONS.encode(((decision, refused),)), "here") == ((decision, refused),)


@given(A_JOB)
def test_every_job_is_read_back_equal(job: JournaledJob) -> None:
    assert JOB.decode(JOB.encode(job), "here") == job


def test_what_json_cannot_say_is_kept() -> None:
    speed = EVENTS.decode(EVENTS.encode((Measured(1.0, "a", math.nan),)), "here")[0].speed
    assert math.isnan(speed)
    job = record("a").job
    forever = msgspec.structs.replace(record("a"), job=msgspec.structs.replace(job, estimate_s=math.inf))
    assert JOB.decode(JOB.encode(forever), "here").job.estimate_s == math.inf, "null would be read as unknown"
    with pytest.raises(InternalError, match="cannot hold"):
        EVENTS.encode((Failed(1.0, "a", "\udc80"),))


def test_events_of_another_version_are_refused_with_its_name() -> None:
    with pytest.raises(JournalError, match=r"instant 3 cannot be understood.*Thawed.*\n.*Hemiola 0\.9"):
        EVENTS.decode('[{"type":"Thawed","time_s":1.0}]', "instant 3", "0.9")
    with pytest.raises(JournalError, match="damaged"):
        EVENTS.decode('[{"type":"Timer","tim', "instant 3", "0.9")


def test_a_session_is_read_back(journal: Journal, where: str) -> None:
    epoch, run = begun(journal)
    opening = Opening(
        policy="dally:timer=3", fallback="fifo", engine="e", mode="advise", topology="[cluster]\n", version="1",
        costs=Costs(restore_s=3.0), fitted=True,
    )  # fmt: skip
    second = journal.begin_run(epoch, opening, 105.0)
    events = [Timer(105.0, ""), Failed(105.0, "a", "exit code 1")]
    decisions = [(Start("b", HERE, "r"), "no"), (WakeAt(math.inf, "", "r"), "no time")]
    journal.record_events(second, 7, events, [record("b"), ended("a")])
    assert journal.record_decisions(second, 7, decisions, [], intents=True, now_s=106.0) == []
    journal.record_events(second, 9, [Timer(109.0, "")])
    journal.end_run(second, "stopped", 110.0)
    with Journal.open(where) as again:
        cut, kept = again.runs()
        assert (cut.id, cut.ended_s, cut.reason) == (run, 105.0, "its daemon stopped without a word")
        assert (kept.epoch, kept.opening, kept.began_s, kept.ended_s, kept.reason) == (
            1,
            opening,
            105.0,
            110.0,
            "stopped",
        )
        assert again.run(second) == kept
        assert list(again.instants(second)) == [
            Instant(7, tuple(events), tuple(decisions)),
            Instant(9, (Timer(109.0, ""),), None),
        ]
        assert list(again.instants(run)) == []


def test_of_a_job_that_was_changed_and_taken_for_a_new_one_the_new_one_is_found(journal: Journal) -> None:
    _, run = begun(journal)
    before, after = ended("u1", 10.0, engine_id="7"), record("u2", 10.0, engine_id="7")
    journal.record_events(run, 1, [], [before, after])
    assert journal.job("7") == journal.job("7", engine_submit_s=10.0) == after


def test_jobs_are_found_by_uuid_by_the_engines_id_and_by_submission(journal: Journal) -> None:
    _, run = begun(journal)
    old, new = ended("u1", 10.0, engine_id="7"), record("u2", 20.0, engine_id="7", user="bob")
    held = record("u3", 5.0, status="held")
    journal.record_events(run, 1, [], [old, new, held])
    assert journal.open_jobs() == [held, new]
    assert journal.job("u1") == old and journal.job("7") == new, (
        "an id that is used again means its newest job"
    )
    assert journal.job("7", engine_submit_s=10.0) == journal.job("7", user="ada") == old
    assert journal.job("7", engine_submit_s=10.0, user="bob") is None and journal.job("nobody") is None
    assert journal.jobs() == [new, old, held]
    assert journal.jobs(10.0, 20.0) == journal.jobs(status="ended") == [old]
    assert journal.jobs(ended_since_s=60.0) == [old] and not journal.jobs(ended_since_s=60.5)
    assert journal.jobs(limit=1) == journal.jobs(user="bob") == [new]
    moved = record("u3", 5.0, status="running", placement=HERE, first_started_s=30.0, note="its turn")
    journal.record_events(run, 2, [], [moved])
    assert journal.job("u3") == moved


def test_many_rows_are_read_in_pieces(journal: Journal) -> None:
    _, run = begun(journal)
    jobs = [record(f"u{i}", float(i // 3)) for i in range(700)]
    journal.record_events(run, 0, [], jobs)
    journal.record_events(run, 3, [Timer(1.0, "")])
    assert sorted(journal.jobs_by_submission(), key=lambda j: j.uuid) == sorted(jobs, key=lambda j: j.uuid)
    assert [j.submitted_s for j in journal.jobs_by_submission(10.0, 12.0)] == [10.0] * 3 + [11.0] * 3
    with patch("hemiola.live.journal.reading._PAGE", 1):
        assert [i.instant for i in journal.instants(run)] == [0, 3]


def test_intents_are_open_until_they_are_settled(journal: Journal) -> None:
    epoch, run = begun(journal)
    journal.record_events(run, 1, [])
    made = [(Start(f"j{i}", HERE, "r"), "") for i in range(50)]
    written = journal.record_decisions(
        run, 1, [*made, (WakeAt(1.0, "", ""), "")], [], intents=True, now_s=101.0
    )
    assert [i.decision for i in written] == [d for d, _ in made]
    assert journal.open_intents() == written
    assert {(i.state, i.epoch, i.made_s, i.outcome) for i in written} == {("open", epoch, 101.0, "")}
    first, second, *rest = written
    journal.settle([(first.id, "done", ""), (second.id, "failed", "no such node\0\udcff")])
    journal.settle([(first.id, "failed", "too late")])
    assert journal.open_intents() == rest
    journal.settle([])


def test_a_write_may_be_made_again(journal: Journal) -> None:
    _, run = begun(journal)
    decisions = [(Start("a", HERE, "r"), ""), (Start("b", HERE, "r"), "")]
    for _ in range(2):
        journal.record_events(run, 1, [Timer(1.0, "")], [record("a")])
    written = [journal.record_decisions(run, 1, decisions, [], intents=True, now_s=101.0) for _ in range(2)]
    assert written[0] == written[1] == journal.open_intents()
    with pytest.raises(InternalError, match="written already"):
        journal.record_events(run, 1, [Timer(2.0, "")], [ended("a")])
    assert journal.job("a") == record("a"), "nothing of a refused write is kept"
    with pytest.raises(InternalError, match="written already"):
        journal.record_decisions(run, 1, decisions[:1], [], intents=True, now_s=101.0)
    with pytest.raises(InternalError, match="record its events first"):
        journal.record_decisions(run, 2, [], [], intents=True, now_s=101.0)
    with pytest.raises(InternalError, match="no run 99"):
        journal.record_events(99, 1, [])
    journal.end_run(run, "over", 102.0)
    with pytest.raises(InternalError, match="has ended"):
        journal.record_events(run, 3, [])


def test_one_leads_until_its_time_is_over(journal: Journal, where: str) -> None:
    with Journal.open(where) as other:
        assert journal.leader() is None
        assert journal.lead("one", 100.0, 10.0) == 1
        assert journal.leader() == ("one", 1, 110.0)
        assert other.lead("two", 109.0, 10.0) is None
        assert journal.renew(1, 109.0, 10.0) and other.lead("two", 118.0, 10.0) is None
        assert other.lead("two", 119.0, 10.0) == 2, "at its end it holds no more"
        assert not journal.renew(1, 119.0, 10.0)
        journal.resign(1)
        assert other.leader() == ("two", 2, 129.0), "only its own lease is given back"
        assert other.lead("two", 120.0, 10.0) == 3 and not other.renew(2, 120.0, 10.0)
        other.resign(3)
        assert other.leader() is None and not other.renew(3, 120.0, 10.0)
        assert journal.lead("one", 120.0, 10.0) == 4


def test_a_leader_that_was_stopped_for_a_while_writes_nothing_more(journal: Journal, where: str) -> None:
    """It goes on exactly where it was: between an instant's events and its decisions."""
    epoch, run = begun(journal)
    journal.record_events(run, 1, [Timer(101.0, "")], [record("a")])
    with Journal.open(where) as other:
        begun(other, "two", 111.0)
        before = journal_helpers.contents(where)
        late = [ended("a")]
        with pytest.raises(Deposed, match=r"epoch 1 .* no longer leads: 'two' leads, with epoch 2"):
            journal.record_decisions(run, 1, [(Start("a", HERE, "r"), "")], late, intents=True, now_s=112.0)
        with pytest.raises(Deposed):
            journal.record_events(run, 2, [Timer(112.0, "")], late)
        with pytest.raises(Deposed):
            journal.begin_run(epoch, journal_helpers.OPENING, 112.0)
        with pytest.raises(Deposed):
            journal.settle([(1, "dropped", "")], epoch=epoch)
        journal.end_run(run, "stopped", 112.0)
        assert journal_helpers.contents(where) == before
        other.resign(2)
    with pytest.raises(Deposed, match="nobody leads"):
        journal.record_events(run, 2, [Timer(112.0, "")], late)


def test_of_many_that_would_lead_at_once_one_does(journal: Journal, where: str) -> None:
    epochs: list[int | None] = []
    with Journal.open(where) as other:
        begin = threading.Barrier(8)

        def run(number: int) -> None:
            begin.wait()
            epochs.append((journal, other)[number % 2].lead(f"holder {number}", 100.0, 10.0))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(epochs, key=str) == [1] + [None] * 7


def test_readers_see_whole_writes_and_keep_nobody_waiting(journal: Journal) -> None:
    """Every write sets all jobs to one time; a reader must never see two."""
    _, run = begun(journal)
    names = [f"u{i}" for i in range(20)]
    journal.record_events(run, 0, [], [record(name, since_s=0.0) for name in names])
    over = threading.Event()
    seen: list[set[float]] = []

    def read() -> None:
        while not over.is_set():
            seen.append({job.since_s for job in journal.open_jobs()})

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for i in range(1, 40):
            journal.record_events(
                run, i, [Timer(float(i), "")], [record(name, since_s=float(i)) for name in names]
            )
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert all(len(times) == 1 for times in seen)
    assert seen and {job.since_s for job in journal.open_jobs()} == {39.0}


def test_an_iterator_that_is_left_alone_blocks_no_writer(journal: Journal) -> None:
    _, run = begun(journal)
    for i in range(3):
        journal.record_events(run, i, [Timer(float(i), "")])
    reading = journal.instants(run)
    next(reading)
    journal.record_events(run, 3, [])
    journal.end_run(run, "over", 101.0)
    journal.forget(200.0)
    assert len(list(reading)) == 2, "the piece that was read is whole"


def test_what_is_old_is_forgotten(journal: Journal) -> None:
    epoch, old = begun(journal)
    journal.record_events(old, 1, [Timer(101.0, "")], [ended("a", 10.0), ended("b", 100.0), record("c", 5.0)])
    made = [(Start("a", HERE, "r"), ""), (Start("c", HERE, "r"), "")]
    settled, left = journal.record_decisions(old, 1, made, [], intents=True, now_s=101.0)
    journal.settle([(settled.id, "done", "")])
    journal.end_run(old, "over", 110.0)
    new = journal.begin_run(epoch, journal_helpers.OPENING, 110.0)
    journal.record_events(new, 1, [Timer(111.0, "")])
    journal.forget(120.0)
    assert [run.id for run in journal.runs()] == [new]
    assert list(journal.instants(new)) == [Instant(1, (Timer(111.0, ""),), None)]
    assert [job.uuid for job in journal.jobs()] == ["b", "c"], "c has not ended, b ended at 150"
    assert journal.open_intents() == [left]
    rows = journal_helpers.contents(
        journal.name if "postgres" in journal.name else f"sqlite:///{journal.name}"
    )
    assert [row[0] for row in rows["intents"]] == [left.id] and len(rows["instants"]) == 1
    journal.forget(1e12)
    assert [job.uuid for job in journal.jobs()] == ["c"] and [run.id for run in journal.runs()] == [new]


def test_forgetting_ends_between_two_pieces_when_it_is_not_to_go_on(journal: Journal) -> None:
    epoch, old = begun(journal)
    journal.record_events(old, 1, [Timer(101.0, "")], [ended("a", 10.0)])
    journal.begin_run(epoch, journal_helpers.OPENING, 110.0)
    journal.forget(120.0, lambda: False)
    assert not list(journal.instants(old)) and [job.uuid for job in journal.jobs()] == ["a"]
    journal.forget(120.0)
    assert not journal.jobs() and len(journal.runs()) == 1


def test_jobs_that_do_not_say_of_which_kind_they_are_are_read() -> None:
    """As journals had them before there was more than one kind."""
    fields = '"id":"a","submit_s":1.0,"gpus":2,"duration_s":60.0,"profile":null,"hosts":0,"facts":{}'
    (rigid,) = EVENTS.decode(
        f'[{{"type":"Arrived","time_s":1.0,"job":{{{fields},"gpus_min":0,"gpus_max":0}}}}]', "here"
    )
    (sized,) = EVENTS.decode(
        f'[{{"type":"Adopted","time_s":1.0,"job":{{{fields},"gpus_min":0,"gpus_max":4}},"placement":null,"since_s":1.0}}]',
        "here",
    )
    assert rigid == Arrived(1.0, Batch(id="a", submit_s=1.0, gpus=2, duration_s=60.0))
    assert sized == Adopted(
        1.0, Elastic(id="a", submit_s=1.0, gpus=2, duration_s=60.0, gpus_max=4), None, 1.0
    )
    before = JOB.encode(record("a")).replace('"kind":"batch",', "")
    assert '"kind"' not in before and JOB.decode(before, "here") == record("a")


def test_decisions_and_measurements_of_before_are_read() -> None:
    text = '[[{"type":"Start","job_id":"a","placement":{"hosts":[0],"masks":[1]},"reason":"r"},""]]'
    assert DECISIONS.decode(text, "here") == ((Start("a", Placement((0,), (1,)), "r"), ""),)
    text = '[{"type":"Measured","time_s":1.0,"job_id":"a","speed":0.5,"resume_s":null}]'
    assert EVENTS.decode(text, "here") == (Measured(1.0, "a", 0.5),)
