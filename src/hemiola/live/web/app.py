"""The routes: each asks the desk one question. Security stands before them (`security`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from hemiola.core.errors import HemiolaError, InputError
from hemiola.live.web import schema
from hemiola.live.web import schema as values
from hemiola.live.web.queries import CONTENT_TYPE, Metrics, Queries
from hemiola.live.web.responses import NotThereError
from hemiola.live.web.security import Guard, Rates, Tokens, problem_body

__all__ = ["Closing", "make_app"]


# The API's description: routes from FastAPI, schemas from the values that are really sent.

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


_log = logging.getLogger("hemiola.web")
PER_S, BURST = 20.0, 200.0
FAILURES_PER_S, FAILURES_BURST = 0.5, 10.0
STREAMS_MOST = 50
LOOK_S, HEARTBEAT_S = 0.5, 15.0
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
Name = Annotated[str, Query(min_length=1, max_length=200)]
Cursor = Annotated[str, Query(pattern=r"^[0-9]{1,15}-[0-9]{1,15}$")]
Number = Annotated[int, Query(ge=0, lt=2**53)]
JobState = Literal["open", "waiting", "held", "running", "ended"]


class Closing:
    """Whether the server is about to end: streams end then."""

    def __init__(self) -> None:
        self.now = False
        self.streams = 0


def make_app(
    queries: Queries, *, hosts: frozenset[str], tokens: Tokens | None = None, closing: Closing | None = None,
    rates: Rates | None = None, failures: Rates | None = None, tls: bool = False,
) -> ASGIApp:  # fmt: skip
    """The whole service as an ASGI application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(_only_known)])
    metrics = Metrics(lambda: (queries.status(), queries.frame()), queries.snapshots)
    _add_errors(app)
    _add_state(app, queries)
    _add_history(app, queries)
    _add_operations(app, queries)
    _add_streams(app, queries, metrics, closing or Closing())
    _add_page(app)
    document = msgspec.json.encode(describe(app, tokens=tokens is not None))

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return Response(document, media_type="application/json")

    return Guard(
        app, hosts=hosts, tokens=tokens, public=_is_public, rates=rates or Rates(PER_S, BURST),
        failures=failures or Rates(FAILURES_PER_S, FAILURES_BURST), refused=metrics.refused, tls=tls,
    )  # fmt: skip


def _is_public(path: str) -> bool:
    """The page itself, which has nothing in it."""
    return path in ("/", "/openapi.json", "/favicon.ico") or path.startswith("/static/")


def _only_known(request: Request) -> None:
    """A parameter that a route does not know is a mistake, and not to be passed over."""
    route = request.scope["route"]
    known = {parameter.alias for parameter in route.dependant.query_params}
    if not route.include_in_schema:
        return
    if strange := [name for name in request.query_params if name not in known]:
        takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise InputError(f"there is no parameter {strange[0][:100]!r}", takes)


def _add_errors(app: FastAPI) -> None:
    def refuse(status: int, what: str, remedy: str, headers: Any = None) -> Response:
        return Response(problem_body(what, remedy), status, media_type="application/json", headers=headers)

    @app.exception_handler(HemiolaError)
    def ours(_: Request, problem: HemiolaError) -> Response:
        status = (
            404 if isinstance(problem, NotThereError) else 422 if isinstance(problem, InputError) else 503
        )
        return refuse(status, problem.what, problem.remedy)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return refuse(422, f"{where}: {first['msg']}", "see /openapi.json for what it takes")

    @app.exception_handler(HTTPException)
    def http(_: Request, problem: HTTPException) -> Response:
        return refuse(problem.status_code, str(problem.detail), "see /openapi.json", problem.headers)

    @app.exception_handler(Exception)
    def ours_to_mend(_: Request, problem: Exception) -> Response:
        return refuse(500, "the service failed at this", "its log says more; please report it")


def _add_state(app: FastAPI, queries: Queries) -> None:
    @app.get("/api/v1/status", responses=answers(schema.StatusView))
    def status() -> Response:
        """How the service stands: who leads, engine, policy, mode, counts."""
        return as_json(queries.status())

    @app.get("/api/v1/cluster", responses=answers(schema.Cluster))
    def cluster() -> Response:
        """All hosts with their GPUs, by rack."""
        return as_json(queries.frame().cluster)

    @app.get("/api/v1/nodes", responses=answers(schema.Nodes))
    def nodes(limit: Limit = 100, after: Name | None = None) -> Response:
        """Hosts with their GPUs, page by page."""
        return as_json(queries.nodes(after, limit))

    @app.get("/api/v1/links", responses=answers(schema.Links))
    def links() -> Response:
        """Predicted loads of all links: by the cost model, from the jobs that run. Not measured."""
        return as_json(queries.frame().links)


def _add_history(app: FastAPI, queries: Queries) -> None:
    @app.get("/api/v1/jobs", responses=answers(schema.Jobs))
    def jobs(
        state: JobState = "open", user: Name | None = None, limit: Limit = 100, after: Name | None = None
    ) -> Response:
        """Jobs: open ones in order of arrival, ended ones submitted last first."""
        return as_json(queries.jobs(state, user, after, limit))

    @app.get("/api/v1/jobs/{id}", responses=answers(schema.JobDetail))
    def job(id: Annotated[str, Path(min_length=1, max_length=200)]) -> Response:
        """A job by UUID or by the engine's id, with the last decisions about it."""
        return as_json(queries.job(id))

    @app.get("/api/v1/decisions", responses=answers(schema.Decisions))
    def decisions(
        run: Number | None = None, job: Name | None = None, limit: Limit = 100, before: Cursor | None = None
    ) -> Response:
        """Decisions with reasons and refusals, newest first: the last 2,000, or those of one run of the journal."""
        return as_json(queries.decisions(run, job, before, limit))

    @app.get("/api/v1/runs", responses=answers(schema.Runs))
    def runs(limit: Limit = 100, before: Number | None = None) -> Response:
        """The journal's runs, newest first."""
        return as_json(queries.runs(before, limit))

    @app.get("/api/v1/shadow", responses=answers(schema.ShadowView))
    def shadow() -> Response:
        """What other policies would have made of the same jobs; begins a new comparison if one is due."""
        return as_json(queries.shadow())


def _add_operations(app: FastAPI, queries: Queries) -> None:
    @app.post("/api/v1/kill-switch", responses=answers(schema.KillSwitch))
    def throw() -> Response:
        """Throw the kill switch: nothing more is carried out. Needs the role operate."""
        _log.warning("the kill switch is thrown through the API")
        return as_json(queries.throw(True))

    @app.delete("/api/v1/kill-switch", responses=answers(schema.KillSwitch))
    def take_back() -> Response:
        """Take the kill switch back. Needs the role operate."""
        _log.warning("the kill switch is taken back through the API")
        return as_json(queries.throw(False))


def _add_streams(app: FastAPI, queries: Queries, metrics: Metrics, closing: Closing) -> None:
    @app.get("/metrics", responses=answers(None, media_type="text/plain"))
    def text() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    @app.get("/api/v1/events", responses=answers(None, media_type="text/event-stream"))
    async def events(request: Request) -> Response:
        """Server-sent events: `snapshot` with the number of the newest change. It goes on until somebody ends it."""
        if closing.streams >= STREAMS_MOST:
            raise HTTPException(429, "too many streams are open", {"retry-after": "30"})
        return StreamingResponse(_changes(queries, closing), media_type="text/event-stream")


async def _changes(queries: Queries, closing: Closing) -> AsyncIterator[bytes]:
    """The number of each change, and a sign of life now and then."""
    closing.streams += 1
    try:
        last, silent_s = -1, 0.0
        while not closing.now:
            try:
                number = (await asyncio.to_thread(queries.frame)).number
            except HemiolaError:
                number = last
            if number != last:
                last, silent_s = number, 0.0
                yield f'event: snapshot\ndata: {{"snapshot": {number}}}\n\n'.encode()
            elif silent_s >= HEARTBEAT_S:
                silent_s = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_S)
            silent_s += LOOK_S
    finally:
        closing.streams -= 1


def _add_page(app: FastAPI) -> None:
    folder = resources.files("hemiola.live.web").joinpath("static")
    files = {
        file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES
    }

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return Response(files["index.html"], media_type="text/html")

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(files["icon.svg"], media_type="image/svg+xml")

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return Response(files[name], media_type=_TYPES[name.rpartition(".")[2]])
