"""`glasshouse sft`: supervised training."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from glasshouse.cli.parser import add_command, add_imports
from glasshouse.terminal import shell_command, terminal_safe


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "sft",
        _sft,
        "train any model on demonstrations, as a base for RL",
        "The result is a model folder. While it trains, its state is in OUT.training; the same command "
        "continues it after Ctrl-C or a crash, bit for bit. Without MODEL, the model is built as the recipe "
        "says, from random weights or from another model, and measured.",
        [
            "glasshouse sft smollm2 --recipe leaked-hint-0 --out models/smollm2-hint steps=40",
            "glasshouse sft smollm2 --recipe mine.yaml --out models/mine learn.lora_rank=16",
            "glasshouse sft --recipe pocket --out build/pocket",
        ],
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="MODEL",
        help="a model folder, a hub name, or a model by name; default: what the recipe says",
    )
    parser.add_argument(
        "--recipe",
        required=True,
        help="a built-in recipe, such as leaked-hint-0, or a YAML file (docs/models.md)",
    )
    parser.add_argument("--out", required=True, help="the model folder to write")
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="demonstrations per step (default: 8; without MODEL, those of the recipe)",
    )
    parser.add_argument(
        "--save-every",
        type=int,
        metavar="N",
        help="save every N steps (default: 20; without MODEL, 500)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    add_imports(parser)
    parser.add_overrides("steps, seed, device, dtype, chat.* and learn.*, as in learn.lora_rank=16")


def _sft(args: argparse.Namespace) -> int:
    from glasshouse.registry import import_modules
    from glasshouse.training.sft import sft

    import_modules(args.imports)
    try:
        result = sft(
            args.model, args.recipe, args.out, args.overrides,
            batch_size=args.batch_size, save_every=args.save_every, progress=not args.quiet,
        )  # fmt: skip
    except KeyboardInterrupt:
        command = shell_command(["glasshouse", *sys.argv[1:]])
        print(f"interrupted; continue with: {command}", file=sys.stderr)
        return 130
    if not args.quiet:
        use = shell_command([f"model={result.path}"])
        print(f"written to {terminal_safe(str(result.path))}; use it with {use}")
    return 0
