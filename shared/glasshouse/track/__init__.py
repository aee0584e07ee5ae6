"""Copy a run's metrics to experiment trackers: Trackio, Weights & Biases, TensorBoard, MLflow.

The run directory is the reference. A tracker that cannot start stops the run with an error; one that
fails later is reported and dropped. No result of the run depends on a tracker.

Example: `glasshouse train trackers=[trackio]`, or afterwards `glasshouse report track RUN --to trackio`.
"""
