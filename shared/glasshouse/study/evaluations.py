"""The evaluation rollouts that a study keeps of a run with an organism, and every measure that follows from them.

    rollout log ──► keep_rollouts ──► evaluations.jsonl.zst ──► measure_rollouts ──► values of the table

Nothing here needs the model, so a new monitor can read old runs: `glasshouse study FILE --table TABLE` measures
the rollouts beside the table again. n-gram monitors are fitted on rollouts of the base alone: on half of the
problems of `evaluate.reserve`, with a threshold from benign rollouts of the others. Then they are frozen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from glasshouse.config.schema import Config
from glasshouse.errors import RunDataError
from glasshouse.files import write_bytes
from glasshouse.measurement.columns import (
    Columns,
    Scores,
    label_rollouts,
)
from glasshouse.measurement.evaluate import fill_task_options, make_evaluation_monitors
from glasshouse.measurement.fit_run import fit_on_rollouts
from glasshouse.measurement.measure import measure
from glasshouse.measurement.rates import cohen_kappa
from glasshouse.models.folders import read_card
from glasshouse.monitors.base import Scope
from glasshouse.monitors.fitted import FittedKind, FittedMonitor
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.scoring import score_rollouts
from glasshouse.runs.rollout_log import read_rows
from glasshouse.tasks.base import make_task
from glasshouse.tasks.organisms import Organism
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    FinishReason,
    Grade,
    Problem,
    Rollout,
)

ROLLOUTS_FILE = "evaluations.jsonl.zst"
RESERVE = "reserve"
KEPT = (
    "step", "split", "arm", "group", "sample", "text", "reward", "correct", "model_answer", "finish_reason",
)  # fmt: skip
OF_PROBLEM = ("task", "key", "question", "gold_answer", "answer_kind", "level", "meta")
NGRAMS = "ngrams_base"
SCOPES = (Scope.PROMPT, Scope.ANSWER, Scope.COT)
"""What n-gram monitors read: the prompt alone is the floor of every monitor."""
WINDOW_LOG = 27
"""Runs of one base and seed begin with the same rollouts: a window of 128 MB finds them."""

Row = dict[str, Any]


class Value(NamedTuple):
    """A measure at a step; `n`: the events that a ratio is taken over, None for a plain mean."""

    step: int
    measure: str
    value: float | None
    n: int | None = None


# --- keeping -------------------------------------------------------------------------------------


def keep_rollouts(run: Path, study_arm: str, seed: int) -> list[Row]:
    """The rollouts of a run's evaluations in both arms, from its log; none without an organism."""
    named = {"study_arm": study_arm, "seed": seed}
    rows = read_rows(run, "validation", RESERVE)
    return [named | {key: row[key] for key in (*KEPT, *OF_PROBLEM)} for row in rows if row["arm"]]


def save_rollouts(file: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines, compressed."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        19, window_log=WINDOW_LOG, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    write_bytes(file, compressor.compress(text.encode()))


def load_rollouts(file: Path) -> dict[tuple[str, int], list[Row]]:
    """What `save_rollouts` wrote, by arm and seed."""
    runs: dict[tuple[str, int], list[Row]] = {}
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=2**WINDOW_LOG)
        with open(file, "rb") as opened, reader.stream_reader(opened) as stream:
            for row in map(json.loads, stream.read().decode().splitlines()):
                runs.setdefault((row["study_arm"], row["seed"]), []).append(row)
    except (OSError, ValueError, zstandard.ZstdError) as error:
        raise RunDataError(f"{file} does not hold the rollouts of a study: {error}.") from None
    return runs


def _to_rollout(row: Mapping[str, Any]) -> Rollout:
    problem = {key: row[key] for key in OF_PROBLEM} | {
        "answer_kind": AnswerKind(row["answer_kind"])
    }
    extracted = Extracted(model_answer=row["model_answer"])
    reward = float("nan") if row["reward"] is None else row["reward"]
    return Rollout(
        **{key: row[key] for key in ("step", "split", "arm", "group", "sample", "text")},
        problem=Problem(**problem),
        prompt=row["question"],
        completion=Completion(finish_reason=FinishReason(row.get("finish_reason", ""))),
        grade=Grade(reward=reward, correct=row["correct"], extracted=extracted),
    )


# --- measuring -----------------------------------------------------------------------------------


class ScoredStep(NamedTuple):
    """An evaluated step of a run: its rollouts in columns, and what each monitor says of them."""

    step: int
    columns: Columns
    scores: list[Scores]


def measure_rollouts(rows: Sequence[Row], config: Config) -> Iterator[Value]:
    """Every measure of a run's evaluations: of the organism, of its monitors, and Cohen's κ of each pair of monitors
    over the planted rollouts.

    Example: `[v for v in measure_rollouts(rows, config) if v.measure == "step_verifier.disclosure"]`
    """
    for step, columns, scores in score_evaluations(rows, config):
        uses = int(columns.behaviour[columns.planted].sum())
        rarer = min(uses, int(columns.planted.sum()) - uses)
        for name, found in measure(columns, "study", scores, resamples=0).measures.items():
            events = rarer if found.id == "auroc_planted" else found.n
            yield Value(step, name, found.value, events if found.monitor else None)
        flags = {
            own.monitor: own.flagged[columns.planted]
            for own in scores
            if not own.reason and not own.no_threshold
        }
        for one, other in combinations(sorted(flags), 2):
            yield Value(step, f"{one}~{other}.kappa", cohen_kappa(flags[one], flags[other]))


def score_evaluations(
    rows: Sequence[Row], config: Config, *, embedders: bool = True
) -> Iterator[ScoredStep]:
    """A run's evaluations, by step, with its own monitors, those of `evaluate.monitors` and fitted n-grams. Probes and
    judges need the model or an endpoint: their measures are those of the run. Embedders need their encoder."""
    if not rows:
        return
    config = fill_task_options(config, read_card(config.model))
    task = make_task(config.task.name, config.task.options)
    assert isinstance(task, Organism)
    rollouts = [_to_rollout(row) for row in rows]
    monitors = {
        m.name: FittedMonitor(name=m.name, monitor=m)
        for m in make_evaluation_monitors(config, task)
        if not (m.scope is Scope.ACTIVATIONS or isinstance(m, JudgeMonitor))
        and (embedders or not getattr(m, "encoder", ""))
    }
    monitors |= fit_ngrams([r for r in rollouts if r.split.startswith(RESERVE)], task)
    steps: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        if not rollout.split.startswith(RESERVE):
            steps.setdefault(rollout.step, []).append(rollout)
    for step, own in sorted(steps.items()):
        yield ScoredStep(step, label_rollouts(own, task), _score(own, monitors))


def fit_ngrams(reserve: Sequence[Rollout], task: Organism[Any]) -> dict[str, FittedMonitor]:
    """One monitor for each scope; none without a reserve."""
    if not reserve:
        return {}
    keys = list(dict.fromkeys(rollout.problem.key for rollout in reserve))
    fitted_on = set(keys[: len(keys) // 2])

    training = [rollout for rollout in reserve if rollout.problem.key in fitted_on]
    benign = [rollout for rollout in reserve if rollout.problem.key not in fitted_on]
    kinds = [FittedKind(name=f"{NGRAMS}.{scope.value}", scope=scope) for scope in SCOPES]
    return {kind.name: fit_on_rollouts(kind, training, benign, task) for kind in kinds}


def _score(rollouts: Sequence[Rollout], monitors: Mapping[str, FittedMonitor]) -> list[Scores]:
    scores = []
    for name, fitted in monitors.items():
        if fitted.monitor is None:
            scores.append(Scores(monitor=name, reason=fitted.reason))
            continue
        outputs = score_rollouts(fitted.monitor, rollouts)
        scores.append(Scores.from_outputs(name, outputs, no_threshold=fitted.no_threshold))
    return scores
