"""Where slurmrestd listens, and what proves who asks it."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hemiola.core.errors import InputError
from hemiola.core.loopback import is_loopback

__all__ = ["Address", "Token", "user_of"]

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
