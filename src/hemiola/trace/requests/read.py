"""One way in: a trace of requests is recognised by what it holds.

Azure LLM 2023 (Patel et al., Splitwise, ISCA'24), ServeGen (Alibaba, 2025: rates over all clients), Mooncake (FAST'25),
BurstGPT (Wang et al., 2024), and tables of one's own. A file is plain or gzip.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hemiola.core.errors import DAMAGED, FormatError, InputError, RowError
from hemiola.core.job import RequestRate
from hemiola.core.latency import Request
from hemiola.trace.workloads.source import Source, load

__all__ = ["REQUEST_FORMATS", "RequestTrace", "read_requests"]

Found = tuple[list[Request], list[RequestRate]]
Row = dict[str, str]


@dataclass(frozen=True)
class RequestTrace:
    """What a file of requests holds; times from the first one on.

    Attributes:
        requests: single requests by ascending time; none where the file has rates.
        arrivals: rates by ascending time; none where the file has single requests.
        format: the reader that took it.
        why: how it was recognised, in words.
        notes: what was assumed or changed.
    """

    requests: tuple[Request, ...]
    arrivals: tuple[RequestRate, ...]
    format: str
    why: str
    notes: tuple[str, ...] = ()

    @property
    def span_s(self) -> float:
        """From the beginning to the last request, or the last rate's begin."""
        if self.requests:
            return self.requests[-1].time_s
        return self.arrivals[-1].since_s if self.arrivals else 0.0

    def part(
        self, *, scale: float = 1.0, start_s: float = 0.0, span_s: float = math.inf, every_s: float = 0.0
    ) -> RequestTrace:
        """A part of it, from 0 on.

        Args:
            scale: so many times as many requests per second: rates are multiplied, single requests come so much faster.
            start_s, span_s: only what comes from then on, for so long (before scaling); no rate holds beyond its end.
            every_s: rates become straight lines between those of the file, one rate for each so many seconds; 0 leaves steps.

        Raises:
            InputError: a value that cannot be, or nothing is left.
        """
        _check_part(scale, start_s, span_s, every_s)
        end_s = start_s + span_s
        requests = [
            Request((one.time_s - start_s) / scale, one.input_tokens, one.output_tokens)
            for one in self.requests
            if start_s <= one.time_s <= end_s
        ]
        rates = [one for one in _lines(list(self.arrivals), every_s) if start_s <= one.since_s < end_s]
        arrivals = [RequestRate(one.since_s - start_s, one.requests_per_s * scale) for one in rates]
        if not requests and not arrivals:
            raise InputError(
                f"there are no requests from {start_s:g} s on, of {self.span_s:g} s", "ask for another part"
            )
        if arrivals and math.isfinite(span_s):
            arrivals.append(RequestRate(span_s, 0.0))
        return RequestTrace(tuple(requests), tuple(arrivals), self.format, self.why, self.notes)


def _check_part(scale: float, start_s: float, span_s: float, every_s: float) -> None:
    for name, value, least in (("scale", scale, 1e-9), ("start_s", start_s, 0.0), ("span_s", span_s, 1e-9), ("every_s", every_s, 0.0)):  # fmt: skip
        if not value >= least:
            raise InputError(f"{name} is {value}", f"give a number of {least:g} or more")


@dataclass(frozen=True)
class RequestFormat:
    """One format of request traces.

    Attributes:
        name: as in `RequestTrace.format`.
        about: what it is, in half a line.
        match: how the content shows that it is this format, in words; "" where it is not.
        read: what the file holds, in its own time.
    """

    name: str
    about: str
    match: Callable[[Source], str]
    read: Callable[[Source], Found]


def read_requests(path: str | Path) -> RequestTrace:
    """The requests of a file.

    Raises:
        FormatError: in no known format.
        RowError: a row cannot be used; names file, line, column and value.
        InputError: unreadable, or without requests.
    """
    source = load(path)
    matches = [(found, why) for found in REQUEST_FORMATS if (why := found.match(source))]
    if not matches:
        first = source.head.lstrip().split("\n", 1)[0][:80]
        known = "; ".join(f"{found.name} ({found.about})" for found in REQUEST_FORMATS)
        raise FormatError(
            f"{path} is in no known format of requests; it begins {first!r}", f"known are {known}"
        )
    found, why = matches[0]
    requests, rates = found.read(source)
    if not requests and not rates:
        raise InputError(f"{path} has no requests", "give a file with at least one")
    requests.sort(key=lambda one: one.time_s)
    origin_s = requests[0].time_s if requests else rates[0].since_s
    note = f"requests: {source.name}, read as {found.name} ({why})"
    return RequestTrace(
        tuple(Request(one.time_s - origin_s, one.input_tokens, one.output_tokens) for one in requests),
        tuple(RequestRate(one.since_s - origin_s, one.requests_per_s) for one in rates),
        found.name, why, (note,),
    )  # fmt: skip


def _lines(rates: list[RequestRate], every_s: float) -> list[RequestRate]:
    """Rates on straight lines from one to the next; the last one stays."""
    if not every_s:
        return rates
    drawn: list[RequestRate] = []
    for now, then in itertools.pairwise(rates):
        long_s = then.since_s - now.since_s
        for i in range(max(1, math.ceil(long_s / every_s - 1e-9))):
            share = (i + 0.5) * every_s / long_s if every_s < long_s else 0.5
            rate = now.requests_per_s + (then.requests_per_s - now.requests_per_s) * min(share, 1.0)
            drawn.append(RequestRate(now.since_s + i * every_s, rate))
    return drawn + rates[-1:]


# ---- tables ---------------------------------------------------------------------------------


def _rows(source: Source) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(source.text, newline=""), skipinitialspace=True)
    for row in reader:
        yield (
            reader.line_num,
            {(key or "").strip(): (value or "").strip() for key, value in row.items() if key},
        )


def _number(source: Source, line: int, row: Row, column: str, least: float = 0.0) -> float:
    text = row.get(column, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise RowError(
            source.path, line, column, text, "is no number of 0 or more", "correct or remove the row"
        )
    return value


def _tokens(source: Source, line: int, row: Row, column: str) -> int:
    value = _number(source, line, row, column) if column in row else 0.0
    if value != int(value):
        raise RowError(
            source.path, line, column, row[column], "is no whole number of tokens", "correct the row"
        )
    return int(value)


def _single(source: Source, time: str, unit_s: float, prompt: str, answer: str) -> Found:
    return [
        Request(
            _number(source, line, row, time) * unit_s,
            _tokens(source, line, row, prompt),
            _tokens(source, line, row, answer),
        )
        for line, row in _rows(source)
    ], []


def _has(*columns: str) -> Callable[[Source], str]:
    def match(source: Source) -> str:
        return f"its header has {', '.join(columns)}" if source.columns >= set(columns) else ""

    return match


def _azure(source: Source) -> Found:
    return [
        Request(
            _when(source, line, row["TIMESTAMP"]),
            _tokens(source, line, row, "ContextTokens"),
            _tokens(source, line, row, "GeneratedTokens"),
        )
        for line, row in _rows(source)
    ], []


def _when(source: Source, line: int, text: str) -> float:
    """Seconds since 1970, of "2023-11-16 18:17:03.9799600" (seven digits, which Python does not read)."""
    whole, _, fraction = text.partition(".")
    try:
        seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
        return seconds + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    except ValueError:
        raise RowError(
            source.path, line, "TIMESTAMP", text, "is no date", "write it as 2023-11-16 18:17:03.97"
        ) from None


def _burstgpt(source: Source) -> Found:
    return _single(source, "Timestamp", 1.0, "Request tokens", "Response tokens")


def _mooncake_table(source: Source) -> Found:
    return _single(source, "timestamp_ms", 1e-3, "input_length", "output_length")


def _own_requests(source: Source) -> Found:
    return _single(source, "time_s", 1.0, "input_tokens", "output_tokens")


def _rates(source: Source) -> Found:
    rates = [
        RequestRate(_number(source, line, row, "time_s"), _number(source, line, row, "requests_per_s"))
        for line, row in _rows(source)
    ]
    for line, (before, after) in enumerate(itertools.pairwise(rates), 3):
        if after.since_s <= before.since_s:
            raise RowError(
                source.path, line, "time_s", after.since_s, "does not ascend", "sort the rows by time_s"
            )
    return [], rates


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int


def _is_mooncake(source: Source) -> str:
    first = source.head.lstrip().split("\n", 1)[0]
    keys = ('"timestamp"', '"input_length"', '"output_length"')
    return (
        "its lines are JSON with timestamp, input_length and output_length"
        if all(key in first for key in keys)
        else ""
    )


def _mooncake(source: Source) -> Found:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    return list(_decoded(source, decoder)), []


def _decoded(source: Source, decoder: msgspec.json.Decoder[_MooncakeRow]) -> Iterable[Request]:
    for line, text in enumerate(source.text.splitlines(), 1):
        if text.strip():
            try:
                row = decoder.decode(text)
            except DAMAGED as error:
                raise RowError(
                    source.path, line, "(line)", text[:60], f"cannot be read: {error}", "correct it"
                ) from None
            yield Request(row.timestamp * 1e-3, row.input_length, row.output_length)


REQUEST_FORMATS: tuple[RequestFormat, ...] = (
    RequestFormat("azure-llm", "TIMESTAMP, ContextTokens, GeneratedTokens", _has("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    RequestFormat("burstgpt", "Timestamp, Request tokens, Response tokens", _has("Timestamp", "Request tokens", "Response tokens"), _burstgpt),
    RequestFormat("mooncake", "JSON lines with timestamp, input_length, output_length", _is_mooncake, _mooncake),
    RequestFormat("mooncake-csv", "timestamp_ms, input_length, output_length", _has("timestamp_ms", "input_length", "output_length"), _mooncake_table),
    RequestFormat("servegen", "time_s, requests_per_s, active_clients", _has("time_s", "requests_per_s", "active_clients"), _rates),
    RequestFormat("rates", "a table with time_s, requests_per_s", _has("time_s", "requests_per_s"), _rates),
    RequestFormat("requests", "a table with time_s and, of language models, input_tokens, output_tokens", _has("time_s"), _own_requests),
)  # fmt: skip
"""Every format that is read; the first that matches takes it."""
