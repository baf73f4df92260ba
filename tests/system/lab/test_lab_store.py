"""Stores on hosts of a lab: the range server behind a shaped link, and a real SeaweedFS read through obstore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hemiola.lab import Lab

READ = """
import json, sys, time
from hemiola.train.input.reader import RangeReader
from hemiola.train.input.source import open_source
source, reader = open_source(sys.argv[1]), RangeReader()
data = bytes(reader.submit(source, 0, source.size()).wait())
print(json.dumps({"bytes": len(data), "sum": sum(data[::997]), "version": source.version()}))
"""

PUT = """
import obstore, sys
from obstore.store import from_url
store = from_url("s3://data", client_options={"allow_http": True})
obstore.put(store, sys.argv[2], open(sys.argv[1], "rb").read())
"""

CHANGED = """
import sys
from hemiola.train.input.source import StoreChangedError, open_source
import obstore
from obstore.store import from_url
source = open_source("s3://data/x")
into = memoryview(bytearray(1000))
source.read(0, into, lambda count: None)
obstore.put(from_url("s3://data", client_options={"allow_http": True}), "x", b"other" * 1000)
try:
    source.read(0, into, lambda count: None)
except StoreChangedError as error:
    print(error.what)
"""


def python(lab: Lab, script: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What a script prints on h1."""
    process = lab.start(
        "h1", [sys.executable, "-c", script, *arguments], env=env or {}, stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate()
    assert process.returncode == 0
    return str(said)


def test_a_range_server_on_a_host(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(500_000))
    with Lab(hosts=2, rate="100mbit", name=name) as lab, lab.store("h0", tmp_path, latency_s=0.01) as store:
        told = json.loads(python(lab, READ, f"{store.url}/x"))
        assert told["bytes"] == 500_000 and told["sum"] == sum((tmp_path / "x").read_bytes()[::997])
        assert store.change(failing=0.1)["failing"] == 0.1


def test_a_real_s3_is_read_and_a_changed_object_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(500_000))
    with Lab(hosts=2, rate="unlimited", name=name) as lab, lab.seaweed("h0") as store:
        python(lab, PUT, str(tmp_path / "x"), "x", env=store.environment)
        told = json.loads(python(lab, READ, "s3://data/x", env=store.environment))
        assert told["bytes"] == 500_000 and told["sum"] == sum((tmp_path / "x").read_bytes()[::997])
        assert (
            python(lab, CHANGED, env=store.environment).strip()
            == "s3://data/x has changed since it was first read"
        )
