"""A run that is read as it goes on says the same as one that is read whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_helpers import OPENING

from hemiola.core.decisions import Decision, Placement, Start, Stop, WakeAt
from hemiola.core.events import Event, Held, NodeBack, NodeLost, Released, Requeued, Started
from hemiola.live.journal import Journal
from hemiola.live.query.cluster import Following

HERE = Placement((1,), (3,))
JOBS = st.sampled_from(["a", "b", "c"])
EVENTS = st.one_of(
    st.builds(NodeLost, st.just(0.0), st.integers(0, 2)), st.builds(NodeBack, st.just(0.0), st.integers(0, 2)),
    st.builds(Held, st.just(0.0), JOBS, st.just("why")), st.builds(Released, st.just(0.0), JOBS),
    st.builds(Requeued, st.just(0.0), JOBS, st.just("why")), st.builds(Started, st.just(0.0), JOBS, st.just(HERE)),
)  # fmt: skip
DECISIONS = st.one_of(
    st.builds(Start, JOBS, st.just(HERE), st.just("r")), st.builds(Stop, JOBS, st.just("r")),
    st.builds(WakeAt, st.just(99.0), JOBS, st.just("r")),
)  # fmt: skip
Step = tuple[list[Event], list[Decision] | None, bool, bool]
"""Events, decisions (None: nobody was asked), and whether somebody reads between the two, and after them."""
STEPS = st.lists(
    st.tuples(
        st.lists(EVENTS, min_size=1, max_size=3),
        st.one_of(st.none(), st.lists(DECISIONS, max_size=3)),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_what_is_read_piece_by_piece_is_the_whole(tmp_path_factory: object, steps: list[Step]) -> None:
    folder: Path = tmp_path_factory.mktemp("run")  # type: ignore[attr-defined]
    with Journal.open(folder / "journal.db") as journal:
        epoch = journal.lead("one", 1.0, 1e6)
        assert epoch is not None
        run, following = journal.begin_run(epoch, OPENING, 1.0), Following()
        for number, (events, decisions, between, after) in enumerate(steps):
            now = 2.0 + number
            timed = [msgspec.structs.replace(event, time_s=now) for event in events]
            journal.record_events(run, number * 2, timed)
            if between:
                assert following.read(journal, run) == Following().read(journal, run)
            if decisions is not None:
                made = [(decision, "") for decision in decisions]
                journal.record_decisions(run, number * 2, made, [], intents=False, now_s=now)
            if after:
                assert following.read(journal, run) == Following().read(journal, run)
        told = following.read(journal, run)
        assert told == Following().read(journal, run)
        assert told.instants == len(steps)
        other = journal.begin_run(epoch, OPENING, 90.0)
        assert following.read(journal, other).instants == 0, "another run is another story"
