"""What every verb of the command line says in the same way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from hemiola.train.launch import Output, World


__all__ = [
    "fail",
    "folder_writable",
    "hosts_of",
    "output_of",
    "passed_on",
    "placement_of",
    "terminal",
    "writable",
]


_ELSEWHERE = "name a path that you may write to"


def fail(what: str, remedy: str) -> int:
    """Print an error and its hint; return the exit status for bad input."""
    print(f"error: {what}\n  hint: {remedy}", file=sys.stderr)
    return 2


def terminal(*, stderr: bool = False, highlight: bool = True) -> Console:
    """Where a verb prints: names and paths are printed as they are, whatever Rich would read in their brackets."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=highlight, markup=False, emoji=False)


def writable(*paths: Path | None) -> None:
    """Refuse a path that cannot be written, or that two outputs share, before the work, not after it.

    Args:
        paths: of the verb's outputs; None for one that was not asked for.
    """
    from hemiola.core.errors import InputError

    named: set[Path] = set()
    for path in filter(None, paths):
        _check(path)
        place = path.resolve()
        if place in named and (path.is_file() or not path.exists()):  # a device takes both
            raise InputError(f"two outputs would both be {path}", "give each a path of its own")
        named.add(place)


def folder_writable(path: Path) -> None:
    """Refuse a folder that can neither be written into nor be made, before the work."""
    from hemiola.core.errors import InputError

    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", _ELSEWHERE) from error
    if is_there and not is_folder:
        raise InputError(f"{path} is a file", "give the path of a folder")
    _check(path / "README.txt" if is_folder else path)


def _check(path: Path) -> None:
    from hemiola.core.errors import InputError

    try:
        folder = (path.resolve() if path.is_symlink() else path.absolute()).parent
        is_folder, has_folder, is_there = path.is_dir(), folder.is_dir(), path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", _ELSEWHERE) from error
    if is_folder:
        raise InputError(f"{path} is a folder", "give the path of a file")
    if not has_folder:
        raise InputError(f"there is no folder {folder}", f"create it, or write {path.name} elsewhere")
    if is_there and not os.access(path, os.W_OK):
        raise InputError(f"{path} is there and cannot be written", _ELSEWHERE)
    replaced = not is_there or path.is_file()
    if replaced and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: the folder {folder} cannot be changed", _ELSEWHERE)


# Arguments that several verbs read alike.


def placement_of(text: str) -> tuple[int, ...] | None:
    """Ranks per host from "4,4,2"; None for "".

    Raises:
        InputError: if it is something else.
    """
    from hemiola.core.errors import InputError

    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"the placement {text!r}", "write the ranks of each host in order, such as 4,4,2")
    return tuple(int(part) for part in parts)


# What verbs that start ranks share: the hosts that are named, what these are told, and where output goes.

PASSED_ON = ("CUDA_", "GLOO_", "HEMIOLA_", "HF_", "LD_LIBRARY_PATH", "MKL_", "NCCL_", "OMP_", "PATH", "PYTHON", "TORCH", "UCX_",
             "VIRTUAL_ENV", "WANDB_")  # fmt: skip
"""Beginnings of the variables that other hosts get; the rest is theirs. Secrets among them stay off command lines."""


def hosts_of(text: str, fewest: int = 0) -> tuple[str, ...]:
    """Names from "n[0-3]" or "a,b"; none from "".

    Raises:
        InputError: one stands there twice, or there are too few.
    """
    from hemiola.core.errors import InputError
    from hemiola.core.hostlist import expand

    names = tuple(expand(text))
    if len(set(names)) != len(names):
        raise InputError(
            f"--hosts {text} names a host twice", "name every host once; --nproc gives it more ranks"
        )
    if len(names) < fewest:
        raise InputError(f"--hosts {text}", f"name {fewest} hosts or more")
    return names


def passed_on() -> dict[str, str]:
    """The variables of this process that other hosts get."""
    return {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}


def output_of(world: World, logs: Path | None = None, shown: frozenset[int] | None = None) -> Output:
    """What ranks print goes to this process's output, with the rank before each line where there are several."""
    from hemiola.train.launch import Output

    coloured = sys.stdout.isatty() and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return Output(
        world.ranks == 1, sys.stdout.buffer, sys.stderr.buffer, coloured=coloured, logs=logs, shown=shown
    )
