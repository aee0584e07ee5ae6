"""An experiment: see README.md."""
