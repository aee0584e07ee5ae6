"""`glasshouse sft`: a warm start on demonstrations that can be interrupted anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import glasshouse
from glasshouse.cli.app import main
from glasshouse.learn.learner import Gradients
from glasshouse.models.policy import load_policy
from glasshouse.training.recipes import load_recipe
from glasshouse.training.sft import DemonstrationLearner

MOCK = "models/mock"
RECIPE = """\
mixture:
  - {task: arithmetic, style: direct, modes: {direct: 0.5, guess: 0.5}, options: {steps: [1, 1]}}
  - {task: sum_digits, modes: {steps: 1}, weight: 0.5}
"""
STEPS = 5


def train(out: Path, *overrides: str, save_every: int = 2) -> glasshouse.SftResult:
    settings = [f"steps={STEPS}", "learn.learning_rate=1e-3", *overrides]
    return glasshouse.sft(
        MOCK, "leaked-hint-0", out, settings, batch_size=4, save_every=save_every, progress=False
    )


def die_at_step(number: int, last: int, start: Callable[[], object]) -> int:
    """Train in a child process that sends itself a signal in step `last`; return its exit code."""
    child = os.fork()
    if child == 0:
        compute = DemonstrationLearner.differentiate

        def compute_and_die(learner: DemonstrationLearner) -> Gradients:
            gradients = compute(learner)
            if learner.version == last:
                os.kill(os.getpid(), number)
            return gradients

        DemonstrationLearner.differentiate = compute_and_die  # type: ignore[method-assign]
        try:
            start()
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("override", ["learn.lora_rank=0", "learn.lora_rank=2"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_resumed_training_is_bitwise_equal(tmp_path: Path, override: str, number: int) -> None:
    whole = train(tmp_path / "whole", override).path
    out = tmp_path / "out"
    code = die_at_step(number, 3, lambda: train(out, override))
    assert code == (-9 if number == signal.SIGKILL else 130)
    assert not out.exists()
    saved = sorted(path.name for path in (tmp_path / "out.training" / "checkpoints").iterdir())
    assert saved[-1] == ("step-000002" if number == signal.SIGKILL else "step-000003")
    resumed = train(out, override).path
    for name in ("model.safetensors", "glasshouse.json", "README.md"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name
    assert not (tmp_path / "out.training").exists()


def test_result_is_a_model_with_a_card_that_trains_further(tmp_path: Path) -> None:
    result = train(tmp_path / "model", "learn.lora_rank=2", "steps=2")
    policy = load_policy(str(result.path))
    assert not hasattr(policy.model, "peft_config")
    assert policy.card["start_from"] == MOCK
    assert policy.card["lora_rank"] == 2
    assert policy.card["task_options"]["leaked_hint"]["cot"]["inner_task"] == "sum_digits"
    before = load_file(Path(MOCK) / "model.safetensors")
    after = load_file(result.path / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    overrides = {"model": str(result.path), "steps": 1, "out": str(tmp_path / "run")}
    overrides |= {"task.name": "leaked_hint", "data.groups_per_step": 1}
    overrides |= {"generate.max_tokens": 4, "evaluate.problems": 0}
    run = glasshouse.train(glasshouse.load_config(overrides=overrides), progress=False)
    assert run.outcome == "finished"


def test_the_loss_falls(tmp_path: Path) -> None:
    first = train(tmp_path / "first", "steps=1")
    last = train(tmp_path / "last", "steps=40", "learn.learning_rate=3e-3")
    assert last.loss < first.loss - 0.5


def test_kernel_and_shared_prompts_give_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("leaked-hint-0").model_copy(update={"batch_size": 4})
    by_kernel = DemonstrationLearner(load_policy(MOCK), recipe)
    monkeypatch.setattr("glasshouse.models.llama.open_kernel", lambda *_: None)
    by_torch = DemonstrationLearner(load_policy(MOCK), recipe)
    assert by_kernel.kernel
    losses = [learner.advance(learner.differentiate()) for learner in (by_kernel, by_torch)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(by_kernel.parameters, by_torch.parameters, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_phases_of_a_recipe_keep_their_shares() -> None:
    recipe = load_recipe("leaked-hint-0").with_steps(9)
    assert [phase.steps for phase in recipe.phases] == [5, 4]  # 500 and 400 in the recipe
    first, second = recipe.phases
    found = [recipe.phase_at(step) for step in (0, 4, 5, 8)]
    assert found == [(first, 0), (first, 4), (second, 0), (second, 3)]


def test_recipe_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    assert [entry.weight for entry in load_recipe(str(file)).phases[0].mixture] == [1.0, 0.5]
    result = glasshouse.sft(
        MOCK, str(file), tmp_path / "out", ["steps=1"], batch_size=2, progress=False
    )
    card = json.loads((result.path / "glasshouse.json").read_text())
    assert card["task_options"]["arithmetic"]["direct"] == {"steps": [1, 1]}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--recipe", "leaked-hnt-0"], "leaked-hint-0"),
        (["--recipe", "none.yaml"], "none.yaml"),
        (["--recipe", "typo.yaml"], "moddes"),
        (["--recipe", "mode.yaml"], '"direct"'),
        (["--recipe", "share.yaml"], "add up to 0.5"),
        (["--recipe", "task.yaml"], "arithmetic"),
        (["--recipe", "mock", "reward.shuffle=true"], "reward"),
        (["--recipe", "mock", "learn.kl_coef=1"], "learn.kl_coef"),
        (["--recipe", "mock", "learn.lora_rank=2", "learn.lora_targets=[q_prj]"], '"q_proj"'),
        (["--recipe", "mock", "device=cuda:9"], "cuda:9"),
        (["--recipe", "mock", "--batch-size", "0"], "--batch-size"),
        (["--recipe", "mock", "--batch-size", "1000000000000"], "--batch-size"),
        (["--recipe", "fifo.yaml"], "regular file"),
        (["--recipe", "empty.yaml"], "mixture"),
        (["--recipe", "base.yaml"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_model(
    arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    mock = str(Path(MOCK).resolve())
    monkeypatch.chdir(tmp_path)
    Path("typo.yaml").write_text(RECIPE.replace("modes: {direct", "moddes: {direct"))
    Path("mode.yaml").write_text(RECIPE.replace("modes: {direct", "modes: {dirct"))
    Path("share.yaml").write_text(RECIPE.replace("guess: 0.5", "guess: 0"))
    Path("task.yaml").write_text(RECIPE.replace("arithmetic", "arithmetik"))
    Path("empty.yaml").write_text("")
    Path("base.yaml").write_text("extends: nowhere")
    os.mkfifo("fifo.yaml")
    assert main(["sft", mock, "--out", "out", "--quiet", *arguments]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message
    assert not Path("out").exists()


def test_a_recipe_builds_the_same_weights_also_after_a_kill(tmp_path: Path) -> None:
    """From random weights, over two phases with an optimizer each, on any number of threads; the result is measured."""
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    entry = "[{task: sum_digits, modes: {steps: 1}, options: {count: [2, 2]}}]"
    file.write_text(
        "{hidden_size: 32, num_layers: 1, intermediate_size: 32, vocab_size: 300, batch_size: 2, phases: ["
        f"{{steps: 3, learning_rate: 5e-3, mixture: {entry}}},"
        f"{{steps: 2, learning_rate: 1e-3, mixture: {entry}}}]}}"
    )

    def build(out: Path, threads: int = 1) -> Path:
        settings = {"threads": threads}
        return glasshouse.sft("", str(file), out, settings, save_every=2, progress=False).path

    whole = build(tmp_path / "whole", threads=2)
    assert die_at_step(signal.SIGKILL, 4, lambda: build(out)) == -9
    resumed = build(out)
    for name in ("model.safetensors", "tokenizer.json", "README.md"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name
    card = load_policy(str(resumed)).card
    assert card["measured"][0]["problems"] > 0
    with pytest.raises(glasshouse.GlasshouseError, match="seed"):
        glasshouse.sft("", str(file), tmp_path / "other", {"seed": 1})
    file.write_text(RECIPE)
    with pytest.raises(glasshouse.GlasshouseError, match="MODEL"):
        build(tmp_path / "other")


def test_other_settings_do_not_continue_a_training_and_a_finished_one_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert die_at_step(signal.SIGKILL, 3, lambda: train(out)) == -9
    with pytest.raises(glasshouse.GlasshouseError, match=r"learn\.learning_rate"):
        train(out, "learn.learning_rate=2e-3")
    finished = train(out).path
    with pytest.raises(glasshouse.GlasshouseError, match="exists"):
        train(out)
    assert finished.exists()


def test_a_training_is_not_continued_from_a_changed_model_folder(tmp_path: Path) -> None:
    model, out = shutil.copytree(MOCK, tmp_path / "model"), tmp_path / "out"

    def start() -> object:
        return glasshouse.sft(
            str(model),
            "leaked-hint-0",
            out,
            ["steps=2"],
            batch_size=2,
            save_every=1,
            progress=False,
        )

    assert die_at_step(signal.SIGKILL, 1, start) == -9
    (model / "README.md").write_text("not a file that changes what it computes")
    template = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(template + " ")
    with pytest.raises(
        glasshouse.GlasshouseError, match=r"chat_template\.jinja \(model\): SHA-256"
    ):
        start()
    (model / "chat_template.jinja").write_text(template)
    start()
    assert out.exists()


def test_a_model_that_cannot_be_loaded_leaves_nothing(tmp_path: Path) -> None:
    arguments = ["--recipe", "mock", "--out", str(tmp_path / "out"), "--quiet", "steps=1"]
    assert main(["sft", str(tmp_path / "none"), *arguments]) == 2
    assert list(tmp_path.iterdir()) == []


def test_printed_commands_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "it's \x1b[2J\u202e [b]")
    command = ["sft", MOCK, "--recipe", "mock", "--out", out, "--batch-size", "2", "steps=1"]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["glasshouse", *command])
    with monkeypatch.context() as patch:
        patch.setattr(DemonstrationLearner, "differentiate", interrupt)
        assert main(command) == 130
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    shown = printed.err.split("continue with: ")[1].strip()
    assert split_in_bash(shown) == ["glasshouse", *command]
    assert main(command) == 0
    shown = capsys.readouterr().out.strip().rpartition("use it with ")[2]
    assert split_in_bash(shown) == [f"model={out}"]


def split_in_bash(command: str) -> list[str]:
    """What bash passes to a program."""
    script = f"printf '%s\\0' {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]
