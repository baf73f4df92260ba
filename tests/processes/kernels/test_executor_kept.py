"""What is compiled and kept between processes is compiled anew when any file that it is made of has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PART = """
from hemiola.kernels.executor.compiled import compiled

@compiled
def answer():
    return {answer}
"""
WHOLE = """
import part
from hemiola.kernels.executor.compiled import kept, sources_of

def kept_from(sources):
    @kept
    def run(more):
        return part.answer() + more * (sources >= 0)
    return run

run = kept_from(sources_of([part]))
print(run(1), sum(run.stats.cache_hits.values()))
"""


def test_what_is_kept_is_compiled_anew_when_a_file_has_changed_whose_function_it_calls(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole.py").write_text(WHOLE)

    def ran(answer: int) -> list[str]:
        (tmp_path / "part.py").write_text(PART.format(answer=answer))
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "whole.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.split()

    assert ran(10) == ["11", "0"]
    assert ran(10) == ["11", "1"]
    assert ran(20) == ["21", "0"]


def test_the_kernel_looks_at_every_file_whose_functions_it_calls() -> None:
    from hemiola.kernels.executor import kernel as kernel

    called, found = [kernel.execute], set()
    while called:
        function = called.pop().py_func
        found.add(function.__module__)
        names = [function.__globals__.get(name) for name in function.__code__.co_names]
        called += [each for each in names if hasattr(each, "py_func")]
    assert found - {kernel.__name__} <= {part.__name__ for part in kernel.PARTS}
    assert len(found) > 3
