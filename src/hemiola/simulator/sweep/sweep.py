"""Many scenarios at once: their runs in one list, done wherever they are done, and put together again.

Whatever ran where, a scenario's comparison is the same: runs in order, with the same figures to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hemiola.core.result import Comparison, baseline_among
from hemiola.simulator.scenario import Prepared
from hemiola.simulator.simulate import Progress, Recording, in_order
from hemiola.simulator.sweep.answers import Result, RunAnswer
from hemiola.simulator.sweep.tasks import (
    Answers,
    Executor,
    RunStore,
    RunTask,
    Work,
    scenario_digest,
    task_key,
    tasks_of,
)

__all__ = ["Swept", "sweep"]


@dataclass(frozen=True, eq=False)
class Swept:
    """What became of one scenario.

    Attributes:
        comparison: of the runs that are done, and at most one that is not; None without any.
        missing: runs that are not done, because the sweep was interrupted.
    """

    prepared: Prepared
    comparison: Comparison | None
    missing: int


def sweep(
    scenarios: Sequence[Prepared],
    executor: Executor,
    *,
    recording: Recording,
    folder: Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Generator[Swept, None, None]:
    """Run every policy on every seed of every scenario.

    Args:
        executor: where.
        folder: finished runs are kept there, and those that are there already are not done again.
        progress: called now and then with (policy, seed, jobs ended in all runs, jobs of all runs).
        say: told in words what was found in the folder.

    Yields:
        Each scenario, in order, as soon as it is done. After Ctrl-C those that are left, as far as they got.

    Raises:
        InputError, PolicyError, TopologyError: before anything runs, or by a run as it would alone.
    """
    tasks = tasks_of(scenarios)
    kept = _Kept(RunStore(folder), scenarios, recording) if folder else None
    results = kept.among(tasks, say) if kept else {}
    way = _Way(scenarios, tasks, results, progress)
    left = [task for task in tasks if task not in results]
    answers = executor.answers(Work(scenarios, left, recording, way.within))

    def take(task: RunTask, answer: RunAnswer) -> None:
        if kept and not answer.interrupted:
            kept.put(task, answer)
        results[task] = answer.read()
        way.ended(task)

    try:
        for number, prepared in enumerate(scenarios):
            mine = [task for task in tasks if task.scenario == number]
            _until_done({task for task in mine if task not in results}, answers, take)
            yield _together(prepared, mine, [results.pop(t) for t in mine if t in results], recording)
    finally:
        answers.close()


def _until_done(
    waited_for: set[RunTask], answers: Answers, take: Callable[[RunTask, RunAnswer], None]
) -> None:
    """Take answers until these tasks have theirs; after Ctrl-C there are no more."""
    try:
        while waited_for and (pair := next(answers, None)) is not None:
            take(*pair)
            waited_for.discard(pair[0])
    except KeyboardInterrupt:
        answers.close()


class _Way:
    """How far the sweep is: each run counts as many jobs as its scenario's first seed has."""

    def __init__(
        self,
        scenarios: Sequence[Prepared],
        tasks: Sequence[RunTask],
        done: Iterable[RunTask],
        progress: Progress | None,
    ) -> None:
        self._jobs = [len(prepared.workload(0).jobs) for prepared in scenarios]
        self._all = sum(self._jobs[task.scenario] for task in tasks)
        self._ended = sum(self._jobs[task.scenario] for task in done)
        self._progress = progress or (lambda *_: None)

    def within(self, policy: str, seed: int, ended: int, jobs: int) -> None:
        """A run of this process is so far."""
        self._progress(policy, seed, self._ended + ended, self._all)

    def ended(self, task: RunTask) -> None:
        """A run is done."""
        self._ended += self._jobs[task.scenario]
        self._progress(task.name, task.seed, self._ended, self._all)


class _Kept:
    """Tasks in a store."""

    def __init__(self, store: RunStore, scenarios: Sequence[Prepared], recording: Recording) -> None:
        self._store, self._recording = store, recording
        self._scenarios = [scenario_digest(prepared) for prepared in scenarios]

    def _key(self, task: RunTask) -> str:
        return task_key(self._scenarios[task.scenario], task, self._recording)

    def among(self, tasks: Sequence[RunTask], say: Callable[[str], None]) -> dict[RunTask, Result]:
        """The results that are there already."""
        found = {}
        for task in tasks:
            key = self._key(task)
            try:
                if answer := self._store.get(key):
                    found[task] = answer.read()
            except (ValueError, msgspec.MsgspecError) as error:
                say(f"{task.name}, seed {task.seed}, is done again: {key}.run cannot be used ({error})")
        say(f"kept runs: {len(found):,} of {len(tasks):,} are in {self._store.folder}")
        return found

    def put(self, task: RunTask, answer: RunAnswer) -> None:
        """Keep a task's answer."""
        self._store.put(self._key(task), answer)


def _together(
    prepared: Prepared, tasks: Sequence[RunTask], done: Sequence[Result], recording: Recording
) -> Swept:
    """The comparison that running these tasks one after another gives."""
    cut = [result for result in done if result.run.interrupted]
    shown = [result for result in done if not result.run.interrupted or result is cut[0]]
    missing = len(tasks) - len(done) + len(cut)
    if not shown:
        return Swept(prepared, None, missing)
    runs = tuple(result.run for result in shown)
    seeds = dict.fromkeys(run.seed for run in runs)
    first = prepared.workload(tasks[0].seed)
    comparison = Comparison(
        topology=prepared.topology,
        runs=runs,
        baseline=baseline_among(runs, prepared.scenario.baseline or tasks[0].name),
        workload_name=first.name,
        workload_format=first.format,
        notes=tuple(dict.fromkeys(note for result in shown for note in result.notes)),
        workloads={seed: in_order(prepared.workload(seed)).jobs for seed in seeds if recording.timeline},
    )
    return Swept(prepared, comparison, missing)
