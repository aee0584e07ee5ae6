"""The command line. Each module parses the arguments of one command group and calls the library."""

from glasshouse.cli.app import experiment, main

__all__ = ["experiment", "main"]
