"""`hemiola capture`: a model's training iteration as a file, and what is in it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hemiola.cli.output import terminal, writable

if TYPE_CHECKING:
    from rich.table import Table

    from hemiola.core.graph import Graph

__all__ = ["capture"]

Switch = Parameter(negative="")


def capture(
    target: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    json: Annotated[bool, Switch] = False,
    optimizer: str = "",
    accumulate: int = 1,
    autocast: Literal["bfloat16", "float16"] | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    name: str = "",
    samples: int | None = None,
) -> None:
    """Write down one training iteration of a PyTorch model as a graph, without running it.

    Parameters
    ----------
    target
        "file.py:function" or "package.module:function". The function takes no arguments and returns
        the model and its example inputs, and a loss if it has one: (model, inputs) or
        (model, inputs, loss).
    output
        Write the graph there, for "hemiola predict". A name that ends in ".gz" is compressed.
    json
        Print the summary as JSON.
    optimizer
        A class of torch.optim ("AdamW"); plain SGD unless given.
    accumulate
        Forward and backward so many times per iteration.
    autocast
        Mixed precision: forward and loss under torch.autocast.
    device
        Whose operations to capture; the model's own device unless given.
    name
        What to call the graph; the model's class unless given.
    samples
        How many the inputs hold; the first dimension of their first tensor unless given, the second where a
        module takes it as steps and samples.
    """
    from hemiola.profiler.capture import capture as capture_model
    from hemiola.trace.struct_json import as_text

    if output is not None:
        writable(output)
    with redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        model, inputs, loss = _example(target)
        graph = capture_model(
            model, inputs, loss, _optimizer(optimizer),
            accumulate=accumulate, autocast=autocast, device=device or "", name=as_text(name),
            samples=samples,
        )  # fmt: skip
    if output is not None:
        from hemiola.trace.graph_json import write_graph

        write_graph(graph, output)
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(_summary(graph)), indent=2).decode())
    else:
        _print_tables(graph)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)


def _example(target: str) -> tuple[Any, Any, Any]:
    """Call the user's function."""
    from hemiola.core.errors import InputError

    function = _load(target)
    try:
        returned = function()
    except ImportError as error:
        raise InputError(f"{target} failed: {error}", "install what it imports") from error
    except SystemExit as error:
        raise InputError(
            f"{target} ends the program{_last_line(error)}", "have it return the model and its inputs"
        ) from error
    except Exception as error:
        raise InputError(
            f"{target} failed: {type(error).__name__}: {error}{_last_line(error)}",
            "mend the function, then capture",
        ) from error
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        what = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise InputError(f"{target} returned {what}", "return (model, inputs) or (model, inputs, loss)")
    return returned if len(returned) == 3 else (*returned, None)


def _load(target: str) -> Callable[[], Any]:
    from hemiola.core.errors import InputError

    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(
            f"{target!r} names no function", 'write "file.py:function" or "package.module:function"'
        )
    try:
        module = _module(place)
    except InputError:
        raise
    except SystemExit as error:
        raise InputError(
            f"{place!r} cannot be imported: it ends the program{_last_line(error)}",
            'leave to the script what is not for an import: if __name__ == "__main__":',
        ) from error
    except Exception as error:
        lacks = isinstance(error, ImportError) and not f"{place}.".startswith(f"{error.name}.")
        raise InputError(
            f"{place!r} cannot be imported: {type(error).__name__}: {error}{_last_line(error)}",
            "install what it imports" if lacks else "name a file or module that can be imported from here",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        offered = [
            key for key, value in own.items() if isfunction(value) and value.__module__ == module.__name__
        ]
        raise InputError(
            f"{place!r} has no function {name!r}",
            f"it has {', '.join(offered)}" if offered else "check its name",
        )
    return function  # type: ignore[no-any-return]


def _module(place: str) -> Any:
    from hemiola.core.errors import InputError

    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise InputError(f"there is no file {place!r}", "check the path")
    sys.path.insert(0, str(path.resolve().parent))  # so that it finds the modules beside it, as a script does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _last_line(error: BaseException) -> str:
    """Where in the user's code it happened."""
    import traceback

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def _optimizer(name: str) -> Any:
    """The class of torch.optim with that name, in any case."""
    if not name:
        return None
    try:
        from torch import optim
    except ModuleNotFoundError:
        return name  # refused, with the remedy, by the capture itself
    from hemiola.core.errors import InputError

    known = {
        key.lower(): value
        for key, value in vars(optim).items()
        if isinstance(value, type) and issubclass(value, optim.Optimizer) and value is not optim.Optimizer
    }
    if name.lower() not in known:
        names = ", ".join(sorted(value.__name__ for value in known.values()))
        raise InputError(f"torch.optim has no {name!r}", f"choose one of {names}")
    return known[name.lower()]


def _summary(graph: Graph) -> dict[str, Any]:
    """The figures of `--json`."""
    import math

    from hemiola.core.graph import PHASES

    operations = graph.operations
    phases = {
        phase: {
            "operations": int((operations.phase == i).sum()),
            "flop": float(operations.flop[operations.phase == i].sum()),
        }
        for i, phase in enumerate(PHASES)
    }
    return {
        "name": graph.name,
        "operations": len(operations),
        "flop": graph.flop,
        "parameters": sum(math.prod(parameter.shape) for parameter in graph.parameters),
        "parameter_tensors": len(graph.parameters),
        "parameter_bytes": graph.parameter_bytes,
        "gradient_bytes": sum(parameter.gradient_bytes for parameter in graph.parameters),
        "optimizer_bytes": graph.optimizer_bytes,
        "saved_bytes": graph.saved_bytes,
        "samples": graph.samples,
        "phases": phases,
        "blocks": list(graph.blocks),
        "source": graph.source,
    }


def _print_tables(graph: Graph) -> None:
    from rich.text import Text

    from hemiola.core.graph import KINDS
    from hemiola.core.units import format_bytes

    figures = _summary(graph)
    console = terminal(highlight=False)
    console.print(Text.assemble((graph.name, "bold"), f": {graph.source}"))
    console.print(
        f"{figures['operations']:,} operations, {_flop(graph.flop)} per iteration; "
        f"{_count(figures['parameters'])} parameters in {figures['parameter_tensors']} tensors "
        f"({format_bytes(graph.parameter_bytes)}); activations {format_bytes(graph.saved_bytes)}, "
        f"{f'optimizer state {format_bytes(graph.optimizer_bytes)}' if graph.optimizer_bytes else 'no optimizer state'}"
    )
    kinds = [KINDS[kind] for kind in graph.operations.kind]
    console.print(_table(graph, "kind", kinds))
    console.print(_table(graph, "module", _places(graph)))


def _places(graph: Graph) -> list[str]:
    """Each operation's module as the summary groups them: repeated blocks together."""
    together = f"{graph.blocks[0]} and {len(graph.blocks) - 1} more like it" if graph.blocks else ""
    groups = []
    for path in graph.modules:
        inside = any(path == block or path.startswith(f"{block}.") for block in graph.blocks)
        groups.append(together if inside else path or "the model itself")
    return [groups[module] for module in graph.operations.module]


def _table(graph: Graph, title: str, groups: list[str]) -> Table:
    import numpy as np
    from rich.table import Table

    from hemiola.core.units import format_bytes

    operations = graph.operations
    moved_bytes = operations.read_bytes + operations.written_bytes
    names, group = np.unique(np.array(groups, dtype=object).astype(str), return_inverse=True)
    flop, size_bytes = np.bincount(group, operations.flop), np.bincount(group, moved_bytes)
    table = Table(title, "operations", "FLOP", "bytes moved")
    for column in table.columns[1:]:
        column.justify = "right"
    for i in sorted(range(len(names)), key=lambda i: (-flop[i], -size_bytes[i])):
        count = int((group == i).sum())
        table.add_row(str(names[i]), f"{count:,}", _flop(flop[i]), format_bytes(size_bytes[i]))
    return table


def _flop(flop: float) -> str:
    return f"{_count(flop)}FLOP" if flop else "0"


def _count(number: float) -> str:
    for letter, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.2f} {letter}"
    return f"{number:.0f} "
