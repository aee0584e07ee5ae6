"""The HTTP interface: a page, its JSON, and a stream of changes. Everything is read-only."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from glasshouse import __version__
from glasshouse.errors import GlasshouseError
from glasshouse.view import rollout_details
from glasshouse.view.compare import compare_runs, load_study_results
from glasshouse.view.library import Library, OpenRun
from glasshouse.view.rollout_query import list_rollouts, parse_query
from glasshouse.view.run_reader import to_json
from glasshouse.view.security import Guard
from glasshouse.view.snapshot import read_asset
from glasshouse.view.suspicion import SUSPICIONS

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
LIVE_SECONDS = 0.25
"""How often a stream looks for changes."""
HEARTBEAT_SECONDS = 15.0
"""How often an idle stream sends a comment, which finds out that the browser has gone."""


def make_app(library: Library, *, hosts: Collection[str], token: str = "") -> Guard:
    """The application; `token` is empty if none is required.

    Example: `make_app(Library([Path("runs")], cache), hosts=allowed_host_names("127.0.0.1"))`
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        library.start()
        yield
        await run_in_threadpool(library.stop)

    routes = [
        Route("/", _asset("index.html")),
        *(Route(f"/{name}", _asset(name)) for name in ASSETS),
        Route("/api/events", _events_endpoint(library)),
        *(
            Route(f"/api/{name}", _json_endpoint(library, name))
            for name in (*ANSWERS, *RUN_ANSWERS)
        ),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    return Guard(app, hosts=hosts, token=token)


def _asset(name: str) -> Callable[[Request], Any]:
    async def endpoint(_: Request) -> Response:
        return Response(read_asset(name), media_type=ASSETS[name])

    return endpoint


# --- JSON --------------------------------------------------------------------------------------


def _json_endpoint(library: Library, name: str) -> Callable[[Request], Any]:
    def answer(params: QueryParams) -> Any:
        if name in ANSWERS:
            return ANSWERS[name](library, params)
        return RUN_ANSWERS[name](library.open_run(params.get("run", "")), params)

    async def endpoint(request: Request) -> Response:
        try:
            content = await run_in_threadpool(answer, request.query_params)
            return Response(to_json(content), media_type="application/json")
        except GlasshouseError as error:
            problem = str(error)
        except sqlite3.Error as error:
            problem = (
                f"The index of rollouts in {library.cache} cannot be used: {error}. Free some space, "
                "or choose another folder with --cache."
            )
        except OSError as error:
            problem = f"A file cannot be read: {error.strerror}."
        return JSONResponse({"error": problem}, status_code=404)

    return endpoint


def _info(library: Library, _: QueryParams) -> Any:
    return {
        "version": __version__,
        "suspicions": SUSPICIONS,
    }


def _runs(library: Library, _: QueryParams) -> Any:
    return {
        "runs": library.list_overviews(),
        "studies": list(library.catalog.studies),
        "roots": [str(root) for root in library.roots],
        "version": library.version,
    }


def _run(run: OpenRun, params: QueryParams) -> Any:
    return run.reader.describe(_integer(params, "since", -1))


def _rollouts(run: OpenRun, params: QueryParams) -> Any:
    query = parse_query({name: value for name, value in params.items() if name != "run"})
    return list_rollouts(run.open_index(first=query.first, last=query.last), query)


def _highlights(run: OpenRun, _: QueryParams) -> Any:
    return {"rows": rollout_details.select_highlights(run.reader.monitors, run.open_log())}


def _rollout(run: OpenRun, params: QueryParams) -> Any:
    row = run.open_log().row(params.get("ref", ""))
    return rollout_details.describe_rollout(run.reader.monitors, row)


def _group(run: OpenRun, params: QueryParams) -> Any:
    ref = params.get("ref", "")
    return {"rows": rollout_details.load_group(run.reader.monitors, run.open_log(), ref)}


def _tokens(run: OpenRun, params: QueryParams) -> Any:
    row = run.open_log().row(params.get("ref", ""))
    return rollout_details.load_tokens(run.location.path, row)


def _suspicious(run: OpenRun, _: QueryParams) -> Any:
    index = run.open_index()
    return {
        "groups": rollout_details.list_suspicious(index, run.log),
        "total": len(index.records),
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
    }


def _problems(run: OpenRun, _: QueryParams) -> Any:
    index = run.open_index()
    return {
        "problems": rollout_details.list_problems(index),
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
    }


def _problem(run: OpenRun, params: QueryParams) -> Any:
    rows = rollout_details.load_problem(run.open_index(), run.log, params.get("key", ""))
    return {"rows": rows, "checkpoints": run.reader.checkpoints}


def _compare(library: Library, params: QueryParams) -> Any:
    ids = params.getlist("run")
    return compare_runs([library.open_run(id).reader for id in dict.fromkeys(ids)])


def _study(library: Library, params: QueryParams) -> Any:
    id = params.get("study", "")
    path = library.catalog.studies.get(id)
    if path is None:
        return {"problem": f'There is no study "{id[:100]}" in the served folders.'}
    runs = [run.id for run in library.catalog.runs.values() if run.study == id]
    return {**load_study_results(path), "id": id, "runs": runs}


def _integer(params: QueryParams, name: str, default: int) -> int:
    try:
        return int(params.get(name, default))
    except ValueError:
        return default


ANSWERS: Mapping[str, Callable[[Library, QueryParams], Any]] = {
    "info": _info,
    "runs": _runs,
    "compare": _compare,
    "study": _study,
}
RUN_ANSWERS: Mapping[str, Callable[[OpenRun, QueryParams], Any]] = {
    "run": _run,
    "rollouts": _rollouts,
    "highlights": _highlights,
    "rollout": _rollout,
    "group": _group,
    "tokens": _tokens,
    "suspicious": _suspicious,
    "problems": _problems,
    "problem": _problem,
}
"""The answers about one run, which the parameter `run` names."""


# --- live --------------------------------------------------------------------------------------


def _events_endpoint(library: Library) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        run_id = request.query_params.get("run", "")
        since = _integer(request.query_params, "since", -1)
        if run_id and run_id not in library.catalog.runs:
            return PlainTextResponse("There is no such run.\n", status_code=404)
        stream = stream_changes(library, run_id, since, request.is_disconnected)
        return StreamingResponse(stream, media_type="text/event-stream")

    return endpoint


async def stream_changes(
    library: Library, run_id: str, since: int, is_disconnected: Callable[[], Any]
) -> AsyncIterator[bytes]:
    """Server-sent events: `runs` when anything changed, and `run` with the new steps of one run."""
    seen_library, seen_run, generation, quiet = library.version, -1, None, 0.0
    yield b"retry: 1000\n\n"
    while not await is_disconnected():
        messages = []
        if library.version != seen_library:
            seen_library = library.version
            messages.append(("runs", {"version": seen_library}))
        if run_id and run_id in library.catalog.runs:
            reader = (await run_in_threadpool(library.open_run, run_id)).reader
            if reader.version != seen_run:
                seen_run = reader.version
                if generation not in (None, reader.metrics.generation):
                    since = -1  # the run was resumed from an older step: send everything again
                generation = reader.metrics.generation
                content = await run_in_threadpool(reader.describe, since)
                since = reader.step
                messages.append(("run", content))
        for name, content in messages:
            yield f"event: {name}\ndata: ".encode() + to_json(content) + b"\n\n"
        quiet = 0.0 if messages else quiet + LIVE_SECONDS
        if quiet >= HEARTBEAT_SECONDS:
            yield b": nothing new\n\n"
            quiet = 0.0
        await asyncio.sleep(LIVE_SECONDS)
