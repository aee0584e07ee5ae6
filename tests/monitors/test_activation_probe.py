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
from glasshouse.monitors.base import Scope, hash_monitor, score_all, stack_scores, view_of_parts
from glasshouse.monitors.fitted import (
    LabelledViews,
    compute_cot_states,
    count_cot_tokens,
    fit_linear,
    load_monitor,
)
from glasshouse.tasks.base import make_task
from glasshouse.types import Problem, Style

Rollout = tuple[tuple[int, ...], tuple[int, ...]]


def demonstrate(policy: Policy, problem: Problem, mode: str = "steps") -> Rollout:
    task = make_task("sum_digits")
    _, prompt = policy.encode_prompt(task.messages(problem, Style.COT))
    text = task.demonstrate(problem, mode, randomness.stream("mode", 0))
    return prompt, tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def draw_problems(name: str, n: int) -> list[Problem]:
    return [make_task("sum_digits").draw(randomness.stream("probe", name, i)) for i in range(n)]


def labelled_states(policy: Policy, drawn: list[Problem], layer: int) -> LabelledViews:
    """States after correct steps; the label is whether the total, not yet written, is large."""
    states = compute_cot_states(policy, [demonstrate(policy, p) for p in drawn], layer)
    views = [view_of_parts(Scope.ACTIVATIONS, {}, state) for state in states]
    labels = [int(int(p.gold_answer) >= 40) for p in drawn]
    return LabelledViews(views, labels, [p.key for p in drawn])


def test_the_state_is_taken_at_the_last_cot_token(shared_pocket: Policy) -> None:
    prompt, completion = demonstrate(shared_pocket, draw_problems("one", 1)[0])
    count = count_cot_tokens(shared_pocket, completion)
    text = shared_pocket.decode(completion)
    assert shared_pocket.decode(completion[:count]) == text[: text.index("[ANSWER]")]
    (state,) = compute_cot_states(shared_pocket, [(prompt, completion)], layer=2)
    tokens = torch.tensor([[*prompt, *completion]])
    with torch.inference_mode():
        output = shared_pocket.model(input_ids=tokens, output_hidden_states=True)
    expected = output.hidden_states[2][0, len(prompt) + count - 1].numpy()
    assert state == pytest.approx(expected, abs=1e-5)
    with pytest.raises(MonitorError, match="9"):
        compute_cot_states(shared_pocket, [((1,), (2,))], layer=9)


def test_batching_and_padding_do_not_change_the_states(shared_pocket: Policy) -> None:
    rollouts = [demonstrate(shared_pocket, problem) for problem in draw_problems("pad", 66)]
    together = compute_cot_states(shared_pocket, rollouts, layer=3)
    alone = [compute_cot_states(shared_pocket, [row], layer=3)[0] for row in rollouts[::10]]
    assert together[::10] == pytest.approx(np.stack(alone), abs=1e-4)
    # no CoT: the prompt's last token
    direct = demonstrate(shared_pocket, draw_problems("pad", 1)[0], "direct")
    assert count_cot_tokens(shared_pocket, direct[1]) == 0
    assert compute_cot_states(shared_pocket, [direct], layer=3).shape == (1, 64)


def test_a_probe_predicts_what_is_not_yet_written(shared_pocket: Policy, tmp_path: Path) -> None:
    training = labelled_states(shared_pocket, draw_problems("fit", 200), layer=3)
    small = [p for p in draw_problems("benign", 220) if int(p.gold_answer) < 40]
    benign = labelled_states(shared_pocket, small, layer=3)
    probe = fit_linear("probe", Scope.ACTIVATIONS, training, benign, layer=3, min_benign=80)
    test = labelled_states(shared_pocket, draw_problems("test", 120), layer=3)
    probe.check_unseen(list(test.problems))
    before = stack_scores(score_all(probe, test.views))
    assert auroc(test.labels, before).value > 0.9
    chance = []
    for i in range(6):  # random labels: chance level on average
        labels = randomness.stream("labels", i).sample(list(training.labels), len(training.labels))
        other = LabelledViews(training.views, labels, training.problems)
        blind = fit_linear("blind", Scope.ACTIVATIONS, other, benign, min_benign=80)
        chance.append(auroc(test.labels, stack_scores(score_all(blind, test.views))).value)
    assert np.mean(chance) == pytest.approx(0.5, abs=0.15)
    probe.save(tmp_path)
    loaded = load_monitor(tmp_path)
    assert loaded == probe
    assert hash_monitor(loaded) == hash_monitor(probe)
    assert stack_scores(score_all(loaded, test.views)).tobytes() == before.tobytes()
    with pytest.raises(MonitorError, match=r"64.*5"):  # a state of another model
        score_all(probe, [view_of_parts(Scope.ACTIVATIONS, {}, np.zeros(5))])
