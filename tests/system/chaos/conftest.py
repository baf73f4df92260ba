"""A Slurm of eight nodes for the tests that break things."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hemiola.lab.slurm import SlurmLab, config


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place that jobs of any user can write to."""
    if any(config.program(name) is None for name in config.NEEDED):
        pytest.skip(f"needs Slurm: apt-get install {' '.join(config.PACKAGES)}")
    pytest.importorskip("sqlalchemy")
    made = Path(tempfile.mkdtemp(prefix="hemiola-chaos-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def lab(folder: Path, request: pytest.FixtureRequest) -> Iterator[SlurmLab]:
    """A Slurm that soon notices what has died."""
    quick = {"SlurmdTimeout": "2", "MessageTimeout": "2"} if "node" in request.node.name else {}
    with SlurmLab(8, gpus=8, racks=2, name=f"chaos-{secrets.token_hex(4)}", settings=quick) as made:
        yield made
