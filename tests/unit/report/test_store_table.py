"""What a probe found, as a table, as a picture and as advice: by a probe whose figures are known."""

from __future__ import annotations

from io import StringIO
from xml.etree import ElementTree

from rich.console import Console

from hemiola.cost.io import MeasuredRange, StoreModel, StoreProbe, SurfacePoint
from hemiola.plan.io.advice import loader_advice
from hemiola.report.io import StoreTable, surface_picture

PROBE = StoreProbe(
    url="s3://bucket/<shard>", size_bytes=1 << 26, latency_s=MeasuredRange(0.02, 0.019, 0.021),
    stream_bytes_per_s=MeasuredRange(20e6, 19e6, 21e6), share_bytes_per_s=MeasuredRange(50e6, 48e6, 52e6), connect_s=0.05,
    cold_s=0.07, warm_s=0.01, surface=(SurfacePoint(1 << 20, 2, 28e6), SurfacePoint(1 << 20, 8, 50e6)), saturated=True,
    read_bytes_total=40_000_000, seconds=2.0,
)  # fmt: skip


def printed() -> str:
    console = Console(width=140, file=StringIO(), markup=False)
    console.print(StoreTable(PROBE, sample_bytes=110_000))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_says_what_was_measured_and_what_fills_the_store() -> None:
    text = printed()
    assert "20.0 ms (19.0-21.0)" in text and "50.0 MB/s (48.0-52.0)" in text
    assert "a cache answers the second time" in text
    assert "28.0*" in text and "50.0*" in text
    assert "3 requests of 2 MiB at once fill it" in text


def test_advice_is_in_each_loaders_words() -> None:
    advice = {one.loader: one.setting for one in loader_advice(StoreModel(0.02, 20e6, 50e6), 110_000)}
    assert advice["PyTorch DataLoader"] == "num_workers=12, prefetch_factor=2"
    assert advice["s3torchconnector"].startswith("S3ClientConfig(throughput_target_gbps=0.4, part_size=5")
    assert advice["obstore"] == "3 x get_range of 2097152 bytes at once"
    assert advice["WebDataset"] == "num_workers=3"
    assert advice["MosaicML Streaming"].startswith("num_workers=12, predownload=")


def test_the_picture_is_svg_with_a_dot_for_each_measurement() -> None:
    root = ElementTree.fromstring(surface_picture(PROBE))
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("circle") == 2 and tags.count("polyline") == 4
