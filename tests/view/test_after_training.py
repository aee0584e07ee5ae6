"""The report of a trained and monitored run, and that training ends with it.

The page itself, in a browser, is tested in tests.view.test_report.py.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.view.test_report import read_data

from glasshouse.cli.app import main
from glasshouse.cli.train import MIN_REPORT_STEPS, report_after_training
from glasshouse.config.loading import load_config
from glasshouse.measurement.monitor_run import monitor_run
from glasshouse.measurement.registry import lookup
from glasshouse.runs.monitor_results import read_monitor_results
from glasshouse.training.run import TrainingRun
from glasshouse.training.train import TrainResult
from glasshouse.view.report import name_runs, write_report
from glasshouse.view.terminal_tables import measures_table

pytestmark = pytest.mark.xdist_group("run page")  # one worker makes the expensive fixture once
MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK_MODEL}", "steps=4", "data.groups_per_step=4", "generate.group_size=2",
    "generate.max_tokens=32", "evaluate.problems=6", "evaluate.samples=2",
    "reward.terms={closeness: 1}", "monitor.problems=6",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was monitored before and after training."""
    run = tmp_path_factory.mktemp("runs") / "a"
    TrainingRun(load_config([], [*SMALL, f"out={run}"])).train()
    monitor_run(run, first_and_last=True, progress=False)
    return run


def test_a_report_holds_what_came_out_and_is_reproducible(trained: Path) -> None:
    file = write_report(trained)
    assert file == trained / "results" / "report.html"
    page = file.read_text()
    assert len(page) < 1_000_000
    data = read_data(page)
    run = data["run"]["a"]
    assert run["status"] == "finished"
    assert "95 % interval" in run["verdict"]
    assert list(run["measures"])[:2] == ["pass_at_1", "accuracy"]
    assert [point["step"] for point in run["measures"]["pass_at_1"]["points"]] == [0, 4]
    uplift = run["measures"]["interventions.necessity_uplift"]
    assert [point["step"] for point in uplift["points"]] == [0, 4]
    assert uplift["sentence"] == lookup("necessity_uplift").sentence
    assert uplift["change"]["low"] <= uplift["change"]["value"]
    console = Console(record=True, width=120)
    console.print(measures_table(read_monitor_results(trained / "results") or {}))
    text = console.export_text()
    assert lookup("interventions.accuracy").label in text
    assert "greedy" not in text  # sampled rollouts
    assert run["versions"]["torch"]
    assert run["versions"]["model.safetensors (model)"]
    rows = data["rollouts"]["a"]["rows"]
    kinds = {row["split"].partition("/")[0] for row in rows}
    assert kinds == {"train", "validation", "monitored"}
    assert data["rollouts"]["a"]["total"] == len(rows)
    assert page == write_report(trained).read_text()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / arm / "seed-0" for arm in ("one", "two")]
    assert [run.id for run in name_runs(paths)] == ["one/seed-0", "two/seed-0"]
    assert [run.id for run in name_runs([*paths[:1], *paths[:1]])] == ["seed-0"]


def test_a_failing_report_does_not_fail_the_run(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "a")
    result = TrainResult(
        path=run, outcome="finished", steps=MIN_REPORT_STEPS, before={}, after={}, checkpoint=None, seconds=1.0
    )  # fmt: skip
    (run / "results" / "metrics.jsonl").unlink()
    console = Console(record=True, width=200)
    report_after_training(load_config([], ["monitor.at_end=false"]), result, console)
    assert "metrics.jsonl" in console.export_text()
    monitored = load_config([], ["monitor.at_end=true"])
    report_after_training(monitored, replace(result, path=Path("nowhere")), console)
    assert "nowhere" in console.export_text()
    console = Console(record=True, width=200)
    short = replace(result, steps=MIN_REPORT_STEPS - 1)
    report_after_training(load_config(), short, console)
    assert console.export_text() == ""


def test_training_ends_with_monitoring_and_a_report_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["data.groups_per_step=2", "evaluate.samples=0", "monitor.problems=4"]
    overrides = [*SMALL, f"steps={MIN_REPORT_STEPS}", *small, "monitor.at_end=true"]
    assert main(["train", *overrides, f"out={tmp_path / 'a'}"]) == 0
    printed = capsys.readouterr().out
    assert "Monitorability" in printed
    assert "necessity uplift" in printed
    page = (tmp_path / "a" / "results" / "report.html").read_text()
    assert read_data(page)["run"]["a"]["status"] == "finished"  # the process still holds its lock
    assert main(["train", *overrides, f"out={tmp_path / 'b'}", "--quiet"]) == 0
    assert not (tmp_path / "b" / "results" / "report.html").exists()
