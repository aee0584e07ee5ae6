"""The card of a model that was trained on demonstrations: glasshouse.json, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glasshouse.config.schema import Config, EvaluateConfig, TaskConfig
from glasshouse.generate.engines import Generator, LocalGeneration
from glasshouse.measurement.evaluate import draw_validation, evaluate_policy
from glasshouse.measurement.intervals import wilson_interval
from glasshouse.measurement.interventions.base import (
    ANSWER_TAG,
    ANSWER_TOKENS,
    PrefixBuilder,
    first_line,
    greedy_continue,
)
from glasshouse.models.policy import Policy
from glasshouse.rollout.collector import RolloutCollector
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.organisms import Organism
from glasshouse.training.recipes import MixtureEntry, Recipe
from glasshouse.types import Problem


def measure_entry(policy: Policy, entry: MixtureEntry, problems: int = 500) -> dict[str, Any]:
    """Held-out accuracy, sampled at temperature 1 and greedy, with intervals; of an organism, its behaviour."""
    config = Config(
        task=TaskConfig(name=entry.task, style=entry.style),
        evaluate=EvaluateConfig(problems=problems, samples=1),
    )
    task = entry.built_task
    backend = LocalGeneration(policy, config.generate)
    collector = RolloutCollector(policy, task, backend, config)
    validation = draw_validation(config, task)[:problems]
    results, _ = evaluate_policy(collector, validation, step=0)
    low, high = wilson_interval(round(results["pass_at_1"] * len(validation)), len(validation))
    measured = {
        "task": entry.task,
        "style": entry.style.value,
        "problems": len(validation),
        "sampled": round(results["pass_at_1"], 4),
        "sampled_low": round(low, 4),
        "sampled_high": round(high, 4),
        "greedy": round(results["accuracy"], 4),
        "format": round(results["sampled_format"], 4),
        "length": round(results["sampled_length"], 1),
    }
    if isinstance(task, Organism):
        measured["organism"] = results["organism"]
        shown = behaviour_without_cot(policy, backend.generator, entry, validation)
        measured["behaviour_without_cot"] = shown
    return measured


def behaviour_without_cot(
    policy: Policy, generator: Generator, entry: MixtureEntry, problems: Sequence[Problem]
) -> float:
    """How often an answer that is forced without a CoT shows the planted behaviour: whether the model
    needs its CoT for it."""
    organism = entry.built_task
    assert isinstance(organism, Organism)
    planted = [organism.arms(problem)[1] for problem in problems]
    tag = PrefixBuilder.from_policy(policy).tag
    prompts = [(*policy.encode_prompt(organism.messages(p, entry.style))[1], *tag) for p in planted]
    texts = greedy_continue(policy, generator, prompts, ANSWER_TOKENS)
    shown = 0
    for problem, text in zip(planted, texts, strict=True):
        answer = grade_completion(
            problem, f"{ANSWER_TAG}{first_line(text or '')}"
        ).extracted.model_answer
        shown += organism.shows_behaviour(problem, answer)
    return round(shown / len(planted), 4)


def make_card(recipe: Recipe) -> dict[str, Any]:
    """The card (glasshouse.json) of a model that was trained by a recipe."""
    task_options: dict[str, dict[str, Any]] = {}
    mixture = []
    for entry in recipe.measured_mixture:
        task = entry.built_task
        validated = task.Options.model_validate(dict(entry.options))
        options = validated.model_dump(mode="json", exclude_unset=True)
        defaults = {n: v for n, v in options.items() if n not in task.demonstration_options}
        if defaults:  # of several entries of a task and style, the first
            task_options.setdefault(entry.task, {}).setdefault(entry.style.value, defaults)
        described = entry.model_dump(mode="json", include={"task", "style", "modes", "weight"})
        mixture.append(described | {"options": options})
    return {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        **({"start_from": recipe.start_from} if recipe.start_from else {}),
        "task_options": task_options,
        "mixture": mixture,
    }


def render_card(policy: Policy) -> str:
    """The card as Markdown; glasshouse.json has all measurements."""
    card = policy.card
    start = f" from {card['start_from']}" if "start_from" in card else ""
    lines = [
        f"# {policy.name}",
        "",
        f"Trained{start} by `glasshouse sft` on {card['steps']:,} batches of demonstrations of the recipe "
        f"{card['recipe']} (seed {card['seed']}), never on validation or test problems.",
        "",
        "| task | style | options | demonstrations | accuracy, sampled | accuracy, greedy |",
        "|---|---|---|---|---|---|",
    ]
    measured = card.get("measured") or [{}] * len(card["mixture"])
    for entry, result in zip(card["mixture"], measured, strict=True):
        options = ", ".join(f"{k} {v}" for k, v in entry["options"].items()) or "defaults"
        modes = ", ".join(f"{share:.0%} {mode}" for mode, share in entry["modes"].items())
        rates = "not measured | not measured"
        if result:
            interval = f"{result['sampled_low']:.2f}–{result['sampled_high']:.2f}"
            rates = f"{result['sampled']:.2f} ({interval}) | {result['greedy']:.2f}"
        lines.append(f"| {entry['task']} | {entry['style']} | {options} | {modes} | {rates} |")
    if "packaged_model" in card:
        lines += ["", card["packaged_model"]["disclosure"]]
    return "\n".join(lines) + "\n"
