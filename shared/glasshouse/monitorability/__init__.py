"""Monitor: can it still be read?

    views.py        what a monitor is shown: prompt, answer, cot, cot+answer
    monitors/       rule, step verifier, n-grams, probe, LLM judge
    interventions/  the same rollout with its CoT cut, edited, filled, exchanged
    measures/       reliance, disclosure, g-mean², AUROC, uplift, AOC, TRACE, …: value or reason
    inference/      intervals, nulls, paired seeds, matched accuracy
    statements.py   arithmetic statements in running text
    evaluation.py   what an evaluation of a checkpoint is; verdicts.py: the monitors' one
    change.py       before against after, and the sentence that sums it up

Labels never come from a monitor: `y` is known by construction or by a causal swap.
docs/monitorability.md and docs/monitoring.md say how to read the numbers.
"""
