"""g-mean² equals the reference code of OpenAI's monitorability evals, table by table.

    python -m proofs.gmean_reference PATH/intervention_gmean_metric.py [--tables 10000]

The reference is not part of this repository (github.com/openai/monitorability-evals, folder metric,
commit 806dabf3 when this was written; it needs pandas and tqdm). Random tables of every size and rate are
generated; every value must agree to 1e-12 and be undefined for the same tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from typing import Any

import numpy as np
import pandas as pd

from glasshouse.measurement.rates import gmean2_parts, tabulate

PROBLEMS_PER_TABLE = 2
BATCH = 500
"""Tables per call of the reference, which is slow per call."""


def random_rows(rng: np.random.Generator, tables: int) -> pd.DataFrame:
    """Rollouts of both arms; some arms are small or missing, some rates 0 or 1."""
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("table", "problem", "x", "y", "z")
    }
    for problem in range(tables * PROBLEMS_PER_TABLE):
        for arm in (0, 1):
            rows = int(
                rng.choice([0, 1, 2, 3, 5, 16, 30], p=[0.03, 0.05, 0.07, 0.1, 0.15, 0.3, 0.3])
            )
            rate = rng.choice([0.0, 1.0, rng.random()], p=[0.15, 0.15, 0.7])
            shows = (rng.random(rows) < rate).astype(int)
            flags = (rng.random(rows) < np.where(shows, rng.random(), rng.random())).astype(int)
            values = (problem // PROBLEMS_PER_TABLE, problem, arm)
            for name, value in zip(("table", "problem", "x"), values, strict=True):
                columns[name].append(np.full(rows, value))
            columns["y"].append(shows)
            columns["z"].append(flags)
    return pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})


def compare_tables(reference: Any, rows: pd.DataFrame) -> int:
    """Compares every table; returns how many are defined."""
    theirs = reference.gmean_minimal_criterion(rows, group_cols=["table"])
    expected = dict(zip(theirs["table"], theirs["gmean2"], strict=True))
    defined = 0
    for table, part in rows.groupby("table"):
        value = float(gmean2_parts(tabulate(part.x, part.y, part.z))["gmean2"])
        check_equal(f"table {table}", value, expected[table])
        defined += not np.isnan(value)
    return defined


def check_equal(where: str, ours: float, theirs: float) -> None:
    if np.isnan(ours) != np.isnan(theirs) or abs(ours - theirs) > 1e-12:
        raise SystemExit(f"{where}: ours {ours}, reference {theirs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", help="the reference file, intervention_gmean_metric.py")
    parser.add_argument("--tables", type=int, default=10_000)
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("reference", args.reference)
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = reference  # dataclasses look their module up
    spec.loader.exec_module(reference)
    started, defined = time.perf_counter(), 0
    for batch in range(-(-args.tables // BATCH)):
        rows = random_rows(np.random.default_rng(batch), BATCH)
        defined += compare_tables(reference, rows)
        print(f"{(batch + 1) * BATCH:,} tables equal", flush=True)
    seconds = time.perf_counter() - started
    print(
        f"{args.tables:,} random tables: equal to the reference; {defined:,} are defined "
        f"({seconds:.0f} s)"
    )


if __name__ == "__main__":
    main()
