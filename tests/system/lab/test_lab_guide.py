"""The guide's Python runs as it stands there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from repository import DOCS

GUIDE = DOCS / "guides/lab.md"


def test_the_lab_of_the_guide(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a lighter command in the place of the guide's, which the page's numbers were taken with."""
    script, python = re.findall(
        r"^```py\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    compile(script, "allreduce.py", "exec")
    (tmp_path / "allreduce.py").write_text("import os; print('rank', os.environ['RANK'])")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert "Lab(hosts=2" in python
    exec(compile(python.replace("Lab(hosts=2", f"Lab(name={name!r}, hosts=2"), str(GUIDE), "exec"), {})
    printed = capsys.readouterr()
    assert "h1 | rank 1" in printed.out
    assert "0 {" in printed.out
    assert "h1  25 Mbit/s each way" in printed.out
    assert "[12500000.  3125000.]" in printed.out
    assert "h1  50 Mbit/s each way" in printed.err
