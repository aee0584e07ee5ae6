"""`glasshouse report`: the page of `glasshouse view` and its data in one self-contained HTML file.

The file works from disk without a server. Its content security policy forbids every request, and
allows only the one script and the one style sheet of the page, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from glasshouse.errors import RunError
from glasshouse.files import check_output_file, write_text
from glasshouse.runs.verify import verify_run
from glasshouse.terminal import terminal_safe
from glasshouse.view.discovery import RunLocation
from glasshouse.view.learning_curves import read_metrics
from glasshouse.view.run_reader import RunReader
from glasshouse.view.snapshot import build_snapshot, read_asset, to_inline_json

REPORT_FILE = "report.html"
MAX_RUNS = 40
"""Runs of one report: what the comparison shows."""


def ignore_warning(message: str) -> None:
    """The default of `write_report`: the page itself names the damage."""


def write_report(
    *runs: str | Path,
    out: str | Path | None = None,
    warn: Callable[[str], None] = ignore_warning,
) -> Path:
    """Write an HTML page about one or more runs, atomically; returns its path. `warn` receives what is
    damaged.

    Example: `write_report("runs/try")` writes runs/try/results/report.html.
    """
    paths = [Path(run) for run in runs]
    if out:
        check_output_file("--out", Path(out))
    if len(runs) > MAX_RUNS:
        raise RunError(f"A report compares at most {MAX_RUNS} runs, and {len(runs)} were named.")
    readers, damage = [], {}
    for location in name_runs(paths):
        found = verify_run(location.path).damage
        read_metrics(location.path)  # raises if the run has none
        for item in found:
            warn(f"{location.path}: {item}")
        damage[location.id] = [asdict(item) for item in found]
        reader = RunReader(location)
        reader.refresh()
        readers.append(reader)
    path = Path(out) if out else paths[0] / "results" / REPORT_FILE
    page = render_run_report(readers, damage)
    try:
        write_text(path, page)
    except OSError as error:
        hint = "" if out else " Write it elsewhere with --out FILE."
        raise RunError(f"{path} cannot be written: {error.strerror}.{hint}") from None
    return path


def name_runs(runs: Sequence[Path]) -> list[RunLocation]:
    """Each run under the name of its folder; under more of its path if two have the same."""
    paths = list(dict.fromkeys(run.resolve() for run in runs))
    for depth in range(1, 1 + max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return [RunLocation(name, path) for name, path in zip(names, paths, strict=True)]


def render_run_report(readers: Sequence[RunReader], damage: dict[str, list[dict[str, str]]]) -> str:
    """The HTML file of these runs; `damage` by the id of a run."""
    snapshot = build_snapshot(readers, damage)
    if snapshot["compare"]:
        title, verdict = f"{len(readers)} runs", snapshot["compare"]["verdict"]
    else:
        run = snapshot["run"][readers[0].location.id]
        title, verdict = run["id"], run["verdict"]
    script, style = (read_asset(name).decode() for name in ("app.js", "app.css"))
    if "</script" in script.lower() or "</style" in style.lower():
        raise AssertionError("the built front end ends its own element")
    icon = base64.b64encode(read_asset("icon.svg")).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(terminal_safe(title))}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<div id="app"></div>
<noscript><p>{escape(terminal_safe(verdict))}</p><p>This page needs JavaScript for figures and rollouts. The command
<code>glasshouse rollouts RUN</code> does not.</p></noscript>
<script type="application/json" id="snapshot">{to_inline_json(snapshot)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
