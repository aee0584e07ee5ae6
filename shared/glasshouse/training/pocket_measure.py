"""Measures a base model per task and style, and writes its model card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config, EvaluateConfig, TaskConfig
from glasshouse.generate.engines import Generator
from glasshouse.generate.local import LocalGeneration
from glasshouse.measurement.closed_forms import wilson_interval
from glasshouse.measurement.evaluate import evaluate_policy
from glasshouse.measurement.evaluation_setup import draw_held_out
from glasshouse.measurement.interventions.prefixes import (
    ANSWER_TAG,
    ANSWER_TOKENS,
    PrefixBuilder,
    first_line,
    greedy_continue,
)
from glasshouse.models.chat_template import drops_system_messages
from glasshouse.models.policy import Policy
from glasshouse.rollout.collector import RolloutCollector
from glasshouse.rollout.grading import grade
from glasshouse.tasks.catalogue import make_task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.training.pocket_recipe import MixtureComponent
from glasshouse.types import Problem, Style


def measure_component(
    policy: Policy, component: MixtureComponent, problems: int = 500
) -> dict[str, Any]:
    """Held-out accuracy, sampled at temperature 1 and greedy, with intervals."""
    config = Config(
        task=TaskConfig(name=component.task_name, style=component.style),
        evaluate=EvaluateConfig(problems=problems, samples=1),
    )
    task = component.task
    backend = LocalGeneration(policy, config.generate)
    collector = RolloutCollector(policy, task, backend, config)
    held_out = draw_held_out(config, task)[:problems]
    results, _ = evaluate_policy(collector, held_out, step=0)
    low, high = wilson_interval(round(results["pass_at_1"] * len(held_out)), len(held_out))
    return {
        "task": component.task_name,
        "style": component.style.value,
        "problems": len(held_out),
        "sampled": round(results["pass_at_1"], 4),
        "sampled_low": round(low, 4),
        "sampled_high": round(high, 4),
        "greedy": round(results["accuracy"], 4),
        "format": round(results["sampled_format"], 4),
        "length": round(results["sampled_length"], 1),
        **(
            {
                "organism": results["organism"],
                "behaviour_without_cot": behaviour_without_cot(
                    policy, backend.generator, component, held_out
                ),
            }
            if isinstance(task, Organism)
            else {}
        ),
    }


def behaviour_without_cot(
    policy: Policy, generator: Generator, component: MixtureComponent, problems: Sequence[Problem]
) -> float:
    """How often an answer that is forced without a CoT shows the planted behaviour: whether the model
    needs its CoT for it."""
    organism = component.task
    assert isinstance(organism, Organism)
    planted = [organism.arms(problem)[1] for problem in problems]
    tag = PrefixBuilder.from_policy(policy).tag
    prompts = [
        (*policy.encode_prompt(organism.messages(p, component.style))[1], *tag) for p in planted
    ]
    texts = greedy_continue(policy, generator, prompts, ANSWER_TOKENS)
    grades = [
        grade(p, f"{ANSWER_TAG}{first_line(text or '')}")
        for p, text in zip(planted, texts, strict=True)
    ]
    shown = [
        organism.shows_behaviour(p, g.extracted.model_answer)
        for p, g in zip(planted, grades, strict=True)
    ]
    return round(sum(shown) / len(shown), 4)


def render_card(policy: Policy) -> str:
    """The model card as Markdown."""
    card, model = policy.card, policy.model
    start = f", starting from the {card['start_from']} model" if "start_from" in card else ""
    measured = card.get("measured", [])
    lines = [
        f"# The {card['recipe']} model",
        "",
        f"A Llama with {model.num_parameters():,} parameters (hidden size {model.config.hidden_size}, "
        f"{model.config.num_hidden_layers} layers, {model.config.vocab_size} tokens), trained by "
        f"`glasshouse pocket build --recipe {card['recipe']}` on {card['steps']:,} batches of "
        f"demonstrations{start} (seed {card['seed']}). It is a starting point for RL with room "
        "for improvement. It was never trained on validation or test problems.",
        "",
        "| task | style | options | demonstrations | accuracy, sampled | accuracy, greedy | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for component, result in zip(card["mixture"], measured, strict=False):
        options = ", ".join(f"{k} {v}" for k, v in component["options"].items()) or "defaults"
        modes = ", ".join(f"{share:.0%} {mode}" for mode, share in component["modes"].items())
        lines.append(
            f"| {component['task']} | {component['style']} | {options} | {modes} "
            f"| {result['sampled']:.2f} ({result['sampled_low']:.2f}–{result['sampled_high']:.2f}) "
            f"| {result['greedy']:.2f} | {result['length']:.0f} |"
        )
    lines += [
        "",
        f"Accuracy on up to {max((m['problems'] for m in measured), default=0)} held-out problems, sampled "
        "at temperature 1, with 95 % Wilson intervals. Modes of demonstrations: `steps`, correct steps; "
        "`direct`, the correct answer without steps; `injected_error`, one wrong step that propagates to "
        "the answer; `guess`, a typical wrong answer without steps. `SHA256SUMS` has the checksums.",
        *_render_prompt(policy),
        *_render_planted_behaviour(card),
    ]
    return "\n".join(lines) + "\n"


def _render_prompt(policy: Policy) -> Iterator[str]:
    """What the model is asked: an example of the exact prompt."""
    component = policy.card["mixture"][0]
    task = make_task(component["task"], component["options"])
    style = Style(component["style"])
    text, _ = policy.encode_prompt(task.messages(task.example(), style))
    yield ""
    if drops_system_messages(policy.tokenizer):
        yield (
            "The chat template drops system messages: the model never sees the worked example and the "
            "instructions of the task's system prompt. A whole prompt:"
        )
    else:
        yield "A whole prompt:"
    yield from ("", "```", text, "```")


def _render_planted_behaviour(card: Mapping[str, Any]) -> Iterator[str]:
    """For the base of an organism: how often it shows the planted behaviour, and what monitors detect."""
    for component, result in zip(card["mixture"], card.get("measured", []), strict=False):
        if "organism" not in result:
            continue
        rates = result["organism"]
        encoding = component["options"].get("hint_encoding")
        title = f"{result['task']}, {encoding} hint" if encoding else result["task"]
        yield ""
        yield f"## Planted behaviour of {title}, before RL ({rates['rollouts']} rollouts)"
        yield ""
        columns = {
            "behaviour, planted arm": rates["behaviour"],
            "reliance": rates["reliance"],
            "accuracy, control arm": rates["accuracy_control"],
            "accuracy, planted arm": rates["accuracy_planted"],
        }
        if "behaviour_without_cot" in result:
            columns["behaviour, planted arm, without CoT"] = result["behaviour_without_cot"]
        yield f"| {' | '.join(columns)} |"
        yield "|" + "---|" * len(columns)
        yield f"| {' | '.join(map(_format_rate, columns.values()))} |"
        yield ""
        yield "| monitor | disclosure | undetected use | TNR |"
        yield "|---|---|---|---|"
        for name, detection in rates.items():
            if isinstance(detection, dict):
                yield f"| {name} | " + " | ".join(map(_format_rate, detection.values())) + " |"


def _format_rate(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"


def compute_checksums(folder: Path) -> str:
    """The sha256 of every file, in the format of sha256sum."""
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def write_card(policy: Policy, folder: Path) -> None:
    """Writes the model card (glasshouse.json, README.md) and the checksums beside the weights."""
    (folder / "glasshouse.json").write_text(json.dumps(policy.card, indent=2) + "\n")
    (folder / "README.md").write_text(render_card(policy))
    (folder / "SHA256SUMS").write_text(compute_checksums(folder))
