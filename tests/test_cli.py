"""The command line as people use it: sentences, exit codes, real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glasshouse.cli import main

ROOT = Path(__file__).resolve().parent.parent
MOCK = str(ROOT / "models" / "mock")


def glasshouse(
    *arguments: str, given: str | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "glasshouse", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, input=given, cwd=cwd, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", "learn.lrr=1"], 'Did you mean "learn.learning_rate"?'),
        (["train", "steps=many"], "steps"),
        (["train", "--config", "no/such.yaml"], "does not exist"),
        (["train", "model=no/such/folder"], "no/such/folder"),
        (["train", "task.name=sum_digit", f"model={MOCK}"], 'Did you mean "sum_digits"?'),
        (["train", "task.options.cuont=3", f"model={MOCK}"], "count"),
        (["train", "data.source=fixed", "data.file=none.jsonl", f"model={MOCK}"], "none.jsonl"),
        (["eval", "no/such/folder"], "no/such/folder"),
        (["config", "lern"], "learn"),
        (["figure", ".", "--out", "x.png"], "not a run directory"),
        (["pocket", "build", "--recipe", "poket", "--out", "x"], "pocket"),
        (["pocket", "build", "--out", "docs"], "already holds files"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    arguments: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process: most of what a process of its own would do is to import torch."""
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


def test_the_shell_sees_the_sentence_and_the_exit_code() -> None:
    done = glasshouse("train", "learn.lrr=1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_placement_that_is_not_installed_is_a_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['monarch'] = None; from glasshouse.cli import main; "
        f"sys.exit(main(['train', 'backend=monarch', 'model={MOCK}', 'out={tmp_path / 'a'}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "glasshouse[monarch]"' in done.stderr
    assert not (tmp_path / "a").exists()


def test_dry_run_prints_what_was_resolved_and_trains_nothing(tmp_path: Path) -> None:
    done = glasshouse("train", "--dry-run", "learn.learning_rate=1e-5", f"out={tmp_path / 'x'}")
    assert done.returncode == 0
    assert "lr: 1.0e-05" in done.stdout
    assert not (tmp_path / "x").exists()


def test_grade_names_the_rule_that_fired() -> None:
    done = glasshouse(
        "grade", "--task", "sum_digits", "--answer", "28", given="so the answer is 28."
    )
    assert done.returncode == 0
    assert "rule phrase" in done.stdout
    assert "right: 28" in done.stdout


def test_tasks_lists_every_task_with_its_size() -> None:
    done = glasshouse("tasks", "--validate", "5")
    assert done.returncode == 0
    for name in ("sum_digits", "reverse_digits", "arithmetic", "multiplication", "interleave"):
        assert name in done.stdout
    assert "81,000 problems" in done.stdout
    assert "0 faults" in done.stdout


def test_tasks_shows_the_prompts_of_one_word_for_word() -> None:
    done = glasshouse("tasks", "arithmetic")
    assert done.returncode == 0
    assert "Do not show steps, working or explanations." in done.stdout
    assert "task.style=cot" in done.stdout
    assert "hasty" in done.stdout
    assert "interleave" not in done.stdout
    assert (
        'There is no task "aritmetic". Did you mean "arithmetic"'
        in glasshouse("tasks", "aritmetic").stderr
    )


def test_config_explains_every_key() -> None:
    done = glasshouse("config")
    assert done.returncode == 0
    assert "learn.learning_rate" in done.stdout
    assert "Learning rate" in done.stdout


def test_eval_of_a_model_folder_reports_intervals_for_programs() -> None:
    done = glasshouse("eval", MOCK, "--task", "arithmetic", "--json", "evaluate.problems=10")
    found = json.loads(done.stdout)
    assert found["problems"] == 10
    assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]


def test_a_run_is_quiet_in_a_pipe_but_for_its_result(tmp_path: Path) -> None:
    done = glasshouse(
        "train", f"model={MOCK}", "steps=3", "data.groups_per_step=2", "generate.group_size=2",
        "generate.max_tokens=16",
        "evaluate.problems=4", "evaluate.samples=0", f"out={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "held-out problems" in done.stdout
    assert "glasshouse eval" in done.stdout
    assert done.stdout.count("\n") < 40


def test_verbose_shows_a_completion_of_every_step(tmp_path: Path) -> None:
    done = glasshouse(
        "train", "--verbose", f"model={MOCK}", "steps=2", "data.groups_per_step=2", "generate.group_size=2",
        "generate.max_tokens=16", "evaluate.problems=0", f"out={tmp_path / 'run'}",
    )  # fmt: skip
    assert "step 1" in done.stdout
    assert "step 2" in done.stdout
    assert done.stdout.count("gold") == 2


@pytest.mark.parametrize("script", ["tests/run_test.py", "tools/new_experiment.py"])
def test_an_unknown_experiment_is_a_sentence(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / script), "no such"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "example.rl" in done.stderr or "my.rl" in done.stderr


def test_a_new_experiment_passes_its_own_tests_at_once() -> None:
    name = "scratch_for_a_test.rl"
    target = ROOT / "training" / name
    try:
        made = subprocess.run(
            [sys.executable, str(ROOT / "tools" / "new_experiment.py"), name], check=False
        )
        assert made.returncode == 0
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "run_test.py"), name],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        import shutil

        shutil.rmtree(target, ignore_errors=True)
