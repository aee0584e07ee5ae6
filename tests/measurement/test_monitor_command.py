"""`glasshouse monitor` on a small run: its results, interruption, invalid arguments."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.monitors.test_llm_judge import Server, good, server, status

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.measurement.measure import summarize
from glasshouse.measurement.monitor_run import MonitorProgress, monitor_run
from glasshouse.monitors.base import Scope, make_view
from glasshouse.monitors.fitted import LabelledViews, fit_linear
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.runs import monitor_results
from glasshouse.runs.rollout_log import LOG, read_rows
from glasshouse.runs.verify import verify_derived_files
from glasshouse.training.run import TrainingRun
from glasshouse.values import Measure

__all__ = ["server"]  # the fixture
pytestmark = pytest.mark.xdist_group(
    "monitor command"
)  # one worker makes the expensive fixtures once
MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=4", "data.groups_per_step=4", "generate.group_size=2", "generate.max_tokens=32",
    "evaluate.problems=6", "evaluate.samples=0", "checkpoints.every=2", "checkpoints.save_best=false",
    "checkpoints.save_above_reward=null", "monitor.problems=10",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    TrainingRun(load_config([], [*SMALL, f"out={out}"])).train()
    return out


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that was monitored without interruption."""
    run = tmp_path_factory.mktemp("whole") / "a"
    shutil.copytree(trained, run)
    monitor_run(run, progress=False)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "a")
    return tmp_path / "a"


class RecordedProgress(MonitorProgress):
    def __init__(self) -> None:
        super().__init__()
        self.measured: list[str] = []
        self.known: list[str] = []
        self.warned: list[str] = []

    def finished(self, name: str, was_known: bool) -> None:
        (self.known if was_known else self.measured).append(name)

    def warn(self, message: str) -> None:
        self.warned.append(message)


class KilledMidway(MonitorProgress):
    """Kills its own process during the evaluation of the second model."""

    def working_on(self, name: str, source: str) -> None:
        if name == "step-000002" and source == "monitors":
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(work: Callable[[], object]) -> None:
    """Run the work in a forked process, which must end by SIGKILL."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def kill_before_rename(run: Path, number: int) -> None:
    """Monitor the run and kill this process just before its n-th file rename."""
    real, left = os.replace, [number]

    def replace(source: Any, target: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    os.replace = replace
    monitor_run(run, progress=False)


def read_results(run: Path) -> tuple[bytes, bytes]:
    folder = run / "results"
    return (folder / monitor_results.RESULTS_FILE).read_bytes(), (
        folder / monitor_results.ROWS_FILE
    ).read_bytes()


def test_results_cover_base_and_checkpoints_and_keep_the_rows_behind_them(whole: Path) -> None:
    results = json.loads((whole / "results" / "monitor.json").read_text())
    assert [(s["name"], s["step"]) for s in results["checkpoints"]] == [
        ("base", 0), ("step-000002", 2), ("step-000004", 4)]  # fmt: skip
    checksums = json.loads((whole / "checkpoints" / "step-000004" / "checksums.json").read_text())
    assert results["checkpoints"][2]["weights"] == checksums["model.safetensors"]["sha256"]
    assert results["settings"]["problems"] == 10
    assert "step 4" in results["verdict"]
    for entry in results["checkpoints"]:
        for name, estimate in entry["measures"]["interventions"].items():
            assert estimate["value"] is not None or estimate["undefined"], name
    file = monitor_results.MonitorResultsFile(whole / "results", results["settings"])
    rows = file.rows("step-000004")
    correct = [r["value"] for r in rows if r.get("measure") == "accuracy"]
    assert len(correct) == 10
    accuracy = results["checkpoints"][2]["measures"]["interventions"]["accuracy"]["value"]
    assert sum(correct) / 10 == accuracy
    trained_on = {r["key"] for r in read_rows(whole, "train")}
    assert not trained_on & {r["key"] for r in rows}


@pytest.mark.parametrize("where", ["model", 2, 3, 4])
def test_monitoring_resumed_after_a_kill_gives_the_same_bytes(
    run: Path, whole: Path, where: Any
) -> None:
    """Renames: rows and results file of the base (1, 2), of the first checkpoint (3, 4)."""
    run_until_killed(
        lambda: (
            monitor_run(run, progress=KilledMidway())
            if where == "model"
            else kill_before_rename(run, where)
        )
    )
    progress = RecordedProgress()
    monitor_run(run, progress=progress)
    assert progress.known == ([] if where == 2 else ["base"])
    assert read_results(run) == read_results(whole)


def test_only_changed_or_damaged_results_are_measured_again(run: Path, whole: Path) -> None:
    shutil.copytree(whole / "results", run / "results", dirs_exist_ok=True)
    progress = RecordedProgress()
    monitor_run(run, progress=progress)
    assert progress.known == ["base", "step-000002", "step-000004"]
    rows = run / "results" / monitor_results.ROWS_FILE
    data = bytearray(rows.read_bytes())
    data[-20] ^= 1
    rows.write_bytes(data)
    progress = RecordedProgress()
    monitor_run(run, progress=progress)
    assert progress.measured == ["step-000004"]  # its rows were damaged
    assert read_results(run) == read_results(whole)
    progress = RecordedProgress()
    monitor_run(run, problems=8, first_and_last=True, progress=progress)
    assert progress.measured == ["base", "step-000004"]  # other problems, other numbers


def test_missing_rows_are_damage_but_not_in_a_run_of_a_study(run: Path, whole: Path) -> None:
    shutil.copytree(whole / "results", run / "results", dirs_exist_ok=True)
    rows = f"results/{monitor_results.ROWS_FILE}"
    (run / rows).unlink()
    assert rows in {damage.file for damage in verify_derived_files(run, {})}
    (run / "results" / LOG).unlink()  # a study removes both
    assert rows not in {damage.file for damage in verify_derived_files(run, {})}


def test_a_damaged_checkpoint_is_skipped_with_a_warning(run: Path) -> None:
    (run / "checkpoints" / "step-000002" / "model.safetensors").write_bytes(b"")
    progress = RecordedProgress()
    results = monitor_run(run, problems=4, progress=progress)
    assert [s["name"] for s in results["checkpoints"]] == ["base", "step-000004"]
    assert "step-000002" in progress.warned[0]


def test_the_command_prints_a_table_or_json(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", str(whole)]) == 0
    out = capsys.readouterr().out
    assert "necessity uplift" in out
    assert "glasshouse report" in out
    assert main(["monitor", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["problems"] == 10


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere"),
        (["RUN", "--problems", "1"], "monitor.problems"),
        (["RUN", "--monitor", "rule:guess"], "NAME=PATTERN"),
        (["RUN", "--monitor", "saved:nowhere"], "nowhere"),
        (["RUN", "--monitor", "judge:nowhere"], "behaviour"),
    ],
)
def test_an_invalid_argument_exits_with_2_and_is_named(
    whole: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = [str(whole) if a == "RUN" else a for a in arguments]
    assert main(["monitor", *resolved]) == 2
    assert named in capsys.readouterr().err


def monitor_ends(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Run the command on the base and the last checkpoint with four problems."""
    assert (
        main(["monitor", str(run), "--problems", "4", "--first-and-last", "--json", *options]) == 0
    )
    return json.loads(capsys.readouterr().out)


def test_a_judge_is_called_once_per_text_and_its_outputs_are_measured(
    run: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """It flags every text; the second time its outputs come from the cache."""
    server.script = [good]
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    options = ["--monitor", f"judge:{url}", "--judge-model", "tiny", "--behaviour", "It guesses."]
    results = monitor_ends(run, capsys, *options)
    assert results["checkpoints"][1]["measures"]["monitors"]["judge.flag_rate"]["value"] == 1
    body = json.loads(server.bodies[0])
    assert body["model"] == "tiny"
    assert "It guesses." in json.dumps(body["messages"])
    assert set(server.paths) == {"/v1/chat/completions"}
    before = len(server.bodies)
    (run / "results" / monitor_results.RESULTS_FILE).unlink()
    again = monitor_ends(run, capsys, *options)
    assert again["checkpoints"] == results["checkpoints"]
    assert len(server.bodies) == before  # from the cache


def test_a_judge_that_does_not_answer_is_an_error_and_never_measured_before(
    run: Path, server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures after the first verdict are counted, and the checkpoint is measured again."""
    once = {**(JudgeMonitor.__init__.__kwdefaults__ or {}), "max_retries": 0, "concurrency": 1}
    monkeypatch.setattr(JudgeMonitor.__init__, "__kwdefaults__", once)
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    options = ["--judge-model", "tiny", "--behaviour", "It guesses.", "--problems", "4"]
    command = ["monitor", str(run), "--first-and-last", *options, "--monitor"]
    file = run / "results" / monitor_results.RESULTS_FILE
    assert main([*command, "judge:http://127.0.0.1:9/v1"]) == 2
    assert "gave no verdict on the first rollout" in capsys.readouterr().err
    assert not file.exists()
    server.script = [good, status(500)] * 4
    assert main([*command, f"judge:{url}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "base: the monitor judge failed on 2 of 4 rollouts" in printed
    assert "unread answers 0 of 8, cut completions" in printed
    assert json.loads(file.read_text())["checkpoints"][0]["failures"]["judge"]["failed"] == 2
    server.script = [good]
    assert main([*command, f"judge:{url}"]) == 0
    assert "measured before" not in capsys.readouterr().out
    assert main([*command, f"judge:{url}"]) == 0
    assert capsys.readouterr().out.count("measured before") == 2


def test_a_saved_monitor_is_refused_on_problems_it_was_fitted_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def split(prefix: str, y: list[int]) -> LabelledViews:
        texts = ["so it is a guess" if label else "one step" for label in y]
        views = [make_view(Scope.COT, prompt="", question="", completion=text) for text in texts]
        return LabelledViews(views, y, [f"{prefix}{n}" for n in range(len(y))])

    fitted = fit_linear(
        "words", Scope.COT, split("a", [0, 1] * 10), split("b", [0] * 20), min_benign=20
    )
    fitted.save(tmp_path / "words")
    results = monitor_ends(run, capsys, "--monitor", f"saved:{tmp_path / 'words'}")
    assert results["checkpoints"][0]["measures"]["monitors"]["words.flag_rate"]["n"] == 4
    rows = monitor_results.MonitorResultsFile(run / "results", results["settings"]).rows("base")
    keys = [row["key"] for row in rows if row.get("monitor") == "words"]
    seen = replace(split("a", [0, 1] * 10), problems=[keys[0], *(f"a{n}" for n in range(19))])
    fit_linear("words", Scope.COT, seen, split("b", [0] * 20), min_benign=20).save(
        tmp_path / "seen"
    )
    options = ["--problems", "4", "--monitor", f"saved:{tmp_path / 'seen'}"]
    assert main(["monitor", str(run), *options]) == 2
    assert "1 of these 4 problems" in capsys.readouterr().err


def test_the_verdict_says_what_rose_what_fell_and_what_is_not_shown() -> None:
    values = {"necessity_uplift": (0.3, 0.8), "has_cot": (1.0, 0.5), "mistake_follow": (0.5, 0.6)}
    first, last = (
        {"name": name, "step": step, "measures": {"interventions": {
            id: {"value": ends[n]} for id, ends in values.items()}}}
        for n, (name, step) in enumerate((("base", 0), ("step-000040", 40)))
    )  # fmt: skip
    intervals = {"necessity_uplift": (0.4, 0.6), "has_cot": (-0.6, -0.4), "mistake_follow": (-1, 1)}
    changes = {
        id: Measure(value=values[id][1] - values[id][0], n=9, low=low, high=high)
        for id, (low, high) in intervals.items()
    }
    verdict = summarize(first, last, changes)
    assert verdict.startswith("From the base to step 40: ")
    for words in (
        "necessity uplift rose from 0.30 to 0.80",
        "CoT fell",
        "mistake follow is not shown",
    ):
        assert words in verdict
    assert "no change" in summarize(first, last, {})
