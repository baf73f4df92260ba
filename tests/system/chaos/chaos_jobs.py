"""Jobs that write down when and where they really run, each into a file of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hemiola.core.hostlist import expand

SCRIPT = """#!/bin/sh
file=$1${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}
say() { echo "$1 ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST ${CUDA_VISIBLE_DEVICES:--} $(date +%s.%N)" >>"$file"; }
trap 'say stopped; kill $!; exit 143' TERM
say start
sleep "$2" & wait $!
say end
"""


@dataclass(frozen=True)
class Wish:
    """What is submitted.

    Attributes:
        most: hosts, where it could use more than `hosts`; 0: it could not.
        elements: of an array; 0: none.
        says: its comment.
    """

    gpus: int
    sleep_s: float
    hosts: int = 1
    most: int = 0
    elements: int = 0
    says: str = ""
    options: tuple[str, ...] = ()


@dataclass
class Said:
    """What a job wrote: one start to its end.

    Attributes:
        gpus: their numbers on its first node.
        end_s: None if it wrote none.
        how: "end", "stopped", or "" if it wrote nothing more.
    """

    restarts: int
    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    start_s: float
    end_s: float | None = None
    how: str = ""


@dataclass
class Batch:
    """The jobs of one run.

    Attributes:
        folder: into which they write.
        accepted: by Slurm: the file of each, by its number ("12", "12_3").
        wishes: of each.
    """

    folder: Path
    accepted: dict[str, Path] = field(default_factory=dict)
    wishes: dict[str, Wish] = field(default_factory=dict)
    submitted: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        (self.folder / "job.sh").write_text(SCRIPT)

    def submit(self, environ: dict[str, str], wishes: Sequence[Wish]) -> list[str]:
        """Hand them to Slurm; the numbers of those that it accepted."""
        new: list[str] = []
        for wish in wishes:
            file = self.folder / f"job{self.submitted}"
            self.submitted += 1
            words = [
                "sbatch", "--parsable", "--chdir=/", "-p", "hemiola", "-o", "/dev/null", f"-N{wish.hosts}" + f"-{wish.most}" * bool(wish.most), "--requeue",
                f"--gres=gpu:{wish.gpus}", *([f"--array=1-{wish.elements}"] if wish.elements else []),
                *([f"--comment={wish.says}"] if wish.says else []), *wish.options,
                str(self.folder / "job.sh"), str(file), str(wish.sleep_s),
            ]  # fmt: skip
            done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
            if done.returncode:
                continue
            number = done.stdout.strip().partition(";")[0]
            if wish.elements:
                names = {f"{number}_{i}": Path(f"{file}.{i}") for i in range(1, wish.elements + 1)}
            else:
                names = {number: file}
            for name in names.keys() & self.accepted.keys():  # a killed controller uses numbers again
                self.accepted[f"{name}~{self.submitted}"] = self.accepted.pop(name)
                self.wishes[f"{name}~{self.submitted}"] = self.wishes.pop(name)
            self.accepted.update(names)
            self.wishes.update(dict.fromkeys(names, wish))
            new += names
        return new

    def said(self, job: str) -> list[Said]:
        """Each of its starts."""
        return list(_starts(self.accepted[job]))

    def is_finished(self, job: str) -> bool:
        """Whether it has written its last word."""
        path = self.accepted[job]
        return path.exists() and any(line.startswith("end ") for line in path.read_text().splitlines())


def _starts(path: Path) -> Iterator[Said]:
    now: Said | None = None
    for line in path.read_text().splitlines() if path.exists() else ():
        words = line.split()
        if len(words) != 5:
            continue  # it was killed as it wrote
        word, restarts, nodes, gpus, time_s = words
        if word == "start":
            if now is not None:
                yield now
            numbers = tuple(int(gpu) for gpu in gpus.split(",")) if gpus != "-" else ()
            now = Said(int(restarts), tuple(expand(nodes)), numbers, float(time_s))
        elif now is not None and now.restarts == int(
            restarts
        ):  # or the start that it ends was not written whole
            now.end_s, now.how = float(time_s), word
    if now is not None:
        yield now
