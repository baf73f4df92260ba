"""Data sets of ranges: records, objects, tar shards and MDS, made here by the formats' own writers or descriptions."""

from __future__ import annotations

import json
import struct
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from input_samples import MemorySource

from hemiola.core.errors import InputError
from hemiola.cost.io import StoreModel
from hemiola.train.input import RangeReader, RemoteFile, StoredSamples


def test_objects_are_samples(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name * 3)
    data = StoredSamples.of_objects([str(tmp_path / n) for n in "ab"], lambda parts: bytes(parts[0]))
    assert [data[i] for i in range(len(data))] == [b"aaa", b"bbb"]


def test_records_of_one_length(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"aabbcc")
    data = StoredSamples.of_records([str(tmp_path / "r")], 2, lambda parts: bytes(parts[0]))
    assert [data[i] for i in range(len(data))] == [b"aa", b"bb", b"cc"]
    with pytest.raises(InputError, match="no multiple of 4"):
        StoredSamples.of_records([str(tmp_path / "r")], 4, bytes)  # type: ignore[arg-type]


def test_webdataset_shards(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for name, content in (("d/1.jpg", b"x"), ("d/1.cls", b"7"), ("d/2.jpg", b"yy"), ("d/2.cls", b"8")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    data = StoredSamples.of_tar(
        [str(tmp_path / "s.tar")], lambda parts: {k: bytes(v) for k, v in parts.items()}
    )
    assert [data[i] for i in range(len(data))] == [{"jpg": b"x", "cls": b"7"}, {"jpg": b"yy", "cls": b"8"}]


def test_mosaicml_shards(tmp_path: Path) -> None:
    """As MDSWriter lays a shard out: number, offsets, a description, then each sample's free sizes and columns."""
    samples = [
        struct.pack("<I", len(t)) + struct.pack("<q", n) + t.encode() for n, t in ((5, "five"), (-1, "minus"))
    ]
    head = 4 * 4 + 2
    offsets = [head, head + len(samples[0]), head + len(samples[0]) + len(samples[1])]
    (tmp_path / "shard.00000.mds").write_bytes(struct.pack("<4I", 2, *offsets) + b"{}" + b"".join(samples))
    shard = {
        "format": "mds", "samples": 2, "compression": None, "raw_data": {"basename": "shard.00000.mds"},
        "column_names": ["n", "text"], "column_encodings": ["int", "str"], "column_sizes": [8, None],
    }  # fmt: skip
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    data = StoredSamples.of_mds(str(tmp_path))
    assert [data[i] for i in range(len(data))] == [{"n": 5, "text": "five"}, {"n": -1, "text": "minus"}]
    (tmp_path / "index.json").write_text(json.dumps({"shards": [{**shard, "compression": "zstd"}]}))
    with pytest.raises(InputError, match="not plain MDS"):
        StoredSamples.of_mds(str(tmp_path))


def test_a_remote_file_is_read_once_and_in_blocks() -> None:
    source = MemorySource(bytes(range(256)) * 4096)
    reader = RangeReader(StoreModel(0.001, 1e6))
    with RemoteFile(source, reader) as stream:
        assert stream.read() == source.data
    assert sum(length for _, length in source.reads) == len(source.data)
    reader.close()
