"""Hardware by name: the devices that ship with Hemiola, or a file."""

from __future__ import annotations

from pathlib import Path

from hemiola.core.errors import InputError
from hemiola.core.hardware import Hardware
from hemiola.trace.hardware_json import read_hardware

__all__ = ["known_hardware", "load_hardware"]

_SHIPPED = Path(__file__).parent / "data" / "hardware"


def known_hardware() -> tuple[str, ...]:
    """Names of the devices that ship with Hemiola."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A shipped device by its name (upper or lower case), or the hardware in a file.

    Raises:
        InputError: if it is neither, or the file is no hardware file.

    >>> load_hardware("h100").kind
    'gpu'
    """
    text = str(name_or_path)
    for name in known_hardware():
        if name.lower() == text.lower():
            return read_hardware(_SHIPPED / f"{name}.json")
    path = Path(name_or_path)
    if not path.exists() and not path.suffix:
        raise InputError(
            f"there is no hardware {text!r}",
            f"known are {', '.join(known_hardware())}; or name a file that `hemiola calibrate` wrote",
        )
    return read_hardware(path)
