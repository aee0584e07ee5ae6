"""Model folders and problem files that should be refused: see proofs/hostile_files.py."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

MOCK = Path(__file__).resolve().parents[1] / "models" / "mock"
SMALL = [
    "evaluate.problems=2",
    "evaluate.samples=0",
    "generate.max_tokens=8",
    "data.groups_per_step=2",
]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def copy_model(folder: Path) -> Path:
    """A model that can be used; the variations damage it."""
    model = folder / "model"
    shutil.copytree(MOCK, model)
    (model / "SHA256SUMS").unlink()
    return model


def use(variation: int, *, loads_weights: bool = False) -> list[str]:
    """The arguments of a command that uses the model."""
    commands = [
        ["eval", "model", *SMALL],
        ["train", "model=model", "steps=1", "out=run", *SMALL],
        ["train", "--dry-run", "model=model"],
    ]
    return commands[variation % (2 if loads_weights else 3)]


def edit_json(file: Path, values: dict[str, Any]) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | values))


# --- what is a program -------------------------------------------------------------------------


def template_that_loops(folder: Path, variation: int) -> list[str]:
    conditions = (
        "true",
        "messages[-1].role == 'assistant'",
        "not add_generation_prompt",
        "add_generation_prompt",
        "messages[0].role == 'system'",
        "messages | length == 1",
        "messages | length > 2",
        "messages[-1].role == 'user'",
        "messages[0].content",
        "messages[0].role == 'user'",
    )
    template = f"{{% if {conditions[variation]} %}}{LOOP}{{% endif %}}"
    (copy_model(folder) / "chat_template.jinja").write_text(template)
    return use(variation)


def template_that_expands(folder: Path, variation: int) -> list[str]:
    texts = (
        "'x' * 2000000",
        "'x' * 99999999999",
        "('x' * 99999) * 99999",
        "range(99999) | join(range(99) | join)",
        "messages[0].content * 9999999",
        "'%1999999s' % 1",
        "'x' | center(1999999)",
        "'x' * 9999999 * 9999999",
        "(range(99999) | list) * 99",
        "(range(99999) | list) * 99999",
    )
    (copy_model(folder) / "chat_template.jinja").write_text(f"{{{{ {texts[variation]} }}}}")
    return use(variation)


def tokenizer_that_expands(folder: Path, variation: int) -> list[str]:
    letter, content = " aeio"[variation % 5], ("{0}{0}", "{0}b{0}")[variation // 5]
    step = {"type": "Replace", "pattern": {"String": letter}, "content": content.format(letter)}
    normalizer = {"type": "Sequence", "normalizers": [step] * (28 + variation)}
    edit_json(copy_model(folder) / "tokenizer.json", {"normalizer": normalizer})
    return use(variation)


def tokenizer_of_another_model(folder: Path, variation: int) -> list[str]:
    edit_json(copy_model(folder) / "config.json", {"vocab_size": 1 + 4 * variation})
    return use(variation)


def code_in_the_folder(folder: Path, variation: int) -> list[str]:
    model = copy_model(folder)
    file, part = (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer"))[
        variation % 2
    ]
    values = {
        "auto_map": {part: "code.C", "AutoModelForCausalLM": "code.M"},
        "model_type": f"odd{variation}",
    }
    edit_json(model / file, values)
    edit_json(model / "config.json", {"model_type": f"odd{variation}"})
    (model / "code.py").write_text("raise SystemExit(7)")
    return use(variation, loads_weights=True)


# --- what is a description ---------------------------------------------------------------------


def absurd_architecture(folder: Path, variation: int) -> list[str]:
    values: tuple[dict[str, Any], ...] = (
        {"num_hidden_layers": 1_000_000},
        {"hidden_size": 10**12},
        {"num_attention_heads": 10**9},
        {"intermediate_size": 10**15},
        {"vocab_size": 10**10},
        {"num_hidden_layers": "many"},
        {"hidden_size": -4},
        {"num_attention_heads": 0},
        {"head_dim": 10**9},
        {"num_hidden_layers": 10**30},
    )
    edit_json(copy_model(folder) / "config.json", values[variation])
    return use(variation, loads_weights=True)


def wrong_end_token(folder: Path, variation: int) -> list[str]:
    values: tuple[Any, ...] = (
        [0, 1, "x"],
        "x",
        1.5,
        [None, {}],
        {"a": 1},
        -1,
        [[1]],
        True,
        [0, -5],
        [2.0],
    )
    file = ("config.json", "generation_config.json")[variation % 2]
    edit_json(copy_model(folder) / file, {"eos_token_id": values[variation]})
    return use(variation)


def wrong_model_card(folder: Path, variation: int) -> list[str]:
    values: tuple[Any, ...] = (
        [1],
        "x",
        3,
        None,
        {"sum_digits": [1]},
        {"sum_digits": {"cot": 3}},
        {"sum_digits": "x"},
        {"sum_digits": {"cot": None}},
        {"sum_digits": {"cot": {"count": "x"}}},
        {"sum_digits": {"cot": {"nothing": 1}}},
    )
    edit_json(copy_model(folder) / "glasshouse.json", {"task_options": values[variation]})
    return use(variation)


def cut_description(folder: Path, variation: int) -> list[str]:
    names = (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "glasshouse.json",
    )
    file = copy_model(folder) / names[variation % 5]
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if variation < 5 else b"[" * 100_000)
    return use(variation, loads_weights=True)


def not_a_regular_file(folder: Path, variation: int) -> list[str]:
    names = (
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
        "glasshouse.json",
    )
    file = copy_model(folder) / names[variation % 5]
    file.unlink()
    if variation < 5 or file.name in ("chat_template.jinja", "glasshouse.json"):
        os.mkfifo(file)
    else:
        file.mkdir()
    return use(variation, loads_weights=True)


# --- weights -----------------------------------------------------------------------------------


def cut_weights(folder: Path, variation: int) -> list[str]:
    file = copy_model(folder) / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * variation // 10])
    return use(variation, loads_weights=True)


def change_tensor(folder: Path, variation: int, change: Any) -> list[str]:
    """Change or remove one tensor of the weights."""
    file = copy_model(folder) / "model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[variation % len(tensors)]
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    return use(variation, loads_weights=True)


def missing_tensor(folder: Path, variation: int) -> list[str]:
    return change_tensor(folder, variation, lambda tensor: None)


def tensor_of_another_shape(folder: Path, variation: int) -> list[str]:
    return change_tensor(folder, variation, lambda tensor: tensor[..., :-1].clone())


def tensor_that_is_not_finite(folder: Path, variation: int) -> list[str]:
    return change_tensor(
        folder, variation, lambda tensor: tensor * (math.nan, math.inf)[variation % 2]
    )


def index_outside_the_folder(folder: Path, variation: int) -> list[str]:
    model = copy_model(folder)
    names = list(load_file(model / "model.safetensors"))
    outside = (
        "../secret.safetensors",
        "/etc/passwd",
        "../../x.safetensors",
        "nowhere.safetensors",
        "",
    )[variation % 5]
    (model / "model.safetensors").rename(folder / "secret.safetensors")
    save_file({}, model / "other.safetensors")
    weight_map: Any = dict.fromkeys(names, outside) if variation < 5 else [outside]
    edit_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return use(variation, loads_weights=True)


class Tripwire:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


def pickled_weights_only(folder: Path, variation: int) -> list[str]:
    model = copy_model(folder)
    (model / "model.safetensors").unlink()
    name = (
        "pytorch_model.bin",
        "model.pt",
        "model.pkl",
        "pytorch_model-00001-of-00001.bin",
        "model.ckpt",
    )[variation % 5]
    (model / name).write_bytes(pickle.dumps(Tripwire()))
    return use(variation)


# --- problem files -----------------------------------------------------------------------------


def train_on(folder: Path, rows: Sequence[Any], variation: int, *, cut: int = 0) -> list[str]:
    """Write a problem file; the arguments that train or evaluate on it."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder / "problems.jsonl").write_text(text[: len(text) - cut])
    key = ("data.source=fixed data.file", "evaluate.file")[variation % 2]
    command = (["train", "steps=1", "out=run"], ["train", "--dry-run"])[variation // 2 % 2]
    return [*command, f"model={MOCK}", *SMALL, *f"{key}=problems.jsonl".split()]


def make_problems(count: int = 40) -> list[dict[str, Any]]:
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(count)]
    return [row | {"task": "sum_digits"} for row in rows]


def gold_that_cannot_be_graded(folder: Path, variation: int) -> list[str]:
    rows = make_problems()
    answers = ("many", "", "12 apples", "1/0", "x = 3", "1, 2", "NaN", "infinity", "3-4", "…")
    rows[7 + variation] |= {"answer": answers[variation], "kind": "number"}
    return train_on(folder, rows, variation)


def contradicting_answers(folder: Path, variation: int) -> list[str]:
    rows = make_problems() + [{"question": "What is 7 + 1?", "answer": str(n)} for n in range(60)]
    kind = ("number", "text", "choice")[variation % 3]
    return train_on(folder, [row | {"kind": kind} for row in rows], variation)


def evaluation_inside_training(folder: Path, variation: int) -> list[str]:
    rows, first = make_problems(), 3 * variation
    held_out = [{**row, "question": row["question"].upper()} for row in rows[first : first + 10]]
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    overrides = ["data.source=fixed", "data.file=problems.jsonl", "evaluate.file=held_out.jsonl"]
    return [*train_on(folder, rows, variation), *overrides]


def cut_problem_file(folder: Path, variation: int) -> list[str]:
    return train_on(folder, make_problems(), variation, cut=3 + 4 * variation)


def wrong_problem_row(folder: Path, variation: int) -> list[str]:
    rows: list[Any] = [
        "[" * 100_000,
        '{"question": "\\ud800", "answer": "1"}',
        {"question": 3, "answer": "1"},
        {"question": "x" * 100_001, "answer": "1"},
        {"question": "?", "answer": "1" * 10_001},
        {"question": "?", "answer": 1.5},
        {"question": "?"},
        "[1, 2]",
        {"question": "?", "answer": "1", "decimals": 10**9},
        {"question": "?", "answer": "1", "meta": {"x": math.nan}},
    ]
    return train_on(folder, [*make_problems(), rows[variation]], variation)


REFUSED = (
    template_that_loops,
    template_that_expands,
    tokenizer_that_expands,
    tokenizer_of_another_model,
    code_in_the_folder,
    absurd_architecture,
    wrong_end_token,
    wrong_model_card,
    cut_description,
    not_a_regular_file,
    cut_weights,
    missing_tensor,
    tensor_of_another_shape,
    tensor_that_is_not_finite,
    index_outside_the_folder,
    pickled_weights_only,
    gold_that_cannot_be_graded,
    contradicting_answers,
    evaluation_inside_training,
    cut_problem_file,
    wrong_problem_row,
)
READABLE = ()
