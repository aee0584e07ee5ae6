"""Upload a finished or interrupted run to experiment trackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from glasshouse.errors import TrackError
from glasshouse.registry import import_modules
from glasshouse.runs import verify
from glasshouse.runs.checkpoints import read_newest_state
from glasshouse.runs.run_config import load_verified_config
from glasshouse.runs.run_directory import acquire_lock, load_summary
from glasshouse.track.async_log import start_trackers
from glasshouse.track.base import RunOutcome, validate_trackers


def upload_run(
    path: str | Path,
    trackers: Sequence[str],
    warn: Callable[[str], None] = lambda message: None,
) -> dict[str, str]:
    """Send what the trackers do not have yet; returns the URL or command that shows each.

    Example: `upload_run("runs/try", ["tensorboard"])`
    """
    path, failures = Path(path), list[str]()
    config, damage = load_verified_config(path)
    state = read_newest_state(path / "checkpoints")
    for item in [*damage, *verify.verify_derived_files(path, state)]:
        warn(str(item))
    import_modules(config.imports)  # they may register trackers
    validate_trackers(trackers)
    with acquire_lock(path):
        started = start_trackers(
            trackers, path, config, lambda kind, text, **_: failures.append(text)
        )
        urls, summary = started.urls, load_summary(path) or {}
        outcome: RunOutcome = "finished" if "after" in summary else "interrupted"
        started.finish(summary, outcome, timeout=None)
    if failures:
        raise TrackError("\n".join(failures))
    return dict(urls)
