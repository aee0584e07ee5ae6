"""Nothing that a model or a file contains controls the terminal; errors and progress are sentences."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from glasshouse import terminal as console
from glasshouse.cli.app import main, run_command
from glasshouse.config.loading import load_config
from glasshouse.models.chat_template import DEFAULT_CHAT
from glasshouse.runs.rollout_log import LOG, RolloutLog, read_rows
from glasshouse.runs.rows import from_row
from glasshouse.terminal import (
    count_noun,
    format_duration,
    shell_command,
    terminal_safe,
    terminal_safe_json,
)
from glasshouse.training import display
from glasshouse.training.run import TrainingRun

HOSTILE = [
    "\x1b[2J",  # clears the screen
    "\x1b]0;title\x07",  # sets the window title
    "\x1b]52;c;aGk=\x07",  # sets the clipboard
    "\x9b2J",  # the same as \x1b[ in one character
    "\x7f",
    "\u202e",  # right-to-left override
    "\u2066",
    "\u200b",
    "\u2028",
    "\udc80",
    "\U000e0041",  # a tag character
]


def test_ordinary_text_is_unchanged_and_durations_are_written() -> None:
    for text in ("12 + 34 = 46\n\tnext line", "[bold]ä, 日本, ∑, 🙂[/]", "back\\slash"):
        assert terminal_safe(text) == terminal_safe_json(text) == text
    assert [count_noun(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
    durations = [format_duration(s) for s in (0.4, 59.4, 60, 3725)]
    assert durations == ["0 s", "59 s", "1:00 min", "1:02:05 h"]


@given(st.text())
def test_no_text_leaves_a_control_character(text: str) -> None:
    safe = terminal_safe(text)
    assert all(c in "\n\t" or category(c) not in ("Cc", "Cf", "Cs") for c in safe)
    assert json.loads(terminal_safe_json(json.dumps(text, ensure_ascii=False))) == text


def test_a_pasted_command_has_the_same_arguments() -> None:
    arguments = [
        "plain", "two words", "x[/b]", "it's", 'a "quote"', "$HOME `date` !x", "", "-x", "a\\b",
        ":smile:", "tab\there", "line\nend", "é日本", *(h for h in HOSTILE if h != "\udc80"),
        os.fsdecode(b"\x80\xff"),
    ]  # fmt: skip
    script = "import os,sys; print([os.fsencode(a) for a in sys.argv[1:]])"
    command = shell_command([sys.executable, "-c", script, *arguments])
    assert command.isprintable()
    output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert output.stdout == f"{[os.fsencode(argument) for argument in arguments]}\n"


ROOT = Path(__file__).resolve().parent.parent
MOCK = str(ROOT / "models" / "mock")
SMALL = [
    f"model={MOCK}", "steps=1", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=12",
    "evaluate.problems=3", "evaluate.samples=1", "monitor.problems=3",
]  # fmt: skip
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x9b2J\u202e\u2066[/b][bold]:cat:"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    TrainingRun(load_config([], [*SMALL, f"out={out}"])).train()
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def is_safe(printed: str) -> bool:
    return all(line.isprintable() for line in printed.split("\n"))


def hostile_rollout(run: Path) -> Any:
    rollout = from_row(next(read_rows(run, "train")))
    problem = replace(rollout.problem, question=ESCAPES, gold_answer=ESCAPES)
    return replace(rollout, text=ESCAPES, problem=problem)


def test_verbose_prints_no_escape_sequence_and_no_markup_of_a_completion(trained: Path) -> None:
    out = io.StringIO()
    terminal = display.TerminalDisplay(Console(file=out, highlight=False), verbose=True)
    model = SimpleNamespace(num_parameters=lambda: 1)
    tokenizer = SimpleNamespace(chat_template="", bos_token=None)
    policy: Any = SimpleNamespace(model=model, tokenizer=tokenizer, chat=DEFAULT_CHAT, card={})
    task: Any = SimpleNamespace(size=lambda: None, describe=lambda: "")
    terminal.start(load_config([], ["steps=1"]), Path("run"), policy, task)
    row = {"step": 1, "reward": 0.0, "accuracy": 0.0, "length": 3}
    terminal.step(row, [[hostile_rollout(trained)]])
    terminal.log(ESCAPES)
    terminal.print(ESCAPES)
    printed = out.getvalue()
    assert is_safe(printed)
    assert printed.count("[/b][bold]:cat:") == 5
    assert "\\x1b[2J" in printed


def test_rollouts_prints_no_escape_sequence_and_json_is_lossless(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = replace(hostile_rollout(run), step=9)
    RolloutLog(run / "results" / LOG).append([rollout])
    for options in (["--show"], ["--json"]):
        main(["rollouts", str(run), "--split", "train", "--step", "9", *options])
        printed = capsys.readouterr().out
        assert is_safe(printed), options
        if "--json" in options:
            assert json.loads(printed)["text"] == ESCAPES


def test_monitor_and_eval_are_not_silent_without_a_terminal(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "HEARTBEAT_SECONDS", 0.01)
    assert main(["monitor", str(run), "--first-and-last", "--problems", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert "monitor: " in captured.err
    assert json.loads(captured.out)
    assert main(["eval", MOCK, "--task", "sum_digits", "--json", "evaluate.problems=3"]) == 0
    captured = capsys.readouterr()
    assert "evaluating, after" in captured.err
    assert json.loads(captured.out)["problems"] == 3


@pytest.mark.parametrize(
    ("command", "option", "suffix"),
    [("report", "--out", ".html"), ("report figure", "--out", ".svg")],
)
def test_one_rule_for_output_files(
    run: Path, command: str, option: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, pipe = run.parent / f"folder{suffix}", run.parent / f"pipe{suffix}"
    folder.mkdir()
    os.mkfifo(pipe)
    files = set(run.parent.rglob("*"))
    for out in (folder, pipe, run.parent / "none" / f"x{suffix}", run.parent / "x.txt"):
        if command != "report" or out.suffix == suffix:
            assert main([*command.split(), str(run), option, str(out)]) == 2
            assert re.search(f"{out}|must end in", capsys.readouterr().err)
    assert set(run.parent.rglob("*")) == files
    assert pipe.is_fifo()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_an_error_of_the_operating_system_is_a_message(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise OSError(code, os.strerror(code), "a/\x1bfile")

    assert run_command(fail) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert is_safe(message)
    if code not in (errno.ENOSPC, errno.EDQUOT):
        assert os.strerror(code) in message
        assert "a/\\x1bfile" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", f"model={MOCK}", f"out={'x' * 256}"],
        ["train", f"model={MOCK}", "out=a\0b"],
        ["train", f"model={MOCK}", "out=file"],
        ["eval", "x" * 256],
        ["eval", "a\0b"],
        ["check", "x[/b]"],
        ["resume", "x" * 256],
        ["monitor", "x\x1b[2J"],
        ["train", "--config", "x" * 256],
        ["train", "--config", "x\x1b[2J"],
    ],
)
def test_a_hostile_name_is_a_user_error(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert is_safe(message)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def read_only_run(run: Path) -> Iterator[Path]:
    mount = ["mount", "--bind", str(run), str(run)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-o", "remount,ro,bind", str(run)], check=True)
    yield run
    subprocess.run(["umount", str(run)], check=True)


def test_a_read_only_run_can_be_reported_and_monitored(
    read_only_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = str(read_only_run), tmp_path / "out"
    out.mkdir()
    assert main(["report", run]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["monitor", run]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["report", run, "--out", str(out / "report.html")]) == 0
    assert main(["monitor", run, "--first-and-last", "--out", str(out / "monitor")]) == 0
    assert (out / "monitor" / "monitor.json").is_file()
    for command in (["check"], ["rollouts"], ["check", "audit"]):
        assert main([*command, run]) == 0
    assert main(["resume", run, "steps=2"]) == 2
    assert "Read-only" in capsys.readouterr().err
