"""Commands that we print can be pasted: each is run in process, for a run whose name is hostile."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from glasshouse.cli.app import main
from glasshouse.measurement.evaluate import resolve_evaluation_config
from glasshouse.terminal import shell_command
from glasshouse.view.run_reader import RunLocation, RunReader

ROOT = Path(__file__).resolve().parent.parent
MOCK = str(ROOT / "models" / "mock")
SMALL = [
    f"model={MOCK}", "steps=2", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=12",
    "evaluate.problems=4", "evaluate.samples=1", "task.name=multiplication", "task.style=direct",
    "task.options={left_digits: 2, right_digits: 1}", "reward.terms={format: 1}", "monitor.problems=4",
]  # fmt: skip
NAME = "it's [b]a :cat: run[/b] " + "very long " * 12
COMMAND = re.compile(r"(?m)(?:^|: |  +)(glasshouse .+)$")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run directory and what `glasshouse train` printed."""
    folder = tmp_path_factory.mktemp("printed")
    run = folder / NAME
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        out = StringIO()
        with redirect_stdout(out):
            assert main(["train", *SMALL, f"out={NAME}"]) == 0
    return run, out.getvalue()


def find_commands(printed: str) -> list[list[str]]:
    return [shlex.split(command)[1:] for command in COMMAND.findall(printed)]


def test_every_printed_command_runs(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, printed = trained
    found = re.search(r"\((glasshouse tasks .+) shows the prompt\)", printed)
    assert found
    assert main(shlex.split(found[1])[1:]) == 0
    assert "drops the system message" in capsys.readouterr().out
    monkeypatch.chdir(run.parent.parent)  # the name contains a slash
    monitor = ["monitor", NAME, "--first-and-last", "--problems", "4"]
    for command in (["check", NAME], ["rollouts", NAME], ["resume", NAME], monitor):
        assert main(command) == 0
        printed += capsys.readouterr().out
    reader = RunReader(RunLocation("a run", Path(NAME)))  # as `glasshouse view` and the report do
    reader.refresh()
    printed += "\n".join(reader.describe()["commands"].values())
    commands = [list(c) for c in dict.fromkeys(map(tuple, find_commands(printed)))]
    assert {command[0] for command in commands} >= {"eval", "rollouts", "resume", "report"}
    for command in commands:
        assert any(NAME in argument for argument in command), command
        code = main(command)
        error = capsys.readouterr().err
        assert code == 0 or "No rollouts" in error, (command, error)


def test_the_layout_of_plan_can_be_pasted_and_what_measure_names_exists(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither prints a command; plan prints lines of a config file, measure the path of its page."""
    config, layout = tmp_path / "config.yaml", tmp_path / "layout.yaml"
    config.write_text(f"model: {MOCK}\n")
    assert main(["plan", "--config", str(config), *SMALL[1:]]) == 0
    printed = capsys.readouterr().out
    assert not find_commands(printed)
    layout.write_text(printed.partition("paste into the config file\n")[2])
    assert "learn:" in layout.read_text()
    assert main(["train", "--dry-run", "--config", str(config), "--config", str(layout)]) == 0
    capsys.readouterr()
    page = tmp_path / "it's [b].html"
    assert main(["measure", str(trained[0]), "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    assert not find_commands(printed)
    assert Path(printed.splitlines()[-1].removeprefix("report  ")).is_file()


def test_a_moved_and_damaged_run_is_named_with_commands_that_can_be_pasted(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "it's a copy")
    assert main(["resume", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "copy" in printed
    assert "very long" not in printed
    assert main(["eval", str(run)]) == 2
    assert "step-000002" in capsys.readouterr().err
    (run / "results" / "summary.json").unlink()
    assert main(["check", str(run)]) == 1
    assert shlex.join(["glasshouse", "resume", str(run)]) in capsys.readouterr().out
    model = run / "checkpoints" / "step-000002" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    assert main(["eval", str(model.parent)]) == 2
    assert shlex.join(["glasshouse", "check", str(run)]) in capsys.readouterr().err


def test_a_checkpoint_is_evaluated_like_its_run_except_for_the_arguments(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    summary = json.loads((run / "results" / "summary.json").read_text())
    checkpoint = str(run / "checkpoints" / "step-000002")
    assert main(["eval", checkpoint, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert (results["task"]["name"], results["task"]["style"]) == ("multiplication", "direct")
    assert results["task"]["options"]["left_digits"] == 2
    for key in ("problems", "accuracy", "strict", "length", "levels"):
        assert results[key] == summary["after"][key]
    config = resolve_evaluation_config(checkpoint, ["task.options.left_digits=3"], style="cot")
    assert (config.task.name, config.task.style) == ("multiplication", "cot")
    assert config.task.options == {"left_digits": 3, "right_digits": 1}
    for config in (
        resolve_evaluation_config(checkpoint, task="sum_digits"),
        resolve_evaluation_config(checkpoint, ["task.name=sum_digits"]),
        resolve_evaluation_config("pocket"),
    ):
        assert (config.task.name, config.task.options) == ("sum_digits", {})


def test_a_printed_program_is_the_one_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process was started by `python -m glasshouse` or `python main.py`, whose names it does not use."""
    programs = tmp_path / ".venv" / "bin", tmp_path / "other"
    for folder in programs:
        folder.mkdir(parents=True)
        (folder / "glasshouse").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(programs[0] / "python"))
    for path, printed in (
        (programs[0], "glasshouse check 'a b'"),
        (programs[1], ".venv/bin/glasshouse check 'a b'"),  # another program of this name
        ("", ".venv/bin/glasshouse check 'a b'"),
    ):
        monkeypatch.setenv("PATH", str(path))
        assert shell_command(["glasshouse", "check", "a b"]) == printed
    monkeypatch.chdir(programs[1])
    assert shell_command(["glasshouse"]) == str(programs[0] / "glasshouse")
    assert shell_command(["wandb", "sync"]) == "wandb sync"  # not installed here


def test_the_program_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert "examples:" in capsys.readouterr().out
