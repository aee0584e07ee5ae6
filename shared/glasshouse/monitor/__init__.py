"""Monitor: can it still be read?

    views.py       what a monitor is shown: prompt, answer, cot, cot+answer
    monitors/      rule, step verifier, n-grams, probe, LLM judge
    measures/      reliance, disclosure, g-mean², AUROC, uplift, AOC, TRACE, …: value or reason
    inference/     intervals, nulls, paired seeds, matched accuracy
    statements.py  arithmetic statements in running text

Labels never come from a monitor: `y` is known by construction or by a causal swap.
docs/monitorability.md says how to read the numbers.
"""
