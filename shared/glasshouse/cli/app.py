"""`glasshouse`: the list of commands, and how errors are reported."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

from glasshouse import __version__

# each module declares its commands
from glasshouse.cli import before, machines, measure, runs, study, tasks, train  # noqa: F401
from glasshouse.cli.parser import COMMANDS, CommandParser, add_commands
from glasshouse.errors import GlasshouseError, install_command, locate_user_code
from glasshouse.terminal import terminal_safe

GROUPS = {
    "start": ("demo",),
    "before training": ("audit-reward", "predict"),
    "train": ("train", "resume", "eval", "sft"),
    "measure": ("monitor", "measure", "study"),
    "look": ("rollouts", "check", "report", "view", "config", "tasks"),
    "scale out": ("plan", "hosts"),
}
"""The sections of `glasshouse --help`."""
INTRODUCTION = """\
Train language models with RL, and measure whether their chain of thought can still be monitored."""
EPILOG = """\
examples:
  glasshouse demo                 # does a monitor in the reward hide the use of a hint? (half a minute)
  glasshouse train                # the embedded model learns digit sums, in about a minute
  glasshouse train --dry-run      # print the resolved configuration
  glasshouse COMMAND --help       # arguments and examples of one command

Arguments of the form key=value override the configuration; `glasshouse config` explains every key.
Exit codes: 0 success, 1 a check failed, 2 user error, 130 interrupted (see glasshouse resume --help)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""

    def parse_and_run() -> int | None:
        given = list(sys.argv[1:] if argv is None else argv)
        args = make_parser().parse_args(given or ["--help"])
        if getattr(args, "imports", None):
            from glasshouse.registry import import_modules

            import_modules(args.imports)
        return args.call(args)

    return run_command(parse_and_run)


def make_parser() -> CommandParser:
    """The parser of all commands, with the command list in sections."""
    lines = [INTRODUCTION]
    for title, names in GROUPS.items():
        lines.append(f"\n{title}:")
        lines += [f"  {name:<12} {COMMANDS[name].summary}" for name in names]
    parser = CommandParser(
        prog="glasshouse",
        usage="glasshouse [-h] [--version] COMMAND ...",
        description="\n".join(lines),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"glasshouse {__version__}")
    add_commands(parser)
    return parser


def run_command(command: Callable[[], int | None]) -> int:
    """Call `command`; a user error becomes a message on stderr and exit code 2, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook replaces it
        sys.stdout.reconfigure(line_buffering=True)  # a pipe gets whole lines
    try:
        return int(command() or 0)
    except GlasshouseError as error:
        return _print_error(str(error))
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "tokenizers"):
            raise
        return _print_error(
            f"This command runs a model, and {error.name} is not installed: {install_command('train')}"
        )
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
    except Exception as error:
        if not (where := locate_user_code(error)):
            raise
        return _print_error(f"{where}: {type(error).__name__}: {error}")


def _print_error(message: str) -> int:
    print(f"error: {terminal_safe(message)}", file=sys.stderr)
    return 2


def explain_os_error(error: OSError) -> str:
    """What the operating system refused, where, and what to do."""
    code = error.errno or 0
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    full = (
        "The disk is full and the command stopped. Files written before are intact: free some space, then repeat "
        "the command. Training continues from its last checkpoint."
    )
    hints = {
        errno.ENOSPC: full,
        errno.EDQUOT: full,
        errno.EIO: "The disk reports an error. Files written before are intact: repeat the command, or "
        "copy the run to another disk and resume it there.",
        errno.EFBIG: "It exceeds the limit of this shell (`ulimit -f`) or of the file system. Files written before "
        "are intact: raise the limit, then repeat the command.",
        errno.EROFS: "Choose a writable place with out=… or --out.",
        errno.EACCES: "Change its permissions, or choose another place with out=… or --out.",
        errno.ENAMETOOLONG: "Choose a shorter name.",
    }
    return f"{where}{error.strerror or os.strerror(code)}. {hints.get(code, '')}".rstrip()
