"""`glasshouse report` and `measure --report`: the page of `glasshouse view` and its data in one self-contained file.

The file works from disk without a server: the front end answers its own requests from a JSON value in it
(shared/view_frontend/src/snapshot.ts). Its content security policy forbids every request, and allows only
the one script and the one style sheet of the page, by their hashes. Its size is bounded, whatever the runs:
curves are thinned, and of the rollouts a sample is included, which the page says.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from glasshouse import __version__
from glasshouse.errors import RunError
from glasshouse.files import check_output_file, write_text
from glasshouse.measurement.file import RolloutFile
from glasshouse.runs.labels import read_labels
from glasshouse.runs.run_directory import METRICS, is_run_directory
from glasshouse.runs.verify import verify_run
from glasshouse.terminal import terminal_safe
from glasshouse.view.comparison import MAX_RUNS, compare_runs, describe_study
from glasshouse.view.file_reader import FileReader, read_file_overview
from glasshouse.view.library import find_runs
from glasshouse.view.rollout_index import KINDS, Frame, RolloutIndex
from glasshouse.view.run_measures import thin
from glasshouse.view.run_reader import RunLocation, RunReader, find_status, read_overview, to_json

REPORT_FILE = "report.html"
CURVE_STEPS = 1000
"""Steps of the curves, of all runs together; a run gets at least `MIN_CURVE_STEPS`."""
MIN_CURVE_STEPS = 100
INDEXED_ROLLOUTS = 4_000
"""Rollouts that are read, of all runs together: the sample is taken from these."""
ROLLOUT_BYTES = 1_500_000
"""Size of the included rollouts in the file, of all runs together."""
ROLLOUT_TEXT = 20_000
"""Characters of a prompt or completion."""
PROBLEMS = 30
"""Held-out problems that are included with their rollouts of all evaluations."""


Reader = RunReader | FileReader


def write_report(
    *sources: str | Path | RolloutFile,
    out: str | Path | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> Path:
    """Write an HTML page about runs, folders of them, or files of rollouts, atomically; returns its path. `warn`
    receives what is damaged.

    Example: `write_report("runs/try")` writes runs/try/results/report.html.
    """
    named = [s.source.path if isinstance(s, RolloutFile) else Path(s) for s in sources]
    if out:
        check_output_file("--out", Path(out))
    opened = {s.source.path.resolve(): s for s in sources if isinstance(s, RolloutFile)}
    paths = [p for s in named for p in ([s] if s.resolve() in opened else find_sources(s))]
    if len(paths) > MAX_RUNS:
        many = f"A report compares at most {MAX_RUNS} runs, and these are {len(paths)}"
        raise RunError(f"{many}; name some of them.")
    readers: list[Reader] = []
    damage = {}
    for location in name_runs(paths):
        path, file = location.path, opened.get(location.path)
        if file or path.is_file() or (path.is_dir() and not (path / "results").is_dir()):
            opened_file = FileReader(replace(location, is_file=True), file=file)
            opened_file.measure()  # raises if that is not possible
            reader: Reader = opened_file
        else:
            found = verify_run(path).damage
            if not (path / "results" / METRICS).is_file():
                raise RunError(f"{path} is not a run directory: it has no results/{METRICS}.")
            damage[location.id] = [asdict(item) for item in found]
            for item in found:
                warn(f"{path}: {item}")
            reader = RunReader(location)
        reader.refresh()
        readers.append(reader)
    own = named[0] / "results" / REPORT_FILE
    if paths[0] != named[0] or isinstance(readers[0], FileReader):
        own = named[0].parent / f"{named[0].resolve().name}.html"  # beside the folder or file
    path = Path(out) if out else own
    page = render_run_report(readers, damage)
    try:
        write_text(path, page)
    except OSError as error:
        hint = "" if out else " Write it elsewhere with --out FILE."
        raise RunError(f"{path} cannot be written: {error.strerror}.{hint}") from None
    return path


def find_sources(path: Path) -> list[Path]:
    """The runs in a folder that have begun, as `glasshouse view` finds them; else the path itself."""
    if is_run_directory(path) or (path / "results" / METRICS).is_file():
        return [path]
    inside = [run.path for run in find_runs([path]).runs.values() if not run.is_file]
    return [run for run in inside if (run / "results" / METRICS).is_file()] or [path]


def name_runs(runs: Sequence[Path]) -> list[RunLocation]:
    """Each run under the name of its folder; under more of its path if two have the same."""
    paths = list(dict.fromkeys(run.resolve() for run in runs))
    for depth in range(1, 1 + max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return [RunLocation(name, path) for name, path in zip(names, paths, strict=True)]


def render_run_report(readers: Sequence[Reader], damage: dict[str, list[dict[str, str]]]) -> str:
    """The HTML file of these runs; `damage` by the id of a run."""
    snapshot = build_snapshot(readers, damage)
    first = snapshot["run"][readers[0].location.id]
    shown = snapshot["compare"] or first
    title = f"{len(readers)} runs" if len(readers) > 1 else first["id"]
    return render_page(title, shown["verdict"], snapshot)


def render_study_page(results: Mapping[str, Any], text: str) -> str:
    """The HTML file of a study; `text` is its page in Markdown."""
    study = {**describe_study(results), "id": results["title"], "runs": [], "text": text}
    empty: dict[str, Any] = {"runs": [], "run": {}, "rollouts": {}, "compare": None}
    return render_page(results["title"], results["headline"], {**empty, "study": study})


def render_page(title: str, verdict: str, snapshot: Mapping[str, Any]) -> str:
    """The page with its script, style and data in one file."""
    script, style = (read_asset(name).decode() for name in ("app.js", "app.css"))
    if "</script" in script.lower() or "</style" in style.lower():
        raise AssertionError("the built front end ends its own element")
    icon = base64.b64encode(read_asset("icon.svg")).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )
    inlined = {
        '<meta charset="utf-8" />': '<meta charset="utf-8" />\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}" />',
        "<title>Glasshouse</title>": f"<title>{escape(terminal_safe(title))}</title>",
        'href="icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="app.css" />': f"<style>{style}</style>",
        "<noscript>": f"<noscript><p>{escape(terminal_safe(verdict))}</p>",
        '<script type="module" src="app.js"></script>': '<script type="application/json" id="snapshot">'
        f'{to_inline_json(snapshot)}</script>\n<script type="module">{script}</script>',
    }
    page = read_asset("index.html").decode()
    for place, content in inlined.items():  # the script last: it may contain any of these
        before, found, after = page.partition(place)
        assert found, place
        page = before + content + after
    return page


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# --- the data --------------------------------------------------------------------------------


def build_snapshot(
    readers: Sequence[Reader], damage: Mapping[str, Sequence[Mapping[str, str]]]
) -> dict[str, Any]:
    """The data of these runs; `damage` lists what is damaged of each, by its id.

    Example: `build_snapshot([reader], {})["run"]["try"]["verdict"]`
    """
    count = len(readers)
    runs = [reader for reader in readers if isinstance(reader, RunReader)]
    steps = max(MIN_CURVE_STEPS, CURVE_STEPS // count)
    snapshot: dict[str, Any] = {
        "glasshouse": __version__,
        "runs": [],
        "run": {},
        "rollouts": {},
        "compare": shrink(compare_runs(runs), steps) if len(runs) > 1 else None,
    }
    for reader in readers:
        id = reader.location.id
        budgets = (INDEXED_ROLLOUTS // count, ROLLOUT_BYTES // count)
        snapshot["rollouts"][id] = sample_rollouts(reader, *budgets)
        if isinstance(reader, FileReader):
            snapshot["runs"].append(read_file_overview(reader.location))
            snapshot["run"][id] = shrink(reader.describe(), steps)
            continue
        # The process that trained the run writes the report and still holds its lock.
        is_running = reader.is_active and reader.summary is None
        status = find_status(reader.events.rows, reader.summary, is_running)
        now = {"status": status, "seconds_left": None}
        own = {"damage": list(damage.get(id, ())), "logged_steps": len(reader.metrics.rows)}
        snapshot["runs"].append(read_overview(reader.location) | now)
        snapshot["run"][id] = shrink(reader.describe(), steps) | now | own
    return snapshot


def shrink(value: Any, limit: int) -> Any:
    """The value with at most `limit` items of each list, evenly spaced, and six digits of each number: more
    than a curve can show."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: shrink(item, limit) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shrink(item, limit) for item in thin(value, limit)]
    return value


def sample_rollouts(reader: Reader, limit: int, size: int) -> dict[str, Any]:
    """A sample of at most `size` bytes from at most about `limit` rollouts of the log: those of held-out
    problems first, then whole groups."""
    index = RolloutIndex(reader.monitors)
    index.set_labels(read_labels(reader.location.path))
    index.set_frames(choose_frames(reader.frames, limit))
    while missing := index.missing():
        for frame in missing:
            index.add(frame)
        if isinstance(reader, FileReader):  # it has as many frames as were read, and one more
            index.set_frames(reader.frames)
    problems = index.list_problems()[:PROBLEMS]
    rows: list[dict[str, Any]] = []
    used = 0
    for row in index.sample([problem["key"] for problem in problems]):
        row |= {name: row[name][:ROLLOUT_TEXT] for name in ("prompt", "text", "question")}
        used += len(to_inline_json(row).encode())
        if used > size:
            break
        rows.append(row)
    keys = {row["key"] for row in rows}
    logged = sum(frame.expected_rows for frame in reader.frames)
    monitored = sum(row["split"].startswith("monitored") for row in rows)
    if isinstance(reader, FileReader):
        logged = index.count()
    sample = {
        "rows": sorted(rows, key=lambda r: (r["step"], r["split"], r["group"], r["sample"])),
        "problems": [problem for problem in problems if problem["key"] in keys],
        "total": logged + monitored,
        "damage": index.progress()["damage"],
    }
    index.close()
    return sample


def choose_frames(frames: Sequence[Frame], limit: int) -> list[Frame]:
    """Frames of every kind, evenly spaced with the first and the last of each, with about `limit`
    rollouts. Half of them are training steps if there are that many."""
    chosen: list[Frame] = []
    for kind in (*KINDS, "file"):
        of_kind = [frame for frame in frames if frame.kind == kind]
        if not of_kind:
            continue
        budget = limit // (2 if kind == "train" else 6)
        largest = max(1, *(frame.expected_rows for frame in of_kind))
        chosen += thin(of_kind, max(2, budget // largest))
    return chosen


def read_asset(name: str) -> bytes:
    """A built file of the front end (sources: shared/view_frontend, built by `make view-assets`), such as
    `read_asset("app.js")`."""
    return resources.files("glasshouse.view").joinpath("assets", name).read_bytes()


def to_inline_json(value: Any) -> str:
    """JSON for an HTML page: nothing in it can end or open an element or a comment.

    Example: `to_inline_json("</script>")` is `"\\u003c/script\\u003e"` with its quotes.
    """
    text = to_json(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
