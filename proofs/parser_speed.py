"""Measures the answer parser on worst-case texts: 64 KB of anything takes under 10 ms of CPU time.

    python -m proofs.parser_speed          (about a minute)

CPU time, since other processes on the machine do not count. A core that is shared with them is still
slower than an idle one, so each text is tried several times.

CI reads texts of this kind without a clock (tests/tasks/test_answers.py).
"""

from __future__ import annotations

import sys
import time

from glasshouse.tasks.answers import extract_answer
from glasshouse.types import AnswerKind

SIZE = 65_536
LIMIT_SECONDS = 0.010
PATTERNS = [
    *(" ", "1", ",", "1,", "1 ", "12,34 ", "a", "[ANSWER]", "[ANSWER] 5 ", "[ANSWER", "{"),
    *("[1,2],", "=", "= ", "= 5 ", "=1+", "answer is ", "answer is 5 ", "answer        "),
    *("\\boxed{", "∞", "\\boxed{5}", "<think>", "</think>", "<", "[", "-", "$", "*", "1*", "_"),
    *("1e5 ", "٣", "\n", "\n1", "\x00", "\udc00", "\u200b", "1.", "NaN ", "1 or "),
    *("\\frac{1}{2}", "^{1}", "[ANSWER]\n"),
]
"""Texts that are repeated to stress one rule of the parser each."""


def worst_case_texts(pattern: str, size: int) -> list[str]:
    """A pattern repeated alone, after a tag, before a tag, and inside many blocks of each kind."""
    blocks = ["[ANSWER] {}", "answer is {}", "\\boxed{{{}}}", "={}\n"]
    texts = [
        *(pattern * size, "[ANSWER]" + pattern * size, "[ANSWER] 5 " + pattern * size),
        pattern * (size // len(pattern) - 11) + " [ANSWER] 5",
        *(block.format((pattern * 500)[:500]) * (size // 500 + 1) for block in blocks),
        *(block.format((pattern * 120)[:120]) * (size // 120 + 1) for block in blocks),
    ]
    return [text[:size] for text in texts]


def extraction_seconds(text: str, kind: AnswerKind, strict: bool, attempts: int = 12) -> float:
    """The fastest of several attempts; stops at the first below the limit."""
    fastest = float("inf")
    for _ in range(attempts):
        start = time.thread_time()
        extract_answer(text, kind, strict=strict)
        fastest = min(fastest, time.thread_time() - start)
        if fastest < LIMIT_SECONDS:
            break
    return fastest


def main() -> int:
    slowest = 0.0
    for pattern in PATTERNS:
        for text in worst_case_texts(pattern, SIZE):
            for kind in AnswerKind:
                for strict in (False, True):
                    seconds = extraction_seconds(text, kind, strict)
                    slowest = max(slowest, seconds)
                    if seconds >= LIMIT_SECONDS:
                        parser = "strict" if strict else "lenient"
                        print(f"{text[:40]!a}, {kind}, {parser}: {1000 * seconds:.1f} ms")
                        return 1
    print(f"64 KB of each of {len(PATTERNS)} patterns: at most {1000 * slowest:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
