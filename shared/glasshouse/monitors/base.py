"""What a monitor is: a name, a scope, and a verdict on a view. A failed verdict is no verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from glasshouse.errors import GlasshouseError, MonitorError
from glasshouse.measures.contingency import FAILED
from glasshouse.measures.result import Floats, Ints
from glasshouse.monitors.views import Scope, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a monitor says of one rollout.

    Example: `Verdict.of(0.8, threshold=0.5, reason="says the key")`, `Verdict.failure("timed out")`
    """

    score: float | None
    """Higher is more suspicious; None if the monitor failed."""
    flag: bool | None
    """z: is the score above the monitor's threshold? None if the monitor failed."""
    failed: bool
    """The monitor gave no verdict. Never a reward, never a negative."""
    reason: str
    """Why it flags, in the monitor's words; for a failed one, what went wrong."""

    @classmethod
    def of(cls, score: float, *, threshold: float, reason: str = "") -> Verdict:
        if not np.isfinite(score):
            return cls.failure(f"the score is {score}, not a number")
        return cls(score=score, flag=score > threshold, failed=False, reason=reason)

    @classmethod
    def failure(cls, reason: str) -> Verdict:
        return cls(score=None, flag=None, failed=True, reason=reason)


@runtime_checkable
class Monitor(Protocol):
    """Anything that reads a view and gives a verdict."""

    @property
    def name(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    def score(self, view: View) -> Verdict: ...

    def describe(self) -> dict[str, Any]:
        """Everything that decides its verdicts, as JSON values: for provenance and `identity`."""


@runtime_checkable
class Batched(Protocol):
    """A monitor that would rather have many views at once: a judge behind a network, say."""

    def score_many(self, views: Sequence[View]) -> list[Verdict]: ...


def score_all(monitor: Monitor, views: Sequence[View]) -> list[Verdict]:
    """A verdict for each view. What a monitor raises becomes a failed verdict with its reason;
    a `GlasshouseError` is a mistake that a person can mend, so it is passed on."""
    for view in views:
        if view.scope is not monitor.scope:
            raise MonitorError(
                f'The monitor "{monitor.name}" has the scope "{monitor.scope}", '
                f'but was given a view of scope "{view.scope}".'
            )
    if isinstance(monitor, Batched):
        return monitor.score_many(views)
    return [_guarded(monitor, view) for view in views]


def _guarded(monitor: Monitor, view: View) -> Verdict:
    try:
        return monitor.score(view)
    except GlasshouseError:
        raise
    except Exception as error:
        return Verdict.failure(f"{type(error).__name__}: {error}"[:300])


def flags(verdicts: Iterable[Verdict]) -> Ints:
    """z: 1 flagged, 0 not, FAILED where there is no verdict."""
    return np.array([FAILED if v.failed else int(bool(v.flag)) for v in verdicts], dtype=np.int64)


def scores(verdicts: Iterable[Verdict]) -> Floats:
    """s: scores, NaN where there is no verdict."""
    return np.array([np.nan if v.score is None else v.score for v in verdicts], dtype=np.float64)


def identity(monitor: Monitor) -> str:
    """A hash of everything that decides a monitor's verdicts; its name is no part of it."""
    said = {k: v for k, v in monitor.describe().items() if k != "name"}
    text = json.dumps(said, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def keep_apart(in_reward: Iterable[Monitor], evaluating: Iterable[Monitor]) -> None:
    """Refuse a monitor that is both trained against and believed, under whatever name."""
    rewarded = {identity(monitor): monitor.name for monitor in in_reward}
    for monitor in evaluating:
        if (other := rewarded.get(identity(monitor))) is not None:
            raise MonitorError(
                f'The monitor "{monitor.name}" evaluates, but is the one in the reward ("{other}"): '
                "a policy trained against a monitor cannot be measured with it. Use another one."
            )
