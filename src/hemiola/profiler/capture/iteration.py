"""One training iteration, step by step, on stand-ins for tensors that have shapes and no values."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import _foreach_supported_types
from torch.utils._pytree import tree_leaves

from hemiola.core.errors import GraphError, InputError
from hemiola.core.graph import Buffer, Graph, Operations, Parameter
from hemiola.profiler.capture.fakes import Fakes, explained, forget_stand_ins, quiet, substituted
from hemiola.profiler.capture.recorder import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    ModulePaths,
    OperationColumns,
    OperationRecorder,
    dtype_name,
    peak_bytes,
    repeated_blocks,
)

__all__ = ["CaptureOptions", "ModelState", "assemble", "capture_iteration", "inventory_of"]

# The optimizer that steps over stand-ins: made from what the user gave, which is not touched.


def optimizer_over(
    given: Any, trained: list[torch.Tensor], fakes: Fakes, known: set[int]
) -> torch.optim.Optimizer:
    """An optimizer over stand-ins.

    Args:
        given: an optimizer over the model's parameters, something that makes one from a list of
            parameters, or None for plain SGD.
        trained: the stand-ins of the trainable parameters.
        fakes: gives the stand-in of a parameter.
        known: identities of the model's parameters.
    """
    optimizer = _made_or_copied(given, trained, fakes, known)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise GraphError(
            f"{type(optimizer).__name__} evaluates the model within its step, as often as it likes",
            "capture with an optimizer whose step takes no closure",
        )
    return optimizer


def _made_or_copied(
    given: Any, trained: list[torch.Tensor], fakes: Fakes, known: set[int]
) -> torch.optim.Optimizer:
    if given is None:
        return torch.optim.SGD(trained, lr=0.01)
    if isinstance(given, torch.optim.Optimizer):
        return _copy(given, fakes, known)
    if not callable(given):
        raise InputError(
            f"the optimizer is a {type(given).__name__}",
            "give a torch.optim optimizer, its class, or a function from a list of parameters to one",
        )
    made = given(trained)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"the optimizer's function returned a {type(made).__name__}", "return a torch.optim optimizer"
        )
    return made


def _copy(given: torch.optim.Optimizer, fakes: Fakes, known: set[int]) -> torch.optim.Optimizer:
    for group in given.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise GraphError(
                    f"the optimizer updates a tensor of shape {tuple(parameter.shape)} that is no parameter of the model",
                    "make the optimizer from this model's parameters",
                )
    copy = object.__new__(type(given))
    vars(copy).update({name: value for name, value in vars(given).items() if name != "step"})
    for name, value in vars(given).items():
        if name.startswith("_optimizer_") and isinstance(value, OrderedDict):
            setattr(copy, name, OrderedDict())
    copy.param_groups = [
        {
            name: [fakes(parameter) for parameter in value] if name == "params" else _stand_in(value, fakes)
            for name, value in group.items()
        }
        for group in given.param_groups
    ]
    copy.state = defaultdict(dict)
    for parameter, state in given.state.items():
        copy.state[fakes(parameter)] = {name: _stand_in(value, fakes) for name, value in state.items()}
    return copy


def _stand_in(value: Any, fakes: Fakes) -> Any:
    """A tensor's stand-in; of a single number (a step count, a rate) one that keeps its value."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 1 and value.device.type == "cpu":
        with torch._C._DisableTorchDispatch():
            number = value.item()
        return torch.tensor(number, dtype=value.dtype).reshape(value.shape)
    return fakes(value)


@contextmanager
def many_at_once() -> Iterator[None]:
    """Let optimizers update stand-ins as they would the parameters: on a GPU many by one kernel.

    PyTorch does so by itself where it knows the type of every parameter, which a stand-in's it does not.
    """
    _foreach_supported_types.append(FakeTensor)
    try:
        yield
    finally:
        _foreach_supported_types.remove(FakeTensor)


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[torch.Tensor]]:
    """The tensors that the optimizer keeps, by the parameter that it keeps them for."""
    return {
        parameter: [value for value in state.values() if isinstance(value, torch.Tensor)]
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, torch.Tensor)
    }


# The scalar that backward starts from: the user's loss of the output, or what the output offers.


def scalar_loss(output: Any, loss: Any) -> tuple[torch.Tensor, str]:
    """The loss, and in words where it came from."""
    if loss is not None:
        return _scalar(loss(output), "the given loss"), "the given loss"
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if own is not None:
        return _scalar(own, "the output's loss"), "the output's own"
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return _scalar(output, "the output"), "the output itself"
    parts = [tensor for tensor in _tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not parts:
        raise GraphError(
            f"the model's output ({_kind(output)}) has no tensor that depends on a trainable parameter",
            "give a loss, or check which parameters require gradients",
        )
    total = parts[0].sum()
    for part in parts[1:]:
        total = total + part.sum()
    return total, "the sum of the output, for want of a loss"


def _kind(output: Any) -> str:
    return "a tensor" if isinstance(output, torch.Tensor) else type(output).__name__


def _scalar(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise GraphError(f"{what} is {shape}, not a scalar tensor", "return a scalar, such as loss.mean()")
    if not value.requires_grad:
        raise GraphError(
            f"{what} depends on no trainable parameter", "check requires_grad, and that nothing is detached"
        )
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from _tensors(getattr(value, entry.name))


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture: see `hemiola.profiler.capture.capture`."""

    accumulate: int = 1
    autocast: str | None = None
    device: str = ""
    name: str = ""
    samples: int | None = None


def capture_iteration(given: Any, inputs: Any, loss: Any, optimizer: Any, options: CaptureOptions) -> Graph:
    """Capture: see `hemiola.profiler.capture.capture`."""
    model = _unwrapped(given)
    _check(options, loss)
    device = _device(model, options.device)
    inventory = inventory_of(model)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type == "meta":
            stack.enter_context(device)  # what the model makes for itself shall be where its stand-ins are
        stack.callback(forget_stand_ins, stack.enter_context(FakeTensorMode()))
        fakes = Fakes(device)
        stack.enter_context(quiet())
        stack.enter_context(substituted(model, fakes))
        paths = ModulePaths(model)
        run = _Iteration(model, inventory, paths, fakes, device, options)
        stack.enter_context(paths.followed())
        loss_source = run.forward_and_backward(_arguments(inputs, fakes), loss)
        state_bytes, optimizer_source = run.update(optimizer)
        source = _source(model, device, options, loss_source, optimizer_source, run.recorder.uncounted)
        samples = _samples(inputs, paths.sequences) if options.samples is None else options.samples
        return assemble(
            run.recorder, inventory, paths, run.gradient_ready, run.gradient_bytes,
            name=options.name or type(model).__name__, model=model, source=source,
            samples=samples * options.accumulate, optimizer_bytes=state_bytes,
        )  # fmt: skip


class _Iteration:
    """The iteration while it is recorded."""

    def __init__(
        self,
        model: nn.Module,
        inventory: ModelState,
        paths: ModulePaths,
        fakes: Fakes,
        device: torch.device,
        options: CaptureOptions,
    ) -> None:
        self._model = model
        self._inventory = inventory
        self._fakes = fakes
        self._device = device
        self._options = options
        self._parameters = [fakes(parameter) for parameter in inventory.parameters]
        owners = [paths.place(names[0].rpartition(".")[0]) for names in inventory.names]
        known = {
            id(real): names[0] for real, names in zip(inventory.parameters, inventory.names, strict=True)
        }
        self.recorder = OperationRecorder(paths, self._parameters, owners, fakes, known)
        self.gradient_ready: dict[int, int] = {}
        self.gradient_bytes: dict[int, int] = {}
        for i, parameter in enumerate(self._parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda ready, i=i: self._accumulated(i, ready))

    def forward_and_backward(self, arguments: tuple[list[Any], dict[str, Any]], loss: Any) -> str:
        """Every micro-step; returns where the loss came from."""
        source = ""
        for tensor in tree_leaves(arguments):
            if isinstance(tensor, torch.Tensor):
                self.recorder.storages.of(tensor, born=0, counted=True)
        for micro_step in range(self._options.accumulate):
            self.recorder.micro_step = micro_step
            self.recorder.phase = FORWARD
            with self.recorder, self._precision():
                with explained("the model's forward"):
                    output = self._model(*arguments[0], **arguments[1])
                with explained("the loss"):
                    value, source = scalar_loss(output, loss)
            self.recorder.phase = BACKWARD
            self.recorder.links.begin_backward(value)
            with self.recorder, explained("the model's backward"):
                value.backward()
        return source

    def update(self, given: Any) -> tuple[int, str]:
        """The optimizer's step, as it is once its state exists; returns the state's bytes, and what it was."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if not trained:
            raise GraphError(
                "the model has no trainable parameter: there is nothing to optimize",
                "check requires_grad, or capture the whole model that is trained",
            )
        self.recorder.phase = OPTIMIZER
        with (
            explained("the optimizer's step", "capture with another optimizer, such as AdamW"),
            many_at_once(),
        ):
            known = {id(parameter) for parameter in self._inventory.parameters}
            optimizer = optimizer_over(given, trained, self._fakes, known)
            optimizer.step()
            state_bytes = self._note_state(optimizer)
            with self.recorder:
                optimizer.step()
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        return state_bytes, f"{type(optimizer).__name__}(lr={rate})" + (
            "" if given is not None else " by default"
        )

    def _precision(self) -> Any:
        dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, None: None}[self._options.autocast]
        return torch.autocast(self._device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)

    def _accumulated(self, i: int, parameter: torch.Tensor) -> None:
        self.gradient_ready[i] = len(self.recorder.rows) - 1
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            name = self._inventory.names[i][0]
            raise GraphError(f"the gradient of {name!r} is sparse", "capture the model with `sparse=False`")
        self.gradient_bytes[i] = gradient.numel() * gradient.itemsize
        storage = self.recorder.storages.of(gradient)
        storage.counted, storage.parameter = False, i

    def _note_state(self, optimizer: torch.optim.Optimizer) -> int:
        index = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        size_bytes = 0
        for parameter, tensors in state_tensors(optimizer).items():
            for tensor in tensors:
                self.recorder.storages.of(tensor).parameter = index[id(parameter)]
                size_bytes += tensor.numel() * tensor.itemsize
        return size_bytes


def _unwrapped(model: Any) -> nn.Module:
    """The module inside of what DistributedDataParallel or torch.compile put around it."""
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) or hasattr(
        model, "_orig_mod"
    ):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}", "give a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise GraphError("the model is compiled by torch.jit", "capture the module that it was made from")
    return model


def _check(options: CaptureOptions, loss: Any) -> None:
    if not isinstance(options.accumulate, int) or options.accumulate < 1:
        raise InputError(
            f"accumulate is {options.accumulate!r}", "give a number of micro-steps of at least 1"
        )
    if options.samples is not None and (not isinstance(options.samples, int) or options.samples < 1):
        raise InputError(
            f"samples is {options.samples!r}", "give a number of samples of at least 1, or nothing"
        )
    if options.autocast not in (None, "bfloat16", "float16"):
        raise InputError(f"autocast is {options.autocast!r}", 'give "bfloat16", "float16" or nothing')
    if loss is not None and not callable(loss):
        raise InputError(
            f"the loss is a {type(loss).__name__}",
            "give a function from the model's output to a scalar tensor",
        )
    if isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None:
        raise GraphError(
            f"the loss ({type(loss).__name__}) has parameters of its own",
            "make it part of the model: a module whose forward returns the loss",
        )


def _device(model: nn.Module, asked: str) -> torch.device:
    own = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        device = torch.device(asked) if asked else own
    except (RuntimeError, TypeError) as error:
        raise _no_device(asked) from error
    if asked and device.type not in ("cpu", "cuda"):
        raise _no_device(asked)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "operations for a GPU cannot be captured here: this PyTorch finds no GPU",
            'capture with device "cpu"',
        )
    return device if device.type == "cuda" else torch.device("cpu")


def _no_device(asked: str) -> InputError:
    return InputError(f"operations for the device {asked!r} cannot be captured", 'give "cpu" or "cuda"')


def _arguments(inputs: Any, fakes: Fakes) -> tuple[list[Any], dict[str, Any]]:
    for tensor in tree_leaves(inputs):
        if isinstance(tensor, torch.Tensor) and (tensor.is_nested or tensor.layout is not torch.strided):
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
            raise GraphError(f"an input is {kind}", "give a padded or dense tensor in its place")
    if isinstance(inputs, Mapping):
        return [], {str(name): fakes.within(value) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
        return [fakes.within(value) for value in inputs], {}
    return [fakes.within(inputs)], {}


def _samples(inputs: Any, sequences: Collection[tuple[int, ...]]) -> int:
    """The first dimension of the first tensor, or the second where a module took such a one as (steps, samples, ...); 0
    without one."""
    if isinstance(inputs, torch.Tensor):
        return inputs.shape[int(tuple(inputs.shape[:2]) in sequences)] if inputs.dim() else 0
    values = (
        inputs.values()
        if isinstance(inputs, Mapping)
        else inputs
        if isinstance(inputs, (list, tuple))
        else ()
    )
    return next((found for value in values if (found := _samples(value, sequences))), 0)


def _source(
    model: nn.Module,
    device: torch.device,
    options: CaptureOptions,
    loss: str,
    optimizer: str,
    uncounted: list[str],
) -> str:
    facts = [
        f"captured with PyTorch {torch.__version__} for {device.type}",
        f"loss: {loss}",
        f"optimizer: {optimizer}",
        f"{options.accumulate} micro-steps" if options.accumulate > 1 else "",
        f"autocast to {options.autocast}" if options.autocast else "",
        "" if model.training else "the model is in evaluation mode",
        f"no FLOP are known of {', '.join(uncounted)}" if uncounted else "",
    ]
    return "; ".join(fact for fact in facts if fact)


# The graph, from what was recorded.

# What state a model has: parameters and buffers, each once, with all their names.


@dataclass(frozen=True, eq=False)
class ModelState:
    """A model's state.

    Attributes:
        parameters: in the model's order, tied ones once.
        names: of each parameter all names, its first first.
        buffers: as the graph lists them.
    """

    parameters: tuple[torch.Tensor, ...]
    names: tuple[tuple[str, ...], ...]
    buffers: tuple[Buffer, ...]


def inventory_of(model: nn.Module) -> ModelState:
    """The parameters and buffers that a model really has (not their stand-ins)."""
    parameters: dict[int, torch.Tensor] = {}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameters[id(parameter)] = parameter
        names.setdefault(id(parameter), []).append(name)
    buffers = tuple(
        Buffer(
            name=name,
            module=name.rpartition(".")[0],
            shape=tuple(buffer.shape),
            dtype=dtype_name(buffer.dtype),
            size_bytes=size_bytes(buffer),
        )
        for name, buffer in model.named_buffers()
    )
    return ModelState(tuple(parameters.values()), tuple(tuple(names[key]) for key in parameters), buffers)


def size_bytes(tensor: torch.Tensor) -> int:
    """Of its elements."""
    return int(tensor.numel() * tensor.itemsize)


def assemble(
    recorder: OperationRecorder,
    inventory: ModelState,
    paths: ModulePaths,
    gradient_ready: dict[int, int],
    gradient_bytes: dict[int, int],
    *,
    model: nn.Module,
    name: str,
    samples: int,
    optimizer_bytes: int,
    source: str,
) -> Graph:
    """Put a checked graph together; `gradient_ready` and `gradient_bytes` are by place of the parameter."""
    parameters = tuple(
        Parameter(
            name=names[0],
            aliases=names[1:],
            module=names[0].rpartition(".")[0],
            shape=tuple(parameter.shape),
            dtype=dtype_name(parameter.dtype),
            size_bytes=size_bytes(parameter),
            gradient_bytes=gradient_bytes.get(i, 0),
            trainable=parameter.requires_grad,
            first_use=recorder.first_use.get(i, -1),
            gradient_ready=gradient_ready.get(i, -1),
            updated=recorder.updated.get(i, -1),
        )
        for i, (parameter, names) in enumerate(zip(inventory.parameters, inventory.names, strict=True))
    )
    return Graph(
        name=name,
        operations=_columns(recorder.rows),
        modules=tuple(paths.paths),
        blocks=repeated_blocks(model),
        signatures=tuple(recorder.signatures.all),
        parameters=parameters,
        buffers=inventory.buffers,
        samples=samples,
        saved_bytes=peak_bytes(recorder.storages.all, len(recorder.rows)),
        optimizer_bytes=float(optimizer_bytes),
        source=source,
    ).check()


def _columns(rows: OperationColumns) -> Operations:
    return Operations(
        name=tuple(rows.name),
        kind=np.array(rows.kind, dtype=np.int8),
        phase=np.array(rows.phase, dtype=np.int8),
        micro_step=np.array(rows.micro_step, dtype=np.int16),
        flop=np.array(rows.flop, dtype=np.float64),
        read_bytes=np.array(rows.read_bytes, dtype=np.float64),
        written_bytes=np.array(rows.written_bytes, dtype=np.float64),
        module=np.array(rows.module, dtype=np.int64),
        forward=np.array(rows.forward, dtype=np.int64),
        signature=np.array(rows.signature, dtype=np.int64),
        dep_start=np.array(rows.dep_start, dtype=np.int64),
        dep=np.array(rows.dep, dtype=np.int64),
    )
