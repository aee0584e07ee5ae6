"""`max_offpolicy_steps` over 10,000 steps of the real loop, with a model that takes no time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.view.example_runs import make_digit_rollout

from glasshouse.config.loading import load_config
from glasshouse.rollout.collector import Group
from glasshouse.training.checkpointing import Progress
from glasshouse.training.loop import run_training_loop
from glasshouse.training.metrics import check_staleness

ROLLOUT = make_digit_rollout(1, 0, 0)


class InstantRun:
    """A run whose model is a version number."""

    def __init__(self, offpolicy_steps: int, steps: int) -> None:
        overrides = [f"max_offpolicy_steps={offpolicy_steps}", f"steps={steps}"]
        self.config = load_config([], [*overrides, "data.groups_per_step=1"])
        self.version = self.most_in_flight = 0
        self.progress = Progress()
        self.learned: dict[int, int] = {}
        """The version that sampled the rollouts of each step."""
        self.algorithm = SimpleNamespace(advantage=lambda r: r, dynamic_sampling=False)
        self.problems = SimpleNamespace(
            epochs=0, set_step=lambda step: None, take=lambda count: [ROLLOUT.problem] * count
        )
        self.penalties = SimpleNamespace(
            update_weights=lambda accuracy: {}, apply=lambda groups, **_: groups
        )
        self.collector = self.backend = self.interruption = self

    def submit(self, problems: list[Any], step: int, **_: Any) -> Any:
        completion = replace(ROLLOUT.completion, policy_version=self.version)
        groups = [[replace(ROLLOUT, step=step, completion=completion)]]
        return SimpleNamespace(wait=lambda: None, groups=groups)

    def update(self, samples: list[Any]) -> dict[str, float]:
        self.version += 1
        return {}

    def log_step(self, step: int, groups: list[Group], *_: Any) -> None:
        self.learned[step] = groups[0][0].completion.policy_version

    def complete_step(self, step: int, in_flight: list[Any]) -> None:
        self.progress.step, self.progress.in_flight = step, in_flight
        self.most_in_flight = max(self.most_in_flight, len(in_flight))

    def __getattr__(self, name: str) -> Any:
        """The rest of a run writes files."""
        return lambda *_, **__: nullcontext()


@pytest.mark.parametrize(("bound", "steps"), [(0, 50), (1, 50), (2, 50), (4, 3), (4, 10_000)])
def test_no_rollout_is_older_than_the_bound(bound: int, steps: int) -> None:
    run = InstantRun(bound, steps)
    run_training_loop(run)  # type: ignore[arg-type]
    assert run.version == len(run.learned) == steps
    assert run.learned == {step: max(0, step - 1 - bound) for step in range(1, steps + 1)}
    assert run.most_in_flight == min(bound, steps - 1)
    assert run.progress.in_flight == []


def test_a_rollout_beyond_the_bound_ends_the_run() -> None:
    run = InstantRun(1, steps=3)
    run.update = lambda samples: {}  # type: ignore[method-assign]  # weights that are never renewed
    with pytest.raises(RuntimeError, match="max_offpolicy_steps"):
        run_training_loop(run)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="max_offpolicy_steps"):
        check_staleness(-1, 0)  # from weights that do not exist yet
