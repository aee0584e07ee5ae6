"""Rollouts of any trainer: read them, score them with monitors, measure what their columns allow.

    file or folder ─► reading ─► formats ─► fields ─► reasoning ─► scoring ─► measuring ─► MeasureReport
                      rows       TRL, …     mapping    CoT | answer  monitors   intervals, nulls

    reading.py    JSON lines, Parquet, Hugging Face dataset, Inspect log, run directory: one row at a time
    formats.py    what TRL, verifiers, Inspect and Glasshouse write, as field mappings
    fields.py     the declared mapping, and the checks of every value
    reasoning.py  think tags, reasoning_content, harmony channels, the [ANSWER] tag
    collecting.py counts of all rollouts, and the rows of a bounded sample of problems
    scoring.py    monitors by name; n-grams and probes are fitted on a part of the problems
    measuring.py  estimates of every measure, checkpoints compared over seeds

Memory does not grow with the number of rollouts: beyond MAX_ROWS per checkpoint and seed, values and
intervals come from counts of all rollouts, nulls and AUROC from a sample of whole problems.
"""
