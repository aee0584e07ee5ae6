"""`glasshouse train`, `resume` and `eval`, and the command line of every experiment's train.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import (
    CommandParser,
    add_command,
    add_config_files,
    add_json,
    add_run_directory,
)

if TYPE_CHECKING:
    from glasshouse.config.schema import Config
    from glasshouse.training.train import TrainResult

EXIT_CODES = """\
Exit codes: 0 finished; 2 user error; 130 interrupted, every complete step is saved; 131 stopped
immediately, resumes from the last checkpoint"""
EXIT_CODE_OF = {"finished": 0, "interrupted": 130, "stopped": 131}


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        _train,
        "train a model: evaluate, train, evaluate again",
        "Without arguments, the embedded model learns the task sum_digits. If the run directory "
        "(out=…) holds an interrupted run of the same configuration, it is resumed.",
        [
            "glasshouse train",
            "glasshouse train steps=20 seed=3 out=runs/try",
            "glasshouse train --config training/example.rl/config.yaml learn.algorithm=rloo",
        ],
    )
    add_training_arguments(parser)

    parser = add_command(
        commands,
        "resume",
        _resume,
        "resume an interrupted run",
        "Continues from the newest valid checkpoint and truncates the logs to it. Weights, metrics and "
        "rollouts are bitwise equal to those of an uninterrupted run. Repeating the train command does "
        f"the same.\n\n{EXIT_CODES}",
        [
            "glasshouse resume runs/try",
            "glasshouse resume runs/try steps=200",
            "glasshouse resume runs/try --fork runs/slower learn.learning_rate=1e-5",
        ],
    )
    add_run_directory(parser)
    parser.add_overrides("steps=N trains longer; keys that change the numbers need --fork")
    parser.add_argument("--fork", metavar="NEW", help="branch into a new run; any key may change")
    _add_output_arguments(parser)

    parser = add_command(
        commands,
        "eval",
        _eval,
        "evaluate a model or checkpoint on held-out problems",
        "A checkpoint is evaluated like its run: with its task, task options, style and the settings of "
        "generate, reward and evaluate, unless an argument says otherwise.",
        [
            "glasshouse eval pocket",
            "glasshouse eval runs/try/checkpoints/step-000060 --json",
            "glasshouse eval pocket --task reverse_digits evaluate.problems=500",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a model folder, a hub name, or an embedded model",
    )
    parser.add_argument(
        "--task",
        default="",
        help="default: the checkpoint's task, else sum_digits; see glasshouse tasks",
    )
    parser.add_argument(
        "--style", choices=["cot", "direct"], default="",
        help="with or without reasoning (default: as the checkpoint was trained, else cot)",
    )  # fmt: skip
    add_json(parser)
    parser.add_overrides("for example evaluate.problems=500 task.options.count=[2,2]")


def add_training_arguments(parser: CommandParser) -> None:
    """The arguments of `glasshouse train` and of every experiment's train.py."""
    parser.add_overrides("overrides by dotted key, e.g. learn.learning_rate=1e-4 seed=3")
    add_config_files(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check and print the resolved configuration, and exit",
    )
    _add_output_arguments(parser)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="print one completion per step")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def run_experiment(script: str) -> None:
    """Run the experiment whose train.py is `script`: its config.yaml, `--config` files, overrides.

    Example: `run_experiment(__file__)`
    """
    from glasshouse.cli.app import run_command

    config_file = Path(script).with_name("config.yaml")
    name = config_file.parent.name
    parser = CommandParser(
        f"train {name} as configured in {config_file}",
        "`glasshouse config` explains every key.",
        [f"python {script} seed=1", f"python {script} --config tests/test_config.yaml"],
        prog=f"python {script}",
    )
    add_training_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    sys.exit(run_command(lambda: _train(args, [config_file], script)))


def _train(args: argparse.Namespace, config_files: Sequence[Path] = (), script: str = "") -> int:
    from glasshouse.config.loading import load_config, to_yaml
    from glasshouse.registry import script_import

    config = load_config([*config_files, *args.config], args.overrides)
    if script:  # what it registers is then known to `resume`, `eval` and `monitor` too
        imports = tuple(dict.fromkeys([script_import(script), *config.imports]))
        config = config.model_copy(update={"imports": imports})
    if args.dry_run:
        from glasshouse.training.build import check_config

        check_config(config)
        print(to_yaml(config), end="")
        return 0
    from glasshouse.training.train import train

    return _finish(args, config, train(config, **_output_settings(args)))


def _resume(args: argparse.Namespace) -> int:
    from glasshouse.training.train import resume

    result = resume(args.run_directory, args.overrides, fork=args.fork, **_output_settings(args))
    return _finish(args, result.open().config, result)


def _finish(args: argparse.Namespace, config: Config, result: TrainResult) -> int:
    if not args.quiet:
        from glasshouse.cli.post_train import report_after_training

        report_after_training(config, result)
    return EXIT_CODE_OF[result.outcome]


def _output_settings(args: argparse.Namespace) -> dict[str, bool]:
    return {"progress": not args.quiet, "verbose": args.verbose}


def _eval(args: argparse.Namespace) -> None:
    import json
    import time

    from glasshouse.measurement.evaluate import evaluate
    from glasshouse.terminal import Heartbeat, format_duration, make_console, terminal_safe
    from glasshouse.training.display import results_table

    errors, started = make_console(stderr=True), time.monotonic()

    def say_alive() -> None:
        duration = format_duration(time.monotonic() - started)
        errors.print(f"evaluating, after {duration}", style="dim", soft_wrap=True)

    with Heartbeat(say_alive):
        result = evaluate(args.model, args.task, style=args.style, overrides=args.overrides)
    if result.warning:
        print(f"warning: {result.warning}", file=sys.stderr)
    if args.json:
        print(json.dumps(result.values, indent=2))
        return
    options = ", ".join(f"{name} {value}" for name, value in result.options.items())
    print(terminal_safe(f"{result.task} ({result.style}), {options or 'default options'}"))
    make_console().print(results_table(result.values))
