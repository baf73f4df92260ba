"""Runs a script on some ranks of this host: what torchrun does, without its own two seconds. Status: the worst of all.

ranks.py FOLDER RANKS script.py arguments…     (FOLDER gets a file per rank with its process id)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, number, *command = sys.argv[1:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": number,
        "LOCAL_WORLD_SIZE": number,
    }
    ranks = [
        subprocess.Popen([sys.executable, *command], env=os.environ | common | {"RANK": r, "LOCAL_RANK": r})
        for r in map(str, range(int(number)))
    ]
    for place, rank in enumerate(ranks):
        Path(folder, f"pid{place}").write_text(str(rank.pid))
    sys.exit(max(abs(rank.wait()) for rank in ranks))
