"""One short run of a group of two real ranks; the many are in `tests/processes`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from ranks import run

SUMS = """\
import sys, torch, torch.distributed as dist
if __name__ == "__main__":
    rank, ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("hemiola", init_method=f"file://{file}", rank=rank, world_size=ranks)
    dist.all_reduce(ones := torch.full((1000,), 1.0 + rank))
    print(ones.unique().tolist())
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_add(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(SUMS, encoding="utf-8")
    assert run(script, 2, str(tmp_path / "meet")) == ["[3.0]"] * 2
