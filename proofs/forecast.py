"""The pipeline simulation against measurement: 1, 2 and 4 generators (`make forecast-proof`, 5 min).

    python -m proofs.forecast [key=value …]

Runs the same small training with one, two and four generators, forecasts all three from the times of
the first run alone, and requires the forecast to be within 15 % of the measurement. Run it on an
otherwise idle machine. Writes docs/measured/forecast.json and docs/figures/forecast.png.
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

from glasshouse.plan.forecast import forecast_curve, read_step_times
from glasshouse.plan.pipeline import Pipeline, forecast_pipeline
from glasshouse.report.forecast_figure import draw_forecast
from glasshouse.store.run_directory import load_metrics

ROOT = Path(__file__).resolve().parent.parent
GENERATORS, STEPS, TOLERANCE = (1, 2, 4), 12, 0.15
SMALL = [
    f"steps={STEPS}", "data.groups_per_step=32", "generate.chunk_size=4", "evaluate.problems=0", "backend=monarch",
]  # fmt: skip
PHASES = ("sample", "generate", "reward", "learn", "log")


def train(out: Path, generators: int, overrides: list[str]) -> float:
    """Return the median seconds per step, without the first step."""
    subprocess.run(
        [sys.executable, "-m", "glasshouse", "train", "--quiet", *SMALL, *overrides,
         f"monarch.generators={generators}", f"out={out}"],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    steps = [row["timing"] for row in load_metrics(out)[1:]]
    return statistics.median(sum(step[phase] for phase in PHASES) for step in steps)


def main(overrides: list[str]) -> int:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        seconds = {n: train(Path(folder) / str(n), n, overrides) for n in GENERATORS}
        measured = read_step_times(Path(folder) / "1")
    pipeline = Pipeline(
        chunks=measured.chunks,
        generators=1,
        max_offpolicy_steps=measured.max_offpolicy_steps,
        cores=cores,
    )
    forecast = {
        n: forecast_pipeline(measured.times, replace(pipeline, generators=n)).seconds
        for n in GENERATORS
    }
    report: dict[str, Any] = {
        "cores": cores,
        "measured": asdict(measured),
        "steps": [
            {"generators": n, "measured": round(seconds[n], 4), "forecast": round(forecast[n], 4),
             "error": round(forecast[n] / seconds[n] - 1, 4)}
            for n in GENERATORS
        ],
    }  # fmt: skip
    for row in report["steps"]:
        print("{generators} generators: measured {measured} s per step, forecast {forecast} s ({error:+.1%})"
              .format(**row))  # fmt: skip
    (ROOT / "docs" / "measured" / "forecast.json").write_text(json.dumps(report, indent=2) + "\n")
    curves = {
        f"max_offpolicy_steps={k}": forecast_curve(
            measured, replace(pipeline, max_offpolicy_steps=k, cores=0), cores
        )
        for k in (0, 1)
    }
    dots = {f"max_offpolicy_steps={measured.max_offpolicy_steps}": seconds}
    draw_forecast(curves, ROOT / "docs" / "figures" / "forecast.png", dots)
    passed = all(abs(row["error"]) <= TOLERANCE for row in report["steps"])
    print("passed" if passed else f"failed: an error exceeds {TOLERANCE:.0%}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
