"""`glasshouse monitor` on a small run: what it writes, killed in between, asked for nonsense."""

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

from glasshouse import config
from glasshouse.cli import main
from glasshouse.evaluation.monitor_run import MonitorProgress, monitor_run
from glasshouse.monitors import LabelledViews
from glasshouse.monitors.ngrams import fit_ngram_monitor
from glasshouse.monitors.views import Scope, make_view
from glasshouse.store import monitor_results
from glasshouse.train import Trainer

__all__ = ["server"]  # the fixture
MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=4", "data.groups_per_step=4", "generate.group_size=2", "generate.max_tokens=32",
    "evaluate.problems=6", "evaluate.samples=0", "checkpoints.every=2", "checkpoints.save_best=false",
    "checkpoints.save_above_reward=null", "monitor.problems=10",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    Trainer(config.load_config([], [*SMALL, f"out={out}"])).train()
    return out


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that was monitored without interruption."""
    run = tmp_path_factory.mktemp("whole") / "a"
    shutil.copytree(trained, run)
    monitor_run(run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "a")
    return tmp_path / "a"


class RecordedProgress(MonitorProgress):
    def __init__(self) -> None:
        self.measured: list[str] = []
        self.known: list[str] = []
        self.warned: list[str] = []

    def finished(self, name: str, entry: dict[str, Any], was_known: bool) -> None:
        (self.known if was_known else self.measured).append(name)

    def warn(self, message: str) -> None:
        self.warned.append(message)


class KilledMidway(MonitorProgress):
    """Kills its own process during the evaluation of the second model."""

    def working_on(self, name: str, evaluation: str) -> None:
        if name == "step-000002" and evaluation == "monitors":
            os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object]) -> None:
    """The work in a process of its own, which must die of SIGKILL."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def at_rename(run: Path, number: int) -> None:
    """Monitor, and die just before the so-and-so-manyth file gets its name."""
    real, left = os.replace, [number]

    def replace(source: Any, target: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    os.replace = replace
    monitor_run(run)


def results(run: Path) -> tuple[bytes, bytes]:
    folder = run / "results"
    return (folder / monitor_results.RESULTS_FILE).read_bytes(), (
        folder / monitor_results.ROWS_FILE
    ).read_bytes()


def test_base_and_checkpoints_are_measured_with_what_they_rest_on(whole: Path) -> None:
    found = json.loads((whole / "results" / "monitor.json").read_text())
    assert [(s["name"], s["step"]) for s in found["subjects"]] == [
        ("base", 0), ("step-000002", 2), ("step-000004", 4)]  # fmt: skip
    checksums = json.loads((whole / "checkpoints" / "step-000004" / "checksums.json").read_text())
    assert found["subjects"][2]["weights"] == checksums["model.safetensors"]["sha256"]
    assert found["version"] == 1
    assert found["settings"]["problems"] == 10
    assert found["verdict"].startswith("From the base to step 4")
    for entry in found["subjects"]:
        for name, scored in entry["measures"]["interventions"].items():
            value, reason = scored["measure"]["value"], scored["measure"].get("reason")
            assert (value is None) == bool(reason), name
    file = monitor_results.MonitorResultsFile(whole / "results", found["settings"])
    rows = file.rows("step-000004")
    right = [r["value"] for r in rows if r.get("measure") == "accuracy"]
    assert len(right) == 10
    accuracy = found["subjects"][2]["measures"]["interventions"]["accuracy"]["measure"]["value"]
    assert sum(right) / 10 == accuracy
    trained_on = {r["key"] for r in _record(whole, "train")}
    assert not trained_on & {r["key"] for r in rows}


def _record(run: Path, kind: str) -> list[dict[str, Any]]:
    from glasshouse.store import read_rollouts

    return list(read_rollouts(run / "results" / "rollouts", kind))


@pytest.mark.parametrize("where", ["subject", 2, 3, 4])
def test_killed_it_goes_on_and_comes_to_the_same(run: Path, whole: Path, where: Any) -> None:
    """Renames: rows and table of contents of the base (1, 2), of the next one (3, 4)."""
    killed(
        lambda: (
            monitor_run(run, progress=KilledMidway())
            if where == "subject"
            else at_rename(run, where)
        )
    )
    heard = RecordedProgress()
    monitor_run(run, progress=heard)
    assert heard.known == ([] if where == 2 else ["base"])
    assert results(run) == results(whole)


def test_what_is_measured_is_not_measured_again_unless_it_changed(run: Path, whole: Path) -> None:
    shutil.copytree(whole / "results", run / "results", dirs_exist_ok=True)
    heard = RecordedProgress()
    monitor_run(run, progress=heard)
    assert heard.known == ["base", "step-000002", "step-000004"]
    rows = run / "results" / monitor_results.ROWS_FILE
    data = bytearray(rows.read_bytes())
    data[-20] ^= 1
    rows.write_bytes(data)
    heard = RecordedProgress()
    monitor_run(run, progress=heard)
    assert heard.measured == ["step-000004"]  # its rows were damaged
    assert results(run) == results(whole)
    heard = RecordedProgress()
    monitor_run(run, problems=8, only_ends=True, progress=heard)
    assert heard.measured == ["base", "step-000004"]  # other problems, other numbers


def test_a_damaged_checkpoint_is_left_out_and_named(run: Path) -> None:
    (run / "checkpoints" / "step-000002" / "model.safetensors").write_bytes(b"")
    heard = RecordedProgress()
    found = monitor_run(run, problems=4, progress=heard)
    assert [s["name"] for s in found["subjects"]] == ["base", "step-000004"]
    assert "step-000002 is damaged" in heard.warned[0]


def test_the_command_prints_a_table_and_a_sentence(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", str(whole)]) == 0
    out = capsys.readouterr().out
    assert "measured before" in out
    assert "necessity uplift" in out
    assert "glasshouse report" in out
    assert main(["monitor", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["problems"] == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "is not a run directory"),
        (["RUN", "--problems", "1"], "at least two problems"),
        (["RUN", "--rule", "guess"], "NAME=PATTERN"),
        (["RUN", "--saved", "nowhere"], "not a saved monitor"),
        (["RUN", "--judge", "nowhere"], "is no address"),
    ],
)
def test_a_mistake_is_a_sentence(
    whole: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(whole) if a == "RUN" else a for a in arguments]
    assert main(["monitor", *given]) == 2
    assert sentence in capsys.readouterr().err


def asked(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What the command finds of the base and the last checkpoint on four problems."""
    assert main(["monitor", str(run), "--problems", "4", "--ends", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_judge_is_asked_once_a_text_and_its_verdicts_are_measured(
    run: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flagged by it, every text; asked again, it is not."""
    server.script = [good]
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    options = ["--judge", url, "--judge-model", "tiny", "--behaviour", "It guesses."]
    found = asked(run, capsys, *options)
    assert found["subjects"][1]["measures"]["monitors"]["judge.flag_rate"]["measure"]["value"] == 1
    body = json.loads(server.bodies[0])
    assert body["model"] == "tiny"
    assert "It guesses." in json.dumps(body["messages"])
    assert set(server.paths) == {"/v1/chat/completions"}
    before = len(server.bodies)
    (run / "results" / monitor_results.RESULTS_FILE).unlink()
    again = asked(run, capsys, *options)
    assert again["subjects"] == found["subjects"]
    assert len(server.bodies) == before  # every verdict was in the run's cache


def test_an_endpoint_that_refuses_is_a_sentence(
    run: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = [status(400)]
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    given = ["--judge", url, "--judge-model", "tiny", "--behaviour", "It guesses."]
    assert main(["monitor", str(run), "--problems", "4", *given]) == 2
    assert 'Check its address, the model "tiny"' in capsys.readouterr().err


def test_a_saved_monitor_is_asked_and_refused_on_what_it_was_fitted_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def split(prefix: str, y: list[int]) -> LabelledViews:
        texts = ["so it is a guess" if label else "one step" for label in y]
        views = [make_view(Scope.COT, prompt="", question="", completion=text) for text in texts]
        return LabelledViews(views, y, [f"{prefix}{n}" for n in range(len(y))])

    fitted = fit_ngram_monitor(
        "words", Scope.COT, split("a", [0, 1] * 10), split("b", [0] * 20), min_benign=20
    )
    fitted.save(tmp_path / "words")
    found = asked(run, capsys, "--saved", str(tmp_path / "words"))
    assert found["subjects"][0]["measures"]["monitors"]["words.flag_rate"]["measure"]["n"] == 4
    rows = monitor_results.MonitorResultsFile(run / "results", found["settings"]).rows("base")
    keys = [row["key"] for row in rows if row.get("monitor") == "words"]
    seen = replace(split("a", [0, 1] * 10), problems=[keys[0], *(f"a{n}" for n in range(19))])
    fit_ngram_monitor("words", Scope.COT, seen, split("b", [0] * 20), min_benign=20).save(
        tmp_path / "seen"
    )
    given = ["--problems", "4", "--saved", str(tmp_path / "seen")]
    assert main(["monitor", str(run), *given]) == 2
    assert "was fitted or frozen on 1 of these 4 problems" in capsys.readouterr().err
