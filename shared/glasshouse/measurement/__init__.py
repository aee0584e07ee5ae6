"""Measurement: rollouts to measures with interval, null, floor and ceiling."""
