"""For NCCL: the order of hosts, ring or tree, and files that their readers take."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec
import numpy as np
import pytest
from nic_hosts import hosts

from hemiola.cli.collective import Kind
from hemiola.cli.collective import collective as verb
from hemiola.core.collective.shapes import double_tree, ring, trees
from hemiola.core.errors import InputError
from hemiola.cost.collective.duration import schedule_seconds
from hemiola.cost.places import RankPlaces
from hemiola.plan.collective.nccl import NcclTimes, nccl_choices, nccl_order, reordered
from hemiola.plan.collective.nccl_files import NAMES, NcclAdvice, advise_nccl, tuner_csv
from hemiola.trace.msccl import parse_msccl
from hemiola.trace.struct_json import read_schedule
from hemiola.trace.topologies import write_topology

MB = 1e6
TURNS = [0, 1, 0, 1, 0, 1, 0, 1]
"""Eight hosts that stand in two racks in turns."""


def seconds(place: RankPlaces, algorithm: str, size_bytes: float = 64 * MB) -> float:
    return min(one.seconds for one in NcclTimes(place).choices(size_bytes) if one.algorithm == algorithm)


def test_racks_that_alternate_are_put_together() -> None:
    """Four hosts of 10 MB/s behind 10 MB/s each: a ring in turns goes through an uplink 4 times, else once."""
    place = hosts([10 * MB] * 8, TURNS, [10 * MB, 10 * MB])
    found = nccl_order(place, 64 * MB)
    once_s = 2 * 7 / 8 * 64 / 10
    racks = [TURNS[host] for host in found.order]
    assert sum(a != b for a, b in itertools.pairwise([*racks, racks[0]])) == 2
    assert found.best.seconds == pytest.approx(once_s, rel=1e-3)
    assert seconds(place, "ring") == pytest.approx(4 * once_s, rel=1e-3)
    assert found.others["as the topology has them"][0].seconds > 2 * once_s


def test_a_slow_host_stands_at_an_end_and_trees_go_around_it() -> None:
    """At 4 hosts, the first and the last are leaves of both trees, or a root with one child: 2 of 2 (N - 1) / N = 1.5."""
    place = hosts([50 * MB, 12.5 * MB, 50 * MB, 50 * MB])
    found = nccl_order(place, 64 * MB)
    assert found.order[0] == 1 or found.order[-1] == 1
    assert str(found.usual) == "ring/simple" and found.usual.seconds == pytest.approx(
        1.5 * 64 / 12.5, rel=1e-3
    )
    assert str(found.best) == "tree/simple" and found.best.seconds == pytest.approx(64 / 12.5, rel=1e-3)
    before, after = (one.seconds for one in found.others["as the topology has them"])
    assert before == after == pytest.approx(1.5 * 64 / 12.5, rel=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_few_hosts_is_better(seed: int) -> None:
    """Against all orders, those that tear racks apart too."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 7))
    rates, racks = draw.choice([1.0, 2.0, 4.0], count) * MB, draw.integers(0, 2, count).tolist()
    uplinks = draw.choice([1.0, 2.0, 4.0, 8.0], 2) * MB
    place = hosts(rates.tolist(), racks if len(set(racks)) == 2 else None, uplinks.tolist())
    times, every = NcclTimes(place), itertools.permutations(range(count))
    best = min(times.in_order(order).choices(64 * MB)[0].seconds for order in every)
    assert nccl_order(place, 64 * MB).best.seconds == pytest.approx(best)


@pytest.mark.parametrize(
    ("place", "pieces"),
    [(hosts([40 * MB, 10 * MB, 40 * MB, 20 * MB, 40 * MB]), 1 << 16), (hosts([10 * MB] * 8, TURNS, [10 * MB, 20 * MB]), 1 << 16)],
)  # fmt: skip
def test_times_are_those_of_the_same_schedules(place: RankPlaces, pieces: int) -> None:
    """The crossings that are counted are those of the ring and the two trees as moves, executed."""
    order = list(range(place.ranks))
    executed = schedule_seconds(ring(order), 64 * MB, place)
    assert seconds(place, "ring") == pytest.approx(executed, rel=2e-3)
    both = msgspec.structs.replace(trees(double_tree(order)), chunk_bytes=pieces)
    assert seconds(place, "tree") == pytest.approx(schedule_seconds(both, 64 * MB, place), rel=0.05)


def test_names_as_text_and_by_number_are_orders_of_their_own() -> None:
    """torchrun numbers n10 before n2, Slurm behind it."""
    place = hosts([50 * MB, 12.5 * MB, 50 * MB, 50 * MB])
    named = replace(place.topology.hosts, names=("n10", "n2", "n1", "n30"))
    found = nccl_order(replace(place, topology=replace(place.topology, hosts=named)), 64 * MB)
    times = NcclTimes(place)
    for name, order in (
        ("names as text (torchrun)", [2, 0, 1, 3]),
        ("names by number (Slurm)", [2, 1, 0, 3]),
    ):
        assert found.others[name][1] == times.in_order(order).choices(64 * MB)[0]
    alike = nccl_order(hosts([MB] * 11), 64 * MB)
    assert list(alike.others) == ["as the topology has them", "names as text (torchrun)"]


def test_ranks_are_numbered_along_the_order() -> None:
    place = hosts([3 * MB, 1 * MB, 2 * MB, 4 * MB], [0, 1, 0, 1], [5 * MB, 6 * MB])
    turned = reordered(place, (2, 0, 3, 1))
    assert [turned.topology.hosts.names[host] for host, _ in turned.counts] == ["n2", "n0", "n3", "n1"]
    assert turned.bytes_per_s[:6].tolist() == [2e6, 3e6, 4e6, 1e6, 5e6, 6e6]
    assert [sorted(link.hosts) for link in turned.links] == [[0], [1], [2], [3], [0, 1], [2, 3]]
    order = [2, 0, 3, 1]
    assert schedule_seconds(ring(range(4)), 8 * MB, turned) == pytest.approx(
        schedule_seconds(ring(order), 8 * MB, place)
    )


def test_nothing_is_prescribed_where_nccl_supposes_right() -> None:
    times = NcclTimes(hosts([1e9] * 8, gpus=2))
    assert nccl_choices(times) == []
    assert all(line.startswith("#") for line in tuner_csv([], 8, 16).splitlines())


class Line(NamedTuple):
    """What the example plugin makes of a line."""

    collective: str
    least: int
    most: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    pipe_ops: int
    registered: int


def as_the_plugin_reads(text: str) -> list[Line]:
    """ext-tuner/example/plugin.c: lines of up to 255 bytes, # and empty ones left out, 8 to 10 tokens of known words."""
    found = []
    for line in text.splitlines():
        assert len(line.encode()) < 255, "fgets would go on in a line of its own"
        if line.startswith("#") or not line:
            continue
        tokens = [token.strip(" \t") for token in line.split(",")]
        assert 8 <= len(tokens) <= 10 and all(tokens)
        assert tokens[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert tokens[3] in ("tree", "ring") and tokens[4] in ("ll", "ll128", "simple")
        assert 0 <= int(tokens[1]) <= int(tokens[2]) < 1 << 64
        a, b, c, d, e, *numbers = tokens
        found.append(Line(a, int(b), int(c), d, e, *map(int, numbers)))
    return found


def chosen(lines: list[Line], size_bytes: int, able: tuple[str, ...] = ("ll", "ll128", "simple")) -> str:
    """The first line that fits and that NCCL can do."""
    for line in lines:
        if line.least <= size_bytes <= line.most and line.protocol in able:
            return f"{line.algorithm}/{line.protocol}"
    return ""


def test_the_plugin_takes_what_is_fastest() -> None:
    place = hosts([50 * MB, 50 * MB, 50 * MB, 12.5 * MB])
    times = NcclTimes(place)
    ranges = nccl_choices(times)
    lines = as_the_plugin_reads(tuner_csv(ranges, 4, 4))
    assert lines and {(line.collective, line.channels, line.nodes, line.ranks) for line in lines} == {
        ("allreduce", -1, 4, 4)
    }
    for power in range(10, 33):
        best, usual = times.choices(1 << power)[0], times.usual(1 << power)
        wanted = str(best) if usual.seconds > 1.1 * best.seconds else ""
        assert chosen(lines, 1 << power) == wanted, power
        if wanted.endswith("ll128"):
            assert chosen(lines, 1 << power, ("ll", "simple"))
    assert chosen(lines, 1 << 40) == chosen(lines, 1 << 32) == "tree/simple"
    assert chosen(lines, 8) == chosen(lines, 1024)


def test_where_ll128_cannot_be_used_the_fastest_of_the_rest_is_taken() -> None:
    """Of one slow host among eight, tree/ll128 is fastest from 8 KiB to 128 KiB; beside it tree/ll first, then tree/simple."""
    times = NcclTimes(hosts([1000 * MB] * 7 + [200 * MB]))
    lines = as_the_plugin_reads(tuner_csv(nccl_choices(times), 8, 8))
    for power in range(10, 33):
        if chosen(lines, 1 << power).endswith("ll128"):
            fastest = next(one for one in times.choices(1 << power) if one.protocol != "ll128")
            assert chosen(lines, 1 << power, ("ll", "simple")) == str(fastest), power
    assert {chosen(lines, 1 << power, ("ll", "simple")) for power in (13, 16)} == {"tree/ll", "tree/simple"}


def test_an_algorithm_is_prescribed_for_all_sizes_only_where_it_gains_a_tenth() -> None:
    """It gains 7 % at 64 MB, whatever it gains between 16 and 32 KiB."""
    found = advise_nccl(hosts([12_500 * MB] * 2 + [3_000 * MB] * 3).topology, 5, 64 * MB)
    usual, best = found.order.usual, found.order.best
    assert found.ranges and usual.algorithm != best.algorithm and usual.seconds < 1.1 * best.seconds
    assert "NCCL_ALGO=" not in found.files()["nccl.env"]


@pytest.fixture(scope="module")
def advice() -> NcclAdvice:
    """Two racks in turns, one host slow, two GPUs each."""
    rates = [100 * MB] * 8
    rates[5] = 20 * MB
    return advise_nccl(hosts(rates, TURNS, [200 * MB, 200 * MB], gpus=2).topology, 16, 64 * MB)


def test_files_say_the_same_order(advice: NcclAdvice) -> None:
    files = advice.files()
    names = files["hosts.txt"].strip().split(",")
    assert sorted(names) == [f"n{host}" for host in range(8)] and "n5" in (names[0], names[-1])
    assert files["hostfile"].splitlines() == [f"{name} slots=2" for name in names]
    assert files["slurm-hostfile"].splitlines() == [name for name in names for _ in range(2)]
    assert f"  {', '.join(names)}\n" in files["README.txt"]
    assert f"--master-addr {names[0]}" in files["README.txt"] and "was run on GPUs" in files["README.txt"]
    assert "NCCL_ALGO=allreduce:tree" in files["nccl.env"].splitlines()
    as_the_plugin_reads(files["tuner.csv"])


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what `hostname` prints, up to the first dot with -s."""
    command = tmp_path / "bin" / "hostname"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nif [ "$1" = -s ]; then echo "${NAME%%.*}"; else echo "$NAME"; fi\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return lambda name: monkeypatch.setenv("NAME", name)


@pytest.mark.parametrize("domain", ["", ".cluster.org"])
def test_torchruns_line_finds_each_hosts_number(
    advice: NcclAdvice, domain: str, called: Callable[[str], None], tmp_path: Path
) -> None:
    files = advice.files()
    (tmp_path / "hosts.txt").write_text(files["hosts.txt"])
    line = next(line for line in files["README.txt"].splitlines() if "--node-rank" in line).strip()
    expression = line.removeprefix("--node-rank ").removesuffix(" train.py")
    for number, name in enumerate(files["hosts.txt"].strip().split(",")):
        called(name + domain)
        done = subprocess.run(
            ["bash", "-c", f"echo {expression}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(number)


@pytest.mark.parametrize("domain", ["", ".cluster.org"])
def test_hosts_of_unlike_numbers_of_ranks_start_as_many_as_they_are_to_have(
    domain: str, called: Callable[[str], None], tmp_path: Path
) -> None:
    topology = hosts([100 * MB] * 3, gpus=2).topology
    files = advise_nccl(topology, 4, 64 * MB, placement=(1, 2, 1)).files()
    (tmp_path / "hostfile").write_text(files["hostfile"])
    assert "hemiola run --hosts" not in files["README.txt"]
    line = next(line for line in files["README.txt"].splitlines() if "--nproc-per-node" in line)
    expression = line.split("--nproc-per-node ")[1].split(" --master-addr")[0]
    for name, count in zip(topology.hosts.names, (1, 2, 1), strict=True):
        called(name + domain)
        done = subprocess.run(
            ["bash", "-c", f"echo {expression}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(count)


def test_the_xml_is_the_fitted_schedule(advice: NcclAdvice) -> None:
    back = parse_msccl(advice.xml).verify()
    wanted = advice.found.chosen.schedule.ordered()
    assert back == msgspec.structs.replace(wanted, weights=(), chunk_bytes=0, source=back.source)
    assert advice.equal.excess == 0.0 and advice.rounding_loss == 0.0 and advice.beyond == ()
    assert 'minBytes="16000000"' in advice.xml
    assert advice.found.chosen.seconds < advice.order.usual.seconds


def test_what_is_priced_is_what_the_xml_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot hold ranks back: of four hosts, one twice as fast, nothing else gains a tenth over the ring."""
    network = hosts([50 * MB, 50 * MB, 50 * MB, 100 * MB]).topology
    found = advise_nccl(network, 4, 64 * MB)
    assert found.xml == "" and found.equal_s == found.found.usual.seconds
    uneven = advise_nccl(hosts([30 * MB, 40 * MB, 50 * MB, 60 * MB]).topology, 4, 64 * MB)
    back = msgspec.structs.replace(parse_msccl(uneven.xml), chunk_bytes=uneven.equal.schedule.chunk_bytes)
    assert uneven.equal_s == pytest.approx(schedule_seconds(back, 64 * MB, uneven.place))
    write_topology(network, tmp_path / "network.toml")
    verb(str(tmp_path / "network.toml"), output=tmp_path / "s.xml")
    assert "paced stars" not in capsys.readouterr().out
    verb(str(tmp_path / "network.toml"), output=tmp_path / "s.json")
    assert read_schedule(tmp_path / "s.json").name == "paced stars"


def test_the_verb_writes_them(tmp_path: Path, advice: NcclAdvice, capsys: pytest.CaptureFixture[str]) -> None:
    network = tmp_path / "network.toml"
    write_topology(advice.place.topology, network)
    verb(str(network), nccl=tmp_path / "nccl", output=tmp_path / "own.json", size="64MB")
    shown = capsys.readouterr().out
    assert (
        "for 16 ranks of NCCL, order hosts so: " in shown
        and "tree/simple" in shown
        and "times as fast as the usual way" in shown
    )
    assert {path.name for path in (tmp_path / "nccl").iterdir()} == {*advice.files(), "strategy.json"}
    assert (tmp_path / "nccl" / "strategy.xml").read_text() == advice.xml
    assert read_schedule(tmp_path / "nccl" / "strategy.json") == advice.found.chosen.schedule
    own = read_schedule(tmp_path / "own.json").verify()
    verb(str(network), output=tmp_path / "own.xml")
    assert parse_msccl((tmp_path / "own.xml").read_text()).moves == own.ordered().moves


def test_files_are_written_whoever_reads(tmp_path: Path, unread: TextIO) -> None:
    with redirect_stdout(unread), pytest.raises(SystemExit):
        verb("flat:hosts=4,gpus_per_host=1,nic=1gbit", nccl=tmp_path / "nccl", output=tmp_path / "own.json")
    assert read_schedule(tmp_path / "own.json").ranks == 4
    assert (tmp_path / "nccl" / "README.txt").exists()


def test_a_ring_needs_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb("flat:hosts=4,gpus_per_host=1,nic=1gbit", nccl=tmp_path)
    assert "no faster than a ring" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.txt", "hosts.txt", "hostfile", "slurm-hostfile", "tuner.csv", "nccl.env",
    }  # fmt: skip
    assert "NCCL has the ring itself" in (tmp_path / "README.txt").read_text()
    assert not as_the_plugin_reads((tmp_path / "tuner.csv").read_text())


def test_an_earlier_schedule_goes_where_a_ring_is_as_good(tmp_path: Path, advice: NcclAdvice) -> None:
    """RCCL would take it: it looks at every file of a folder."""
    write_topology(advice.place.topology, tmp_path / "network.toml")
    verb(str(tmp_path / "network.toml"), nccl=tmp_path / "nccl")
    assert (tmp_path / "nccl" / "strategy.xml").exists()
    verb("flat:hosts=4,gpus_per_host=1,nic=1gbit", nccl=tmp_path / "nccl")
    assert not list((tmp_path / "nccl").glob("schedule.*"))


def test_the_verb_for_other_collectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb("flat:hosts=4,gpus_per_host=1,nic=1gbit", collective="broadcast", size="1MB", root=3, ranks=4)
    assert "broadcast of 1.00 MB among 4 ranks" in capsys.readouterr().out
    verb("flat:hosts=4,gpus_per_host=2,nic=1gbit", placement="1,2", collective="all-gather")
    assert "among 3 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("collective", "times"),
    [("all-gather", 4 / (15 / 16)), ("reduce", 15 / 8), ("all-reduce", 15 / 8), ("broadcast", 1)],
)
def test_the_verb_compares_with_what_the_group_does(
    collective: Kind, times: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 16 ranks on two hosts, direct exchange sends 8 times 8 / 16 of the data over a link, a ring 15 / 16 each way round."""
    verb("flat:hosts=2,gpus_per_host=8,nic=1gbit", collective=collective)
    found = re.search(r"(\S+) times as fast as the usual way", capsys.readouterr().out)
    assert float(found[1] if found else 1) == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"collective": "broadcast", "nccl": True}, "--nccl with --collective broadcast"),
        ({"root": 4, "collective": "broadcast"}, "--root 4 of 4 ranks"),
        ({"ranks": 5}, "5 ranks on"),
        ({"ranks": 1, "nccl": True}, "one rank"),
        ({"size": "64"}, "64"),
        *(
            ({"nccl": True, "output": name}, "would write the same file")
            for name in ("strategy.json", *NAMES)
        ),
    ],
)
def test_what_the_verb_refuses(options: dict[str, object], words: str, tmp_path: Path) -> None:
    if "output" in options:
        options = {"nccl": tmp_path, "output": tmp_path / str(options["output"])}
    elif "nccl" in options:
        options = {**options, "nccl": tmp_path / "nccl"}
    with pytest.raises(InputError, match=words):
        verb("flat:hosts=4,gpus_per_host=1,nic=1gbit", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("nccl", "ranks", "words"),
    [("none/nccl", 0, "there is no folder"), ("file", 0, "file is a file"), ("nccl", 1, "one rank"), ("own.json", 0, "same file")],
)  # fmt: skip
def test_nothing_is_written_where_the_folder_for_nccl_cannot_be(
    nccl: str, ranks: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=words):
        verb(
            "flat:hosts=4,gpus_per_host=1,nic=1gbit",
            ranks=ranks,
            nccl=tmp_path / nccl,
            output=tmp_path / "own.json",
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_hundreds_of_hosts_are_done() -> None:
    rates = np.full(512, 100 * MB)
    rates[7] = 50 * MB
    place = hosts(rates.tolist(), [host % 16 for host in range(512)], [3200 * MB] * 16)
    found = nccl_order(place, 64 * MB)
    assert sorted(found.order) == list(range(512)) and found.best.seconds <= min(
        best.seconds for _, best in found.others.values()
    )
