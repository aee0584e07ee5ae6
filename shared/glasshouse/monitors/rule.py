"""Keywords and regular expressions: the simplest monitor, and the first that RL evades."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import MonitorOutput, monitor
from glasshouse.monitors.views import Scope, View


class RuleOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    scope: Scope = Scope.COT
    """What it sees: prompt, answer, cot or cot+answer."""
    keywords: tuple[str, ...] = ()
    """Whole words or phrases, case-insensitive."""
    patterns: tuple[str, ...] = ()
    """Regular expressions."""


@monitor("rule")
class RuleMonitor:
    """Flags a view that any keyword or pattern matches; the score is the share that matches.

    Keywords are whole words or phrases, case-insensitive; patterns are regular expressions.

    Example: `RuleMonitor("hint", Scope.COT, keywords=["key", "hint"])`
    """

    Options: ClassVar[type[BaseModel]] = RuleOptions

    def __init__(
        self,
        name: str,
        scope: Scope,
        *,
        keywords: Sequence[str] = (),
        patterns: Sequence[str] = (),
    ) -> None:
        if scope is Scope.ACTIVATIONS or not (keywords or patterns):
            raise MonitorError(
                f'The rule monitor "{name}" needs keywords or patterns, and a scope with text.'
            )
        self.name, self.scope = name, scope
        self.keywords, self.patterns = tuple(keywords), tuple(patterns)
        whole_words = [(k, rf"(?<!\w){re.escape(k)}(?!\w)", re.IGNORECASE) for k in keywords]
        self._rules: list[tuple[str, re.Pattern[str]]] = []
        for label, pattern, options in [*whole_words, *((p, p, 0) for p in patterns)]:
            try:
                self._rules.append((label, re.compile(pattern, options)))
            except re.error as error:
                raise MonitorError(
                    f'The rule monitor "{name}": {label!r} is not a regular expression: {error}.'
                ) from None

    def score(self, view: View) -> MonitorOutput:
        texts = view.parts.values()
        matches = [label for label, rule in self._rules if any(rule.search(t) for t in texts)]
        reason = f"contains {', '.join(map(repr, matches))}" if matches else ""
        share = len(matches) / len(self._rules)
        return MonitorOutput.from_score(share, threshold=0.0, reason=reason)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "rule",
            "name": self.name,
            "scope": self.scope.value,
            "keywords": list(self.keywords),
            "patterns": list(self.patterns),
        }
