"""No command gives a wrong result in silence after a bit has flipped or a file was cut short."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from proofs.bit_flips import call, cut_short, flip_bit, list_files
from proofs.resume import Result, list_differences, train
from proofs.run_commands import COMMANDS
from safetensors.torch import load_file, save_file
from tests.training.short_runs import CHECKPOINT_FILES, SHORT, Crash, SharedRuns, resume

from glasshouse.cli.app import main
from glasshouse.config.loading import parse_yaml
from glasshouse.errors import RunDataError, RunError
from glasshouse.files import (
    add_check,
    compute_checksum,
    format_checksums,
    parse_checked,
    write_checksums,
)
from glasshouse.models.policy import load_policy
from glasshouse.runs import checkpoints
from glasshouse.runs.rollout_log import LOG, RolloutReader, scan_log
from glasshouse.runs.rows import kind_of
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.runs.verify import verify_run
from glasshouse.training.display import Display

pytestmark = pytest.mark.xdist_group("short runs")  # one worker makes the expensive fixtures once


@pytest.fixture
def finished(shared_runs: SharedRuns, tmp_path: Path) -> Path:
    return shutil.copytree(shared_runs.finished, tmp_path / "finished")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


# --- check ---------------------------------------------------------------------------------------


def test_intact_runs_are_sound(
    finished: Path, killed_at_5: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(finished)]) == 0
    assert "sound" in capsys.readouterr().out
    assert main(["check", str(killed_at_5)]) == 0
    assert main(["check", str(tmp_path)]) == 2
    moved = finished.rename(tmp_path / "moved")
    assert main(["check", str(moved)]) == 0


def test_any_flipped_bit_or_cut_file_is_reported_or_harmless(
    finished: Path, tmp_path: Path
) -> None:
    """A tiny version of proofs/bit_flips.py: the commands that only read."""
    rng = random.Random(7)
    files = [file.relative_to(finished) for file in list_files(finished)]
    intact = call("rollouts", str(finished), "--json")[:2]
    metrics, summary = load_metrics(finished), load_summary(finished)
    config = (finished / "config.yaml").read_bytes()
    for number in range(30):
        name = rng.choice(files)
        saved = (finished / name).read_bytes()
        damage = (flip_bit if number < 20 else cut_short)(finished / name, rng)
        code, output, _ = call("check", str(finished))
        named = code == 1 and name.name.split(".")[0] in output.replace("/", " ")
        assert code in (0, 1), (name, damage, output)
        assert named or code == 0 or name.parts[0] == "checkpoints" or "rollouts" in name.parts
        if code == 0:  # not a change of anything that is read
            readable = call("rollouts", str(finished), "--json")[:2]
            assert (readable, load_metrics(finished)) == (intact, metrics), (name, damage)
            assert load_summary(finished) == summary
            assert "checkpoints" not in name.parts
        (finished / name).write_bytes(saved)
    assert (finished / "config.yaml").read_bytes() == config


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seed: 0", "seed: 1", "seed"),
        ("learning_rate: 0.001", "learning_rate: 0.003", "learning_rate"),
    ],
)
def test_resume_refuses_a_changed_configuration_by_key(
    killed_at_5: Path, old: str, new: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(killed_at_5 / "config.yaml", old, new)
    assert main(["resume", str(killed_at_5), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert key in message
    assert "config.yaml" in message
    assert main(["check", str(killed_at_5)]) == 1
    assert main(["rollouts", str(killed_at_5)]) == 0  # still readable
    replace(killed_at_5 / "config.yaml", new, old)
    assert main(["check", str(killed_at_5)]) == 0


def test_empty_or_cut_configuration_is_refused_and_the_copy_in_a_checkpoint_restores_it(
    killed_at_5: Path, expected: Result
) -> None:
    file = killed_at_5 / "config.yaml"
    os.truncate(file, 0)
    assert main(["resume", str(killed_at_5), "--quiet"]) == 2
    state = json.loads((killed_at_5 / "checkpoints" / "step-000004" / "state.json").read_text())
    file.write_text(json.dumps(state["config"]))
    resume(killed_at_5)
    assert not list_differences(killed_at_5, expected)


def test_changed_free_key_is_kept_after_a_resume(killed_at_5: Path) -> None:
    """The checksum, not the checkpoint, decides: the run wrote the new value itself."""
    assert main(["resume", str(killed_at_5), "--quiet", "checkpoints.every=3"]) == 0
    assert parse_yaml((killed_at_5 / "config.yaml").read_text())["checkpoints"]["every"] == 3
    assert verify_run(killed_at_5).is_sound


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "chat_template.jinja", "tokenizer.json"])
def test_eval_refuses_a_damaged_checkpoint_by_file(
    finished: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = finished / "checkpoints" / "step-000005"
    flip_bit(checkpoint / file, random.Random(0))
    assert main(["eval", str(checkpoint), "evaluate.problems=2"]) == 2
    assert file in capsys.readouterr().err


def test_checkpoint_without_checksums_is_refused_and_a_plain_model_is_not(
    finished: Path, tmp_path: Path
) -> None:
    checkpoint = finished / "checkpoints" / "step-000005"
    (checkpoint / "checksums.json").unlink()
    with pytest.raises(OSError, match=r"checksums\.json"):
        load_policy(str(checkpoint))
    for name in ("state.json", "learner.safetensors"):
        (checkpoint / name).unlink()
    load_policy(str(checkpoint))


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("file", "forge", "named"),
    [
        ("model", lambda tensors: {**tensors, EMBEDDING: torch.ones(1)}, "embed_tokens"),
        ("model", lambda tensors: {n: t.half() for n, t in tensors.items()}, "float16"),
        ("learner", lambda tensors: {}, "exp_avg"),
    ],
)
def test_forged_checkpoint_with_correct_checksums_is_refused(
    killed_at_5: Path, file: str, forge, named: str
) -> None:
    checkpoint = killed_at_5 / "checkpoints" / "step-000004"
    path = checkpoint / f"{file}.safetensors"
    save_file(forge(load_file(path)), path, {"format": "pt"})
    checksums = json.loads((checkpoint / "checksums.json").read_text())
    checksums[path.name] = compute_checksum(path)
    (checkpoint / "checksums.json").write_text(format_checksums(checksums))
    assert not checkpoints.verify_checkpoint(checkpoint)
    with pytest.raises(RunError, match=named):
        resume(killed_at_5)


def test_fifo_and_odd_folder_names_are_no_checkpoints(killed_at_5: Path) -> None:
    folder = killed_at_5 / "checkpoints"
    (folder / "step-²").mkdir()
    (folder / "step-000004" / "state.json").unlink()
    os.mkfifo(folder / "step-000004" / "state.json")
    assert [(c.step, bool(c.damage)) for c in checkpoints.list_checkpoints(folder)] == [
        (2, False), (4, True)]  # fmt: skip
    assert main(["check", str(killed_at_5)]) == 1


# --- derived files -------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["summary.json", "metrics.jsonl", "events.jsonl"])
def test_bad_byte_in_a_derived_file_is_named_and_read_around(
    finished: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "results" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 3] = 0xFF
    path.write_bytes(data)
    assert main(["report", str(finished), "--out", str(finished / "page.html")]) == 0
    assert file in capsys.readouterr().err
    assert file in (finished / "page.html").read_text()


def test_commands_that_draw_or_measure_from_metrics_name_their_damage(finished: Path) -> None:
    """A line that is left out would change a curve or a median without a word."""
    file = finished / "results" / "metrics.jsonl"
    intact = file.read_bytes()
    changed = intact.replace(b'"step": 2', b'"step": 3')
    shortened = intact[: intact.rstrip(b"\n").rfind(b"\n") + 1]  # whole lines are left
    for data, message in ((changed, "is damaged in line 2"), (shortened, "has lost")):
        file.write_bytes(data)
        for name in ("figure", "track", "view"):
            outcome = COMMANDS[name](finished)
            assert outcome.code == 0, (name, outcome.errors)
            assert f"metrics.jsonl {message}" in outcome.errors, name


def test_view_shows_the_configuration_of_the_checkpoint_and_names_damage(finished: Path) -> None:
    replace(finished / "config.yaml", "seed: 0", "seed: x")
    log = finished / "results" / LOG
    log.write_bytes(log.read_bytes().replace(b'"step": 2', b'"step": 3', 1))
    shown = COMMANDS["view"](finished)
    assert shown.code == 0
    assert "config.yaml" in shown.errors
    assert "train, step 2: 1 step is in metrics.jsonl but not in the rollout log" in shown.errors
    assert json.loads(shown.output.splitlines()[1])["seed"] == 0


def test_damaged_summary_is_written_again_by_resume(finished: Path) -> None:
    summary = load_summary(finished)
    replace(finished / "results" / "summary.json", '"steps_done": 5', '"steps_done": 4')
    assert load_summary(finished) is None
    assert any("summary.json" in message for message in resume(finished))
    again = load_summary(finished)
    assert again is not None
    assert summary is not None
    assert again["after"] == summary["after"]
    assert verify_run(finished).is_sound


def test_resume_continues_with_damaged_metrics(killed_at_5: Path, expected: Result) -> None:
    file = killed_at_5 / "results" / "metrics.jsonl"
    replace(file, '"step": 2', '"step": 3')
    assert any("metrics.jsonl" in message for message in resume(killed_at_5))
    assert list_differences(killed_at_5, expected) == ["metrics"]
    assert [row["step"] for row in load_metrics(killed_at_5)] == [1, 3, 4, 5]


def test_changed_digit_or_checksum_key_is_detected() -> None:
    line = json.dumps(add_check({"step": 1, "levels": {10: 0.5, 9: 0.25}}))
    assert parse_checked(line) == {"step": 1, "levels": {"10": 0.5, "9": 0.25}}
    assert parse_checked('{"step": 1}') == {"step": 1}  # written without a checksum
    for old, new in (("0.25", "0.35"), ("check", "chfck"), ("step", "stfp")):
        with pytest.raises(RunDataError):
            parse_checked(line.replace(old, new))


# --- rollout log ---------------------------------------------------------------------------------


def test_damaged_old_frame_is_named_at_resume_and_training_ends_with_a_summary(
    killed_at_5: Path, expected: Result
) -> None:
    frame = next(f for f in scan_log(killed_at_5 / "results" / LOG).frames if f.kind == "train")
    data = bytearray(frame.file.read_bytes())
    data[frame.end - 40] ^= 1
    frame.file.write_bytes(data)
    messages = resume(killed_at_5)
    assert any("train, step 1" in message for message in messages), messages
    assert load_summary(killed_at_5)["steps_done"] == 5
    weights = killed_at_5 / "checkpoints" / "step-000005" / "model.safetensors"
    assert weights.read_bytes() == expected["weights"]
    assert main(["check", str(killed_at_5)]) == 1


def test_saved_frame_that_was_cut_off_is_lost_but_the_others_stay(killed_at_5: Path) -> None:
    log = killed_at_5 / "results" / LOG
    frame = next(f for f in scan_log(log).frames if (f.kind, f.step) == ("train", 4))
    os.truncate(log, frame.end - 10)  # inside step 4, which the checkpoint of step 4 holds
    assert main(["check", str(killed_at_5)]) == 1
    messages = resume(killed_at_5)
    assert any("train, step 4" in message for message in messages), messages
    reader = RolloutReader(killed_at_5)
    steps = {row["step"] for row in reader.iter_rows() if kind_of(row["split"]) == "train"}
    assert steps == {1, 2, 3, 5}
    assert len(reader.damage) == 1
    assert main(["check", str(killed_at_5)]) == 1


def flip_middle_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def remove_last_byte(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


DAMAGES = (flip_middle_bit, remove_last_byte, Path.unlink)


@pytest.mark.parametrize("file", CHECKPOINT_FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_any_file_of_a_checkpoint_is_detected(
    killed_at_5: Path, file: str, damage
) -> None:
    newest = killed_at_5 / "checkpoints" / "step-000004"
    assert {path.name for path in newest.iterdir()} == {*CHECKPOINT_FILES}
    damage(newest / file)
    valid, damaged = checkpoints.newest_checkpoint(killed_at_5 / "checkpoints")
    assert valid is not None
    assert (valid.step, [c.step for c in damaged]) == (2, [4])
    if file != "checksums.json":  # a flipped bit there is a wrong checksum of another file
        assert file in damaged[0].damage[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_with_a_warning(
    killed_at_5: Path, expected: Result, damage
) -> None:
    damage(killed_at_5 / "checkpoints" / "step-000004" / "model.safetensors")
    assert main(["check", str(killed_at_5)]) == 1
    messages = resume(killed_at_5)
    assert any("step-000004 is damaged" in message for message in messages), messages
    assert "resumed at 2" in messages
    assert not list_differences(killed_at_5, expected)


@pytest.mark.parametrize("name", ["validation.jsonl", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_files_are_named_and_written_again(
    killed_at_5: Path, expected: Result, damage, name: str
) -> None:
    file = killed_at_5 / "data" / name
    intact = file.read_bytes()
    assert verify_run(killed_at_5).is_sound
    damage(file)
    if name == "manifest.json" and damage is not flip_middle_bit:
        return  # older runs have none, and its last byte is a line end
    assert [item.file for item in verify_run(killed_at_5).damage] == [f"data/{name}"]
    if damage is flip_middle_bit:
        messages = resume(killed_at_5)
        assert any(f"data/{name} is damaged" in message for message in messages), messages
        assert not list_differences(killed_at_5, expected)
        if name == "validation.jsonl":
            assert file.read_bytes() == intact
        assert verify_run(killed_at_5).is_sound


def test_without_a_valid_checkpoint_the_run_stops_and_changes_nothing(killed_at_5: Path) -> None:
    for path in (killed_at_5 / "checkpoints").iterdir():
        flip_middle_bit(path / "model.safetensors")
    log = killed_at_5 / "results" / LOG
    data = log.read_bytes()
    with pytest.raises(RunError, match=r"No checkpoint of .* is valid"):
        resume(killed_at_5)
    assert log.read_bytes() == data


PAYLOAD = (
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
    b"\x8c\x0etouch executed\x94\x85\x94R\x94."
)
"""A pickle that creates a file `executed` when it is loaded."""


class StopWhenReady(Display):
    """Stops after the checkpoint is restored, before training."""

    def resumed(self, *arguments: object) -> None:
        raise Crash


@pytest.mark.parametrize(
    "file", [*CHECKPOINT_FILES, "pytorch_model.bin", "optimizer.pt", "training_args.bin"]
)
def test_planted_pickle_is_never_executed(
    killed_at_5: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its checksum was forged."""
    monkeypatch.chdir(killed_at_5)
    newest = killed_at_5 / "checkpoints" / "step-000004"
    (newest / file).write_bytes(PAYLOAD)
    if file != "checksums.json":
        (newest / "checksums.json").unlink()
        write_checksums(newest)
    with suppress(RunError, OSError, Crash):
        train(killed_at_5, StopWhenReady(), SHORT)
    with suppress(RunError, OSError):
        load_policy(str(newest))
    assert not (killed_at_5 / "executed").exists()
