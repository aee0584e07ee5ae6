"""Going on: the same bits as without the interruption, whatever interrupted, whatever is damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from glasshouse import config
from glasshouse.cli import main
from glasshouse.errors import RunError
from glasshouse.policy import load
from glasshouse.run import Run, interrupt
from glasshouse.run.display import Display
from glasshouse.store import RunDirectory, checkpoints
from glasshouse.store.rundir import config_of
from resume_proof import ROOT, SMALL, differing, result, train

FEW = ("steps=5", "checkpoints.every=2", "checkpoints.above=null", "checkpoints.best=false")


class Crash(BaseException):
    """A process that is suddenly gone, as far as this one can play that."""


class CrashesAt(Display):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.at:
            raise Crash


class Listens(Display):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, sentence: str) -> None:
        self.heard.append(sentence)

    def say(self, sentence: str) -> None:
        self.heard.append(sentence)

    def resumed(self, step: int, path: Path) -> None:
        self.heard.append(f"resumed at {step}")


def crash(out: Path, step: int, *overrides: str) -> None:
    with pytest.raises(Crash):
        train(out, CrashesAt(step), (*FEW, *overrides))


def go_on(out: Path, *overrides: str) -> list[str]:
    display = Listens()
    train(out, display, (*FEW, *overrides))
    return display.heard


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out, None, FEW)
    return result(out)


@pytest.mark.alone
@pytest.mark.parametrize("what", [["steps", "--small"], ["kills", "--count", "8"]])
def test_really_killed_runs_go_on_bit_for_bit(what: list[str]) -> None:
    """A small part of `make resume-proof`."""
    script = ROOT / "tests" / "resume_proof.py"
    command = [sys.executable, str(script), *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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
        ("lag=1", "evaluate.every=2"),
        ("data.source=fixed", "data.size=6"),
        ("task.name=gym.chain_sum", "generate.max_tokens=8"),
        ("learn.passes=2", "learn.decay=linear", "learn.kl=0.1"),
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


@pytest.mark.parametrize("override", ["lag=1", "learn.decay=linear"])
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
        train(tmp_path / "a", None, (*FEW, "learn.lr=0.5"))
    command = ["resume", str(tmp_path / "a"), "--quiet", "--fork", str(tmp_path / "b")]
    assert main([*command, "learn.lr=1e-4"]) == 0
    assert config_of(tmp_path / "b").learn.lr == 1e-4
    assert config_of(tmp_path / "a").learn.lr == 1e-3
    forked = result(tmp_path / "b")
    assert len(forked["metrics"]) == 5
    assert forked["train"][:32] == result(tmp_path / "a")["train"][:32]  # two steps in common
    assert main([*command, "learn.lr=1e-4"]) == 2
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


# --- signals ---------------------------------------------------------------------------------


class Sends(Display):
    """Sends signals to its own process: while it records step 3, or while it generates step 4."""

    def __init__(self, *signals: int) -> None:
        self.signals = signals

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == 3:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_whole_step(
    tmp_path: Path, whole: dict[str, object], number: int
) -> None:
    train(tmp_path / "a", Sends(number), FEW)
    summary = json.loads((tmp_path / "a" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] == 3
    assert (tmp_path / "a" / "checkpoints" / "step-000003").is_dir()
    assert "resumed at 3" in go_on(tmp_path / "a")
    assert not differing(tmp_path / "a", whole)


def test_a_signal_amid_generation_ends_there(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glasshouse.generate import TorchGenerator

    generate, calls = TorchGenerator._run, iter(range(100))

    def interrupted(self, *given):
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal did not end the generation")
        return generate(self, *given)

    monkeypatch.setattr(TorchGenerator, "_run", interrupted)
    train(tmp_path / "a", None, FEW)
    monkeypatch.undo()
    heard = go_on(tmp_path / "a")
    assert any(h.startswith("resumed at") for h in heard)
    assert not differing(tmp_path / "a", whole)


def test_a_second_signal_ends_at_once_and_the_exit_code_says_so(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glasshouse.run.display.Quiet", lambda: Sends(signal.SIGINT, signal.SIGINT))
    given = [*SMALL, *FEW, f"out={tmp_path / 'a'}"]
    assert main(["train", "--quiet", *given]) == 131
    monkeypatch.setattr("glasshouse.run.display.Quiet", lambda: Sends(signal.SIGINT))
    assert main(["train", "--quiet", *given]) == 130
    monkeypatch.undo()
    assert main(["train", "--quiet", *given]) == 0
    assert not differing(tmp_path / "a", whole)


def test_what_takes_too_long_is_not_waited_for(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "GRACE", 0.05)
    save = checkpoints.write

    def slow(*given):
        if given[1].step == 3:
            signal.pause()  # until the time is up
        return save(*given)

    monkeypatch.setattr(checkpoints, "write", slow)
    train(tmp_path / "a", Sends(signal.SIGTERM), FEW)
    monkeypatch.undo()
    assert not (tmp_path / "a" / "checkpoints" / "step-000003").exists()
    assert "resumed at 2" in go_on(tmp_path / "a")
    assert not differing(tmp_path / "a", whole)


# --- damage ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended after step 5, with checkpoints of steps 2 and 4."""
    out = tmp_path_factory.mktemp("cut") / "run"
    crash(out, 5)
    return out


FILES = (
    "chat_template.jinja", "config.json", "generation_config.json", "glasshouse.json",
    "learner.safetensors", "model.safetensors", "state.json", "sums.json", "tokenizer.json",
    "tokenizer_config.json",
)  # fmt: skip


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [flip, shorten, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_loudly(
    cut: Path, whole: dict[str, object], tmp_path: Path, file: str, damage
) -> None:
    out = tmp_path / "a"
    shutil.copytree(cut, out)
    newest = out / "checkpoints" / "step-000004"
    assert {p.name for p in newest.iterdir()} == set(FILES)
    damage(newest / file)
    assert main(["checkpoints", str(out), "--json"]) == 1
    heard = go_on(out)
    assert any("step-000004 is damaged and was passed over" in h for h in heard), heard
    assert "resumed at 2" in heard
    assert not differing(out, whole)


def test_without_any_valid_checkpoint_it_stops(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "a")
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        flip(path / "model.safetensors")
    record = (tmp_path / "a" / "results" / "rollouts" / "train.jsonl.zst").read_bytes()
    with pytest.raises(RunError, match=r"No checkpoint of .* is valid"):
        go_on(tmp_path / "a")
    assert (tmp_path / "a" / "results" / "rollouts" / "train.jsonl.zst").read_bytes() == record


PAYLOAD = (
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
    b"\x8c\x0etouch executed\x94\x85\x94R\x94."
)
"""Unpickled, it makes a file `executed`."""


@pytest.mark.parametrize("file", [*FILES, "pytorch_model.bin", "optimizer.pt", "training_args.bin"])
def test_a_planted_pickle_never_runs(
    cut: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one whose checksum was forged with it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cut, tmp_path / "a")
    newest = tmp_path / "a" / "checkpoints" / "step-000004"
    (newest / file).write_bytes(PAYLOAD)
    if file != "sums.json":
        sums = json.loads((newest / "sums.json").read_text())
        sums[file] = checkpoints._sum(newest / file)
        (newest / "sums.json").write_text(checkpoints._listing(sums))
    for attempt in (lambda: go_on(tmp_path / "a"), lambda: load(str(newest))):
        with suppress(RunError, OSError):  # refused in words, or passed over, or never looked at
            attempt()
    assert not (tmp_path / "executed").exists()


def test_the_payload_would_run_if_it_were_unpickled(tmp_path: Path) -> None:
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code], input=PAYLOAD, cwd=tmp_path, check=True)
    assert (tmp_path / "executed").exists()


# --- a full disk -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class Fills(Display):
    """Fills the disk after a step, all but so many bytes."""

    def __init__(self, disk: Path, step: int, leave: int) -> None:
        self.disk, self.at, self.leave = disk, step, leave

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.at:
            free = shutil.disk_usage(self.disk).free
            (self.disk / "filler").write_bytes(b"x" * max(0, free - self.leave))


def room_before(file: str, checkpoint: Path) -> int:
    """Bytes that let a checkpoint be written up to the middle of one of its files."""
    order = sorted(checkpoint.iterdir(), key=lambda p: p.stat().st_mtime_ns)
    pages = {p.name: -(-p.stat().st_size // 4096) for p in order}
    names = list(pages)
    return 4096 * (sum(pages[n] for n in names[: names.index(file)]) + pages[file] // 2)


@pytest.mark.parametrize("file", [*FILES, "a frame", "a frame's line"])
def test_a_full_disk_stops_the_run_and_loses_nothing(
    small_disk: Path, whole: dict[str, object], cut: Path, file: str
) -> None:
    """Step 4 saves a checkpoint, step 3 does not: there the next frame of the record is hit."""
    out = small_disk / "run"
    if file in FILES:
        fills = Fills(small_disk, 4, room_before(file, cut / "checkpoints" / "step-000004"))
    else:
        fills = Fills(small_disk, 3, 0 if file == "a frame" else 8192)
    with pytest.raises(OSError, match="No space left on device"):
        train(out, fills, FEW)
    held = checkpoints.listed(out / "checkpoints")
    assert [c.step for c in held if not c.faults] == [2]
    assert not [p for p in (out / "checkpoints").iterdir() if p.name != "step-000002"]
    (small_disk / "filler").unlink()
    go_on(out)
    assert not differing(out, whole)


def test_a_full_disk_is_a_sentence(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glasshouse.run.display.Quiet", lambda: Fills(small_disk, 4, 0))
    assert main(["train", "--quiet", *SMALL, *FEW, f"out={small_disk / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "The disk is full" in said
    assert "goes on from the last checkpoint" in said
