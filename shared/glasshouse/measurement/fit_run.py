"""`glasshouse monitor fit`: fit a monitor on labelled rollouts of the model that a run starts from.

    problems of the split `test` ─► rollouts of the base ─► 2/5 to fit on, 2/5 for the threshold, 1/5 to measure it

No run trains or evaluates on this split, so that the monitor can be used in the reward and in evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.errors import MonitorError, import_extra
from glasshouse.measurement.columns import Scores, label_rollouts, problems_by_arm
from glasshouse.measurement.evaluate import hash_base, open_collector
from glasshouse.measurement.measure import measure
from glasshouse.monitors.base import Monitor, Scope, mean_cost, view_rollout
from glasshouse.monitors.fitted import (
    FITTING,
    FPR,
    MIN_BENIGN,
    FittedKind,
    FittedMonitor,
    LabelledViews,
    fit_monitor,
    threshold_at_fpr,
    why_no_threshold,
)
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.scoring import probe_views, score_rollouts
from glasshouse.runs.run_directory import load_verified_config
from glasshouse.tasks.base import Task
from glasshouse.tasks.organisms import Organism
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.types import Rollout

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy


def fit_on_run(
    run: str | Path, kind: FittedKind | Monitor, out: str | Path, *, problems: int = 150
) -> dict[str, Any]:
    """Fit n-grams, an embedder or a probe on the base model of a run, or set the threshold of a judge, and save it in
    the folder `out`. Returns its measures on other problems of the base.

    Example: `fit_on_run("runs/try", parse_monitor("probe:4"), "monitors/probe")["measures"]["auroc"].value`
    """
    if not isinstance(kind, FittedKind | JudgeMonitor):
        raise MonitorError(
            f"{kind.name} is not fitted: give ngrams, embedder:MODEL, probe or judge:URL."
        )
    if isinstance(kind, JudgeMonitor):  # before minutes of sampling
        kind.check_answers()
    else:
        import_extra("monitor", FITTING, "sklearn.linear_model", error=MonitorError)
    collector = open_collector(load_verified_config(Path(run))[0])
    config, task, policy = collector.config, collector.task, collector.policy
    drawn = FreshProblems(task, Split.TEST, 0).take(problems)
    arms = problems_by_arm(task, drawn) if isinstance(task, Organism) else {"all": drawn}
    fifths = {problem.key: n * 5 // problems for n, problem in enumerate(drawn)}
    parts: list[list[Rollout]] = [[], [], []]
    for arm, asked in arms.items():
        groups = collector.collect(
            asked,
            step=0,
            split=f"fit/{arm}",
            samples=config.monitor.samples,
            sampling=config.generate.sampling(),
        )
        for rollout in (rollout for group in groups for rollout in group):
            parts[fifths[rollout.problem.key] // 2].append(rollout)
    training, benign, others = parts
    monitor: Any = kind
    if isinstance(kind, JudgeMonitor):
        outputs = score_rollouts(kind, _label(benign, task, only_benign=True)[0])
        known = [output.score for output in outputs if output.score is not None]
        threshold = threshold_at_fpr(known) if known else kind.options.threshold
        kind.options = kind.options.model_copy(update={"threshold": threshold})
        warning = why_no_threshold(len(known), FPR, MIN_BENIGN)
    else:
        fitted = fit_on_rollouts(kind, training, benign, task, policy)
        if fitted.monitor is None:
            raise MonitorError(f"{kind.name} cannot be fitted on {run}: {fitted.reason}.")
        monitor, warning = fitted.monitor, fitted.no_threshold
        if kind.scope is Scope.ACTIVATIONS:
            monitor = replace(monitor, model_sha256=hash_base(config))
    outputs = score_rollouts(monitor, others, policy)
    monitor.save(Path(out))
    scores = Scores.from_outputs(monitor.name, outputs)
    measures = measure(label_rollouts(others, task), "fitted", [scores], key=("fit",)).measures
    return {
        "threshold": monitor.describe()["threshold"],
        "measures": {name.rpartition(".")[2]: own for name, own in measures.items()},
        "failed": sum(output.failed for output in outputs),
        "cost": mean_cost(outputs),
        "warning": warning,
    }


def fit_on_rollouts(
    kind: FittedKind,
    training: Sequence[Rollout],
    benign: Sequence[Rollout],
    task: Task[Any],
    policy: Policy | None = None,
) -> FittedMonitor:
    """Fit a monitor on rollouts, and set its threshold on those of the others that do not show the behaviour."""
    if policy and kind.scope is Scope.ACTIVATIONS and kind.layer is None:
        middle = int(policy.model.config.get_text_config().num_hidden_layers) // 2
        kind = replace(kind, layer=middle)

    def views(own: Sequence[Rollout], only_benign: bool) -> LabelledViews:
        shown, labels = _label(own, task, only_benign)
        if kind.scope is Scope.ACTIVATIONS:
            made, _ = probe_views(shown, policy, kind.layer or 0)
        else:
            made = [view_rollout(kind.scope, rollout) for rollout in shown]
        return LabelledViews(made, labels, [rollout.problem.key for rollout in shown])

    return fit_monitor(kind, views(training, False), views(benign, True))


def _label(
    rollouts: Sequence[Rollout], task: Task[Any], only_benign: bool
) -> tuple[list[Rollout], list[int]]:
    labels = label_rollouts(rollouts, task).behaviour
    pairs = zip(rollouts, labels, strict=True)
    kept = [(rollout, int(shows)) for rollout, shows in pairs if not (only_benign and shows)]
    return [rollout for rollout, _ in kept], [label for _, label in kept]
