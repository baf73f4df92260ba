"""The policies of the field, one file each, and how to ask for one by name.

A policy from outside needs no entry here: `--policy mypackage.module:MyPolicy`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, TypeVar

from hemiola.core.errors import PolicyError
from hemiola.sched.placement import Rule, rule_by_name
from hemiola.sched.policies.crux import Crux
from hemiola.sched.policies.dally import Dally
from hemiola.sched.policies.elastic import ElasticSharing
from hemiola.sched.policies.fifo import Fifo, FifoBackfill
from hemiola.sched.policies.gandiva import Gandiva
from hemiola.sched.policies.gittins import Gittins
from hemiola.sched.policies.lwf import Lwf
from hemiola.sched.policies.shortest import Sjf, Srsf, Srtf
from hemiola.sched.policies.themis import Themis
from hemiola.sched.policies.tiresias import Tiresias
from hemiola.sched.policy import Policy

__all__ = ["POLICIES", "parameters", "policy_from_text", "policy_text"]

Its = TypeVar("Its", Policy, Rule)

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fifo, FifoBackfill, Sjf, Srtf, Srsf, Tiresias, Gittins, Gandiva, Themis, Lwf, Crux, ElasticSharing, Dally,
    )
}  # fmt: skip


def policy_from_text(text: str, known: dict[str, type[Policy]] | None = None) -> Policy:
    """A policy from "name", "name:parameter=value,..." or "package.module:Class[,parameter=value]".

    Args:
        known: the names to choose from; `POLICIES` unless given.

    Raises:
        PolicyError: an unknown name, parameter or value, naming what is known.
    """
    known = POLICIES if known is None else known
    name, _, rest = text.partition(":")
    if name in known:
        return _build(known[name], rest, text)
    if "." in name or (rest and rest.split(",")[0].isidentifier() and "=" not in rest.split(",")[0]):
        attribute, _, options = rest.partition(",")
        return _build(_outside(name, attribute, text), options, text)
    raise PolicyError(
        f"no policy is called {name!r}", f"choose one of {', '.join(known)}, or package.module:Class"
    )


def _outside(module: str, attribute: str, text: str) -> type[Policy]:
    remedy = "write my_policy:MyPolicy, and put the folder of my_policy.py on PYTHONPATH"
    if not module or module.startswith("."):
        raise PolicyError(f"{text!r}: {module!r} is no module", remedy)
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise PolicyError(f"{text!r}: cannot import {module!r}: {error}", remedy) from error
    except (Exception, SystemExit) as error:
        what = "it ends the program" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise PolicyError(
            f"{text!r}: cannot import {module!r}: {what}",
            f"see where, and mend it: python -c 'import {module}'",
        ) from error
    found = getattr(imported, attribute, None)
    if found is None:
        raise PolicyError(f"{text!r}: {module} has no {attribute!r}", "write package.module:Class")
    if not callable(getattr(found, "decide", None)):
        raise PolicyError(f"{text!r} has no method decide(view)", "derive it from hemiola.Policy")
    return found  # type: ignore[no-any-return]


def parameters(policy: type[Policy | Rule]) -> dict[str, dataclasses.Field[Any]]:
    """The parameters of a policy, or of a rule, by name."""
    return {f.name: f for f in dataclasses.fields(policy)} if dataclasses.is_dataclass(policy) else {}


def _build(policy: type[Its], options: str, text: str) -> Its:
    fields = parameters(policy)
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        name, equals, value = option.partition("=")
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise PolicyError(f"{text!r}: no parameter is called {name!r}", f"its parameters are: {known}")
        if name in values:
            raise PolicyError(f"{text!r} gives {name!r} twice", "give each parameter once")
        if not equals:
            raise PolicyError(f"{text!r}: {name!r} has no value", f"write {name}=VALUE")
        values[name] = _value(value, fields[name], text)
    missing = [name for name, f in fields.items() if name not in values and not _has_default(f)]
    if missing:
        raise PolicyError(f"{text!r}: {missing[0]!r} has no value", f"write {missing[0]}=VALUE")
    try:
        return policy(**values)
    except TypeError as error:
        raise PolicyError(f"{text!r}: {error}", "make it a dataclass whose fields have defaults") from error


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)


def policy_text(policy: Policy | Rule) -> str:
    """What `policy_from_text` reads back: the name, and the parameters that are not default."""
    set_ = [
        f"{name}={policy_text(value) if isinstance(value, Rule) else value}"
        for name, f in parameters(type(policy)).items()
        if (value := getattr(policy, name)) != f.default
    ]
    name = policy.name or type(policy).__name__
    return f"{name}:{','.join(set_)}" if set_ else name


def _value(value: str, field: dataclasses.Field[Any], text: str) -> Any:
    kind = field.type if isinstance(field.type, str) else field.type.__name__
    kind = kind.removesuffix(" | None")
    try:
        if kind == "Rule":
            rule, _, options = value.partition(":")
            return _build(type(rule_by_name(rule)), options, text)
        if kind == "bool":
            return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}[
                value.lower()
            ]
        return {"int": int, "float": float}.get(kind, str)(value)
    except (ValueError, KeyError):
        raise PolicyError(
            f"{text!r}: {field.name}={value!r} is not a {kind}", f"the default is {field.default}"
        ) from None
