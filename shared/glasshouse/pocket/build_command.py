"""`glasshouse pocket build`: train, measure, write, with progress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glasshouse.errors import ConfigError, ModelError, nearest
from glasshouse.models import save
from glasshouse.pocket.build import build
from glasshouse.pocket.measure import finish, measure
from glasshouse.pocket.recipes import RECIPES


def build_into(name: str, folder: Path, steps: int | None = None) -> None:
    """Build a recipe's model into a new folder, with its card and checksums."""
    if name not in RECIPES:
        raise ConfigError(f'There is no recipe "{name}".{nearest(name, RECIPES)}')
    if folder.exists() and any(folder.iterdir()):
        raise ModelError(f"{folder} already holds files; choose another --out, or remove it.")
    recipe = RECIPES[name]
    if steps:
        recipe = replace(recipe, phases=(replace(recipe.phases[-1], steps=steps),))
    console = Console(highlight=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[line]}"), TimeRemainingColumn(), console=console,
        disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        training = progress.add_task("train", total=recipe.steps, line="")

        def show(step: int, loss: float, seconds: float) -> None:
            progress.update(training, completed=step, line=f"loss {loss:.3f}")
            if not console.is_terminal and (step % 100 == 0 or step == recipe.steps):
                console.print(f"step {step} of {recipe.steps}  loss {loss:.3f}  {seconds:.0f} s")

        policy = build(recipe, show)
        folder.mkdir(parents=True, exist_ok=True)
        save(policy, folder)
        measuring = progress.add_task("measure", total=len(recipe.ingredients), line="")
        measured = []
        for ingredient in recipe.ingredients:
            found = measure(policy, ingredient)
            measured.append(found)
            progress.update(
                measuring, advance=1, line=f"{ingredient.task} {ingredient.style.value}"
            )
            progress.console.print(
                f"{ingredient.task:>15} {ingredient.style.value:<6}  sampled {found['sampled']:.3f} "
                f"({found['sampled_low']:.2f}–{found['sampled_high']:.2f})  greedy {found['greedy']:.3f}  "
                f"{found['length']:.0f} tokens"
            )
    finish(policy, folder, measured)
    console.print(f"written to {folder}")
