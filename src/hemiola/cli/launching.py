"""What verbs that start ranks share: the hosts that are named, what these are told, and where output goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hemiola.train.launch import Output, World

__all__ = ["hosts_of", "output_of", "passed_on"]

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
