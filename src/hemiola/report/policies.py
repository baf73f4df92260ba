"""The list of policies as a table. Reads names, parameters and sources off the classes."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["policy_list"]


def policy_list(policies: dict[str, type[Any]]) -> Table:
    """Rich's table of policies: what each does, its parameters with defaults, its source."""
    from rich.table import Table

    table = Table(show_lines=True)
    for head in ("policy", "what it does", "parameters", "source"):
        table.add_column(head, overflow="fold")
    for name, policy in policies.items():
        first = (inspect.getdoc(policy) or "").split("\n\n")[0].replace("\n", " ")
        table.add_row(name, first, _parameters(policy), policy.source)
    return table


def _parameters(policy: type[Any]) -> str:
    if not dataclasses.is_dataclass(policy):
        return ""
    return "\n".join(f"{f.name}={getattr(f.default, 'name', f.default)}" for f in dataclasses.fields(policy))
