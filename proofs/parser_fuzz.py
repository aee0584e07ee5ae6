"""A million generated completions per parser: it pays exactly where a second implementation pays.

    python -m proofs.parser_fuzz [--count 1000000] [--processes 2]          (about 10 minutes)

tests/tasks/reference_parser.py generates the completions and implements the table of docs/tasks.md a second
time; CI compares 5,000 of them. Each text is read as a number, a choice and a text, by the lenient and by the
strict parser. Exit code 1 if one text is paid by only one of the two implementations.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections import Counter

from tests.tasks.reference_parser import GOLDS, generate_text, pays

from glasshouse.tasks.answers import extract_answer
from glasshouse.types import AnswerKind

CHUNK = 10_000


def compare_chunk(first_seed: int, count: int = CHUNK) -> tuple[Counter[str], list[str]]:
    """Compare the texts of these seeds; return what was paid by kind and parser, and the differences."""
    paid: Counter[str] = Counter()
    differences: list[str] = []
    for seed in range(first_seed, first_seed + count):
        rng = random.Random(seed)
        text = generate_text(rng)
        for kind, golds in GOLDS.items():
            gold = rng.choice(golds)
            for parser in ("lenient", "strict"):
                strict = parser == "strict"
                found = extract_answer(text, AnswerKind(kind), strict=strict).model_answer
                earns = found is not None and found.casefold() == gold.casefold()
                paid[f"{kind}, {parser}"] += earns
                if earns != pays(text, gold, kind, strict):
                    differences.append(f"seed {seed}, {kind}, {parser}, gold {gold}: {text!r}")
    return paid, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    paid: Counter[str] = Counter()
    differences: list[str] = []
    seeds = range(0, arguments.count, CHUNK)
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, (chunk, broken) in enumerate(pool.imap_unordered(compare_chunk, seeds), 1):
            paid += chunk
            differences += broken
            if done % 10 == 0 or done == len(seeds):
                print(f"{done * CHUNK:,} texts, {len(differences)} differences", flush=True)
    for name, count in sorted(paid.items()):
        print(f"{name:<18} paid {count:>9,} of {len(seeds) * CHUNK:,}")
    for difference in differences[:20]:
        print(difference)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
