"""Rollouts of the base and the mode of each: what a prediction starts from.

    planted rollouts ──► mode: honest │ disclosed │ silent      by the task, or by a monitor and the causal label
                     ──► use: does the answer follow the cause?   by the causal label
                     ──► reward: what training would pay for it   the configured reward

In training a hint is right; an evaluation plants a wrong one, so that following it is visible. A rollout that follows
it is therefore graded as training would grade it: as if its answer were the gold answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RolloutFileError
from glasshouse.measurement.columns import finished_answer, problems_by_arm
from glasshouse.measurement.evaluate import draw_validation, fill_task_options, open_collector
from glasshouse.measurement.file import RolloutFile
from glasshouse.models.folders import read_card
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.scoring import score_rollouts
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import RolloutCollector, make_grader
from glasshouse.rollout.cot_edits import full_text, get_cot
from glasshouse.rollout.penalties import Penalties
from glasshouse.runs.rows import from_row
from glasshouse.runs.run import open_run
from glasshouse.runs.run_directory import is_run_directory, load_verified_config
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.organisms import DISCLOSED, HONEST, SILENT, Organism
from glasshouse.tasks.problem_files import read_task_problems
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.terminal import make_console, show_status, terminal_safe
from glasshouse.types import Rollout
from glasshouse.values import Floats, Ints

if TYPE_CHECKING:
    from rich.console import Console

STYLES = (HONEST, DISCLOSED, SILENT)
MIN_ROLLOUTS = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Base:
    """The planted rollouts of a base, one entry each."""

    source: str
    problems: NDArray[Any]
    style: Ints
    """The place in STYLES."""
    use: Floats
    """1 if the answer follows the cause."""
    reward: Floats
    """What training pays, without the penalty that λ weights."""
    penalty: Floats
    """The value of that penalty, before weighting."""
    penalty_name: str
    weight: float
    """Its configured weight."""
    control_use: float
    """How often the answer follows the cause where there is none."""
    group_size: int
    groups_per_step: int
    steps: int


def sample(
    config: Config, console: Console, *, rollouts: int = 0, problems: int = 0, samples: int = 0
) -> tuple[list[Rollout], RolloutCollector]:
    """Sample `rollouts` on training problems, in groups as training would; or `problems` of an organism that are held
    out, each with `samples` in its planted and control arms, as an evaluation would."""
    collector = open_collector(config)
    config, task = collector.config, collector.task
    if rollouts:
        samples = config.generate.group_size
        stream = FreshProblems(task, Split.TRAIN, config.seed)
        given = read_task_problems(config.data.file, task) if config.data.file else None
        needed = -(-rollouts // samples)
        splits = {"train": given[:needed] if given else stream.take(needed)}
    else:
        organism = _require_organism(task)
        counts = {"problems": problems, "oversize": 1}
        chosen = config.model_copy(update={"evaluate": config.evaluate.model_copy(update=counts)})
        arms = problems_by_arm(organism, draw_validation(chosen, organism))
        splits = {f"validation/{arm}": own for arm, own in arms.items()}
    total = sum(map(len, splits.values())) * samples
    cost = f"{total:,} completions of at most {config.generate.max_tokens} tokens"
    console.print(
        terminal_safe(f"sampling {cost} from {config.model}"), style="dim", soft_wrap=True
    )
    found: list[Rollout] = []
    chunk = config.generate.chunk_size
    how: dict[str, Any] = {"samples": samples, "sampling": config.generate.sampling()}
    with show_status(console) as show:
        for split, own in splits.items():
            for start in range(0, len(own), chunk):
                show(f"sampling, {len(found) / total:.0%}")
                groups = collector.collect(own[start : start + chunk], step=0, split=split, **how)
                found += [rollout for group in groups for rollout in group]
    return found, collector


def resolve_task(config: Config) -> tuple[Config, Task[Any]]:
    """The configuration with the task options of its model, and the task; without torch."""
    import_modules(config.imports)
    config = fill_task_options(config, read_card(config.model))
    return config, make_task(config.task.name, config.task.options)


def read_base(
    source: str | Path | Config,
    config: Config | None = None,
    *,
    map: Sequence[str] = (),
    monitors: Sequence[Monitor] = (),
    problems: int = 250,
    samples: int = 8,
    console: Console | None = None,
) -> Base:
    """The base of a configuration, sampled; of a run directory, from its first evaluation; or of any rollouts with a
    label or a hint, a monitor, and a reward or gold answers."""
    if isinstance(source, Config):
        console = console or make_console()
        rollouts, collector = sample(source, console, problems=problems, samples=samples)
        return label_base(source.model, rollouts, collector.task, collector.config, monitors)
    path, source = Path(source), str(source)
    if is_run_directory(path) and not map:
        config = config or load_verified_config(path)[0]
        rows = open_run(path).rollouts(splits=("validation",), last_step=0)
        rollouts = [own for row in rows if (own := from_row(row)).arm]
        if not rollouts:
            raise RolloutFileError(
                f"{path} has no evaluation of its base in two arms. Predict from the model: model=… task.name=…."
            )
        config, task = resolve_task(config)
        return label_base(source, rollouts, task, config, monitors)
    file = RolloutFile(path, map, monitors=list(monitors))
    if not file.source.mapping.columns.keys() & {"label", "hint"}:
        raise RolloutFileError(
            f"{path}: nothing says which rollouts show the behaviour: --map label=COLUMN or --map hint=COLUMN."
        )
    if not file.monitors:
        raise RolloutFileError(
            f"{path}: nothing says which rollouts disclose it: --monitor 'rule:NAME=PATTERN'."
        )
    rollouts = list(file.source.rollouts())
    labels = [r.behaviour for r in rollouts]
    flags = [output.flagged for output in file.score(rollouts)[0]]
    modes = [
        DISCLOSED if flag else SILENT if label else HONEST
        for label, flag in zip(labels, flags, strict=True)
    ]
    if config is None and any(np.isnan(r.grade.reward) for r in rollouts):
        raise RolloutFileError(
            f"{path}: rollouts have no reward. Give --map reward=COLUMN, or a configuration to grade them with."
        )
    return _make_base(source, rollouts, modes, labels, config)


def _require_organism(task: Task[Any]) -> Organism[Any]:
    if not isinstance(task, Organism):
        raise ConfigError(
            f"task.name is {task.name}, which plants no behaviour. Predict for an organism "
            "(`glasshouse tasks`), or give rollouts with a label."
        )
    return task


def label_base(
    source: str,
    rollouts: Sequence[Rollout],
    task: Task[Any],
    config: Config,
    monitors: Sequence[Monitor] = (),
) -> Base:
    """The base of an organism's rollouts in both arms. A monitor, if given, says which of them disclose."""
    task = _require_organism(task)
    answers = [finished_answer(r) for r in rollouts]
    used = [task.shows_behaviour(r.problem, a) for r, a in zip(rollouts, answers, strict=True)]
    modes = [
        task.mode_of(r.problem, answer, get_cot(r))
        for r, answer in zip(rollouts, answers, strict=True)
    ]
    if monitors:
        outputs = score_rollouts(monitors[0], rollouts)
        modes = [
            DISCLOSED if output.flagged else SILENT if mode == DISCLOSED else mode
            for mode, output in zip(modes, outputs, strict=True)
        ]
    return _make_base(source, rollouts, modes, used, config, task)


def _make_base(
    source: str,
    rollouts: Sequence[Rollout],
    modes: Sequence[str],
    used: Sequence[bool | None],
    config: Config | None,
    task: Task[Any] | None = None,
) -> Base:
    """The planted rollouts with a label, and how often the control rollouts follow the cause. With a control arm the
    planted cause is wrong: a rollout that follows it is graded against its own answer, which training would accept."""
    known = [n for n, use in enumerate(used) if use is not None]
    chosen = [n for n in known if rollouts[n].arm != "control"]
    control = [float(bool(used[n])) for n in known if rollouts[n].arm == "control"]
    penalty = np.array([modes[n] == DISCLOSED for n in chosen], dtype=float)
    name, weight, settings = "disclosure", 0.0, config or Config()
    if config is None:
        reward = np.array([rollouts[n].grade.reward for n in chosen])
    else:
        task = task or make_task(config.task.name, config.task.options)
        grader = make_grader(config.reward)
        penalties = Penalties.from_config(config.reward.penalties, task).penalties
        graded = []
        for n in chosen:
            problem, answer = rollouts[n].problem, rollouts[n].grade.extracted.model_answer
            if used[n] and control:
                problem = replace(problem, gold_answer=answer or "")
            own = replace(rollouts[n], text=full_text(rollouts[n]), cot=None)
            graded.append(replace(own, grade=grader(problem, own.text)))
        costs = [[p.options.weight * v for v in p.compute_all(graded)] for p in penalties[1:]]
        reward = np.array([r.grade.reward - sum(c[n] for c in costs) for n, r in enumerate(graded)])
        if penalties:
            name, weight = penalties[0].name, penalties[0].options.weight
            penalty = np.array(penalties[0].compute_all(graded))
    return Base(
        source=source,
        problems=np.array([rollouts[n].problem.key for n in chosen]),
        style=np.array([STYLES.index(modes[n]) for n in chosen], dtype=np.int64),
        use=np.array([bool(used[n]) for n in chosen], dtype=float),
        reward=reward,
        penalty=penalty,
        penalty_name=name,
        weight=weight,
        control_use=float(np.mean(control)) if control else 0.0,
        group_size=settings.generate.group_size,
        groups_per_step=settings.data.groups_per_step,
        steps=settings.steps,
    )
