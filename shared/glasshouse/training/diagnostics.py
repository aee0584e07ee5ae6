"""Warnings when a run cannot learn, with the probable cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.config.schema import Config


class Diagnostics:
    """Checks each step's metrics; returns a warning the first time something is wrong.

    Example: `Diagnostics(config).check(metrics)`
    """

    def __init__(self, config: Config) -> None:
        self.config = config.diagnostics
        self.zero_variance_steps = 0
        self.warned: set[str] = set()

    def check(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return the new warnings."""
        # Not `frac_zero_std`: without a baseline (reinforce) equal rewards do train the model.
        no_signal = metrics["frac_zero_advantage"] == 1
        self.zero_variance_steps = self.zero_variance_steps + 1 if no_signal else 0
        warnings = {}
        if self.zero_variance_steps >= self.config.zero_variance_steps:
            warnings["zero variance"] = (
                f"In the last {self.zero_variance_steps} steps all advantages were zero, so nothing is "
                f"learned: {self._explain_zero_variance(metrics)}."
            )
        difference = metrics.get("logprob_diff", 0.0)
        if difference > self.config.max_logprob_diff:
            warnings["logprob diff"] = (
                f"Sampler and learner log-probabilities differ by {difference:.3f} on average, more than "
                f"diagnostics.max_logprob_diff={self.config.max_logprob_diff}: the samples are further "
                "off-policy than the loss assumes."
            )
        if metrics["truncated"] > 0.5:
            warnings["truncated"] = (
                f"{metrics['truncated']:.0%} of completions are cut off at generate.max_tokens."
            )
        new = {kind: text for kind, text in warnings.items() if kind not in self.warned}
        self.warned |= new.keys()
        return list(new.values())

    def _explain_zero_variance(self, metrics: Mapping[str, Any]) -> str:
        if metrics["frac_all_correct"] > 0.5:
            return "nearly every answer is already correct. Make the task harder, or stop here"
        if metrics["format"] < 0.05 and metrics["truncated"] > 0.5:
            return "completions are cut off before an answer. Raise generate.max_tokens"
        if metrics["frac_all_wrong"] > 0.5:
            return (
                "no answer is correct. Make the task easier (task.options), add a partial reward "
                "(reward.terms.closeness=0.5), or start from a model that knows the task"
            )
        return "the rewards of each group are all equal. Raise generate.temperature or generate.group_size"
