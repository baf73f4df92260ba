"""The web server beside the loop, in a thread of its own."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hemiola.core.errors import HemiolaError, InputError
from hemiola.core.hostlist import is_loopback
from hemiola.live.journal.journal import Journal
from hemiola.live.service import LiveService

try:
    import uvicorn

    from hemiola.live.web.app import Closing, make_app
    from hemiola.live.web.queries import Queries
    from hemiola.live.web.security import Tokens
    from hemiola.live.web.shadow import Shadow
    from hemiola.live.web.snapshots import Snapshots
except ModuleNotFoundError as missing:
    raise InputError(
        f"the page and the API need {missing.name}, which is not installed", "pip install 'hemiola[serve]'"
    ) from missing

__all__ = ["WebServer"]

_log = logging.getLogger("hemiola.web")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
END_S = 5.0


class WebServer:
    """Serves while its context lasts. Enter it before `service.run`.

    Args:
        service, journal: what is shown; `service.watcher` is set.
        address: "HOST:PORT"; port 0 takes a free one. Without `tokens` only loopback is served.
        tokens: a file of tokens, see `security.Tokens.read`.
        tls: files of a certificate (with its chain) and its key, PEM.
        allowed_hosts: more names under which browsers may ask for it.
        kill_switch: the service's own file.
        shadow: policies to compare; it is closed with the server.

    Attributes:
        url: of the page, once it serves.

    Raises:
        InputError: the address, a file or the combination cannot be.
    """

    def __init__(
        self, service: LiveService, journal: Journal, *, address: str = "127.0.0.1:8470", tokens: Path | None = None,
        tls: tuple[Path, Path] | None = None, allowed_hosts: Sequence[str] = (), kill_switch: Path | None = None,
        shadow: Shadow | None = None,
    ) -> None:  # fmt: skip
        self._host, self._port = _parsed(address)
        known = Tokens.read(tokens) if tokens is not None else None
        if known is None and not is_loopback(self._host):
            raise InputError(
                f"{address!r} can be reached by others, and there are no tokens",
                "give a file of tokens, or serve 127.0.0.1 and use an SSH tunnel",
            )
        if tls is None and not is_loopback(self._host):
            _log.warning("%s is served without TLS: whoever sees the traffic sees the tokens", address)
        self._snapshots, self._closing, self._shadow = Snapshots(), Closing(), shadow
        self._queries = Queries(service, journal, self._snapshots, kill_switch=kill_switch, shadow=shadow)
        self._service, self._tls = service, tls
        names = {self._host, socket.gethostname(), socket.getfqdn()} - {"0.0.0.0", "::", ""}
        hosts = frozenset(name.lower() for name in (*LOCAL, *allowed_hosts, *names))
        app = make_app(self._queries, hosts=hosts, tokens=known, closing=self._closing, tls=tls is not None)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", server_header=False, proxy_headers=False,
                ws="none", limit_concurrency=200, timeout_keep_alive=10, timeout_graceful_shutdown=2,
                ssl_certfile=str(tls[0]) if tls else None, ssl_keyfile=str(tls[1]) if tls else None,
            )
        )  # fmt: skip
        if tls:
            _check_certificate(*tls)
        self.url = ""

    def __enter__(self) -> WebServer:
        self._socket = _bound(self._host, self._port)
        port = self._socket.getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{shown}:{port}/"
        self._service.watcher = self._snapshots  # type: ignore[assignment]
        self._thread = threading.Thread(target=self._serve, name="hemiola-web", daemon=True)
        self._thread.start()
        threading.Thread(target=self._remember, name="hemiola-web-history", daemon=True).start()
        _log.info("the page is at %s", self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.now = self._server.should_exit = True
        self._thread.join(END_S)
        self._socket.close()
        if self._shadow is not None:
            self._shadow.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:  # the loop goes on without a page
            _log.exception("the web server failed")

    def _remember(self) -> None:
        try:
            self._queries.notes()  # so that nobody waits for it
        except HemiolaError as problem:
            _log.warning("the last decisions could not be read: %s", problem.what)


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{address!r} is no address to serve", "write HOST:PORT, such as 127.0.0.1:8470")
    return host, int(port)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"{host!r} is no address of this machine: {error.strerror}", "name another"
        ) from error
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(where)
        found.listen(128)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} of {host} is taken", "end who has it, or name another port (0 for any free one)"
            ) from error
        raise InputError(
            f"{host}:{port} cannot be served: {error.strerror}", "name another address"
        ) from error
    return found


def _check_certificate(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"{str(certificate)!r} and {str(key)!r} are no certificate and its key: {error.strerror or error}",
            "give two PEM files, the key without a pass phrase",
        ) from error
