"""The card of a model that was trained on demonstrations: where it comes from and what it can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glasshouse.config.schema import Config, EvaluateConfig, TaskConfig
from glasshouse.generate.engines import Generator
from glasshouse.generate.local import LocalGeneration
from glasshouse.measurement.closed_forms import wilson_interval
from glasshouse.measurement.evaluate import evaluate_policy
from glasshouse.measurement.evaluation_setup import draw_validation
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
from glasshouse.tasks.base import make_task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.training.recipes import MixtureEntry, Recipe
from glasshouse.types import Problem, Style


def measure_entry(policy: Policy, entry: MixtureEntry, problems: int = 500) -> dict[str, Any]:
    """Held-out accuracy, sampled at temperature 1 and greedy, with intervals."""
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
    return {
        "task": entry.task,
        "style": entry.style.value,
        "problems": len(validation),
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
                    policy, backend.generator, entry, validation
                ),
            }
            if isinstance(task, Organism)
            else {}
        ),
    }


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
    grades = [
        grade(p, f"{ANSWER_TAG}{first_line(text or '')}")
        for p, text in zip(planted, texts, strict=True)
    ]
    shown = [
        organism.shows_behaviour(p, g.extracted.model_answer)
        for p, g in zip(planted, grades, strict=True)
    ]
    return round(sum(shown) / len(shown), 4)


def make_card(recipe: Recipe) -> dict[str, Any]:
    """The card (glasshouse.json) of a model that was trained by a recipe."""
    task_options: dict[str, dict[str, Any]] = {}
    mixture = []
    for entry in recipe.measured_mixture:
        task = entry.built_task
        options = task.Options.model_validate(dict(entry.options)).model_dump(
            mode="json", exclude_unset=True
        )
        defaults = {n: v for n, v in options.items() if n not in task.demonstration_options}
        if defaults:  # of several entries of a task and style, the first
            task_options.setdefault(entry.task, {}).setdefault(entry.style.value, defaults)
        mixture.append(
            {
                "task": entry.task,
                "style": entry.style.value,
                "modes": dict(entry.modes),
                "options": options,
                "weight": entry.weight,
            }
        )
    return {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        **({"start_from": recipe.start_from} if recipe.start_from else {}),
        "task_options": task_options,
        "mixture": mixture,
    }


def render_card(policy: Policy) -> str:
    """The card as Markdown."""
    card, measured = policy.card, policy.card.get("measured", [])
    lines = [*_render_origin(policy), ""]
    accuracies = " accuracy, sampled | accuracy, greedy | tokens |" if measured else ""
    lines.append(f"| task | style | options | demonstrations |{accuracies}")
    lines.append("|---|---|---|---|" + ("---|---|---|" if measured else ""))
    for number, entry in enumerate(card["mixture"]):
        options = ", ".join(f"{k} {v}" for k, v in entry["options"].items()) or "defaults"
        modes = ", ".join(f"{share:.0%} {mode}" for mode, share in entry["modes"].items())
        line = f"| {entry['task']} | {entry['style']} | {options} | {modes} |"
        if measured:
            result = measured[number]
            line += (
                f" {result['sampled']:.2f} ({result['sampled_low']:.2f}–{result['sampled_high']:.2f}) "
                f"| {result['greedy']:.2f} | {result['length']:.0f} |"
            )
        lines.append(line)
    if measured:
        lines += [
            "",
            f"Accuracy on up to {max(m['problems'] for m in measured)} held-out problems, sampled "
            "at temperature 1, with 95 % Wilson intervals. Modes of demonstrations: `steps`, correct steps; "
            "`direct`, the correct answer without steps; `injected_error`, one wrong step that propagates to "
            "the answer; `guess`, a typical wrong answer without steps.",
            *_render_prompt(policy),
            *_render_planted_behaviour(card),
        ]
    if "packaged_model" in card:
        lines += ["", card["packaged_model"]["disclosure"]]
    return "\n".join(lines) + "\n"


def _render_origin(policy: Policy) -> tuple[str, str, str]:
    """The title, and what the model was trained from and on."""
    card, model = policy.card, policy.model
    recipe, never = card["recipe"], "It was never trained on validation or test problems."
    if "batch_size" in card:  # another model, trained with the settings of a configuration
        adapters = (
            f"LoRA adapters of rank {card['lora_rank']}" if card["lora_rank"] else "all weights"
        )
        return (
            f"# {card['start_from']}, trained on demonstrations of {recipe}",
            "",
            f"{card['start_from']}, {adapters} trained by `glasshouse sft` on {card['steps']:,} batches of "
            f"{card['batch_size']} demonstrations (learning rate {card['learning_rate']:g}, seed "
            f"{card['seed']}). {never} `glasshouse eval` measures it.",
        )
    start = f", starting from the {card['start_from']} model" if "start_from" in card else ""
    return (
        f"# The {recipe} model",
        "",
        f"A Llama with {model.num_parameters():,} parameters (hidden size {model.config.hidden_size}, "
        f"{model.config.num_hidden_layers} layers, {model.config.vocab_size} tokens), trained by "
        f"`glasshouse sft --recipe {recipe}` on {card['steps']:,} batches of demonstrations{start} (seed "
        f"{card['seed']}). It is a starting point for RL with room for improvement. {never}",
    )


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
