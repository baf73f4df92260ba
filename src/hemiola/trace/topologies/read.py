"""Recognise a topology by what it says, and read it.

flat:hosts=8,gpus_per_host=4          a generator and its options
cluster.toml                          a file, recognised by its content
topo.csv,gpus_per_host=8,nic=400gbit  a file and options for what it does not say
slurm:/etc/slurm,nic=200gbit          a file or folder whose format is named
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hemiola.core.errors import FormatError, InputError
from hemiola.core.topology import Topology
from hemiola.trace.struct_json import as_text
from hemiola.trace.topologies.generate import GENERATORS, generate
from hemiola.trace.topologies.options import LINGJUN_COLUMNS, TIRESIAS_COLUMNS, TopologyOptions, split_options

__all__ = ["FORMATS", "TopologyFormat", "read_topology"]


@dataclass(frozen=True)
class TopologyFormat:
    """One kind of file. What reads it is imported when such a file is read.

    Attributes:
        sign: what it is recognised by, in words.
        fits: whether a text is of this kind.
        read: its text, path and options to a topology.
    """

    sign: str
    fits: Callable[[str], bool]
    read: Callable[[str, Path, TopologyOptions], Topology]


_SLURM_FILES = ("topology.conf", "topology.yaml", "slurm.conf", "gres.conf")


def read_topology(
    spec: str, options: Mapping[str, str] | None = None, *, keep_unusable: bool = False
) -> Topology:
    """A cluster from a generator's line, a file, or Slurm's folder; checked.

    Args:
        spec: `[generator or format:][path][,key=value...]`; see the module's head.
        options: more options, as if they stood in `spec`.
        keep_unusable: keep hosts that their file calls down, unless `spec` has the option `unusable`: of a live
            cluster they may come back.

    Returns:
        The topology; its `source` says what was recognised, given and assumed.

    Raises:
        FormatError: a format that is unknown, or could be several.
        InputError: an unknown option, a missing one, a file that cannot be read.
        TopologyError: a cluster that cannot be.

    Example:
        >>> read_topology("leaf-spine:hosts=4,gpus_per_host=8,hosts_per_rack=2").tiers
        ('host', 'rack', 'cluster')
    """
    kind, colon, rest = spec.partition(":")
    known = bool(colon) and (kind in GENERATORS or kind in FORMATS)
    place, values = split_options(rest if known else spec, kind if known else spec)
    for key, value in (options or {}).items():
        if key in values:
            raise InputError(f"{spec}: {key} is given twice", "give every option once")
        values[key] = value
    if known and kind in GENERATORS:
        if place.strip():
            raise InputError(f"{kind}: {place!r} is no option", f"write {kind}:key=value,key=value")
        return generate(kind, TopologyOptions(values, kind))
    read = TopologyOptions(values, place, keep_unusable=keep_unusable)
    return _read_path(Path(place), kind if known else None, read)


def _read_path(path: Path, kind: str | None, options: TopologyOptions) -> Topology:
    if not options.where or not _exists(path):
        raise InputError(
            f"there is no topology at {options.where!r}",
            f"give a file, or one of {', '.join(f'{name}:...' for name in GENERATORS)}",
        )
    if path.is_dir():
        if kind not in (None, "slurm"):
            raise FormatError(f"{path} is a folder, not {FORMATS[str(kind)].sign}", "give a file")
        files = {name: _text(path / name) for name in _SLURM_FILES if (path / name).is_file()}
        return _slurm(files, path, options)
    text = _text(path)
    recognised = kind or recognise(text, str(path))
    topology = FORMATS[recognised].read(text, path, options)
    why = "as told" if kind else f"recognised by {FORMATS[recognised].sign}"
    return replace(topology, source=f"{topology.source}; {why}")


def recognise(text: str, path: str) -> str:
    """The format of a topology file, by its content.

    Raises:
        FormatError: none fits, or several do.
    """
    found = [name for name, kind in FORMATS.items() if kind.fits(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FormatError(f"{path} could be {' or '.join(found)}", f"say which: {found[0]}:{path}")
    kinds = "; ".join(f"{name}: {kind.sign}" for name, kind in FORMATS.items())
    raise FormatError(f"{path} is no topology that is known", f"one is recognised by ({kinds})")


def _has_columns(names: Sequence[str]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        return {name.strip() for name in text.partition("\n")[0].split(",")}.issuperset(names)

    return fits


def _toml(text: str, path: Path, options: TopologyOptions) -> Topology:
    from hemiola.trace.topologies.native import read_native

    topology = read_native(text, as_text(path))
    name = options.only(("name",)).values.get("name", topology.name)
    return replace(topology, name=name)


def _nodes(text: str, path: Path, options: TopologyOptions) -> Topology:
    from hemiola.trace.topologies.nodes import read_nodes

    kueue = _text(Path(options.values["kueue"])) if "kueue" in options else None
    return read_nodes(text, as_text(path), options, kueue)


def _slurm(files: Mapping[str, str], path: Path, options: TopologyOptions) -> Topology:
    from hemiola.trace.topologies.slurm import read_slurm

    return read_slurm(files, as_text(path), options)


def _lingjun(text: str, path: Path, options: TopologyOptions) -> Topology:
    from hemiola.trace.topologies.tables import read_lingjun

    return read_lingjun(text, as_text(path), options)


def _tiresias(text: str, path: Path, options: TopologyOptions) -> Topology:
    from hemiola.trace.topologies.tables import read_tiresias

    return read_tiresias(text, as_text(path), options)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _text(path: Path) -> str:
    opened = gzip.open if path.suffix == ".gz" else Path.open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as stream:
            return str(stream.read())
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise InputError(f"cannot read {path}: {error}", "give a UTF-8 text file") from error


FORMATS: dict[str, TopologyFormat] = {
    "toml": TopologyFormat(
        "a [[hosts]] table",
        lambda text: re.search(r"^\s*\[\[\s*hosts\s*\]\]", text, re.MULTILINE) is not None,
        _toml,
    ),
    "lingjun": TopologyFormat(
        f"the columns {','.join(LINGJUN_COLUMNS)}",
        _has_columns(LINGJUN_COLUMNS),
        _lingjun,
    ),
    "tiresias": TopologyFormat(
        f"the columns {','.join(TIRESIAS_COLUMNS)}",
        _has_columns(TIRESIAS_COLUMNS),
        _tiresias,
    ),
    "slurm": TopologyFormat(
        "a line SwitchName= or BlockName=",
        lambda text: (
            re.search(r"^\s*(SwitchName|BlockName)\s*=", text, re.MULTILINE | re.IGNORECASE) is not None
        ),
        lambda text, path, options: _slurm({"topology.conf": text}, path, options),
    ),
    "nodes": TopologyFormat(
        "a JSON list of Kubernetes nodes",
        lambda text: text.lstrip().startswith("{") and '"items"' in text,
        _nodes,
    ),
}
"""By name."""
