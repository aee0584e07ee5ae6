"""The commands of `glasshouse`, nothing else: each parses its arguments and calls a room."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse import __version__
from glasshouse.cli import data, hosts, monitor, rollouts, runs, study, tasks, track
from glasshouse.errors import GlasshouseError

if TYPE_CHECKING:
    from glasshouse.config import Config


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is a sentence on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="glasshouse",
        description="Grow language models under RL and see whether their reasoning can still be read.",
        epilog="Start with: glasshouse train --dry-run, then glasshouse train.",
    )
    parser.add_argument("--version", action="version", version=f"glasshouse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        _train,
        runs.add,
        _eval,
        _control,
        tasks.add,
        _grade,
        _config,
        _figure,
        _pocket,
    ):
        add(commands)
    rollouts.add(commands)
    data.add(commands)
    hosts.add(commands)
    monitor.add(commands)
    study.add(commands)
    track.add(commands)
    args = parse(parser, argv)
    return guarded(lambda: args.run(args))


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """As argparse does, but overrides may stand anywhere, after options too."""
    args, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in args or any("=" not in r or r.startswith("-") for r in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def guarded(command: Any) -> int:
    """Turn the errors a person can mend into a sentence and exit code 2."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe sees lines as they come
    try:
        return int(command() or 0)
    except GlasshouseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(
            "error: The disk is full, and the run stopped. What was written before is whole: free some "
            "space, and the same command goes on from the last checkpoint.",
            file=sys.stderr,
        )
        return 2


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `train` and every experiment's train.py take."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="dotted overrides, e.g. learn.learning_rate=1e-4 seed=3",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML laid over the defaults; may be repeated, later ones win",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and stop"
    )
    parser.add_argument("--verbose", action="store_true", help="show a completion of every step")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def train(args: argparse.Namespace, base: Sequence[Path] = ()) -> int:
    """Resolve the configuration, then run it. Interrupted: 130 if all whole steps are saved, 131 if
    the last checkpoint is older than that."""
    from glasshouse import config

    resolved = config.load([*base, *args.config], args.overrides)
    if args.dry_run:
        print(config.dump(resolved), end="")
        return 0
    return finish(resolved, args)


def finish(config: Config, args: argparse.Namespace) -> int:
    """Train to the end, or to where it is interrupted."""
    from glasshouse.train import Run
    from glasshouse.train.display import Quiet, Terminal

    summary = Run(config, Quiet() if args.quiet else Terminal(verbose=args.verbose)).train()
    if not args.quiet:
        from glasshouse.report.post_train import close

        close(config, summary)
    return 131 if "stopped_after" in summary else 130 if "interrupted_at" in summary else 0


def experiment(script: str) -> None:
    """The whole of an experiment's command line: its config.yaml, `--config` files, overrides."""
    base = Path(script).with_name("config.yaml")
    parser = argparse.ArgumentParser(
        prog=f"python {script}",
        description=f"Train as {base} says.",
        epilog="`glasshouse config` explains every key.",
    )
    run_arguments(parser)
    args = parse(parser, None)
    sys.exit(guarded(lambda: train(args, [base])))


def _train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model",
        description="Train: evaluate, learn, evaluate again. Without a --config: the pocket model learns sum_digits.",
    )
    run_arguments(parser)
    parser.set_defaults(run=train)


def _eval(commands: Any) -> None:
    parser = commands.add_parser("eval", help="evaluate a model or checkpoint on held-out problems")
    parser.add_argument(
        "model", metavar="CHECKPOINT", help="a checkpoint, a model folder, a hub name, or pocket"
    )
    parser.add_argument("--task", default="sum_digits", help="see glasshouse tasks")
    parser.add_argument("--style", choices=["cot", "direct"], default="cot")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="e.g. evaluate.problems=500 task.options.count=[2,2]",
    )
    parser.set_defaults(run=_run_eval)


def _run_eval(args: argparse.Namespace) -> None:
    import json

    from rich.console import Console

    from glasshouse import config
    from glasshouse.train.display import scores
    from glasshouse.train.loop import Run

    given = [f"model={args.model}", f"task.name={args.task}", f"task.style={args.style}", "steps=0"]
    found = Run(config.load([], [*given, *args.overrides])).evaluate_only()
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        Console(highlight=False).print(scores(found))


def _control(commands: Any) -> None:
    parser = commands.add_parser(
        "control",
        help="does this pipeline learn, and only from its rewards?",
        description="Positive control: the configuration as it is. Negative control: the same with rewards "
        "shuffled among rollouts, which must not improve. Several seeds of each, and a verdict.",
    )
    run_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds of each (default 5)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--only", choices=["positive", "negative"], help="run one of the two")
    parser.add_argument(
        "--out", default="runs/control", help="where the runs go (default runs/control)"
    )
    parser.set_defaults(run=_run_control)


def _run_control(args: argparse.Namespace) -> int:
    from glasshouse.study.control import control

    return control(args.config, args.overrides, args.seeds, args.jobs, Path(args.out), args.only)


def _grade(commands: Any) -> None:
    parser = commands.add_parser("grade", help="grade a text and say which rule fired and why")
    parser.add_argument("--task", default="sum_digits")
    parser.add_argument("--answer", required=True, help="the gold answer")
    parser.add_argument(
        "--decimals", type=int, default=0, help="decimals that the answer is asked with"
    )
    parser.add_argument("text", nargs="?", help="the completion; standard input if left out")
    parser.set_defaults(run=_run_grade)


def _run_grade(args: argparse.Namespace) -> None:
    from glasshouse import tasks
    from glasshouse.rewards import explain
    from glasshouse.types import Problem

    text = args.text if args.text is not None else sys.stdin.read()
    problem = Problem(
        task=args.task, key="given", question="", answer=args.answer,
        kind=tasks.make(args.task).kind, decimals=args.decimals,
    )  # fmt: skip
    print(explain(problem, text))


def _config(commands: Any) -> None:
    parser = commands.add_parser("config", help="explain every configuration key")
    parser.add_argument(
        "section", nargs="?", default="", help="only keys that begin with this, e.g. learn"
    )
    parser.set_defaults(run=_run_config)


def _run_config(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    from glasshouse import config
    from glasshouse.errors import ConfigError, nearest

    rows = [row for row in config.describe() if row[0].startswith(args.section)]
    if not rows:
        names = {row[0].split(".")[0] for row in config.describe()}
        raise ConfigError(
            f'No configuration key begins with "{args.section}".{nearest(args.section, names)}'
        )
    console = Console(highlight=False)
    for key, kind, default, about in rows:
        console.print(f"[bold]{key}[/] [dim]{escape(kind)}, default[/] {escape(default)}")
        console.print(Padding(Text(about), (0, 0, 0, 4)))


def _figure(commands: Any) -> None:
    parser = commands.add_parser("figure", help="draw the learning curves of runs")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories; several are averaged"
    )
    parser.add_argument("--out", required=True, help="the picture to write, .png or .svg")
    parser.add_argument("--title", default="")
    parser.set_defaults(run=_run_figure)


def _run_figure(args: argparse.Namespace) -> None:
    from glasshouse.report.learning_curves import draw

    draw([Path(run) for run in args.runs], Path(args.out), args.title)


def _pocket(commands: Any) -> None:
    parser = commands.add_parser("pocket", help="build or describe the embedded model")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser(
        "build", help="train the base model from its recipe (under an hour on one core)"
    )
    build.add_argument(
        "--recipe",
        default="pocket",
        help="pocket, mock for tests, or an organism's base such as leaked-hint-0",
    )
    build.add_argument("--out", required=True, help="the folder to write")
    build.add_argument("--steps", type=int, help="fewer steps than the recipe's, to try it out")
    build.set_defaults(run=_run_pocket_build)
    card = actions.add_parser("card", help="print the model's card")
    card.set_defaults(run=_run_pocket_card)


def _run_pocket_build(args: argparse.Namespace) -> None:
    from glasshouse.pocket.build_command import build_into

    build_into(args.recipe, Path(args.out), args.steps)


def _run_pocket_card(args: argparse.Namespace) -> None:
    from glasshouse.models.policy import POCKET

    print((POCKET / "README.md").read_text(), end="")
