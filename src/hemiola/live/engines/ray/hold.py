"""What `hemiola hold` does within a Ray job: waits for a place, runs the command there, and leaves when it is taken away."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

import msgspec

from hemiola.core.errors import DAMAGED, EngineError, InputError
from hemiola.live.engines.ray.client import Command, Ray
from hemiola.live.engines.ray.job_spec import Wish, wish_of
from hemiola.live.engines.ray.kv_store import (
    ADVICE,
    ALONE,
    HOLDS,
    JOB,
    NODE,
    PLACE,
    TYPE,
    WRAPPER,
    JobPlace,
    RayStore,
    Wrapper,
    group_name,
)
from hemiola.live.engines.ray.wire import GroupRow

__all__ = ["Hold", "job_around"]

POLL_S = 0.5
VERDICT_S = 3.0
"""A command that fails may have lost its place: so long it is waited for to be told."""
TAKEN_S = 10.0
"""So long GPUs that Ray has just chosen for it are waited for, once they are divided among its ranks."""


def job_around(environ: Mapping[str, str]) -> tuple[str, str, Wish]:
    """Ray's head, the submission id and the wish of the job that this process is in.

    Raises:
        InputError: it is in none, or the job's metadata says nothing for Hemiola, or what is not understood.
    """
    address = environ.get("RAY_ADDRESS", "")
    try:
        metadata = msgspec.json.decode(environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", ""))["metadata"]
        job, words = str(metadata["job_submission_id"]), metadata.get("hemiola")
    except (*DAMAGED, KeyError, TypeError):
        raise InputError(
            "this is no Ray job", "submit it: ray job submit ... -- hemiola hold -- python train.py"
        ) from None
    if words is None:
        raise InputError(
            "the job's metadata says nothing for Hemiola",
            """submit it with --metadata-json '{"hemiola": "gpus=8"}'""",
        )
    wish = wish_of(str(words))
    if wish.problem:
        raise InputError(wish.problem, "submit it again")
    if not JOB.fullmatch(job):
        raise InputError(
            f"the submission id {job[:80]!r} has other signs than letters, digits, _, . and -",
            "choose another one",
        )
    return address, job, wish


class Hold:
    """One job's command.

    Args:
        address: of Ray's head.
        job: Ray's submission id.
        grace_s: so long the command may take to end when its place is taken away.
        silent_s: Ray may place the job when Hemiola has said nothing for so long; None: never.
    """

    def __init__(
        self, address: str, job: str, wish: Wish, command: Sequence[str], *, grace_s: float, silent_s: float | None
    ) -> None:  # fmt: skip
        self._board, self._job, self._wish, self._command = RayStore(address), job, wish, list(command)
        self._grace_s, self._silent_s = grace_s, silent_s
        self._token = secrets.token_hex(8)
        self._over = threading.Event()
        self._alone: Ray | None = None
        self._address = address
        self._spoke: tuple[bytes | None, float] = None, time.monotonic()
        self._advice: bytes | None = None
        self._said = b""
        self._trouble = ""
        self._divided_s = float("inf")

    def run(self) -> int:
        """Until the command has ended by itself, or the job is stopped; its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        place: JobPlace | None = None
        try:
            while True:
                self._say("waits", place.number if place else ALONE)
                self._clear(place)
                place = self._wait()
                if place is None:
                    return 128 + signal.SIGTERM
                status = self._run(place)
                if status is not None:
                    return status
        finally:
            self._leave(place)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._over.set()

    # ---- a place

    def _wait(self) -> JobPlace | None:
        """A place; None once the job is stopped."""
        while not self._over.is_set():
            notes = self._notes()
            if notes is not None:
                place = self._told(notes)
                if place is not None and place.group:
                    self._give_up()
                    return place
                if self._is_held(notes):
                    self._give_up()
                elif (place := self._stand_alone()) is not None:
                    return place
            self._over.wait(POLL_S)
        return None

    def _notes(self) -> dict[str, bytes] | None:
        """None while Ray is away."""
        try:
            notes = self._board.many([PLACE + self._job, HOLDS, ADVICE + self._job, WRAPPER + self._job])
            if WRAPPER + self._job not in notes:  # tidied up as that of an earlier job with this id
                self._board.put(WRAPPER + self._job, self._said)
        except Exception:  # Ray has many, and none of them changes what is true
            return None
        if (advice := notes.get(ADVICE + self._job)) != self._advice:
            self._advice = advice
            print(f"hemiola hold: would run on {(advice or b'').decode(errors='replace')}", flush=True)
        self._hear(notes)
        return notes

    def _hear(self, notes: dict[str, bytes]) -> None:
        """Whether Hemiola has spoken since."""
        if notes.get(HOLDS) != self._spoke[0]:
            self._spoke = notes.get(HOLDS), time.monotonic()

    def _told(self, notes: dict[str, bytes]) -> JobPlace | None:
        """What Hemiola says to this very process."""
        try:
            place = msgspec.json.decode(notes.get(PLACE + self._job, b""), type=JobPlace)
        except DAMAGED:
            return None
        return place if place.token == self._token else None

    def _is_held(self, notes: dict[str, bytes]) -> bool:
        silent = self._silent_s is not None and time.monotonic() - self._spoke[1] > self._silent_s
        return HOLDS in notes and not silent

    def _stand_alone(self) -> JobPlace | None:
        """A place from Ray's own scheduler; None while it has none."""
        name = group_name(self._job, ALONE)
        try:
            if self._alone is None:
                self._alone = Ray(self._address)
                self._ask_ray(self._alone, name)
            row = msgspec.json.decode(self._alone.ask("group", name), type=GroupRow)
            if row.state != "CREATED":
                if time.monotonic() - self._divided_s > TAKEN_S:
                    self._give_up()  # somebody else was quicker: from the beginning
                return None
            if len(row.nodes) < self._wish.gpus:
                self._divide(self._alone, row)
                return None
            names = msgspec.json.decode(self._alone.ask("names"), type=dict[str, str])
        except EngineError as problem:
            self._give_up()
            self._tell(problem.what)
            return None
        return JobPlace(
            token=self._token, number=ALONE, group=name, group_id=row.id,
            nodes=tuple(names.get(node, node) for node in row.nodes),
        )  # fmt: skip

    def _ask_ray(self, ray: Ray, name: str) -> None:
        """For a bundle for each rank; where several hosts are to have equally many, for one for each host first."""
        wish, self._divided_s = self._wish, float("inf")
        each = wish.gpus // wish.hosts if wish.hosts > 1 else 1
        strategy = {0: "PACK", 1: "STRICT_PACK"}.get(wish.hosts, "STRICT_SPREAD")
        count = wish.gpus // each
        ray.ask("make_own", name, [self._bundle(each)] * count, strategy, [self._labels(ray)] * count)

    def _divide(self, ray: Ray, row: GroupRow) -> None:
        """Ray has chosen the hosts, and is asked for bundles for their ranks: it has no word for both at once."""
        ranks = [node for node in row.nodes for _ in range(self._wish.gpus // len(row.nodes))]
        ray.ask("remove", row.name)
        ray.ask(
            "make_own", row.name, [self._bundle(1)] * len(ranks), "PACK", [{NODE: node} for node in ranks]
        )
        self._divided_s = time.monotonic()

    def _bundle(self, gpus: int) -> dict[str, int]:
        cpus = gpus * self._wish.cpus
        return {"GPU": gpus, "CPU": cpus} if cpus else {"GPU": gpus}

    def _labels(self, ray: Ray) -> dict[str, str]:
        """What nodes are to say of themselves."""
        wanted = self._wish.gpu_type
        if not wanted:
            return {}
        nodes = msgspec.json.decode(ray.ask("labels"), type=list[dict[str, str]])
        types = {labels.get(TYPE, "") for labels in nodes}
        if not any(types):
            self._tell(f"no node of Ray says what its GPUs are (label {TYPE}): gpu_type={wanted} is left out")
            return {}
        if wanted not in types:
            self._tell(f"no node of Ray has GPUs of type {wanted} (label {TYPE}): it waits for one")
        return {TYPE: wanted}

    def _tell(self, what: str) -> None:
        """Into the job's log; what is told again and again, once."""
        if what != self._trouble:
            self._trouble = what
            print(f"hemiola hold: {what}", flush=True)

    def _give_up(self) -> None:
        """The place that Ray gave, or was asked for."""
        if self._alone is not None:
            alone, self._alone = self._alone, None
            with contextlib.suppress(EngineError):  # it ends with the process that made it
                alone.ask("remove", group_name(self._job, ALONE))
            alone.close()

    # ---- the command

    def _run(self, place: JobPlace) -> int | None:
        """Its exit status; None if the place was taken away."""
        self._say("runs", place.number)
        before = self._notes() or {}
        command = Command(self._command, {**os.environ, **_environment(self._job, place)})
        try:
            while (status := command.status(POLL_S)) is None:
                if self._over.is_set():
                    return command.end(self._grace_s)
                if self._is_taken(place, before):
                    self._say("leaves", place.number)
                    command.end(self._grace_s)
                    return None
        finally:
            command.close()
        return None if status and self._comes_to_be_taken(place, before) else status

    def _is_taken(self, place: JobPlace, before: dict[str, bytes]) -> bool:
        notes = self._notes()
        if notes is None:
            return False
        told = self._told(notes)
        if place.number != ALONE:
            return told is None or told.group != place.group
        return told is not None and notes.get(PLACE + self._job) != before.get(PLACE + self._job)

    def _comes_to_be_taken(self, place: JobPlace, before: dict[str, bytes]) -> bool:
        end_s = time.monotonic() + VERDICT_S
        while not (taken := self._is_taken(place, before)) and time.monotonic() < end_s:
            if self._over.wait(POLL_S):
                return False
        return taken

    def _say(self, state: str, number: int) -> None:
        note = Wrapper(
            token=self._token, state=state, number=number, grace_s=self._grace_s, since_s=time.time()  # type: ignore[arg-type]
        )  # fmt: skip
        self._said = msgspec.json.encode(note)
        while True:
            try:
                self._board.put(WRAPPER + self._job, self._said)
                return
            except Exception:  # Ray is away
                if self._over.wait(POLL_S):
                    return

    def _leave(self, place: JobPlace | None) -> None:
        """Nothing is left on the board, nor a group."""
        self._give_up()
        try:
            self._board.delete(WRAPPER + self._job)
            self._board.delete(ADVICE + self._job)
        except Exception:  # Ray is away
            return
        self._clear(place)

    def _clear(self, place: JobPlace | None) -> None:
        """Take away the group that was said to be left, where Hemiola is not there to see to it."""
        if place is None or place.number == ALONE:
            return
        try:
            notes = self._board.many([HOLDS])
        except Exception:  # Ray is away
            return
        self._hear(notes)  # nobody listened while the command ended
        if not self._is_held(notes):
            ray = Ray(self._address)
            with contextlib.suppress(EngineError):  # `hemiola release` removes it, too
                ray.ask("remove", place.group)
            ray.close()


def _environment(job: str, place: JobPlace) -> dict[str, str]:
    return {
        "HEMIOLA_JOB": job,
        "HEMIOLA_PLACEMENT_GROUP": place.group, "HEMIOLA_PLACEMENT_GROUP_ID": place.group_id,
        "HEMIOLA_NODES": ",".join(place.nodes), "HEMIOLA_GPUS": str(len(place.nodes)),
    }  # fmt: skip


def main_exit(status: int) -> None:
    """Nothing that Ray's library has under way is to hold up the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
