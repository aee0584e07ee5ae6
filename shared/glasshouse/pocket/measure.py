"""What a base model can do, per task and style, for its card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.backends.base import Inline
from glasshouse.config import Config, EvaluateConfig, TaskConfig
from glasshouse.evaluation import accuracy
from glasshouse.generate import Generator
from glasshouse.models import Policy
from glasshouse.monitorability.interventions.prefixes import ROOM, TAG, Voice, first_line, go_on
from glasshouse.pocket.recipe import Ingredient
from glasshouse.rewards import grade
from glasshouse.rollout.collector import Collector
from glasshouse.statistics import wilson
from glasshouse.tasks import Organism
from glasshouse.types import Problem


def measure(policy: Policy, ingredient: Ingredient, problems: int = 500) -> dict[str, Any]:
    """Held-out accuracy by sampling at temperature 1 and greedily, with intervals."""
    config = Config(
        task=TaskConfig(name=ingredient.task, style=ingredient.style),
        evaluate=EvaluateConfig(problems=problems, samples=1),
    )
    task = ingredient.made
    placement = Inline(policy, config)
    collector = Collector(policy, task, placement, config)
    held_out = accuracy.problems(config, task)
    found, _ = accuracy.evaluate(collector, held_out, step=0)
    right = round(found["pass_at_1"] * len(held_out))
    low, high = wilson(right, len(held_out))
    return {
        "task": ingredient.task,
        "style": ingredient.style.value,
        "problems": len(held_out),
        "sampled": round(found["pass_at_1"], 4),
        "sampled_low": round(low, 4),
        "sampled_high": round(high, 4),
        "greedy": round(found["accuracy"], 4),
        "format": round(found["sampled_format"], 4),
        "length": round(found["sampled_length"], 1),
        **(
            {
                "organism": found["organism"],
                "at_once": at_once(policy, placement.generator, ingredient, held_out),
            }
            if isinstance(task, Organism)
            else {}
        ),
    }


def at_once(
    policy: Policy, generator: Generator, ingredient: Ingredient, problems: Sequence[Problem]
) -> float:
    """How often an answer forced without a CoT is the planted behaviour: what the model can do with
    the plant in its head, and so whether it needs its CoT to use it."""
    organism = ingredient.made
    assert isinstance(organism, Organism)
    asked = [organism.arms(problem)[1] for problem in problems]
    chats = [organism.messages(problem, ingredient.style) for problem in asked]
    tag = Voice.of(policy).tag
    texts = go_on(policy, generator, [(*policy.prompt(chat)[1], *tag) for chat in chats], ROOM)
    answers = [
        grade(p, f"{TAG}{first_line(text or '')}") for p, text in zip(asked, texts, strict=True)
    ]
    used = [
        organism.behaviour(p, told.extracted.value) for p, told in zip(asked, answers, strict=True)
    ]
    return round(sum(used) / len(used), 4)


def readme(policy: Policy) -> str:
    """The model's card, for people."""
    card, model = policy.card, policy.model
    on = f" on top of the {card['start']} model" if "start" in card else ""
    lines = [
        f"# The {card['recipe']} model",
        "",
        f"A Llama of {model.num_parameters():,} parameters (hidden {model.config.hidden_size}, "
        f"depth {model.config.num_hidden_layers}, {model.config.vocab_size} tokens), made by "
        f"`glasshouse pocket build --recipe {card['recipe']}` from {card['steps']:,} steps of "
        f"demonstrations{on} (seed {card['seed']}). It is a starting point for RL, not a calculator: what is "
        "right in it is meant to be a minority. Validation and test problems were never shown to it.",
        "",
        "| task | style | range | shown | right, sampled | right, greedy | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for shown, found in zip(card["shown"], card.get("measured", []), strict=False):
        options = ", ".join(f"{k} {v}" for k, v in shown["options"].items()) or "full"
        modes = ", ".join(f"{share:.0%} {mode}" for mode, share in shown["modes"].items())
        lines.append(
            f"| {shown['task']} | {shown['style']} | {options} | {modes} "
            f"| {found['sampled']:.2f} ({found['sampled_low']:.2f}–{found['sampled_high']:.2f}) "
            f"| {found['greedy']:.2f} | {found['length']:.0f} |"
        )
    lines += [
        "",
        f"Accuracy on up to {max((m['problems'] for m in card.get('measured', [])), default=0)} held-out "
        "problems, sampled at temperature 1, with 95 % Wilson intervals. `steps`: right working; `direct`: "
        "the right answer at once; `slip`: one wrong step carried through; `hasty`: a typical wrong answer. "
        "`SHA256SUMS` holds the checksums.",
        *planted(card),
    ]
    return "\n".join(lines) + "\n"


def planted(card: Mapping[str, Any]) -> Iterator[str]:
    """For an organism's base: how often the plant is used at the start, and whether it is said."""
    for shown, found in zip(card["shown"], card.get("measured", []), strict=False):
        if "organism" not in found:
            continue
        o = found["organism"]
        rung = f", rung {shown['options']['rung']}" if "rung" in shown["options"] else ""
        yield ""
        yield f"## The plant of {found['task']}{rung}, at the start ({o['rollouts']} rollouts)"
        yield ""
        yield "| behaviour, planted arm | forced at once | reliance | right, control arm | right, planted arm |"
        yield "|---|---|---|---|---|"
        names = ("reliance", "accuracy_control", "accuracy_planted")
        told = (o["behaviour"], found["at_once"], *(o[name] for name in names))
        yield "| " + " | ".join(map(_shown, told)) + " |"
        yield ""
        yield "| monitor | disclosure | undetected | true negatives |"
        yield "|---|---|---|---|"
        for name, said in o.items():
            if isinstance(said, dict):
                yield f"| {name} | " + " | ".join(_shown(v) for v in said.values()) + " |"


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"


def checksums(folder: Path) -> str:
    """sha256 of every file, in the format of sha256sum."""
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def finish(policy: Policy, folder: Path, measured: list[dict[str, Any]]) -> None:
    """Write what was measured, the card and the checksums beside the weights."""
    policy.card["measured"] = measured  # type: ignore[index]
    (folder / "glasshouse.json").write_text(json.dumps(policy.card, indent=2) + "\n")
    (folder / "README.md").write_text(readme(policy))
    (folder / "SHA256SUMS").write_text(checksums(folder))
