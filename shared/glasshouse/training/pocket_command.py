"""`glasshouse pocket build`: trains and measures a base model, with progress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glasshouse.errors import ConfigError, ModelError, did_you_mean
from glasshouse.models.policy import save_policy
from glasshouse.terminal import terminal_safe
from glasshouse.training.pocket_build import build_base_model
from glasshouse.training.pocket_measure import measure_component, write_card
from glasshouse.training.pocket_recipes import RECIPES


def build_pocket_model(name: str, folder: Path, steps: int | None = None) -> None:
    """Builds the model of a recipe in a new folder, with its card and checksums."""
    if name not in RECIPES:
        raise ConfigError(f'There is no recipe "{name}".{did_you_mean(name, RECIPES)}')
    if folder.exists() and any(folder.iterdir()):
        raise ModelError(f"{folder} is not empty; choose another --out or delete it.")
    recipe = RECIPES[name]
    if steps:
        recipe = replace(recipe, phases=(replace(recipe.phases[-1], steps=steps),))
    console = Console(highlight=False, emoji=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[line]}"), TimeRemainingColumn(), console=console,
        disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        training = progress.add_task("train", total=recipe.steps, line="")

        def report(step: int, loss: float, seconds: float) -> None:
            progress.update(training, completed=step, line=f"loss {loss:.3f}")
            if not console.is_terminal and (step % 100 == 0 or step == recipe.steps):
                console.print(f"step {step} of {recipe.steps}  loss {loss:.3f}  {seconds:.0f} s")

        policy = build_base_model(recipe, report)
        folder.mkdir(parents=True, exist_ok=True)
        save_policy(policy, folder)
        measuring = progress.add_task("measure", total=len(recipe.mixture), line="")
        measured = []
        for component in recipe.mixture:
            result = measure_component(policy, component)
            measured.append(result)
            progress.update(
                measuring, advance=1, line=f"{component.task_name} {component.style.value}"
            )
            progress.console.print(
                f"{component.task_name:>15} {component.style.value:<6}  sampled {result['sampled']:.3f} "
                f"({result['sampled_low']:.2f}–{result['sampled_high']:.2f})  greedy {result['greedy']:.3f}  "
                f"{result['length']:.0f} tokens"
            )
    policy.card["measured"] = measured  # type: ignore[index]
    write_card(policy, folder)
    print(terminal_safe(f"written to {folder}"))
