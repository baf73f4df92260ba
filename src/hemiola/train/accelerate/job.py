"""Decides for one model whether a plan is worth it, and goes over to it; goes back if it is not.

The first iterations run under PyTorch's DistributedDataParallel and are measured: how long they take, and how long
ranks wait in them. If they do, some more have their transfers after backward, and tell what computing takes by itself:
when each parameter is used, when each gradient is ready. Then the links are measured, a plan is made from both, and
if it is predicted to gain enough it takes over. After some more iterations what it really gains is compared
with what DDP took, and DDP comes back if it is nothing. Where DDP might be as fast in other buckets than its usual
ones, these are tried too before the plan goes on. All ranks decide the same, at the same iterations.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hemiola.comm.transport import Endpoint
from hemiola.core.errors import InputError, PlanError
from hemiola.core.plan import Acceleration, Plan, State
from hemiola.core.units import format_duration
from hemiola.train.accelerate.ddp_attributes import exchanged, ignored_by
from hemiola.train.accelerate.embeddings import Table, planned_tables
from hemiola.train.accelerate.engine import PlanExecutor
from hemiola.train.accelerate.exchange import GradientExchange
from hemiola.train.accelerate.handles import Carrier
from hemiola.train.accelerate.measured import (
    AutoPlan,
    IterationWork,
    autoplan,
    change,
    mean_of,
    measured_graph,
)
from hemiola.train.accelerate.nccl_exchange import GroupExchange
from hemiola.train.accelerate.probe import (
    CHUNK_BYTES_MAX,
    cores_of,
    from_first,
    gathered,
    meet,
    own_processors,
    probe,
    slowest,
)
from hemiola.train.accelerate.profile import MeasuredIteration, TrainingProfile, defer_transfers
from hemiola.train.accelerate.settings import AccelerationSettings
from hemiola.train.accelerate.trace_hooks import TraceHooks, forward_begins
from hemiola.train.accelerate.updates import Updates

__all__ = ["COMPILED", "JOB", "AcceleratedJob"]

_log = logging.getLogger("hemiola")

_UNTOUCHED, _MEASURED = 3, 8
"""Iterations under DDP before anything is measured (it orders its buckets anew after the first), and measured."""
_BESIDE_NOTHING = 6
"""Iterations measured whose transfers begin after backward, as many untouched before them."""
_SETTLES, _JUDGED = 3, 12
"""Iterations by the plan before they are measured, and measured."""
_LOSS = 1.0
"""The plan's iterations may take so much of DDP's at most."""
_AS_FAST, _FASTER = 1.1, 0.99
"""DDP is tried in other buckets if it is predicted to take no more than so much of what the plan takes; and stays if it takes
less than so much."""


COMPILED = (
    "an accelerated model cannot be compiled: compiled code does not wait for single parameters",
    "compile the module before, hemiola.accelerate(torch.compile(module), optimizer), which then stays with DDP",
)
"""What is wrong, and what to do."""
JOB = "_hemiola_job"
"""Under this name a module remembers the job that trains it."""


class AcceleratedJob:
    """One model's training on one rank.

    Attributes:
        state: see `core.plan.Acceleration`.
        ddp: while it is in charge.
        ignored: names of parameters and buffers that are each rank's own, as DistributedDataParallel was told.
        has_left: whether the model is no longer this job's.
        engine: while the plan is.
    """

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, settings: AccelerationSettings, group: Any
    ) -> None:
        self.module, self.settings, self.group = module, settings, group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.ignored, known = ignored_by(module), exchanged(module)
        self.parameters = {name: p for name, p in known.items() if p.requires_grad}
        self._frozen = [(name, p) for name, p in known.items() if not p.requires_grad]
        self.updates = Updates(optimizer, settings.apart)
        self.state: State = "profiling"
        self.has_left = False
        self.engine: PlanExecutor | None = None
        self.ddp: DistributedDataParallel | None = None
        self._end: Endpoint | None = None
        self._lanes: GroupExchange | None = None
        self._bucket_bytes: int | None = None
        self._bucket_s: float | None = None
        self._followed: tuple[Plan, Carrier, dict[str, Table]] | None = None
        self._profile: TrainingProfile | None = None
        self._count = self._followed_from = self._tried_from = 0
        self._found: dict[str, float] = {}
        self._times: deque[tuple[float, float]] = deque(maxlen=_JUDGED)  # no more are looked at
        self._works: deque[IterationWork] = deque(maxlen=_JUDGED)
        self._work = IterationWork()  # of the iteration under way
        self._work_before: list[IterationWork] = []
        self._last = time.perf_counter()
        self._said = Acceleration(state="profiling", iterations=0)
        self._has_warned = False
        if self.ranks == 1:
            self._say("off", "one rank has nobody to wait for")
            return
        self.ddp = self._as_ddp()
        if reason := self._reason_against():
            self._say("off", reason)
        elif settings.plan is not None:
            self._go_over(settings.plan)
            self._say(
                "on", f"by the plan {settings.plan.name!r} ({settings.plan.source or 'of unknown source'})"
            )
        else:
            self._profile = TrainingProfile(module, self.parameters, _UNTOUCHED + _MEASURED)

    @property
    def device(self) -> torch.device:
        """Of the parameters, or of the first of them."""
        return next(iter(self.parameters.values())).device

    def buffers(self) -> list[torch.Tensor]:
        """Those that rank 0 has for everybody."""
        return [buffer for name, buffer in self.module.named_buffers() if name not in self.ignored]

    @property
    def _on_gpu(self) -> bool:
        """Whether iterations cannot be measured from here."""
        return any(p.device.type != "cpu" for p in self.parameters.values())

    @property
    def _as_collectives(self) -> bool:
        """Whether the process group carries the transfers: on GPUs, or where that was asked for."""
        return self._on_gpu or self.settings.carrier == "collectives"

    def _as_ddp(self, again: bool = False) -> DistributedDataParallel:
        """The model under DDP; for the first time, or again in the buckets that are fastest here."""
        settings = self.settings
        given: dict[str, Any] = {"find_unused_parameters": settings.find_unused_parameters}
        if not settings.broadcast_buffers:
            given["broadcast_buffers"] = False
        if self.device.type != "cpu":
            given["device_ids"] = [self.device]
        if again:
            given["init_sync"] = False  # parameters are the same everywhere, buffers may be each rank's own
            if self._bucket_bytes is not None:
                given["bucket_cap_mb"] = self._bucket_bytes / 2**20
        with warnings.catch_warnings():  # from 2.13 on; what is to be used instead still shares buffers once
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(self.module, process_group=self.group, **given)

    def _reason_against(self) -> str:
        """Why this model stays as it is; "" if nothing speaks against a plan."""
        module = self.module
        if self._as_collectives and self.settings.plan is None:
            return "what runs on a GPU is not measured from here: give a plan that hemiola plan has made"
        if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
            return "a part of the model is TorchScript, which does not wait for single parameters"
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in module.modules()):
            return "a part of the model is compiled, which does not wait for single parameters"
        if sparse := next(
            (n for n, m in module.named_modules() if getattr(m, "sparse", False) is True), None
        ):
            return f"the gradient of {sparse} is sparse"
        if strange := next((n for n, p in self.parameters.items() if type(p) is not nn.Parameter), None):
            return f"{strange} is a {type(self.parameters[strange]).__name__}, not a plain parameter"
        return ""

    # --- the script's calls

    def forward(self, training: bool, syncs: bool, shares: bool, *arguments: Any, **named: Any) -> Any:
        """The model's forward.

        Args:
            training: a backward may follow.
            syncs: that is to be exchanged.
            shares: rank 0's buffers are to be everybody's before.
        """
        if training:
            self._check_left()
            self._check_frozen()
            self._work = self._work.more(syncs, (arguments, named))
        if self.engine is None:
            if self._profile is not None and training:
                self._profile.forward_begins()
            if self.ddp is not None:  # whichever it is by now
                self.ddp.require_backward_grad_sync = syncs
                self.ddp.require_forward_param_sync = self.ddp.broadcast_buffers = shares
            result = (self.ddp or self.module)(*arguments, **named)
            if self._profile is not None and training:
                self._profile.forward_ends()
            return result
        if self.module._compiled_call_impl is not None:
            raise InputError(*COMPILED)
        if training:
            forward_begins()
            self.engine.forward_begins(syncs)
        if shares:
            self.engine.share(self.buffers())
        result = self.module(*arguments, **named)
        if training:
            self.engine.forward_ends()
        return result

    def step(self, step: Callable[..., Any], closure: Any = None) -> Any:
        """The optimizer's step."""
        if self.engine is not None:
            result = self.engine.step(step, closure)
        else:
            if self._profile is not None:
                self._profile.step_begins()
                closure = closure and self._profile.closing(closure)
            result = step() if closure is None else step(closure)
            if self._profile is not None:
                self._profile.step_ends()
        self._ended()
        return result

    def _ended(self) -> None:
        """An iteration has."""
        if self.has_left:
            return
        now = time.perf_counter()
        waited_s = 0.0
        if self.engine is not None:
            waited_s, self.engine.waited_s = self.engine.waited_s, 0.0
        self._times.append((now - self._last, waited_s))
        self._works.append(self._work)
        self._work = IterationWork()
        self._last = now
        self._count += 1
        if self._profile is not None and self._count == _UNTOUCHED + _MEASURED:
            decide = self._look
        elif self._profile is not None and self._count == 2 * _UNTOUCHED + _MEASURED + _BESIDE_NOTHING:
            decide = self._decide
        elif self._said.measured_s is None and self._by_plan == _SETTLES + _JUDGED and not self._on_gpu:
            decide = self._judge
        elif self._tried_from and self._count == self._tried_from + _SETTLES + _JUDGED:
            decide = self._compare
        else:
            if self._count % 100 == 0:
                self._note()
            return
        with _thawed(self.parameters.values()):
            decide()
        self._last = time.perf_counter()

    @property
    def _by_plan(self) -> int:
        """Iterations since it took over, if it is in charge."""
        return self._count - self._followed_from if self.engine is not None else 0

    # --- deciding

    def _profiled(self) -> tuple[MeasuredIteration, MeasuredIteration]:
        """This rank's usual iteration and the mean of all ranks'; they are measured no longer."""
        assert self._profile is not None
        self._profile.stop()
        own, self._profile = self._profile.measured(_UNTOUCHED), None
        return own, mean_of(gathered(own, self.group))

    def _look(self) -> None:
        """Stay with DDP where nothing is to be gained, or see what computing takes beside no transfer."""
        _, measured = self._profiled()
        self._work_before = list(self._works)[-_MEASURED:]
        share = measured.exposed_s / max(measured.end_s, 1e-9)
        self._found = {
            "before_s": self._usual_s(list(self._times)[-_MEASURED:]), "exposed_before_s": measured.exposed_s,
        }  # fmt: skip
        gain = self.settings.min_gain
        if share < gain / (1 + gain):
            words = f"communication is hidden: only {share:.1%} of an iteration waits for it"
            self._say("off", words, **self._found)
            return
        self._leave_ddp()
        self.ddp = self._as_ddp(again=True)
        defer_transfers(self.ddp, self.group)
        self._profile = TrainingProfile(self.module, self.parameters, _UNTOUCHED + _BESIDE_NOTHING)

    def _decide(self) -> None:
        """Stay with DDP, or go over to a plan."""
        (own, measured), found = self._profiled(), self._found
        if self._changed(
            list(self._works)[-_BESIDE_NOTHING:]
        ):  # then nothing is to be compared with what DDP took
            self._work_before, found = [], {}
        if reason := next(filter(None, gathered(self._reason_against(), self.group)), ""):  # by now
            self._leave_ddp()
            self.ddp = self._as_ddp(again=True)
            self._say("off", reason, **found)
            return
        if self.rank == 0:
            self._tell("hemiola: measuring the links and making a plan ...")
        end = meet(self.group, self.settings)
        try:
            advice = self._advised(measured, own, end)
        except BaseException:
            end.close(0.0)  # or it goes on saying that this rank lives
            raise
        found |= advice.figures
        self._bucket_bytes, self._bucket_s = advice.bucket_bytes, advice.bucket_s
        if advice.plan is None:
            end.close()
            self._leave_ddp()
            self.ddp = self._as_ddp(again=True)
            self._say("off", advice.words, **found)
            return
        self._go_over(advice.plan, end)
        self._say("on", advice.words, **found)

    def _advised(self, measured: MeasuredIteration, own: MeasuredIteration, end: Endpoint) -> AutoPlan:
        """What rank 0 makes of the links, which all measure."""
        exchange = GradientExchange(end, CHUNK_BYTES_MAX)
        cores = cores_of(gathered(own_processors(own.busy), self.group))
        threads = cores.threads if cores.cores <= cores.threads else 0
        links = slowest(gathered(probe(exchange, self.ranks, self.settings.timeout_s, threads), self.group))
        name = type(self.module).__name__
        advice: AutoPlan | None = None
        if self.rank == 0:
            gain = self.settings.min_gain
            advice = autoplan(name, measured, self.parameters, links, self.ranks, cores, gain)
        found: AutoPlan = from_first(advice, self.group)
        return found

    def _judge(self) -> None:
        """Has it become faster?"""
        assert self.engine is not None
        before_s, measured_s = self._said.before_s, self._usual_s(self._times)
        figures = {"measured_s": measured_s, "exposed_s": self._exposed_s()}
        if before_s is None:
            self._say("on", f"{format_duration(measured_s)} per iteration", **figures)
            return
        if changed := self._changed(self._works):
            words = f"{format_duration(measured_s)} per iteration measured, {_not_compared(before_s, 'DDP', changed)}"
            self._work_before = []
            self._say("on", words, before_s=None, exposed_before_s=None, **figures)
            return
        words = (
            f"{format_duration(measured_s)} per iteration measured, {format_duration(before_s)} with DDP "
            f"({before_s / measured_s:.2f} times as fast)"
        )
        if measured_s > before_s * _LOSS and self.settings.reverts:
            self._go_back()
            buckets = f" in {self._buckets}" if self._bucket_bytes else ""
            self._say("reverted", f"{words}: back to DDP{buckets}", **figures)
            return
        self._say("on", words, **figures)
        may_be_faster = self._bucket_s is not None and self._bucket_s <= measured_s * _AS_FAST
        if may_be_faster and self.settings.reverts:
            self._rest()
            self._tried_from = self._count

    @property
    def _buckets(self) -> str:
        """In words."""
        return f"buckets of {(self._bucket_bytes or 0) >> 20} MiB"

    def _compare(self) -> None:
        """Is DDP in other buckets faster than the plan?"""
        assert self._followed is not None and self._said.measured_s is not None
        plan_s, tried_s = self._said.measured_s, self._usual_s(self._times)
        self._tried_from = 0
        tried = f"{format_duration(tried_s)} per iteration with DDP in {self._buckets}"
        changed = self._changed(self._works)
        words = f"{tried}, {_not_compared(plan_s, 'the plan', changed) if changed else f'{format_duration(plan_s)} by the plan'}"
        if tried_s < plan_s * _FASTER and not changed:
            self.close()
            self._say("reverted", f"{words}: back to DDP")
            return
        self._leave_ddp()
        self._follow(*self._followed)
        self._say("on", words)

    def _changed(self, works: Iterable[IterationWork]) -> str:
        """What these do otherwise than those that were measured before, on whichever rank; "" where they do the same."""
        found: list[str] = gathered(change(self._work_before, list(works)), self.group)
        return next(filter(None, found), "")

    def _usual_s(self, rows: Iterable[tuple[float, float]]) -> float:
        """The median iteration, of the slowest rank."""
        return float(max(gathered(median(seconds for seconds, _ in rows), self.group)))

    def _exposed_s(self) -> float:
        """Of this rank's usual iteration by the plan: a median as that is, of which it is no more than all."""
        return median(waited_s for _, waited_s in self._times)

    def _go_over(self, plan: Plan, end: Endpoint | None = None) -> None:
        """From DDP to a plan."""
        if plan.ranks != self.ranks:
            raise PlanError(
                f"the plan {plan.name!r} is for {plan.ranks} ranks, this job has {self.ranks}",
                "make one for this job, or give none",
            )
        graph, _ = measured_graph(type(self.module).__name__, _NOTHING, self.parameters)
        (_without_order(plan) if plan.operation_order else plan).verify(graph)
        if self._as_collectives:
            plan = plan.dense()
        tables = planned_tables(plan, self.module, self.parameters)  # refused before anything is changed
        if not self.updates.apart and plan.update == "on-arrival":
            name = type(self.updates.optimizer).__name__
            _log.warning("%s is stepped whole, so each step waits for all gradients", name)
        self._leave_ddp()
        carrier: Carrier
        if self._as_collectives:
            carrier = self._lanes = GroupExchange(plan, self.group)
        else:
            self._end = end or meet(self.group, self.settings)
            carrier = GradientExchange(self._end, plan.chunk_bytes)
        self._follow(plan, carrier, tables)

    def _follow(self, plan: Plan, carrier: Carrier, tables: dict[str, Table]) -> None:
        """By a plan from now on."""
        self._followed, self._followed_from = (plan, carrier, tables), self._count
        self.engine = PlanExecutor(
            self.module, self.parameters, plan, tables, carrier, self.updates, self.ranks, self.settings.timeout_s,
            None if carrier.is_seen else TraceHooks(self.group, len(plan.transfers)),
        )  # fmt: skip

    def _leave_ddp(self) -> None:
        remove = getattr(getattr(self.ddp, "reducer", None), "_remove_autograd_hooks", None)
        if remove is not None:  # else they go with the reducer
            remove()
        self.ddp = None

    def _go_back(self) -> None:
        """From the plan to DDP."""
        self._rest()
        self.close()

    def _rest(self) -> None:
        """From the plan to DDP, perhaps not for long."""
        self._leave_engine()
        self.ddp = self._as_ddp(again=True)

    def _leave_engine(self) -> None:
        self.flush()
        if self.engine is not None:
            self.engine.detach()
            self.engine = None

    def settle(self) -> None:
        """Until all updates that are due are made."""
        if self.engine is not None:
            self.engine.settle()

    def flush(self) -> None:
        """Until all gradients are reduced and all parameters updated."""
        if self.engine is not None:
            self.engine.barrier()

    def leave(self) -> nn.Module:
        """The model as it was given, up to date; all ranks do it at once."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        self._leave_engine()
        self._leave_ddp()
        self.close()
        if self._lanes is not None:
            self._lanes.close()
        self.has_left = True
        self._be_forgotten()
        return self.module

    def close(self) -> None:
        """Let go of the others, once what this rank owes them is sent."""
        end, self._end, self._followed = self._end, None, None
        if end is not None:
            if self.engine is not None:
                self.engine.drain(self.settings.timeout_s)
            end.close()

    def end(self) -> None:
        """Nobody has the accelerated model any more. What exchanges gradients is not kept by an optimizer that is."""
        if not self.has_left:  # else another job may have said more since
            self._note()
        self.close()
        self._leave_ddp()
        if self.engine is None:  # else who accelerates the model again has it leave first
            self._be_forgotten()

    def _be_forgotten(self) -> None:
        """By the module, which would keep the optimizer's state as long as it lives."""
        if vars(self.module).get(JOB) is self:
            del vars(self.module)[JOB]

    def __reduce__(self) -> Any:
        """Who copies or saves the module has nothing of this."""
        return type(None), ()

    def _check_left(self) -> None:
        """Nobody would exchange the gradients."""
        if self.has_left:
            raise InputError(
                "the model was accelerated again after this one",
                "call the model that the last hemiola.accelerate returned",
            )

    def _check_frozen(self) -> None:
        """DDP trains what was trainable when it was built, and so does a plan."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise InputError(
                    f"{name} is trained now, and was not when the model was accelerated",
                    "after unfreezing, call model, optimizer = hemiola.accelerate(model, optimizer) again",
                )

    # --- saying

    def _say(self, state: State, words: str, **figures: float | None) -> None:
        """On rank 0: print it, and write it where `hemiola run` looks."""
        self.state = state
        self._said = msgspec.structs.replace(
            self._said, state=state, iterations=self._count, words=words, **figures
        )
        if self.rank == 0:
            stands = {"on": "on", "off": "off", "reverted": "off", "profiling": "measuring"}[state]
            self._tell(f"hemiola: acceleration is {stands}: {words}")
        self._note()

    def _tell(self, line: str) -> None:
        if not self.settings.quiet:
            print(line, file=sys.stderr, flush=True)

    def _note(self) -> None:
        """Write it as it is by now. What decisions rest on stays what all ranks have found: this is rank 0's alone."""
        path = os.environ.get("HEMIOLA_RUN_REPORT", "")
        if self.rank == 0 and path:
            from hemiola.trace.struct_json import write_acceleration

            said = msgspec.structs.replace(self._said, iterations=self._count)
            same = not change(self._work_before, list(self._works))
            if said.measured_s is not None and self._by_plan > _SETTLES + _JUDGED and same:
                recent_s = median(seconds for seconds, _ in self._times)
                said = msgspec.structs.replace(said, measured_s=recent_s, exposed_s=self._exposed_s())
            try:
                write_acceleration(said, Path(path))
            except InputError as problem:  # training goes on, seen or not
                if not self._has_warned:
                    _log.warning("the report on the acceleration is missing: %s", problem)
                self._has_warned = True


def _not_compared(other_s: float, whose: str, changed: str) -> str:
    return (
        f"not to be compared with {format_duration(other_s)} by {whose}, for {changed}: "
        "call hemiola.accelerate again to measure both anew"
    )


_NOTHING = MeasuredIteration(used_s={}, forward_end_s=0.0, ready_s={}, step_start_s=0.0, end_s=0.0)


@contextmanager
def _thawed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Meanwhile all ask for gradients: whoever takes over takes hold of those too that are frozen for now."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad = True
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


def _without_order(plan: Plan) -> Plan:
    _log.warning("PyTorch decides the order of operations here: the plan's own is not followed")
    return msgspec.structs.replace(plan, operation_order=())
