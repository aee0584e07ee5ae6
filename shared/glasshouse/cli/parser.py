"""The argument parser of every command: argparse, plus overrides anywhere, suggestions and examples."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from glasshouse.errors import did_you_mean
from glasshouse.terminal import terminal_safe

OVERRIDE = re.compile(r"[A-Za-z_][\w.-]*=")


class CommandParser(argparse.ArgumentParser):
    """Like `ArgumentParser`, but `key=value` overrides may be placed before, between or after other
    arguments, and the error for an unknown command or choice suggests the nearest known one."""

    takes_overrides = False
    default_action = ""
    """The action that is meant if the first argument names none, as in `glasshouse check RUN`."""
    actions: Collection[str] = ()

    def __init__(
        self, summary: str = "", details: str = "", examples: Iterable[str] = (), **kwargs: Any
    ) -> None:
        self.summary = summary
        paragraphs = [f"{summary[:1].upper()}{summary[1:]}.", *details.split("\n\n")]
        kwargs.setdefault("description", "\n\n".join(textwrap.fill(p, 96) for p in paragraphs))
        kwargs.setdefault("epilog", "\n  ".join(["examples:", *examples]) if examples else None)
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def add_overrides(self, help: str) -> None:
        """Accept `key=value` arguments and collect them in `args.overrides`."""
        self.takes_overrides = True
        self.add_argument("overrides", nargs="*", metavar="key=value", help=help)

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads for the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self.default_action and (not args or args[0] not in (*self.actions, "-h", "--help")):
            args = [self.default_action, *(args or [])]
        if not self.takes_overrides:
            return super().parse_known_args(args, namespace)
        overrides, others, previous = list[str](), list[str](), ""
        for argument in args or []:
            option = self._option_string_actions.get(previous)
            is_option_value = option is not None and option.nargs != 0
            is_override = OVERRIDE.match(argument) and not is_option_value
            (overrides if is_override else others).append(argument)
            previous = argument
        parsed, unknown = super().parse_known_args(others, namespace)
        if parsed.overrides:
            self.error(f"{parsed.overrides[0]!r} is not an override; write key=value")
        parsed.overrides = overrides
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = map(str, action.choices)
            raise argparse.ArgumentError(
                action, f'"{value}" is unknown.{did_you_mean(value, known)}'
            )


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None] | None,
    summary: str,
    details: str = "",
    examples: Iterable[str] = (),
) -> CommandParser:
    """Add the subcommand `name`, which calls `run` with its parsed arguments.

    Example: `add_command(commands, "eval", _eval, "evaluate a model", examples=["glasshouse eval pocket"])`
    """
    parser: CommandParser = commands.add_parser(
        name, help=summary, summary=summary, details=details, examples=examples
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_actions(parser: CommandParser, default: str = "") -> Any:
    """The second level of a command, as in `glasshouse check audit RUN`; `default` may be left out."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parser.default_action, parser.actions = default, actions.choices
    return actions


def add_run_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", help="a run directory")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_imports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or file.py that registers your own parts, as in the config key `imports`; repeatable",
    )


def add_config_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file that replaces defaults; repeatable, later files win",
    )


def print_damage(message: str) -> None:
    """Name what is damaged of a run on stderr; the command continues with the rest."""
    print(terminal_safe(f"damage: {message}"), file=sys.stderr)
