"""A running job over HTTP and by signal: metrics, health, traces on demand."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from record_jobs import TRACE, ranks, start

from hemiola.profiler.trace.parts import read_parts
from hemiola.trace.jobs.timeline_json import read_timeline

SAMPLE = re.compile(r'^([a-z_]+)\{((?:[a-z]+="[^"]*",?)+)\} (\S+)$')


@dataclass(frozen=True)
class Live:
    folder: Path
    addresses: dict[int, str]

    def get(self, path: str, rank: int = 0, method: str = "GET") -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://{self.addresses[rank]}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=patience(30)) as answer:
                return answer.status, answer.read().decode(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers["Content-Type"]


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + patience(timeout_s)
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


def _addresses(parts: Path) -> dict[int, str]:
    """Of both ranks: a part begins before its rank serves, and names the address from its next head on."""
    found = (
        {part.head.rank: part.head.listen for part in read_parts(parts)} if list(parts.glob("rank*")) else {}
    )
    return found if len(found) == 2 and all(found.values()) else {}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    job = [*ranks(folder), "--iterations", "100000", "--until", str(folder / "stop"), "--slow-rank", "1"]
    command = [*TRACE, "-o", str(folder / "run.json"), "--listen", "0", "--keep", "50", "--", *job]
    process = start(command, HEMIOLA_RECORD_ITERATIONS="3")
    parts = folder / "run.json.parts"
    yield Live(folder, until(lambda: _addresses(parts)))
    (folder / "stop").touch()
    _, said = process.communicate(timeout=patience(60))
    assert process.returncode == 0, said


def samples(text: str) -> dict[tuple[str, str], float]:
    """Prometheus' text format, strictly: every sample has been announced by HELP and TYPE."""
    announced: dict[str, set[str]] = {}
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, _ = line.split(" ", 3)
            announced.setdefault(name, set()).add(word)
            continue
        match = SAMPLE.match(line)
        assert match, line
        name, labels, value = match.groups()
        family = re.sub("_(bucket|sum|count)$", "", name)
        assert announced[family if family in announced else name] == {"HELP", "TYPE"}
        first, second, *more = labels.split(",")
        assert first.startswith('rank="')
        assert second.startswith('host="')
        found[name, "".join(more)] = float(value)
    return found


def test_metrics_are_served_as_prometheus_reads_them(live: Live) -> None:
    until(
        lambda: (
            "straggler_index{" in live.get("/metrics")[1] and "straggler_index{" in live.get("/metrics", 1)[1]
        )
    )
    slow = samples(live.get("/metrics", 1)[1])
    status, text, kind = live.get("/metrics")
    found = samples(text)
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    count = found["hemiola_iteration_seconds_count", ""]
    assert count == found["hemiola_iterations_total", ""] > 0
    assert found["hemiola_iteration_seconds_bucket", 'le="+Inf"'] == count
    assert found["hemiola_communicated_bytes_total", 'collective="all-reduce"'] > 0
    assert (
        0
        < found["hemiola_exposed_communication_seconds_total", ""]
        <= found["hemiola_iteration_seconds_sum", ""]
    )
    assert found["hemiola_recording", ""] == 1
    assert slow["hemiola_straggler_index", ""] > 1 > found["hemiola_straggler_index", ""]


def test_health_and_what_is_not_there(live: Live) -> None:
    status, text, _ = live.get("/healthz")
    assert status == 200
    assert json.loads(text)["recording"] is True
    assert live.get("/nothing")[0] == 404
    assert live.get("/trace")[0] == 405
    assert live.get("/trace?iterations=0", method="POST")[0] == 400
    assert live.get("/trace?iterations=many", method="POST")[0] == 400


def test_a_trace_asked_for_over_http_comes_from_all_ranks(live: Live) -> None:
    status, text, _ = live.get("/trace?iterations=4", rank=1, method="POST")
    answer = json.loads(text)
    assert status == 202
    path = Path(answer["path"])
    until(path.exists)
    timeline = read_timeline(path)
    expected = list(range(answer["first_iteration"], answer["first_iteration"] + 4))
    for rank in (0, 1):
        assert timeline.iterations.number[timeline.iterations.rank == rank].tolist() == expected
    assert any(lane.startswith("operations") for lane in timeline.lanes)
    assert "partial" not in timeline.facts
    assert "profiler_fraction" in timeline.facts["cost"]


def test_a_signal_asks_for_a_trace_too(live: Live) -> None:
    before = set(live.folder.glob("run-demand-*.json"))
    os.kill(int((live.folder / "pid0").read_text()), signal.SIGUSR2)
    path = until(lambda: set(live.folder.glob("run-demand-*.json")) - before).pop()
    timeline = read_timeline(path)
    assert len(set(timeline.iterations.number)) == 3
    assert len(timeline.ranks) == 2


def test_a_signal_to_a_rank_that_is_still_starting_is_answered_once_it_trains(tmp_path: Path) -> None:
    job = [*ranks(tmp_path), "--iterations", "100000", "--until", str(tmp_path / "stop"), "--signal-at-start"]
    process = start([*TRACE, "-o", str(tmp_path / "run.json"), "--", *job], HEMIOLA_RECORD_ITERATIONS="3")
    try:
        path = until(lambda: list(tmp_path.glob("run-demand-*.json"))).pop()
    finally:
        (tmp_path / "stop").touch()
        _, said = process.communicate(timeout=patience(60))
    assert process.returncode == 0, said
    assert len(read_timeline(path).ranks) == 2
