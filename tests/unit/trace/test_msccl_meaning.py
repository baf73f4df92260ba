"""What MSCCL's steps mean: a document is proved right only where its interpreter would give every rank its result."""

from __future__ import annotations

import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import pytest

from hemiola.core.collective.schedule import ChunkMove, ChunkPlace, CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, halving_doubling, ring, trees
from hemiola.core.errors import HemiolaError, InputError, ScheduleError
from hemiola.trace.msccl import document, msccl_text, parse_msccl, reading

Steps = list[tuple[str, str, str] | tuple[str, str, str, tuple[int, int]]]


def step(number: int, kind: str, source: str, target: str, waits: tuple[int, int] = (-1, -1), count: int = 1) -> str:  # fmt: skip
    """One step; places are such as "i0"."""
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{waits[0]}" deps="{waits[1]}" hasdep="1"/>'
    )


def block(number: int, send: int, receive: int, steps: Steps) -> str:
    """One thread block; every step tells of its end."""
    inside = "".join(step(at, *one) for at, one in enumerate(steps))
    return f'<tb id="{number}" send="{send}" recv="{receive}" chan="0">{inside}</tb>'


def algo(*gpus: list[tuple[int, int, Steps]], chunks: int = 1, inplace: int = 1, proto: str = "LL", coll: str = "allreduce") -> str:  # fmt: skip
    """A document: of each gpu its thread blocks, as what they send to, receive from, and do."""
    inside = "".join(
        f'<gpu id="{rank}" s_chunks="9">{"".join(block(at, *one) for at, one in enumerate(blocks))}</gpu>'
        for rank, blocks in enumerate(gpus)
    )
    return (
        f'<algo name="x" proto="{proto}" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}" '
        f'inplace="{inplace}">{inside}</algo>'
    )


def test_what_comes_is_added_to_the_source() -> None:
    """Two chunks, two ranks; `rrc` that looks right by its target, and adds another chunk."""
    ranks: list[Steps] = [
        [("s", "i0", "i0"), ("rrc", "i0", "i1"), ("s", "i1", "i1"), ("r", "i0", "i0")],
        [("s", "i1", "i1"), ("rrc", "i0", "i0"), ("s", "i0", "i0"), ("r", "i1", "i1")],
    ]
    text = algo(*([(1 - rank, 1 - rank, steps)] for rank, steps in enumerate(ranks)), chunks=2)
    with pytest.raises(
        ScheduleError, match=r"gpu 1, tb 0, step 0 and gpu 0, tb 0, step 1\): it adds chunk 1 to chunk 0"
    ):
        parse_msccl(text).verify()
    assert parse_msccl(
        text.replace('srcoff="0" dstbuf="i" dstoff="1"', 'srcoff="1" dstbuf="i" dstoff="1"')
    ).verify()


@pytest.mark.parametrize("kind", ["rrc", "rrcs"])
def test_a_sum_may_go_elsewhere_than_what_it_is_added_to(kind: str) -> None:
    """Not in place, so that the result needs no copy."""
    second: Steps = [("rrc", "i0", "o0"), ("s", "o0", "o0")] if kind == "rrc" else [("rrcs", "i0", "o0")]
    text = algo([(1, 1, [("s", "i0", "i0"), ("r", "o0", "o0")])], [(0, 0, second)], inplace=0)
    moves = parse_msccl(text).verify().moves
    assert ChunkMove(ChunkPlace(1, "input", 0), ChunkPlace(1, "output", 0)) in moves
    assert ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "output", 0), adds=True) in moves


def test_a_sum_that_is_sent_on_is_not_kept() -> None:
    """Rank 1 would have it all if `rrs` wrote anything."""
    text = algo([(1, 1, [("s", "i0", "i0"), ("r", "i0", "i0")])], [(0, 0, [("rrs", "i0", "i0")])])
    with pytest.raises(ScheduleError, match="input 0 of rank 1 holds chunk 0 of rank 1 instead of"):
        parse_msccl(text).verify()


def test_what_a_sum_was_made_of_is_still_there() -> None:
    """Rank 1 sends its own once more after `rrs`, and another block sends it meanwhile: each is what it was."""
    text = algo(
        [(1, 1, [("s", "i0", "i0"), ("rrc", "i0", "i0")])],
        [(2, 0, [("rrs", "i0", "i0")]), (0, 2, [("s", "i0", "i0"), ("rrc", "i0", "i0")])],
        [(1, 1, [("r", "s0", "s0"), ("s", "i0", "i0"), ("re", "s0", "i0")])],
    )
    schedule = parse_msccl(text)
    wanted = {0: {0, 1}, 1: {1, 2}, 2: {0, 1, 2}}
    with pytest.raises(ScheduleError, match="input 0 of rank 0 holds chunk 0 of ranks 0, 1 instead of"):
        schedule.verify()
    held = {(rank, "input", 0): {rank} for rank in range(3)}
    for move in schedule.moves:
        source, target = ((p.rank, p.buffer, p.index) for p in (move.source, move.target))
        held[target] = held[source] | (held[target] if move.adds else set())
    assert {rank: held[rank, "input", 0] for rank in range(3)} == wanted


@pytest.mark.parametrize(("proto", "holds"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_a_connection_holds_so_many_sends(proto: str, holds: int) -> None:
    """Both ranks send all that they have before they receive."""

    def both(chunks: int) -> str:
        parts: list[Steps] = []
        for rank in range(2):
            own = [(rank + 2 * k) % (2 * chunks) for k in range(chunks)]
            parts.append(
                [("s", f"o{c}", f"o{c}") for c in own] + [("r", f"o{c ^ 1}", f"o{c ^ 1}") for c in own]
            )
        text = algo(*([(1 - r, 1 - r, s)] for r, s in enumerate(parts)), chunks=2 * chunks, coll="allgather", proto=proto)  # fmt: skip
        # ranks own halves, not every other chunk
        order = {2 * k + rank: rank * chunks + k for k in range(chunks) for rank in range(2)}
        return re.sub(r'off="(\d+)"', lambda m: f'off="{order[int(m[1])]}"', text)

    assert parse_msccl(both(holds)).verify()
    with pytest.raises(
        ScheduleError,
        match=rf"for ever: gpu 0, tb 0, step {holds} \(s\) for gpu 1 to receive one of the {holds} ",
    ):
        parse_msccl(both(holds + 1))


BASE = msccl_text(ring([0, 1, 2]))
NOP = '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="{}" deps="{}" hasdep="0"/>'


def in_front(text: str, nop: str) -> str:
    """With a step before the first block's own."""
    head, tail = text.split("<step", 1)
    first, rest = f"<step{tail}".split("</tb>", 1)
    first = re.sub(r' s="(\d+)"', lambda m: f' s="{int(m[1]) + 1}"', first)
    return f"{head}{nop}{first}</tb>{rest}"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('hasdep="1"', 'hasdep="0"', r"gpu 0, tb \d, step \d waits for step \d of tb \d, which tells nobody"),
        ('hasdep="1"', 'hasdep="2"', "hasdep is 2"),
        ('proto="Simple"', 'proto="simple"', "proto is 'simple'"),
        ('nchannels="1"', 'nchannels="0"', "nchannels is 0"),
        ('chan="0"', 'chan="1"', "gpu 0, tb 0: chan is 1"),
        ('chan="0"', 'chan="-1"', "gpu 0, tb 0: chan is -1"),
        ('ngpus="3"', 'ngpus="4"', "there is no gpu 3 of 4"),
        ('nchunksperloop="3"', 'nchunksperloop="4"', "gpu 0: i_chunks is 3, beside nchunksperloop 4"),
        ('nchunksperloop="3"', 'nchunksperloop="1000000000"', "1000000000 chunks: too many to prove it right"),
        ('nchunksperloop="3"', 'nchunksperloop="9999999999999999999999"', "nchunksperloop is '9999999999999999999999'"),
        ('nchunksperloop="3"', 'nchunksperloop="1_0"', "nchunksperloop is '1_0'"),
        ('ngpus="3"', 'ngpus="65536"', "65536 ranks, 3 chunks: too many"),
        ('i_chunks="3"', 'i_chunks="2"', "i_chunks is 2"),
        ('i_chunks="3"', 'i_chunks="-3"', "i_chunks is -3"),
        ('i_chunks="3"', 'i_chunks="0"', "srcoff is 2 with cnt 1, where i has 0 chunks"),
        ('s_chunks="0"', 's_chunks="9999999999"', "s_chunks is 9999999999"),
        ('inplace="1"', 'inplace="2"', "inplace is 2"),
        ('outofplace="0"', 'outofplace="1"', "inplace and outofplace are both 1"),
        ('send="1"', 'send="0"', "'s' has the peer 0"),
        ('recv="-1"', 'recv="0"', "gpu 0, tb 0: recv is 0"),
        ('recv="-1"', 'recv="3"', "gpu 0, tb 0: recv is 3"),
        ('send="-1"', 'send="1"', "gpu 0, tb 1: send is 1 on channel 0, as that of tb 0 is"),
        ('<tb id="1"', '<tb id="3"', "gpu 0: there is no tb 1 of 2"),
        ('srcoff="0"', 'srcoff="-1"', "srcoff is -1 with cnt 1"),
        ('srcoff="0"', 'srcoff="3"', "srcoff is 3 with cnt 1, where i has 3 chunks"),
        ('cnt="1"', 'cnt="4"', "srcoff is 2 with cnt 4, where i has 3 chunks"),
        ('srcbuf="i"', 'srcbuf="s"', "where s has 0 chunks"),
        ('depid="-1" deps="-1"', 'depid="-1" deps="0"', "depid is -1 and deps is 0"),
        ('depid="-1" deps="-1"', 'depid="1" deps="-1"', "depid is 1 and deps is -1"),
        ('depid="-1" deps="-1"', 'depid="-2" deps="-2"', "depid is -2 and deps is -2"),
        ('depid="-1" deps="-1"', 'depid="0" deps="1"', "waits for step 1 of its own tb"),
        ('depid="-1" deps="-1"', 'depid="1" deps="9"', "waits for step 9 of tb 1, which is not there"),
        ("</tb>", "<stop/></tb>", "gpu 0, tb 0: there is a <stop> in <tb>"),
        ("</gpu>", "<copy/></gpu>", "gpu 0: there is a <copy> in <gpu>"),
        ("</algo>", "<step/></algo>", "there is a <step> in <algo>"),
        ("<algo", "<!DOCTYPE algo [<!ENTITY a 'b'>]><algo", "declares a document type, <!DOCTYPE algo>"),
    ],
)  # fmt: skip
def test_what_a_file_contradicts_is_named(old: str, new: str, says: str) -> None:
    assert old in BASE and parse_msccl(BASE).verify()
    with pytest.raises((InputError, ScheduleError), match=says):
        parse_msccl(BASE.replace(old, new, 1))


def test_sends_that_wait_for_receives_wait_for_ever() -> None:
    both = [[(1 - r, -1, [("s", "i0", "i0", (1, 0))]), (-1, 1 - r, [("rrc", "i0", "i0")])] for r in range(2)]
    says = r"gpu 0, tb 0, step 0 \(s\) for step 0 of tb 1; gpu 0, tb 1, step 0 \(rrc\) for what gpu 1 sends"
    with pytest.raises(ScheduleError, match=f"wait for each other for ever: {says}"):
        parse_msccl(algo(*both))


def test_nops_stand_before_a_step_that_waits() -> None:
    """MSCCL makes them one: without that step it refuses the file, and one that waits for nothing gets no number."""
    with pytest.raises(InputError, match="gpu 0, tb 0, step 0: a nop that waits for nothing"):
        parse_msccl(in_front(BASE, NOP.format(-1, -1)))
    with pytest.raises(InputError, match="gpu 0, tb 0, step 0: a nop before no step that waits"):
        parse_msccl(in_front(BASE, NOP.format(1, 0)))
    waiting = [("s", "i0", "i0"), ("nop", "i-1", "o-1", (1, 0))]
    with pytest.raises(InputError, match="gpu 0, tb 0, step 1: a nop before no step that waits"):
        parse_msccl(algo([(1, -1, waiting), (-1, 1, [("r", "i0", "i0")])], [(0, 0, [("rrcs", "i0", "i0")])]))  # fmt: skip


def test_nobody_hears_of_a_nop() -> None:
    first: Steps = [("nop", "i-1", "o-1", (1, 0)), ("s", "i0", "i0", (1, 0))]
    second: Steps = [("cpy", "i0", "s0"), ("cpy", "s0", "s1", (0, 0))]
    with pytest.raises(InputError, match="gpu 0, tb 1, step 1 waits for step 0 of tb 0, which tells nobody"):
        parse_msccl(algo([(1, -1, first), (-1, -1, second)], [(-1, 0, [("rrc", "i0", "i0")])]))


@pytest.mark.parametrize("kind", ["cpy", "re", "rrc", "rrcs"])
def test_a_step_does_not_overlap_itself(kind: str) -> None:
    text = algo([(1, 1, [(kind, "i0", "i1")])], [(0, 0, [(kind, "i0", "i1")])], chunks=3)
    with pytest.raises(InputError, match="srcoff 0 and dstoff 1 overlap with cnt 2"):
        parse_msccl(text.replace('cnt="1"', 'cnt="2"'))


def test_sums_that_are_made_at_once_have_one_count() -> None:
    """MSCCL takes the last one's."""
    steps = step(0, "re", "s0", "i0") + step(1, "re", "s2", "i0", count=2)
    text = algo([(-1, -1, [])], chunks=2).replace("</tb>", f"{steps}</tb>")
    assert parse_msccl(text)
    with pytest.raises(InputError, match="gpu 0, tb 0, step 1: cnt is 2, and 1 in the step before"):
        parse_msccl(text.replace('hasdep="1"', 'hasdep="0"', 1))


def test_sums_of_several_counts_are_written_apart() -> None:
    i0, s0 = ChunkPlace(0, "input", 0), ChunkPlace(0, "scratch", 0)
    one, two = (
        ChunkMove(ChunkPlace(0, "scratch", at), i0, count, adds=True) for at, count in ((4, 1), (2, 2))
    )
    moves = (ChunkMove(ChunkPlace(1, "input", 0), s0, 2), ChunkMove(s0, ChunkPlace(0, "scratch", 2), 2), ChunkMove(s0, ChunkPlace(0, "scratch", 4), 2), one, two)  # fmt: skip
    schedule = CollectiveSchedule(name="x", collective="reduce", ranks=2, chunks=2, moves=moves)
    assert parse_msccl(msccl_text(schedule)).moves == schedule.ordered().moves


def calls(of: Callable[[], object]) -> int:
    """How many functions are called until it ends, or raises one of our errors."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        of()
    except HemiolaError:
        pass
    finally:
        sys.setprofile(before)
    return count


def test_what_is_too_large_is_refused_at_once() -> None:
    for said in ('nchunksperloop="1000000000"', 'nchunksperloop="3" ', 'ngpus="60000"'):
        name, _, _ = said.partition("=")
        text = re.sub(rf'{name}="\d+"', said, BASE).replace('i_chunks="3"', 'i_chunks="1000000000"')
        assert calls(partial(parse_msccl, text)) < 500
    huge = CollectiveSchedule(name="huge", collective="all-reduce", ranks=2, chunks=10**9, moves=())
    many = CollectiveSchedule(
        name="many", collective="all-reduce", ranks=2, chunks=1,
        moves=(ChunkMove(ChunkPlace(0, "input", 0), ChunkPlace(1, "input", 0), count=1 << 20),) * 5,
    )  # fmt: skip
    for schedule in (huge, many):
        assert calls(schedule.verify) < 500
        with pytest.raises(ScheduleError, match="too many to prove it right"):
            schedule.verify()


def test_steps_are_looked_at_once_each() -> None:
    """Twice as many steps of the same kind take about twice as many calls, not four times."""

    def copies(steps: int) -> str:
        inside = "".join(step(at, "cpy", f"s{2 * at}", f"s{2 * at + 1}") for at in range(steps))
        return algo([(-1, -1, [])]).replace("</tb>", f"{inside}</tb>").replace('s_chunks="9"', 's_chunks="999"')  # fmt: skip

    few, many = (calls(partial(parse_msccl, copies(steps))) for steps in (50, 200))
    assert many < 5 * few


def test_documents_end_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "ELEMENTS_MAX", 9)
    with pytest.raises(InputError, match="more than 9 elements"):
        parse_msccl(BASE)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "MOVED_MAX", 5)
    with pytest.raises(InputError, match=r"by gpu 0, tb \d, step \d, whose cnt is 1, steps move 6 chunks"):
        parse_msccl(BASE)


class Interpreter:
    """MSCCL's, on numbers: blocks in any order, flags that only grow, connections that hold so many."""

    def __init__(
        self, root: ElementTree.Element, chance: random.Random, data: dict[tuple[int, str, int], int]
    ) -> None:
        self.data, self.chance = data, chance
        self.slots = {"Simple": 2, "LL": 8}[root.get("proto", "")]
        self.links: dict[tuple[int, int, str], deque[list[int]]] = {}
        self.flags: Counter[tuple[int, int]] = Counter()
        self.blocks = [
            (int(gpu.get("id", "")), tb, deque(tb)) for gpu in root.iter("gpu") for tb in gpu.iter("tb")
        ]

    def run(self) -> bool:
        """Whether all blocks end."""
        left = [one for one in self.blocks if one[2]]
        while left:
            self.chance.shuffle(left)
            if not any(self.go(rank, tb, steps) for rank, tb, steps in left):
                return False
            left = [one for one in left if one[2]]
        return True

    def go(self, rank: int, tb: ElementTree.Element, steps: deque[ElementTree.Element]) -> bool:
        """Make the next step of a block, if it can be made."""
        said, kind = {k: int(v) for k, v in steps[0].items() if k not in ("type", "srcbuf", "dstbuf")}, steps[0].get("type", "")  # fmt: skip
        came = self.links.setdefault((int(tb.get("recv", "")), rank, tb.get("chan", "")), deque())
        goes = self.links.setdefault((rank, int(tb.get("send", "")), tb.get("chan", "")), deque())
        if said["depid"] >= 0 and self.flags[rank, said["depid"]] <= said["deps"]:
            return False
        if ("r" in kind and kind != "re" and not came) or (kind[-1] == "s" and len(goes) >= self.slots):
            return False
        source, target = (
            [(rank, steps[0].get(f"{which}buf", ""), said[f"{which}off"] + k) for k in range(said["cnt"])]
            for which in ("src", "dst")
        )
        own = [self.data.get(place, 0) for place in source]
        if kind in ("r", "rcs", "rrc", "rrs", "rrcs"):
            got = came.popleft()
            own = got if kind in ("r", "rcs") else [a + b for a, b in zip(got, own, strict=True)]
        if kind == "re":
            own = [a + self.data.get(place, 0) for a, place in zip(own, target, strict=True)]
        if kind not in ("s", "rrs", "nop"):
            self.data.update(zip(target, own, strict=True))
        if kind in ("s", "rcs", "rrs", "rrcs"):
            goes.append(own)
        steps.popleft()
        if said["hasdep"] and kind != "nop":
            self.flags[rank, int(tb.get("id", ""))] = said["s"] + 1
        return True


def changed(root: ElementTree.Element, chance: random.Random) -> None:
    """One or two attributes of some steps, as a hand that edits would."""
    gpus = list(root)
    for _ in range(chance.choice((1, 1, 2))):
        one = chance.choice([s for gpu in gpus for s in gpu.iter("step")])
        what = chance.choice(("type", "srcoff", "dstoff", "hasdep", "depid", "srcbuf", "dstbuf", "swap"))
        if what == "type":
            alike = {"rrc": ["r", "rrs", "rrcs"], "r": ["rrc", "rcs"], "cpy": ["re"], "re": ["cpy"]}
            one.set("type", chance.choice(alike.get(one.get("type", ""), ["s"])))
        elif what in ("srcoff", "dstoff"):
            one.set(what, str(chance.randrange(3)))
        elif what == "hasdep":
            one.set("hasdep", str(1 - int(one.get("hasdep", ""))))
        elif what == "depid":
            one.set("depid", "-1")
            one.set("deps", "-1")
        elif what in ("srcbuf", "dstbuf"):
            one.set(what, chance.choice("ios"))
        else:
            tb = chance.choice([tb for gpu in gpus for tb in gpu.iter("tb")])
            steps = list(tb)
            chance.shuffle(steps)
            for number, other in enumerate(steps):
                other.set("s", str(number))
            tb[:] = steps


def fused(text: str) -> str:
    """A ring's blocks as NCCL has them: what comes is sent on at once."""
    ranks = 3
    gpus: list[list[tuple[int, int, Steps]]] = []
    for rank in range(ranks):
        c = [f"i{(rank - k) % ranks}" for k in range(ranks + 1)]
        steps: Steps = [("s", c[0], c[0]), ("rrs", c[1], c[1]), ("rrcs", c[2], c[2]), ("rcs", c[3], c[3]), ("r", c[1], c[1])]  # fmt: skip
        gpus.append([((rank + 1) % ranks, (rank - 1) % ranks, steps)])
    return algo(*gpus, chunks=ranks, proto=text)


SAMPLES = [
    msccl_text(ring([0, 1, 2])), msccl_text(all_pairs(3)), msccl_text(halving_doubling(4)), msccl_text(trees([[-1, 0, 0], [1, -1, 1]])),
    fused("LL"), fused("Simple"), algo([(1, 1, [("s", "i0", "i0"), ("r", "o0", "o0")])], [(0, 0, [("rrcs", "i0", "o0")])], inplace=0),
]  # fmt: skip


@pytest.mark.parametrize("text", SAMPLES)
def test_what_is_proved_right_is_right_in_any_order(text: str) -> None:
    """An all-reduce edited by chance: where the proof holds, the interpreter gives every rank all sums."""
    assert parse_msccl(text).verify()
    chance = random.Random(11)
    kept = 0
    for _ in range(150):
        root = ElementTree.fromstring(text)
        changed(root, chance)
        edited = ElementTree.tostring(root, encoding="unicode")
        try:
            schedule = parse_msccl(edited).verify()
        except HemiolaError:
            continue
        kept += 1
        ranks, chunks = schedule.ranks, schedule.chunks
        for _ in range(3):
            data = {(r, "i", c): 7 ** (r * chunks + c + 1) for r in range(ranks) for c in range(chunks)}
            machine = Interpreter(ElementTree.fromstring(edited), chance, data)
            assert machine.run(), edited
            buffer = "i" if schedule.in_place else "o"
            for c in range(chunks):
                total = sum(7 ** (r * chunks + c + 1) for r in range(ranks))
                assert [data.get((r, buffer, c)) for r in range(ranks)] == [total] * ranks, edited
    assert kept
