"""Who is let in, and with what: hosts, origins, tokens, rates, certificates; and that no secret gets out."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
from certificates import certificate
from web_helpers import Scene, ask, job, scene, topology, wait_until

from hemiola.core.errors import InputError
from hemiola.core.events import Arrived
from hemiola.live.journal import Journal
from hemiola.live.service import LiveService, SessionSettings
from hemiola.live.web.security import Guard, Rates, Tokens
from hemiola.live.web.server import WebServer

VIEW, OPERATE = "v" * 24, "o" * 24
STATUS = "/api/v1/status"


def token_file(
    folder: Path, text: str = f"# people\nview {VIEW}\n\noperate {OPERATE}\n", mode: int = 0o600
) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """With tokens and a kill switch."""
    folder = tmp_path_factory.mktemp("web")
    settings = SessionSettings(policy="fifo-backfill", mode="enforce", kill_switch=folder / "stop")
    with scene(
        folder,
        settings=settings,
        tokens=token_file(folder),
        kill_switch=folder / "stop",
        allowed_hosts=["gpu.example"],
    ) as found:
        found.happen(Arrived(time.time(), job("a", 8)))
        yield found


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "", "[", "localhost@evil.example:1"],
)
def test_a_name_that_is_not_ours_is_refused(here: Scene, host: str):
    """DNS rebinding: a browser that was pointed at loopback still sends the name that it was given."""
    answer = here.ask(STATUS, Host=host, **bearer(OPERATE))
    assert answer.status in (400, 421), answer
    assert here.ask("/", Host=host).status in (400, 421), "not even the page"


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:1", "LOCALHOST", "gpu.example"])
def test_our_own_names_are_served_on_whatever_port_a_tunnel_has(here: Scene, host: str):
    assert here.ask(STATUS, Host=host, **bearer(VIEW)).status == 200


@pytest.mark.parametrize("path", [STATUS, "/api/v1/events", "/api/v1/kill-switch", "/"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://[", ""])
def test_another_page_may_not_ask_anything(here: Scene, path: str, origin: str):
    method = "POST" if "kill" in path else "GET"
    answer = here.ask(path, method, Origin=origin, **bearer(OPERATE))
    assert answer.status == 403 and answer.json["what"] == "another web page may not ask this service"


def test_our_own_page_may(here: Scene):
    assert here.ask(STATUS, Origin=here.url.rstrip("/"), **bearer(VIEW)).status == 200
    tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert here.ask(STATUS, **tunnel, **bearer(VIEW)).status == 200


@pytest.mark.parametrize(
    "path", ["status", "cluster", "nodes", "links", "jobs", "jobs/a", "decisions", "runs", "shadow", "events"]
)
def test_nothing_is_told_without_a_token(here: Scene, path: str):
    answer = here.ask(f"/api/v1/{path}")
    assert answer.status in (401, 429) and set(answer.json) == {"what", "remedy"}
    assert b"leaf-spine" not in answer.body


def test_wrong_tokens_are_refused_and_then_slowed_down(tmp_path: Path):
    with scene(tmp_path, tokens=token_file(tmp_path)) as here:
        wrong = ["", VIEW[:-1], VIEW + "v", VIEW.upper(), f"{VIEW} {VIEW}", "\xe9" * 24, "v"]
        answers = [here.ask(STATUS, **bearer(token)) for token in wrong]
        answers += [here.ask(STATUS, Authorization=text) for text in (VIEW, f"Basic {VIEW}", f"Token {VIEW}")]
        assert [answer.status for answer in answers] == [401] * 10
        assert answers[0].headers["www-authenticate"] == 'Bearer realm="hemiola"'
        slowed = here.ask(STATUS, **bearer("x" * 24))
        assert slowed.status == 429 and 1 <= int(slowed.headers["retry-after"]) <= 3
        assert here.ask(STATUS, **bearer(VIEW)).status == 200, "whoever has a token is not slowed down by it"


def test_a_token_to_view_may_not_operate(here: Scene):
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert here.ask("/api/v1/kill-switch", method, **bearer(VIEW)).status == 403
    assert here.ask("/", "POST", **bearer(VIEW)).status == 403
    stop = here.where.with_name("stop")
    assert not stop.exists() and here.ask("/metrics", **bearer(VIEW)).status == 200


def test_the_kill_switch_ends_enforcing_and_can_be_taken_back(here: Scene):
    def mode() -> Any:
        answer = here.ask(STATUS, **bearer(VIEW))
        return (answer.json["mode"], answer.json["kill_switch"]) if answer.status == 200 else None

    assert mode() == ("enforce", False)
    assert here.ask("/api/v1/kill-switch", "POST", **bearer(OPERATE)).json == {"thrown": True}
    wait_until(lambda: mode() == ("observe", True))
    assert here.ask("/api/v1/kill-switch", "POST", **bearer(OPERATE)).status == 200, "once more does nothing"
    assert here.ask("/api/v1/kill-switch", "DELETE", **bearer(OPERATE)).json == {"thrown": False}
    wait_until(lambda: mode() == ("enforce", False))


def test_without_tokens_nothing_can_be_changed(tmp_path: Path):
    stop = tmp_path / "stop"
    with scene(tmp_path, kill_switch=stop) as here:
        assert here.ask(STATUS).status in (200, 503)
        assert here.ask("/api/v1/kill-switch", "POST").status == 403 and not stop.exists()
        assert here.ask("/api/v1/kill-switch", "POST", **bearer(OPERATE)).status == 403 and not stop.exists()


def test_a_kill_switch_that_cannot_be_taken_back_says_so(tmp_path: Path):
    (stop := tmp_path / "stop").mkdir()
    with scene(tmp_path, tokens=token_file(tmp_path), kill_switch=stop) as here:
        answer = here.ask("/api/v1/kill-switch", "DELETE", **bearer(OPERATE))
        assert answer.status == 503 and str(stop) in answer.json["what"] and answer.json["remedy"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_tokens_that_others_can_read_are_refused(tmp_path: Path, mode: int):
    with pytest.raises(InputError, match=f"open to others .mode {mode:04o}") as problem:
        Tokens.read(token_file(tmp_path, mode=mode))
    assert problem.value.remedy == f"chmod 600 {tmp_path / 'tokens'}"
    assert VIEW not in str(problem.value)


@pytest.mark.parametrize(
    "text", [f"admin {VIEW}", "view short", "view", VIEW, f"view {VIEW} x", f"view {VIEW}\nview \xe9{VIEW}"]
)
def test_a_line_that_is_no_token_is_refused_without_showing_it(tmp_path: Path, text: str):
    with pytest.raises(InputError, match=r"line \d of") as problem:
        Tokens.read(token_file(tmp_path, text))
    assert VIEW not in str(problem.value) and "short" not in str(problem.value)


def test_a_token_file_has_tokens_and_is_a_file(tmp_path: Path):
    for make in (
        lambda: token_file(tmp_path, "# none\n"),
        lambda: tmp_path,
        lambda: tmp_path / "none",
        lambda: binary(tmp_path),
    ):
        with pytest.raises(InputError):
            Tokens.read(make())


def binary(folder: Path) -> Path:
    path = token_file(folder)
    path.write_bytes(b"view \xff\xfe")
    return path


def test_the_stronger_of_two_roles_counts():
    assert Tokens([("operate", VIEW), ("view", VIEW)]).role(f"Bearer {VIEW}") == "operate"
    assert Tokens([("view", VIEW), ("operate", VIEW)]).role(f"bearer  {VIEW} ") == "operate"


def test_others_are_not_served_without_tokens(tmp_path: Path):
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, topology(), lambda run: pytest.fail("nobody runs it")
        )
        for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0"):
            with pytest.raises(InputError, match="there are no tokens"):
                WebServer(service, journal, address=address)
        for address in ("127.0.0.1", "127.0.0.1:x", ":80", "127.0.0.1:70000"):
            with pytest.raises(InputError, match="is no address to serve"):
                WebServer(service, journal, address=address)


def test_a_port_that_is_taken_is_said(tmp_path: Path):
    with Journal.open(tmp_path / "j.db") as journal, socket.socket() as other:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, topology(), lambda run: pytest.fail("nobody runs it")
        )
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is taken"):
            WebServer(service, journal, address=f"127.0.0.1:{port}").__enter__()


def test_rates_fill_and_are_told_apart_by_client():
    now = [0.0]
    rates = Rates(2.0, 4.0, clock=lambda: now[0])
    assert [rates.wait_s("a") for _ in range(4)] == [0.0] * 4
    assert rates.wait_s("a") == pytest.approx(0.5) and rates.wait_s("b") == 0.0
    now[0] = 0.5
    assert rates.wait_s("a") == 0.0 and rates.wait_s("a") > 0
    now[0] = 1e6
    assert [rates.wait_s("a") for _ in range(5)] == [0.0] * 4 + [pytest.approx(0.5)], "it never holds more"


def test_clients_that_come_once_do_not_fill_the_memory():
    rates = Rates(1.0, 1.0)
    for number in range(10_000):
        rates.wait_s(str(number))
    assert len(rates._buckets) <= 4096


def statuses(guard: Guard, clients: list[str]) -> list[int]:
    """What a guard answers to one request of each client, without a network."""
    found: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async def one(client: str) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [(b"host", b"localhost")],
            "client": (client, 1),
        }
        await guard(scope, None, send)  # type: ignore[arg-type]

    for client in clients:
        asyncio.run(one(client))
    return found


def test_too_many_requests_are_refused_and_others_still_served():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    now = [0.0]
    rates = Rates(1.0, 2.0, clock=lambda: now[0])
    guard = Guard(
        app,
        hosts=frozenset({"localhost"}),
        tokens=None,
        public=lambda path: True,
        rates=rates,
        failures=rates,
    )
    assert statuses(guard, ["192.0.2.1"] * 3 + ["192.0.2.2"]) == [200, 200, 429, 200]
    assert statuses(guard, ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]) == [
        200,
        200,
        429,
        200,
    ], "one /64"
    mapped = ["::ffff:192.0.2.3"] * 3 + ["::ffff:192.0.2.4"]
    assert statuses(guard, mapped) == [200, 200, 429, 200], "as a socket for both has IPv4"
    for tunnel in ("127.0.0.1", "::1"):
        assert statuses(guard, [tunnel] * 11) == [200] * 10 + [429], "several people come from there"


def test_every_answer_forbids_what_the_page_does_not_need(here: Scene):
    for path in ("/", "/static/main.js", STATUS, "/none", "/openapi.json"):
        headers = here.ask(path, **bearer(VIEW)).headers
        policy = headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        )
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "server" not in headers and "access-control-allow-origin" not in headers
    assert here.ask("/", Host="evil.example").headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd"]
)
def test_only_the_pages_own_files_are_served(here: Scene, path: str):
    answer = here.ask(path, **bearer(VIEW))
    assert answer.status == 404 and set(answer.json) == {"what", "remedy"}


def test_secrets_are_in_no_log_and_not_in_the_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG), scene(tmp_path, tokens=token_file(tmp_path)) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        for token in (VIEW, OPERATE, "w" * 24):
            here.ask(f"{STATUS}?token={token}", **bearer(token))
            here.ask("/api/v1/kill-switch", "POST", **bearer(token))
    told = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "/api/v1/status" in told
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("journal.db*"))
    for secret in (VIEW, OPERATE, "w" * 24):
        assert secret not in told and secret.encode() not in stored


def test_tls_by_certificate_files(tmp_path: Path):
    files = certificate(tmp_path)
    with scene(tmp_path, tls=files, tokens=token_file(tmp_path)) as here:
        assert here.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=files[0])
        answer = ask(here.url, "/", context=trusting)
        assert answer.status == 200 and "strict-transport-security" in answer.headers
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(here.url, "/", context=ssl.create_default_context())


def test_files_that_are_no_certificate_are_refused(tmp_path: Path):
    with Journal.open(tmp_path / "j.db") as journal:
        service = LiveService(
            SessionSettings(policy="fifo"), journal, topology(), lambda run: pytest.fail("nobody runs it")
        )
        wrong = tmp_path / "wrong.pem"
        wrong.write_text("no certificate")
        for path in (wrong, tmp_path / "none.pem"):
            with pytest.raises(InputError, match="are no certificate and its key"):
                WebServer(service, journal, address="127.0.0.1:0", tls=(path, path))


def test_the_loop_goes_on_when_the_page_is_flooded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Requests beyond the rate are refused at once, and jobs are still decided on."""
    monkeypatch.setattr("hemiola.live.web.app.BURST", 40.0)
    monkeypatch.setattr("hemiola.live.web.app.PER_S", 4.0)
    with scene(tmp_path) as here:
        found = [here.ask("/favicon.ico").status for _ in range(400)]
        assert 429 in found and found[0] == 200
        here.happen(Arrived(time.time(), job("a", 8)))
        wait_until(lambda: here.journal.job("a").status == "running")
