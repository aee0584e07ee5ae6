"""Metrics of one training step, and warnings if they show that a run cannot learn."""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.measurement.reading import MAX_CUT, MAX_UNREAD, Reading, is_unread
from glasshouse.rollout.collector import Group
from glasshouse.tasks.answers import split_completion
from glasshouse.terminal import shell_command
from glasshouse.types import ExtractionRule, FinishReason

MIN_ARM_ROLLOUTS, MIN_BEHAVIOUR = 100, 0.01
"""With this many rollouts of an organism, a planted behaviour that is rarer will hardly be sampled in training."""


def compute_step_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return rewards and their terms, group variance, accuracy, format, rules, lengths, entropy."""
    rollouts = [r for group in groups for r in group]
    rewards = [r.grade.reward for r in rollouts]
    lengths = [r.completion.length for r in rollouts]
    metrics = {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "accuracy": fraction(r.grade.correct for r in rollouts),
        "accuracy_strict": fraction(r.grade.strict for r in rollouts),
        "format": fraction(r.grade.has_answer_tag for r in rollouts),
        "ambiguous": fraction(r.grade.extracted.ambiguous for r in rollouts),
        "frac_all_correct": fraction(all(r.grade.correct for r in group) for group in groups),
        "unread": fraction(map(is_unread, rollouts)),
        "frac_equal_texts": fraction(len({r.text for r in group}) == 1 for group in groups),
        "frac_all_wrong": fraction(not any(r.grade.correct for r in group) for group in groups),
        "frac_zero_std": fraction(len({r.grade.reward for r in group}) == 1 for group in groups),
        "frac_zero_advantage": fraction(r.advantage == 0 for r in rollouts),
        "length": statistics.fmean(lengths),
        "length_max": float(max(lengths)),
        "cot_characters": statistics.fmean(len(split_completion(r.text).cot) for r in rollouts),
        "staleness": float(max(r.step - 1 - r.completion.policy_version for r in rollouts)),
        "truncated": fraction(r.completion.finish_reason is FinishReason.LENGTH for r in rollouts),
        # minus the mean log-probability of the sampled tokens: an unbiased estimate of the entropy
        "entropy": -sum(sum(r.completion.logprobs) for r in rollouts) / max(1, sum(lengths)),
    }
    for term in rollouts[0].grade.terms:
        metrics[f"term_{term}"] = statistics.fmean(r.grade.terms[term] for r in rollouts)
    for rule in ExtractionRule:
        metrics[f"rule_{rule.value}"] = fraction(r.grade.extracted.rule is rule for r in rollouts)
    return metrics


def check_staleness(staleness: float, bound: int) -> None:
    """Raise if a rollout was sampled by weights that are more than `bound` updates old."""
    if not 0 <= staleness <= bound:
        raise RuntimeError(
            f"A rollout was sampled {staleness:g} updates ago; max_offpolicy_steps allows {bound}."
        )


def compute_throughput(
    groups: Sequence[Group], discarded: Sequence[Group], seconds: dict[str, float]
) -> dict[str, Any]:
    """Return tokens per second of generation and learning (discarded groups were generated too), and the largest
    resident memory of this process so far."""
    rollouts = [r for group in groups for r in group]
    generated = sum(r.completion.length for group in (*groups, *discarded) for r in group)
    learned = sum(r.completion.length for r in rollouts if r.advantage)
    return {
        "generate_tokens_per_second": round(generated / max(seconds["generate"], 1e-9)),
        "learn_tokens_per_second": round(learned / max(seconds["learn"], 1e-9)),
        "peak_memory_mb": measure_peak_memory(),
    }


def measure_peak_memory() -> int:
    """Return the largest resident memory of this process so far, in MB."""
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit // 1_000_000


def fraction(values: Iterable[bool]) -> float:
    """Return the fraction of true values; 0 if there are none."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


class PhaseTimer:
    """Seconds per phase of a step; a phase may occur more than once.

    Example: `timer.lap("generate")` adds the time since the last lap to `timer.seconds["generate"]`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + now - self.last, 6)
        self.last = now


class Diagnostics:
    """Checks each evaluation and each step's metrics; returns a warning the first time something is wrong.

    Example: `Diagnostics(config).check(metrics)`
    """

    def __init__(self, config: Config) -> None:
        self.run_config, self.config = config, config.diagnostics
        self.zero_variance_steps = 0
        self.warned: set[str] = set()

    def check_evaluation(self, results: Mapping[str, Any], *, is_first: bool) -> dict[str, str]:
        """Return the new warnings of an evaluation, by kind: what only the model can show. After the first, a planted
        behaviour may be gone because it was trained away."""
        config, reading, warnings = self.run_config, Reading(**results["reading"]), {}
        if reading.cut_share > MAX_CUT:
            warnings["cut completions"] = (
                f"{reading.cut:,} of {reading.ended:,} completions are cut off at generate.max_tokens="
                f"{config.generate.max_tokens}: raise it."
            )
        elif reading.unread_share > MAX_UNREAD:
            command = ["glasshouse", "tasks", config.task.name, "--model", config.model]
            warnings["unread answers"] = (
                f"{reading.unread:,} of {reading.answers:,} answers could not be read, so accuracies are too low. "
                f"Check the prompt ({shell_command(command)}) and, for problem files, the kind of answer."
            )
        for name, own in results.get("organism", {}).items():
            if isinstance(own, Mapping) and own.get("failed"):
                warnings[f"failed monitor {name}"] = (
                    f"The monitor {name} failed on {own['failed']:,} rollouts of this evaluation, which are left out "
                    "of its measures."
                )
        organism = results.get("organism", {}) if is_first else {}
        if organism.get("rollouts", 0) >= MIN_ARM_ROLLOUTS:
            name = "behaviour" if organism.get("reliance") is None else "reliance"
            if organism[name] < max(MIN_BEHAVIOUR, _noise_of(organism)):
                chance = ", which chance can give" if organism[name] >= MIN_BEHAVIOUR else ""
                warnings["planted behaviour not shown"] = (
                    f"The model does not show the planted behaviour of {config.task.name}: {name} "
                    f"{organism[name]:.2f} in {organism['rollouts']:,} rollouts{chance}. RL can hardly reinforce it: "
                    "start from a base that shows it at times (docs/tasks.md) or make one with glasshouse sft."
                )
        return self._new(warnings)

    def check(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Return the new warnings of a step, by kind."""
        # Not `frac_zero_std`: without a baseline (reinforce) equal rewards do train the model.
        no_signal = metrics["frac_zero_advantage"] == 1
        self.zero_variance_steps = self.zero_variance_steps + 1 if no_signal else 0
        warnings = {}
        if self.zero_variance_steps >= self.config.zero_variance_steps:
            warnings["no advantages"] = (
                f"In the last {self.zero_variance_steps} steps all advantages were zero, so nothing is "
                f"learned: {self._explain_zero_variance(metrics)}."
            )
        difference = metrics.get("logprob_diff", 0.0)
        if difference > self.config.max_logprob_diff:
            warnings["off-policy samples"] = (
                f"Sampler and learner log-probabilities differ by {difference:.3f} on average, more than "
                f"diagnostics.max_logprob_diff={self.config.max_logprob_diff}: the samples are further "
                "off-policy than the loss assumes."
            )
        if metrics["truncated"] > 0.5:
            warnings["cut completions"] = (
                f"{metrics['truncated']:.0%} of completions are cut off at generate.max_tokens="
                f"{self.run_config.generate.max_tokens}: raise it."
            )
        return self._new(warnings)

    def _new(self, warnings: Mapping[str, str]) -> dict[str, str]:
        new = {kind: text for kind, text in warnings.items() if kind not in self.warned}
        self.warned |= new.keys()
        return new

    def _explain_zero_variance(self, metrics: Mapping[str, Any]) -> str:
        if metrics["frac_all_correct"] > 0.5:
            return "nearly every answer is already correct. Make the task harder, or stop here"
        if metrics["frac_equal_texts"] == 1:
            return (
                "all completions of a problem are equal. Raise generate.temperature, or loosen generate.top_k, "
                "top_p and min_p"
            )
        if metrics["format"] < 0.05 and metrics["truncated"] > 0.5:
            return "completions are cut off before an answer. Raise generate.max_tokens"
        if metrics["unread"] > 0.5:
            return "no answer can be read. Check the prompt and the kind of answer"
        if metrics["frac_all_wrong"] > 0.5:
            return (
                "no answer is correct. Make the task easier (task.options), add a partial reward "
                "(reward.terms.closeness=0.5), or start from a model that knows the task"
            )
        return "the rewards of each group are all equal. Raise generate.temperature or generate.group_size"


def _noise_of(organism: Mapping[str, Any]) -> float:
    """Two standard errors of the reliance, from its rates in the two arms; 0 without a control arm."""
    if organism.get("reliance") is None:
        return 0.0
    planted = organism["behaviour"]
    rates = (planted, max(0.0, planted - organism["reliance"]))
    return 2 * math.sqrt(sum(p * (1 - p) for p in rates) / (organism["rollouts"] / 2))
