"""Going on: the same bits as without the interruption."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from proofs.resume import ROOT, SMALL, differing, result, train
from tests.train.interrupted import FEW, Crash, CrashesAt, crash, go_on
from transformers import AutoModelForCausalLM, AutoTokenizer

from glasshouse import config
from glasshouse.cli import main
from glasshouse.errors import RunError
from glasshouse.models import load
from glasshouse.store import RunDirectory
from glasshouse.store.run_directory import config_of
from glasshouse.train import Run


@pytest.mark.parametrize("what", [["steps", "--small"], ["kills", "--count", "8"]])
def test_really_killed_runs_go_on_bit_for_bit(what: list[str]) -> None:
    """A small part of `make resume-proof`."""
    command = [sys.executable, "-m", "proofs.resume", *what]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_comparison_would_see_a_difference(tmp_path: Path, whole: dict[str, object]) -> None:
    train(tmp_path / "other", None, (*FEW, "seed=1"))
    assert set(differing(tmp_path / "other", whole)) == {
        "weights", "optimizer", "metrics", "train", "validation",
    }  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ("learn.algorithm=dapo",),
        ("learn.lora_rank=2",),
        ("max_offpolicy_steps=1", "evaluate.every=2"),
        ("data.source=fixed", "data.size=6"),
        ("task.name=gym.chain_sum", "generate.max_tokens=8"),
        ("learn.epochs_per_batch=2", "learn.lr_schedule=linear", "learn.kl_coef=0.1"),
        ("task.schedule={0: {count: [2, 2]}, 4: {}}",),
        ("reward.shuffle=true", "learn.algorithm=reinforce"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_every_kind_of_run_goes_on_bit_for_bit(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    train(tmp_path / "whole", None, (*FEW, *overrides))
    crash(tmp_path / "cut", 3, *overrides)
    assert "resumed at 2" in go_on(tmp_path / "cut", *overrides)
    assert not differing(tmp_path / "cut", result(tmp_path / "whole"))


def test_before_the_first_checkpoint_it_starts_over(
    tmp_path: Path, whole: dict[str, object]
) -> None:
    crash(tmp_path / "a", 1)
    assert any("starts over" in sentence for sentence in go_on(tmp_path / "a"))
    assert not differing(tmp_path / "a", whole)


def test_killed_while_writing_its_configuration_it_begins_anew(
    tmp_path: Path, whole: dict[str, object]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".lock").touch()
    (tmp_path / "a" / ".config.yaml.tmp").write_text("seed: 0\nste")
    go_on(tmp_path / "a")
    assert not differing(tmp_path / "a", whole)


def test_a_longer_run_goes_on_as_if_it_had_been_meant(tmp_path: Path) -> None:
    train(tmp_path / "a", None, FEW)
    train(tmp_path / "b", None, (*FEW, "steps=8"))
    train(tmp_path / "a", None, (*FEW, "steps=8"))
    assert not differing(tmp_path / "a", result(tmp_path / "b"))


@pytest.mark.parametrize("override", ["max_offpolicy_steps=1", "learn.lr_schedule=linear"])
def test_a_longer_run_is_refused_where_it_would_have_been_another(
    tmp_path: Path, override: str
) -> None:
    """With a lag the step after the last was not generated ahead; a decay has ended."""
    train(tmp_path / "a", None, (*FEW, override))
    with pytest.raises(RunError, match=r"another configuration: steps \(5 → 8\)"):
        train(tmp_path / "a", None, (*FEW, override, "steps=8"))


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    train(tmp_path / "a", None, FEW)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}
    again = Run(config.load([], [*SMALL, *FEW, f"out={tmp_path / 'a'}"])).train()
    assert again["steps_done"] == 5
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}
    with pytest.raises(RunError, match="asks for fewer"):
        train(tmp_path / "a", None, (*FEW, "steps=3"))


def test_the_same_command_finds_its_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configured = config.load([], [*SMALL, *FEW])
    with pytest.raises(Crash):
        Run(configured, CrashesAt(3)).train()
    assert Run(configured).train()["run"] == "runs/sum_digits-grpo-1"
    assert Run(configured).train()["run"] == "runs/sum_digits-grpo-2"  # the first has ended
    with pytest.raises(Crash):
        Run(configured, CrashesAt(3)).train()
    other = config.load([], [*SMALL, *FEW, "seed=7"])
    assert Run(other).train()["run"] == "runs/sum_digits-grpo-4"  # not the third: other numbers


def test_another_configuration_is_refused_by_name_and_may_branch_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(tmp_path / "a", 3)
    with pytest.raises(RunError, match=r"learn\.lr .*0\.001.*0\.5.*--fork NEW learn\.lr="):
        train(tmp_path / "a", None, (*FEW, "learn.learning_rate=0.5"))
    command = ["resume", str(tmp_path / "a"), "--quiet", "--fork", str(tmp_path / "b")]
    assert main([*command, "learn.learning_rate=1e-4"]) == 0
    assert config_of(tmp_path / "b").learn.learning_rate == 1e-4
    assert config_of(tmp_path / "a").learn.learning_rate == 1e-3
    forked = result(tmp_path / "b")
    assert len(forked["metrics"]) == 5
    assert forked["train"][:32] == result(tmp_path / "a")["train"][:32]  # two steps in common
    assert main([*command, "learn.learning_rate=1e-4"]) == 2
    assert "already holds files" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "nowhere")]) == 2
    assert main(["resume", str(tmp_path / "a"), "--quiet"]) == 0


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    settings = config.load([], [*SMALL, *FEW])
    here = f"being written by process {os.getpid()}"
    with RunDirectory.open(tmp_path / "a", settings), pytest.raises(RunError, match=here):
        train(tmp_path / "a", None, FEW)
    train(tmp_path / "a", None, FEW)  # free again


def test_another_starting_model_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models" / "mock", tmp_path / "model")
    crash(tmp_path / "a", 3, f"model={tmp_path / 'model'}")
    policy = load(str(tmp_path / "model"))
    policy.weights()["model.norm.weight"] += 1
    policy.model.save_pretrained(tmp_path / "model")
    with pytest.raises(RunError, match=r"not the one that .* was started from"):
        go_on(tmp_path / "a", f"model={tmp_path / 'model'}")


def test_a_checkpoint_opens_with_plain_transformers_and_answers_the_same(tmp_path: Path) -> None:
    train(tmp_path / "a", None, (*FEW, "evaluate.problems=8"))
    last = tmp_path / "a" / "checkpoints" / "step-000005"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(last),
        AutoTokenizer.from_pretrained(last),
    )
    rows = [r for r in result(tmp_path / "a")["validation"] if r["step"] == 5]
    greedy = [r for r in rows if r["split"] == "validation/greedy"]
    assert len(greedy) == 8
    for row in greedy:
        chat = list(row["messages"])
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        given = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        assert given[0].tolist() == row["prompt_tokens"]
        answer = model.generate(given, do_sample=False, max_new_tokens=24, pad_token_id=0)
        assert answer[0, given.shape[1] :].tolist() == row["tokens"]
