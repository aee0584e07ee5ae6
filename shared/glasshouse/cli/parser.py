"""How commands are declared: a decorator with the command's arguments as data, and argparse behind it.

    @command("check audit", "find leaked problems", {"RUN": "a run directory", "--json": "print JSON"},
             examples=["glasshouse check audit runs/try"])
    def _audit(args): ...

An argument is written as `glasshouse … --help` shows it:

    RUN  RUN?  RUN+  RUN*      one, at most one, some, any number
    --json                     a switch
    --out FOLDER               an option with a value; ! it is required, ... it may be repeated
    --jobs N = 2               a whole number and its default; X is any number
    --style cot|direct         one of these
    key=value                  overrides of the configuration, before, between or after other arguments
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from glasshouse.errors import did_you_mean
from glasshouse.terminal import terminal_safe, terminal_safe_json

Arguments = Mapping[str, str | dict[str, Any]]
"""How an argument is written → its help, or the keywords of `add_argument`."""
Handler = TypeVar("Handler", bound=Callable[..., int | None])
OVERRIDE = re.compile(r"[A-Za-z_][\w.-]*=")

RUN: Arguments = {"RUN": "a run directory"}
JSON: Arguments = {"--json": "print JSON"}
ACCEPT: Arguments = {
    "--accept-changes": "continue although a file that the run was made from has changed; this is recorded"
}
CONFIG: Arguments = {
    "--config FILE...": "a YAML file that replaces defaults; repeatable, later files win"
}
IMPORTS: Arguments = {
    "--imports MODULE...": "a module or file.py that registers your own parts, as in the config key `imports`; "
    "repeatable"
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them, as `glasshouse check`."""

    summary: str
    arguments: Arguments
    details: str
    examples: Sequence[str]
    exclusive: Sequence[Sequence[str]]
    """Options of which at most one may be given."""
    run: Callable[..., int | None] | None


COMMANDS: dict[str, Command] = {}


def command(
    name: str,
    summary: str,
    arguments: Arguments,
    details: str = "",
    *,
    examples: Sequence[str],
    exclusive: Sequence[Sequence[str]] = (),
) -> Callable[[Handler], Handler]:
    """Declare the command that the function below runs."""

    def declare(run: Handler) -> Handler:
        COMMANDS[name] = Command(summary, arguments, details, examples, exclusive, run)
        return run

    return declare


def command_group(name: str, summary: str, details: str = "", *, examples: Sequence[str]) -> None:
    """Declare a command whose actions, as in `check audit`, are declared after it."""
    COMMANDS[name] = Command(summary, {}, details, examples, (), None)


class CommandParser(argparse.ArgumentParser):
    """Like `ArgumentParser`, but overrides may be placed anywhere, and the error for an unknown command or
    choice suggests the nearest known one."""

    takes_overrides = False
    default_action = ""
    """The action that is meant if the first argument names none, as in `glasshouse check RUN`."""
    actions: Collection[str] = ()

    def declare(self, declared: Command) -> None:
        """Add what a command declares."""
        summary = f"{declared.summary[:1].upper()}{declared.summary[1:]}."
        paragraphs = [summary, *declared.details.split("\n\n")]
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.description = "\n\n".join(textwrap.fill(p, 96) for p in paragraphs)
        self.epilog = "\n  ".join(["examples:", *declared.examples])
        groups = [(names, self.add_mutually_exclusive_group()) for names in declared.exclusive]
        for text, help in declared.arguments.items():
            option = text.partition(" ")[0]
            target = next((group for names, group in groups if option in names), self)
            name, keywords = _parse_argument(text)
            self.takes_overrides |= name == "overrides"
            keywords |= help if isinstance(help, dict) else {"help": help}
            if keywords.get("default"):
                keywords["help"] += f" (default {keywords['default']})"
            target.add_argument(name, **keywords)
        if declared.run:
            self.set_defaults(call=declared.run)

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


def _parse_argument(text: str) -> tuple[str, dict[str, Any]]:
    """The name and keywords for `add_argument`.

    Example: `_parse_argument("--jobs N = 2")` gives `("--jobs", {"metavar": "N", "type": int, "default": 2})`
    """
    if text == "key=value":
        return "overrides", {"nargs": "*", "metavar": text}
    name, _, value = text.partition(" ")
    if not name.startswith("--"):
        word = name.rstrip("?+*")
        keywords: dict[str, Any] = {"metavar": word}
        if count := name[len(word) :]:
            keywords |= {"nargs": count, "default": "" if count == "?" else []}
        return word.lower().partition(".")[0], keywords
    if not value:
        return name, {"action": "store_true"}
    value, _, default = value.partition(" = ")
    metavar = value.removesuffix("...").removesuffix("!")
    if "|" in value:
        choices = metavar.split("|")
        return name, {"choices": choices, "metavar": metavar, "default": default}
    if value.endswith("..."):
        return name, {"action": "append", "metavar": metavar, "default": []}
    keywords = {"metavar": metavar, "default": default}
    if metavar in ("N", "X"):
        kind = int if metavar == "N" else float
        keywords |= {"type": kind, "default": kind(default) if default else None}
    return name, keywords | ({"required": True} if value.endswith("!") else {})


def add_commands(parser: CommandParser) -> Any:
    """Add all declared commands; an action named `run`, `page`, `show` or `measure` may be left out."""
    commands = parser.add_subparsers(
        prog="glasshouse", dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    groups: dict[str, Any] = {}
    for name, declared in COMMANDS.items():
        group, _, action = name.partition(" ")
        parent = groups[group] if action else commands
        added: CommandParser = parent.add_parser(action or name, help=declared.summary)
        added.declare(declared)
        if declared.run is None:
            groups[name] = added.add_subparsers(dest="action", metavar="ACTION", required=True)
            added.actions = groups[name].choices
        if action in ("run", "page", "show", "measure"):
            commands.choices[group].default_action = action
    return commands


# --- output ------------------------------------------------------------------------------------


def print_safe(*lines: object) -> None:
    """Print lines in which nothing controls the terminal."""
    for line in lines:
        print(terminal_safe(str(line)))


def print_json(value: Any) -> None:
    print(terminal_safe_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def print_damage(message: object) -> None:
    """Name what is damaged of a run on stderr; the command continues with the rest."""
    print(terminal_safe(f"damage: {message}"), file=sys.stderr)
