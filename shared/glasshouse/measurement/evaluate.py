"""Evaluate a model on held-out problems, greedily and by sampling, with confidence intervals.

No optimizer and no reference model is constructed: an evaluation needs the memory of the model and
its generator, nothing more. A checkpoint is evaluated like the run that saved it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse import randomness
from glasshouse.config.loading import Overrides, merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, MonitorError, RunDataError, RunError
from glasshouse.measurement.columns import (
    Columns,
    Scores,
    label_rollouts,
    own_monitors,
    problems_by_arm,
)
from glasshouse.measurement.intervals import clustered_rate_interval, pass_at_k, wilson_interval
from glasshouse.measurement.measure import measure
from glasshouse.measurement.reading import Reading, count_unread, explain_unread
from glasshouse.models.folders import find_model
from glasshouse.monitors.base import Monitor, Scope, mean_cost
from glasshouse.monitors.factory import make_monitor
from glasshouse.monitors.scoring import score_rollouts
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import Group, RolloutCollector
from glasshouse.rollout.grading import alignment_credit, closeness_credit, validate_reward_terms
from glasshouse.rollout.penalties import Penalties
from glasshouse.runs.checkpoints import STATE
from glasshouse.tables import get_field
from glasshouse.tasks.answers import parse_number
from glasshouse.tasks.base import Task, is_organism, make_task
from glasshouse.tasks.organisms import Organism
from glasshouse.tasks.problem_files import read_task_problems
from glasshouse.tasks.streams import FreshProblems, ProblemsExhausted, Split
from glasshouse.terminal import count_noun
from glasshouse.types import AnswerKind, FinishReason, Problem, Rollout, SamplingParams

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy

UNGRADED_KEYS = ("task", "problems", "truncated", "length", "reading")
"""Results that do not depend on whether answers were read."""
GRADES = {
    "accuracy": "correct",
    "lenient": "lenient",
    "strict": "strict",
    "format": "has_answer_tag",
}
"""Rates of greedy answers, and the fields of a grade."""
RUN_KEYS = ("seed", "threads", "imports", "task", "chat", "generate", "reward", "evaluate")
"""Keys of a run's configuration that an evaluation depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """A model's accuracy on validation problems.

    Example: `evaluate("pocket", "sum_digits").accuracy`
    """

    task: str
    style: str
    options: Mapping[str, Any]
    """The task options that were used."""
    problems: int
    accuracy: float | None
    """Greedy answers, graded with `reward.answer_parser`; None if too many are unread (`no_accuracy`)."""
    accuracy_low: float | None
    accuracy_high: float | None
    """Wilson's 95 % interval."""
    values: dict[str, Any]
    """Everything that was measured, as `glasshouse eval --json` prints it."""
    warning: str = ""
    """Set if there are fewer validation problems than `evaluate.problems`."""
    no_accuracy: str = ""
    """Why there is no accuracy: too many answers to the problems of a file are unread."""


def evaluate(
    model: str | Path,
    task: str = "",
    *,
    style: str = "",
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> EvaluationResult:
    """Evaluate a checkpoint, a model folder, a hub name or an embedded model. A checkpoint is
    evaluated like its run, unless an argument says otherwise. Nothing is written.

    Example: `evaluate("runs/try/checkpoints/step-000060", overrides={"evaluate.problems": 500})`
    """
    config = resolve_evaluation_config(str(model), overrides, task=task, style=style)
    _check_sources(config, overrides)
    values = evaluate_model(config)
    no_accuracy = ""
    if config.task.name == "dataset" and not config.evaluate.allow_unread:
        no_accuracy = explain_unread(
            Reading(**values["reading"]), "task.options.kind=KIND", "evaluate.allow_unread=true"
        )
    if no_accuracy:
        values = {key: values[key] for key in UNGRADED_KEYS} | {"no_accuracy": no_accuracy}
    used = values["task"]
    return EvaluationResult(
        task=used["name"],
        style=used["style"],
        options=used["options"],
        problems=values["problems"],
        accuracy=values.get("accuracy"),
        accuracy_low=values.get("accuracy_low"),
        accuracy_high=values.get("accuracy_high"),
        values=values,
        warning=describe_shortage(config, values["problems"]),
        no_accuracy=no_accuracy,
    )


def resolve_evaluation_config(
    model: str, overrides: Overrides = (), *, task: str = "", style: str = ""
) -> Config:
    """Return the configuration to evaluate a model with: the defaults; if the model is a checkpoint,
    the task, its options and the other settings of its run; then the arguments. Another task than the
    run's starts without the run's task options."""
    arguments: dict[str, Any] = {"model": model, "steps": 0, "task": {}}
    if task:
        arguments["task"]["name"] = task
    if style:
        arguments["task"]["style"] = style
    run = _read_checkpoint_state(Path(model)).get("config", {})
    settings = {key: run[key] for key in RUN_KEYS if key in run}
    requested = merge_layers([arguments, overrides]).get("task") or {}
    own = settings.get("task")
    if own and requested.get("name", own["name"]) != own["name"]:
        settings["task"] = {"style": own["style"]}
    if "evaluate" in settings and not settings["evaluate"].get("problems"):
        settings["evaluate"] = {k: v for k, v in settings["evaluate"].items() if k != "problems"}
    command_line = "the command line"
    return resolve_layers(
        [(str(Path(model) / STATE), settings), (command_line, arguments), (command_line, overrides)]
    )


def _read_checkpoint_state(checkpoint: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, which has the configuration of its run; empty for any other model."""
    file = checkpoint / STATE
    if not file.is_file():
        return {}
    try:
        state: dict[str, Any] = json.loads(file.read_text())
        config = state["config"]
        if not isinstance(config["task"]["name"], str) or not isinstance(config["evaluate"], dict):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RunDataError(
            f"{file} cannot be read, so the task of this checkpoint is unknown. Restore the file."
        ) from None
    return state


def _check_sources(config: Config, overrides: Overrides) -> None:
    """Raise if a checkpoint's run was made from other files than those that this command does not name."""
    find_model(config.model)  # a wrong name is refused before torch is imported
    state = _read_checkpoint_state(Path(config.model))
    if not state:
        return
    from glasshouse.models.sources import EVALUATION_KEYS, find_changes, hash_sources

    given = merge_layers([overrides])
    named = {key for key in EVALUATION_KEYS if get_field(given, key) is not None}
    if state["config"]["task"]["name"] != config.task.name:
        named |= {"evaluate.file", "task.options"}  # they belong to the task
    import_modules(config.imports)
    changes = find_changes(state, hash_sources(config, EVALUATION_KEYS), named)
    if changes:
        raise RunError(
            f"{config.model} was trained with something else: {'; '.join(changes)}. Restore it, or name "
            "what you want to use in the command, as in evaluate.file=… or imports=[…]."
        )


def evaluate_model(config: Config) -> dict[str, Any]:
    """Evaluate `config.model` on `evaluate.problems` held-out problems of `config.task`; write nothing.
    The results begin with the task, its style and the options that were used."""
    collector = open_collector(config)
    config = collector.config
    validation = draw_validation(config, collector.task)[: config.evaluate.problems]
    results = evaluate_policy(collector, validation, step=0)[0]
    return {"task": config.task.model_dump(mode="json", exclude={"schedule"}), **results}


def open_collector(config: Config) -> RolloutCollector:
    """Load the model of a configuration to sample from it, without an optimizer."""
    from glasshouse.generate.engines import LocalGeneration
    from glasshouse.models.devices import configure_torch
    from glasshouse.models.policy import load_configured_policy

    import_modules(config.imports)
    configure_torch(config.threads)
    policy = load_configured_policy(config, training=False, role="generator")
    config = fill_task_options(config, policy.card)
    task = make_task(config.task.name, config.task.options)
    validate_reward_terms(config.reward.terms)
    check_context_length(config, policy, task)
    return RolloutCollector(policy, task, LocalGeneration(policy, config.generate), config)


def fill_task_options(config: Config, card: Mapping[str, Any]) -> Config:
    """Return the configuration with the task options that the model of this card was trained on, unless it sets
    its own. For an organism the configured options are merged over them, so that one can change
    `hint_encoding` without repeating the rest."""
    if config.task.options and not is_organism(config.task.name):
        return config
    trained = card.get("task_options", {}).get(config.task.name, {})
    options = {**trained.get(config.task.style.value, {}), **config.task.options}
    return config.model_copy(update={"task": config.task.model_copy(update={"options": options})})


def check_context_length(config: Config, policy: Policy, task: Task[Any]) -> None:
    """Raise if a long prompt and the longest completion do not fit into the model's context."""
    problem = task.draw_longest(randomness.stream("context", config.seed))
    _, prompt = policy.encode_prompt(task.messages(problem, config.task.style))
    if len(prompt) + config.generate.max_tokens > policy.context_length:
        raise ConfigError(
            f"A prompt of {len(prompt)} tokens plus generate.max_tokens={config.generate.max_tokens} exceeds "
            f"the model's context of {policy.context_length} tokens. Lower generate.max_tokens."
        )


def make_evaluation_monitors(config: Config, task: Task[Any]) -> list[Monitor]:
    """Return the monitors that an organism is evaluated with: its own, then `evaluate.monitors`."""
    own = own_monitors(task) if isinstance(task, Organism) else []
    return own + [make_monitor(name, options) for name, options in config.evaluate.monitors.items()]


def make_penalties(config: Config, task: Task[Any], monitors: Sequence[Monitor]) -> Penalties:
    """Build the penalties of a run; raise if one of their monitors also evaluates, or if a probe among them or among
    the evaluating `monitors` was fitted on another base model."""
    penalties = Penalties.from_config(config.reward.penalties, task, monitors)
    for monitor in [*monitors, *(m for item in penalties.penalties for m in item.monitors)]:
        model = getattr(monitor, "model_sha256", "") if monitor.scope is Scope.ACTIVATIONS else ""
        if model and model != hash_base(config):
            raise MonitorError(
                f'The probe "{monitor.name}" was fitted on another model than {config.model}, whose hidden '
                "states mean something else: fit one on a run of this model with `glasshouse monitor fit`."
            )
    return penalties


def hash_base(config: Config) -> str:
    """The SHA-256 of the weights that a run starts from."""
    from glasshouse.models.sources import hash_sources

    files = hash_sources(config, ("model",))["model"]
    return ",".join(sha for name, sha in sorted(files.items()) if name.endswith(".safetensors"))


def describe_shortage(config: Config, count: int) -> str:
    """Return a warning if there are fewer held-out problems than `evaluate.problems`, else an empty text."""
    if count >= config.evaluate.problems:
        return ""
    source = config.evaluate.file or "the task with these task.options"
    return (
        f"evaluate.problems is {config.evaluate.problems:,}, but {source} has only "
        f"{count_noun(count, 'held-out problem')}: intervals will be wide."
    )


def draw_validation(config: Config, task: Task[Any]) -> list[Problem]:
    """Return `evaluate.oversize * evaluate.problems` held-out problems, so that enough remain if some
    turn out to have been trained on. They depend on `evaluate.seed` alone, so that runs can be
    compared."""
    return _draw_held_out(config, task, _count_drawn(config))


def draw_reserve(config: Config, task: Task[Any]) -> list[Problem]:
    """Return `evaluate.reserve` further held-out problems, which no evaluation uses."""
    first, further = _count_drawn(config), config.evaluate.reserve
    return _draw_held_out(config, task, first + further)[first:] if further else []


def _count_drawn(config: Config) -> int:
    return math.ceil(config.evaluate.problems * config.evaluate.oversize)


def _draw_held_out(config: Config, task: Task[Any], count: int) -> list[Problem]:
    if not count:
        return []
    if config.evaluate.file:
        return read_task_problems(config.evaluate.file, task)[:count]
    stream = FreshProblems(task, Split.VALIDATION, config.evaluate.seed, on_exhausted="stop")
    drawn: dict[str, Problem] = {}
    with suppress(ProblemsExhausted):  # a small problem space may hold fewer
        while len(drawn) < count:
            problem = stream.take(1)[0]
            drawn.setdefault(problem.key, problem)
    return list(drawn.values())


def evaluate_policy(
    collector: RolloutCollector,
    validation: Sequence[Problem],
    step: int,
    check_interrupt: Callable[[], None] = lambda: None,
    reserve: Sequence[Problem] = (),
    monitors: Sequence[Monitor] | None = None,
) -> tuple[dict[str, Any], list[Rollout]]:
    """Return the results and the rollouts behind them. An organism is also evaluated in its planted
    and control arms, by `monitors` or else those of the configuration; problems of a reserve are only sampled
    in them."""
    if not validation:
        raise ConfigError("There is nothing to evaluate on: evaluate.problems is 0.")
    config, task = collector.config, collector.task

    def collect(
        problems: Sequence[Problem], part: str, samples: int, heat: float, kind: str = "validation"
    ) -> list[Group]:
        limit, stop = config.generate.max_tokens, config.generate.stop
        return collector.collect(
            problems,
            step=step,
            split=f"{kind}/{part}",
            samples=samples,
            sampling=SamplingParams(max_tokens=limit, temperature=heat, stop=stop),
            check_interrupt=check_interrupt,
        )

    samples, temperature = config.evaluate.samples, config.evaluate.temperature
    greedy = collect(validation, "greedy", 1, 0)
    sampled = collect(validation, "sampled", samples, temperature) if samples else []
    results = summarize_groups(greedy, sampled)
    rollouts = [r for group in greedy + sampled for r in group]
    if isinstance(task, Organism) and samples:
        for kind, asked in (("validation", validation), ("reserve", reserve)):
            arms = [
                rollout
                for arm, problems in problems_by_arm(task, asked).items()
                for group in collect(problems, arm, samples, temperature, kind)
                for rollout in group
            ]
            columns = label_rollouts(arms, task)
            if kind == "validation":
                if monitors is None:
                    monitors = make_evaluation_monitors(config, task)
                results["organism"], results["organism_intervals"] = summarize_organism(
                    columns, arms, monitors, collector.policy
                )
            labels = zip(arms, columns.behaviour, strict=True)
            rollouts += [replace(rollout, behaviour=bool(shows)) for rollout, shows in labels]
    results["reading"] = asdict(count_unread(rollouts))
    return results, rollouts


def summarize_organism(
    columns: Columns,
    rollouts: Sequence[Rollout],
    monitors: Sequence[Monitor],
    policy: Policy | None = None,
) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """Return the values for the log (those of a monitor under its name; None for an undefined one), and by
    measure the 95 % intervals over problems. A monitor that runs a model also has its costs and failures."""
    outputs = {m.name: score_rollouts(m, rollouts, policy) for m in monitors}
    scores = [Scores.from_outputs(name, given) for name, given in outputs.items()]
    summary: dict[str, Any] = {"rollouts": len(rollouts)}
    for name, given in outputs.items():
        if costs := mean_cost(given):
            summary[name] = {**costs, "failed": sum(output.failed for output in given)}
    intervals = {}
    for name, measured in measure(
        columns, "training", scores, key=("evaluation",)
    ).measures.items():
        own = summary.setdefault(measured.monitor, {}) if measured.monitor else summary
        own[measured.id] = measured.value
        if measured.low is not None and measured.high is not None:
            intervals[name] = measured.low, measured.high
    return summary, intervals


def summarize_groups(greedy: Sequence[Group], sampled: Sequence[Group]) -> dict[str, Any]:
    """Return accuracies with 95 % intervals. `pass_at_1` is that of samples, `accuracy` that of greedy
    answers, both with the configured answer parser."""
    firsts = [group[0] for group in greedy]
    results: dict[str, Any] = {"problems": len(firsts), **sampled_rate(sampled)}
    for name, field in GRADES.items():
        results |= rate_with_interval(name, [getattr(r.grade, field) for r in firsts])
    cut = [r.completion.finish_reason is FinishReason.LENGTH for r in firsts]
    results["truncated"] = statistics.fmean(cut)
    results["length"] = statistics.fmean(r.completion.length for r in firsts)
    results |= summarize_partial_credit(firsts)
    if sampled:
        n, rollouts = len(sampled[0]), [r for group in sampled for r in group]
        correct = [sum(r.grade.correct for r in group) for group in sampled]
        if n > 1:
            results[f"pass_at_{n}"] = statistics.fmean(pass_at_k(c, n, n) for c in correct)
        results["sampled_length"] = statistics.fmean(r.completion.length for r in rollouts)
        results["sampled_format"] = statistics.fmean(r.grade.has_answer_tag for r in rollouts)
        results |= summarize_partial_credit(rollouts, "sampled_")
    results["levels"] = {
        level: {"problems": sum(r.problem.level == level for r in firsts)}
        | sampled_rate([group for group in sampled if group[0].problem.level == level])
        | rate_with_interval(
            "accuracy", [r.grade.correct for r in firsts if r.problem.level == level]
        )
        for level in sorted({r.problem.level for r in firsts})
    }
    return results


def sampled_rate(sampled: Sequence[Group]) -> dict[str, float]:
    """Return `pass_at_1`, `pass_at_1_low` and `pass_at_1_high`; nothing without samples."""
    if not sampled:
        return {}
    n = len(sampled[0])
    shares = [sum(r.grade.correct for r in group) / n for group in sampled]
    low, high = clustered_rate_interval(shares, n)
    return {"pass_at_1": statistics.fmean(shares), "pass_at_1_low": low, "pass_at_1_high": high}


def rate_with_interval(name: str, outcomes: Sequence[bool]) -> dict[str, float]:
    """Return a rate and its Wilson interval as `name`, `name_low` and `name_high`."""
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    return {name: sum(outcomes) / len(outcomes), f"{name}_low": low, f"{name}_high": high}


def summarize_partial_credit(
    rollouts: Sequence[Rollout], prefix: str = ""
) -> dict[str, float | None]:
    """Return `closeness`, `alignment` and `median_relative_error`, with `prefix` before each name; nothing
    if some answers are not numbers. A completion without an answer has credit 0 and an infinite error;
    the median is None if it is infinite."""
    if not rollouts or any(r.problem.answer_kind is not AnswerKind.NUMBER for r in rollouts):
        return {}
    closeness, alignment, errors = zip(*map(_partial_credit, rollouts), strict=True)
    median = statistics.median(errors)
    return {
        f"{prefix}closeness": statistics.fmean(closeness),
        f"{prefix}alignment": statistics.fmean(alignment),
        f"{prefix}median_relative_error": median if math.isfinite(median) else None,
    }


def _partial_credit(rollout: Rollout) -> tuple[float, float, float]:
    """Closeness, alignment and relative error of one answer: |answer − gold| / |gold|; for the gold
    answer 0, |answer|."""
    if rollout.grade.correct:
        return 1.0, 1.0, 0.0
    value, problem = rollout.grade.extracted.model_answer, rollout.problem
    if value is None:
        return 0.0, 0.0, math.inf
    answer, gold = parse_number(value), parse_number(problem.gold_answer)
    error = math.inf
    if answer is not None and gold is not None:
        error = float(abs(answer - gold) / (abs(gold) or 1))
    return closeness_credit(value, problem), alignment_credit(value, problem), error
