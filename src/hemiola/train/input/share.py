"""Ranks that share a store tell each other what arrives, and keep to what the judge gives them.

Each rank writes a line into the run's store (the one that PyTorch's ranks meet at) once a second. Rank 0 judges
(`plan.io.fairness`) and writes what each may take; readers keep to it by their token buckets, and read as they like
again when nothing new comes for a while. Started by `hemiola run --share-input`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Protocol

from hemiola.core.errors import InputError
from hemiola.plan.io.fairness import FairnessJudge, FairnessRules, InputReport, InputVerdict
from hemiola.train.input.reader import RangeReader

__all__ = ["SHARE_VARIABLE", "WEIGHT_VARIABLE", "InputShare", "share_input"]

SHARE_VARIABLE = "HEMIOLA_SHARE_INPUT"
WEIGHT_VARIABLE = "HEMIOLA_INPUT_WEIGHT"
EVERY_S = 1.0
PREFIX = "hemiola-input"


class KeyStore(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class InputShare:
    """One rank's part: `step` once a second.

    Args:
        reader: whose delivery is reported, and which keeps to its rate.
        store: where ranks meet.
        rank, ranks: this one, and how many.
        weight: this rank's part, against the others'.
        rules: of the judge, at rank 0.
    """

    def __init__(
        self,
        reader: RangeReader,
        store: KeyStore,
        rank: int,
        ranks: int,
        *,
        weight: float = 1.0,
        rules: FairnessRules | None = None,
    ) -> None:
        if not weight > 0:
            raise InputError(f"an input weight of {weight}", "give a weight above 0")
        self._reader, self._store, self._rank, self._ranks = reader, store, rank, ranks
        self._weight, self._rules = weight, rules or FairnessRules()
        self._judge = FairnessJudge(self._rules)
        self._heard: dict[int, int] = {}
        self._sequence = 0
        self._before: tuple[float, float, float, float, float] | None = None
        self._obeyed = (-1, -math.inf)
        self.verdict = InputVerdict(1.0, {})
        self._said = -1
        self._stopped = threading.Event()

    def step(self, now_s: float) -> None:
        """Report, judge if this is rank 0, and keep to what it says."""
        self._report(now_s)
        if self._rank == 0:
            self._decide(now_s)
        self._obey(now_s)

    def run(self) -> None:
        """Step every second, until the run's store is gone or `stop` is called."""
        while not self._stopped.wait(EVERY_S):
            try:
                self.step(time.monotonic())
            except Exception as error:  # rank 0 has ended, and its store with it
                print(f"hemiola input: rank {self._rank} shares no longer: {error}", file=sys.stderr)
                break
        self._reader.rate_bytes_per_s = math.inf

    def stop(self) -> None:
        """End `run`; the reader reads as it likes."""
        self._stopped.set()

    def _report(self, now_s: float) -> None:
        reader, counts = self._reader, self._reader.counts
        now = (now_s, counts.arrived_bytes, reader.flights_s, reader.hungry_s, counts.waited_s)
        before, self._before = self._before, now
        if before is None:
            return
        lasted_s = max(1e-6, now[0] - before[0])
        arrived, flights, hungry, waited = (
            (b - a) / lasted_s for a, b in zip(before[1:], now[1:], strict=True)
        )
        self._sequence += 1
        report = {
            "sequence": self._sequence,
            "delivered_bytes_per_s": arrived,
            "connections": round(flights),
            "waiting": min(1.0, waited),
            "wanted": min(1.0, hungry),
            "first_byte_s": reader.usual_first_byte_s(),
            "stream_bytes_per_s": reader.usual_stream_bytes_per_s(),
            "weight": self._weight,
        }
        self._store.set(f"{PREFIX}/report/{self._rank}", json.dumps(report))

    def _decide(self, now_s: float) -> None:
        for rank in range(self._ranks):
            key = f"{PREFIX}/report/{rank}"
            if self._store.check([key]):
                told = json.loads(self._store.get(key))
                sequence = told.pop("sequence")
                if self._heard.get(rank) != sequence:
                    self._heard[rank] = sequence
                    self._judge.take(InputReport(rank=rank, at_s=now_s, **told))
        self.verdict = self._judge.observe(now_s)
        if self.verdict.victim >= 0 and self.verdict.victim != self._said:
            self._said = self.verdict.victim
            print(f"hemiola input: {self.verdict.sentence}", file=sys.stderr, flush=True)
        rates = {str(rank): rate for rank, rate in self.verdict.rates_bytes_per_s.items()}
        self._store.set(f"{PREFIX}/rates", json.dumps({"sequence": self._sequence, "rates": rates}))

    def _obey(self, now_s: float) -> None:
        key = f"{PREFIX}/rates"
        told: dict[str, Any] = json.loads(self._store.get(key)) if self._store.check([key]) else {}
        if told and told["sequence"] != self._obeyed[0]:
            self._obeyed = (told["sequence"], now_s)
            self._reader.rate_bytes_per_s = told["rates"].get(str(self._rank), math.inf)
        elif now_s - self._obeyed[1] > self._rules.lift_s:
            self._reader.rate_bytes_per_s = math.inf


def share_input(reader: RangeReader) -> None:
    """Let a reader share with the other ranks' of this run, where `hemiola run --share-input` asked for it."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if not os.environ.get(SHARE_VARIABLE) or ranks < 2:
        return
    weight = float(os.environ.get(WEIGHT_VARIABLE, "1"))
    rank = int(os.environ["RANK"])

    def meet() -> None:
        from torch.distributed import TCPStore

        try:
            store = TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                timeout=timedelta(seconds=300),
            )
        except Exception as error:
            print(
                f"hemiola input: rank {rank} shares nothing, for the run has no store: {error}",
                file=sys.stderr,
            )
            return
        InputShare(reader, store, rank, ranks, weight=weight).run()

    threading.Thread(target=meet, name="hemiola-share", daemon=True).start()
