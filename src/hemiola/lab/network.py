"""Builds a lab's network in the kernel, changes its rates, and takes it away.

    namespace hemiola-NAME-h0      eth0 ══ h0 ┐
    namespace hemiola-NAME-h1      eth0 ══ h1 ┤ bridge rack0 ── up0 ══ down0 ┐
    ...                                       │        namespace             │ bridge core
    namespace hemiola-NAME-h3      eth0 ══ h3 ┘ bridge rack1  NAME-switch ───┘

══ is a veth pair, shaped at both ends. Without racks the hosts hang on the core. Bridges live in a
namespace of their own, so the machine's network shows nothing but the names of the namespaces.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hemiola.core.errors import LabError
from hemiola.lab import namespaces
from hemiola.lab.namespaces import belonging, end_processes, inside, matching
from hemiola.lab.state import LabState, forget, load

__all__ = [
    "DEVICE",
    "ByteQueue",
    "TokenBucket",
    "apply_rates",
    "clear_up",
    "entered",
    "gone",
    "gso_max_bytes",
    "missing",
    "queues",
    "running",
    "shape",
    "tear_down",
]


Result = TypeVar("Result")

DEVICE = "eth0"
CORE = "core"
TERMINATE_S = 2.0
"""How long a process has between SIGTERM and SIGKILL when its host goes away."""

_LACKS = {2: "tbf", 95: "veth or bridge"}


def build(state: LabState) -> None:
    """Make all that a lab consists of.

    Raises:
        LabError: the kernel or the user's rights do not allow it. What was made by then stays:
            `tear_down` removes it.
    """
    _write_hosts_file(state)
    with _explained():
        namespaces.apart(lambda: _build(state))


def apply_rates(state: LabState) -> None:
    """Give every link the rate that the lab's description says, while it carries what it carries."""
    spec = state.spec
    gso_bytes = gso_max_bytes((*spec.host_rates, *spec.uplinks))
    cables = dict(zip(spec.hosts, spec.host_rates, strict=True))
    ports = dict(cables)
    for i, rate in enumerate(spec.uplinks):
        ports |= {f"up{i}": rate, f"down{i}": rate}
    with _explained():
        entered(state.switch, lambda ip: _shape(ip, ports, gso_bytes))
        for host, rate in cables.items():
            entered(state.namespace(host), partial(_shape, links={DEVICE: rate}, gso_bytes=gso_bytes))


def entered(namespace: str, work: Callable[[Any], Result]) -> Result:
    """Do something with an `IPRoute` inside a namespace, and leave it.

    Raises:
        LabError: the namespace is gone.
    """

    def within() -> Result:
        try:
            ip = namespaces.enter(namespace)
        except OSError as error:
            if error.errno in namespaces.GONE:
                raise gone(namespace) from error
            raise
        try:
            return work(ip)
        finally:
            ip.close()

    return namespaces.apart(within)


def gone(namespace: str) -> LabError:
    """The error for a namespace that was there and is not any more."""
    return LabError(
        f"the namespace {namespace} is gone: its lab was taken down, or is being", "make the lab anew"
    )


def missing(state: LabState) -> tuple[str, ...]:
    """The lab's namespaces that are gone, or were made anew by someone else."""
    return tuple(name for name in state.namespaces if namespaces.mark_of(name) != state.mark)


def running(state: LabState, host: str) -> int:
    """How many processes live on a host."""
    with namespaces.held(state.namespace(host)) as number:
        return len(matching(inside({number})))


def tear_down(state: LabState) -> tuple[str, ...]:
    """End what runs in the lab and remove all of it; return names that are not ours and were left.

    Safe to repeat, and from several processes at once.
    """
    foreign = tuple(name for name in state.namespaces if namespaces.mark_of(name) not in (state.mark, None))
    with contextlib.ExitStack() as held:  # as long as we hold them, no other namespace gets their numbers
        numbers = {held.enter_context(namespaces.held(n)) for n in state.namespaces if n not in foreign}
        for name in state.namespaces:
            namespaces.remove(name, state.mark)
        here, ours = inside(numbers - {None}), belonging(state.id)  # some may still be on their way in
        end_processes(lambda pid: here(pid) or ours(pid), grace_s=TERMINATE_S)
    forget(state)
    return foreign


def clear_up(name: str, id_: str) -> None:
    """What the guardian of a lab does once its owner has ended; another lab may have the name by now."""
    state = load(name)
    if state.id == id_:
        tear_down(state)


def _build(state: LabState) -> None:
    spec = state.spec
    with contextlib.closing(namespaces.create(state.switch, state.mark)) as switch:
        _quiet()
        bridges = [_bridge(switch, name) for name in (spec.racks or (CORE,))]
        if spec.racks:
            core = _bridge(switch, CORE)
            for i, rack in enumerate(bridges):
                _uplink(switch, i, rack, core)
        for i, host in enumerate(spec.hosts):
            bridge = bridges[spec.rack_of(i) if spec.racks else 0]
            _host(state, switch, host, bridge)
    apply_rates(state)


def _bridge(switch: Any, name: str) -> int:
    switch.link("add", ifname=name, kind="bridge", state="up")
    return _index(switch, name)


def _uplink(switch: Any, i: int, rack: int, core: int) -> None:
    switch.link("add", ifname=f"up{i}", kind="veth", peer={"ifname": f"down{i}"})
    switch.link("set", index=_index(switch, f"up{i}"), master=rack, state="up")
    switch.link("set", index=_index(switch, f"down{i}"), master=core, state="up")


def _host(state: LabState, switch: Any, host: str, bridge: int) -> None:
    """Make a host's namespace and its cable; the thread is left in that namespace."""
    with contextlib.closing(namespaces.create(state.namespace(host), state.mark)) as ip:
        _quiet()
        handle = os.open(namespaces.path_of(state.namespace(host)), os.O_RDONLY)
        try:
            switch.link("add", ifname=host, kind="veth", peer={"ifname": DEVICE, "net_ns_fd": handle})
        finally:
            os.close(handle)
        index = _index(ip, DEVICE)
        bits = int(state.subnet.rpartition("/")[2])
        ip.addr("add", index=index, address=state.address(host), prefixlen=bits)
        ip.link("set", index=index, state="up")
        switch.link("set", index=_index(switch, host), master=bridge, state="up")


def _quiet() -> None:
    """No IPv6 on the devices to come in this thread's namespace: nothing talks but the jobs."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def _shape(ip: Any, links: dict[str, float | None], gso_bytes: int) -> None:
    before = queues(ip)
    for device, rate in links.items():
        index = _index(ip, device)
        ip.link("set", index=index, gso_max_size=gso_bytes)
        apply(ip, index, rate, before.get(index))


def _index(ip: Any, device: str) -> int:
    return int(ip.link("get", ifname=device)[0]["index"])


def _write_hosts_file(state: LabState) -> None:
    from hemiola.trace.atomic import replacing

    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{state.address(host)} {host}" for host in state.spec.hosts]
    lines += [f"::ffff:{state.address(host)} {host}.lab" for host in state.spec.hosts]  # as IPv6 sockets ask
    with replacing(state.hosts_file) as stream:
        stream.write(("\n".join(lines) + "\n").encode())


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what the kernel's refusals mean."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        if error.code in (errno.EPERM, errno.EACCES):
            raise _not_allowed(error) from error
        lacks = _LACKS.get(error.code)
        if lacks is None:
            raise LabError(f"the kernel refused the lab's network: {error}", "see: dmesg") from error
        raise LabError(
            f"this kernel seems to lack {lacks} ({error})",
            "a lab needs CONFIG_VETH, CONFIG_BRIDGE and CONFIG_NET_SCH_TBF; try: modprobe -a veth bridge sch_tbf",
        ) from error
    except PermissionError as error:
        raise _not_allowed(error) from error
    except OSError as error:
        raise LabError(
            f"the lab's network cannot be made: {error}",
            "a lab needs a kernel with CONFIG_NET_NS; see also: ip netns list; dmesg",
        ) from error


def _not_allowed(error: Exception) -> LabError:
    return LabError(
        f"root, but not allowed to make network namespaces: {error}",
        "in a container, grant CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)",
    )


# How a link is given its rate: a token bucket (tbf) on the sending side of each of its two ends.

FRAME_BYTES = 1514
BURST_S = 1e-3
BURST_MIN_BYTES = 4 * FRAME_BYTES
WAIT_S = 20e-3
WAIT_MIN_BYTES = 65536
GSO_MAX_BYTES = 65536
ROOT = "1:"
NO_SUCH_THING = 2
INVALID = 22


class TokenBucket(msgspec.Struct, frozen=True):
    """The parameters of one token bucket."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int


class ByteQueue(msgspec.Struct, frozen=True):
    """What the kernel says of a device's outgoing queue; zeros where the kind has no such number."""

    kind: str
    rate_bytes_per_s: float = 0.0
    burst_bytes: float = 0.0
    limit_bytes: int = 0


def shape(rate_bytes_per_s: float) -> TokenBucket:
    """The token bucket for a rate.

    >>> shape(125e6)
    Shape(rate_bytes_per_s=125000000, burst_bytes=125000, limit_bytes=2625000)
    """
    burst_bytes = max(int(rate_bytes_per_s * BURST_S), BURST_MIN_BYTES)
    wait_bytes = max(int(rate_bytes_per_s * WAIT_S), WAIT_MIN_BYTES)
    return TokenBucket(int(rate_bytes_per_s), burst_bytes, burst_bytes + wait_bytes)


def gso_max_bytes(rates_bytes_per_s: Iterable[float | None]) -> int:
    """The largest packet that passes every bucket whole, with room for a second."""
    shaped = [shape(rate).burst_bytes // 2 for rate in rates_bytes_per_s if rate is not None]
    return min([GSO_MAX_BYTES, *shaped])


def apply(ip: Any, index: int, rate_bytes_per_s: float | None, before: ByteQueue | None) -> None:
    """Give a device's outgoing side its rate, at once and without loss of what waits; None: take it off.

    Args:
        ip: a pyroute2 `IPRoute` in the device's namespace.
        index: the device.
        before: its queue until now; None if there is none.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    if rate_bytes_per_s is not None:
        bucket = shape(rate_bytes_per_s)
        kept = math.ceil(before.burst_bytes) if before is not None else 0
        burst_bytes = max(bucket.burst_bytes, min(kept, GSO_MAX_BYTES))
        ip.tc(
            "replace",
            "tbf",
            index,
            handle=ROOT,
            rate=bucket.rate_bytes_per_s,
            burst=burst_bytes,
            limit=bucket.limit_bytes - bucket.burst_bytes + burst_bytes,
        )
        return
    try:
        ip.tc("del", index=index, root=True)
    except NetlinkError as error:
        if error.code not in (NO_SUCH_THING, INVALID):  # there was none
            raise


def queues(ip: Any) -> dict[int, ByteQueue]:
    """What the kernel says of each device's root queue, by the device's index."""
    from pyroute2.netlink.rtnl import TC_H_ROOT
    from pyroute2.netlink.rtnl.tcmsg.common import tick_in_usec

    found = {}
    for queue in ip.get_qdiscs():
        kind = queue.get_attr("TCA_KIND")
        if queue["parent"] != TC_H_ROOT:
            continue
        found[queue["index"]] = ByteQueue(kind)
        if kind == "tbf":
            numbers = queue.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
            rate, burst_s = float(numbers["rate"]), numbers["buffer"] / tick_in_usec / 1e6
            found[queue["index"]] = ByteQueue(kind, rate, rate * burst_s, numbers["limit"])
    return found
