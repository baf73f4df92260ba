"""Ranks are killed, stopped and joined, in real processes: who is left trains on every entry once, and has the same parameters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from member import ENTRIES, MOMENTUM
from patience import patience
from ranks import SOURCE, Rank
from repository import HELPERS

from hemiola.train.elastic import Cursor, Deck
from hemiola.train.elastic.board import MemberBoard, reached

LIMIT_S = 60
pytestmark = pytest.mark.slow


class Job:
    """Members as processes; the test itself keeps their store unless one of them does."""

    def __init__(self, ranks: int, what: dict[str, Any], kept: bool) -> None:
        self.ranks, self.kept = ranks, kept
        self.what = {**what, "membership": {"silence_s": 1.5, **what.get("membership", {})}}
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if kept else None
        self.port = self.store.port if self.store is not None else free_port()
        self.processes = [self.start(rank) for rank in range(ranks)]

    def start(self, rank: int | None = None) -> Rank:
        membership = self.what["membership"] | ({} if rank is not None else {"join": True})
        own = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
        environment = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.kept), **own,
        }  # fmt: skip
        what = json.dumps(self.what | {"membership": membership})
        return Rank(HELPERS / "member.py", what, **environment)

    def result(self, rank: int) -> dict[str, Any]:
        """What the member says at its good end."""
        output, problem = self.processes[rank].communicate(timeout=patience(LIMIT_S))
        assert self.processes[rank].returncode == 0, problem[-3000:]
        said: dict[str, Any] = json.loads(output)
        return said

    def problem(self, rank: int) -> str:
        """How the member ends badly."""
        _, problem = self.processes[rank].communicate(timeout=patience(LIMIT_S))
        assert self.processes[rank].returncode == 1, problem[-3000:]
        return problem

    def stopped(self, rank: int) -> None:
        """Wait until it has stopped itself."""
        until_s = time.monotonic() + patience(LIMIT_S)
        stat = Path(f"/proc/{self.processes[rank].pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until_s
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def job(ranks: int, *, kept: bool = True, **what: Any) -> Iterator[Job]:
    started = Job(ranks, what, kept)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.communicate()


def expected(history: list[tuple[int, list[int], int]]) -> list[float]:
    """The parameters after a training by these members, from these commits on, step by step."""
    deck = Deck(ENTRIES, 1, seed=3)
    order = deck.order(0)
    cursor = Cursor(deck, tuple(history[0][1]))
    weights, velocity, step = np.zeros(ENTRIES), np.zeros(ENTRIES), 0
    while cursor.global_batch:
        for epoch, members, commits in history:
            if commits == step:
                cursor = cursor.regrouped(members, epoch)
        gradient = np.zeros(ENTRIES)
        gradient[order[cursor.position : cursor.position + cursor.global_batch]] = -1
        velocity = MOMENTUM * velocity + gradient
        weights -= velocity
        cursor, step = cursor.after(), step + 1
    return weights.tolist()


def check(results: list[dict[str, Any]], members: list[list[int]]) -> None:
    """All have the same, and it is what the members of each epoch have made of the entries."""
    history = results[0]["history"]
    assert [each for _, each, _ in history] == members
    assert [said["rank"] for said in results] == list(range(len(members[-1])))
    for said in results:
        assert said["history"][-1] == history[-1]
        assert said["weights"] == expected(history)
        assert said["ballast"] == 0.0


def test_ranks_killed_in_a_collective_and_while_the_others_decide() -> None:
    with job(4, die={"0": [2, "kill"], "2": [2, "deciding"]}) as started:
        results = [started.result(rank) for rank in (1, 3)]
    assert results[0]["history"][0] == [0, [0, 1, 2, 3], 0]
    check(results, [[0, 1, 2, 3], [1, 3]])


def test_a_rank_that_was_stopped_finds_that_the_others_went_on() -> None:
    with job(3, die={"1": [3, "stop"]}) as started:
        started.stopped(1)
        check([started.result(rank) for rank in (0, 2)], [[0, 1, 2], [0, 2]])
        started.processes[1].send_signal(signal.SIGCONT)
        assert (
            "member 1 is none any more from epoch 1 on: nothing was heard of it for 1.5 s"
            in started.problem(1)
        )


def test_a_process_joins_at_a_commit_and_another_is_lost_later() -> None:
    with job(2, join_at=2, die={"0": [6, "kill"]}) as started:
        started.processes.append(started.start())
        results = [started.result(rank) for rank in (1, 2)]
    check(results, [[0, 1], [0, 1, 2], [1, 2]])
    assert 1 <= results[0]["history"][1][2] <= 2
    assert results[1]["history"] == results[0]["history"][1:]


def test_who_never_got_the_state_does_not_go_on_alone() -> None:
    with job(1, join_at=2, die={"0": [0, "bringing"]}) as started:
        started.processes.append(started.start())
        assert "nobody is left who has the state" in started.problem(1)


def test_the_end_of_a_rank_is_the_end_of_all_if_so_told() -> None:
    with job(3, kept=False, membership={"on_loss": "fail"}, die={"1": [1, "raise"]}) as started:
        assert "ValueError: a batch without labels" in started.problem(1)
        for rank in (0, 2):
            said = started.problem(rank)
            assert (
                "member 1 was lost: it ended with ValueError: a batch without labels; all end, as on_loss"
                in said
            )


def test_all_end_with_the_store() -> None:
    with job(2, kept=False, die={"0": [1, "kill"]}) as started:
        assert f"the store of this job at 127.0.0.1:{started.port} is gone" in started.problem(1)


@contextmanager
def kept() -> Iterator[tuple[subprocess.Popen[str], MemberBoard]]:
    with subprocess.Popen(
        [sys.executable, "-m", "hemiola.train.elastic.keeper", "0"],
        env={**os.environ, "PYTHONPATH": SOURCE}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as keeper:  # fmt: skip
        assert keeper.stdin is not None and keeper.stdout is not None
        port = int(keeper.stdout.readline().rpartition(" ")[2])
        try:
            yield keeper, reached("127.0.0.1", port, LIMIT_S, LIMIT_S)
        finally:
            keeper.stdin.close()
            keeper.terminate()


def tells_of_3(keeper: subprocess.Popen[str], board: MemberBoard) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write("\nq\n3 signal 9 (SIGKILL)\n")
    keeper.stdin.flush()
    until_s = time.monotonic() + patience(LIMIT_S)
    while not board.left(3) and keeper.poll() is None:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert board.left(3) == "its process ended with signal 9 (SIGKILL)"


def test_a_keeper_started_by_hand_minds_no_keystroke() -> None:
    with kept() as (keeper, board):
        tells_of_3(keeper, board)


def test_a_keeper_that_is_asked_to_end_serves_until_its_input_does() -> None:
    with kept() as (keeper, board):
        keeper.terminate()
        tells_of_3(keeper, board)
        assert keeper.poll() is None
        assert keeper.stdin is not None
        keeper.stdin.close()
        assert keeper.wait(LIMIT_S) == 0
