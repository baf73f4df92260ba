"""MSCCL's XML: real files are read, proved and counted; what is written reads back equal; wrong ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, halving_doubling, ring, trees
from hemiola.core.errors import InputError, ScheduleError
from hemiola.plan.collective.balance import paced
from hemiola.trace.msccl import equal_chunks, msccl_text, parse_msccl, read_msccl, write_msccl
from hemiola.trace.struct_json import read_schedule, write_schedule

SHAPES = [
    ring([0, 1]), ring([0, 2, 1, 3, 4]), ring([1, 0, 2], "reduce-scatter"), ring([1, 0, 2], "all-gather"),
    trees([[-1, 0, 0, 1], [1, -1, 1, 2]]), trees([[-1, 0, 1]], collective="broadcast"), trees([[-1, 0, 1]], collective="reduce"),
    all_pairs(4), all_pairs(3, "all-to-all"), halving_doubling(8), ring([0]),
]  # fmt: skip


@pytest.mark.shared_data
def test_the_peers_files_have_their_hops_and_chunks(shared: Path) -> None:
    folder = shared / "data" / "comm" / "msccl"
    summary = json.loads((folder / "summary.json").read_text())
    seen = 0
    for file in sorted(folder.glob("*.xml")):
        schedule, wanted = read_msccl(file).verify(), summary[file.name]
        sent = schedule.traffic()
        assert schedule.ranks == wanted["nranks"] and schedule.chunks == wanted["chunks_per_loop"]
        assert schedule.collective.replace("-", "") == wanted["coll"]
        assert sent.hops == wanted["critical_hops"]
        assert max(sent.chunks_of.values()) == wanted["max_sent_chunks_per_rank"]
        assert sum(sent.chunks_of.values()) == wanted["total_sent_chunks"]
        assert max(sent.chunks_between.values()) == wanted["max_link_chunks"]
        assert len(sent.chunks_between) == wanted["links_used"]
        assert parse_msccl(msccl_text(schedule)).moves == schedule.moves
        seen += 1
    assert seen == 12


@pytest.mark.parametrize("schedule", SHAPES, ids=lambda s: f"{s.name} {s.collective}")
def test_what_is_written_reads_back_equal(schedule: CollectiveSchedule, tmp_path: Path) -> None:
    write_msccl(schedule, tmp_path / "s.xml")
    back = read_msccl(tmp_path / "s.xml").verify()
    expected = schedule.ordered()
    assert back == msgspec.structs.replace(expected, source=back.source)
    write_schedule(schedule, tmp_path / "s.json")
    assert read_schedule(tmp_path / "s.json") == schedule


def test_paces_are_in_schedule_files_and_not_in_msccl_s(tmp_path: Path) -> None:
    schedule = paced([50e6, 40e6, 45e6]).verify()
    write_schedule(schedule, tmp_path / "s.json")
    assert read_schedule(tmp_path / "s.json") == schedule
    write_msccl(equal_chunks(schedule).schedule, tmp_path / "s.xml")
    assert read_msccl(tmp_path / "s.xml").verify().paces == ()


def test_a_sum_that_is_sent_on_and_not_kept_is_a_move_like_others() -> None:
    """rrs, rrcs and rcs, as NCCL's ring has them, on three ranks and one chunk."""
    text = algo(
        [("tb send='1' recv='2'", [("s", 0), ("r", 0)])],
        [("tb send='2' recv='0'", [("rrs", 0)]), ("tb send='-1' recv='2'", [("r", 0)])],
        [("tb send='0' recv='1'", [("rrcs", 0)]), ("tb send='1' recv='-1'", [("s", 0, (0, 0))])],
    )
    schedule = parse_msccl(text).verify()
    assert [(m.source.rank, m.target.rank, m.adds) for m in schedule.moves] == [
        (0, 1, True), (1, 2, True), (2, 0, False), (2, 1, False),
    ]  # fmt: skip


def algo(*gpus: list, collective: str = "allreduce", chunks: int = 1) -> str:
    """A document: per gpu its thread blocks, per block its steps as (type, chunk[, (block, step) it waits for])."""
    parts = []
    for rank, blocks in enumerate(gpus):
        named = {wait for _, steps in blocks for _, _, *waits in steps for wait in waits}
        parts.append(f"<gpu id='{rank}'>")
        for number, (head, steps) in enumerate(blocks):
            tail = "" if "chan" in head else " chan='0'"
            parts.append(f"<{head} id='{number}'{tail}>")
            for s, (kind, chunk, *waits) in enumerate(steps):
                depid, deps = waits[0] if waits else (-1, -1)
                parts.append(
                    f"<step s='{s}' type='{kind}' srcbuf='i' srcoff='{chunk}' dstbuf='i' dstoff='{chunk}' cnt='1' "
                    f"depid='{depid}' deps='{deps}' hasdep='{int((number, s) in named)}'/>"
                )
            parts.append("</tb>")
        parts.append("</gpu>")
    head = f"<algo name='x' ngpus='{len(gpus)}' nchunksperloop='{chunks}' coll='{collective}' inplace='1'>"
    return "".join([head, *parts, "</algo>"])


def test_ranks_that_wait_for_each_other_are_named() -> None:
    """Each receives before it sends."""
    both = [[(f"tb send='{1 - r}' recv='{1 - r}'", [("rrc", 0), ("s", 0)])] for r in range(2)]
    with pytest.raises(ScheduleError, match="wait for each other for ever: gpu 0, tb 0, step 0"):
        parse_msccl(algo(*both))


def test_a_race_is_named() -> None:
    """Rank 1 sends its chunk while another block overwrites it."""
    text = algo(
        [("tb send='1' recv='-1'", [("s", 0)]), ("tb send='-1' recv='1'", [("r", 1)])],
        [("tb send='-1' recv='0'", [("r", 0)]), ("tb send='0' recv='-1'", [("s", 0)])],
        chunks=2,
    )
    with pytest.raises(ScheduleError, match="use input 0 of rank 1 in no certain order"):
        parse_msccl(text)


def test_a_swap_without_scratch_memory_is_refused() -> None:
    both = [[(f"tb send='{1 - r}' recv='{1 - r}'", [("s", 0), ("r", 0)])] for r in range(2)]
    with pytest.raises(ScheduleError, match="on its way at the same time"):
        parse_msccl(algo(*both))


def test_a_sum_that_was_not_kept_is_not_there() -> None:
    """Rank 1 sends what it has itself once more: rrs left that where it was."""
    text = algo(
        [("tb send='1' recv='-1'", [("s", 0)])],
        [("tb send='2' recv='0'", [("rrs", 0), ("s", 0)])],
        [("tb send='-1' recv='1'", [("rrc", 0), ("r", 0)])],
    )
    schedule = parse_msccl(text)
    with pytest.raises(ScheduleError, match="input 0 of rank 2 holds chunk 0 of rank 1 instead of"):
        msgspec.structs.replace(schedule, collective="reduce", root=2).verify()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("<algo", "<algos", "is no XML"),
        ("coll=\"allreduce\"", "coll=\"sum\"", "the collective 'sum' is not known"),
        ("ngpus=\"2\"", "ngpus=\"two\"", "ngpus is 'two'"),
        ("<gpu id=\"1\"", "<gpu id=\"9\"", "there is a gpu 9 of 2"),
        ("ngpus=\"2\"", "ngpus=\"0\"", "0 gpus"),
        ("type=\"rrc\"", "type=\"rrx\"", "the type 'rrx' is not known"),
        ("send=\"1\"", "send=\"7\"", "'s' has the peer 7"),
        ("srcbuf=\"i\"", "srcbuf=\"q\"", "srcbuf is 'q'"),
        ("cnt=\"1\"", "cnt=\"99999999999\"", "cnt is 99999999999"),
        ("depid=\"-1\" deps=\"-1\"", "depid=\"5\" deps=\"0\"", "waits for step 0 of tb 5"),
        ("<gpu id=\"1\"", "<gpu id=\"0\"", "there are two gpu 0"),
        ("<tb id=\"1\"", "<tb id=\"0\"", "gpu 0: there are two tb 0"),
        ("step s=\"1\"", "step s=\"0\"", "gpu 0, tb 0, step 0: it stands where step 1 should"),
        ("step s=\"1\"", "step s=\"2\"", "gpu 0, tb 0, step 2: it stands where step 1 should"),
        ("step s=\"1\"", "step s=\"one\"", "s is 'one'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(old: str, new: str, says: str) -> None:
    text = msccl_text(ring([0, 1]))
    assert old in text
    with pytest.raises((InputError, ScheduleError), match=says):
        parse_msccl(text.replace(old, new, 1), "edited.xml")


@pytest.mark.parametrize("encoding", ["gbk", "none"])
def test_an_encoding_that_is_not_known_is_named(encoding: str) -> None:
    text = f"<?xml version='1.0' encoding='{encoding}'?>\n{msccl_text(ring([0, 1]))}"
    with pytest.raises(InputError, match="is no XML"):
        parse_msccl(text.encode())


def test_a_send_without_a_receive_is_named() -> None:
    with pytest.raises(
        ScheduleError, match="rank 0 sends 1 times to rank 1 on channel 0, which receives 0 times"
    ):
        parse_msccl(algo([("tb send='1' recv='-1'", [("s", 0)])], []))


def test_what_msccl_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="different sizes"):
        msccl_text(trees([[-1, 0], [1, -1]], weights=(0.25, 0.75)))
    with pytest.raises(ScheduleError, match="root 1"):
        msccl_text(trees([[1, -1]], collective="broadcast"))
    with pytest.raises(InputError, match=r"nothing\.xml"):
        read_msccl(tmp_path / "nothing.xml")
    (tmp_path / "s.json").write_text('{"schema": "hemiola.strategy/1", "name": "x"}')
    with pytest.raises(InputError, match="missing required field"):
        read_schedule(tmp_path / "s.json")


def test_moves_on_one_rank_are_copies_and_sums() -> None:
    """Rank 1's chunk comes into scratch memory and is added from there."""
    i0, i1, s0 = ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0), ChunkPlace(0, "scratch", 0)
    schedule = CollectiveSchedule(
        name="by scratch", collective="all-reduce", ranks=2, chunks=1,
        moves=(ChunkMove(i1, s0), ChunkMove(s0, i0, adds=True), ChunkMove(i0, i1)),
    )  # fmt: skip
    text = msccl_text(schedule.verify())
    assert 'type="re"' in text
    assert parse_msccl(text).moves == schedule.ordered().moves
