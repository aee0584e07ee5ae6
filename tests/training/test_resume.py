"""A resumed run is bitwise equal to an uninterrupted one, or resuming is refused with the reason."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from proofs.resume import (
    ROOT,
    SMALL,
    Result,
    check_kills_after_steps,
    check_random_kills,
    list_differences,
    load_result,
    train,
)
from safetensors.torch import load_file, save_file
from tests.training.short_runs import SHORT, CopyAtStep, Crash, CrashAtStep, SharedRuns, resume
from transformers import AutoModelForCausalLM, AutoTokenizer

import glasshouse
from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import RunError
from glasshouse.files import compute_checksum
from glasshouse.models.policy import load_policy
from glasshouse.runs import checkpoints
from glasshouse.runs.run_directory import RunDirectory, load_events
from glasshouse.runs.verify import verify_run
from glasshouse.tasks.problem_files import create_problem_file
from glasshouse.tasks.streams import Split
from glasshouse.training.run import TrainingRun

needs_fork = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="a process that used a GPU cannot fork; make proofs ONLY=resume",
)
pytestmark = pytest.mark.xdist_group("short runs")  # one worker makes the expensive fixtures once


@needs_fork
def test_resume_after_kill_is_bitwise_equal(tmp_path: Path) -> None:
    """A small part of `python -m proofs.resume steps`."""
    assert check_kills_after_steps(tmp_path, [(1,), (3,), (2, 4)], SHORT)


@needs_fork
def test_resume_after_kills_at_random_times_and_inside_writes_is_bitwise_equal(
    tmp_path: Path,
) -> None:
    """A small part of `python -m proofs.resume kills`."""
    assert check_random_kills(tmp_path, 6, 0, SHORT) == []


def test_comparison_detects_another_seed(tmp_path: Path, expected: Result) -> None:
    train(tmp_path / "other", None, (*SHORT, "seed=1"))
    assert set(list_differences(tmp_path / "other", expected)) == {
        "weights", "optimizer", "metrics", "train", "validation",
    }  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ("learn.algorithm=dapo",),
        ("learn.lora_rank=2",),
        ("max_offpolicy_steps=2", "evaluate.every=2"),
        ("data.source=fixed", "data.size=6"),
        ("task.name=gym.chain_sum", "generate.max_tokens=8"),
        ("learn.epochs_per_batch=2", "learn.lr_schedule=linear", "learn.kl_coef=0.1"),
        ("task.schedule={0: {count: [2, 2]}, 3: {}}",),
        ("reward.shuffle=true", "learn.algorithm=reinforce"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_every_type_of_run_resumes_bitwise_equal(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run, killed = tmp_path / "run", tmp_path / "killed"
    overrides = (*overrides, "steps=4")
    train(run, CopyAtStep(run, {3: killed}), (*SHORT, *overrides))
    assert "resumed at 2" in resume(killed, *overrides)
    assert not list_differences(killed, load_result(run))


def test_run_killed_before_its_first_checkpoint_starts_over(
    tmp_path: Path, shared_runs: SharedRuns
) -> None:
    run = shutil.copytree(shared_runs.killed[1], tmp_path / "run")
    messages = resume(run)
    assert not any("resumed" in message for message in messages)
    assert any("starts over" in message for message in messages), messages
    assert not list_differences(run, shared_runs.expected)


def test_run_killed_while_writing_its_configuration_starts_over(
    tmp_path: Path, expected: Result
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".config.yaml.tmp").write_text("seed: 0\nste")
    resume(tmp_path / "run")
    assert not list_differences(tmp_path / "run", expected)


def test_extended_run_equals_one_configured_with_that_length(
    tmp_path: Path, shared_runs: SharedRuns
) -> None:
    extended = shutil.copytree(shared_runs.finished, tmp_path / "extended")
    train(extended, None, (*SHORT, "steps=7"))
    train(tmp_path / "long", None, (*SHORT, "steps=7"))
    assert not list_differences(extended, load_result(tmp_path / "long"))


@pytest.mark.parametrize("override", ["max_offpolicy_steps=1", "learn.lr_schedule=linear"])
def test_extending_is_refused_where_the_result_would_differ(tmp_path: Path, override: str) -> None:
    """A run with max_offpolicy_steps did not generate beyond its last step; a schedule has ended."""
    run, overrides = tmp_path / "run", [*SMALL, *SHORT, override]
    RunDirectory(run, load_config([], [*overrides, f"out={run}"])).lock.close()
    with pytest.raises(RunError, match=r"steps \(5 → 8\)"):
        train(run, None, (*SHORT, override, "steps=8"))


def test_finished_run_is_not_trained_again(tmp_path: Path, shared_runs: SharedRuns) -> None:
    run = shutil.copytree(shared_runs.finished, tmp_path / "run")
    times = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert train(run, None, SHORT)["steps_done"] == 5
    assert times == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(RunError, match="steps=3"):
        train(run, None, (*SHORT, "steps=3"))


def test_same_command_resumes_its_run_and_then_starts_a_new_one(
    tmp_path: Path, shared_runs: SharedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, other = (load_config([], [*SMALL, *SHORT, f"seed={seed}"]) for seed in (0, 7))
    runs = [Path(f"runs/sum_digits-grpo-{number}") for number in (1, 2, 3)]
    shutil.copytree(shared_runs.killed[3], runs[0])
    assert TrainingRun(config).train()["run"] == str(runs[0])
    with pytest.raises(Crash):
        TrainingRun(config, CrashAtStep(1)).train()
    assert runs[1].exists()  # because the first is finished
    with pytest.raises(Crash):
        TrainingRun(other, CrashAtStep(1)).train()
    assert runs[2].exists()  # because the second has another configuration


def test_another_configuration_is_refused_by_key(killed_at_3: Path) -> None:
    key = r"learn\.learning_rate"
    with pytest.raises(RunError, match=rf"{key} .*0\.001.*0\.5.*out="):
        train(killed_at_3, None, (*SHORT, "learn.learning_rate=0.5"))
    assert main(["resume", str(killed_at_3 / "nowhere")]) == 2


def test_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    run, config = tmp_path / "run", load_config([], [*SMALL, *SHORT])
    with RunDirectory(run, config), pytest.raises(RunError, match=f"process {os.getpid()}"):
        train(run, None, SHORT)
    RunDirectory(run, config).lock.close()


SOURCES = [
    "model=model", "data.source=fixed", "data.file=train.jsonl", "evaluate.file={task}.jsonl",
    "imports=[my_reward.py, my_module]", "reward.terms={mine: 1}",
]  # fmt: skip
RESUME, TRAIN = ["resume", "run"], ["train", *SMALL, *SHORT, *SOURCES, "out=run"]
EVAL = ["eval", "run/checkpoints/step-000002"]
MONITOR = ["monitor", "run", "--problems", "2", "--first-and-last"]
COMMANDS = {
    "train.jsonl": [RESUME, TRAIN],
    "model/chat_template.jinja": [RESUME, TRAIN, MONITOR],
    "model/tokenizer.json": [RESUME, TRAIN, MONITOR],
    "model/config.json": [RESUME, TRAIN, MONITOR],
    "model/model.safetensors": [RESUME, TRAIN, MONITOR],
    "sum_digits.jsonl": [RESUME, TRAIN, EVAL, MONITOR],
    "my_reward.py": [RESUME, TRAIN, EVAL, MONITOR],
    "my_module.py": [RESUME, TRAIN, EVAL, MONITOR],
    "compute path": [RESUME, TRAIN, EVAL, MONITOR],
}


@pytest.fixture(scope="module")
def killed_with_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a killed run and everything that it was made from."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "models" / "mock", folder / "model")
    for split, name in ((Split.TRAIN, "train"), (Split.VALIDATION, "sum_digits")):
        create_problem_file("sum_digits", {}, split, 20, 1, 0, folder / f"{name}.jsonl")
    (folder / "my_module.py").touch()
    (folder / "my_reward.py").write_text(
        "from glasshouse import reward\n\n\n@reward('mine')\ndef mine(rollout):\n    return 1.0\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(Crash):
            train(Path("run"), CrashAtStep(3), (*SHORT, *SOURCES))
    return folder


@pytest.fixture
def files(killed_with_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = shutil.copytree(killed_with_files, tmp_path / "copy")
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(copy)
    monkeypatch.delitem(sys.modules, "my_module")
    return copy


def change_file(file: Path) -> tuple[str, str]:
    """Change a file but not its meaning; returns the beginning of both hashes."""
    before = compute_checksum(file)["sha256"]
    if file.suffix == ".safetensors":
        save_file(load_file(file), file, {"format": "pt", "changed": "yes"})
    else:
        file.write_text(file.read_text() + "\n")
    return before[:12], compute_checksum(file)["sha256"][:12]


def read_files(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("source", COMMANDS)
def test_a_run_whose_source_changed_is_refused_and_stays_as_it_is(
    files: Path, source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = "kernel for small models", "transformers"
    if source == "compute path":
        monkeypatch.setattr("glasshouse.models.sources.is_llama_family", lambda config: False)
    else:
        parts = change_file(files / source)
    before = read_files(files / "run")
    for command in COMMANDS[source]:
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert all(part in error for part in (Path(source).name, *parts)), error
    assert read_files(files / "run") == before


def test_a_changed_source_can_be_named_accepted_or_restored(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "sum_digits.jsonl"
    content = (files / name).read_text()
    old, new = change_file(files / name)
    assert main([*EVAL, f"evaluate.file={name}"]) == 0
    (files / name).write_text(content)
    assert main([*EVAL]) == 0
    change_file(files / name)
    assert main([*RESUME, "--quiet", "--accept-changes"]) == 0
    events = load_events(files / "run", "accepted_change")
    assert [old in event["text"] and new in event["text"] for event in events] == [True]
    assert main([*EVAL]) == 2  # this checkpoint is from before the change
    (files / "moved").mkdir()
    shutil.move(files / "my_reward.py", files / "moved")
    assert main([*RESUME, "--quiet", "steps=6", "imports=[moved/my_reward.py, my_module]"]) == 0
    assert main([*MONITOR, "--json"]) == 0


def test_checkpoint_loads_with_plain_transformers_and_gives_the_same_completions(
    shared_runs: SharedRuns,
) -> None:
    last = shared_runs.finished / "checkpoints" / "step-000005"
    model = AutoModelForCausalLM.from_pretrained(last)
    tokenizer = AutoTokenizer.from_pretrained(last)
    rows = [r for r in shared_runs.expected["validation"] if r["step"] == 5]
    greedy = [r for r in rows if r["split"] == "validation/greedy"]
    assert len(greedy) == 4
    for row in greedy:
        chat = list(row["messages"])
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        assert prompt[0].tolist() == row["prompt_tokens"]
        tokens = model.generate(prompt, do_sample=False, max_new_tokens=24, pad_token_id=0)
        assert tokens[0, prompt.shape[1] :].tolist() == row["tokens"]


def test_finished_run_is_extended_only_by_resume_with_steps_and_keeps_its_old_end(
    tmp_path: Path,
) -> None:
    settings = [*SMALL, *SHORT, f"out={tmp_path / 'run'}", "checkpoints.keep=[previous, last]"]
    glasshouse.train(load_config(overrides=[*settings, "steps=2"]), progress=False)
    with pytest.raises(RunError, match="steps=4"):
        glasshouse.train(load_config(overrides=[*settings, "steps=4"]), progress=False)
    glasshouse.resume(tmp_path / "run", {"steps": 5, "checkpoints.every": 1}, progress=False)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000002", "step-000004", "step-000005"]


@pytest.mark.parametrize(
    ("keep", "kept"), [("all", [1, 2, 3, 4, 5, 6, 7]), ("{every: 2}", [1, 2, 4, 6, 7])]
)
def test_checkpoints_at_even_steps_stay_across_a_resume(
    tmp_path: Path, keep: str, kept: list[int]
) -> None:
    overrides = [*SMALL, *SHORT, f"out={tmp_path}", "steps=7", "checkpoints.every=1"]
    config = load_config(overrides=[*overrides, f"checkpoints.keep={keep}"])
    with pytest.raises(Crash):
        TrainingRun(config, CrashAtStep(5)).train()
    glasshouse.resume(tmp_path, progress=False)
    assert checkpoints.list_steps(tmp_path / "checkpoints") == kept


def test_checkpoints_with_adapters_only_equal_merged_ones(tmp_path: Path) -> None:
    overrides = [*SMALL, *SHORT, "learn.lora_rank=2", "learn.learning_rate=0.1"]
    merged, small = tmp_path / "merged", tmp_path / "small"
    glasshouse.train(load_config(overrides=[*overrides, f"out={merged}"]), progress=False)
    overrides += [f"out={small}", "checkpoints.merge_adapters=false"]
    with pytest.raises(Crash):
        TrainingRun(load_config(overrides=overrides), CrashAtStep(4)).train()
    glasshouse.resume(small, progress=False)
    last = "checkpoints/step-000005"
    assert not (small / last / "model.safetensors").exists()
    expected, found = (load_policy(str(run / last)).weights() for run in (merged, small))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in found)
    listed = checkpoints.list_checkpoints(small / "checkpoints")
    assert len({checkpoint.weights_sha256 for checkpoint in listed}) == 3
    (small / last / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    [damage] = verify_run(small).damage
    assert "adapter_model.safetensors" in str(damage)
