"""The optimizer that steps over stand-ins: made from what the user gave, which is not touched."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types

from hemiola.core.errors import GraphError, InputError
from hemiola.profiler.capture.fakes import Fakes

__all__ = ["many_at_once", "optimizer_over", "state_tensors"]


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
