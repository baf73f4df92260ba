"""Generated files are as the programs that they come from write them now."""

from __future__ import annotations

import runpy
from collections.abc import Callable

import pytest
from repository import ROOT

GENERATED: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "tools/generated.py"))["generated"]()


@pytest.mark.parametrize("path", GENERATED)
def test_generated_files_are_in_step(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == GENERATED[path](), "run: make generated"
