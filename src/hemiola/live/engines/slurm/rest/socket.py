"""A connection to slurmrestd that is over when its time is, with TLS or without."""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, cast

from hemiola.live.engines.slurm.rest.address import Address

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["connected"]


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
