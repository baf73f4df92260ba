"""How commands are told of an engine: by name or as package.module:NAME, with the flags that each engine declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hemiola.live.engines.base import Engine, EngineConnection, EngineOption
from hemiola.live.engines.registry import ENGINES, engine_from_text, engine_of_run

if TYPE_CHECKING:
    from hemiola.live.journal import Journal

__all__ = ["chosen_engine", "engine_of_journal", "with_engine_flags"]

Verb = TypeVar("Verb", bound=Callable[..., None])


def with_engine_flags(verb: str) -> Callable[[Verb], Verb]:
    """Give a command, in place of its `**options`, the flags of the engines that come with Hemiola.

    Its signature and its docstring then say them, and so do `--help` and the reference.
    """

    def add(command: Verb) -> Verb:
        options = [option for engine in ENGINES.values() for option in engine.options_of(verb)]
        told = inspect.signature(command)
        own = [each for each in told.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = told.replace(parameters=[*own, *map(_parameter, options)])  # type: ignore[attr-defined]
        command.__annotations__ |= {option.name: _kind(option) for option in options}
        about = "".join(f"{option.name}\n    {option.about}\n" for option in options)
        command.__doc__ = f"{inspect.getdoc(command) or ''}\n{about}"
        return command

    return add


def _parameter(option: EngineOption) -> inspect.Parameter:
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=_kind(option)
    )


def _kind(option: EngineOption) -> Any:
    return option.kind | None if option.default is None else option.kind


def chosen_engine(
    text: str, options: Mapping[str, Any], *, partition: str, has_topology: bool = False, acts: bool = False
) -> tuple[Engine[Any], EngineConnection]:
    """The engine that was asked for, and what it is told.

    Args:
        options: of the flags that `with_engine_flags` added, those that were given.

    Raises:
        InputError: there is no such engine, or an option is another engine's.
    """
    engine, given = engine_from_text(text)
    own = {option.name: option for option in engine.options}
    for name, value in options.items():
        if name in own:
            given.setdefault(name, value)
        else:
            _check_unused(name, value, engine)
    return engine, EngineConnection(partition=partition, given=given, has_topology=has_topology, acts=acts)


def _check_unused(name: str, value: Any, engine: Engine[Any]) -> None:
    """A flag of another engine would be passed over in silence."""
    from hemiola.core.errors import InputError

    flag = f"--{name.replace('_', '-')}"
    defaults = [option.default for each in ENGINES.values() for option in each.options if option.name == name]
    if not defaults:
        raise TypeError(f"no engine has an option {name!r}")
    if value not in defaults:
        raise InputError(
            f"{flag} is no option of the engine {engine.name}", f"leave out {flag}, or name its engine"
        )


def engine_of_journal(
    journal: Journal, text: str, options: Mapping[str, Any], *, partition: str
) -> tuple[Engine[Any] | None, EngineConnection]:
    """The engine that was asked for, or else the one of the journal's last run; None where that is from outside."""
    if text:
        return chosen_engine(text, options, partition=partition)
    runs = journal.runs()
    engine = engine_of_run(runs[-1].opening.engine if runs else "")
    own = {option.name for option in engine.options} if engine is not None else set()
    return engine, EngineConnection(
        partition=partition, given={name: value for name, value in options.items() if name in own}
    )
