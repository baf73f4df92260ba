"""What `synchronise` returns in place of the optimizer: the same groups, steps that reach the servers."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from hemiola.core.errors import InputError, TransportError
from hemiola.train.parameter_server.children import Child
from hemiola.train.parameter_server.layout import ParcelLayout
from hemiola.train.parameter_server.state import joined
from hemiola.train.parameter_server.worker import ServerWorker, TrainedParameter

__all__ = ["Synchronised"]

CLOSED = "they were closed"
GOODBYE_S = 5.0


class Synchronised(torch.optim.Optimizer):
    """An optimizer whose parameters live on servers. Use it as any other; close it in the end, on all ranks.

    As a context it closes itself, and ends the job on all ranks where the block fails.
    """

    def __init__(
        self, optimizer: Any, model: nn.Module, worker: ServerWorker, trained: list[TrainedParameter], servers: list[Child],
        *, period: int, coupled: bool, early: bool, layout: ParcelLayout, group: Any, cores: Set[int],
    ) -> None:  # fmt: skip
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups
        self._optimizer, self._model, self._worker, self._trained = optimizer, model, worker, trained
        self._servers, self._period = servers, period
        self._layout, self._group = layout, group
        known = {id(one.tensor) for one in trained}
        names = {id(p): name for name, p in model.named_parameters()}
        whole = [tensor for group in self.param_groups for tensor in group["params"]]
        self._frozen = [(names.get(id(p), "a parameter"), p) for p in whole if id(p) not in known]
        self._coupled, self._early = coupled, early and not coupled and not period
        self._steps = 0
        self._open, self._problem = True, ""
        self._exchanging = True
        self._called: dict[nn.Module, None] | None = {}
        self._guards: dict[nn.Module, list[int]] = {}
        self._hooks = [model.register_state_dict_pre_hook(_Hook(self._before_saving, self._before_copying))]
        if not coupled:
            self._watch()
        self._cores_before = (os.sched_getaffinity(0), torch.get_num_threads()) if cores else None
        if cores:
            _use_cores(cores, len(cores))
        atexit.register(self._at_exit, os.getpid())

    def _watch(self) -> None:
        """Have modules wait for their parameters, and gradients go when they are ready."""
        before = _Hook(self._before, self._before_copying)
        for module in self._model.modules():
            self._hooks.append(module.register_forward_pre_hook(before))
        for number, one in enumerate(self._trained):
            self._hooks.append(
                one.tensor.register_post_accumulate_grad_hook(lambda _, number=number: self._after(number))
            )

    def _before_saving(self, *_: Any) -> None:
        self.wait()

    def _before_copying(self, copied: Mapping[int, Any]) -> None:
        """A copy holds what this rank has done. A module's own parameters are copied before its hooks: mend those."""
        self.wait()
        for one in self._trained:
            if id(one.tensor) in copied:
                copied[id(one.tensor)].detach().copy_(one.tensor.detach())

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._called is not None:
            self._called.setdefault(module)
        with self._failing():
            self._worker.require(self._guards.get(module, ()))

    def _after(self, tensor: int) -> None:
        with self._failing():
            if self._early and self._exchanging and self._asks_for_exchange:
                self._worker.ready(tensor)
            else:
                self._worker.used(tensor)

    @property
    def _asks_for_exchange(self) -> bool:
        """What a script says that toggles what DistributedDataParallel has; a module has it only where one does."""
        return bool(getattr(self._model, "require_backward_grad_sync", True))

    def _settle(self) -> None:
        """After the first iteration: which module waits for what, and what goes first.

        A parameter is waited for by the modules that own it; where none of them is called by itself, by the nearest
        around it that is; where there is none either, by all.
        """
        called = list(self._called or {})
        self._called = None
        around = {child: parent for parent in self._model.modules() for child in parent.children()}
        places = {id(one.tensor): number for number, one in enumerate(self._trained)}
        guards: dict[nn.Module, dict[int, None]] = {module: {} for module in self._model.modules()}
        for owner in self._model.modules():
            for tensor in owner._parameters.values():
                if id(tensor) not in places:
                    continue
                parcels = dict.fromkeys(self._worker.parcels_of(places[id(tensor)]))
                guards[owner] |= parcels
                guard: nn.Module | None = owner
                while guard is not None and guard not in called:
                    guard = around.get(guard)
                for module in [guard] if guard is not None else guards:
                    guards[module] |= parcels
        self._guards = {module: list(parcels) for module, parcels in guards.items()}
        order = dict.fromkeys(number for module in called for number in self._guards[module])
        self._worker.prefer([*order, *(set(self._worker.parcels) - set(order))])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Hand this iteration's gradients to the servers; under "local", step here and exchange every `period` steps.

        Raises:
            InputError: a gradient, or a number of the optimizer, was changed after it had been sent; a parameter was
                unfrozen, or changed by others.
            TransportError: a rank, a server or a communication process is gone.
        """
        loss = None
        if closure is not None and not self._period:
            with torch.enable_grad():
                loss = closure()
        for name, tensor in self._frozen:
            if tensor.requires_grad and tensor.grad is not None:
                raise InputError(
                    f"{name} requires a gradient only since synchronise, and no server knows of it",
                    "unfreeze it before synchronise; or keep optimizer.state_dict(), close this optimizer, load that "
                    "into your own and call synchronise anew",
                )
        with self._failing():
            self._optimizer._opt_called = True
            if self._period:
                self._worker.require(self._worker.parcels)
                loss = self._optimizer.step() if closure is None else self._optimizer.step(closure)
            if self._called is not None and not self._coupled:
                self._settle()
            self._steps += 1
            if not self._period or self._steps % self._period == 0:
                self._exchange()
        return loss

    def _exchange(self) -> None:
        self._worker.finish_iteration()
        if self._coupled:
            self._worker.require(self._worker.parcels)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward in this block stay here, and go with those of the next one outside.

        So do those of one while `model.require_backward_grad_sync` is False.
        """
        before, self._exchanging = self._exchanging, False
        try:
            yield
        finally:
            self._exchanging = before

    def wait(self) -> None:
        """Until the parameters here hold all that this rank has done, and of others what the scheme demands.

        Forward waits by itself; this is for reading parameters by other ways.
        """
        with self._failing():
            self._worker.wait()

    def synchronise(self) -> None:
        """On all ranks: until all have called this. All have the same parameters then; "local" averages them."""
        with self._failing():
            if self._period:
                self._worker.fetch()
                self._worker.finish_iteration()
                self._steps = 0
                self._worker.wait()
            else:
                self._worker.meet()

    def close(self) -> None:
        """Leave the others: take the newest parameters, say goodbye, give the model back as it was before.

        The optimizer's state goes with the servers: `state_dict` before this has it. Under "local", steps since the last
        exchange are averaged first. Servers on this rank stay until all ranks have left; this rank's process does not
        end before.
        """
        if not self._open:
            return
        with self._failing():
            if self._period and self._steps % self._period:
                self._worker.finish_iteration()
            self._worker.fetch()
            self._worker.leave()
        self._end()
        for server in self._servers:
            server.outlive(None)

    def abort(self) -> None:
        """Leave without a goodbye: all other ranks get an error."""
        if self._open:
            self._end()
            self._worker.abort()
            for server in self._servers:
                server.release()  # it tells the others why, and ends
                server.outlive(2 * GOODBYE_S)

    def _end(self) -> None:
        self._open = False
        self._problem = self._problem or CLOSED
        for hook in self._hooks:
            hook.remove()
        if self._cores_before:
            _use_cores(*self._cores_before)
        atexit.unregister(self._at_exit)  # which would keep the model

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever fails ends this rank's part, and is said again by whoever asks later."""
        if not self._open:
            raise TransportError(
                f"the parameter servers are not used any more: {self._problem}", "start anew"
            )
        try:
            yield
        except TransportError as problem:
            self._problem = problem.what
            self.abort()
            raise

    def _at_exit(self, process: int) -> None:
        """A script that ends well says goodbye; one that fails does not. What it has forked has nothing to say."""
        if os.getpid() != process:
            return
        self.abort() if hasattr(sys, "last_type") else self.close()

    def state_dict(self) -> Any:
        """As PyTorch has it, the same on all ranks. On all ranks: it waits for all as `synchronise`, and asks all servers.

        Of "local" it is this rank's alone, and nobody is waited for.
        """
        found = self._optimizer.state_dict()
        if self._period:
            return found
        self.synchronise()
        with self._failing():
            own = [server.ask() for server in self._servers]
        everybody: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everybody, own, group=self._group)
        parts = {number: states for of in everybody for one in of for number, states in one.items()}
        whole = joined(self._layout, parts, [one.tensor for one in self._trained])
        places = {id(one.tensor): number for number, one in enumerate(self._trained)}
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        numbers = [places.get(id(tensor), -1) for tensor in tensors]
        found["state"] |= {place: whole[number] for place, number in enumerate(numbers) if number in whole}
        return found

    def load_state_dict(self, state_dict: Any) -> None:
        """Of "local" only."""
        if not self._period:
            raise InputError(
                "the optimizer's state lives on the parameter servers", "load it before synchronise"
            )
        self._optimizer.load_state_dict(state_dict)
        self.param_groups = self._optimizer.param_groups  # which are others now

    def add_param_group(self, param_group: Any) -> None:
        """Only before: servers are told of all parameters at the start."""
        if hasattr(self, "_worker"):
            raise InputError("a group of parameters was added late", "add it before synchronise")
        super().add_param_group(param_group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        self.abort() if kind is not None else self.close()


class _Hook:
    """Of modules. That of a copy does nothing, and copies can be saved.

    Attributes:
        does: what it is called for.
        copied: is told, when somebody copies or saves it, what was copied before, by the identity of the original.
    """

    def __init__(self, does: Callable[..., None], copied: Callable[[Mapping[int, Any]], None]) -> None:
        self.does, self.copied = does, copied

    def __call__(self, *given: Any) -> None:
        self.does(*given)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> _Hook:
        self.copied(memo)
        return _Hook(_nothing, _nothing)

    def __reduce__(self) -> Any:
        self.copied({})  # torch.save writes tensors last
        return _Hook, (_nothing, _nothing)


def _nothing(*_: Any) -> None:
    return None


def _use_cores(cores: Set[int], threads: int) -> None:
    """Compute on these, with so many threads; all threads that there are leave the other cores alone."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)
    torch.set_num_threads(threads)
