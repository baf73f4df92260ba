"""The API's description: routes from FastAPI, schemas from the values that are really sent."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response

from hemiola.live.web import schema as values

__all__ = ["answers", "as_json", "describe"]

_ANSWERS = [
    values.StatusView, values.Cluster, values.Nodes, values.Jobs, values.JobDetail, values.Links, values.Decisions,
    values.Runs, values.ShadowView, values.KillSwitch, values.Problem,
]  # fmt: skip
_PROBLEMS = {
    401: "No token, or one that is not known.",
    403: "This token may not do that, or another web page asked.",
    404: "Nothing has this name, or not any more.",
    421: "The Host header names another service.",
    422: "A parameter cannot be.",
    429: "Too many requests; Retry-After says how long to wait.",
    503: "No run has begun yet, or the journal cannot be read.",
}


def _schema(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def answers(kind: type | None, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """What a route may answer; `kind` of the body, None for text."""
    body = {"schema": _schema(kind) if kind is not None else {"type": "string"}}
    problem = {"content": {"application/json": {"schema": _schema(values.Problem)}}}
    found: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": {media_type: body}}}
    for status, words in _PROBLEMS.items():
        found[status] = {"description": words, **problem}
    return found


def as_json(value: msgspec.Struct, status: int = 200) -> Response:
    """A value as an answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def describe(app: FastAPI, *, tokens: bool) -> dict[str, Any]:
    """The OpenAPI document."""
    found = get_openapi(
        title="Hemiola", version=values.VERSION, routes=app.routes,
        description="What `hemiola serve` shows. Times are Unix seconds, rates bytes/s.",
    )  # fmt: skip
    _, schemas = msgspec.json.schema_components(_ANSWERS, ref_template="#/components/schemas/{name}")
    components = found.setdefault("components", {})
    components["schemas"] = schemas
    if tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found
