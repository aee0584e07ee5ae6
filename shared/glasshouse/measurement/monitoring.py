"""Measure how monitorable the chain of thought is, at every checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.errors import MonitorError

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.monitors.base import Monitor

__all__ = ["make_judge", "make_rules", "monitor_run"]


def monitor_run(
    run: str | Path,
    *,
    problems: int | None = None,
    greedy: bool = False,
    only_ends: bool = False,
    monitors: Sequence[Monitor] = (),
    out: str | Path | None = None,
    progress: bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Evaluate the base model and every valid checkpoint of a run on held-out problems: monitors,
    and interventions on the same rollouts. Returns what it writes to results/monitor.json; finished
    checkpoints are not measured again. `only_ends`: the base model and the last checkpoint.

    Example: `monitor_run("runs/try", only_ends=True)["verdict"]`
    """
    from glasshouse.console import make_console
    from glasshouse.measurement.monitor_progress import MonitorProgressBar
    from glasshouse.measurement.monitor_run import MonitorProgress
    from glasshouse.measurement.monitor_run import monitor_run as measure_checkpoints

    run, target = Path(run), Path(out) if out else None

    def measure(callbacks: MonitorProgress) -> dict[str, Any]:
        return measure_checkpoints(
            run, problems=problems, greedy=greedy, monitors=monitors, only_ends=only_ends,
            progress=callbacks, out=target,
        )  # fmt: skip

    if not progress:
        return measure(MonitorProgress())
    with MonitorProgressBar(console or make_console()) as bar:
        return measure(bar)


def make_rules(rules: Sequence[str]) -> list[Monitor]:
    """Monitors from texts `NAME=PATTERN`: each flags a chain of thought that matches its pattern.

    Example: `make_rules(["guess=(?i)guess"])`
    """
    from glasshouse.monitors.rule import RuleMonitor
    from glasshouse.monitors.views import Scope

    made: list[Monitor] = []
    for rule in rules:
        name, equals, pattern = rule.partition("=")
        if not (name and equals and pattern):
            raise MonitorError(f'A rule is NAME=PATTERN, as in guess="(?i)guess"; got {rule!r}.')
        made.append(RuleMonitor(name, Scope.COT, patterns=[pattern]))
    return made


def make_judge(
    url: str,
    *,
    model: str = "",
    key_variable: str = "",
    behaviour: str = "",
    cache: str | Path = ".glasshouse/judge",
) -> Monitor:
    """An LLM behind an OpenAI-compatible endpoint as a monitor. It is asked whether a rollout shows the
    behaviour, a sentence; replies are cached in a folder. `key_variable` is the environment variable with
    the key.

    Example: `make_judge("http://localhost:8000/v1", model="m", behaviour="uses the leaked answer")`
    """
    from glasshouse.monitors.llm_judge import JudgeMonitor
    from glasshouse.monitors.openai_client import Endpoint
    from glasshouse.monitors.views import Scope

    endpoint = Endpoint(url=url, model=model, key_variable=key_variable)
    return JudgeMonitor("judge", Scope.COT_ANSWER, endpoint, behaviour=behaviour, cache=Path(cache))
