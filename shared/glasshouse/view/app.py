"""The HTTP interface: a page, its JSON, and a stream of changes. Everything is read-only."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from glasshouse import __version__
from glasshouse.errors import GlasshouseError
from glasshouse.view import rollout_details
from glasshouse.view.compare import compare_runs
from glasshouse.view.front_end import read_asset
from glasshouse.view.highlights import select_highlights
from glasshouse.view.library import Library
from glasshouse.view.rollout_query import list_rollouts, parse_query
from glasshouse.view.run_reader import to_json
from glasshouse.view.security import Guard
from glasshouse.view.studies import load_study_results
from glasshouse.view.suspicion import SUSPICIONS

ASSETS = {
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
LIVE_SECONDS = 0.25
"""How often a stream looks for changes."""
HEARTBEAT_SECONDS = 15.0
"""How often an idle stream sends a comment, which finds out that the browser has gone."""
Answer = Callable[[Library, Request], Any]


class JSONAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


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
        Route("/", _page),
        *(Route(f"/{name}", _asset(name, media)) for name, media in ASSETS.items()),
        Route("/api/events", _events_endpoint(library)),
        *(
            Route(f"/api/{name}", _json_endpoint(library, answer))
            for name, answer in {
                "info": _info,
                "runs": _runs,
                "run": _run,
                "rollouts": _rollouts,
                "highlights": _highlights,
                "rollout": _rollout,
                "group": _group,
                "tokens": _tokens,
                "suspicious": _suspicious,
                "problems": _problems,
                "problem": _problem,
                "compare": _compare,
                "study": _study,
            }.items()
        ),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    return Guard(app, hosts=hosts, token=token)


# --- page --------------------------------------------------------------------------------------


async def _page(_: Request) -> Response:
    return Response(read_asset("index.html"), media_type="text/html; charset=utf-8")


def _asset(name: str, media: str) -> Callable[[Request], Any]:
    async def endpoint(_: Request) -> Response:
        return Response(read_asset(name), media_type=media)

    return endpoint


# --- JSON --------------------------------------------------------------------------------------


def _json_endpoint(library: Library, answer: Answer) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            content = await run_in_threadpool(answer, library, request)
            return JSONAnswer(content)
        except GlasshouseError as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        except OSError as error:
            return JSONResponse({"error": _explain_os_error(error)}, status_code=404)

    return endpoint


def _explain_os_error(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # the index is all that is written
        return "The disk with the index of rollouts is full. Free some space, or choose another with --cache."
    return f"A file cannot be read: {error.strerror}."


def _info(library: Library, _: Request) -> Any:
    return {
        "version": __version__,
        "roots": [str(root) for root in library.roots],
        "suspicions": SUSPICIONS,
        "studies": list(library.catalog.studies),
        "is_complete": library.catalog.is_complete,
    }


def _runs(library: Library, _: Request) -> Any:
    return {
        "runs": library.list_overviews(),
        "studies": list(library.catalog.studies),
        "roots": [str(root) for root in library.roots],
        "version": library.version,
    }


def _run(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    return run.reader.describe(_integer(request, "since", -1))


def _rollouts(library: Library, request: Request) -> Any:
    parameters = dict(request.query_params)
    run = library.open_run(parameters.pop("run", ""))
    query = parse_query(parameters)
    index = run.open_index(first=query.first, last=query.last)
    return list_rollouts(index, query)


def _highlights(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    run.open_index(budget=0)
    return {"rows": select_highlights(run.reader.monitors, run.frames, run.frame_cache)}


def _rollout(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    index = run.open_index(budget=0)
    row = rollout_details.load_rollout(
        run.frames, run.frame_cache, request.query_params.get("ref", "")
    )
    return rollout_details.describe_rollout(index.monitors, row)


def _group(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    index = run.open_index(budget=0)
    ref = request.query_params.get("ref", "")
    return {"rows": rollout_details.load_group(index, run.frames, run.frame_cache, ref)}


def _tokens(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    run.open_index(budget=0)
    row = rollout_details.load_rollout(
        run.frames, run.frame_cache, request.query_params.get("ref", "")
    )
    return rollout_details.load_tokens(run.location.path, row)


def _suspicious(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    index = run.open_index()
    groups = rollout_details.list_suspicious(index, run.frames, run.frame_cache)
    return {
        "groups": groups,
        "total": len(index.records),
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
    }


def _problems(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    index = run.open_index()
    return {
        "problems": rollout_details.list_problems(index),
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
    }


def _problem(library: Library, request: Request) -> Any:
    run = library.open_run(request.query_params.get("run", ""))
    index = run.open_index()
    key = request.query_params.get("key", "")
    rows = rollout_details.load_problem(index, run.frames, run.frame_cache, key)
    return {"rows": rows, "checkpoints": run.reader.checkpoints}


def _compare(library: Library, request: Request) -> Any:
    ids = request.query_params.getlist("run")
    return compare_runs([library.open_run(id).reader for id in dict.fromkeys(ids)])


def _study(library: Library, request: Request) -> Any:
    id = request.query_params.get("study", "")
    path = library.catalog.studies.get(id)
    if path is None:
        return {"problem": f'There is no study "{id[:100]}" in the served folders.'}
    runs = [run.id for run in library.catalog.runs.values() if run.study == id]
    return {**load_study_results(path), "id": id, "runs": runs}


def _integer(request: Request, name: str, default: int) -> int:
    try:
        return int(request.query_params.get(name, default))
    except ValueError:
        return default


# --- live --------------------------------------------------------------------------------------


def _events_endpoint(library: Library) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        run_id = request.query_params.get("run", "")
        since = _integer(request, "since", -1)
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
