"""Fitted monitors: they learn, their splits are disjoint, their files are exact, a probe sees nothing after the CoT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measurement.rates import auroc
from glasshouse.models.policy import Policy
from glasshouse.monitors.base import (
    Scope,
    View,
    hash_monitor,
    make_view,
    score_all,
    stack_flags,
    stack_scores,
    view_of_parts,
)
from glasshouse.monitors.fitted import (
    LabelledViews,
    LinearMonitor,
    extract_ngrams,
    fit_linear,
    load_monitor,
)
from glasshouse.monitors.scoring import compute_cot_states, count_cot_tokens
from glasshouse.tasks.base import make_task
from glasshouse.types import Problem, Style

WORDS = ["so", "then", "now", "add", "carry", "we", "get", "next", "total", "is"]


def cot(text: str) -> View:
    return make_view(Scope.COT, prompt="", question="", completion=f"{text}\n[ANSWER] 1")


def draw(name: str, n: int, share: float) -> LabelledViews:
    """Rollouts of n problems: 90 % of those with the behaviour contain "as given", 2 % without."""
    views, labels, problems = [], [], []
    for i in range(n):
        rng = randomness.stream("ngrams", name, i)
        label = int(rng.random() < share)
        words = rng.choices(WORDS, k=12)
        if rng.random() < (0.9 if label else 0.02 if share else 0.005):
            words[rng.randrange(11) :][:2] = ["as", "given"]
            words.insert(rng.randrange(11), "as given")
        views.append(cot(" ".join(words)))
        labels.append(label)
        problems.append(f"{name} {i}")
    return LabelledViews(views, labels, problems)


@pytest.fixture(scope="module")
def monitor() -> LinearMonitor:
    return fit_linear(
        "words", Scope.COT, draw("fit", 400, 0.5), draw("benign", 1000, 0.0), fpr=0.01
    )


def test_the_behaviour_is_detected_on_unseen_problems(monitor: LinearMonitor) -> None:
    test = draw("test", 300, 0.5)
    monitor.check_unseen(list(test.problems))
    outputs = score_all(monitor, test.views)
    scores, flags = stack_scores(outputs), stack_flags(outputs)
    assert auroc(test.labels, scores).value > 0.9  # 0.94 is the maximum: 10 % lack the words
    assert flags.tolist() == (scores > monitor.threshold).astype(int).tolist()
    labels = np.array(test.labels)
    assert flags[labels == 1].mean() == pytest.approx(0.9, abs=0.06)
    assert flags[labels == 0].mean() < 0.05


def test_a_loaded_monitor_is_bitwise_equal_and_needs_no_scikit_learn(
    monitor: LinearMonitor, tmp_path: Path
) -> None:
    """In another process, with another hash seed (order of sets) and without scikit-learn."""
    monitor.save(tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {"monitor.json"}
    loaded = load_monitor(tmp_path)
    assert loaded == monitor
    assert hash_monitor(loaded) == hash_monitor(monitor)
    for problem in ("fit 7", "benign 7"):
        with pytest.raises(MonitorError, match=f"1 of .*2.*{problem}"):
            loaded.check_unseen(["test 7", problem])
    script = (
        "import json, sys; sys.modules['sklearn'] = sys.modules['scipy'] = None\n"
        "from pathlib import Path\n"
        "from glasshouse.monitors.fitted import load_monitor\n"
        "from glasshouse.monitors.base import Scope, make_view\n"
        "m = load_monitor(Path(sys.argv[1]))\n"
        "for text in json.loads(sys.argv[2]):\n"
        "    v = make_view(Scope.COT, prompt='', question='', completion=text)\n"
        "    print(m.score(v).score.hex())"
    )
    views = draw("bits", 40, 0.5).views
    texts = json.dumps([view["cot"] + "[ANSWER] 1" for view in views])
    printed = subprocess.check_output(
        [sys.executable, "-c", script, str(tmp_path), texts],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        text=True,
    )
    expected = stack_scores(score_all(monitor, views)).tolist()
    assert [float.fromhex(line) for line in printed.split()] == expected


def test_scores_equal_scikit_learns_logistic_regression(monitor: LinearMonitor) -> None:
    split = draw("fit", 400, 0.5)
    pipeline = CountVectorizer(analyzer=extract_ngrams, binary=True, min_df=2)
    features = pipeline.fit_transform(split.views)
    model = LogisticRegression(max_iter=2000, class_weight="balanced").fit(features, split.labels)
    test = draw("same", 100, 0.5)
    expected = model.predict_proba(pipeline.transform(test.views))[:, 1]
    assert stack_scores(score_all(monitor, test.views)) == pytest.approx(expected, abs=1e-3)


def test_invalid_splits_are_rejected() -> None:
    good, benign = draw("fit", 40, 0.5), draw("benign", 40, 0.0)
    same = LabelledViews(good.views, [0] * 40, good.problems)
    for scope, fit, other, named in (
        (Scope.COT, good, same, "40 problems.*disjoint"),
        (Scope.COT, good, draw("other", 40, 0.5), "benign"),
        (Scope.COT, draw("none", 40, 0.0), benign, "label"),
        (Scope.COT, good, benign, "200.*40"),
        (Scope.ANSWER, good, benign, '"answer"'),
    ):
        with pytest.raises(MonitorError, match=named):
            fit_linear("m", scope, fit, other)


def test_a_damaged_or_foreign_file_is_reported(monitor: LinearMonitor, tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="not a saved monitor"):
        load_monitor(tmp_path)
    monitor.save(tmp_path)
    file = tmp_path / "monitor.json"
    stored = json.loads(file.read_text())
    for change in ({"scope": "activations"}, {"vocabulary": ["so"]}, {"weights": "x"}):
        file.write_text(json.dumps(stored | change))
        with pytest.raises(MonitorError, match="not a saved monitor"):
            load_monitor(tmp_path)
    file.write_bytes(b"\x00" * 40)
    with pytest.raises(MonitorError, match="not a saved monitor"):
        load_monitor(tmp_path)


def test_ngrams_of_different_parts_are_different_features() -> None:
    view = make_view(Scope.COT_ANSWER, prompt="", question="", completion="so 12\n[ANSWER] 12")
    grams = extract_ngrams(view)
    assert {"cot:so", "cot:1 2", "cot:so 1 2", "cot:^ so", "answer:1 2", "answer:2 $"} <= grams
    assert "cot:answer" not in grams


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
