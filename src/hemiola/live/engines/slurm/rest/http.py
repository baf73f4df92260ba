"""One question to slurmrestd at a time, over HTTP: the whole answer within a time, or an error that says what happened.

Knows nothing of what is asked. Redirects are not followed, proxies not used, and the token stands in no message.
"""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass

from hemiola.live.failpoints import failpoint
from hemiola.live.engines.slurm.rest.address import Address, Token, user_of
from hemiola.live.engines.slurm.rest.socket import connected
from hemiola.core.errors import EngineError, InputError

__all__ = ["HttpAnswer", "Http"]

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
