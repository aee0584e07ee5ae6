"""Model cards, as Markdown: of a checkpoint, and of a model that was trained on demonstrations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
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


CHECKPOINT_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: {license}
---
# {name}, {algorithm} on {task}, step {step}

| | |
|---|---|
| base model | {base} (license: {license}) |
| trained with | Glasshouse: {algorithm} on {task}, {step} of {steps} steps, seed {seed}{adapters} |
| held-out accuracy | {accuracy} |

{opens} Run in this folder:

```sh
glasshouse eval .                                        # measure its accuracy
glasshouse resume ../..                                  # continue the run, from its newest checkpoint
glasshouse train --config ../../config.yaml model=. out=../../../NEW  # a new run from these weights
```
"""


OPENS = "It opens with `AutoModelForCausalLM.from_pretrained(FOLDER)`, and `vllm serve FOLDER` serves it."
OPENS_ADAPTERS = (
    "`AutoModelForCausalLM.from_pretrained(FOLDER/adapter)` loads the base model with its adapters."
)


def render_checkpoint_card(
    config: Config, policy: Policy, step: int, evaluation: Mapping[str, float]
) -> str:
    """The card of a checkpoint. `evaluation` is that after its step, empty if there was none."""
    kinds = {"pass_at_1": "sampled", "accuracy": "greedy"}
    rates = [f"{evaluation[k]:.3f} {n}" for k, n in kinds.items() if k in evaluation]
    rank = config.learn.lora_rank
    return CHECKPOINT_CARD.format(
        base=config.model,
        name=Path(config.model).name,
        task=config.task.name,
        algorithm=config.learn.algorithm,
        step=step,
        steps=config.steps,
        seed=config.seed,
        adapters=f", LoRA of rank {rank}" if rank else "",
        accuracy=", ".join(rates) or "not measured at this step",
        license=find_license(policy),
        opens=OPENS_ADAPTERS if rank and not config.checkpoints.merge_adapters else OPENS,
    )


def find_license(policy: Policy) -> str:
    """The license that the card of a packaged model, or the README of a model folder, names."""
    if "packaged_model" in policy.card:
        return str(policy.card["packaged_model"]["license"])
    readme = Path(policy.model.name_or_path, "README.md")
    text = readme.read_text(errors="replace") if readme.is_file() else ""
    found = re.search(r"^license: *([^\n]+)$", text.partition("\n---\n")[0], re.MULTILINE)
    return found[1] if found else "unknown"
