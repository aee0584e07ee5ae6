"""Runs every command that reads a run, in this process, and returns what each printed and wrote.

proofs/bit_flips.py compares the outcomes on a damaged run with those on the intact one. `view` is asked
for every page of the run through its HTTP interface; figures are compared by their data points.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from glasshouse.cli.app import main as run_cli
from glasshouse.errors import RunDataError
from glasshouse.runs.run_directory import load_summary
from glasshouse.view.app import make_app
from glasshouse.view.library import Library
from proofs.resume import load_result

CPU_LIMIT = 60
WALL_LIMIT = 900
"""Long, so that other processes on the machine do not make a command look as if it hung."""
SLOW_COMMANDS = ("figure", "measure", "monitor")
"""Commands that take most of the time of the proof."""
TRACEBACK, HANG = -1, -2
"""Exit codes of a command that raised, and of one that exceeded a limit."""


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    """What the command printed on stdout, and the results that it wrote."""
    errors: str


class Hang(Exception):
    """A command exceeded a time limit."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def raise_hang(*_: object) -> None:
        raise Hang

    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, CPU_LIMIT),
        (signal.SIGALRM, signal.ITIMER_REAL, WALL_LIMIT),
    )
    previous = [signal.signal(number, raise_hang) for number, _, _ in limits]
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def capture(function: Callable[[], int]) -> tuple[int, str, str]:
    """Call a function; returns its exit code, stdout and stderr."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            with time_limit():
                code = function()
        except Hang:
            code = HANG
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            code = TRACEBACK
    return code, out.getvalue(), errors.getvalue()


def call(*arguments: str) -> tuple[int, str, str]:
    """Run one command in this process."""
    return capture(lambda: run_cli(list(arguments)))


def run_commands(run: Path, names: Collection[str]) -> dict[str, Outcome]:
    """Run the named commands on a run; `resume` is last, since it changes the run."""
    return {name: command(run) for name, command in COMMANDS.items() if name in names}


def _read_only(*arguments: str) -> Callable[[Path], Outcome]:
    """A command that writes nothing; RUN and CHECKPOINT stand for the run and its last checkpoint."""

    def run_command(run: Path) -> Outcome:
        last = max((run / "checkpoints").glob("step-*"), key=lambda path: path.name)
        values = {"RUN": str(run), "CHECKPOINT": str(last)}
        return Outcome(*call(*(values.get(argument, argument) for argument in arguments)))

    return run_command


def _report(run: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        code, _, errors = call("report", str(run), "--out", str(page))
        return Outcome(code, page.read_text() if page.exists() else "", errors)


def _figure(run: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "figure.svg")
        code, _, errors = call("report", "figure", str(run), "--out", str(image))
        paths = re.findall(r'<path d="([^"]*)"', image.read_text()) if image.exists() else []
        return Outcome(code, "\n".join(paths), errors)


def _track(run: Path) -> Outcome:
    """Upload to TensorBoard, into a copy, and read its event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder, "run"))
        code, _, errors = call("report", "track", str(copy), "--to", "tensorboard")
        scalars = {}
        if code == 0:
            events = EventAccumulator(str(next(copy.rglob("tensorboard")))).Reload()
            for tag in events.Tags()["scalars"]:
                scalars[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
        return Outcome(code, json.dumps(scalars), errors.replace(folder, ""))


def _view(run: Path) -> Outcome:
    """Ask for everything that the page shows of a run; what is damaged counts as stderr."""
    damage: list[str] = []

    def ask_all() -> int:
        app = make_app(Library([run]))
        for answer in _ask_pages(TestClient(app, "http://127.0.0.1"), run.name):
            damage.extend(_find_damage(answer))
            print(json.dumps(answer))
        return 0

    code, output, errors = capture(ask_all)
    return Outcome(code, output, errors + "\n".join(damage))


def _ask_pages(client: TestClient, run: str) -> Iterator[Any]:
    def get(name: str, **parameters: Any) -> Any:
        response = client.get(f"/api/{name}", params={"run": run, **parameters})
        assert response.status_code in (200, 404), response.text
        return response.json()

    yield get("runs")
    yield get("run")
    while True:  # the index grows for a moment with each request
        rollouts = get("rollouts", limit=200)
        if rollouts.get("indexed_frames") == rollouts.get("frames"):
            break
    yield rollouts
    problems = get("problems")
    yield problems
    for problem in problems.get("problems", []):
        yield get("rollouts", key=problem["key"], held_out=1, full=1)
    for row in rollouts.get("rows", [])[::20]:
        yield get("rollouts", ref=row["ref"], full=1)


def _find_damage(answer: Any) -> list[str]:
    found = []
    if isinstance(answer, dict):
        if "error" in answer:
            found.append(f"error: {answer['error']}")
        for item in answer.get("damage", []):
            named = f"{item['file']} {item['problem']}" if isinstance(item, dict) else item
            found.append(f"damage: {named}")
        for run in answer.get("runs", []):
            found += [f"damage: {item}" for item in run["damage"]]
    return found


def _resume(run: Path) -> Outcome:
    code, output, errors = call("resume", str(run))
    return Outcome(code, describe_result(run) if code == 0 else "", output + errors)


def describe_result(run: Path) -> str:
    """Weights, metrics and rollouts as one text, without times."""
    try:
        result = load_result(run)
    except RunDataError as error:  # damage in the log stays; resume must have named it
        return str(error)
    summary = load_summary(run) or {}
    values = {key: summary.get(key) for key in ("before", "after", "steps_done")}
    return json.dumps({name: repr(value) for name, value in result.items()} | {"summary": values})


COMMANDS: dict[str, Callable[[Path], Outcome]] = {
    "check": _read_only("check", "RUN"),
    "rollouts": _read_only("rollouts", "RUN", "--json"),
    "eval": _read_only("eval", "CHECKPOINT", "evaluate.problems=4", "--json"),
    "report": _report,
    "figure": _figure,
    "view": _view,
    "track": _track,
    "measure": _read_only("measure", "RUN", "--json"),
    "monitor": _read_only("monitor", "RUN", "--first-and-last", "--problems", "4", "--json"),
    "resume": _resume,
}
