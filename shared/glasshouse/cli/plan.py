"""`glasshouse plan`: what a run needs, before it is started."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import add_command, add_json

if TYPE_CHECKING:
    from rich.table import Table

    from glasshouse.training.layout import Plan


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "plan",
        _plan,
        "estimate the memory of a run, and suggest a layout that fits",
        "Reads the model's configuration and tokenizer, not its weights, so that a model of any size can be "
        "planned on any machine. A folder with only a config.json is enough. docs/scale.md explains the figures.",
        [
            "glasshouse plan training/example.rl/config.yaml",
            'glasshouse plan config.yaml model=Qwen/Qwen3-4B --gpu "1x80GB"',
        ],
    )
    parser.add_argument("config", metavar="CONFIG", help="the config file of the run")
    parser.add_argument(
        "--gpu", default="", metavar="NxGB",
        help="GPUs, as in 1x24GB, 8x80GB or 8xH100 (default: the CPU of this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-tokens", type=int, metavar="N",
        help="length of a prompt (default: of the task's prompts; 256 without a tokenizer)",
    )  # fmt: skip
    parser.add_overrides("as for glasshouse train")
    add_json(parser)


def _plan(args: argparse.Namespace) -> None:
    from glasshouse.config.loading import load_config
    from glasshouse.terminal import make_console, terminal_safe
    from glasshouse.training.layout import plan_run

    with make_console(stderr=True).status("Estimating memory and looking for a layout …"):
        config = load_config([args.config], args.overrides)
        result = plan_run(config, gpu=args.gpu, prompt_tokens=args.prompt_tokens)
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
        return
    console = make_console()
    console.print(_memory_table(result))
    for sentence in _sentences(result, config.generate.engine):
        console.print(terminal_safe(sentence), markup=False)
    if result.layout.fits:
        print(f"\n# suggested layout; paste into the config file\n{result.layout.lines()}", end="")


def _memory_table(result: Plan) -> Table:
    from rich.table import Table
    from rich.text import Text

    from glasshouse.terminal import terminal_safe

    device = result.device
    title = (
        f"{result.model}: {result.parameters / 1e6:,.1f} million parameters; "
        f"{device.count} × {device.name}, {device.usable_bytes / 1e9:.1f} GB usable\n"
        f"prompts of {result.prompt_tokens} tokens; peak memory of the configuration as it is, in GB"
    )
    table = Table(title=Text(terminal_safe(title)), title_justify="left")
    table.add_column("part")
    columns = [(process, phase) for process in result.processes for phase in process.phases]
    for process, phase in columns:
        name = process.role if process.count == 1 else f"{process.role} (each of {process.count})"
        table.add_column(f"{name}: {phase}", justify="right")
    for part in columns[0][0].phases[columns[0][1]]:
        sizes = [process.phases[phase][part] for process, phase in columns]
        if any(sizes):
            table.add_row(part.replace("_", " "), *(_gigabytes(size) for size in sizes))
    totals = [sum(process.phases[phase].values()) for process, phase in columns]
    table.add_section()
    table.add_row("total", *map(_gigabytes, totals))
    return table


def _sentences(result: Plan, engine: str) -> list[str]:
    worst = max(result.processes, key=lambda process: process.peak)
    verdict = "It fits" if result.fits else "It does not fit"
    sentences = [
        f"{verdict}: the {worst.role} needs {_gigabytes(worst.peak)} GB in the phase {worst.peak_phase}, most of "
        f"it {worst.largest_part.replace('_', ' ')}."
    ]
    if not result.layout.fits:
        largest = max(result.layout.processes, key=lambda process: process.peak)
        has_heavy_generator = largest.role == "generator" and engine == "torch"
        sentences.append(
            f"No layout fits: the last that was tried needs {_gigabytes(largest.peak)} GB for the {largest.role}. Use "
            f"a device with more memory, {'generate.engine=vllm, ' if has_heavy_generator else ''}a smaller model, "
            "or a smaller generate.max_tokens."
        )
    return sentences


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3f}" if size < 1e9 else f"{size / 1e9:.1f}"
