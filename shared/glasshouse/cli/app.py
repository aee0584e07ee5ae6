"""`glasshouse`: the list of commands, and how errors are reported."""

from __future__ import annotations

import errno
import io
import os
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence

from glasshouse import __version__
from glasshouse.cli import demo, hosts, measure, plan, rollouts, runs, sft, study, tasks, train
from glasshouse.cli.parser import CommandParser
from glasshouse.errors import GlasshouseError
from glasshouse.terminal import terminal_safe

GROUPS = {
    "start": (demo.add_commands,),
    "train": (train.add_commands, sft.add_commands),
    "measure": (measure.add_commands, study.add_commands),
    "look": (rollouts.add_commands, runs.add_commands, tasks.add_commands),
    "scale out": (plan.add_commands, hosts.add_commands),
}
"""The sections of `glasshouse --help`, and the modules with their commands."""
INTRODUCTION = """\
Train language models with RL, and measure whether their chain of thought can still be monitored."""
EPILOG = """\
examples:
  glasshouse demo                 # does a monitor in the reward hide the use of a hint? (3 minutes)
  glasshouse train                # the embedded model learns digit sums, in about a minute
  glasshouse train --dry-run      # print the resolved configuration
  glasshouse COMMAND --help       # arguments and examples of one command

Arguments of the form key=value override the configuration; `glasshouse config` explains every key.
Exit codes: 0 success, 1 a check failed, 2 user error, 130 interrupted (see glasshouse resume --help)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""

    def parse_and_run() -> int | None:
        args = make_parser().parse_args(argv)
        return args.run(args)

    return run_command(parse_and_run)


def make_parser() -> CommandParser:
    """The parser of all commands, with the command list in sections."""
    parser = CommandParser(
        prog="glasshouse", usage="glasshouse [-h] [--version] COMMAND ...", epilog=EPILOG
    )
    parser.add_argument("--version", action="version", version=f"glasshouse {__version__}")
    commands = parser.add_subparsers(
        prog="glasshouse", dest="command", metavar="COMMAND", required=True, help=SUPPRESS
    )
    lines, listed = [INTRODUCTION], set[str]()
    for title, adders in GROUPS.items():
        for add_commands in adders:
            add_commands(commands)
        lines.append(f"\n{title}:")
        new = {name: command for name, command in commands.choices.items() if name not in listed}
        lines += [f"  {name:<12} {command.summary}" for name, command in new.items()]
        listed |= new.keys()
    parser.description = "\n".join(lines)
    return parser


def run_command(command: Callable[[], int | None]) -> int:
    """Call `command`; a user error becomes a message on stderr and exit code 2, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook replaces it
        sys.stdout.reconfigure(line_buffering=True)  # a pipe gets whole lines
    try:
        return int(command() or 0)
    except GlasshouseError as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno is None:
            raise
        return _print_error(explain_os_error(error))


def _print_error(message: str) -> int:
    print(f"error: {terminal_safe(message)}", file=sys.stderr)
    return 2


def explain_os_error(error: OSError) -> str:
    """What the operating system refused, where, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = (
            "The disk is full" if error.errno == errno.ENOSPC else "The disk quota is exceeded"
        )
        return (
            f"{problem} and the command stopped. Files written before are intact: free some space, then "
            "repeat the command. Training continues from its last checkpoint."
        )
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    hints = {
        errno.EIO: "The disk reports an error. Files written before are intact: repeat the command, or "
        "copy the run to another disk and resume it there.",
        errno.EROFS: "Choose a writable place with out=… or --out.",
        errno.EACCES: "Change its permissions, or choose another place with out=… or --out.",
        errno.ENAMETOOLONG: "Choose a shorter name.",
    }
    hint = hints.get(error.errno or 0, "")
    return f"{where}{error.strerror or os.strerror(error.errno or 0)}. {hint}".rstrip()
