"""The report of runs: its content, and that text written by a model stays text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape
from rich.console import Console
from tests.report.browser import CHROMIUM, RequestRecorder, hostile_text, open_in_browser

from glasshouse.cli import main
from glasshouse.config import load_config
from glasshouse.evaluation.monitor_run import monitor_run
from glasshouse.measures.registry import lookup
from glasshouse.report import figures
from glasshouse.report.arms import SeedBand
from glasshouse.report.post_train import MIN_REPORT_STEPS, report_after_training
from glasshouse.report.run_data import (
    first_and_last_rewards,
    load_run_data,
    select_examples,
    suspicion_reason,
)
from glasshouse.report.run_page import write_run_report
from glasshouse.store import RolloutLog, read_rollouts
from glasshouse.store.rollout_rows import rollout_from_row
from glasshouse.training import Trainer

pytestmark = pytest.mark.xdist_group("run page")  # one worker makes the expensive fixtures once
MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK_MODEL}", "steps=4", "data.groups_per_step=4", "generate.group_size=2",
    "generate.max_tokens=32", "evaluate.problems=6", "evaluate.samples=2",
    "reward.terms={closeness: 1}", "monitor.problems=6",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one arm (a, b) and one of another (c); a was monitored."""
    folder = tmp_path_factory.mktemp("runs")
    for name, overrides in (
        ("a", ["seed=0"]),
        ("b", ["seed=1"]),
        ("c", ["seed=0", "learn.kl_coef=0.3"]),
    ):
        Trainer(load_config([], [*SMALL, *overrides, f"out={folder / name}"])).train()
    monitor_run(folder / "a", only_ends=True)
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """A copy of the run a."""
    shutil.copytree(runs / "a", tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture(scope="module")
def server() -> Iterator[RequestRecorder]:
    recorder = RequestRecorder()
    yield recorder
    recorder.shutdown()


@pytest.fixture(scope="module")
def hostile_page(
    runs: Path, server: RequestRecorder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The report of a run whose last evaluation is hostile."""
    run = tmp_path_factory.mktemp("hostile") / "a"
    shutil.copytree(runs / "a", run)
    add_hostile_evaluation(run, server.url)
    return write_run_report([run])


def add_hostile_evaluation(run: Path, url: str) -> None:
    """Append an evaluation whose question, answer and completion are hostile."""
    rollouts = run / "results" / "rollouts"
    template = rollout_from_row(list(read_rollouts(rollouts, "validation"))[-1])
    bad = hostile_text(url)
    hostile = replace(
        template,
        step=99,
        text=bad,
        problem=replace(template.problem, question=bad, answer=bad),
        grade=replace(template.grade, correct=True),
    )
    RolloutLog(rollouts).append("validation", 99, [hostile])


def test_a_report_has_all_sections_and_is_reproducible(runs: Path) -> None:
    page = write_run_report([runs / "a"]).read_text()
    for text in (
        "Before and after", "Over training", "Monitorability", "Rewards", "Examples", "How to reproduce",
        "learn:", "torch", "95 % interval", "necessity uplift",
    ):  # fmt: skip
        assert text in page, text
    assert page.count("<svg ") == 5 + 4 + 1  # training curves, monitorability, rewards
    assert "var(--line-0)" in page
    assert figures.INK not in page
    assert len(page) < 1_000_000
    assert page == write_run_report([runs / "a"]).read_text()


def test_a_report_explains_its_rows_and_says_when_and_by_what_it_was_trained(runs: Path) -> None:
    page = write_run_report([runs / "a"]).read_text()
    for measure in ("pass_at_1", "accuracy", "format", "necessity_uplift", "step_validity"):
        assert str(escape(lookup(measure).definition)) in page, measure
    session = load_run_data(runs / "a").sessions[0]
    assert session["event"] == "start"
    assert session["time"][:10] in page
    assert (session["commit"] or "unknown") in page
    assert "Examples of the base model" in page
    assert "Examples after step 4" in page
    assert page.index("accuracy, sampled") < page.index("accuracy, greedy")


def test_two_points_are_not_joined_and_few_rewards_have_no_empty_bins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for steps, is_line in (([0.0, 60.0], False), ([0.0, 30.0, 60.0], True)):
        _, axis = figures.new_axes("")
        values = [0.1] * len(steps)
        figures._plot_band(axis, SeedBand(steps, values, values, values), "#010203", "")
        assert [line.get_linestyle() != "None" for line in axis.lines] == [is_line]
    monkeypatch.setattr(figures, "to_svg", lambda figure, _: figure)
    axis = figures.reward_histogram([-1.0, -1.0, 1.0], [1.0, 1.0, -1.0], 5).axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["-1", "+1"]
    heights = [bar.get_height() for bar in axis.patches]
    assert heights == pytest.approx([2 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_the_report_of_an_unmonitored_run_names_the_command(runs: Path) -> None:
    page = write_run_report([runs / "b"]).read_text()
    assert "glasshouse monitor" in page
    assert page.count("<svg ") == 5 + 1


def test_several_runs_are_compared_as_arms_and_seeds(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.html"
    assert main(["report", *(str(runs / name) for name in "abc"), "--out", str(out)]) == 0
    page = out.read_text()
    assert "Arms and seeds" in page
    for text in ("learn.kl_coef=0.0: ", "over 2 seeds", "learn.kl_coef=0.3: ", "over 1 seed"):
        assert text in page, text
    assert page.count("<svg ") == 5 + 4


def test_hostile_text_is_escaped(hostile_page: Path) -> None:
    page = hostile_page.read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "@import" not in re.sub(r"<(pre|p)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;console.error(&#34;executed&#34;)" in page
    assert "&amp;amp;" in page
    assert "{{ 7*7 }}" in page  # not a template
    assert "\x00" not in page
    assert "\\x1b" in page
    assert "\u202e" not in page


def test_examples_are_typical_best_worst_and_suspicious_rollouts(run: Path) -> None:
    (first_step, base), (last_step, examples) = select_examples(run)
    assert (first_step, last_step) == (0, 4)
    assert [kind for kind, _, _ in base][:4] == ["same problem", "typical", "best", "worst"]
    assert {row["step"] for _, _, row in base} == {0}
    assert base[0][2]["question"] == examples[0][2]["question"]
    assert [kind for kind, _, _ in examples][:3] == ["typical", "best", "worst"]
    assert examples[1][2]["reward"] >= examples[2][2]["reward"]
    row = {"correct": True, "reward": 1.0, "rule": "tag", "completion": "2+2=5\n[ANSWER] 4"}
    assert "2+2=5" in suspicion_reason(row)
    assert suspicion_reason({**row, "completion": "2+2=4\n[ANSWER] 4"}) == ""
    assert "last" in suspicion_reason({**row, "completion": "4", "rule": "last"})
    assert suspicion_reason({**row, "correct": False, "reward": -1.0}) == ""
    first, last = first_and_last_rewards(run)
    assert len(first) == len(last) == 4 * 4 * 2  # fewer steps than the histogram compares


def test_an_unfinished_run_with_a_damaged_log_has_a_report(run: Path) -> None:
    (run / "results" / "summary.json").unlink()
    log = run / "results" / "rollouts" / "validation.jsonl.zst"
    log.write_bytes(log.read_bytes()[:-30])
    assert "not finished" in write_run_report([run]).read_text()
    assert load_run_data(run).summary is None


def test_a_failing_report_does_not_fail_the_run(run: Path) -> None:
    summary = {"run": str(run), "after": {}, "steps_done": MIN_REPORT_STEPS}
    (run / "results" / "metrics.jsonl").unlink()
    console = Console(record=True, width=200)
    report_after_training(load_config([], ["monitor.at_end=false"]), summary, console)
    assert "metrics.jsonl" in console.export_text()
    monitored = load_config([], ["monitor.at_end=true"])
    report_after_training(monitored, {**summary, "run": "nowhere"}, console)
    assert "nowhere" in console.export_text()
    console = Console(record=True, width=200)
    short = {**summary, "steps_done": MIN_REPORT_STEPS - 1}
    report_after_training(load_config(), short, console)
    assert console.export_text() == ""


def test_training_ends_with_monitoring_and_a_report_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        *SMALL,
        f"steps={MIN_REPORT_STEPS}",
        "data.groups_per_step=2",
        "evaluate.samples=0",
    ]
    overrides += ["monitor.at_end=true", "monitor.problems=4"]
    assert main(["train", *overrides, f"out={tmp_path / 'a'}"]) == 0
    printed = capsys.readouterr().out
    assert "Monitorability" in printed
    assert "necessity uplift" in printed
    assert (tmp_path / "a" / "results" / "report.html").is_file()
    assert main(["train", *overrides, f"out={tmp_path / 'b'}", "--quiet"]) == 0
    assert not (tmp_path / "b" / "results" / "report.html").exists()


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_a_browser_shows_hostile_text_without_errors_or_requests(
    hostile_page: Path, server: RequestRecorder, tmp_path: Path
) -> None:
    dom, console_lines = open_in_browser(hostile_page, tmp_path)
    assert console_lines == []
    assert server.paths == []
    assert dom.count("<svg ") == 10
    assert "executed" in dom  # as text
    assert "<script" not in dom
    # without escaping, the browser executes the same text, and this test notices it
    (tmp_path / "unescaped.html").write_text(f"<!doctype html><pre>{hostile_text(server.url)}")
    _, console_lines = open_in_browser(tmp_path / "unescaped.html", tmp_path)
    assert any("executed" in line for line in console_lines)
    assert "/script" in server.paths
