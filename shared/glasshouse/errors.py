"""Errors are sentences: what is wrong, where, what to do.

Everything a user can get wrong raises a `GlasshouseError`; the command line prints its text and
exits with 2. Each member also inherits the standard error it refines, so that library users may
catch what they already know.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GlasshouseError(Exception):
    """A mistake that a person can mend; its text says how."""


class ConfigError(GlasshouseError, ValueError):
    """The configuration does not describe a run."""


class TaskError(GlasshouseError, ValueError):
    """A task was asked for something it does not have."""


class RewardError(GlasshouseError, RuntimeError):
    """A reward raised; the run stops with the completion that caused it."""


class ModelError(GlasshouseError, OSError):
    """A model could not be found, read or saved."""


class RunError(GlasshouseError, RuntimeError):
    """A run cannot start or go on."""


class RecordError(GlasshouseError, ValueError):
    """A run's record is damaged, or cannot do what was asked of it."""


class MonitorError(GlasshouseError, ValueError):
    """A monitor cannot be built or used as asked, or a measure was given rows that do not fit."""


class HostError(GlasshouseError, OSError):
    """A host could not be reached, trusted or started."""


class TrackError(GlasshouseError, RuntimeError):
    """A tracker cannot start, or did not take what it was given."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A tail for an error sentence: the nearest known name, or all of them.

    Example: `nearest("lerning_rate", ["learning_rate"])` gives ' Did you mean "learning_rate"?'
    """
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f' Did you mean "{close[0]}"?'
    return f" Known: {', '.join(options)}." if options else ""
