"""Model folders and problem files that should be refused: see proofs/hostile_files.py."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from proofs.hostile_rollouts import kind

MOCK = Path(__file__).resolve().parents[1] / "models" / "mock"
SMALL = ["evaluate.problems=2", "evaluate.samples=0", "generate.max_tokens=8"]
SMALL += ["data.groups_per_step=2"]
USES = (
    ["eval", "model", *SMALL],
    ["train", "model=model", "steps=1", "out=run", *SMALL],
    ["train", "--dry-run", "model=model"],
)
"""Commands that use the model; the last does not load its weights."""
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def damaged_model(*values: Any, weights: bool = False) -> Callable[[Callable[..., None]], None]:
    """Register a function that damages a copy of the mock model; a command that loads `weights` finds the damage."""

    def register(damage: Callable[..., None]) -> None:
        def make(folder: Path, n: int, *value: Any) -> Sequence[str]:
            model = folder / "model"
            shutil.copytree(MOCK, model)
            (model / "SHA256SUMS").unlink()
            damage(model, n, *value)
            return USES[n % (2 if weights else 3)]

        make.__name__ = damage.__name__
        kind(*values)(make)

    return register


def edit_json(file: Path, values: dict[str, Any]) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | values))


# --- what is a program -------------------------------------------------------------------------


@damaged_model(
    *("true", "messages[-1].role == 'assistant'", "not add_generation_prompt"),
    *("add_generation_prompt", "messages[0].role == 'system'", "messages | length == 1"),
    *("messages | length > 2", "messages[-1].role == 'user'", "messages[0].content"),
    "messages[0].role == 'user'",
)
def template_that_loops(model: Path, n: int, condition: str) -> None:
    (model / "chat_template.jinja").write_text(f"{{% if {condition} %}}{LOOP}{{% endif %}}")


@damaged_model(
    *("'x' * 2000000", "'x' * 99999999999", "('x' * 99999) * 99999"),
    *("range(99999) | join(range(99) | join)", "messages[0].content * 9999999"),
    *("'%1999999s' % 1", "'x' | center(1999999)", "'x' * 9999999 * 9999999"),
    *("(range(99999) | list) * 99", "(range(99999) | list) * 99999"),
)
def template_that_expands(model: Path, n: int, text: str) -> None:
    (model / "chat_template.jinja").write_text(f"{{{{ {text} }}}}")


@damaged_model(*" aeio")
def tokenizer_that_expands(model: Path, n: int, letter: str) -> None:
    content = ("{0}{0}", "{0}b{0}")[n // 5].format(letter)
    step = {"type": "Replace", "pattern": {"String": letter}, "content": content}
    normalizer = {"type": "Sequence", "normalizers": [step] * (28 + n)}
    edit_json(model / "tokenizer.json", {"normalizer": normalizer})


@damaged_model()
def tokenizer_of_another_model(model: Path, n: int) -> None:
    edit_json(model / "config.json", {"vocab_size": 1 + 4 * n})


@damaged_model(
    ("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer"), weights=True
)
def code_in_the_folder(model: Path, n: int, place: tuple[str, str]) -> None:
    file, part = place
    code = {"auto_map": {part: "code.C", "AutoModelForCausalLM": "code.M"}}
    edit_json(model / file, code | {"model_type": f"odd{n}"})
    edit_json(model / "config.json", {"model_type": f"odd{n}"})
    (model / "code.py").write_text("raise SystemExit(7)")


# --- what is a description ---------------------------------------------------------------------


@damaged_model(
    *({"num_hidden_layers": 1_000_000}, {"hidden_size": 10**12}, {"num_attention_heads": 10**9}),
    *({"intermediate_size": 10**15}, {"vocab_size": 10**10}, {"num_hidden_layers": "many"}),
    *({"hidden_size": -4}, {"num_attention_heads": 0}, {"head_dim": 10**9}),
    {"num_hidden_layers": 10**30},
    weights=True,
)
def absurd_architecture(model: Path, n: int, values: dict[str, Any]) -> None:
    edit_json(model / "config.json", values)


@damaged_model([0, 1, "x"], "x", 1.5, [None, {}], {"a": 1}, -1, [[1]], True, [0, -5], [2.0])
def wrong_end_token(model: Path, n: int, token: Any) -> None:
    edit_json(model / ("config.json", "generation_config.json")[n % 2], {"eos_token_id": token})


@damaged_model(
    *([1], "x", 3, None, {"sum_digits": [1]}, {"sum_digits": {"cot": 3}}, {"sum_digits": "x"}),
    *({"sum_digits": {"cot": value}} for value in (None, {"count": "x"}, {"nothing": 1})),
)
def wrong_model_card(model: Path, n: int, options: Any) -> None:
    edit_json(model / "glasshouse.json", {"task_options": options})


@damaged_model(
    "config", "tokenizer", "tokenizer_config", "generation_config", "glasshouse", weights=True
)
def cut_description(model: Path, n: int, name: str) -> None:
    file = model / f"{name}.json"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if n < 5 else b"[" * 100_000)


@damaged_model(
    *("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"),
    "glasshouse.json",
    weights=True,
)
def not_a_regular_file(model: Path, n: int, name: str) -> None:
    (model / name).unlink()
    if n < 5 or name in ("chat_template.jinja", "glasshouse.json"):
        os.mkfifo(model / name)
    else:
        (model / name).mkdir()


# --- weights -----------------------------------------------------------------------------------


@damaged_model(weights=True)
def cut_weights(model: Path, n: int) -> None:
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[: len(data) * n // 10])


def change_tensor(model: Path, n: int, change: Callable[[Any], Any]) -> None:
    """Change or remove one tensor of the weights."""
    tensors = load_file(model / "model.safetensors")
    name = sorted(tensors)[n % len(tensors)]
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


@damaged_model(weights=True)
def missing_tensor(model: Path, n: int) -> None:
    change_tensor(model, n, lambda tensor: None)


@damaged_model(weights=True)
def tensor_of_another_shape(model: Path, n: int) -> None:
    change_tensor(model, n, lambda tensor: tensor[..., :-1].clone())


@damaged_model(math.nan, math.inf, weights=True)
def tensor_that_is_not_finite(model: Path, n: int, value: float) -> None:
    change_tensor(model, n, lambda tensor: tensor * value)


@damaged_model(
    *("../secret.safetensors", "/etc/passwd", "../../x.safetensors", "nowhere.safetensors", ""),
    weights=True,
)
def index_outside_the_folder(model: Path, n: int, outside: str) -> None:
    names = list(load_file(model / "model.safetensors"))
    (model / "model.safetensors").rename(model.parent / "secret.safetensors")
    save_file({}, model / "other.safetensors")
    weight_map: Any = dict.fromkeys(names, outside) if n < 5 else [outside]
    edit_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


class Tripwire:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


@damaged_model(
    *("pytorch_model.bin", "model.pt", "model.pkl", "pytorch_model-00001-of-00001.bin"),
    "model.ckpt",
)
def pickled_weights_only(model: Path, n: int, name: str) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Tripwire()))


# --- problem files -----------------------------------------------------------------------------

PROBLEMS = [
    {"question": f"What is {n} + 1?", "answer": str(n + 1), "task": "sum_digits"} for n in range(40)
]


def train_on(folder: Path, n: int, rows: Sequence[Any], *, cut: int = 0) -> list[str]:
    """Write a problem file; the arguments that train or evaluate on it."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder / "problems.jsonl").write_text(text[: len(text) - cut])
    key = ("data.source=fixed data.file", "evaluate.file")[n % 2]
    command = (["train", "steps=1", "out=run"], ["train", "--dry-run"])[n // 2 % 2]
    return [*command, f"model={MOCK}", *SMALL, *f"{key}=problems.jsonl".split()]


@kind("many", "", "12 apples", "1/0", "x = 3", "1, 2", "NaN", "infinity", "3-4", "…")
def gold_that_cannot_be_graded(folder: Path, n: int, answer: str) -> Any:
    row = PROBLEMS[7 + n] | {"answer": answer, "kind": "number"}
    return train_on(folder, n, [*PROBLEMS[: 7 + n], row, *PROBLEMS[8 + n :]])


@kind("number", "text", "choice")
def contradicting_answers(folder: Path, n: int, answer_kind: str) -> Any:
    rows = PROBLEMS + [{"question": "What is 7 + 1?", "answer": str(i)} for i in range(60)]
    return train_on(folder, n, [row | {"kind": answer_kind} for row in rows])


@kind()
def evaluation_inside_training(folder: Path, n: int) -> Any:
    rows = [row | {"question": row["question"].upper()} for row in PROBLEMS[3 * n : 3 * n + 10]]
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = ["data.source=fixed", "data.file=problems.jsonl", "evaluate.file=held_out.jsonl"]
    return [*train_on(folder, n, PROBLEMS), *overrides]


@kind()
def cut_problem_file(folder: Path, n: int) -> Any:
    return train_on(folder, n, PROBLEMS, cut=3 + 4 * n)


@kind(
    *("[" * 100_000, '{"question": "\\ud800", "answer": "1"}', {"question": 3, "answer": "1"}),
    *({"question": "x" * 100_001, "answer": "1"}, {"question": "?", "answer": "1" * 10_001}),
    *({"question": "?", "answer": 1.5}, {"question": "?"}, "[1, 2]"),
    {"question": "?", "answer": "1", "decimals": 10**9},
    {"question": "?", "answer": "1", "meta": {"x": math.nan}},
)
def wrong_problem_row(folder: Path, n: int, row: Any) -> Any:
    return train_on(folder, n, [*PROBLEMS, row])
