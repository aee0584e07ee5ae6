"""The demo, and the live page of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_demo", "view_runs"]


def run_demo(out: Path, overrides: Sequence[str], console: Console) -> None:
    """Train once with the outcome reward and once with a monitor in the reward, and compare the runs."""
    from glasshouse.study.demo import run_demo

    run_demo(out, overrides, console)


def view_runs(
    runs: Sequence[Path],
    *,
    host: str,
    port: int,
    token: str,
    allow_hosts: Sequence[str],
    cache: Path | None,
    open_browser: bool,
) -> None:
    """Serve the live page of these runs until it is stopped (extra `view`)."""
    from glasshouse.view.server import serve

    serve(
        list(runs), host=host, port=port, token=token, allow_hosts=list(allow_hosts), cache=cache,
        open_browser=open_browser,
    )  # fmt: skip
