"""Python runs this before a script. It runs the sitecustomize that would have been run, then waits for torch.

A script that never imports torch is left alone; whatever fails here is said in one line and does no harm.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow every start


def _run_the_other_one() -> None:
    """The sitecustomize that this one hides, if there is one."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start() -> None:
    """Torch is there: record."""
    try:
        try:
            from hemiola.profiler.trace.injected import start
        except ImportError:  # another environment than that of `hemiola trace`: use its copy
            sys.path.append(os.environ["HEMIOLA_RECORD_HOME"])
            from hemiola.profiler.trace.injected import start
        start()
    except Exception as problem:
        print(f"hemiola: this process is not recorded: {problem!r}", file=sys.stderr)


def _wait_for_torch() -> None:
    try:
        import_module("_hemiola_when_imported").when_imported("torch", _start)
    except Exception as problem:
        print(f"hemiola: this process is not recorded: {problem!r}", file=sys.stderr)


if os.environ.get("HEMIOLA_RECORD"):
    _wait_for_torch()
_run_the_other_one()
