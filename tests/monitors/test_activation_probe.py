"""The activation probe on the pocket model: it reads the CoT's last state, and nothing later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measures import auroc
from glasshouse.models import Policy
from glasshouse.monitors import ProbeMonitor, Split, score_all, scores
from glasshouse.monitors.activation_probe import cot_tokens, fit, states
from glasshouse.monitors.views import Scope, look
from glasshouse.tasks import make
from glasshouse.types import Problem, Style

Rollout = tuple[tuple[int, ...], tuple[int, ...]]


def tokens(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def rollout(policy: Policy, problem: Problem, mode: str = "steps") -> Rollout:
    task = make("sum_digits")
    _, prompt = policy.prompt(task.messages(problem, Style.COT))
    return prompt, tokens(policy, task.demonstrate(problem, mode, randomness.stream("mode", 0)))


def problems(name: str, n: int) -> list[Problem]:
    return [make("sum_digits").draw(randomness.stream("probe", name, i)) for i in range(n)]


def split_of(policy: Policy, drawn: list[Problem], layer: int) -> Split:
    """States after right working; the label is whether the total, not yet said, is large."""
    views = [
        look(Scope.ACTIVATIONS, prompt="", question="", completion="", state=state)
        for state in states(policy, [rollout(policy, problem) for problem in drawn], layer)
    ]
    return Split(views, [large(problem) for problem in drawn], [p.key for p in drawn])


def large(problem: Problem) -> int:
    return int(int(problem.answer) >= 40)


def test_the_state_is_that_of_the_last_cot_token(shared_pocket: Policy) -> None:
    prompt, done = rollout(shared_pocket, problems("one", 1)[0])
    kept = cot_tokens(shared_pocket, done)
    text = shared_pocket.text(done)
    assert shared_pocket.text(done[:kept]) == text[: text.index("[ANSWER]")]
    (state,) = states(shared_pocket, [(prompt, done)], layer=2)
    with torch.inference_mode():
        whole = shared_pocket.model(
            input_ids=torch.tensor([[*prompt, *done]]), output_hidden_states=True
        )
    expected = whole.hidden_states[2][0, len(prompt) + kept - 1].numpy()
    assert state == pytest.approx(expected, abs=1e-5)


def test_no_answer_changes_the_state_and_another_cot_does(shared_pocket: Policy) -> None:
    prompt = tokens(shared_pocket, "What is the total digit sum of [58, 301]?")
    completions = ["5+8=13\n[ANSWER] 13", "5+8=13\n[ANSWER] 99999", "5+8=14\n[ANSWER] 13"]
    found = [
        states(shared_pocket, [(prompt, tokens(shared_pocket, text))], layer=-1)[0].tobytes()
        for text in completions
    ]
    assert found[0] == found[1] != found[2]


def test_batches_and_padding_change_nothing_that_matters(shared_pocket: Policy) -> None:
    rollouts = [rollout(shared_pocket, problem) for problem in problems("pad", 70)]
    together = states(shared_pocket, rollouts, layer=3)
    alone = np.concatenate([states(shared_pocket, [row], layer=3) for row in rollouts[::10]])
    assert together[::10] == pytest.approx(alone, abs=1e-4)
    direct = rollout(
        shared_pocket, problems("pad", 1)[0], "direct"
    )  # no CoT: the prompt's last token
    assert cot_tokens(shared_pocket, direct[1]) == 0
    assert states(shared_pocket, [direct], layer=3).shape == (1, 64)


def test_a_probe_reads_from_the_state_what_is_not_yet_said(
    shared_pocket: Policy, tmp_path: Path
) -> None:
    layer = 3
    training = split_of(shared_pocket, problems("fit", 300), layer)
    small = [problem for problem in problems("benign", 400) if not large(problem)]
    benign = split_of(shared_pocket, small, layer)
    probe = fit("probe", training, benign, layer=layer, fewest=150)
    test = split_of(shared_pocket, problems("test", 200), layer)
    probe.refuse_seen(list(test.problems))
    before = scores(score_all(probe, test.views))
    area = auroc(test.y, before).value
    assert area is not None
    assert area > 0.9
    blind = []
    for i in range(12):  # labels that mean nothing teach nothing, on average
        labels = randomness.stream("labels", i).sample(list(training.y), len(training.y))
        other = Split(training.views, labels, training.problems)
        found = score_all(fit("blind", other, benign, layer=layer, fewest=150), test.views)
        blind.append(auroc(test.y, scores(found)).value or 0.0)
    assert np.mean(blind) == pytest.approx(0.5, abs=0.15)
    probe.save(tmp_path)
    again = ProbeMonitor.load(tmp_path)
    assert again == probe
    assert scores(score_all(again, test.views)).tobytes() == before.tobytes()


def test_a_probe_of_another_model_or_layer_is_refused(shared_pocket: Policy) -> None:
    with pytest.raises(MonitorError, match="layers 0 \\(embedding\\) to 4; there is no 9"):
        states(shared_pocket, [((1,), (2,))], layer=9)
    rng = np.random.default_rng(0)

    def drawn(name: str, y: list[int]) -> Split:
        views = [
            look(
                Scope.ACTIVATIONS,
                prompt="",
                question="",
                completion="",
                state=rng.normal(label, 1, 4),
            )
            for label in y
        ]
        return Split(views, y, [f"{name} {i}" for i in range(len(y))])

    probe = fit("small", drawn("a", [0, 1] * 20), drawn("b", [0] * 50), layer=1, fewest=50)
    other = look(Scope.ACTIVATIONS, prompt="", question="", completion="", state=np.zeros(5))
    with pytest.raises(MonitorError, match="states of 4 numbers, not 5"):
        score_all(probe, [other])
