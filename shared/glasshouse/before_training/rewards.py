"""Reward functions of any trainer, as TRL calls them: `f(prompts=…, completions=…, **columns)` returns numbers or None.

module:function    file.py:function    module:factory(max_len=100)
"""

from __future__ import annotations

import ast
import importlib
import math
import os
import runpy
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from glasshouse.errors import RewardError, did_you_mean, locate_user_code
from glasshouse.rollout.cot_edits import Score, full_text
from glasshouse.types import Rollout

Columns = Mapping[str, Sequence[Any]]


def score_by_functions(
    texts: Sequence[str],
    rollouts: Sequence[Rollout],
    rows: Sequence[Mapping[str, Any]],
    renamed: Sequence[str] = (),
    allow_network: bool = False,
) -> Score:
    """Functions with the columns of the rollouts' rows, some of them `renamed` (NAME=COLUMN). Completions are texts;
    a function that fails on texts gets chats with one message. No edit changes a rollout's problem, so that it
    names its row."""
    functions = {text.partition(":")[2]: load_function(text) for text in texts}
    names = {name: name for row in rows for name in row}
    for text in renamed:
        name, equals, column = text.partition("=")
        if not equals or column not in names:
            raise RewardError(
                f'--column "{text}": write NAME=COLUMN with a column of the rollouts.{did_you_mean(column, names)}'
            )
        names[name] = column
    places = {id(rollout.problem): n for n, rollout in enumerate(rollouts)}
    takes_messages: set[str] = set()

    def score_one(name: str, chosen: Sequence[Rollout], columns: Columns) -> list[float]:
        def call(as_messages: bool) -> list[float]:
            with _no_network(name, allow_network):
                return _call(name, functions[name], chosen, columns, as_messages)

        if name in takes_messages:
            return call(True)
        try:
            return call(False)
        except RewardError as failure:
            with suppress(RewardError):
                values = call(True)
                takes_messages.add(name)
                return values
            raise failure from None

    def score(chosen: Sequence[Rollout]) -> dict[str, list[float]]:
        own = [rows[places[id(rollout.problem)]] for rollout in chosen]
        columns = {name: [row.get(column) for row in own] for name, column in names.items()}
        return {name: score_one(name, chosen, columns) for name in functions}

    return score


def _call(
    name: str,
    function: Callable[..., Any],
    rollouts: Sequence[Rollout],
    columns: Columns,
    as_messages: bool,
) -> list[float]:
    """The rewards; NaN where the function returns None."""
    prompts: list[Any] = [rollout.prompt for rollout in rollouts]
    completions: list[Any] = [full_text(rollout) for rollout in rollouts]
    if as_messages:
        prompts = [[{"role": "user", "content": text}] for text in prompts]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    ids = [list(rollout.completion.tokens) for rollout in rollouts]
    arguments = {**columns, "prompts": prompts, "completions": completions, "completion_ids": ids}
    try:
        values = function(**arguments)
        numbers = [math.nan if value is None else float(value) for value in values]
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"The reward {name} failed with {type(error).__name__}: {error} "
            f"({locate_user_code(error) or 'in its call'}). The rollouts have the columns {', '.join(columns)} (rename "
            f"one with --column NAME=COLUMN); the first of {len(rollouts)} was {full_text(rollouts[0])[:200]!a}."
        ) from error
    if len(numbers) != len(rollouts) or any(map(math.isinf, numbers)):
        raise RewardError(
            f"The reward {name} must return {len(rollouts)} numbers or None; it returned {values!r:.80}."
        )
    return numbers


def load_function(text: str) -> Callable[..., Any]:
    """Import a function, or make one: `module:factory(max_len=100)`, with constants as arguments."""
    source, _, expression = text.partition(":")
    name, bracket, _ = expression.partition("(")
    if not name:
        raise RewardError(f'--reward "{text}": write module:function or file.py:function.')
    try:
        module = _load_module(source)
        function = getattr(module, name, None)
        if bracket and callable(function):
            call = ast.parse(expression, mode="eval").body
            assert isinstance(call, ast.Call)
            arguments = [ast.literal_eval(argument) for argument in call.args]
            function = function(
                *arguments, **{str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            )
    except (Exception, SystemExit) as error:
        raise RewardError(f"--reward {text} failed: {type(error).__name__}: {error}.") from error
    if not callable(function):
        known = did_you_mean(name, [own for own in dir(module) if not own.startswith("_")])
        raise RewardError(f'--reward {source} has no function "{name}".{known}')
    return function


def _load_module(source: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    if source.endswith(".py"):
        return SimpleNamespace(**runpy.run_path(str(Path(source).expanduser())))
    return importlib.import_module(source)


@contextmanager
def _no_network(name: str, is_allowed: bool) -> Iterator[None]:
    """Refuse connections while a reward is computed, also where the function hides the failure."""
    attempts: list[str] = []

    def refuse(*arguments: Any, **named: Any) -> Any:
        attempts.append(str(next((a for a in arguments if isinstance(a, str | tuple)), "")))
        raise OSError("the network is not available to a reward that is audited")

    originals = socket.getaddrinfo, socket.socket.connect
    if not is_allowed:
        socket.getaddrinfo, socket.socket.connect = refuse, refuse  # type: ignore[method-assign]
    try:
        yield
    except RewardError:
        if not attempts:
            raise
    finally:
        socket.getaddrinfo, socket.socket.connect = originals  # type: ignore[method-assign]
    if attempts:
        raise RewardError(
            f"The reward {name} needs a network ({attempts[0]}), so it depends on another machine. Allow it with "
            "--allow-network."
        )
