"""Keywords and patterns: the monitor that everybody writes first, and RL evades first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import Verdict
from glasshouse.monitors.views import Scope, View


class RuleMonitor:
    """Flags a view in which any keyword or pattern occurs; the score is the share that does.

    Keywords are whole words (or phrases) in any case; patterns are regular expressions.

    Example: `RuleMonitor("key", Scope.COT, keywords=["key", "hint"])`
    """

    def __init__(
        self,
        name: str,
        scope: Scope,
        *,
        keywords: Sequence[str] = (),
        patterns: Sequence[str] = (),
    ) -> None:
        if scope is Scope.ACTIVATIONS or not (keywords or patterns):
            raise MonitorError(f'The rule "{name}" needs a text to read and something to look for.')
        self.name, self.scope = name, scope
        self.keywords, self.patterns = tuple(keywords), tuple(patterns)
        words = [(word, rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE) for word in keywords]
        self._rules: list[tuple[str, re.Pattern[str]]] = []
        for shown, pattern, options in [*words, *((p, p, 0) for p in patterns)]:
            try:
                self._rules.append((shown, re.compile(pattern, options)))
            except re.error as error:
                raise MonitorError(
                    f'The rule "{name}": {shown!r} is not a regular expression: {error}.'
                ) from None

    def score(self, view: View) -> Verdict:
        texts = view.parts.values()
        found = [shown for shown, rule in self._rules if any(rule.search(text) for text in texts)]
        reason = f"says {', '.join(map(repr, found))}" if found else ""
        return Verdict.of(len(found) / len(self._rules), threshold=0.0, reason=reason)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "rule",
            "name": self.name,
            "scope": self.scope.value,
            "keywords": list(self.keywords),
            "patterns": list(self.patterns),
        }
