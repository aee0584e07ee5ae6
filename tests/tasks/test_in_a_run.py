"""Problem streams in a run: exhausted, restarted, scheduled, and fast."""

import hashlib
import json
import shlex
from pathlib import Path

import pytest

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.runs import rollout_log
from glasshouse.runs.run_directory import load_events
from glasshouse.tasks.problem_files import read_problem_file
from glasshouse.tasks.streams import assign_split
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=4", "task.name=multiplication", "data.groups_per_step=8", "generate.group_size=2",
    "generate.max_tokens=16", "evaluate.problems=4", "evaluate.samples=0", "evaluate.oversize=1",
]  # fmt: skip
TINY = "task.options={left_digits: 1, right_digits: 1}"  # 45 problems, 37 of them for training


class RecordingDisplay(Display):
    def __init__(self):
        self.warnings = []

    def warn(self, message, kind=""):
        self.warnings.append(message)


def train(out, *overrides):
    display = RecordingDisplay()
    summary = TrainingRun(load_config([], [*SMALL, f"out={out}", *overrides]), display).train()
    return summary, display.warnings


def training_keys(out):
    rows = rollout_log.read_rows(out, "train")
    return [r["key"] for r in rows if r["sample"] == 0]


def test_exhausted_run_warns_once_and_restarts(tmp_path):
    summary, warnings = train(tmp_path / "a", TINY, "steps=6")
    assert summary["steps_done"] == 6
    drawn = training_keys(tmp_path / "a")
    assert len(set(drawn[:37])) == 37
    assert drawn[37:] == drawn[:11]
    assert [(e["step"], e["epochs"]) for e in load_events(tmp_path / "a", "new_epoch")] == [(5, 1)]
    assert sum("step 5" in w and "data.on_exhausted" in w for w in warnings) == 1


def test_on_exhausted_stop_ends_the_run_with_an_evaluation(tmp_path):
    summary, warnings = train(tmp_path / "a", TINY, "steps=6", "data.on_exhausted=stop")
    assert summary["steps_done"] == summary["exhausted_at"] == 4
    assert "accuracy" in summary["after"]
    assert any("step 4" in w and "exhausted" in w for w in warnings)
    assert load_events(tmp_path / "a", "exhausted")[0]["step"] == 4
    assert len(set(training_keys(tmp_path / "a"))) == 32
    assert Path(summary["checkpoint"], "model.safetensors").is_file()


def test_schedule_changes_the_difficulty_of_training_but_not_of_evaluation(tmp_path):
    schedule = "task.schedule={0: {left_digits: 1}, 3: {left_digits: 2}, 4: {}}"
    train(tmp_path / "a", "task.options={left_digits: 3, right_digits: 1}", schedule)
    levels = {(r["step"], r["level"]) for r in rollout_log.read_rows(tmp_path / "a", "train")}
    stages = ["1x1, stage 1", "1x1, stage 1", "2x1, stage 2", "3x1, stage 3"]
    assert sorted(levels) == list(enumerate(stages, 1))
    validation = rollout_log.read_rows(tmp_path / "a", "validation")
    assert {r["level"] for r in validation} == {"3x1"}
    schedule = load_config([tmp_path / "a" / "config.yaml"]).task.schedule
    assert schedule == {0: {"left_digits": 1}, 3: {"left_digits": 2}, 4: {}}


def test_data_folder_says_where_the_problems_of_each_split_come_from(tmp_path):
    train(tmp_path / "a", TINY, "steps=1", "seed=3")
    manifest = json.loads((tmp_path / "a" / "data" / "manifest.json").read_text())
    options = {"left_digits": 1, "right_digits": 1}
    training = {"task": "multiplication", "split": "train", "seed": 3, "source": "fresh"}
    assert (training | {"drawn": 8}).items() <= manifest["train"].items()
    assert options.items() <= manifest["train"]["options"].items()
    validation = read_problem_file(tmp_path / "a" / manifest["validation"]["file"])
    assert manifest["validation"]["problems"] == len(validation)
    assert manifest["validation"]["source"]["split"] == "validation"
    command = shlex.split(manifest["test"]["create"])
    command[command.index("--count") + 1] = "1"
    command[command.index("--out") + 1] = str(tmp_path / "test.jsonl")
    assert main(command[1:]) == 0
    [problem] = read_problem_file(tmp_path / "test.jsonl")
    assert assign_split(problem) == "test"


def test_a_file_has_its_checksum_in_the_manifest_and_too_few_problems_warn(tmp_path, capsys):
    file, validation = tmp_path / "own.jsonl", tmp_path / "validation.jsonl"
    file.write_text('{"task": "multiplication", "question": "1 * 1?", "answer": 1}\n')
    validation.write_text('{"task": "multiplication", "question": "2 * 3?", "answer": 6}\n')
    files = ["data.source=fixed", f"data.file={file}", f"evaluate.file={validation}"]
    _, warnings = train(tmp_path / "a", "steps=1", *files)
    manifest = json.loads((tmp_path / "a" / "data" / "manifest.json").read_text())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert {"file": str(file), "sha256": digest, "problems": 1}.items() <= manifest["train"].items()
    assert manifest["validation"]["problems"] == 1
    assert any("evaluate.problems is 4" in w and "only 1 " in w for w in warnings)
    assert main(["eval", str(MOCK), *SMALL[2:], f"evaluate.file={validation}"]) == 0
    assert "evaluate.problems is 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.schedule={5: {left_digit: 1}}"], r"schedule, step 5.*left_digits"),
        (["task.schedule={5: {left_digits: 0}}"], r"schedule, step 5.*left_digits"),
        (["task.schedule={-1: {}}"], r"task\.schedule.*-1"),
        (["task.schedule={soon: {}}"], "valid integer"),
        (["task.schedule={5: {}, 5: {left_digits: 2}}"], '"5" is repeated'),
        (["task.schedule={5: {}}", "data.source=fixed", "data.size=4"], r"data\.source=fresh"),
        ([TINY, "data.source=fixed", "data.size=40"], "37 "),
        (["evaluate.oversize=0.5"], "greater than or equal to 1"),
        (["data.on_exhausted=never"], "restart"),
    ],
)
def test_invalid_data_config_fails_before_anything_is_written(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "a", *overrides)
    assert not (tmp_path / "a").exists()
