"""Lines of Slurm's configuration files: `Key=value Key="value"`, comments, continued lines.

Knows the form only; what the keys mean is `slurm_tree`'s and `slurm_nodes`' business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["read_conf"]

_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')


def read_conf(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines of a Slurm file as (line number, lower-case keys with values); comments left out.

    A line that is not made of pairs has the one key "", with its text.
    """
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.split("#", 1)[0].rstrip()
        first = first if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        line, held = (held + line).strip(), ""
        if line and _PAIR.sub("", line).strip(" ,"):
            yield first, {"": line}
        elif line:
            yield first, {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}
