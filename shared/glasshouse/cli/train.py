"""`glasshouse train`, `resume`, `eval` and `sft`, and the command line of every experiment's train.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.parser import (
    ACCEPT,
    COMMANDS,
    CONFIG,
    IMPORTS,
    JSON,
    RUN,
    CommandParser,
    command,
    print_json,
    print_safe,
)
from glasshouse.terminal import format_duration, shell_command, terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.config.schema import Config
    from glasshouse.training.train import TrainResult

EXIT_CODES = """\
Exit codes: 0 finished; 2 user error; 130 interrupted, every complete step is saved; 131 stopped
immediately, resumes from the last checkpoint"""
EXIT_CODE_OF = {"finished": 0, "interrupted": 130, "stopped": 131}
MIN_REPORT_STEPS = 10
"""Shorter runs have no curve to show; `glasshouse report` writes their report on request."""
QUIET = {"--quiet": "print errors only"}
OUTPUT = {"--verbose": "print one completion per step", **QUIET}


@command(
    "train",
    "train a model: evaluate, train, evaluate again",
    {
        "key=value": "overrides by dotted key, e.g. learn.learning_rate=1e-4 seed=3",
        **CONFIG,
        "--dry-run": "check and print the resolved configuration, and exit",
        **OUTPUT,
    },
    "Without arguments, the embedded model learns the task sum_digits. If the run directory "
    "(out=…) holds an interrupted run of the same configuration, it is resumed.",
    examples=[
        "glasshouse train",
        "glasshouse train steps=20 seed=3 out=runs/try",
        "glasshouse train --config training/example.rl/config.yaml learn.algorithm=rloo",
    ],
)
def _train(args: argparse.Namespace, config_files: Sequence[Path] = (), script: str = "") -> int:
    from glasshouse.config.loading import load_config, to_yaml
    from glasshouse.registry import script_import

    config = load_config([*config_files, *args.config], args.overrides)
    if script:  # what it registers is then known to `resume`, `eval` and `monitor` too
        imports = tuple(dict.fromkeys([script_import(script), *config.imports]))
        config = config.model_copy(update={"imports": imports})
    if args.dry_run:
        from glasshouse.training.build import check_config

        for text in check_config(config):
            print(f"warning: {text}", file=sys.stderr)
        print(to_yaml(config), end="")
        return 0
    from glasshouse.training.train import train

    result = train(config, progress=not args.quiet, verbose=args.verbose)
    if not args.quiet:
        report_after_training(config, result)
    return EXIT_CODE_OF[result.outcome]


def run_experiment(script: str) -> None:
    """Run the experiment whose train.py is `script`: its config.yaml, `--config` files, overrides.

    Example: `run_experiment(__file__)`
    """
    from glasshouse.cli.app import run_command

    config_file = Path(script).with_name("config.yaml")
    parser = CommandParser(prog=f"python {script}")
    parser.declare(COMMANDS["train"])
    parser.description = (
        f"Train {config_file.parent.name} as configured in {config_file}.\n"
        "`glasshouse config` explains every key."
    )
    parser.epilog = (
        f"examples:\n  python {script} seed=1\n  python {script} --config tests/test_config.yaml"
    )
    args = parser.parse_args(sys.argv[1:])
    sys.exit(run_command(lambda: _train(args, [config_file], script)))


@command(
    "resume",
    "resume an interrupted run",
    {
        **RUN,
        "key=value": "steps=N trains longer; keys that change the numbers need a new run",
        **ACCEPT,
        **OUTPUT,
    },
    "Continues from the newest valid checkpoint and truncates the logs to it. Weights, metrics and "
    "rollouts are bitwise equal to those of an uninterrupted run. Repeating the train command does "
    f"the same.\n\n{EXIT_CODES}",
    examples=[
        "glasshouse resume runs/try",
        "glasshouse resume runs/try steps=200",
    ],
)
def _resume(args: argparse.Namespace) -> int:
    from glasshouse.training.train import resume

    settings = {"progress": not args.quiet, "verbose": args.verbose}
    result = resume(args.run, args.overrides, accept_changes=args.accept_changes, **settings)
    if not args.quiet:
        report_after_training(result.open().config, result)
    return EXIT_CODE_OF[result.outcome]


def report_after_training(
    config: Config, result: TrainResult, console: Console | None = None
) -> None:
    """Monitor the run if monitor.at_end is set, and write results/report.html. Neither can fail a run: an
    error is printed, and the run stays finished."""
    from rich.text import Text

    from glasshouse.terminal import make_console

    if result.outcome != "finished":
        return
    console = console or make_console()
    wanted = {
        "Monitoring failed": (config.monitor.at_end, _monitor_ends),
        "The report could not be written": (result.steps >= MIN_REPORT_STEPS, _write_report),
    }
    for failure, (is_wanted, action) in wanted.items():
        if is_wanted:
            try:
                action(result.path, console)
            except Exception as error:
                text = f"{failure}: {str(error) or type(error).__name__}"
                console.print(Text(terminal_safe(text), "yellow"), soft_wrap=True)


def _write_report(run: Path, console: Console) -> None:
    from glasshouse.view.report import write_report

    console.print(terminal_safe(f"report       {write_report(run)}"), soft_wrap=True, markup=False)


def _monitor_ends(run: Path, console: Console) -> None:
    from glasshouse.measurement.monitor_run import MonitorProgress, monitor_run
    from glasshouse.view.terminal_tables import measures_table

    bar = MonitorProgress(console, lines=False)
    results = monitor_run(run, first_and_last=True, progress=bar)
    console.print("\n[bold]Monitorability[/]")
    console.print(measures_table(results))
    more = f"more    {shell_command(['glasshouse', 'monitor', run])}"
    for line in (results["verdict"], more):
        console.print(terminal_safe(line), soft_wrap=True, markup=False)


@command(
    "eval",
    "evaluate a model or checkpoint on held-out problems",
    {
        "MODEL": "a checkpoint, a model folder, a hub name, or an embedded model",
        "--task NAME": "default: the checkpoint's task, else sum_digits; see glasshouse tasks",
        "--style cot|direct": "with or without reasoning (default: as the checkpoint was trained, else cot)",
        **JSON,
        "key=value": "for example evaluate.problems=500 task.options.count=[2,2]",
    },
    "A checkpoint is evaluated like its run: with its task, task options, style and the settings of "
    "chat, generate, reward and evaluate, unless an argument says otherwise.",
    examples=[
        "glasshouse eval pocket",
        "glasshouse eval runs/try/checkpoints/step-000060 --json",
        "glasshouse eval pocket --task reverse_digits evaluate.problems=500",
    ],
)
def _eval(args: argparse.Namespace) -> None:
    import time

    from glasshouse.measurement.evaluate import evaluate
    from glasshouse.tasks.base import make_task
    from glasshouse.terminal import Heartbeat, make_console
    from glasshouse.training.display import reading_lines, results_table

    errors, started = make_console(stderr=True), time.monotonic()

    def say_alive() -> None:
        duration = format_duration(time.monotonic() - started)
        errors.print(f"evaluating, after {duration}", style="dim", soft_wrap=True)

    with Heartbeat(say_alive):
        result = evaluate(args.model, args.task, style=args.style, overrides=args.overrides)
    if result.warning:
        print(f"warning: {result.warning}", file=sys.stderr)
    if args.json:
        print_json(result.values)
        return
    options = ", ".join(f"{name} {value}" for name, value in result.options.items())
    about = make_task(result.task, result.options).describe() or options or "default options"
    print_safe(f"{result.task} ({result.style}), {about}")
    make_console().print(results_table(result=result.values))
    if result.no_accuracy:
        print_safe(f"no accuracy: {result.no_accuracy}")
    print_safe(*reading_lines(result.values))


@command(
    "sft",
    "train any model on demonstrations, as a base for RL",
    {
        "MODEL?": "a model folder, a hub name, or a model by name; default: what the recipe says",
        "--recipe NAME!": "a built-in recipe, such as leaked-hint-0, or a YAML file (docs/models.md)",
        "--out FOLDER!": "the model folder to write",
        "--batch-size N": "demonstrations per step (default: 8; without MODEL, those of the recipe)",
        "--save-every N": "save every N steps (default: 20; without MODEL, 500)",
        **QUIET,
        **IMPORTS,
        "key=value": "steps, seed, device, dtype, chat.* and learn.*, as in learn.lora_rank=16",
    },
    "The result is a model folder. While it trains, its state is in OUT.training; the same command "
    "continues it after Ctrl-C or a crash, bit for bit. Without MODEL, the model is built as the recipe "
    "says, from random weights or from another model, and measured.",
    examples=[
        "glasshouse sft smollm2 --recipe leaked-hint-0 --out models/smollm2-hint steps=40",
        "glasshouse sft smollm2 --recipe mine.yaml --out models/mine learn.lora_rank=16",
        "glasshouse sft --recipe pocket --out build/pocket",
    ],
)
def _sft(args: argparse.Namespace) -> int:
    from glasshouse.training.sft import sft

    sizes = {"batch_size": args.batch_size, "save_every": args.save_every}
    try:
        result = sft(
            args.model, args.recipe, args.out, args.overrides, **sizes, progress=not args.quiet
        )
    except KeyboardInterrupt:
        command = shell_command(["glasshouse", *sys.argv[1:]])
        print(f"interrupted; continue with: {command}", file=sys.stderr)
        return 130
    if not args.quiet:
        print_safe(
            f"written to {result.path}; use it with {shell_command([f'model={result.path}'])}"
        )
    return 0
