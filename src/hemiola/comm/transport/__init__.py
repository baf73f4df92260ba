"""Messages between the ranks of a job, the most urgent first: pre-emptive, paced, authenticated.

What TimedRPC is for (thesis "Timed execution in distributed machine learning", UIUC 2020): a transfer that
is on its way is paused when a more urgent one is asked for, and goes on where it stopped. The thesis' text is
not public; the mechanism here is chosen after P3, BytePS and what the kernel offers. `docs/guides/transport.md`.
"""

from hemiola.comm.transport.endpoint import Address, Endpoint
from hemiola.comm.transport.messages import Handle
from hemiola.comm.transport.options import TransportOptions

__all__ = ["Address", "Endpoint", "Handle", "TransportOptions"]
