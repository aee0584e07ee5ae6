"""The answer parser on generated and on worst-case texts: `make proofs ONLY=parser` (about 10 minutes).

    python -m proofs.parser [pays speed]

pays    A million generated completions: the parser pays exactly where a second implementation of the table of
        docs/tasks.md pays (tests/tasks/reference_parser.py); CI compares 5,000. Each is read as a number, a choice
        and a text, by the lenient and by the strict parser.
speed   64 KB of anything takes under 10 ms of CPU time. A core that is shared with other processes is slower than
        an idle one, so each text is tried several times. CI reads texts of this kind without a clock.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.tasks.reference_parser import GOLDS, generate_text, pays

from glasshouse.tasks.answers import extract_answer
from glasshouse.types import AnswerKind
from proofs.checks import run_checks

COUNT, CHUNK = 1_000_000, 10_000
SIZE, LIMIT_SECONDS = 65_536, 0.010
PATTERNS = [
    *(" ", "1", ",", "1,", "1 ", "12,34 ", "a", "[ANSWER]", "[ANSWER] 5 ", "[ANSWER", "{"),
    *("[1,2],", "=", "= ", "= 5 ", "=1+", "answer is ", "answer is 5 ", "answer        "),
    *("\\boxed{", "∞", "\\boxed{5}", "<think>", "</think>", "<", "[", "-", "$", "*", "1*", "_"),
    *("1e5 ", "٣", "\n", "\n1", "\x00", "\udc00", "\u200b", "1.", "NaN ", "1 or "),
    *("\\frac{1}{2}", "^{1}", "[ANSWER]\n"),
]
"""Texts that are repeated to stress one rule of the parser each."""


def compare_chunk(first_seed: int, count: int = CHUNK) -> tuple[Counter[str], list[str]]:
    """What the texts of these seeds are paid by kind and parser, and the differences."""
    paid: Counter[str] = Counter()
    differences: list[str] = []
    for seed in range(first_seed, first_seed + count):
        rng = random.Random(seed)
        text = generate_text(rng)
        for kind, golds in GOLDS.items():
            gold = rng.choice(golds)
            for strict in (False, True):
                found = extract_answer(text, AnswerKind(kind), strict=strict).model_answer
                earns = found is not None and found.casefold() == gold.casefold()
                name = f"{kind}, {'strict' if strict else 'lenient'}"
                paid[name] += earns
                if earns != pays(text, gold, kind, strict):
                    differences.append(f"seed {seed}, {name}, gold {gold}: {text!r}")
    return paid, differences


def compare_with_reference(folder: Path) -> dict[str, Any]:
    paid: Counter[str] = Counter()
    with multiprocessing.Pool(2) as pool:
        for chunk, differences in pool.imap_unordered(compare_chunk, range(0, COUNT, CHUNK)):
            paid += chunk
            assert not differences, "\n".join(differences[:20])
    return {"texts": COUNT, "paid": paid}


def list_worst_cases(pattern: str) -> list[str]:
    """A pattern repeated alone, after a tag, before a tag, and inside many blocks of each kind."""
    blocks = ["[ANSWER] {}", "answer is {}", "\\boxed{{{}}}", "={}\n"]
    texts = [
        *(pattern * SIZE, "[ANSWER]" + pattern * SIZE, "[ANSWER] 5 " + pattern * SIZE),
        pattern * (SIZE // len(pattern) - 11) + " [ANSWER] 5",
        *(block.format((pattern * 500)[:500]) * (SIZE // 500 + 1) for block in blocks),
        *(block.format((pattern * 120)[:120]) * (SIZE // 120 + 1) for block in blocks),
    ]
    return [text[:SIZE] for text in texts]


def measure_seconds(text: str, kind: AnswerKind, strict: bool) -> float:
    """The fastest of several attempts; stops at the first below the limit."""
    fastest = float("inf")
    for _ in range(12):
        start = time.thread_time()
        extract_answer(text, kind, strict=strict)
        fastest = min(fastest, time.thread_time() - start)
        if fastest < LIMIT_SECONDS:
            break
    return fastest


def measure_worst_cases(folder: Path) -> dict[str, Any]:
    slowest = 0.0
    for text in (text for pattern in PATTERNS for text in list_worst_cases(pattern)):
        for kind in AnswerKind:
            for strict in (False, True):
                seconds = measure_seconds(text, kind, strict)
                assert seconds < LIMIT_SECONDS, (text[:40], kind, strict, seconds)
                slowest = max(slowest, seconds)
    return {"patterns": len(PATTERNS), "slowest, ms": round(1000 * slowest, 1)}


if __name__ == "__main__":
    checks = {"speed": measure_worst_cases, "pays": compare_with_reference}
    sys.exit(run_checks(checks, sys.argv[1:]))
