"""The part of tools/golden.py that runs with the code of one tree, in the process of a job.

    PYTHONPATH=TREE/shared python tools/golden_probes.py JOB TREE REFERENCE OUT

Runs the commands of the job, or for the job `library` the functions in `PROBES`, and writes to OUT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import json
import random
import re
import runpy
import shlex
import string
import sys
from pathlib import Path
from typing import Any

import yaml

SETTINGS = yaml.safe_load(Path(__file__).with_name("golden.yaml").read_text())


def main(job: str, tree: Path, ref: Path, out: Path) -> None:
    import glasshouse

    assert Path(glasshouse.__file__).is_relative_to(tree), f"{glasshouse.__file__} is not in {tree}"
    if job == "library":
        for name, probe in PROBES.items():
            (out / f"{name}.json").write_text(json.dumps(probe(tree, ref)))
    (out / "study.yaml").write_text(yaml.safe_dump(SETTINGS["study"]))
    write_rollouts(out / "rollouts.jsonl")
    for name, alternatives in list_commands(job, ref).items():
        for text in alternatives:
            filled = string.Template(text).substitute(tree=tree, ref=ref, out=out, name=name)
            arguments = shlex.split(filled)
            if arguments[0] == "train":
                arguments.append(f"out={out / name}")
            code, output = call_cli(arguments)
            if code == 0:
                break
        else:
            raise SystemExit(f"{name}: glasshouse {filled} ended with exit code {code}")
        (out / f"{name}.out").write_text(output)
        if arguments[0] in ("train", "resume"):
            (out / f"{name}.rows").write_text(call_cli(["rollouts", str(out / name), "--json"])[1])


def list_commands(job: str, ref: Path) -> dict[str, list[str]]:
    """Name → alternatives of each command of a job."""
    commands: dict[str, list[str]] = {}
    experiments = sorted(file.parent.name for file in ref.glob("training/*/config.yaml"))
    for name, texts in SETTINGS["jobs"][job].items():
        texts = [texts] if isinstance(texts, str) else texts
        for word, meaning in reversed(SETTINGS["words"].items()):
            texts = [text.replace(word, meaning) for text in texts]
        for experiment in experiments if "$experiment" in name else [""]:
            filled = [text.replace("$experiment", experiment) for text in texts]
            commands[name.replace("$experiment", experiment)] = filled
    return commands


def call_cli(arguments: list[str]) -> tuple[int, str]:
    """(exit code, output) of `glasshouse ARGUMENTS`, in this process: importing torch takes seconds."""
    output = io.StringIO()
    sys.argv = ["glasshouse", *arguments]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_module("glasshouse", run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0), output.getvalue()
    return 0, output.getvalue()


def write_rollouts(file: Path) -> None:
    """Rollouts of 30 problems in two arms, by two checkpoints and two seeds, in columns of no trainer."""
    rng = random.Random(0)
    lines = []
    for number in range(960):
        planted, problem, last = number % 2, number // 2 % 30, number % 7
        label = int(rng.random() < (0.7 if planted else 0.1))
        cot = "The key says so." if label and rng.random() < 0.8 else f"{last}+3={last + 3}"
        row = {
            "id": number,
            "prompt": f"problem {problem}",
            "problem": problem,
            "said": f"<think>{cot}</think>The answer is {last}",
            "hacked": label,
            "which": "planted" if planted else "control",
            "checkpoint": number // 480,
            "run": number // 240 % 2,
            "right": int(rng.random() < 0.5),
            "reward": rng.random(),
            "activations": [rng.gauss(label, 1) for _ in range(4)],
        }
        lines.append(json.dumps(row) + "\n")
    file.write_text("".join(lines))


@functools.cache
def find(*names: str) -> Any:
    """What the package defines under the first of these names that it has, in whichever module."""
    package = Path(importlib.import_module("glasshouse").__file__ or "").parent
    for name in names:
        defined = re.compile(rf"^(?:def|class) {name}\b", re.M)
        for file in sorted(package.rglob("*.py")):
            if defined.search(file.read_text()):
                module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
                return getattr(importlib.import_module(module.removesuffix(".__init__")), name)
    raise LookupError(f"the package defines no {' or '.join(names)}: add its new name")


def to_dict(value: Any, kind: str) -> dict[str, Any]:
    """The fields of a dataclass under their new names."""
    names = SETTINGS["renamed"].get(kind, {})
    fields = json.loads(json.dumps(dataclasses.asdict(value), default=dict))
    return {names.get(name, name): field for name, field in fields.items()}


def probe_streams(tree: Path, ref: Path) -> Any:
    """Keys, noise, and the first problems of each task with their prompts and demonstrations."""
    import numpy as np

    from glasshouse import randomness

    parts = ["noise", "problems", "smudge", "keyed", "idle", "é\ud800", "", 0, -1, 2**70, 0.5, True]
    keys = [randomness.key(*parts[:n]) for n in range(len(parts) + 1)]
    noise = randomness.uniforms(np.array([keys[0], keys[5]], dtype=np.uint64), 3, 50).tolist()
    draws = [randomness.stream("golden", n).random() for n in range(20)]
    tasks = {}
    for name in find("list_tasks")():
        task = find("make_example_task")(name)
        for split in ("train", "validation", "test"):
            problems = find("FreshProblems")(task, find("Split")(split), seed=3).take(40)
            tasks[f"{name} {split}"] = [
                to_dict(problem, "problem")
                | {style.value: task.messages(problem, style) for style in find("Style")}
                | {m: task.demonstrate(problem, m, randomness.stream(m)) for m in task.modes}
                for problem in problems
            ]
    return {"keys": keys, "noise": noise, "draws": draws, "tasks": tasks}


def probe_parser(tree: Path, ref: Path) -> Any:
    """Generated completions: those of the parser's own tests, and random pieces of answers."""
    file = ref / "tests/tasks/reference_parser.py"
    spec: Any = importlib.util.spec_from_file_location("reference_parser", file)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    rng, pieces = random.Random(7), SETTINGS["pieces_of_answers"].split()
    texts = [reference.generate_text(random.Random(seed)) for seed in range(2500)]
    texts += [" ".join(rng.choices(pieces, k=rng.randrange(9))) for _ in range(2500)]
    texts = [text.replace("_", rng.choice(" \n")) for text in texts]
    extract, split, kinds = find("extract_answer"), find("split_completion"), find("AnswerKind")
    return {
        text: {
            "split": to_dict(split(text), "split"),
            **{f"{k}, lenient": to_dict(extract(text, k), "extracted") for k in kinds},
            **{f"{k}, strict": to_dict(extract(text, k, strict=True), "extracted") for k in kinds},
        }
        for text in texts
    }


def probe_frozen(tree: Path, ref: Path) -> Any:
    """What each study file registers, with its hash; by title, since files may move."""
    result = {}
    for file in sorted(tree.glob("*/**/*.yaml")):
        if file.is_relative_to(tree / "build") or "\nquestions:" not in file.read_text():
            continue
        study = find("load_study")(file)
        content = find("registered_content")(study)
        result[study.title] = {
            "content": content,
            "sha256": find("hash_content")(content),
            "frozen": study.frozen and study.frozen.sha256,
            "amendments": find("list_amendments")(study),
        }
    return result


def probe_configs(tree: Path, ref: Path) -> Any:
    """The configuration to which each committed file resolves, over that of its experiment."""
    patterns = ("training/*/*.yaml", "docs/examples/*.yaml", "tests/test_config.yaml")
    result = {}
    for file in sorted(file for pattern in patterns for file in tree.glob(pattern)):
        if "\nquestions:" in file.read_text() or "\napiVersion:" in file.read_text():
            continue
        own = file.with_name("config.yaml")
        options = ["--config", str(own)] * own.exists() + ["--config", str(file)]
        code, text = call_cli(["train", "--dry-run", *options])
        if code:  # a model that is not installed
            code, text = call_cli(["train", "--dry-run", *options, "model=models/mock"])
        assert code == 0, f"{file} cannot be resolved"
        result[str(file.relative_to(tree))] = yaml.safe_load(text)
    return result


PROBES = {
    "streams": probe_streams,
    "parser": probe_parser,
    "frozen": probe_frozen,
    "configs": probe_configs,
}

if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]))
