"""Slurm's own commands, as argument lists and never through a shell.

The command line is what all versions have in common; `rest` is the other way.
"""

from __future__ import annotations

import copy
import os
import re
import secrets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hemiola.core.errors import EngineError, HemiolaError
from hemiola.core.hostlist import expand
from hemiola.live.engines.slurm.wire import (
    NODE_FORMAT,
    SPAN_FORMAT,
    RunSpan,
    SlurmJobRow,
    SlurmNodeRow,
    SlurmRules,
    Words,
    gpus_in,
    job_format,
    job_rows,
    node_rows,
    rules_of,
    spans_in,
)
from hemiola.live.failpoints import failpoint

__all__ = ["Slurm", "SlurmInterface", "settings_of", "shares_in"]


_UNKNOWN = "Invalid job id"
"""What Slurm says if it knows none of the jobs that were asked for; of some it knows it tells."""
AT_ONCE = 2000
"""So many jobs are asked for in one call."""
VERSION_S = 60.0
"""So often its version is asked for: Slurm is upgraded while Hemiola runs."""
_HEADER = re.compile(r"[A-Z][A-Z_]{3,}\b")
_PREFIXES = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_NAMED = re.compile(r"\n(?:   SLUID=\w+\n)?   UserId=")
"""What comes below a job's name; Slurm 26.05 has a line more there."""
_BELOW = re.compile("\n   (?:MinCPUsNode|OverSubscribe|Command|WorkDir)=")
_SHARE = re.compile(r"^ +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*) *$", re.MULTILINE)


class Slurm:
    """One cluster's commands.

    Args:
        conf: its slurm.conf; where the commands look by themselves unless given.
        limit_s: so long a command may take: a controller that is gone is tried for 9 s by the commands themselves.
    """

    def __init__(self, conf: Path | None = None, limit_s: float = 15.0) -> None:
        self._limit_s = limit_s
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
        conf = conf or (Path(os.environ["SLURM_CONF"]) if os.environ.get("SLURM_CONF") else None)
        self.environ = {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        if conf is not None:
            self.environ["SLURM_CONF"] = str(conf)
        self._version: tuple[int, int] = (0, 0)
        self._version_s = float("-inf")

    def within(self, limit_s: float) -> Slurm:
        """The same, but for how long a command may take."""
        other = copy.copy(self)
        other._limit_s = limit_s
        return other

    def jobs(self, *, ids: Sequence[str] = (), partition: str = "", states: str = "") -> list[SlurmJobRow]:
        """Jobs as Slurm has them, each element of an array for itself.

        Args:
            ids: of these only; those that Slurm does not know any more are left out.
            partition: of this one only.
            states: "all" or a state such as "PENDING"; those that have not ended unless given.

        Raises:
            EngineError: Slurm is away, or its answer is not whole.
        """
        version = self.version()
        found = []
        for some in _pieces(ids):
            chosen = _chosen(ids=",".join(some), partition=partition, states=states)
            found += job_rows(self._of_jobs(*chosen, "-O", job_format(version)), version)
        return found

    def words(self, ids: Sequence[str]) -> dict[str, Words]:
        """What users call their jobs, and say of them, by job."""
        return {job_id: words for job_id, (_, words) in self._worded(ids, "JobArrayID:|").items()}

    def jobs_and_words(self, ids: Sequence[str]) -> dict[str, tuple[SlurmJobRow, Words]]:
        """Both, at one moment."""
        version = self.version()
        read = self._worded(ids, job_format(version))
        return {job_id: (job_rows(line, version)[0], words) for job_id, (line, words) in read.items()}

    def nodes(self, partition: str = "") -> list[SlurmNodeRow]:
        """Nodes as Slurm has them, once for each of their partitions.

        Args:
            partition: those of this one only.

        Raises:
            EngineError: Slurm is away, or its answer is not whole.
        """
        return node_rows(self.table("sinfo", "-N", *_chosen(partition=partition), "-O", NODE_FORMAT))

    def excluding(self, ids: Sequence[str]) -> set[str]:
        """Which of these jobs name nodes that they must not have: squeue's long lines do not say."""
        asked = [_chosen(ids=",".join(some), states="all") for some in _pieces(ids)] if ids else []
        lines = "".join(self._of_jobs(*chosen, "-o", "%i %x") for chosen in asked).splitlines()
        return {job_id for job_id, _, nodes in (line.partition(" ") for line in lines) if nodes.strip()}

    def rules(self, partition: str) -> SlurmRules:
        """What of its nodes Slurm counts for the jobs of a partition, and what it gives them unasked.

        Raises:
            EngineError: Slurm is away, or there is no such partition.
        """
        settings = settings_of(self.ask("scontrol", "show", "config"))
        return rules_of(settings, self.ask("scontrol", "-o", "show", "partition", partition))

    def shares(self, job_id: str) -> dict[str, int]:
        """How many GPUs a running job has on each of its nodes; only Slurm's details say, if it divided them as it liked."""
        try:
            words = self.words([job_id])
            return shares_in(self.ask("scontrol", "show", "job", "-d", job_id), words[job_id].name)
        except (HemiolaError, KeyError):
            return {}  # it has ended meanwhile, or was changed: asked again

    def spans(self, ids: Sequence[str]) -> dict[str, RunSpan]:
        """When jobs began and ended; those that Slurm does not know any more are left out."""
        asked = [_chosen(ids=",".join(some), states="all") for some in _pieces(ids)] if ids else []
        return spans_in("".join(self._of_jobs(*chosen, "-O", SPAN_FORMAT) for chosen in asked))

    def version(self) -> tuple[int, int]:
        """Of the commands, such as (24, 11).

        Raises:
            EngineError: they are not there, or say none.
        """
        if time.monotonic() - self._version_s > VERSION_S:
            text = self.ask("squeue", "--version")
            found = _VERSION.search(text)
            if found is None:
                raise EngineError(f"squeue calls its version {text[:200]!r}", "is it Slurm's squeue?")
            self._version, self._version_s = (int(found[1]), int(found[2])), time.monotonic()
        return self._version

    def ask(self, command: str, *arguments: str) -> str:
        """What a command prints.

        Raises:
            EngineError: it is not there, takes too long, or fails.
        """
        done = self._run([command, *arguments], "")
        if done.returncode:
            raise EngineError(
                f"{command} failed: {_last_line(done.stderr)}", "is the controller up? try: scontrol ping"
            )
        return done.stdout

    def table(self, command: str, *arguments: str) -> str:
        """The lines of squeue or sinfo below their header, which is what tells an empty table from no answer at all.

        Raises:
            EngineError: as `ask`; or there is no header.
        """
        text = self.ask(command, *arguments)
        header, end, lines = text.partition("\n")
        if not end or not _HEADER.match(header):
            raise EngineError(
                f"{command} printed {header[:200]!r} where a header should be",
                "half an answer is not used; it is asked again",
            )
        return lines

    def tell(self, orders: Sequence[str]) -> str:
        """Several orders of `scontrol` in one call, each carried out whether or not others fail; what it complained of.

        Raises:
            EngineError: it is not there, or takes too long: some of the orders may have been carried out.
        """
        if not orders:
            return ""
        bad = next((order for order in orders if any(ord(sign) < 32 for sign in order)), None)
        if bad is not None:
            raise EngineError(f"the order {bad!r} has control characters", "report this")
        return self._run(["scontrol"], "".join(f"{order}\n" for order in orders) + "quit\n").stderr

    def _of_jobs(self, *arguments: str) -> str:
        """What squeue prints; nothing if it knows none of the jobs that were asked for."""
        try:
            return self.table("squeue", "-r", *arguments)
        except EngineError as problem:
            if _UNKNOWN in problem.what:
                return ""
            raise

    def _worded(self, ids: Sequence[str], line: str) -> dict[str, tuple[str, Words]]:
        """By job, what Slurm prints of it, and then the free text.

        Users may write separators and line ends there. So what separates that is drawn anew each time: nobody can
        write a name that looks like another job.
        """
        if not ids:
            return {}
        end, between = "|" + secrets.token_hex(16), "|" + secrets.token_hex(16)
        asked = f"{line},JobID:{between},comment:{between},admin_comment:{between},name:{end}"
        texts = [self._of_jobs("-t", "all", "-j", ",".join(some), "-O", asked) for some in _pieces(ids)]
        found = {}
        for record in "".join(texts).split(end)[:-1]:
            first, comment, admin, name = record.removeprefix("\n").split(between)
            first = first[: first.rindex("|") + 1]
            said = Words("" if comment == "(null)" else comment, name, admin)
            found[first[: first.index("|")]] = first, said
        return found

    def _run(self, command: list[str], given: str) -> subprocess.CompletedProcess[str]:
        failpoint(f"slurm.{command[0]}.before")
        try:
            done = subprocess.run(
                command, input=given, env=self.environ, capture_output=True, text=True, errors="replace",
                timeout=self._limit_s, check=False, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise EngineError(
                f"there is no {command[0]} on this host", "install Slurm's clients: apt install slurm-client"
            ) from None
        except OSError as problem:
            raise EngineError(
                f"{command[0]} could not be run: {problem.strerror}",
                "see what this host lacks; it is tried again",
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{command[0]} gave no answer within {self._limit_s:g} s",
                "is the controller up? try: scontrol ping",
            ) from None
        failpoint(f"slurm.{command[0]}.after")
        return done


def shares_in(text: str, name: str) -> dict[str, int]:
    """Of `scontrol show job -d`: how many GPUs a job of this name has on each of its nodes.

    Users may write lines like Slurm's into names, comments and paths. The name comes first, and all else of theirs
    below the details.

    Raises:
        EngineError: it is no such answer.
        InputError: what stands there is no list of nodes.
    """
    _, _, rest = text.partition(" JobName=")
    own = rest.removeprefix(name or "(null)")
    end = _BELOW.search(own)
    if own == rest or _NAMED.match(own) is None or end is None:
        raise EngineError(
            f"scontrol says {text[:200]!r} of a job", "half an answer is not used; it is asked again"
        )
    shares = _SHARE.findall(own[: end.start()])
    return {name: gpus_in(resources) for names, resources in shares for name in expand(names)}


def settings_of(text: str) -> dict[str, str]:
    """Of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _pieces(ids: Sequence[str]) -> list[Sequence[str]]:
    """Of which each fits an argument, which may have 131,072 letters; one of none."""
    return [ids[start : start + AT_ONCE] for start in range(0, max(1, len(ids)), AT_ONCE)]


def _chosen(ids: str = "", partition: str = "", states: str = "") -> list[str]:
    """As squeue and sinfo are told."""
    return [
        word
        for option, value in (("-t", states), ("-j", ids), ("-p", partition))
        if value
        for word in (option, value)
    ]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()


# What the driver needs of a Slurm, whichever way it is spoken to: by its commands (`client`) or over REST
# (`rest`).


class SlurmInterface(Protocol):
    """A Slurm. Each question may raise EngineError: it is away, or its answer is not whole; then nothing of it is used."""

    def jobs(self, *, ids: Sequence[str] = (), partition: str = "", states: str = "") -> list[SlurmJobRow]:
        """Jobs as Slurm has them, each element of an array for itself.

        Args:
            ids: of these only; those that Slurm does not know any more are left out.
            partition: of this one only.
            states: "all" or a state such as "PENDING"; those that have not ended unless given.
        """

    def words(self, ids: Sequence[str]) -> dict[str, Words]:
        """What users call their jobs, and say of them, by job."""

    def jobs_and_words(self, ids: Sequence[str]) -> dict[str, tuple[SlurmJobRow, Words]]:
        """Both, at one moment."""

    def nodes(self, partition: str = "") -> list[SlurmNodeRow]:
        """Nodes as Slurm has them, once for each of their partitions; those of one partition where it is named."""

    def excluding(self, ids: Sequence[str]) -> set[str]:
        """Which of these jobs name nodes that they must not have."""

    def rules(self, partition: str) -> SlurmRules:
        """What of its nodes Slurm counts for the jobs of a partition, and what it gives them unasked."""

    def shares(self, job_id: str) -> dict[str, int]:
        """How many GPUs a running job has on each of its nodes; none of one that has ended."""

    def spans(self, ids: Sequence[str]) -> dict[str, RunSpan]:
        """When jobs began and ended; those that Slurm does not know any more are left out."""

    def tell(self, orders: Sequence[str]) -> str:
        """Several orders, each carried out whether or not others fail; what Slurm complained of, a line each."""
