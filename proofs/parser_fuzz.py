"""A million generated completions with a known meaning: no crash, no unearned strict reward.

    python -m proofs.parser_fuzz [--count 1000000] [--processes 2]          (about 5 minutes)

tests/tasks/answers/grammar.py writes the completions; CI runs 10,000 of them. Prints, per class, how often
each parser extracts the gold answer from a text that states it (accepted) and from one that does not
(unearned). Exit code 1 if the strict parser has one unearned reward or a text takes too long; the
lenient figures are reported, not limited.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter

from tests.tasks.answers.grammar import GROUPS, Meaning, generate_case

from glasshouse.rollout.grading import grade
from glasshouse.types import Problem

CHUNK = 10_000
LIMIT_SECONDS = 0.010
"""Per grading of one completion, of CPU time; grading extracts with both parsers."""
TERMS = {"closeness": 1.0, "alignment": 1.0}


def grade_chunk(first_seed: int, count: int = CHUNK) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Grades cases by seed; returns counts per class and the texts that break the claim."""
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    for seed in range(first_seed, first_seed + count):
        case = generate_case(random.Random(seed))
        problem = Problem(task="t", key="k", question="q", gold_answer=case.gold)
        for _ in range(12):  # the fastest of several: another process may interrupt one
            started = time.process_time()
            result = grade(problem, case.text, terms=TERMS)
            seconds = time.process_time() - started
            if seconds < LIMIT_SECONDS:
                break
        else:
            failures.append(f"seed {seed}: {1000 * seconds:.0f} ms for {case.text!r}")
        equal = case.meaning is Meaning.EQUAL
        counts[case.group, "equal" if equal else "other"] += 1
        for parser, correct in (("lenient", result.lenient), ("strict", result.strict)):
            if correct:
                counts[case.group, f"{parser} {'accepted' if equal else 'unearned'}"] += 1
        if result.strict and not equal:
            failures.append(f"seed {seed}: strict gives {case.gold} for {case.text!r}")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    seeds = range(0, arguments.count, CHUNK)
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, (chunk, broken) in enumerate(pool.imap_unordered(grade_chunk, seeds), 1):
            counts += chunk
            failures += broken
            if done % 10 == 0 or done == len(seeds):
                print(f"{done * CHUNK:,} cases, {len(failures)} failures", flush=True)
    print_table(counts)
    for failure in failures[:20]:
        print(failure)
    return 1 if failures else 0


def print_table(counts: Counter[tuple[str, str]]) -> None:
    columns = ["strict accepted", "strict unearned", "lenient accepted", "lenient unearned"]
    print(f"\n{'class':<15} {'cases':>8} " + " ".join(f"{column:>17}" for column in columns))
    for group in (*GROUPS, "all"):
        row = Counter[str]()
        for (name, column), count in counts.items():
            if group in (name, "all"):
                row[column] += count
        cells = []
        for column in columns:
            total = row["equal" if column.endswith("accepted") else "other"]
            cells.append(f"{row[column] / total:.4f} ({row[column]:,})" if total else "-")
        print(
            f"{group:<15} {row['equal'] + row['other']:>8,} " + " ".join(f"{c:>17}" for c in cells)
        )


if __name__ == "__main__":
    sys.exit(main())
