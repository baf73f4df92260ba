"""One range server for a module's tests, set anew for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hemiola.lab.store import StoreServer, StoreSettings, serve


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreServer, Path]]:
    folder = tmp_path_factory.mktemp("objects")
    (folder / "big").write_bytes(os.urandom(1 << 22))
    (folder / "empty").write_bytes(b"")
    with serve(folder) as server:
        yield server, folder


@pytest.fixture
def server(_server: tuple[StoreServer, Path]) -> StoreServer:
    _server[0].change(**msgspec.to_builtins(StoreSettings()))
    return _server[0]


@pytest.fixture
def folder(_server: tuple[StoreServer, Path]) -> Path:
    return _server[1]
