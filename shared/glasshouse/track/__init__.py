"""Experiment trackers: copy a run's metrics to Trackio, Weights & Biases, TensorBoard or MLflow.

    RUN/results/metrics.jsonl ─┐
                               ├──► StepMetrics ──► one thread per tracker ──► Tracker.log
    evaluations in events.jsonl┘

The run directory is the reference. A tracker that cannot start stops the run with an error. One
that fails later is reported and dropped. No result of the run depends on a tracker.

Example: `glasshouse train trackers=[trackio]`, or afterwards `glasshouse report track RUN --to trackio`.
"""
