"""Turns this process into a command on a host of the lab. A script: it imports nothing of Hemiola.

    enter.py NAMESPACE HOSTNAME HOSTS_FILE COMMAND...

The command gets the host's network, its name, and /etc/hosts with the lab's hosts; all else is the
machine's. A shell's exit statuses: 127 the command is not found, 126 it cannot be run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

NEW_MOUNTS, NEW_NAMES, NEW_NET = 0x00020000, 0x04000000, 0x40000000
BIND, RECURSIVE, SLAVE = 4096, 16384, 1 << 19


def main(namespace: str, hostname: str, hosts_file: str, *command: str) -> int:
    """Enter and become the command; return only if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)

    def demand(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)

    try:
        handle = os.open(namespace, os.O_RDONLY)
        demand(libc.setns(handle, NEW_NET), namespace)
        os.close(handle)
        demand(libc.unshare(NEW_MOUNTS | NEW_NAMES), "mounts and names")
        # slave: the machine's unmounts arrive here, so that no copy keeps a lab's namespaces alive
        demand(libc.mount(b"none", b"/", None, RECURSIVE | SLAVE, None), "/")
        demand(libc.mount(hosts_file.encode(), b"/etc/hosts", None, BIND, None), "/etc/hosts")
        socket.sethostname(hostname)
    except OSError as error:
        print(f"hemiola lab: cannot enter {hostname}: {error}", file=sys.stderr)
        return 125
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and ignoring is inherited
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"hemiola lab: {command[0]}: command not found", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"hemiola lab: {command[0]}: {error.strerror}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
