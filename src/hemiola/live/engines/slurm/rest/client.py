"""A Slurm over its REST interface; what slurmrestd does not offer goes by `scontrol`, where that is installed.

slurmrestd changes whole arrays or jobs with a number of their own, but no element that still waits in its array; it
holds jobs only as an administrator does; and before v0.0.45 it puts no running job back.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hemiola.core.errors import DAMAGED, EngineError, HemiolaError
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.rest.http import Address, Http, Token
from hemiola.live.engines.slurm.rest.wire import (
    MOST_ROWS,
    Envelope,
    Requeue,
    RestJob,
    RestJobs,
    RestNodes,
    Update,
    elements_of,
    job_row,
    node_rows,
    requests_of,
    span_of,
    words_of,
)
from hemiola.live.engines.slurm.wire import RunSpan, SlurmJobRow, SlurmNodeRow, SlurmRules, Words

__all__ = ["INSTALL", "KNOWN", "RestSlurm", "offer_of", "rest_slurm"]


# What a slurmrestd offers, by its own OpenAPI document. Of several versions the newest is taken that is
# known here.

KNOWN = ("v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Newest first. v0.0.45 (of Slurm 26.05.5) no longer says which jobs have whole nodes; those before refuse lists of nodes."""
TAKES_TIMES = "v0.0.42"
REQUEUES = "/slurm/v0.0.45/jobs/requeue"
"""Which v0.0.45 is the first to offer."""
NEEDED = frozenset({
    "required_nodes", "hold", "begin_time", "admin_comment", "minimum_nodes", "maximum_nodes", "tasks", "minimum_cpus",
    "priority",
})  # fmt: skip
"""Of a job's update."""
_VERSION = re.compile(r"/slurm/(v\d{1,3}\.\d{1,3}\.\d{1,3})/")
_SLURM = re.compile(r"Slurm-(\d{1,4}\.\d{1,4}[\w.-]{0,20})")
_BY_COMMAND = (
    "leave out --rest, and Slurm's own commands are used; Slurm 23.11 and newer take lists of nodes over REST"
)


@dataclass(frozen=True)
class Offer:
    """How this slurmrestd is spoken to.

    Attributes:
        version: of its answers: "v0.0.42".
        slurm: of Slurm: "24.11.5"; "" where it does not say.
        requeue: where running jobs are put back; "" where they cannot be.
    """

    version: str
    slurm: str
    requeue: str

    @property
    def takes_times(self) -> bool:
        """Whether one can ask for what has changed since: older ones stumble over the number."""
        return _order(self.version) >= _order(TAKES_TIMES)

    def path(self, what: str) -> str:
        """Where to ask for it."""
        return f"/slurm/{self.version}/{what}"


class _Info(msgspec.Struct):
    version: str


class _Components(msgspec.Struct):
    schemas: dict[str, Any]


class _Document(msgspec.Struct):
    info: _Info
    paths: dict[str, dict[str, Any]]
    components: _Components


def offer_of(body: bytes, where: str) -> Offer:
    """Of /openapi/v3.

    Raises:
        EngineError: it is no such document, or offers nothing that takes lists of nodes.
    """
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(
            f"{where}/openapi/v3 is no OpenAPI document: {error}", "is it slurmrestd?"
        ) from None
    found = {match[1] for path in document.paths if (match := _VERSION.match(path))}
    version = next((known for known in KNOWN if known in found and _lacks(document, known) == ""), "")
    if not version:
        raise EngineError(f"{where} {_why(document, found)}", _BY_COMMAND)
    slurm = _SLURM.search(document.info.version)
    requeue = REQUEUES if "post" in document.paths.get(REQUEUES, {}) else ""
    return Offer(version, slurm[1] if slurm else "", requeue)


def _why(document: _Document, found: set[str]) -> str:
    """Why none of the versions will do."""
    known = [version for version in KNOWN if version in found]
    if known:
        return f"offers {known[0]} without {_lacks(document, known[0])}"
    if not found:
        return "offers nothing of Slurm's jobs: its plugin openapi/slurmctld is not loaded"
    listed = ", ".join(sorted(found))
    if max(map(_order, found)) < _order(KNOWN[-1]):
        return f"offers {listed}, which takes no list of nodes for a job"
    return f"offers {listed}, none of which is known here: {KNOWN[-1]} to {KNOWN[0]}"


def _order(version: str) -> list[int]:
    return [int(number) for number in version.removeprefix("v").split(".")]


def _lacks(document: _Document, version: str) -> str:
    """What is missing of it, in words; "" for nothing."""
    for path, method in (
        ("jobs/", "get"),
        ("job/{job_id}", "get"),
        ("job/{job_id}", "post"),
        ("nodes/", "get"),
    ):
        if method not in document.paths.get(f"/slurm/{version}/{path}", {}):
            return f"{method.upper()} {path}"
    return ", ".join(sorted(NEEDED - _updates(document, version)))


def _updates(document: _Document, version: str) -> set[str]:
    """What of a job can be changed."""
    post = document.paths[f"/slurm/{version}/job/{{job_id}}"]["post"]
    schema = _at(post, "requestBody", "content", "application/json", "schema")
    if isinstance(name := _at(schema, "$ref"), str):
        schema = document.components.schemas.get(name.rpartition("/")[2])
    properties = _at(schema, "properties")
    return set(properties) if isinstance(properties, Mapping) else set()


def _at(value: Any, *keys: str) -> Any:
    """What is there; None where it is not."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


_log = logging.getLogger("hemiola.slurm")

GONE = 2017
"""Slurm's number for a job that it does not know."""
IGNORED = "Ignoring"
"""So begins a warning of what slurmrestd did not understand, and left undone."""
TRIES, AGAIN_S = 3, 1.0
"""So often an order is given whose answer goes wrong, if that takes no longer."""
LOOK_S = 1.0
"""So long a list counts for questions about single jobs of it: they belong to the same look."""
KEPT_S = 10.0
"""So long a list counts of which Slurm says that nothing has changed."""
FEW, ONE_COSTS = 8, 6
"""So many jobs are asked for one by one, and more if that costs less than the list of all: one costs as six listed ones."""
_AGAIN = "half an answer is not used; it is asked again"
INSTALL = "install Slurm's commands on this host: apt install slurm-client"
"""What to do where slurmrestd alone is not enough."""
T = TypeVar("T", bound=Envelope)


class _State(msgspec.Struct, frozen=True):
    job_id: str
    state: list[str]


class _States(Envelope, frozen=True):
    jobs: list[_State]


class RestSlurm:
    """One cluster, over slurmrestd.

    Args:
        commands: of the same cluster, for what slurmrestd does not offer; None where there is no scontrol here.

    Raises:
        EngineError: nobody answers there, or what is offered takes no lists of nodes.
    """

    def __init__(self, http: Http, commands: Slurm | None = None) -> None:
        self._http, self._commands = http, commands
        self.offer: Offer = self._look_up()
        self._own: dict[str, int] = {}
        self._kept: Sequence[tuple[RestJob, SlurmJobRow]] = ()
        self._kept_s, self._looked_s, self._changed_s = float("-inf"), float("-inf"), 0

    def __str__(self) -> str:
        return f"slurm {self.offer.slurm} over REST {self.offer.version}".replace("  ", " ")

    @property
    def lacks(self) -> str:
        """What it cannot do that deciding needs, in words; "" for nothing."""
        if self._commands is not None:
            return ""
        back = () if self.offer.requeue else ("put running jobs back",)
        return ", ".join(("hold jobs as their users do", "change single elements of arrays", *back))

    def jobs(self, *, ids: Sequence[str] = (), partition: str = "", states: str = "") -> list[SlurmJobRow]:
        """As `Slurm.jobs`."""
        wanted = frozenset(ids)
        return [
            row
            for job, row in self._rows(ids)
            if (not ids or row.id in wanted)
            and (not partition or partition in row.partition.split(","))
            and (states == "all" or (row.state == states if states else job.is_live))
        ]

    def words(self, ids: Sequence[str]) -> dict[str, Words]:
        """As `Slurm.words`."""
        wanted = frozenset(ids)
        return {row.id: words_of(job) for job, row in self._rows(ids) if row.id in wanted} if ids else {}

    def jobs_and_words(self, ids: Sequence[str]) -> dict[str, tuple[SlurmJobRow, Words]]:
        """As `Slurm.jobs_and_words`."""
        wanted = frozenset(ids)
        if not ids:
            return {}
        return {row.id: (row, words_of(job)) for job, row in self._anew(ids) if row.id in wanted}

    def nodes(self, partition: str = "") -> list[SlurmNodeRow]:
        """As `Slurm.nodes`."""
        found = node_rows(self._get("nodes/", RestNodes).nodes)
        return [node for node in found if not partition or node.partition == partition]

    def excluding(self, ids: Sequence[str]) -> set[str]:
        """As `Slurm.excluding`."""
        wanted = frozenset(ids)
        return (
            {row.id for job, row in self._rows(ids) if row.id in wanted and job.excluded_nodes}
            if ids
            else set()
        )

    def rules(self, partition: str) -> SlurmRules:
        """As `Slurm.rules`, by the commands: slurmrestd shows no configuration. Without them nothing is given unasked."""
        if self._commands is None:
            return SlurmRules()
        try:
            return self._commands.rules(partition)
        except EngineError as problem:
            _log.warning("defaults for each GPU are not known, nor is memory counted: %s", problem.what)
            return SlurmRules()

    def shares(self, job_id: str) -> dict[str, int]:
        """As `Slurm.shares`."""
        try:
            return next((job.shares() for job, row in self._rows([job_id]) if row.id == job_id), {})
        except HemiolaError:
            return {}

    def spans(self, ids: Sequence[str]) -> dict[str, RunSpan]:
        """As `Slurm.spans`."""
        wanted = frozenset(ids)
        return {row.id: span_of(job) for job, row in self._rows(ids) if row.id in wanted} if ids else {}

    def tell(self, orders: Sequence[str]) -> str:
        """As `Slurm.tell`.

        Raises:
            EngineError: slurmrestd is away, or answers nonsense: some of the orders may have been carried out.
        """
        said: list[str] = []
        waiting: list[str] = []
        for request in [request for order in orders for request in requests_of(order)]:
            path, body = self._sent(request)
            if not path:
                waiting.append(request if isinstance(request, str) else request.order)
                continue
            said += self._by_command(waiting)  # orders about one job keep their order
            waiting = []
            said += self._post_again(request, path, body)
        return "\n".join([*said, *self._by_command(waiting)])

    # ---- questions

    def _look_up(self) -> Offer:
        answer = self._http.ask("/openapi/v3")
        if answer.status != 200:
            raise EngineError(
                f"{self._where} answers HTTP {answer.status} to /openapi/v3", _remedy(answer.status)
            )
        return offer_of(answer.body, self._where)

    def _rows(self, ids: Sequence[str]) -> Sequence[tuple[RestJob, SlurmJobRow]]:
        """All jobs, or at least those that are asked for: what the last look has shown of them is not asked again."""
        if ids and time.monotonic() - self._looked_s < LOOK_S:
            wanted = frozenset(ids)
            found = [(job, row) for job, row in self._kept if row.id in wanted]
            if len(found) == len(wanted):
                return found
        return self._anew(ids)

    def _anew(self, ids: Sequence[str]) -> Sequence[tuple[RestJob, SlurmJobRow]]:
        """As `_rows`, as Slurm has them now."""
        numbers = {job_id.partition("_")[0] for job_id in ids}
        if 0 < len(numbers) * ONE_COSTS <= max(ONE_COSTS * FEW, len(self._kept)):
            return self._each([job for number in sorted(numbers) for job in self._one(number)])
        return self._all()

    def _all(self) -> Sequence[tuple[RestJob, SlurmJobRow]]:
        """Listed anew, if Slurm says that anything has changed: writing a list costs slurmrestd a millisecond per job."""
        now_s = time.monotonic()
        is_fresh = self.offer.takes_times and now_s - self._kept_s < KEPT_S
        since = f"?update_time={self._changed_s}" if is_fresh else ""
        listed = self._get(f"jobs/{since}", RestJobs)
        changed_s = listed.last_update.or_none()
        if since and changed_s is None and not listed.jobs:
            self._looked_s = now_s
            return self._kept
        self._own.clear()
        self._kept = self._each(listed.jobs)
        self._looked_s, self._changed_s = now_s, changed_s or 0
        self._kept_s = now_s if changed_s else float("-inf")
        return self._kept

    def _each(self, records: Iterable[RestJob]) -> Sequence[tuple[RestJob, SlurmJobRow]]:
        """Each element of an array for itself."""
        self._remember(records)
        found: list[tuple[RestJob, SlurmJobRow]] = []
        for job in records:
            elements = elements_of(job)
            elements = self._cut_off(job) if elements is None else elements
            if not elements:
                continue
            row = job_row(job, elements[0])
            found.append((job, row))
            found += ((job, msgspec.structs.replace(row, id=element)) for element in elements[1:])
            if len(found) > MOST_ROWS:
                raise EngineError(
                    f"{self._where} lists more than {MOST_ROWS:,} jobs", "set MaxJobCount lower in slurm.conf"
                )
        return found

    def _one(self, number: str) -> list[RestJob]:
        """A job, or all of an array; none if Slurm does not know it."""
        try:
            return self._get(f"job/{number}", RestJobs).jobs
        except _GoneError:
            return []

    def _remember(self, records: Iterable[RestJob]) -> None:
        """The numbers of elements that are jobs for themselves."""
        for job in records:
            if job.array_task_id.set and job.job_id != job.array:
                self._own[f"{job.array}_{job.array_task_id.number}"] = job.job_id

    def _cut_off(self, job: RestJob) -> list[str]:
        """The elements of an array whose list slurmrestd cuts off (64 letters, unless SLURM_BITSTR_LEN says otherwise)."""
        states = self._get(f"jobs/state/?job_id={job.array}", _States).jobs
        alike = (one.job_id for one in states if one.state[:1] == job.job_state[:1])
        elements = [job_id for job_id in alike if job_id.startswith(f"{job.array}_")]
        if len(elements) > MOST_ROWS or not all(one.partition("_")[2].isdecimal() for one in elements):
            raise EngineError(
                f"{self._where} does not say of which elements the array {job.array} is",
                "start slurmrestd with SLURM_BITSTR_LEN=0",
            )
        return [element for element in elements if element not in self._own]

    def _get(self, what: str, kind: type[T]) -> T:
        answer = self._http.ask(self.offer.path(what))
        if answer.status == 200:
            read = self._read(answer.body, kind, answer.status)
            if not read.errors:
                return read
            problems = read.errors
        elif answer.status == 404 and answer.kind != "application/json":
            self.offer = self._look_up()
            raise EngineError(
                f"{self._where} has no page {what} any more, and speaks {self.offer.version} now", _AGAIN
            )
        else:
            problems = self._read(answer.body, Envelope, answer.status).errors
        if any(problem.error_number == GONE for problem in problems):
            raise _GoneError(f"{self._where} knows no such job")
        said = "; ".join(map(str, problems)) or f"HTTP {answer.status}"
        raise EngineError(
            f"{self._where} refuses {what.partition('?')[0]}: {said[:500]}", _remedy(answer.status)
        )

    def _read(self, body: bytes, kind: type[T], status: int) -> T:
        """Names that users write may hold any bytes, and come as they are."""
        try:
            return msgspec.json.decode(_as_utf8(body), type=kind)
        except DAMAGED as error:
            shown = repr(body[:80].decode(errors="replace"))
            raise EngineError(
                f"{self._where} answers HTTP {status} with what is no answer of its ({error}): {shown}",
                _AGAIN if status == 200 else _remedy(status),
            ) from None

    @property
    def _where(self) -> str:
        return f"slurmrestd at {self._http.address}"

    # ---- orders

    def _sent(self, request: Update | Requeue | str) -> tuple[str, dict[str, Any]]:
        """Where to, and what; to "" if scontrol has to."""
        if isinstance(request, Requeue):
            return self.offer.requeue, {"flags": ["Hold"], "jobs": list(request.job_ids)}
        if isinstance(request, Update):
            number = self._own.get(request.job_id, request.job_id)
            if str(number).isdecimal():
                return self.offer.path(f"job/{number}"), request.fields
        return "", {}

    def _post_again(self, request: Update | Requeue | str, path: str, body: dict[str, Any]) -> list[str]:
        """Several times, if answers go wrong at once: each order says the whole of what is wanted."""
        end_s = time.monotonic() + AGAIN_S
        for _ in range(TRIES - 1):
            try:
                return self._post(request, path, body)
            except EngineError:
                if time.monotonic() > end_s:
                    raise
        return self._post(request, path, body)

    def _post(self, request: Update | Requeue | str, path: str, body: dict[str, Any]) -> list[str]:
        """What was complained of, and of which jobs."""
        answer = self._http.ask(path, msgspec.json.encode(body))
        envelope = self._read(answer.body, Envelope, answer.status)
        said = [str(problem) for problem in envelope.errors]
        said += [one.description for one in envelope.warnings if one.description.startswith(IGNORED)]
        if not said and answer.status != 200:
            said = [f"HTTP {answer.status}"]
        who = request.job_id if isinstance(request, Update) else ""
        who = ",".join(request.job_ids) if isinstance(request, Requeue) else who
        return [f"{who}: {line}".removeprefix(": ").replace("\n", " ") for line in said]

    def _by_command(self, orders: Sequence[str]) -> list[str]:
        if not orders:
            return []
        if self._commands is None:
            return [
                f"{order}: slurmrestd cannot, and there is no scontrol here; {INSTALL}" for order in orders
            ]
        return list(filter(None, [self._commands.tell(orders).rstrip("\n")]))


class _GoneError(EngineError):
    """Slurm does not know the job."""


def _remedy(status: int) -> str:
    if status in (401, 403, 511):
        return "is there a token, and still good? scontrol token username=USER lifespan=SECONDS prints one: --rest-token FILE"
    return "see slurmrestd's log; does its controller answer? try: scontrol ping"


def _as_utf8(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        return body.decode(errors="replace").encode()
    return body


def rest_slurm(url: str, token: Path | None, slurm: Slurm, *, acts: bool) -> RestSlurm:
    """The Slurm behind a slurmrestd.

    Args:
        url: http[s]://[USER@]HOST[:PORT] or unix:/PATH.
        token: a file with what `scontrol token` prints; the variable SLURM_JWT counts unless given.
        slurm: its commands, for what slurmrestd does not offer, if they are installed.
        acts: whether jobs are to be placed.

    Raises:
        InputError: no such address, or no such token.
        EngineError: nobody answers there, with nothing that takes lists of nodes, or there is no scontrol for what it
            lacks.
    """
    address, proof = Address.of(url), Token.given(token)
    if address.is_open:
        _log.warning("%s is asked without TLS: whoever sees the traffic sees the token", address)
    found = RestSlurm(Http(address, proof), slurm if shutil.which("scontrol") else None)
    if acts and found.lacks:
        raise EngineError(f"{found} cannot {found.lacks}, and there is no scontrol here that could", INSTALL)
    return found
