"""The model card of a model that was trained on demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.training.pocket_build import make_card
from glasshouse.training.pocket_recipe import Recipe


def describe_training(
    base_card: Mapping[str, Any], recipe: Recipe, config: Config
) -> dict[str, Any]:
    """The card (glasshouse.json). What the base's card says about its origin is kept."""
    origin = {k: v for k, v in base_card.items() if k == "packaged_model"}
    return {
        **make_card(recipe),
        "start_from": config.model,
        "batch_size": recipe.batch_size,
        "learning_rate": config.learn.learning_rate,
        "lora_rank": config.learn.lora_rank,
        **origin,
    }


def render_training(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    adapters = f"LoRA adapters of rank {card['lora_rank']}" if card["lora_rank"] else "all weights"
    lines = [
        f"# {card['start_from']}, trained on demonstrations of {card['recipe']}",
        "",
        f"{card['start_from']}, {adapters} trained by `glasshouse sft` on {card['steps']:,} batches of "
        f"{card['batch_size']} demonstrations (learning rate {card['learning_rate']:g}, seed {card['seed']}). "
        "It was never trained on validation or test problems. `glasshouse eval` measures it.",
        "",
        "| task | style | options | demonstrations |",
        "|---|---|---|---|",
    ]
    for component in card["mixture"]:
        options = ", ".join(f"{k} {v}" for k, v in component["options"].items()) or "defaults"
        modes = ", ".join(f"{share:.0%} {mode}" for mode, share in component["modes"].items())
        lines.append(f"| {component['task']} | {component['style']} | {options} | {modes} |")
    if "packaged_model" in card:
        lines += ["", card["packaged_model"]["disclosure"]]
    return "\n".join(lines) + "\n"
