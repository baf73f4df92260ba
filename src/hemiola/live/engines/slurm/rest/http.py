"""One question to slurmrestd at a time, over HTTP: the whole answer within a time, or an error that says what happened.

Knows nothing of what is asked. Redirects are not followed, proxies not used, and the token stands in no message.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import ssl
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from hemiola.core.errors import EngineError, InputError
from hemiola.core.hostlist import is_loopback
from hemiola.live.failpoints import failpoint

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


__all__ = ["Address", "Http", "Token"]


# Where slurmrestd listens, and what proves who asks it.

PORT, TLS_PORT = 6820, 443
_TOKEN = re.compile(r"[\w.~+/=-]{1,8192}", re.ASCII)
_USER = re.compile(r"[\w.-]{1,255}", re.ASCII)


@dataclass(frozen=True)
class Address:
    """Where slurmrestd listens.

    Attributes:
        host: empty where `path` is not.
        path: of a socket on this host.
        user: as whom to speak; as whom the token says unless given.
        tls: whether to speak by https.
    """

    host: str = ""
    port: int = PORT
    path: str = ""
    user: str = ""
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> Address:
        """From http[s]://[USER@]HOST[:PORT] or unix:/PATH.

        Raises:
            InputError: it is something else.
        """
        try:
            parts = urlsplit(url)
            tls = parts.scheme == "https"
            host, port, user = parts.hostname or "", parts.port, parts.username or ""
        except ValueError:
            raise _bad(url) from None
        if parts.password is not None:
            raise InputError(
                "the address of slurmrestd has a password in it", "a token goes by SLURM_JWT or a file"
            )
        if parts.query or parts.fragment or (user and not _USER.fullmatch(user)):
            raise _bad(url)
        if parts.scheme == "unix" and not host and parts.path.startswith("/"):
            return cls(path=parts.path)
        if parts.scheme in ("http", "https") and host and parts.path in ("", "/"):
            return cls(host, port or (TLS_PORT if tls else PORT), user=user, tls=tls)
        raise _bad(url)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"http{'s' * self.tls}://{host}:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether others on the way may read the token."""
        return not self.path and not self.tls and not is_loopback(self.host)


def _bad(url: str) -> InputError:
    return InputError(
        f"the address of slurmrestd {url!r}",
        "write http://HOST:PORT, https://HOST:PORT, http://USER@HOST:PORT or unix:/PATH",
    )


@dataclass(frozen=True)
class Token:
    """What proves who asks: from a file, which is read each time, as tokens end; or from the environment.

    Attributes:
        path: of the file; the variable SLURM_JWT counts where there is none.
        text: of that variable; "" where it is not set, as for a socket that asks for none.
    """

    path: Path | None = None
    text: str = field(default="", repr=False)

    @classmethod
    def given(cls, path: Path | None) -> Token:
        """From the file, or else the environment.

        Raises:
            InputError: it cannot be read, others may read it, or it holds no token.
        """
        token = cls(path, "" if path else os.environ.get("SLURM_JWT", ""))
        token.read()
        return token

    def read(self) -> str:
        """The token now."""
        text = _in_file(self.path) if self.path else self.text
        text = text.strip().removeprefix("SLURM_JWT=")  # as `scontrol token` prints it
        if (text or self.path) and not _TOKEN.fullmatch(text):
            where = repr(str(self.path)) if self.path else "SLURM_JWT"
            raise InputError(f"{where} holds no token", "write there what `scontrol token` prints")
        return text


def user_of(token: str) -> str:
    """As whom a JSON web token of Slurm's lets speak; "" where it does not say. Slurm 22.05 wants to be told."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return ""
    user = claims.get("sun") if isinstance(claims, dict) else None
    return user if isinstance(user, str) and _USER.fullmatch(user) else ""


def _in_file(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise InputError(
                    f"the token in {str(path)!r} is open to others (mode {stat.S_IMODE(mode):04o})",
                    f"chmod 600 {path}",
                )
            return stream.read(10_000)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the token in {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}",
            "write there what `scontrol token` prints",
        ) from None


# A connection to slurmrestd that is over when its time is, with TLS or without.


class _Socket(socket.socket):
    """One that gives up when its time is over, however the bytes drip."""

    until_s = float("inf")

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """As a socket's."""
        self.limit()
        return super().recv_into(buffer, nbytes, flags)

    def limit(self) -> None:
        """Let the next call take what is left of the time."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)


class _Tls(ssl.SSLSocket, _Socket):
    """The same, encrypted."""

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        """As a socket's."""
        self.limit()
        return ssl.SSLSocket.recv_into(self, buffer, nbytes, flags)


def connected(address: Address, until_s: float) -> socket.socket:
    """A connection; whoever answers by https has shown the certificate of that host.

    Raises:
        OSError: nobody is there, within the time, or it is not who it should be.
    """
    if address.path:
        places = [(socket.AF_UNIX, address.path)]
    else:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        places = [(family, where) for family, _, _, _, where in found]  # type: ignore[misc]
    problem = OSError()
    for family, where in places:
        sock = _Socket(family, socket.SOCK_STREAM)
        sock.until_s = until_s
        try:
            sock.limit()
            sock.connect(where)
            return _encrypted(sock, address.host, until_s) if address.tls else sock
        except OSError as error:
            sock.close()
            problem = error
    raise problem


def _encrypted(sock: _Socket, host: str, until_s: float) -> _Tls:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Tls
    sock.limit()
    wrapped = cast(_Tls, context.wrap_socket(sock, server_hostname=host))
    wrapped.until_s = until_s
    return wrapped


MOST_BYTES = 512 << 20
"""Of an answer: some 60,000 jobs."""
CHUNK_BYTES = 1 << 20
_AGAIN = "half an answer is not used; it is asked again"
_IS_UP = "does slurmrestd run there? see its log"


@dataclass(frozen=True)
class HttpAnswer:
    """A whole one.

    Attributes:
        status: of HTTP.
        kind: its Content-Type.
    """

    status: int
    kind: str
    body: bytes


class Http:
    """A slurmrestd's address and token.

    Args:
        limit_s: so long one answer may take, to its last byte.
    """

    def __init__(self, address: Address, token: Token, limit_s: float = 15.0) -> None:
        self.address, self._token, self._limit_s = address, token, limit_s

    def ask(self, path: str, body: bytes | None = None) -> HttpAnswer:
        """GET a path, or POST to it.

        Raises:
            EngineError: nobody there, half an answer or none within the time, too much, a redirect, or no token.
        """
        failpoint("slurm.rest.before")
        try:
            answer = self._ask(path, body)
        except InputError as problem:
            raise EngineError(problem.what, problem.remedy) from None
        except TimeoutError:
            raise EngineError(
                f"{self.address} gave no whole answer within {self._limit_s:g} s", _IS_UP
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise EngineError(
                f"the certificate of {self.address} is not trusted: {error.verify_message}",
                "name the file of its authority in the variable SSL_CERT_FILE",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self.address} {_went_wrong(error)}", _IS_UP) from None
        failpoint("slurm.rest.after")
        return answer

    def _ask(self, path: str, body: bytes | None) -> HttpAnswer:
        with connected(self.address, time.monotonic() + self._limit_s) as sock:
            connection = http.client.HTTPConnection(self.address.host or "localhost", self.address.port)
            connection.sock = sock
            connection.request("GET" if body is None else "POST", path, body, self._headers())
            with connection.getresponse() as response:
                if 300 <= response.status < 400:
                    raise EngineError(
                        f"{self.address} answers with a redirect ({response.status}), which is not followed",
                        "give the address of slurmrestd itself",
                    )
                return HttpAnswer(response.status, response.headers.get_content_type(), self._whole(response))

    def _headers(self) -> dict[str, str]:
        token = self._token.read()
        user = self.address.user or user_of(token)
        return {
            "Accept": "application/json", "Content-Type": "application/json", "Connection": "close",
            **({"X-SLURM-USER-TOKEN": token} if token else {}), **({"X-SLURM-USER-NAME": user} if user else {}),
        }  # fmt: skip

    def _whole(self, response: http.client.HTTPResponse) -> bytes:
        parts, size = [], 0
        while part := response.read(CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise EngineError(f"{self.address} sends more than {MOST_BYTES:,} bytes", "is it slurmrestd?")
        if response.length:
            raise EngineError(f"{self.address} broke off {response.length} bytes before the end", _AGAIN)
        return b"".join(parts)


def _went_wrong(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "broke off in the middle of its answer"
    if isinstance(error, http.client.HTTPException):
        return f"does not speak HTTP ({type(error).__name__})"
    if isinstance(error, ssl.SSLError):
        return f"does not speak TLS ({error.reason or type(error).__name__})"
    return f"cannot be asked: {error.strerror or type(error).__name__}"
