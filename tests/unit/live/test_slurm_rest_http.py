"""How slurmrestd is asked: addresses, tokens, TLS; faults are named, and nothing of half an answer is used."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import certificate
from patience import patience
from rest_server import EMPTY, SECRET, FakeRest, answer, sample_of, slurm_at

from hemiola.cli.serve import serve
from hemiola.core.errors import EngineError, HemiolaError, InputError
from hemiola.live.engines.slurm.client import Slurm
from hemiola.live.engines.slurm.rest import client as rest_client
from hemiola.live.engines.slurm.rest import http as rest_http
from hemiola.live.engines.slurm.rest.client import RestSlurm, rest_slurm
from hemiola.live.engines.slurm.rest.http import Address, Http, Token

# ---- faults


def breaking(part: bytes) -> Callable[[Any], None]:
    def say(handler: Any) -> None:
        handler.wfile.write(part)

    return say


def dripping(fake: FakeRest) -> Callable[[Any], None]:
    def say(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not fake.released.wait(0.02):
            handler.wfile.write(b" ")

    return say


def silent(fake: FakeRest) -> Callable[[Any], None]:
    return lambda handler: fake.released.wait() and None


WHOLE = answer({**EMPTY})
FAULTS: dict[str, tuple[bytes, str]] = {
    "an error of slurmctld": (
        answer({"jobs": [], "errors": [{"description": "Unable to query jobs", "error_number": 1, "error": "Unable to contact slurm controller (connect failure)"}], "warnings": []}, 500),
        r"refuses jobs/: Unable to query jobs: Unable to contact slurm controller",
    ),
    "errors under 200": (
        answer({**EMPTY, "errors": [{"error": "so it is"}]}), r"refuses jobs/: so it is",
    ),
    "500 with nothing": (answer(b"", 500), "HTTP 500 with what is no answer"),
    "a bad token": (answer(b"Authentication failure", 401, "text/plain"), "HTTP 401 .*Authentication failure"),
    "a page": (answer(b"<html>Bad Gateway</html>", 502, "text/html"), "HTTP 502 .*<html>"),
    "a page under 200": (answer(b"<html>Sign in</html>", 200, "text/html"), "HTTP 200 .*<html>"),
    "a redirect": (answer(b"", 302, more="Location: http://evil.example/\r\n"), r"redirect \(302\), which is not followed"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
    "nothing": (b"", "does not speak HTTP|cannot be asked"),
    "half of the head": (WHOLE[:30], "broke off|does not speak HTTP|no answer"),
    "half of the body": (WHOLE[:-10], "broke off 10 bytes before the end"),
    "half a body without length": (b"HTTP/1.1 200 OK\r\n\r\n" + WHOLE[-20:-3], "no answer"),
    "half a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n{\"jobs\"", "broke off in the middle"),
    "truncated JSON": (answer(b'{"jobs": [{"job_id": 1'), "HTTP 200 with what is no answer"),
    "a list": (answer(b"[]"), "HTTP 200 with what is no answer"),
    "no jobs": (answer({"errors": [], "warnings": []}), "missing required field `jobs`"),
    "no errors": (answer({"jobs": []}), "missing required field"),
    "depth": (answer(b'{"jobs":' + b"[" * 100_000), "HTTP 200 with what is no answer"),
}  # fmt: skip

COMPLAINTS = {"an error of slurmctld", "errors under 200", "no jobs"}
"""What is no fault of an answer to an order."""


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_and_the_next_answer_counts(name: str):
    said, wanted = FAULTS[name]
    with FakeRest("24.11.5") as fake:
        slurm = slurm_at(fake)
        fake.say("GET jobs/", sample_of(fake))
        before = slurm.jobs(states="all")
        fake.answers[f"GET /slurm/{fake.version}/jobs/"] = breaking(said)
        with pytest.raises(EngineError, match=wanted) as caught:
            slurm.jobs(states="all")
        assert SECRET not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"
        fake.answers[f"POST /slurm/{fake.version}/job/1"] = breaking(said)
        if name not in COMPLAINTS:
            with pytest.raises(EngineError):
                slurm.tell(["release 1"])
        fake.say("GET jobs/", sample_of(fake))
        assert slurm.jobs(states="all") == before


@pytest.mark.parametrize("slow", [dripping, silent])
def test_slow_answers_end_in_time(slow: Callable[[FakeRest], Callable[[Any], None]]):
    with FakeRest("24.11.5") as fake:
        slurm = slurm_at(fake, limit_s=0.3)
        fake.answers[f"GET /slurm/{fake.version}/jobs/"] = slow(fake)
        began_s = time.monotonic()
        with pytest.raises(EngineError, match=r"no whole answer within 0\.3 s"):
            slurm.jobs()
        assert time.monotonic() - began_s < patience(30.0)


def test_huge_answers_are_refused(monkeypatch: pytest.MonkeyPatch):
    with FakeRest("24.11.5") as fake:
        slurm = slurm_at(fake)
        monkeypatch.setattr(rest_http, "MOST_BYTES", 10_000)
        monkeypatch.setattr(rest_http, "CHUNK_BYTES", 4096)
        with pytest.raises(EngineError, match="sends more than 10,000 bytes"):
            slurm.jobs()


def test_nobody_there_is_said():
    with FakeRest("24.11.5") as fake:
        http = Http(Address.of(fake.url), Token(text=SECRET))
    with pytest.raises(EngineError, match="cannot be asked: Connection refused"):
        RestSlurm(http)
    with pytest.raises(EngineError, match="cannot be asked: No such file"):
        RestSlurm(Http(Address.of("unix:/nowhere/there.sock"), Token()))


# ---- who asks, and where


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://ctl:6821", Address("ctl", 6821)), ("http://ctl", Address("ctl", 6820)), ("http://ctl/", Address("ctl", 6820)),
        ("http://slurm@ctl:1", Address("ctl", 1, user="slurm")), ("http://[::1]:7", Address("::1", 7)),
        ("https://ctl", Address("ctl", 443, tls=True)), ("https://s@ctl:6820/", Address("ctl", 6820, user="s", tls=True)),
        ("unix:/run/slurmrestd.sock", Address(path="/run/slurmrestd.sock")),
    ],
)  # fmt: skip
def test_addresses(url: str, address: Address):
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url", ["", "ctl:6820", "https://", "ftp://ctl", "http://", "http://ctl:x", "http://ctl:99999", "http://ctl/slurm", "unix:run", "http://a b@ctl", "http://ctl?x=1", "file:///x"],
)  # fmt: skip
def test_addresses_that_are_none(url: str):
    with pytest.raises(InputError, match="address of slurmrestd") as caught:
        Address.of(url)
    assert "http://HOST:PORT" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "is_open"),
    [("http://ctl", True), ("http://10.0.0.1", True), ("https://ctl", False), ("http://localhost", False), ("http://[::1]", False), ("unix:/s", False)],
)  # fmt: skip
def test_a_token_that_others_may_read_is_said(
    url: str, is_open: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(rest_client, "RestSlurm", lambda http, slurm: SimpleNamespace(lacks=""))
    rest_slurm(url, None, Slurm(), acts=True)
    assert ("whoever sees the traffic sees the token" in caplog.text) is is_open


def test_tls_wants_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = certificate(tmp_path)
    with FakeRest("24.11.5", tls=files) as fake:
        with pytest.raises(EngineError, match="is not trusted: self-signed") as caught:
            slurm_at(fake)
        assert "SSL_CERT_FILE" in caught.value.remedy and not fake.asked
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        slurm = slurm_at(fake, limit_s=0.5)
        assert len(slurm.nodes()) == 9
        for slow in (dripping, silent):
            fake.answers[f"GET /slurm/{fake.version}/jobs/"] = slow(fake)
            with pytest.raises(EngineError, match=r"no whole answer within 0\.5 s"):
                slurm.jobs()
    another = certificate(tmp_path, "DNS:elsewhere")
    with (
        FakeRest("24.11.5", tls=another) as fake,
        pytest.raises(EngineError, match="not trusted: IP address mismatch"),
    ):
        slurm_at(fake)
    with FakeRest("24.11.5") as plain, pytest.raises(EngineError, match="does not speak TLS"):
        RestSlurm(Http(Address.of(plain.url.replace("http", "https")), Token(), 5.0))


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(InputError, match="password in it") as caught:
        Address.of(f"http://slurm:{SECRET}@ctl:1")
    assert SECRET not in str(caught.value)


def test_the_token_goes_with_each_question_and_comes_anew_from_its_file(tmp_path: Path):
    path = tmp_path / "token"
    claims = base64.urlsafe_b64encode(b'{"sun":"slurm"}').decode().rstrip("=")
    with FakeRest("24.11.5") as fake:
        path.write_text(f"SLURM_JWT=first.{claims}.x\n")
        path.chmod(0o600)
        slurm = RestSlurm(Http(Address.of(fake.url), Token.given(path)))
        path.write_text("second")
        slurm.nodes()
        path.unlink()
        with pytest.raises(EngineError, match="cannot be read: No such file"):
            slurm.nodes()
        sent = [
            (headers.get("x-slurm-user-name"), headers["x-slurm-user-token"]) for _, headers, _ in fake.asked
        ]
    assert sent == [("slurm", f"first.{claims}.x"), (None, "second")]


def test_tokens_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "token"
    for text, mode, said in (
        (SECRET, 0o644, "open to others"),
        ("", 0o600, "no token"),
        (f"{SECRET}\r\nX: y", 0o600, "no token"),
    ):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(InputError, match=said) as caught:
            Token.given(path)
        assert SECRET not in str(caught.value)
    monkeypatch.setenv("SLURM_JWT", f"{SECRET}\nX-Evil: 1")
    with pytest.raises(InputError, match="SLURM_JWT holds no token"):
        Token.given(None)
    monkeypatch.setenv("SLURM_JWT", SECRET)
    assert Token.given(None).read() == SECRET and SECRET not in repr(Token.given(None))
    monkeypatch.delenv("SLURM_JWT")
    assert Token.given(None).read() == ""


def test_a_socket_asks_for_no_token(tmp_path: Path):
    with FakeRest("26.05.5", str(tmp_path / "rest.sock")) as fake:
        slurm = RestSlurm(Http(Address.of(fake.url), Token()))
        assert len(slurm.nodes()) == 9
        assert not any(key.startswith("x-slurm") for _, headers, _ in fake.asked for key in headers)


def test_a_file_of_a_token_without_an_address_is_refused(tmp_path: Path):
    with pytest.raises(HemiolaError, match="--rest-token without --rest"):
        serve(engine="slurm", policy="dally", rest_token=tmp_path / "token")
