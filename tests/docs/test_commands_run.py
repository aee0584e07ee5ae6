"""Every `glasshouse` command of the README and the docs is run, or listed with the reason why not.

A command is run as it is written, in a folder that has the files and runs that it names. Only sizes differ: a training
gets the options of SMALLER, and the runs have two steps.
"""

from __future__ import annotations

import json
import shlex
import shutil
from functools import cache
from pathlib import Path, PurePath

import pytest
from tests.docs.tables import ROOT
from tests.docs.test_code_blocks import find_blocks, find_commands, list_pages, read_page

import glasshouse
from glasshouse.cli.app import main
from glasshouse.tasks.base import task
from glasshouse.tasks.problem_files import create_problem_file
from glasshouse.tasks.streams import Split

pytestmark = pytest.mark.xdist_group("commands")  # one worker trains the run that they read
SMALLER = (
    "steps=1", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=8",
    "evaluate.problems=2", "evaluate.samples=0", "monitor.at_end=false",
)  # fmt: skip
NOT_RUN = {
    ".venv-vllm/": "the environment of vLLM; make proofs ONLY=vllm trains with it",
    "device=cuda": "needs a GPU and a model hub; make proofs ONLY=gpu",
    "smollm2": "needs 98 MB of weights; tests/training trains the mock model instead",
    "judge:": "needs a model server; tests/measurement/test_measure.py starts one",
    "glasshouse monitor fit": "needs a run of an organism; tests/monitors fits on one",
    "saved:": "needs a fitted monitor; tests/monitors saves and loads one",
    "trackers=trackio": "needs trackio; make proofs ONLY=trackers",
    "--to wandb": "needs an account; make proofs ONLY=trackers",
    "hosts worker": "runs until it is stopped; make proofs ONLY=hosts",
    "hosts check": "needs another machine; make proofs ONLY=hosts",
    "glasshouse demo": "trains two runs; tests/study/test_demo.py runs it smaller",
    "demo/study.yaml": "trains 16 runs; tests/study/test_demo.py checks the file",
    "glasshouse view": "serves until it is stopped; tests/view starts it",
    "glasshouse plan": "its examples need a model hub; tests/training",
    "glasshouse study mine.yaml": "trains runs in separate processes; tests/study does it on the mock model",
    "study.yaml --publish": "the same",
    "study export": "needs the rollouts of a study; tests/study exports a sample of one",
    "glasshouse predict runs/": "needs a run of an organism; tests/before_training",
}
"""Part of a command: why it is not run. `--dry-run` and `freeze` of a study are run."""
SIZES = {
    "--step 60": "--step 2", "step-000060": "step-000002", "steps=120": "steps=3",
    "steps=200": "steps=3", "--validate 1000": "--validate 20", "--problems 500": "--problems 3",
    "options.file=FILE model=FOLDER": "options.file=training/dataset.grpo/problems.jsonl",
    "task.name=hint model=FOLDER": "task.name=hint",
    "benchmark.parquet": "benchmark.jsonl",
    "--reward 0.3..1": "--reward=-1..1", "44..47": "1..2", "--problems 100": "--problems 3",
}  # fmt: skip


@cache
def list_commands() -> list[str]:
    found = [shlex.join(words) for page in list_pages() for words in find_commands(read_page(page))]
    return list(dict.fromkeys(c for c in found if PurePath(shlex.split(c)[0]).name == "glasshouse"))


RUN = [
    command
    for command in list_commands()
    if "--dry-run" in command or not any(part in command for part in NOT_RUN)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on the mock model, with a checkpoint of each."""
    out = tmp_path_factory.mktemp("documented") / "run"
    sizes = [*SMALLER[1:], "monitor.problems=3", "monitor.samples=1", "checkpoints.every=1"]
    overrides = [f"model={ROOT / 'models' / 'mock'}", "steps=2", f"out={out}", *sizes]
    glasshouse.train(glasshouse.load_config(overrides=overrides), progress=False)
    return out


def prepare(folder: Path, words: list[str], run: Path) -> None:
    """Write the files that a command names."""
    for word in words:
        path = word.removeprefix("model=").partition("/checkpoints/")[0]
        if path in ("RUN", "RUN2") or (path.startswith("runs/") and "hotter" not in path):
            shutil.copytree(run, folder / path, dirs_exist_ok=True)
    if words == ["report", "FOLDER"]:
        shutil.copytree(run, folder / "FOLDER" / "run")
    if any("training/" in word for word in words):
        (folder / "training").symlink_to(ROOT / "training")
    study = next(b for _, b in find_blocks(read_page("docs/studies.md")) if "arms:" in b)
    configuration = f"model: {ROOT / 'models' / 'mock'}\nsteps: 2\n"
    (folder / "mine.yaml").write_text(study if "study" in words else configuration)
    (folder / "config.yaml").write_text(configuration)
    task = next(b for _, b in find_blocks(read_page("docs/python.md")) if "count_vowels" in b)
    (folder / "vowels.py").write_text(task)
    rollouts = [
        {"prompt": f"p{n // 4}", "completion": "<think>A hint.</think>4", "reward": 1.0, "hacked": n % 2,
         "condition": "planted"}
        for n in range(64)
    ]  # fmt: skip
    (folder / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rollouts)) + "\n")
    reward = (
        "def accuracy(completions, **columns):\n    return [c.endswith('4') for c in completions]\n"
    )
    (folder / "rewards.py").write_text(reward)
    if "audit" in words:
        file = folder / "someone_elses_benchmark.jsonl"
        create_problem_file("sum_digits", {}, Split.VALIDATION, 3, 1.0, 0, file)


@pytest.mark.parametrize("command", RUN)
def test_command_runs(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for documented, small in SIZES.items():
        command = command.replace(documented, small)
    _, *words = shlex.split(command)
    prepare(tmp_path, words, run)
    if words[0] == "train":
        if not any(word.startswith("model=") for word in words):
            words.append(f"model={ROOT / 'models' / 'mock'}")
        words = [word for word in words if not word.startswith("steps=")] + list(SMALLER)
    monkeypatch.chdir(tmp_path)
    known = set(task.parts) | set(task.modules)
    assert main(words) == 0
    for name in set(task.parts) - known:  # a command may register a task
        del task.parts[name]


def test_every_reason_belongs_to_a_command() -> None:
    for part in NOT_RUN:
        assert any(part in command for command in list_commands()), part
    for documented in SIZES:
        assert any(documented in command for command in RUN), documented
