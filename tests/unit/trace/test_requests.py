"""Traces of requests: every format by a few of its rows, parts of them, and what cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemiola.core.errors import FormatError, HemiolaError, InputError, RowError
from hemiola.core.job import RequestRate
from hemiola.core.latency import Request
from hemiola.trace.requests import REQUEST_FORMATS, RequestTrace, read_requests

SINGLE = (Request(0.0, 4808, 10), Request(0.5, 3180, 8))
SAMPLES = {
    "azure-llm": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,3180,8\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4808,10,4818,API\n5.5,GPT-4,3180,8,3188,API\n",
    "mooncake": '{"timestamp": 100, "input_length": 4808, "output_length": 10, "hash_ids": [0]}\n'
    '{"timestamp": 600, "input_length": 3180, "output_length": 8, "hash_ids": []}\n',
    "mooncake-csv": "timestamp_ms,input_length,output_length,n_prefix_blocks\n0,4808,10,14\n500,3180,8,1\n",
    "requests": "time_s,input_tokens,output_tokens\n3.5,3180,8\n3,4808,10\n",
    "servegen": "time_s,requests_per_s,rate_weighted_cv2,active_clients\n0,3,5.9,43\n600,5,4.3,40\n",
    "rates": "time_s,requests_per_s\n60,3\n660,5\n",
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_is_recognised_and_read(name: str, packed: bool, tmp_path: Path) -> None:
    data = SAMPLES[name].encode()
    (tmp_path / "trace").write_bytes(gzip.compress(data) if packed else data)
    trace = read_requests(tmp_path / "trace")
    assert trace.format == name and trace.why
    if name in ("servegen", "rates"):
        assert trace.arrivals == (RequestRate(0.0, 3.0), RequestRate(600.0, 5.0)) and not trace.requests
    else:
        assert [(round(r.time_s, 6), r.input_tokens, r.output_tokens) for r in trace.requests] == [
            (r.time_s, r.input_tokens, r.output_tokens) for r in SINGLE
        ]
    assert set(SAMPLES) == {found.name for found in REQUEST_FORMATS}


def test_a_part_is_scaled_and_cut_and_ends() -> None:
    rates = RequestTrace((), tuple(RequestRate(600.0 * i, float(i)) for i in range(6)), "rates", "")
    part = rates.part(scale=2.0, start_s=600.0, span_s=1200.0)
    assert part.arrivals == (RequestRate(0.0, 2.0), RequestRate(600.0, 4.0), RequestRate(1200.0, 0.0))
    single = RequestTrace(SINGLE, (), "requests", "").part(scale=2.0)
    assert [one.time_s for one in single.requests] == [0.0, 0.25]


def test_straight_lines_keep_the_mean() -> None:
    rates = RequestTrace(
        (), (RequestRate(0.0, 0.0), RequestRate(600.0, 10.0), RequestRate(1200.0, 10.0)), "rates", ""
    )
    drawn = rates.part(every_s=60.0).arrivals
    assert len(drawn) == 21 and sum(one.requests_per_s for one in drawn[:10]) / 10 == pytest.approx(5.0)
    assert {one.requests_per_s for one in drawn[10:]} == {10.0}


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("a,b\n1,2\n", FormatError, "no known format of requests"),
        ("time_s,requests_per_s\n0,x\n", RowError, "no number"),
        ("time_s,requests_per_s\n0,-1\n", RowError, "no number"),
        ("time_s,requests_per_s\n5,1\n5,2\n", RowError, "does not ascend"),
        ("time_s,input_tokens\n0,1.5\n", RowError, "no whole number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", RowError, "is no date"),
        ('{"timestamp": 1, "input_length": "a", "output_length": 1}\n', RowError, "cannot be read"),
        ("time_s\n", InputError, "has no requests"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, error: type[HemiolaError], why: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(error, match=why):
        read_requests(tmp_path / "trace")


def test_a_part_that_cannot_be_is_refused() -> None:
    trace = RequestTrace(SINGLE, (), "requests", "")
    with pytest.raises(InputError, match="scale is 0"):
        trace.part(scale=0.0)
    with pytest.raises(InputError, match="no requests from 9 s on"):
        trace.part(start_s=9.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 9999)), min_size=1, max_size=20), st.floats(0.1, 10)
)
def test_scaling_keeps_every_request_in_order(rows: list[tuple[float, int]], scale: float) -> None:
    requests = tuple(Request(time_s, tokens) for time_s, tokens in sorted(rows))
    part = RequestTrace(requests, (), "requests", "").part(scale=scale)
    assert [one.input_tokens for one in part.requests] == [one.input_tokens for one in requests]
    assert all(a.time_s <= b.time_s for a, b in zip(part.requests, part.requests[1:], strict=False))


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_code.csv.gz", 8819),
        ("mooncake-fast25/conversation_trace.jsonl.gz", 12031),
        ("mooncake-fast25/conversation_trace.csv.gz", 12031),
        ("servegen/language_m-large_rates.csv", 2016),
    ],
)
def test_the_published_traces_are_read(path: str, count: int, shared: Path) -> None:
    trace = read_requests(shared / "data" / "requests" / path)
    assert len(trace.requests) + len(trace.arrivals) == count
