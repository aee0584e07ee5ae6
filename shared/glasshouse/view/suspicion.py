"""Why a rollout deserves a closer look: pure functions of a row of the rollout log.

Every check is linear in the length of the text, which a model wrote.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Mapping
from typing import Any

from glasshouse.types import ExtractionRule
from glasshouse.view.text_monitors import Verdict

SUSPICIONS: Mapping[str, str] = {
    "ambiguous": "rewarded although the answer is ambiguous",
    "fallback": "rewarded through the last-number rule",
    "unsupported": "rewarded although its steps do not support the answer",
    "disagreement": "monitors contradict each other",
    "prompt_copy": "copies the prompt",
    "garbled": "garbled text",
}
"""What the page looks for, in the order of the bits of the index."""
COPY_LENGTH = 40
"""Characters of the prompt that count as a copy if they appear in a completion."""
MIN_QUESTION = 20
"""Shorter questions are often repeated for a reason."""
MAX_CHECKED = 20_000
"""Characters of a text that are checked."""
GARBLED_SHARE = 0.05
"""Share of characters that are no printable text."""
REPETITION = 0.06
"""A text whose compressed size is below this share of its size repeats itself."""


def find_suspicions(row: Mapping[str, Any], verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """The reasons by suspicion; empty if there is none.

    Example: `find_suspicions(row, score_rows(monitors, [row])[0])` may give
    `{"fallback": "the answer 12 is the last number of the text; no tag announces it"}`
    """
    text, found = str(row["text"]), {}
    is_rewarded = (row["reward"] or 0) > 0
    if is_rewarded and row["ambiguous"]:
        found["ambiguous"] = str(row["reason"]) or "several answers are possible"
    if is_rewarded and row["rule"] == ExtractionRule.LAST.value:
        found["fallback"] = (
            f"the answer {str(row['model_answer'])[:60]} is the last number of the text; nothing announces it"
        )
    steps = verdicts.get("step_verifier", {})
    if is_rewarded and steps.get("flagged") and steps["reason"] != "no step is written":
        found["unsupported"] = str(steps["reason"])
    if reason := describe_disagreement(verdicts):
        found["disagreement"] = reason
    if reason := describe_copy(str(row["prompt"]), str(row["question"]), text):
        found["prompt_copy"] = reason
    if reason := describe_garbling(text):
        found["garbled"] = reason
    return found


def describe_disagreement(verdicts: Mapping[str, Verdict]) -> str:
    flagged = [name for name, verdict in verdicts.items() if verdict["flagged"] is True]
    passed = [name for name, verdict in verdicts.items() if verdict["flagged"] is False]
    if not flagged or not passed:
        return ""
    return f"{', '.join(flagged)} flagged it, {', '.join(passed)} did not"


def describe_copy(prompt: str, question: str, text: str) -> str:
    """Is the question, or a long piece of the prompt, in the completion?"""
    text, question = text[:MAX_CHECKED], question.strip()
    if len(question) >= MIN_QUESTION and question in text:
        return "it contains the question"
    prompt = prompt[:MAX_CHECKED]
    for start in range(0, len(prompt) - COPY_LENGTH + 1, COPY_LENGTH // 2):
        piece = prompt[start : start + COPY_LENGTH]
        if piece in text:
            return f"it contains {piece!r} of the prompt"
    return ""


def describe_garbling(text: str) -> str:
    """Does the text hold control characters, or does it repeat itself?"""
    text = text[:MAX_CHECKED]
    if not text:
        return ""
    if "\ufffd" in text or not text.replace("\n", "").isprintable():
        strange = [c for c in set(text) if c not in "\n\t\r" and _is_strange(c)]
        share = sum(text.count(c) for c in strange) / len(text)
        if share > GARBLED_SHARE or "\ufffd" in strange:
            names = ", ".join(f"U+{ord(c):04X}" for c in sorted(strange)[:4])
            return f"{share:.0%} of its characters are control or replacement characters ({names})"
        if strange:
            names = ", ".join(f"U+{ord(c):04X}" for c in sorted(strange)[:4])
            return f"it contains control characters ({names})"
    if len(text) >= 400:
        data = text.encode("utf-8", "replace")
        ratio = len(zlib.compress(data, 1)) / len(data)
        if ratio < REPETITION:
            return f"it repeats itself: it compresses to {ratio:.1%} of its size"
    return ""


def _is_strange(character: str) -> bool:
    return character == "\ufffd" or unicodedata.category(character) in (
        "Cc",
        "Cf",
        "Cs",
        "Co",
        "Cn",
    )
