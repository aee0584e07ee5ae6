"""The HTTP interface: a page, its JSON, a stream of changes, and one request that writes: a label of a rollout."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from glasshouse import __version__
from glasshouse.errors import GlasshouseError
from glasshouse.view.comparison import compare_runs, load_study_results
from glasshouse.view.library import Library
from glasshouse.view.report import read_asset
from glasshouse.view.rollout_index import parse_query
from glasshouse.view.run_reader import RunReader, to_json
from glasshouse.view.security import WRITE_PATH, Guard

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
LIVE_SECONDS = 0.25
"""How often a stream looks for changes."""
MAX_BODY_BYTES = 10_000
HEARTBEAT_SECONDS = 15.0
"""How often an idle stream sends a comment, which finds out that the browser has gone."""


def make_app(library: Library) -> Guard:
    """The application.

    Example: `make_app(Library([Path("runs")]))`
    """

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in ASSETS:
            return PlainTextResponse("There is no such page.\n", status_code=404)
        return Response(read_asset(name), media_type=ASSETS[name])

    async def answer(request: Request) -> Response:
        try:
            name = request.path_params.get("name", "")
            if request.method == "POST":
                given = json.loads(await read_body(request))
                await run_in_threadpool(_set_label, library, given)
                return Response("{}", media_type="application/json")
            function = ANSWERS[name]
            content = await run_in_threadpool(function, library, request.query_params)
            if name == "info":
                content["token"] = guard.page_token
            return Response(to_json(content), media_type="application/json")
        except (GlasshouseError, KeyError) as error:
            problem = str(error)
        except (ValueError, TypeError, AttributeError):
            problem = "This is not a label: run, ref, and label 0, 1 or null are needed."
        except sqlite3.Error as error:
            problem = (
                f"The temporary index of rollouts cannot be used: {error}. Free some space, or "
                "choose another folder for temporary files with the variable TMPDIR."
            )
        except OSError as error:
            problem = f"A file cannot be read or written: {error.strerror}."
        return JSONResponse({"error": problem}, status_code=404)

    async def events(request: Request) -> Response:
        run_id = request.query_params.get("run", "")
        if run_id and run_id not in library.catalog.runs:
            return PlainTextResponse("There is no such run.\n", status_code=404)
        stream = stream_changes(library, run_id, request.is_disconnected)
        return StreamingResponse(stream, media_type="text/event-stream")

    endpoints = {"/": asset, "/{name}": asset, "/api/events": events, "/api/{name}": answer}
    routes = [Route(WRITE_PATH, answer, methods=["POST"])]
    routes += [Route(path, endpoint) for path, endpoint in endpoints.items()]
    guard = Guard(Starlette(routes=routes))
    return guard


async def read_body(request: Request) -> bytes:
    """The body of a request, which must be short."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ValueError("the request is too long")
    return body


async def stream_changes(
    library: Library, run_id: str, is_disconnected: Callable[[], Any]
) -> AsyncIterator[bytes]:
    """Server-sent events: one at the start, and one whenever the run changed, or any run if none is named.
    The page then asks for what it shows."""
    seen, quiet = -1, 0.0
    while not await is_disconnected():
        await run_in_threadpool(library.poll)
        version = library.version
        if run_id in library.catalog.runs:
            version = (await run_in_threadpool(library.open_run, run_id)).reader.version
        quiet += LIVE_SECONDS
        if version != seen:
            yield f"event: changed\ndata: {version}\n\n".encode()
            seen, quiet = version, 0.0
        elif quiet >= HEARTBEAT_SECONDS:
            yield b": nothing new\n\n"
            quiet = 0.0
        await asyncio.sleep(LIVE_SECONDS)


# --- answers -----------------------------------------------------------------------------------


def _info(_: Library, __: QueryParams) -> Any:
    return {"version": __version__}


def _runs(library: Library, _: QueryParams) -> Any:
    return {
        "runs": library.list_overviews(),
        "studies": list(library.catalog.studies),
        "roots": [str(root) for root in library.roots],
    }


def _run(library: Library, params: QueryParams) -> Any:
    return library.open_run(params.get("run", "")).reader.describe()


def _rollouts(library: Library, params: QueryParams) -> Any:
    run = library.open_run(params.get("run", ""))
    order = "step" if run.location.is_file else "-step"
    given = {name: value for name, value in params.items() if name != "run"}
    query = parse_query({"sort": order, **given})
    # a reference such as train.12.7 names its step
    step = str(query.get("ref", "")).split(".")[1:2]
    first = float(step[0]) if step and step[0].isdecimal() else query.get("first", 0)
    last = first if step else query.get("last", float("inf"))
    newest = query["sort"] == "-step"
    return run.open_index(first=first, last=last, newest=newest).search(query)


def _problems(library: Library, params: QueryParams) -> Any:
    run = library.open_run(params.get("run", ""))
    index = run.open_index()
    return {
        "problems": index.list_problems(),
        "checkpoints": run.reader.checkpoints,
        **index.progress(),
    }


def _compare(library: Library, params: QueryParams) -> Any:
    ids = params.getlist("run")
    readers = [library.open_run(id).reader for id in dict.fromkeys(ids)]
    return compare_runs([reader for reader in readers if isinstance(reader, RunReader)])


def _study(library: Library, params: QueryParams) -> Any:
    id = params.get("study", "")
    path = library.catalog.studies.get(id)
    if path is None:
        return {"problem": f'There is no study "{id[:100]}" in the served folders.'}
    results = load_study_results(path)
    arms = {arm: place for place, arm in enumerate(results["arms"])}
    runs = [run for run in library.catalog.runs.values() if run.study == id]
    runs.sort(key=lambda run: arms.get(run.path.parent.name, len(arms)))
    return {**results, "id": id, "runs": [run.id for run in runs]}


def _set_label(library: Library, given: Mapping[str, Any]) -> None:
    label = given.get("label", "")
    if label not in (0, 1, None):
        raise ValueError("the label is not 0, 1 or null")
    library.open_run(str(given.get("run"))).set_label(
        str(given.get("ref")), None if label is None else label == 1
    )


ANSWERS: Mapping[str, Callable[[Library, QueryParams], Any]] = {
    "info": _info,
    "runs": _runs,
    "run": _run,
    "rollouts": _rollouts,
    "problems": _problems,
    "compare": _compare,
    "study": _study,
}
