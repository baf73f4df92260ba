"""What PyTorch finds of Hemiola when it is imported: the backend, and nothing that could end it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import patience
from repository import ROOT

pytest.importorskip("torch")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
[(NAME, ENTRY)] = PROJECT["project"]["entry-points"]["torch.backends"].items()
MODULE = ENTRY.partition(":")[0]
TRAINS = f"""
import sys, torch
print("torch is there,", "hemiola" in sys.modules)
import torch.distributed as dist
dist.init_process_group({NAME!r}, init_method="file://" + sys.argv[1], rank=0, world_size=1)
sums = torch.ones(2)
dist.all_reduce(sums)
print(sums.tolist())
"""
pytestmark = pytest.mark.slow


def installed(folder: Path) -> None:
    """What `pip install -e` leaves beside a path to the checkout."""
    shutil.copy(ROOT / "src" / f"{MODULE}.py", folder)
    about = folder / f"hemiola-{PROJECT['project']['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hemiola\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{NAME} = {ENTRY}\n")


def trained(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAINS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, *paths)))}
    command = [sys.executable, str(folder / "train.py"), str(folder / "meet")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(120))


def test_an_editable_install_copies_what_pytorch_calls():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"src/{MODULE}.py": f"{MODULE}.py"}


def test_the_backend_needs_no_import(tmp_path):
    installed(tmp_path)
    done = trained(tmp_path, ROOT / "src")
    assert done.stdout.splitlines() == ["torch is there, False", "[1.0, 1.0]"], done.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("raise ModuleNotFoundError('no numpy')", "ModuleNotFoundError: no numpy"),
        ("", "No module named 'hemiola.comm'"),
        ("def", "SyntaxError"),
    ],
)
def test_pytorch_is_imported_where_hemiola_cannot_be(content, problem, tmp_path):
    installed(tmp_path)
    (tmp_path / "hemiola").mkdir()
    (tmp_path / "hemiola" / "__init__.py").write_text(content)
    done = trained(tmp_path)
    assert done.stdout == "torch is there, False\n", done.stderr
    assert 'init_process_group("hemiola") needs the package hemiola, which cannot be imported' in done.stderr
    assert problem in done.stderr and "pip install hemiola" in done.stderr
