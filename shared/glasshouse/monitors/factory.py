"""Monitors by configuration: those that need no fitting. Fitted ones are loaded from their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glasshouse.errors import ConfigError
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope


class MonitorOptions(BaseModel):
    """One monitor as a configuration writes it.

    Example: `{kind: rule, scope: cot, keywords: [key, hint]}`
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Literal["rule", "steps"] = "rule"
    """`rule`: keywords and patterns; `steps`: every written step worked out again."""
    scope: Scope = Scope.COT
    """What it is shown: prompt, answer, cot or cot+answer."""
    keywords: tuple[str, ...] = ()
    """rule: whole words or phrases, in any case."""
    patterns: tuple[str, ...] = ()
    """rule: regular expressions."""
    task: str = ""
    """steps: the task whose steps it knows."""


def make(name: str, settings: Mapping[str, Any]) -> Monitor:
    """A monitor by its settings; a mistake in them is a sentence."""
    try:
        options = MonitorOptions.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "settings"
        raise ConfigError(f'The monitor "{name}", {where}: {first["msg"]}.') from None
    if options.kind == "steps":
        return StepVerifier(name, options.scope, task=options.task)
    return RuleMonitor(name, options.scope, keywords=options.keywords, patterns=options.patterns)
