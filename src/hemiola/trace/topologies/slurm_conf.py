"""Lines of Slurm's configuration files: `Key=value Key="value"`, comments, continued lines.

Knows the form only; what the keys mean is `slurm_tree`'s and `slurm_nodes`' business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hemiola.core.errors import InputError

__all__ = ["read_conf"]

_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')
_BETWEEN = " \t,"
_NEEDED = ("nodename", "name", "switchname", "blockname")


def read_conf(text: str, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Lines of a Slurm file as (place, lower-case keys with values); comments left out.

    A line that is not made of pairs has the one key "", with its text.

    Raises:
        InputError: a line of a node, a resource or a switch that is not made of pairs; an Include.
    """
    held, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        line = line.split("#", 1)[0].rstrip()
        first = first if held else number
        if line.endswith("\\"):
            held += line[:-1]  # without a space, as Slurm joins them: a list of nodes may go on
            continue
        line, held = (held + line).strip(), ""
        if line and _PAIR.sub("", line).strip(_BETWEEN):
            _refuse_needed(line, f"{path}:{first}")
            yield f"{path}:{first}", {"": line}
        elif line:
            yield f"{path}:{first}", {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}


def _refuse_needed(line: str, where: str) -> None:
    word = re.split(r"[\s=]", line, maxsplit=1)[0].lower()
    if word == "include":
        raise InputError(
            f"{where}: cannot read {line!r}: other files are not looked into",
            "put the lines of the included file in its place",
        )
    if word in _NEEDED:
        raise InputError(
            f"{where}: cannot read {line!r}", "write Key=value pairs only, such as NodeName=n[0-7] Gres=gpu:8"
        )
