"""What scripts read from DistributedDataParallel and set on it, and how an accelerated model takes that.

What DDP looks at again in each forward counts here too, whoever is in charge. The rest DDP has from its constructor: it can be
read where it has a meaning here, and to set it to something else is an error, for nobody would follow it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hemiola.core.errors import InputError

__all__ = [
    "WrapperSettings",
    "exchanged",
    "given_of",
    "ignored_by",
    "is_ddps",
    "is_so_already",
    "read_only",
    "why_not_read",
]

_OWN = frozenset(
    (
        "batched_grad_copy", "broadcast_bucket_size", "bucket_bytes_cap", "bucket_bytes_cap_default",
        "bucket_bytes_cap_list", "buffer_hook", "device", "device_ids", "device_mesh", "device_type", "dim",
        "find_unused_parameters", "gradient_as_bucket_view", "is_multi_device_module", "logger", "mixed_precision",
        "modules_buffers", "named_module_buffers", "output_device", "parameters_to_ignore", "process_group", "reducer",
        "skip_all_reduce_unused_params", "static_graph", "use_side_stream_for_tensor_copies",
    )
)  # fmt: skip
"""What a DDP has of its own that it does not look at again, or not for this; what is its class's is seen there."""

_ARGUMENTS = {
    "find_unused_parameters": "find_unused_parameters", "process_group": "group",
}  # fmt: skip
"""What `hemiola.accelerate` takes in its place, by DDP's name."""


class WrapperSettings(NamedTuple):
    """What a wrapper was told that the next one goes by, where it is not told otherwise."""

    broadcast_buffers: bool = True
    find_unused_parameters: bool = False
    group: Any = None


def ignored_by(module: nn.Module) -> set[str]:
    """Names of parameters and buffers that are each rank's own: so DistributedDataParallel is told by a module."""
    return set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))


def exchanged(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not; to DDP one of the module itself, not of a part, has a name that begins with a point."""
    ignored = ignored_by(module)
    known = module.named_parameters()
    return {name: p for name, p in known if (name if "." in name else f".{name}") not in ignored}


def is_ddps(name: str) -> bool:
    """Whether a DistributedDataParallel has it and other modules do not."""
    return name in _OWN or (hasattr(DistributedDataParallel, name) and not hasattr(nn.Module, name))


def read_only(device: torch.device, finds_unused: bool, ignored: set[str]) -> dict[str, Any]:
    """What a DistributedDataParallel of parameters on this device would say of itself, all life long."""
    devices = None if device.type == "cpu" else [device.index or 0]
    return {
        "device": device, "device_type": device.type, "device_ids": devices, "output_device": devices and devices[0],
        "dim": 0, "find_unused_parameters": finds_unused, "gradient_as_bucket_view": False, "mixed_precision": None,
        "parameters_to_ignore": ignored, "static_graph": False,
    }  # fmt: skip


def is_so_already(model: nn.Module, name: str, value: Any) -> bool:
    """Whether an accelerated model has this as it is to be set; False also where it may be set.

    Raises:
        InputError: it is DDP's or the module inside, and would be set in vain.
    """
    if name == "module":
        return _is_inside(model, value)
    if not is_ddps(name) or (hasattr(type(model), name) and name not in _OWN):
        return False
    if hasattr(model, name) and _same(getattr(model, name), value):
        return True
    argument = _ARGUMENTS.get(name)
    remedy = f"give hemiola.accelerate(..., {argument}=...)" if argument else "leave it out"
    raise InputError(
        f"model.{name} = {value!r} would change nothing: DistributedDataParallel has it, an accelerated model goes its own way",
        f"{remedy}, or keep DistributedDataParallel",
    )


def _is_inside(model: nn.Module, value: Any) -> bool:
    now = model._modules.get("module")
    if now is None or now is value:
        return now is not None
    raise InputError(
        f"model.module is to be another {type(value).__name__}, which nobody would train",
        "put it together (and compile it) before, and call model, optimizer = hemiola.accelerate(module, optimizer)",
    )


def _same(now: Any, value: Any) -> bool:
    return now is value or (not isinstance(value, torch.Tensor) and bool(now == value))


def why_not_read(name: str) -> str:
    """Of something that only a DistributedDataParallel has, or does."""
    return (
        f"an accelerated model has no {name!r} as DistributedDataParallel has: Hemiola exchanges gradients itself\n"
        f"  hint: leave {name!r} out, or keep DistributedDataParallel"
    )


def given_of(model: DistributedDataParallel) -> WrapperSettings:
    """What a DistributedDataParallel goes by.

    Raises:
        InputError: it changes gradients in a way that nobody else would.
    """
    if what := _unheard_of(model):
        raise InputError(
            f"the DistributedDataParallel has {what}, which an accelerated model would not follow",
            "leave it out and give the module itself, or keep DistributedDataParallel",
        )
    group = None if model.process_group is torch.distributed.group.WORLD else model.process_group
    finds = model.find_unused_parameters or model.static_graph  # which finds them by itself
    return WrapperSettings(bool(model.broadcast_buffers), bool(finds), group)


def _unheard_of(ddp: DistributedDataParallel) -> str:
    if getattr(ddp, "_comm_hooks", None):
        return "a communication hook"
    if hasattr(ddp, "buffer_hook"):
        return "a communication hook of buffers"
    if getattr(ddp, "mixed_precision", None) is not None:
        return f"mixed_precision={ddp.mixed_precision}"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params"
    return ""
