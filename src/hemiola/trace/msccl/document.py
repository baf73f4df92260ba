"""MSCCL's XML as elements and numbers: bounded before it is held, and refused where it says what no reader takes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from hemiola.core.errors import InputError

__all__ = ["children", "elements", "given", "number"]

ELEMENTS_MAX = 1 << 18
"""Of a document: 64 times what RCCL holds of a gpu."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 40


class _Elements(ElementTree.TreeBuilder):
    """A tree that ends where a document grows beyond all use."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._count = name, 0

    def start(self, tag: str, attrs: dict[str, str]) -> ElementTree.Element:
        """One more element."""
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise InputError(
                f"{self._name} has more than {ELEMENTS_MAX:,} elements", "split it: no MSCCL reads so many"
            )
        return super().start(tag, attrs)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        """Refused: entities make gigabytes of a few lines."""
        raise InputError(
            f"{self._name} declares a document type, <!DOCTYPE {name[:_SHOWN]}>",
            "leave it out: MSCCL's files have none, and no entities",
        )


def elements(text: str | bytes, name: str) -> ElementTree.Element:
    """The root of a document.

    Raises:
        InputError: it is no XML, has a document type, or more elements than any reader holds.
    """
    try:
        return ElementTree.fromstring(text, ElementTree.XMLParser(target=_Elements(name)))
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        raise InputError(f"{name} is no XML: {problem}", "name an MSCCL XML file") from None


def children(parent: ElementTree.Element, tag: str, where: str) -> list[ElementTree.Element]:
    """What stands in an element, which has to be of one kind: readers pass over everything else in silence.

    Raises:
        InputError: something else stands there.
    """
    for child in parent:
        if child.tag != tag:
            raise InputError(
                f"{where}: there is a <{child.tag}> in <{parent.tag}>", f"put nothing but <{tag}> there"
            )
    return list(parent)


def number(element: ElementTree.Element, attribute: str, where: str) -> int:
    """A whole number.

    Raises:
        InputError: it is missing, or no number; names the place.
    """
    value = element.get(attribute, "")
    if not _NUMBER.fullmatch(value):
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        at = f"<{element.tag} {' '.join(f'{k}={v[:_SHOWN]!r}' for k, v in list(element.items())[:3])}>"
        raise InputError(f"{where}: {at}: {attribute} is {shown!r}", "give a whole number")
    return int(value)


def given(
    element: ElementTree.Element, attribute: str, where: str, least: int, most: int | None = None
) -> int | None:
    """A number that may be left out, and that lies between others where it is not.

    Raises:
        InputError: it is none, or lies outside.
    """
    if element.get(attribute) is None:
        return None
    found = number(element, attribute, where)
    if found < least or (most is not None and found > most):
        raise InputError(
            f"{where}: {attribute} is {found}",
            f"give {least} or more" if most is None else f"give {least} to {most}",
        )
    return found
