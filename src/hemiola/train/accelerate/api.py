"""`hemiola.accelerate`: the one line that a training script adds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hemiola.core.errors import InputError
from hemiola.core.plan import Plan
from hemiola.core.units import parse_rate
from hemiola.train.accelerate.ddp_attributes import WrapperSettings, exchanged, given_of
from hemiola.train.accelerate.job import AcceleratedJob
from hemiola.train.accelerate.model import Accelerated, adopt, jobs_within
from hemiola.train.accelerate.settings import AccelerationSettings

__all__ = ["accelerate"]


def accelerate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    plan: Plan | str | Path | None = None,
    min_gain: float = 0.03,
    revert: bool = True,
    broadcast_buffers: bool | None = None,
    find_unused_parameters: bool | None = None,
    updates_apart: bool | None = None,
    carrier: str = "",
    interface: str = "",
    rate: str | float | None = None,
    timeout_s: float = 1800.0,
    quiet: bool = False,
    group: Any = None,
) -> tuple[Accelerated, torch.optim.Optimizer]:
    """Train data-parallel, and faster where the network is what iterations wait for.

    In the place of `DistributedDataParallel(model)`, on every rank, after `init_process_group`:

        model, optimizer = hemiola.accelerate(model, optimizer)

    The first 20 iterations (11 where nobody waits for the network) run under DistributedDataParallel and are measured,
    the last of them with transfers after backward. Then a plan is made: which gradients go first, which together,
    how. If it is predicted to gain `min_gain` or more, it takes over: gradients are sent by the first use of their
    parameters in the next forward, urgent ones pausing others, and each parameter is updated when it is used.
    Training stays what it is under DDP. Where it turns out no faster, DDP comes back.

    Args:
        model: not wrapped; a DistributedDataParallel, or a model that is accelerated already, is unwrapped.
        optimizer: of its parameters; stays the same object.
        plan: what `hemiola plan -o` wrote, to follow it from the start; `HEMIOLA_PLAN` unless given.
        min_gain: relative; 0.03 for 3 %.
        revert: whether DDP comes back where the plan is measured to be no faster.
        broadcast_buffers, find_unused_parameters: as DistributedDataParallel has them, or as the wrapper has them that
            the model comes in; by a plan, parameters that get no gradient are found without being told.
        updates_apart: whether an optimizer of your own updates every parameter by itself, with all its state in
            `optimizer.state[parameter]`; PyTorch's own are known. Others are stepped whole.
        carrier: "messages" over Hemiola's transport (on processors), or "collectives" of the process group (on GPUs, and
            then only by a plan that is given): urgent ones on a communicator of their own, but what runs is never paused.
        interface: network interface or address to reach the other ranks by; `HEMIOLA_INTERFACE` unless given.
        rate: send no faster ("950mbit", or bytes per second); `HEMIOLA_RATE` unless given. A little below the link's own
            keeps its queue empty, so that urgent gradients do not wait in it.
        timeout_s: a gradient for which a rank has stood still for so long is given up; `math.inf` for never.
        quiet: print nothing.
        group: the process group; that of the wrapper that the model comes in, or the default one.

    Returns:
        The model to call from now on, with the given one in `.module`, and the optimizer.

    Raises:
        InputError: no process group, a model without trained parameters, one that is sharded already, one in a
            DistributedDataParallel whose hooks nobody would follow.
        PlanError: the plan is for another model or another number of ranks.
        TransportError: the ranks cannot reach each other.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "there is no process group", 'call torch.distributed.init_process_group("gloo") before'
        )
    given = WrapperSettings()
    if isinstance(model, DistributedDataParallel):
        given, model = given_of(model), model.module
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = type(optimizer).__name__
        raise InputError(f"the optimizer is a {what}", "give a torch.optim.Optimizer")
    if isinstance(model, Accelerated):
        given, model = model.given, model.module
    for job in jobs_within(model):  # whatever optimizer they are of
        job.leave()
    trained = [parameter for parameter in exchanged(model).values() if parameter.requires_grad]
    if not trained:
        raise InputError("no parameter of the model asks for a gradient", "train at least one")
    if any(hasattr(parameter, "full_tensor") for parameter in trained):
        raise InputError(
            "the model's parameters are sharded (FSDP2 or tensor parallelism)",
            'use init_process_group("hemiola") for it',
        )
    settings = AccelerationSettings(
        plan=_plan(plan), min_gain=min_gain, reverts=revert,
        broadcast_buffers=given.broadcast_buffers if broadcast_buffers is None else broadcast_buffers,
        find_unused_parameters=given.find_unused_parameters if find_unused_parameters is None else find_unused_parameters,
        apart=updates_apart, carrier=carrier, interface=interface,
        rate_bytes_per_s=parse_rate(rate) if isinstance(rate, str) else rate, timeout_s=timeout_s, quiet=quiet,
    )  # fmt: skip
    job = AcceleratedJob(model, optimizer, settings, given.group if group is None else group)
    adopt(optimizer, job)
    return Accelerated(job), optimizer


def _plan(plan: Plan | str | Path | None) -> Plan | None:
    """The plan that was given, or named by the environment."""
    from hemiola.trace.struct_json import read_plan

    if isinstance(plan, Plan):
        return plan
    path = plan or os.environ.get("HEMIOLA_PLAN", "")
    return read_plan(Path(path)) if path else None
