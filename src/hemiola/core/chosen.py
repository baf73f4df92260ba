"""Values that people choose by text: a known name, or something of their own from a module or a file.

Policies and planners are written alike: "name", "name:parameter=value,...", "package.module:NAME[,parameter=value]"
or "path/to/file.py:NAME[,...]". What a NAME stands for is a frozen dataclass, or a value of one.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from hemiola.core.errors import HemiolaError

__all__ = ["Family", "parameters", "split_choices"]

T = TypeVar("T")

YES_OR_NO = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parameters(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The parameters of what is chosen, by name."""
    return {f.name: f for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}


def split_choices(text: str) -> list[str]:
    """Several choices in one text: commas part them, and part a choice's own parameters too.

    What has a "=" before any ":" is a parameter of the choice before it.
    """
    found: list[str] = []
    for part in filter(None, text.split(",")):
        name, equals, _ = part.partition("=")
        if found and equals and ":" not in name:
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    return found


@dataclass(frozen=True)
class Family(Generic[T]):
    """What kind of value is chosen, for its words in errors and for what it has to offer.

    Attributes:
        word: what one is called.
        method: what each has, with its arguments.
        base: what to derive one from.
        error: what a bad text raises.
        readers: of parameters that are no numbers, truths or text: from their type's name to what reads one.
    """

    word: str
    method: str
    base: str
    error: type[HemiolaError]
    readers: Mapping[str, Callable[[str, str], Any]] = field(default_factory=dict, hash=False)

    def read(self, text: str, known: Mapping[str, type[T]]) -> T:
        """The value that a text asks for.

        Args:
            known: names to choose from.

        Raises:
            HemiolaError: of the family's kind: an unknown name, parameter or value, naming what is known.
        """
        name, _, rest = text.partition(":")
        if name in known:
            return self.build(known[name], rest, text)
        first = rest.split(",")[0]
        if "." in name or "/" in name or (first.isidentifier() and "=" not in first):
            attribute, _, options = rest.partition(",")
            return self.build(self._outside(name, attribute, text), options, text)
        close = get_close_matches(name, known, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise self.error(
            f"no {self.word} is called {name!r}",
            f"{guess}choose one of {', '.join(known)}, or package.module:Class",
        )

    def build(self, found: type[T] | T, options: str, text: str) -> T:
        """A value of a class, or a value that is there already, with these parameters."""
        kind = found if isinstance(found, type) else type(found)
        values = self._values(parameters(kind), options, text)
        if not isinstance(found, type):
            return cast(T, dataclasses.replace(cast(Any, found), **values)) if values else found
        missing = [name for name, f in parameters(kind).items() if name not in values and not _has_default(f)]
        if missing:
            raise self.error(f"{text!r}: {missing[0]!r} has no value", f"write {missing[0]}=VALUE")
        try:
            return cast(T, found(**values))
        except TypeError as error:
            raise self.error(
                f"{text!r}: {error}", "make it a dataclass whose fields have defaults"
            ) from error

    def _values(
        self, fields: Mapping[str, dataclasses.Field[Any]], options: str, text: str
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for option in filter(None, options.split(",")):
            name, equals, value = option.partition("=")
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise self.error(f"{text!r}: no parameter is called {name!r}", f"its parameters are: {known}")
            if name in values:
                raise self.error(f"{text!r} gives {name!r} twice", "give each parameter once")
            if not equals:
                raise self.error(f"{text!r}: {name!r} has no value", f"write {name}=VALUE")
            values[name] = self._value(value, fields[name], text)
        return values

    def _value(self, value: str, field: dataclasses.Field[Any], text: str) -> Any:
        kind = field.type if isinstance(field.type, str) else field.type.__name__
        kind = kind.removesuffix(" | None")
        try:
            if kind in self.readers:
                return self.readers[kind](value, text)
            if kind == "bool":
                return YES_OR_NO[value.lower()]
            return {"int": int, "float": float}.get(kind, str)(value)
        except (ValueError, KeyError):
            raise self.error(
                f"{text!r}: {field.name}={value!r} is not a {kind}", f"the default is {field.default}"
            ) from None

    def _outside(self, place: str, attribute: str, text: str) -> type[T] | T:
        """What a module or a file calls by that name."""
        module = self._from_file(place, text) if place.endswith(".py") else self._imported(place, text)
        found = getattr(module, attribute, None)
        if found is None:
            raise self.error(
                f"{text!r}: {place} has no {attribute!r}", "write package.module:Class, or file.py:Class"
            )
        if not callable(getattr(found, self.method.partition("(")[0], None)):
            raise self.error(f"{text!r} has no method {self.method}", f"derive it from {self.base}")
        return cast("type[T] | T", found)

    def _imported(self, module: str, text: str) -> ModuleType:
        own = f"my_{self.word}"
        remedy = (
            f"write {own}:My{self.word.title()}, and put the folder of {own}.py on PYTHONPATH, or give the file: "
            f"path/to/{own}.py:My{self.word.title()}"
        )
        if not module or module.startswith("."):
            raise self.error(f"{text!r}: {module!r} is no module", remedy)
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise self.error(f"{text!r}: cannot import {module!r}: {error}", remedy) from error
        except (Exception, SystemExit) as error:
            raise self._broken(text, module, error, f"import {module}") from error

    def _from_file(self, place: str, text: str) -> ModuleType:
        """A file as a module, once; under its path, so that it hides no other."""
        if not Path(place).is_file():
            raise self.error(f"{text!r}: there is no file {place!r}", "give the path of a Python file")
        name = str(Path(place).resolve())
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise self._broken(text, place, error, f"import runpy; runpy.run_path({place!r})") from error
        return module

    def _broken(self, text: str, place: str, error: BaseException, way: str) -> HemiolaError:
        what = "it ends the program" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        return self.error(
            f"{text!r}: cannot import {place!r}: {what}", f"see where, and mend it: python -c {way!r}"
        )


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
