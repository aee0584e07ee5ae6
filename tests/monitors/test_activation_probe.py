"""The activation probe on the pocket model: it sees the state at the end of the CoT, nothing later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measurement.rates import auroc
from glasshouse.models.policy import Policy
from glasshouse.monitors.activation_probe import (
    ProbeMonitor,
    compute_cot_states,
    count_cot_tokens,
    fit_probe,
)
from glasshouse.monitors.base import score_all, stack_scores
from glasshouse.monitors.fitted import LabelledViews
from glasshouse.monitors.views import Scope, view_of_parts
from glasshouse.tasks.base import make_task
from glasshouse.types import Problem, Style

Rollout = tuple[tuple[int, ...], tuple[int, ...]]


def tokenize(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def demonstrate(policy: Policy, problem: Problem, mode: str = "steps") -> Rollout:
    task = make_task("sum_digits")
    _, prompt = policy.encode_prompt(task.messages(problem, Style.COT))
    return prompt, tokenize(policy, task.demonstrate(problem, mode, randomness.stream("mode", 0)))


def draw_problems(name: str, n: int) -> list[Problem]:
    return [make_task("sum_digits").draw(randomness.stream("probe", name, i)) for i in range(n)]


def labelled_states(policy: Policy, drawn: list[Problem], layer: int) -> LabelledViews:
    """States after correct steps; the label is whether the total, not yet written, is large."""
    states = compute_cot_states(policy, [demonstrate(policy, p) for p in drawn], layer)
    views = [view_of_parts(Scope.ACTIVATIONS, {}, state) for state in states]
    return LabelledViews(views, [is_large(problem) for problem in drawn], [p.key for p in drawn])


def is_large(problem: Problem) -> int:
    return int(int(problem.gold_answer) >= 40)


def test_the_state_is_taken_at_the_last_cot_token(shared_pocket: Policy) -> None:
    prompt, completion = demonstrate(shared_pocket, draw_problems("one", 1)[0])
    count = count_cot_tokens(shared_pocket, completion)
    text = shared_pocket.decode(completion)
    assert shared_pocket.decode(completion[:count]) == text[: text.index("[ANSWER]")]
    (state,) = compute_cot_states(shared_pocket, [(prompt, completion)], layer=2)
    with torch.inference_mode():
        output = shared_pocket.model(
            input_ids=torch.tensor([[*prompt, *completion]]), output_hidden_states=True
        )
    expected = output.hidden_states[2][0, len(prompt) + count - 1].numpy()
    assert state == pytest.approx(expected, abs=1e-5)


def test_the_state_depends_on_the_cot_and_not_on_the_answer(shared_pocket: Policy) -> None:
    prompt = tokenize(shared_pocket, "What is the total digit sum of [58, 301]?")
    completions = ["5+8=13\n[ANSWER] 13", "5+8=13\n[ANSWER] 99999", "5+8=14\n[ANSWER] 13"]
    rollouts = [(prompt, tokenize(shared_pocket, text)) for text in completions]
    states = [compute_cot_states(shared_pocket, [row], layer=-1).tobytes() for row in rollouts]
    assert states[0] == states[1] != states[2]


def test_batching_and_padding_do_not_change_the_states(shared_pocket: Policy) -> None:
    rollouts = [demonstrate(shared_pocket, problem) for problem in draw_problems("pad", 66)]
    together = compute_cot_states(shared_pocket, rollouts, layer=3)
    alone = np.concatenate(
        [compute_cot_states(shared_pocket, [row], layer=3) for row in rollouts[::10]]
    )
    assert together[::10] == pytest.approx(alone, abs=1e-4)
    # no CoT: the prompt's last token
    direct = demonstrate(shared_pocket, draw_problems("pad", 1)[0], "direct")
    assert count_cot_tokens(shared_pocket, direct[1]) == 0
    assert compute_cot_states(shared_pocket, [direct], layer=3).shape == (1, 64)


def test_a_probe_predicts_what_is_not_yet_written(shared_pocket: Policy, tmp_path: Path) -> None:
    layer = 3
    training = labelled_states(shared_pocket, draw_problems("fit", 200), layer)
    small = [problem for problem in draw_problems("benign", 220) if not is_large(problem)]
    benign = labelled_states(shared_pocket, small, layer)
    probe = fit_probe("probe", training, benign, layer=layer, min_benign=80)
    test = labelled_states(shared_pocket, draw_problems("test", 120), layer)
    probe.check_unseen(list(test.problems))
    before = stack_scores(score_all(probe, test.views))
    area = auroc(test.labels, before).value
    assert area is not None
    assert area > 0.9
    chance = []
    for i in range(6):  # random labels: chance level on average
        labels = randomness.stream("labels", i).sample(list(training.labels), len(training.labels))
        other = LabelledViews(training.views, labels, training.problems)
        outputs = score_all(
            fit_probe("blind", other, benign, layer=layer, min_benign=80), test.views
        )
        chance.append(auroc(test.labels, stack_scores(outputs)).value or 0.0)
    assert np.mean(chance) == pytest.approx(0.5, abs=0.15)
    probe.save(tmp_path)
    loaded = ProbeMonitor.load(tmp_path)
    assert loaded == probe
    assert stack_scores(score_all(loaded, test.views)).tobytes() == before.tobytes()


def test_a_state_of_another_model_or_layer_is_rejected(shared_pocket: Policy) -> None:
    with pytest.raises(MonitorError, match="9"):
        compute_cot_states(shared_pocket, [((1,), (2,))], layer=9)
    rng = np.random.default_rng(0)

    def draw(name: str, labels: list[int]) -> LabelledViews:
        states = [rng.normal(label, 1, 4) for label in labels]
        views = [view_of_parts(Scope.ACTIVATIONS, {}, state) for state in states]
        return LabelledViews(views, labels, [f"{name} {i}" for i in range(len(labels))])

    probe = fit_probe("small", draw("a", [0, 1] * 20), draw("b", [0] * 50), layer=1, min_benign=50)
    other = view_of_parts(Scope.ACTIVATIONS, {}, np.zeros(5))
    with pytest.raises(MonitorError, match=r"4.*5"):
        score_all(probe, [other])
