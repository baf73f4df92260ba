"""What an engine is to the rest of Hemiola: a value with a name and a few functions.

Nothing outside an engine's own folder asks which one it is: whoever serves, checks or hands back calls what the value
offers. An engine from outside is one more such value (`hemiola.live.engines.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hemiola.core.errors import EngineError, InputError

if TYPE_CHECKING:
    from hemiola.core.job import Profile
    from hemiola.core.topology import Topology
    from hemiola.live.check import Check
    from hemiola.live.journal import Journal
    from hemiola.live.live_driver import LiveDriver
    from hemiola.live.service import LiveService, Session, SessionSettings

__all__ = ["Engine", "EngineConnection", "EngineOption", "Examination", "engine_service"]

Client = TypeVar("Client")


@dataclass(frozen=True)
class EngineOption:
    """One thing that an engine has to be told, and no other one.

    Attributes:
        name: as a parameter; "slurm_conf" is typed --slurm-conf.
        about: what it says, in a sentence.
        kind: the type of its value.
        default: the value that it has unless given.
        verbs: commands of `hemiola` that take it as a flag; all that speak to the engine unless given.
    """

    name: str
    about: str
    kind: type = str
    default: Any = ""
    verbs: tuple[str, ...] = ("serve", "doctor", "release")

    def parsed(self, text: str, where: str) -> Any:
        """The value that a text says.

        Raises:
            InputError: it is none of this kind.
        """
        try:
            return self.kind(text)
        except ValueError:
            raise InputError(
                f"{where}: {self.name}={text!r} is not a {self.kind.__name__}", f"{self.name}: {self.about}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class EngineConnection:
    """What was said of the cluster.

    Attributes:
        partition: the part of the engine's cluster that Hemiola manages.
        given: the engine's options that were given, by name; `option` knows the others' defaults.
        has_topology: whether the network is described elsewhere: the engine is not asked for it.
        acts: whether decisions are to be carried out.
    """

    partition: str = "hemiola"
    given: Mapping[str, Any] = field(default_factory=dict)
    has_topology: bool = False
    acts: bool = False

    def option(self, option: EngineOption) -> Any:
        """What was said of it."""
        return self.given.get(option.name, option.default)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What `hemiola doctor` knows when it asks an engine's `doctor`.

    Attributes:
        topology: the cluster, if it is not the one that the engine describes.
        alive: the file that the daemon writes, if it was named.
        mode: of the daemon; "" where it is not known.
    """

    topology: Topology | None = None
    alive: Path | None = None
    mode: str = ""


def _nothing(client: Any) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Engine(Generic[Client]):
    """What runs the jobs of a cluster. A `Client` is the engine's own: whatever its functions need to reach it.

    Attributes:
        name: small letters and "-"; what its version begins with, and what the journal knows it by.
        connect: makes a client; it may, but need not, ask anything.
        topology: the cluster's hosts and network, as the engine knows them.
        version: its name and version, in words; it fails where the engine is not there.
        driver: the engine's hands in one run; `profile` finds the profile of a model by its name.
        doctor: checks, by questions alone.
        release: hands every job that is held for Hemiola back to the engine's own scheduler: those that were handed
            back, and those that could not be.
        options: what `connect` reads beside the partition.
        check: raises where a client cannot be served, before the first run.
        close: ends a client.
        answers: raises where the engine does not answer a quick question, for `hemiola top`; None: it is not asked.
        why_unknown: why Hemiola has no such job that the engine may have, and what to do about it; "" for what is not known.
        has_time_limits: whether each of its jobs has one.
    """

    name: str
    connect: Callable[[EngineConnection], Client]
    topology: Callable[[Client], Topology]
    version: Callable[[Client], str]
    driver: Callable[[Client, Session, Callable[[str], Profile]], LiveDriver]
    doctor: Callable[[Client, Examination], Iterator[Check]]
    release: Callable[[Client], tuple[list[str], list[str]]]
    options: tuple[EngineOption, ...] = ()
    check: Callable[[Client], None] = _nothing
    close: Callable[[Client], None] = _nothing
    answers: Callable[[Client], None] | None = None
    why_unknown: Callable[[Client, str, Topology], tuple[str, str]] | None = None
    has_time_limits: bool = False

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return self.name.capitalize()

    def signature(self, client: Client) -> str:
        """Its name and version, as the journal keeps them."""
        version = self.version(client)
        return version if self.signed(version) else f"{self.name} {version}"

    def signed(self, signature: str) -> bool:
        """Whether a journal's run was on this engine."""
        return signature.lower().startswith(self.name)

    @contextmanager
    def connected(self, connection: EngineConnection) -> Iterator[Client]:
        """A client, while the block lasts."""
        client = self.connect(connection)
        try:
            yield client
        finally:
            self.close(client)

    def options_of(self, verb: str) -> tuple[EngineOption, ...]:
        """Those that a command of `hemiola` takes as flags."""
        return tuple(option for option in self.options if verb in option.verbs)

    def says(self, connection: EngineConnection) -> str:
        """Whether it answers, in words; "" if it cannot be asked."""
        if self.answers is None:
            return ""
        try:
            with self.connected(connection) as client:
                self.answers(client)
        except EngineError as problem:
            return f"{self.title} is away: {problem.what}"
        return f"{self.title} answers"


def engine_service(
    engine: Engine[Client], client: Client, settings: SessionSettings, journal: Journal, topology: Topology, *,
    profiles: Path | None = None,
) -> LiveService:  # fmt: skip
    """`hemiola serve` on an engine.

    Args:
        profiles: a file of job profiles; those that come with Hemiola unless given.

    Raises:
        EngineError: the engine does not answer at all, or has no such cluster.
        InputError: no such profiles, or a folder that is not there.
    """
    from hemiola.live.job_labels import profiles_by_model
    from hemiola.live.service import LiveService

    profile = profiles_by_model(profiles)
    engine.check(client)
    return LiveService(settings, journal, topology, partial(_drive, engine, client, profile))


def _drive(
    engine: Engine[Client], client: Client, profile: Callable[[str], Profile], run: Session
) -> LiveDriver:
    return engine.driver(client, run, profile)
