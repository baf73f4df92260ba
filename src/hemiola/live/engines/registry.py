"""The engines that come with Hemiola, and how to ask for one by name.

An engine from outside needs no entry here: `--engine mypackage.module:ENGINE`.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from hemiola.core.errors import InputError
from hemiola.live.engines.base import Engine, EngineOption
from hemiola.live.engines.ray.engine import RAY
from hemiola.live.engines.slurm.engine import SLURM

__all__ = ["DEFAULT", "ENGINES", "ChosenEngine", "engine_from_text", "engine_of_run", "is_same_engine"]

ENGINES: dict[str, Engine[Any]] = {engine.name: engine for engine in (SLURM, RAY)}
DEFAULT = next(iter(ENGINES))
"""Where nobody says which."""
REMEDY = "write my_engine:ENGINE, and put the folder of my_engine.py on PYTHONPATH"


class ChosenEngine(NamedTuple):
    """An engine, and what was said of its options beside it."""

    engine: Engine[Any]
    given: dict[str, Any]


def engine_from_text(text: str) -> ChosenEngine:
    """An engine from "name" or "package.module:NAME", each with its options behind it: ",option=value,...".

    Raises:
        InputError: an unknown name, module, option or value, naming what is known.
    """
    name, *said = text.split(",")
    module, colon, attribute = name.partition(":")
    if name in ENGINES:
        engine = ENGINES[name]
    elif colon:
        engine = _outside(module, attribute, name)
    else:
        raise InputError(
            f"no engine is called {name!r}", f"choose one of {', '.join(ENGINES)}, or package.module:NAME"
        )
    return ChosenEngine(engine, dict(_option(engine, words, text) for words in said))


def engine_of_run(signature: str) -> Engine[Any] | None:
    """The engine of a journal's run by what the run says of it; None for one from outside: nobody imports what a journal names."""
    if not signature:
        return ENGINES[DEFAULT]
    return next((engine for engine in ENGINES.values() if engine.signed(signature)), None)


def is_same_engine(one: str, other: str) -> bool:
    """Whether two runs of journals were on the same engine, in whatever versions."""
    engine = engine_of_run(one)
    return engine is engine_of_run(other) and (engine is not None or one.split()[0] == other.split()[0])


def _outside(module: str, attribute: str, text: str) -> Engine[Any]:
    if not module or module.startswith("."):
        raise InputError(f"{text!r}: {module!r} is no module", REMEDY)
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{text!r}: cannot import {module!r}: {error}", REMEDY) from error
    except (Exception, SystemExit) as error:
        what = "it ends the program" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"{text!r}: cannot import {module!r}: {what}",
            f"see where, and mend it: python -c 'import {module}'",
        ) from error
    found = getattr(imported, attribute, None)
    if found is None:
        raise InputError(f"{text!r}: {module} has no {attribute!r}", "write package.module:NAME")
    if not isinstance(found, Engine):
        raise InputError(
            f"{text!r} is a {type(found).__name__}, and no engine",
            "make it a hemiola.live.engines.base.Engine",
        )
    return found


def _option(engine: Engine[Any], words: str, text: str) -> tuple[str, Any]:
    name, equals, value = words.partition("=")
    known: dict[str, EngineOption] = {option.name: option for option in engine.options}
    if name not in known:
        raise InputError(
            f"{text!r}: {engine.name} has no option {name!r}",
            f"its options are: {', '.join(known) or 'none'}",
        )
    if not equals:
        raise InputError(f"{text!r}: {name!r} has no value", f"write {name}=VALUE")
    return name, known[name].parsed(value, repr(text))
