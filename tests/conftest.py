"""What all tests share: where the optional real data lies, and how Hypothesis behaves."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import HealthCheck, settings
from shared_servers import VARIABLE, shared_folder

pytest_plugins = ["real_engines"]

settings.register_profile(
    "hemiola", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hemiola")

SHARED = os.environ.get("HEMIOLA_SHARED")


def pytest_configure(config: pytest.Config) -> None:
    shared_folder()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell has put into the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else no process of a test heeds Ctrl-C
    config.addinivalue_line(
        "markers", "shared_data: needs the traces under $HEMIOLA_SHARED (left out without)"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """The folder goes with the process that made it, which outlives its workers."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(VARIABLE, ""), ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs data that this machine does not have: it is no part of the suite here."""
    if SHARED:
        return
    out = [item for item in items if item.get_closest_marker("shared_data")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not item.get_closest_marker("shared_data")]


@pytest.fixture
def shared() -> Path:
    """The folder with real traces (`HEMIOLA_SHARED`); its `data/` holds traces, profiles, golden answers."""
    assert SHARED is not None
    return Path(SHARED)


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has gone away."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Under HEMIOLA_REQUIRE_ALL=1 a test that is skipped fails: nothing may be left out unseen."""
    if os.environ.get("HEMIOLA_REQUIRE_ALL") == "1" and call.excinfo is not None:
        reason = str(call.excinfo.value)
        if call.excinfo.errisinstance(pytest.skip.Exception) and "no GPU" not in reason:
            failed = AssertionError(f"skipped: {reason}").with_traceback(call.excinfo.tb)
            call.excinfo = pytest.ExceptionInfo.from_exception(failed)
