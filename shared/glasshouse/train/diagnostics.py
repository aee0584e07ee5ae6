"""Says in words when a run cannot learn, and why it probably cannot."""

from __future__ import annotations

from glasshouse.config import DiagnosticsConfig


class Watch:
    """Looks at each step's metrics; returns a sentence the first time something is wrong.

    Example: `Watch(config.watch, on_policy=True).look(metrics)`
    """

    def __init__(self, config: DiagnosticsConfig) -> None:
        self.config = config
        self.alike = 0
        self.said: set[str] = set()

    def look(self, metrics: dict[str, float]) -> list[str]:
        self.alike = self.alike + 1 if metrics["groups_alike"] == 1 else 0
        found = []
        if self.alike >= self.config.zero_variance_steps:
            if metrics["groups_all_right"] > 0.5:
                why = "nearly every answer is right already: make the task harder, or stop here"
            elif metrics["format"] < 0.05 and metrics["truncated"] > 0.5:
                why = "completions are cut off before an answer: raise generate.max_tokens"
            elif metrics["groups_all_wrong"] > 0.5:
                why = (
                    "no answer is ever right: make the task easier (task.options), add a partial reward "
                    "(reward.terms.closeness=0.5), or start from a model that knows the task"
                )
            else:
                why = "each group's answers are all alike: raise generate.temperature or generate.group_size"
            found.append(self._once(
                "stuck", f"No group has had differing rewards for {self.alike} steps, so nothing is learned: {why}."
            ))  # fmt: skip
        gap = metrics.get("gap", 0.0)
        if gap > self.config.max_logprob_diff:
            found.append(self._once(
                "gap",
                f"Sampler and learner disagree on log-probabilities by {gap:.3f} on average (more than "
                f"{self.config.max_logprob_diff}): the data are further off-policy than the loss assumes.",
            ))  # fmt: skip
        if metrics["truncated"] > 0.5:
            found.append(self._once(
                "truncated", f"{metrics['truncated']:.0%} of completions are cut off at generate.max_tokens."
            ))  # fmt: skip
        return [sentence for sentence in found if sentence]

    def _once(self, kind: str, sentence: str) -> str:
        if kind in self.said:
            return ""
        self.said.add(kind)
        return sentence
