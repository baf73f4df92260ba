"""Who may ask what: hosts, origins, tokens, rates. Stands before every route; knows none but by path.

A web page elsewhere can make a browser send requests to 127.0.0.1, and can point a name of its own at it (DNS
rebinding). So the Host header has to be one of ours, and a foreign Origin is refused, whatever is asked.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hemiola.core.errors import InputError
from hemiola.core.hostlist import is_loopback

__all__ = ["Guard", "Rates", "Role", "Tokens", "problem_body"]

_log = logging.getLogger("hemiola.web")
Role = Literal["view", "operate"]
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
LINES_MOST = 1000
CLIENTS_MOST = 4096
LOCAL_COST = 0.2
"""Of a request from this very host, which speaks for all who come through a tunnel or a proxy."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Tokens:
    """Bearer tokens and what they allow. Only their hashes are kept."""

    def __init__(self, tokens: Sequence[tuple[Role, str]]) -> None:
        self._known = [(role, sha256(token.encode()).digest()) for role, token in tokens]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Lines "view TOKEN" or "operate TOKEN"; empty ones and such that begin with # are skipped.

        Raises:
            InputError: the file cannot be read, others may read or write it, or a line is not understood.
        """
        try:
            with path.open(encoding="utf-8") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                if not stat.S_ISREG(mode) or mode & 0o077:
                    raise InputError(
                        f"the tokens in {str(path)!r} are open to others (mode {stat.S_IMODE(mode):04o})",
                        f"chmod 600 {path}",
                    )
                lines = stream.read(LINES_MOST * 600).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the tokens in {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}",
                'write lines such as "view TOKEN" there',
            ) from error
        return cls(list(_tokens(lines, path)))

    def role(self, header: str) -> Role | None:
        """What an Authorization header allows; None if nothing. Takes equally long for every wrong token."""
        scheme, _, token = header.partition(" ")
        given = sha256(token.strip().encode(errors="replace")).digest()
        found: Role | None = None
        for role, known in self._known:
            if hmac.compare_digest(known, given) and found != "operate":
                found = role
        return found if scheme.lower() == "bearer" else None


def _tokens(lines: list[str], path: Path) -> list[tuple[Role, str]]:
    found: list[tuple[Role, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        role, _, token = line.strip().partition(" ")
        token = token.strip()
        if role not in ("view", "operate") or not _TOKEN.fullmatch(token):
            raise InputError(
                f"line {number} of {str(path)!r} is no token",
                'write "view TOKEN" or "operate TOKEN", with 16 or more letters, digits or . _ ~ + / = -',
            )
        found.append((role, token))  # type: ignore[arg-type]
    if not found:
        raise InputError(f"there is no token in {str(path)!r}", 'write a line such as "view TOKEN" there')
    return found


class Rates:
    """A bucket of permissions per client, which fills at a steady rate.

    Args:
        per_s: permissions per second.
        burst: how many a bucket holds.
        clock: seconds, monotonic.
    """

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str, cost: float = 1.0) -> float:
        """Take permissions and return 0, or how long to wait until there are as many."""
        now = self._clock()
        left, then = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_s)
        enough = left >= cost
        self._buckets[client] = (left - cost if enough else left), now
        if len(self._buckets) > CLIENTS_MOST:
            self._buckets.popitem(last=False)
        return 0.0 if enough else (cost - left) / self._per_s


class AccessRefusal(msgspec.Struct, frozen=True):
    """Why a request is not answered."""

    status: int
    reason: str
    what: str
    remedy: str
    headers: tuple[tuple[str, str], ...] = ()


def problem_body(what: str, remedy: str) -> bytes:
    """The one shape that every error has."""
    return msgspec.json.encode({"what": what, "remedy": remedy})


class Guard:
    """ASGI middleware: lets a request pass, or answers it itself.

    Args:
        hosts: names that a Host header may have, in lower case, without port.
        tokens: None: everybody may view, nobody operate.
        public: whether a path may be asked for without a token.
        refused: told of each refusal's reason.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: frozenset[str], tokens: Tokens | None, public: Callable[[str], bool],
        rates: Rates, failures: Rates, refused: Callable[[str], None] = lambda reason: None, tls: bool = False,
    ) -> None:  # fmt: skip
        self._app, self._hosts, self._tokens, self._public = app, hosts, tokens, public
        self._rates, self._failures, self._refused = rates, failures, refused
        self._headers = {**HEADERS, **({"strict-transport-security": "max-age=31536000"} if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        began_s, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._check(scope)
        if refusal is None:
            await self._app(scope, receive, sending)
        else:
            self._refused(refusal.reason)
            await _refuse(refusal, sending)
        usual = status < 400 and scope["method"] == "GET"
        _log.log(
            logging.DEBUG if usual else logging.INFO, "%s %r %d", scope["method"], scope["path"], status,
            extra={
                "method": scope["method"], "path": scope["path"], "status": status, "client": _client(scope),
                "took_ms": round((time.monotonic() - began_s) * 1000, 1),
            },
        )  # fmt: skip

    def _check(self, scope: Scope) -> AccessRefusal | None:
        headers, client = Headers(scope=scope), _client(scope)
        hosts = headers.getlist("host")
        host = _host(hosts[0]) if len(hosts) == 1 else ""
        if host not in self._hosts:
            return AccessRefusal(
                421, "host", f"this service is not called {host[:100]!r}",
                "use one of its own names, or have it allow this one (--allow-host)",
            )  # fmt: skip
        for origin in headers.getlist("origin"):
            if not _is_of(origin, hosts[0]):
                return AccessRefusal(
                    403, "origin", "another web page may not ask this service", "open its own page"
                )
        if (wait_s := self._rates.wait_s(client, LOCAL_COST if is_loopback(client) else 1.0)) > 0:
            return _slow_down(wait_s)
        return self._check_role(scope, headers, client)

    def _check_role(self, scope: Scope, headers: Headers, client: str) -> AccessRefusal | None:
        operates = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if self._tokens is None:
            if operates:
                return AccessRefusal(
                    403, "role", "without tokens this service only shows", "start it with a file of tokens"
                )
            return None
        if self._public(scope["path"]) and not operates:
            return None
        role = self._tokens.role(headers.get("authorization", ""))
        if role is None:
            if (wait_s := self._failures.wait_s(client)) > 0:
                return _slow_down(wait_s)
            what = "this token is not known" if "authorization" in headers else "a token is needed"
            remedy = "send the header Authorization: Bearer TOKEN"
            return AccessRefusal(
                401, "token", what, remedy, (("www-authenticate", 'Bearer realm="hemiola"'),)
            )
        if operates and role != "operate":
            return AccessRefusal(403, "role", "this token may only view", "use one with the role operate")
        return None


def _slow_down(wait_s: float) -> AccessRefusal:
    after = str(max(1, round(wait_s + 0.5)))
    return AccessRefusal(429, "rate", "too many requests", f"wait {after} s", (("retry-after", after),))


async def _refuse(refusal: AccessRefusal, send: Send) -> None:
    body = problem_body(refusal.what, refusal.remedy)
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in refusal.headers),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _host(header: str) -> str:
    """The name in a Host header, without port and in lower case; "" if it is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_of(origin: str, host: str) -> bool:
    """Whether an Origin header names the very host and port that were asked."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _client(scope: Scope) -> str:
    """An address; of IPv6 the network that one customer gets."""
    address = scope["client"][0] if scope.get("client") else "?"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return str(address)
    if parsed.version == 6 and parsed.ipv4_mapped is not None:  # as a socket for both has it
        return str(parsed.ipv4_mapped)
    if parsed.version == 4 or parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
