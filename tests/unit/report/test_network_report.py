"""Topologies and schedules as people see them: grouping, findings, pictures, figures, and the verb that shows them."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import TextIO
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Elements
from rich.console import Console

from hemiola.cli.trace import inspect
from hemiola.core.collective.schedule import CollectiveSchedule
from hemiola.core.collective.shapes import all_pairs, binomial, chain, halving_doubling, ring, trees
from hemiola.core.errors import InputError, ScheduleError
from hemiola.core.topology import Level, MeasuredLink, Topology
from hemiola.core.units import parse_rate
from hemiola.report.network.figures import NetworkFigures, network_figures
from hemiola.report.network.inspection import (
    NETWORK_SCHEMA,
    SCHEDULE_FIGURES_SCHEMA,
    network_as_json,
    recognise,
    schedule_as_json,
)
from hemiola.report.network.page import render_network
from hemiola.report.network.picture import WIDEST, TreeNode, columns, fitting_tree, leaves, network_picture
from hemiola.report.network.schedule_page import (
    ScheduleTable,
    render_schedule,
    schedule_figures,
    shape,
    trees_of,
)
from hemiola.report.network.words import NetworkTable, finding, interval, rate_words, reasons
from hemiola.trace.msccl import write_msccl
from hemiola.trace.struct_json import write_schedule
from hemiola.trace.topologies import read_topology, write_topology

MBIT = 1e6 / 8
EVIL = "</svg><script>alert(1)</script>"


def measured(
    out: list[float],
    into: list[float] | None = None,
    *,
    racks: list[int] | None = None,
    uplinks: tuple[float, ...] = (),
    wide: float = 0.02,
    name: str = "lab",
) -> Topology:
    """Hosts h0, h1, ... of these Mbit/s, each with an interval of `wide` to both sides."""

    def link(title: str, mbit: float) -> MeasuredLink:
        return MeasuredLink(title, mbit * MBIT, mbit * MBIT * (1 - wide), mbit * MBIT * (1 + wide))

    into = into or out
    flat = Topology.flat(hosts=len(out), gpus_per_host=1)
    names = tuple(f"h{i}" for i in range(len(out)))
    nic = np.minimum(out, into) * MBIT
    links = [link(f"{host} out", rate) for host, rate in zip(names, out, strict=True)]
    links += [link(f"{host} in", rate) for host, rate in zip(names, into, strict=True)]
    links += [link(f"rack {number} uplink", rate) for number, rate in enumerate(uplinks)]
    levels: tuple[Level, ...] = ()
    if racks:
        rates = [*uplinks, *[math.inf] * (max(racks) + 1 - len(uplinks))]
        titles = tuple(map(str, range(len(rates))))
        levels = (Level("rack", titles, np.array(racks), np.array(rates) * MBIT),)
    hosts = replace(flat.hosts, names=names, nic_bytes_per_s=nic, nic_latency_s=np.full(len(out), 1e-4))
    return Topology(name, hosts, levels, "measured by hand", tuple(links)).check()


def told(renderable: object, width: int = 110) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def groups(topology: Topology) -> list[tuple[int, ...]]:
    return [group.hosts for group in network_figures(topology).groups]


def spec(**options: object) -> Topology:
    return read_topology("leaf-spine:" + ",".join(f"{key}={value}" for key, value in options.items()))


def test_hosts_stand_together_where_one_rate_lies_within_all_their_intervals() -> None:
    assert groups(measured([381, 375, 386, 95])) == [(3,), (0, 1, 2)]
    assert groups(measured([100, 105, 110, 115, 120])) == [(0,), (1, 2), (3, 4)]  # no chain of neighbours
    assert groups(measured([100, 100, 100], [100, 50, 100])) == [(1,), (0, 2)]
    assert groups(measured([100, 103], wide=0.001)) == [(0, 1)]  # intervals are taken at least 3 % wide
    assert groups(measured([100, 107], wide=0.001)) == [(0,), (1,)]


def test_without_intervals_rates_and_latencies_have_to_be_equal() -> None:
    flat = Topology.flat(hosts=3, gpus_per_host=8)
    nic = np.array([100.0, 101.0, 100.0])
    assert groups(replace(flat, hosts=replace(flat.hosts, nic_bytes_per_s=nic))) == [(0, 2), (1,)]
    latency = np.array([5e-6, 5e-6, 6e-6])
    assert groups(replace(flat, hosts=replace(flat.hosts, nic_latency_s=latency))) == [(0, 1), (2,)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(50, 150), min_size=1, max_size=20), st.floats(0.001, 0.1))
def test_groups_divide_the_hosts_and_share_a_rate(rates: list[float], wide: float) -> None:
    figures = network_figures(measured(rates, wide=wide))
    assert sorted(host for group in figures.groups for host in group.hosts) == list(range(len(rates)))
    for group in figures.groups:
        reaches = [figures.out[host].reach for host in group.hosts]
        assert max(low for low, _ in reaches) <= min(high for _, high in reaches)
        assert group.out.low <= group.out.bytes_per_s <= group.out.high


def test_the_slowest_host_is_named_with_its_direction() -> None:
    assert finding(network_figures(measured([380, 380, 380, 95]))) == (
        "h3 is the slowest: 95 Mbit/s (93.1–96.9), 25 % of the median host's 380 Mbit/s."
    )
    figures = network_figures(measured([380] * 4, [380, 380, 95, 380]))
    assert finding(figures).startswith("h2 is the slowest: in 95 Mbit/s (93.1–96.9), 25 %")
    assert (figures.slowest.name, figures.slowest.rate.bytes_per_s) == ("h2 in", 95 * MBIT)
    assert figures.groups[0].is_apart
    assert not figures.groups[1].is_apart


def test_narrow_uplinks_are_what_limits() -> None:
    figures = network_figures(measured([950] * 9, racks=[0] * 4 + [1] * 4 + [2], uplinks=(1000, 400)))
    assert finding(figures) == (
        "The uplink of rack 1 is narrow: 400 Mbit/s (392–408) for 4 hosts that could send 3.8 Gbit/s (oversubscription 9.5)."
    )
    assert figures.slowest.name == "rack 1 uplink"
    assert figures.slowest.each_bytes_per_s == pytest.approx(100 * MBIT)
    assert [one.oversubscription for one in figures.domains[0]] == pytest.approx([9.5, 3.8, 0])
    both = network_figures(measured([950] * 7 + [95], racks=[0] * 4 + [1] * 4, uplinks=(1000, 1000)))
    assert finding(both).startswith("h7 is the slowest")  # 10 %, where an uplink leaves a host 26 %
    assert reasons(both)[0].startswith("The uplinks of racks 0,1 are narrow: 1 Gbit/s (0.98–1.02) each for 4")


def test_what_is_wide_enough_is_not_called_slow() -> None:
    even = network_figures(spec(hosts=64, gpus_per_host=8, hosts_per_rack=8, nic="100gbit"))
    assert (
        finding(even)
        == "All 64 hosts are alike: 100 Gbit/s, and no uplink is narrower than the hosts below it."
    )
    assert not reasons(even)
    near = network_figures(measured([100, 100, 90]))
    assert finding(near) == "The slowest link is h2, 90 Mbit/s (88.2–91.8): 90 % of the median host."


def test_intervals_take_the_unit_of_their_rate() -> None:
    rate = network_figures(measured([1000])).out[0]
    assert interval(rate) == "(0.98–1.02)"
    assert rate_words(rate) == "1 Gbit/s (0.98–1.02)"
    assert interval(network_figures(Topology.flat(hosts=1, gpus_per_host=1)).out[0]) == ""


def test_the_terminal_shows_groups_uplinks_and_source() -> None:
    out = told(NetworkTable(network_figures(measured([381, 379, 380, 95]))))
    assert re.search(r"h3 +1 +95 Mbit/s \(93.1–96.9\) +100.00 µs", out)
    assert re.search(r"h\[0-2\] +3 +380 Mbit/s \(371–389\)", out)
    assert "Source: measured by hand" in out
    apart = told(NetworkTable(network_figures(measured([380] * 3, [380, 95, 380]))))
    assert re.search(r"hosts +out +in ", apart)
    assert re.search(r"h1 +1 +380 Mbit/s \(372–388\) +95 Mbit/s", apart)


def test_a_large_network_stays_short() -> None:
    racks = [host // 8 for host in range(1024)]
    rates = [100_000.0 + host % 5 * 100 if host != 137 else 10_000.0 for host in range(1024)]
    figures = network_figures(measured(rates, racks=racks, uplinks=(200_000.0,) * 128))
    assert len(told(NetworkTable(figures)).splitlines()) < 25
    root = fitting_tree(figures)
    assert [(node.title, node.count) for node in leaves(root)] == [
        ("h137", 1), ("h[136,138-143]", 7), ("h[0-135,144-1023]", 8)
    ]  # fmt: skip


def test_many_unlike_hosts_are_cut_and_that_is_told() -> None:
    figures = network_figures(measured([float(100 * 1.2**n) for n in range(20)]))
    out = told(NetworkTable(figures))
    assert "Hosts, slowest first (12 of 20 lines)" in out
    assert "h12" not in out.split("Source")[0].split("slowest first")[1]


@pytest.mark.parametrize(
    "topology",
    [
        measured([380] * 4),
        measured([950] * 9, racks=[0] * 4 + [1] * 4 + [2], uplinks=(1000, 400)),
        spec(hosts=64, gpus_per_host=8, hosts_per_rack=8, nic="100gbit"),
        spec(hosts=1024, gpus_per_host=8, hosts_per_rack=16, nic="100gbit", racks_per_pod=8),
        measured([float(100 * 1.1**n) for n in range(40)]),
        measured([float(100 * 1.01**n) for n in range(300)], racks=[n // 4 for n in range(300)], uplinks=(1000.0,) * 75),
    ],
    ids=["four", "racks", "64", "1024", "unlike", "unlike racks"],
)  # fmt: skip
def test_every_host_is_below_one_leaf_and_the_picture_stays_small(topology: Topology) -> None:
    root = fitting_tree(network_figures(topology))
    assert sum(node.all for node in leaves(root) if not node.tier) + sum(
        node.all * node.hosts // (node.count if node.kinds else 1) for node in leaves(root) if node.tier
    ) == len(topology.hosts)
    assert columns(root) <= 8 or len(list(leaves(root))) <= 16
    assert len(network_picture(network_figures(topology))) < 60_000


def test_small_clusters_show_every_host() -> None:
    for topology in (measured([380] * 4), spec(hosts=64, gpus_per_host=8, hosts_per_rack=8, nic="100gbit")):
        shown = [node.title for node in leaves(fitting_tree(network_figures(topology)))]
        assert shown == list(topology.hosts.names)


def test_a_widest_level_of_one_domain_is_the_core() -> None:
    root = fitting_tree(network_figures(measured([100, 100], racks=[0, 0], uplinks=(100,))))
    assert (root.title, [child.title for child in root.children]) == ("rack 0", ["h0", "h1"])


def lines(figures: NetworkFigures) -> list[tuple[str, float]]:
    """(colour, width) of every link that is drawn."""
    svg = re.search(r"<svg.*</svg>", network_picture(figures), re.S)
    assert svg is not None
    found = ElementTree.fromstring(svg[0]).iter("line")
    drawn = [(line.get("stroke", ""), float(line.get("stroke-width", ""))) for line in found]
    return [(color[6:-1], width) for color, width in drawn if color != "var(--soft)"]


def test_widths_follow_rates_and_colours_say_what_is_wrong() -> None:
    figures = network_figures(measured([400, 400, 400, 100]))
    assert lines(figures) == [("communication", WIDEST)] * 3 + [("wire", WIDEST / 2)]
    racks = network_figures(measured([950] * 8, racks=[0] * 4 + [1] * 4, uplinks=(1000, 1000)))
    assert Counter(color for color, _ in lines(racks)) == {"others": 2, "communication": 8}
    apart = network_figures(measured([400] * 3, [400, 100, 400]))
    assert Counter(lines(apart)) == {("communication", WIDEST): 3, ("wire", WIDEST / 2): 1}


def test_a_link_without_limit_is_no_width() -> None:
    flat = Topology.flat(hosts=2, gpus_per_host=1, nic_bytes_per_s=math.inf)
    figures = network_figures(flat)
    assert not lines(figures)
    assert "unlimited" in network_picture(figures)
    assert finding(figures) == "All 2 hosts are alike: unlimited."
    assert network_as_json(figures)["median_bytes_per_s"] is None


def test_links_without_limit_make_no_other_slow() -> None:
    alone = network_figures(measured([950] * 7, racks=[0, 0, 1, 1, 2, 3, 4], uplinks=(1000, 1000)))
    assert alone.median_uplink(0) == 1000 * MBIT
    assert Counter(color for color, _ in lines(alone)) == {"others": 2, "communication": 7}
    assert reasons(alone) == []
    flat = Topology.flat(hosts=3, gpus_per_host=1)
    nic = np.array([math.inf, math.inf, 1e9])
    odd = network_figures(replace(flat, hosts=replace(flat.hosts, nic_bytes_per_s=nic)))
    assert finding(odd) == "The slowest link is n2, 8 Gbit/s: 100 % of the median host."


def whole(page: str) -> None:
    elements = Elements()
    elements.feed(page.replace("<!doctype html>", ""))
    assert not elements.open
    assert "script" not in elements.seen
    assert "://" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)


def test_pages_are_whole_and_names_stay_text() -> None:
    topology = measured([400, 400, 100], racks=[0, 0, 1], uplinks=(400, 400), name=EVIL)
    hosts = replace(topology.hosts, names=(EVIL, "a b", "n[1]"))
    page = render_network(network_figures(replace(topology, hosts=hosts, source=EVIL)))
    whole(page)
    assert "a b" in page
    whole(render_schedule(schedule_figures(msgspec.structs.replace(all_pairs(4), name=EVIL, source=EVIL))))


def test_the_topology_page_has_picture_table_and_titles() -> None:
    page = render_network(network_figures(measured([400, 400, 400, 100])), "My lab")
    assert "<h1>My lab</h1>" in page
    assert "<title>h3; 100 Mbit/s (98–102); 25 % of the median host</title>" in page
    assert "<th>h[0-2]</th><td>3</td><td>400 Mbit/s (392–408)</td>" in page
    assert "measured by hand" in page


def test_a_ring_sends_what_it_has_to() -> None:
    figures = schedule_figures(ring([0, 2, 1, 3]))
    assert figures.problem is None
    assert figures.hops == 6
    assert figures.between == pytest.approx({(0, 2): 1.5, (2, 1): 1.5, (1, 3): 1.5, (3, 0): 1.5})
    assert [(group.ranks, group.sends, group.to) for group in figures.groups] == [((0, 1, 2, 3), 1.5, 1)]
    assert not figures.trees


def test_weights_count_in_what_is_sent() -> None:
    parents = ([-1, 0, 1], [1, -1, 1])
    figures = schedule_figures(trees(parents, (0.75, 0.25)))
    assert figures.between == pytest.approx({(0, 1): 1.0, (1, 0): 1.0, (1, 2): 1.0, (2, 1): 1.0})
    assert [(tree.parents, tree.share) for tree in figures.trees] == [((-1, 0, 1), 0.75), ((1, -1, 1), 0.25)]
    assert figures.busiest == 2.0


def test_trees_are_found_where_there_are_some() -> None:
    assert trees_of(trees([binomial(8)], (), "broadcast"))[0].parents == tuple(binomial(8))
    assert trees_of(trees([chain([2, 0, 1])], (), "reduce"))[0].parents == (2, 0, -1)
    assert [tree.root for tree in trees_of(all_pairs(4))] == [0, 1, 2, 3]
    assert len(trees_of(halving_doubling(8))) == 8
    same = trees_of(trees([binomial(4), chain(range(4)), binomial(4)]))
    assert [(tree.share, tree.chunks) for tree in same] == [
        (pytest.approx(2 / 3), (0, 2)),
        (pytest.approx(1 / 3), (1,)),
    ]
    for none in (ring(range(4)), all_pairs(4, "all-to-all"), ring(range(4), "all-gather"), trees([[-1]])):
        assert trees_of(none) == ()


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 9), st.integers(1, 3))
def test_trees_come_back(data: st.DataObject, ranks: int, count: int) -> None:
    parents = [[-1, *(data.draw(st.integers(0, rank - 1)) for rank in range(1, ranks))] for _ in range(count)]
    figures = schedule_figures(trees(parents))
    assert {tree.parents for tree in figures.trees} == set(map(tuple, parents))
    assert sum(tree.share for tree in figures.trees) == pytest.approx(1)
    traffic = figures.schedule.traffic()
    assert figures.between == pytest.approx({pair: n / count for pair, n in traffic.chunks_between.items()})
    for tree in figures.trees:
        places = list(zip(shape(tree).across, shape(tree).deep, strict=True))
        assert len(set(places)) == ranks  # no two ranks at one place
        assert all(
            shape(tree).deep[r] == shape(tree).deep[p] + 1 for r, p in enumerate(tree.parents) if p >= 0
        )


def test_the_page_draws_trees_or_a_matrix() -> None:
    page = render_schedule(schedule_figures(trees([[-1, 0, 1], [1, -1, 1]], (0.75, 0.25))))
    assert re.findall(r"<h2>(Tree[^<]*)", page) == ["Tree 1: 75 % of the data", "Tree 2: 25 % of the data"]
    assert page.count("<circle") == 6
    around = render_schedule(schedule_figures(ring(range(4))))
    assert "<circle" not in around
    assert re.findall(r"<title>(rank [^<]*)", around) == [
        f"rank {rank} to rank {(rank + 1) % 4}: 1.5 × the data" for rank in range(4)
    ]
    whole(around)


def test_a_matrix_of_many_ranks_puts_neighbours_together() -> None:
    page = render_schedule(schedule_figures(ring(range(100))))
    assert "Neighbouring ranks share a row and a column" in page
    assert "<title>ranks 98 to 99 to ranks 0 to 1: 1.98 × the data</title>" in page
    assert page.count("<title>ranks") == 100  # within each pair, and to the next


def wrong() -> CollectiveSchedule:
    right = ring(range(4))
    return msgspec.structs.replace(right, moves=right.moves[:3] + right.moves[4:])


def test_what_is_not_right_is_said() -> None:
    figures = schedule_figures(wrong())
    assert "Not right" in told(ScheduleTable(figures))
    assert "look for a move that is missing" in render_schedule(figures)
    whole(render_schedule(figures))
    found = schedule_as_json(figures)
    assert "input 2 of rank 0" in found["problem"]
    assert "hops" not in found


def test_figures_as_json() -> None:
    found = json.loads(
        msgspec.json.encode(
            network_as_json(network_figures(measured([400, 100], racks=[0, 1], uplinks=(400,))))
        )
    )
    assert found["schema"] == NETWORK_SCHEMA
    assert found["slowest"] == {
        "link": "h1", "bytes_per_s": 100 * MBIT, "low": 98 * MBIT, "high": 102 * MBIT, "hosts": 1
    }  # fmt: skip
    assert [group["hosts"] for group in found["groups"]] == [["h1"], ["h0"]]
    assert [one["uplink"]["bytes_per_s"] for one in found["levels"][0]["domains"]] == [400 * MBIT, None]
    sent = json.loads(msgspec.json.encode(schedule_as_json(schedule_figures(all_pairs(3)))))
    assert (sent["schema"], sent["hops"], sent["problem"]) == (SCHEDULE_FIGURES_SCHEMA, 2, None)
    assert {"from": 0, "to": 1, "share": pytest.approx(2 / 3)} in sent["between"]
    assert [tree["root"] for tree in sent["trees"]] == [0, 1, 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_topology(measured([400, 400, 400, 100]), tmp_path / "lab.toml")
    write_schedule(all_pairs(4), tmp_path / "pairs.json")
    write_msccl(ring(range(4)), tmp_path / "ring.xml")
    return tmp_path


def test_files_are_recognised_by_content(folder: Path) -> None:
    kinds = {
        name: recognise(folder / name) for name in ("lab.toml", "pairs.json", "ring.xml", "absent.json", "")
    }
    assert list(kinds.values()) == ["topology", "schedule", "schedule", "", ""]
    for name in ("lab.toml", "pairs.json", "ring.xml"):
        (folder / "other.name").write_bytes((folder / name).read_bytes())
        assert recognise(folder / "other.name") == kinds[name]
    content = json.loads((folder / "pairs.json").read_text())
    schema = content.pop("schema")
    (folder / "last.json").write_text(json.dumps({**content, "schema": schema}))
    assert recognise(folder / "last.json") == "schedule"
    texts = {
        "a": "<?xml version='1.0'?>\n<!-- of MSCCL -->\n<algo name='x'/>", "b": "<html/>", "c": '{"schema": "hemiola.plan/1"}',
        "d": '{"traceEvents": [{"ph": "X", "name": "hemiola.strategy/1"}]}', "e": "# [[hosts]]", "f": '{"moves": [', "g": "",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    assert [recognise(folder / name) for name in texts] == ["schedule", "", "", "", "", "", ""]


def test_a_folder_that_is_named_as_a_generator_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert recognise(Path("flat")) == "topology"
    Path("flat").mkdir()
    assert recognise(Path("flat")) == ""


def test_a_topologys_path_need_not_be_text(folder: Path) -> None:
    path = folder / os.fsdecode(b"lab\xff.toml")
    (folder / "lab.toml").rename(path)
    inspect(path, json=folder / "out.json", report=folder / "page.html", title=path.name)
    assert "lab\ufffd.toml" in json.loads((folder / "out.json").read_text())["source"]
    assert "<h1>lab?.toml</h1>" in (folder / "page.html").read_text()


def test_the_verb_shows_topologies_and_schedules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {name: folder / f"out.{name}" for name in ("report", "json")}
    inspect(folder / "lab.toml", title="Ours", **asked)
    captured = capsys.readouterr()
    assert "h3 is the slowest" in captured.out
    assert f"wrote {folder / 'out.json'}" in "".join(captured.err.splitlines())
    assert "<h1>Ours</h1>" in asked["report"].read_text()
    assert json.loads(asked["json"].read_text())["schema"] == NETWORK_SCHEMA
    for name, hops in (("pairs.json", 2), ("ring.xml", 6)):
        inspect(folder / name, **asked)
        assert f"The longest way is {hops} hops" in capsys.readouterr().out
        assert json.loads(asked["json"].read_text())["hops"] == hops
        assert "Who sends how much to whom" in asked["report"].read_text()


@pytest.mark.parametrize("name", ["lab.toml", "pairs.json"])
def test_files_are_written_whoever_reads(folder: Path, name: str, unread: TextIO) -> None:
    with redirect_stdout(unread), pytest.raises(SystemExit):
        inspect(folder / name, report=folder / "page.html", json=folder / "out.json")
    assert (folder / "page.html").exists() and (folder / "out.json").exists()


def test_the_verb_takes_a_generators_line(capsys: pytest.CaptureFixture[str]) -> None:
    inspect(Path("flat:hosts=3,gpus_per_host=8,nic=100gbit"))
    assert "All 3 hosts are alike: 100 Gbit/s." in capsys.readouterr().out


def test_a_schedule_that_is_not_right_is_shown_and_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_schedule(wrong(), folder / "wrong.json")
    with pytest.raises(ScheduleError, match="input 2 of rank 0"):
        inspect(folder / "wrong.json", report=folder / "page.html")
    assert "Not right" in capsys.readouterr().out
    assert "Not right" in (folder / "page.html").read_text()


def test_what_is_no_job_stands_alone(folder: Path) -> None:
    lab, pairs = folder / "lab.toml", folder / "pairs.json"
    with pytest.raises(InputError, match=r"lab\.toml' is a topology, and does not go with other files"):
        inspect(lab, pairs)
    with pytest.raises(InputError, match=r"pairs\.json' is a schedule, and does not go with --against"):
        inspect(pairs, against=(lab,))
    with pytest.raises(InputError, match=r"lab\.toml' is a topology, and does not go with --against"):
        inspect(folder / "job.json", against=(lab,))
    with pytest.raises(InputError, match="does not go with --perfetto"):
        inspect(lab, perfetto=folder / "p.json")
    with pytest.raises(InputError, match="does not go with --salvage"):
        inspect(lab, salvage=True)
    (folder / "bad.toml").write_text('[[hosts]]\nnames = "n[0-1]"\n')
    with pytest.raises(InputError, match=r"bad\.toml: \[\[hosts\]\] 1 does not say gpus"):
        inspect(folder / "bad.toml")


def test_a_path_with_a_comma_is_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_topology(measured([100, 100]), tmp_path / "a,nic=1.toml")
    inspect(tmp_path / "a,nic=1.toml")
    assert "All 2 hosts are alike" in capsys.readouterr().out


def test_the_verb_imports_nothing_heavy_before_it_runs() -> None:
    code = "import sys, hemiola.cli.trace; print([m for m in sys.modules if m.startswith(('hemiola.report', 'numpy', 'rich.table'))])"
    assert (
        run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_rates_that_are_written_come_back(folder: Path) -> None:
    figures = network_figures(read_topology(str(folder / "lab.toml")))
    assert figures.out[3].bytes_per_s == parse_rate("100mbit")
    assert figures.is_measured


def test_what_is_together_as_others_is_counted_above_them() -> None:
    racks = [rack for rack in range(11) for _ in range(rack + 1)] + [11]
    pods = np.array([0] * 66 + [1])
    flat = Topology.flat(hosts=67, gpus_per_host=1, nic_bytes_per_s=100.0)
    rack = Level("rack", tuple(map(str, range(12))), np.array(racks), np.full(12, 400.0))
    topology = replace(flat, levels=(rack, Level("pod", ("a", "b"), pods, np.array([1650.0, 400.0])))).check()
    figures = network_figures(topology)
    pod = next(node for node in fitting_tree(figures).children if len(node.children) > 1)
    assert (pod.hosts, pod.sent_bytes_per_s, pod.out.bytes_per_s) == (66, 6600.0, 1650.0)
    assert [(node.title, node.count, node.hosts) for node in pod.children if node.kinds] == [
        ("4 others", 4, 10)
    ]
    assert "66 hosts, 4:1" in network_picture(figures)


def test_nodes_of_a_tree_say_how_many_they_stand_for() -> None:
    def count(node: TreeNode) -> int:
        return node.count * (sum(map(count, node.children)) if node.children else 1)

    figures = network_figures(
        spec(hosts=1024, gpus_per_host=8, hosts_per_rack=16, nic="100gbit", racks_per_pod=8)
    )
    assert count(fitting_tree(figures)) == 1024
