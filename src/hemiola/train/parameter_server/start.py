"""Begins training on parameter servers: who serves what, processes, and how all of them meet."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hemiola.comm.transport import Endpoint, TransportOptions
from hemiola.core.errors import HemiolaError, InputError, TransportError
from hemiola.plan.shares import Shares
from hemiola.train.parameter_server.children import Child, clear_up, only_here
from hemiola.train.parameter_server.courier import Courier, RemoteCourier
from hemiola.train.parameter_server.layout import ParcelLayout, lay_out
from hemiola.train.parameter_server.layout import Tensor as Size
from hemiola.train.parameter_server.messages import Places
from hemiola.train.parameter_server.optimizer import Synchronised
from hemiola.train.parameter_server.schemes import Scheme, scheme_of
from hemiola.train.parameter_server.server import Kept
from hemiola.train.parameter_server.state import (
    State,
    beside,
    by_element,
    hyper_of,
    part_of,
    refuse_unknown,
    shape_of,
    to_send,
)
from hemiola.train.parameter_server.worker import ServerWorker, TrainedParameter

__all__ = ["synchronise"]


def synchronise(
    model: nn.Module,
    optimizer: Any,
    scheme: str = "bsp",
    *,
    bound: int | None = None,
    period: int | None = None,
    pipelined: bool = False,
    servers: int | None = None,
    coupled: bool = False,
    early: bool = True,
    shares: Shares | None = None,
    options: TransportOptions | None = None,
    group: Any = None,
) -> tuple[nn.Module, Synchronised]:
    """Train this model on parameter servers. To be called on all ranks, after `init_process_group`.

    Parameters, buffers and the state that the optimizer has, from a checkpoint, become rank 0's on all ranks. The
    process group is used here, and to save the optimizer's state.

    Args:
        scheme: "bsp" (every iteration waits for all: what DDP computes), "ssp" (at most `bound` iterations
            ahead of the slowest), "asp" (no waiting), "local" (ranks step alone and average every `period` steps).
        bound: for "ssp".
        period: for "local".
        pipelined: for "ssp" and "asp": begin an iteration while this rank's own last update is on its way.
        servers: processes that keep parts of the parameters, server s on the host of rank s % ranks; as many
            as ranks unless told otherwise.
        coupled: communicate in this process, within `optimizer.step()`, overlapping with nothing.
        early: send gradients from backward as they become ready; if not, in `optimizer.step()`.
        shares: cores and rates for each side (`hemiola.plan.shares`); unless given, the system decides.
        options: of the transport; its interface and rate are chosen here where left open.
        group: the ranks; all unless given.

    Returns:
        The model, with hooks, and what stands for the optimizer.

    Raises:
        InputError: an argument or an optimizer that cannot be.
        TransportError: not everybody came.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise InputError("there is no process group", "call torch.distributed.init_process_group first")
    if pipelined and coupled:
        raise InputError("a coupled process that is pipelined", "leave one of them out")
    clear_up()
    rule = scheme_of(scheme, bound, period, pipelined)
    trained = _trained(model, optimizer, rule)
    places = Places(dist.get_rank(group), dist.get_world_size(group), servers, options, shares)
    _same_start(model, group)
    frozen = [tensor for of in optimizer.param_groups for tensor in of["params"] if not tensor.requires_grad]
    tensors = [*(one.tensor for one in trained), *frozen]
    states, away = ({}, {}) if rule.period else _same_state(tensors, optimizer, group)
    layout = lay_out([_size(one, optimizer, rule) for one in trained], places.servers)
    members: list[Child] = []
    try:
        worker = _join(trained, layout, rule, places, coupled, group, members, states)
    except BaseException:
        for child in members:
            child.kill()
        raise
    own = members[: len(places.hosted)]
    made = Synchronised(
        optimizer, model, worker, trained, own, period=rule.period, coupled=coupled, early=early,
        layout=layout, group=group, cores=places.compute_cores,
    )  # fmt: skip
    if not rule.period:
        optimizer.state.clear()  # it would be old soon: the servers have it, but of what is frozen
        for number, tensor in enumerate(frozen, len(trained)):
            if number in states:
                optimizer.state[tensor] = beside(tensor, states[number], away[number])
    return model, made


def _trained(model: nn.Module, optimizer: Any, rule: Scheme) -> list[TrainedParameter]:
    """The optimizer's parameters, in the order of the model's."""
    if not rule.period:
        refuse_unknown(optimizer)
    group_of = {id(tensor): group for group in optimizer.param_groups for tensor in group["params"]}
    hypers = {
        id(group): None if rule.period else hyper_of(optimizer, group) for group in optimizer.param_groups
    }
    found = []
    for name, tensor in model.named_parameters():
        if tensor.requires_grad and id(tensor) in group_of:
            group = group_of.pop(id(tensor))
            if not tensor.is_contiguous():
                tensor.data = tensor.data.contiguous()
            found.append(TrainedParameter(name, tensor, group, hypers[id(group)]))
    strangers = sum(tensor.requires_grad for group in optimizer.param_groups for tensor in group["params"])
    strangers -= len(found)
    if strangers:
        raise InputError(
            f"the optimizer has {strangers} parameters that the model has not", "give the whole model"
        )
    if not found:
        raise InputError("nothing is trained", "give an optimizer of parameters that require gradients")
    return found


def _size(one: TrainedParameter, optimizer: Any, rule: Scheme) -> Size:
    tensor = one.tensor
    kind = f"{tensor.dtype} {'' if rule.period else id(one.group)}"
    return Size(tensor.numel(), tensor.element_size(), kind, not (rule.period or by_element(optimizer)))


def _same_start(model: nn.Module, group: Any) -> None:
    """Rank 0's parameters and buffers for all."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), _root(group), group=group)


def _same_state(
    tensors: Sequence[Any], optimizer: Any, group: Any
) -> tuple[dict[int, State], dict[int, set[str]]]:
    """Rank 0's for all, by the number of the parameter, and what of it was on a GPU there."""
    found: list[Any] = [None]
    if dist.get_rank(group) == 0:
        numbers = [number for number, tensor in enumerate(tensors) if optimizer.state.get(tensor)]
        found = [{number: to_send(optimizer.state[tensors[number]]) for number in numbers}]
    dist.broadcast_object_list(found, _root(group), group=group)
    states = {number: state for number, (state, _) in found[0].items()}
    return states, {number: away for number, (_, away) in found[0].items()}


def _root(group: Any) -> int:
    return dist.get_global_rank(group, 0) if group is not None else 0


def _join(
    trained: Sequence[TrainedParameter], layout: ParcelLayout, rule: Scheme, places: Places, coupled: bool, group: Any,
    children: list[Child], states: Mapping[int, State],
) -> ServerWorker:  # fmt: skip
    """Start this rank's processes, and have everybody meet; children that were started are in the list, servers first."""
    secret = [os.urandom(32)]
    dist.broadcast_object_list(secret, _root(group), group=group)
    problem = ""
    end: Endpoint | None = None
    try:
        for server in places.hosted:
            children.append(_server(server, trained, layout, rule, places, secret[0], states))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        only_here(ours)
        memory = _Memory(layout.memory_bytes)
        if coupled:
            end = Endpoint(places.rank, places.count, secret[0], places.worker_options)
            addresses = [end.address]
        else:
            children.append(_courier(layout, places, secret[0], memory, theirs))
            addresses = [children[-1].address()]
        theirs.close()
        os.close(memory.file)
        addresses += [child.address() for child in children[: len(places.hosted)]]
    except HemiolaError as failed:
        problem, addresses = str(failed), []
    known: list[Any] = [None] * places.ranks
    dist.all_gather_object(known, (problem, addresses), group=group)
    for rank, (why, _) in enumerate(known):
        if why:
            raise TransportError(f"rank {rank} could not start its part: {why}", "mend that first")
    everybody = places.in_order([found for _, found in known])
    for child in children:
        child.introduce(everybody)
    if end is not None:
        end.connect(everybody)
        end.call(lambda: end.pace(places.worker_paces))
    for child in children:
        child.ready()
    courier: Courier | RemoteCourier
    if end is not None:
        ours.close()
        courier = Courier(end, layout, memory.view, places.ranks)
    else:
        courier = RemoteCourier(children[-1], ours, places.rank)
    return ServerWorker(trained, layout, memory.tensor, courier, rule)


class _Memory:
    """Memory without a name that processes share: it goes with the last of them, however that ends."""

    def __init__(self, size_bytes: int) -> None:
        self.file = os.memfd_create("hemiola")
        os.ftruncate(self.file, size_bytes)
        self.view = memoryview(mmap.mmap(self.file, size_bytes))
        self.tensor = torch.frombuffer(self.view, dtype=torch.uint8)


def _courier(
    layout: ParcelLayout, places: Places, secret: bytes, memory: _Memory, control: socket.socket
) -> Child:
    files = (memory.file, control.fileno())
    config = {
        "place": places.rank, "places": places.count, "secret": secret, "options": places.worker_options,
        "paces": places.worker_paces, "cores": places.communication_cores, "ranks": places.ranks, "layout": layout,
        "memory": files[0], "control": files[1],
    }  # fmt: skip
    what = f"the communication process of rank {places.rank}"
    return Child(what, "hemiola.train.parameter_server.courier", config, files)


def _server(
    server: int, trained: Sequence[TrainedParameter], layout: ParcelLayout, rule: Scheme, places: Places, secret: bytes,
    states: Mapping[int, State],
) -> Child:  # fmt: skip
    kept = [
        _kept(number, trained, layout, states)
        for number, parcel in enumerate(layout.parcels)
        if parcel.server == server
    ]
    config = {
        "place": places.ranks + server, "places": places.count, "secret": secret, "options": places.server_options,
        "paces": places.server_paces, "cores": places.server_cores, "ranks": places.ranks, "host": places.rank,
        "scheme": rule, "kept": kept,
    }  # fmt: skip
    return Child(f"parameter server {server}", "hemiola.train.parameter_server.server", config)


def _kept(
    number: int, trained: Sequence[TrainedParameter], layout: ParcelLayout, states: Mapping[int, State]
) -> Kept:
    parcel = layout.parcels[number]
    members = [trained[stretch.tensor] for stretch in parcel.stretches]
    shapes = tuple(
        shape_of(stretch, member.tensor) for stretch, member in zip(parcel.stretches, members, strict=True)
    )
    elements = torch.zeros(parcel.size_bytes, dtype=torch.uint8, device="cpu")
    for stretch, member in zip(parcel.stretches, members, strict=True):
        part: Tensor = (
            member.tensor.detach().reshape(-1)[stretch.start : stretch.stop].cpu().view(torch.uint8)
        )
        elements[stretch.offset_bytes : stretch.offset_bytes + part.numel()] = part
    begun = {
        place: part_of(states[stretch.tensor], member.tensor, stretch)
        for place, (stretch, member) in enumerate(zip(parcel.stretches, members, strict=True))
        if stretch.tensor in states
    }
    return Kept(
        number, parcel, members[0].tensor.dtype, shapes, members[0].hyper, elements.numpy().tobytes(), begun
    )
