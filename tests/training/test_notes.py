"""What a run leaves for people: NOTES.md, README.md, curves.svg, and its problems as files."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from proofs.resume import SMALL
from tests.training.short_runs import SHORT

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.runs.curves import render_panels
from glasshouse.training.run import TrainingRun


def test_the_notebook_keeps_what_was_written_in_it_and_grows_when_the_run_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, notes = tmp_path / "run", tmp_path / "run" / "NOTES.md"
    run.mkdir()
    notes.write_text("my plan")  # a notebook may be begun before its run
    settings = [*SMALL, *SHORT, f"out={run}"]
    TrainingRun(load_config([], settings)).train()
    first = notes.read_text()
    assert first.startswith("my plan\n\n## ")
    assert "Result: " in first
    assert "out" not in first.partition("Differs from the defaults: ")[2].partition("\n")[0]
    notes.write_text(first + "\nI saw **this**")
    steps = load_config([], settings).steps
    assert main(["resume", str(run), f"steps={steps + 1}", "--quiet"]) == 0
    assert notes.read_text().startswith(first + "\nI saw **this**\n\n## ")
    assert f"resumed after step {steps}" in notes.read_text()
    picture = ElementTree.parse(run / "results" / "curves.svg").getroot()
    assert len(picture.findall("{*}g")) >= 4  # panels
    commands = (run / "README.md").read_text()
    assert "glasshouse tasks generate --run ." in commands
    assert main(["tasks", "generate", "--run", str(run), "--count", "5"]) == 0
    counts = [
        len((run / "data" / f"{n}.jsonl").read_text().splitlines()) for n in ("train", "test")
    ]
    config = load_config([], settings)
    assert counts == [config.data.groups_per_step * (steps + 1), 5]
    assert main(["check", str(run)]) == 0


def test_a_panel_of_equal_or_extreme_values_and_hostile_names_is_valid_xml() -> None:
    lines = {"<a>": [(1.0, 0.0), (2.0, 0.0)], "b&": [(1.0, -1e300), (5000.0, 1e300)]}
    for points in (lines, {"x": [(0.0, 1e-9)]}, {"x": [(float(n), 3.0) for n in range(2000)]}):
        panel = {label: [line] for label, line in points.items()}
        assert ElementTree.fromstring(render_panels("<run>", {"a&b": panel})).tag.endswith("svg")
