"""What members have in common, and bring to each other: the state of a training. Knows nothing of who is a member."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hemiola.core.errors import InputError
from hemiola.train.elastic.board import Epoch
from hemiola.train.elastic.sampler import ElasticSampler

__all__ = ["TrainingState"]


class TrainingState:
    """A training's state, the same at all members: whole, of one moment, and brought to whoever has not got it.

        state = TrainingState(model=model, optimizer=optimizer, sampler=sampler, step=0)
        state.step += 1
        state.commit()

    Its parts are attributes. Those with `state_dict` and `load_state_dict` are kept by these, everything else is a
    value that is copied. What differs from rank to rank is none of it: random generators, timers, averages of one
    rank's losses.

    Attributes:
        commits: how many there were, at all members together: the same number is the same state.
    """

    commits: int
    _parts: dict[str, Any]
    _kept: dict[str, Any]
    _told: Callable[[], None] | None

    def __init__(self, **parts: Any) -> None:
        """Nothing is copied before the training begins.

        Raises:
            InputError: a part cannot be brought from one rank to another: it is sharded, or bound to a group of ranks.
        """
        for name, part in parts.items():
            if name.startswith("_") or hasattr(TrainingState, name) or name == "commits":
                raise InputError(f"a part of the state is called {name!r}", "give it another name")
            _check(name, part)
        self.__dict__.update(commits=0, _parts=parts, _kept={}, _told=None)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._parts:
            raise InputError(f"the state has no part {name!r}", "name all of them when you make it")
        self._parts[name] = value

    def commit(self) -> None:
        """This moment is one to which all can go back: call it after each step, or each so many, at all ranks alike.

        Copies the state, in host memory. From here a change of members takes place, if somebody waits to join.
        """
        self._keep()
        self.__dict__["commits"] += 1
        if self._told is not None:
            self._told()

    def restore(self) -> None:
        """Back to the last commit; gradients are dropped."""
        for name, kept in self._kept.items():
            part = self._parts[name]
            if _has_state(part):
                part.load_state_dict(_copied(kept))
            else:
                self._parts[name] = _copied(kept, part, _put_back)
            if isinstance(part, nn.Module):
                part.zero_grad(set_to_none=True)

    # --- for a membership

    def _begin(self, told: Callable[[], None]) -> None:
        self.__dict__["_told"] = told
        if not self._kept:
            self._keep()

    def _keep(self) -> None:
        for name, part in self._parts.items():
            now = part.state_dict() if _has_state(part) else part
            self._kept[name] = _copied(now, self._kept.get(name))

    def _bring(self, epoch: Epoch, member: int) -> None:
        """Everybody has what the member with most commits has; samplers deal out to these members."""
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.regroup(epoch.members, epoch.number)
        most = max(epoch.commits)
        if most == 0 or min(epoch.commits) < most:  # nobody says that all began with the same
            root = epoch.commits.index(most)
            kept = _broadcast(self._kept if epoch.members[root] == member else None, root)
            if kept.keys() != self._parts.keys():
                raise InputError(
                    f"the state has the parts {', '.join(self._parts)}, that of others has {', '.join(kept)}",
                    "make the same state at all ranks",
                )
            self.__dict__.update(_kept=kept, commits=most)
        self.restore()


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


_BOUND = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("hemiola.train.accelerate.model", "Accelerated"),
    ("hemiola.train.parameter_server.optimizer", "Synchronised"),
)
"""What has its own way to a group of ranks, and cannot be led to another."""
_SHARDED = (
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
    ("torch.distributed.fsdp._flat_param", "FlatParameter"),
)


def _check(name: str, part: Any) -> None:
    if _is_one(part, _BOUND):
        raise InputError(
            f"{name} is a {type(part).__name__}, which is bound to one group of ranks",
            "give the module or the optimizer itself, and make DistributedDataParallel(state.model) anew in the function "
            "that trains; hemiola.accelerate and parameter servers do not go on without a rank",
        )
    tensors = [*part.parameters(), *part.buffers()] if isinstance(part, nn.Module) else [part]
    if any(map(_is_sharded, tensors)):
        raise _shards(name)


def _is_one(value: Any, kinds: Iterable[tuple[str, str]]) -> bool:
    """Whether it is an instance of a class of a module; of one that is not imported there is none."""
    found = ((sys.modules.get(module), name) for module, name in kinds)
    return any(module is not None and isinstance(value, getattr(module, name)) for module, name in found)


def _is_sharded(value: Any) -> bool:
    """Whether a rank has a part of it only: FSDP's parameters, tensor parallelism's, ZeRO's state."""
    return _is_one(value, _SHARDED) or (isinstance(value, Tensor) and hasattr(value, "full_tensor"))


def _shards(name: str) -> InputError:
    return InputError(
        f"{name} is sharded among the ranks: what a lost rank had, no other has",
        "replicate it (DistributedDataParallel), or start again from a checkpoint when a rank is lost",
    )


def _to_host(tensor: Tensor, into: Any) -> Tensor:
    """A copy in host memory; in that of an older copy where this has the same shape."""
    if _is_sharded(tensor):
        raise _shards("a tensor of the state")
    if not (isinstance(into, Tensor) and into.shape == tensor.shape and into.dtype == tensor.dtype):
        into = torch.empty_like(
            tensor, device="cpu", requires_grad=False, memory_format=torch.contiguous_format
        )
    return into.copy_(tensor.detach())


def _put_back(kept: Tensor, part: Any) -> Tensor:
    """What was kept, where the part is: in itself if it is trained, for an optimizer knows it."""
    if not isinstance(part, Tensor):
        return kept.clone()
    if not (part.is_leaf and part.requires_grad and part.shape == kept.shape and part.dtype == kept.dtype):
        return kept.to(part.device, copy=True)
    part.grad = None
    with torch.no_grad():
        return part.copy_(kept)


def _copied(value: Any, into: Any = None, of: Callable[[Tensor, Any], Tensor] = _to_host) -> Any:
    """All of it.

    Args:
        into: what is like it: an older copy, or what it is to take the place of.
        of: copies a tensor, given what stands in its place there.
    """
    if isinstance(value, Tensor):
        return of(value, into)
    if isinstance(value, dict):
        before = into if isinstance(into, dict) else {}
        new = copy.copy(value)  # of its own kind: a Counter, a defaultdict
        new.clear()
        for key, each in value.items():
            new[key] = _copied(each, before.get(key), of)
        if hasattr(value, "_metadata"):  # a module's versions of its layout
            new._metadata = copy.deepcopy(value._metadata)  # type: ignore[attr-defined]
        return new
    if type(value) in (list, tuple):
        older = into if type(into) is type(value) and len(into) == len(value) else [None] * len(value)
        return type(value)(_copied(each, before, of) for each, before in zip(value, older, strict=True))
    return copy.deepcopy(value)


def _broadcast(value: Any, root: int) -> Any:
    """From one rank to all; tensors by themselves, and not as a part of what is pickled."""
    tensors: list[Tensor] = []
    head: list[Any] = [None]
    if value is not None:
        words = io.BytesIO()
        pickler = pickle.Pickler(words)
        pickler.persistent_id = lambda each: _put_aside(each, tensors)  # type: ignore[method-assign]
        pickler.dump(value)
        head = [(words.getvalue(), [(tensor.shape, tensor.dtype) for tensor in tensors])]
    dist.broadcast_object_list(head, src=root, device=torch.device("cpu"))
    words_, shapes = head[0]
    if value is None:
        tensors = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in shapes]
    for tensor in tensors:
        if tensor.numel():
            dist.broadcast(tensor, src=root)
    if value is not None:
        return value
    unpickler = pickle.Unpickler(io.BytesIO(words_))
    unpickler.persistent_load = lambda number: tensors[number]  # type: ignore[method-assign]
    return unpickler.load()


def _put_aside(value: Any, tensors: list[Tensor]) -> int | None:
    if not isinstance(value, Tensor):
        return None
    tensors.append(value)
    return len(tensors) - 1
