"""The command line. Each module parses the arguments of one group of commands and calls the library,
which it imports only when a command runs, so that `glasshouse --help` is fast."""

from glasshouse.cli.app import main, run_command
from glasshouse.cli.train import run_experiment

__all__ = ["main", "run_command", "run_experiment"]
