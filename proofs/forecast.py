"""The model of the pipeline against measurement: 1, 2 and 4 generators (`make forecast-proof`, 5 min).

    python -m proofs.forecast [key=value …]

Runs the same small training with one, two and four generators, forecasts all three from the first
run's times alone, and holds the forecast to within 15 % of what was measured. The machine should
have nothing else to do. Writes docs/measured/forecast.json and docs/figures/forecast.png.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from glasshouse.plan.forecast import curve, measure
from glasshouse.plan.pipeline import Pipeline, forecast
from glasshouse.report.forecast_figure import draw
from glasshouse.report.learning_curves import read_metrics

ROOT = Path(__file__).resolve().parent.parent
NUMBERS, STEPS, WITHIN = (1, 2, 4), 12, 0.15
SMALL = [
    f"steps={STEPS}", "data.groups_per_step=32", "generate.chunk_size=4", "evaluate.problems=0", "backend=monarch",
]  # fmt: skip
PHASES = ("draw", "generate", "grade", "learn", "record")


def train(out: Path, generators: int, overrides: list[str]) -> float:
    """Seconds a step: the median over the run, its first step left out."""
    subprocess.run(
        [sys.executable, "-m", "glasshouse", "train", "--quiet", *SMALL, *overrides,
         f"monarch.generators={generators}", f"out={out}"],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    steps = [row["timing"] for row in read_metrics(out)[1:]]
    return statistics.median(sum(step[phase] for phase in PHASES) for step in steps)


def main(overrides: list[str]) -> int:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        found = {n: train(Path(folder) / str(n), n, overrides) for n in NUMBERS}
        measured = measure(Path(folder) / "1")
    spread = Pipeline(
        chunks=measured.chunks,
        generators=1,
        max_offpolicy_steps=measured.max_offpolicy_steps,
        cores=cores,
    )
    said = {n: forecast(measured.times, replace(spread, generators=n)).seconds for n in NUMBERS}
    report: dict[str, Any] = {
        "cores": cores,
        "measured": asdict(measured),
        "steps": [
            {"generators": n, "measured": round(found[n], 4), "forecast": round(said[n], 4),
             "error": round(said[n] / found[n] - 1, 4)}
            for n in NUMBERS
        ],
    }  # fmt: skip
    for step in report["steps"]:
        print("{generators} generators: measured {measured} s a step, forecast {forecast} s ({error:+.1%})"
              .format(**step))  # fmt: skip
    (ROOT / "docs" / "measured" / "forecast.json").write_text(json.dumps(report, indent=2) + "\n")
    curves = {
        f"lag {lag}": curve(measured, replace(spread, lag=lag, cores=0), cores) for lag in (0, 1)
    }
    draw(
        curves,
        ROOT / "docs" / "figures" / "forecast.png",
        {f"lag {measured.max_offpolicy_steps}": found},
    )
    holds = all(abs(step["error"]) <= WITHIN for step in report["steps"])
    print("holds" if holds else f"does not hold: more than {WITHIN:.0%} off")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
