"""Experiment trackers: copy a run's metrics to Trackio, Weights & Biases, TensorBoard or MLflow.

    RUN/results/metrics.jsonl ─┐
                               ├──► StepMetrics ──► one thread per tracker ──► Tracker.log
    evaluations in events.jsonl┘

The run directory is the reference. A tracker that cannot start stops the run with an error. One
that fails later is reported and dropped. No result of the run depends on a tracker.

Example: `glasshouse train trackers=[trackio]`, or afterwards `glasshouse track RUN --to trackio`.
"""

from glasshouse.track.async_log import Trackers, start_trackers
from glasshouse.track.base import RunOutcome, Tracker
from glasshouse.track.registry import TRACKERS, tracker, validate_trackers
from glasshouse.track.step_metrics import StepMetrics, metrics_from_evaluation, metrics_from_step

__all__ = [
    "TRACKERS",
    "RunOutcome",
    "StepMetrics",
    "Tracker",
    "Trackers",
    "metrics_from_evaluation",
    "metrics_from_step",
    "start_trackers",
    "tracker",
    "validate_trackers",
]
