"""The trained text classifier: it learns, it is frozen, its splits never meet, its file is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measures import auroc, flagged
from glasshouse.monitors import NgramMonitor, Split, score_all, scores
from glasshouse.monitors.ngrams import fit, ngrams
from glasshouse.monitors.views import Scope, View, look

WORDS = ["so", "then", "now", "add", "carry", "we", "get", "next", "total", "is"]


def cot(text: str) -> View:
    return look(Scope.COT, prompt="", question="", completion=f"{text}\n[ANSWER] 1")


def draw(name: str, n: int, share: float) -> Split:
    """Rollouts of n problems; nine in ten with the behaviour say "as given", one in fifty without."""
    views, y, problems = [], [], []
    for i in range(n):
        rng = randomness.stream("ngrams", name, i)
        label = int(rng.random() < share)
        words = rng.choices(WORDS, k=12)
        if rng.random() < (0.9 if label else 0.02 if share else 0.005):
            words[rng.randrange(11) :][:2] = ["as", "given"]
            words.insert(rng.randrange(11), "as given")
        views.append(cot(" ".join(words)))
        y.append(label)
        problems.append(f"{name} {i}")
    return Split(views, y, problems)


@pytest.fixture(scope="module")
def monitor() -> NgramMonitor:
    return fit("words", Scope.COT, draw("fit", 400, 0.5), draw("benign", 1000, 0.0))


def test_it_finds_the_behaviour_on_problems_it_has_not_seen(monitor: NgramMonitor) -> None:
    test = draw("test", 600, 0.5)
    monitor.refuse_seen(list(test.problems))
    s = scores(score_all(monitor, test.views))
    area = auroc(test.y, s).value
    assert area is not None
    assert area > 0.9  # 0.94 is the best possible here: one in ten does not say it
    z = flagged(s, monitor.frozen.threshold)
    assert [int(bool(v.flag)) for v in score_all(monitor, test.views)] == z.tolist()
    y = np.array(test.y)
    assert z[y == 1].mean() == pytest.approx(0.9, abs=0.06)
    assert z[y == 0].mean() < 0.05


def test_saved_and_loaded_it_gives_the_same_bits(monitor: NgramMonitor, tmp_path: Path) -> None:
    monitor.save(tmp_path / "m")
    again = NgramMonitor.load(tmp_path / "m")
    assert again == monitor
    views = draw("bits", 200, 0.5).views
    before, after = (scores(score_all(m, views)) for m in (monitor, again))
    assert before.tobytes() == after.tobytes()
    assert {f.name for f in (tmp_path / "m").iterdir()} == {"monitor.json", "monitor.safetensors"}


def test_a_loaded_monitor_needs_no_scikit_learn(monitor: NgramMonitor, tmp_path: Path) -> None:
    """In a process of its own, with another order of sets, and scikit-learn made unimportable."""
    monitor.save(tmp_path)
    script = (
        "import json, sys; sys.modules['sklearn'] = sys.modules['scipy'] = None\n"
        "from pathlib import Path\n"
        "from glasshouse.monitor.monitors import NgramMonitor\n"
        "from glasshouse.monitor.views import Scope, look\n"
        "m = NgramMonitor.load(Path(sys.argv[1]))\n"
        "for text in json.loads(sys.argv[2]):\n"
        "    v = look(Scope.COT, prompt='', question='', completion=text)\n"
        "    print(m.score(v).score.hex())"
    )
    texts = [view["cot"] + "[ANSWER] 1" for view in draw("bits", 40, 0.5).views]
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), json.dumps(texts)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    here = [
        monitor.score(look(Scope.COT, prompt="", question="", completion=text)).score
        for text in texts
    ]
    assert [float.fromhex(line) for line in shown.stdout.split()] == here


def test_it_is_scikit_learns_logistic_regression(monitor: NgramMonitor) -> None:
    split = draw("fit", 400, 0.5)
    pipeline = CountVectorizer(analyzer=ngrams, binary=True, min_df=2)
    features = pipeline.fit_transform(split.views)
    model = LogisticRegression(max_iter=2000, class_weight="balanced").fit(features, split.y)
    test = draw("same", 100, 0.5)
    expected = model.predict_proba(pipeline.transform(test.views))[:, 1]
    assert scores(score_all(monitor, test.views)) == pytest.approx(expected, abs=1e-3)


def test_problems_of_its_own_splits_are_refused_also_after_loading(
    monitor: NgramMonitor, tmp_path: Path
) -> None:
    monitor.save(tmp_path)
    for one in (monitor, NgramMonitor.load(tmp_path)):
        for problem in ("fit 7", "benign 7"):
            with pytest.raises(MonitorError, match=f"1 of these 2 problems \\('{problem}', say"):
                one.refuse_seen(["test 7", problem])


def test_splits_that_are_none_are_refused() -> None:
    good, benign = draw("fit", 40, 0.5), draw("benign", 40, 0.0)
    with pytest.raises(MonitorError, match="40 problems are in the split for fitting and in"):
        fit("m", Scope.COT, good, Split(good.views, [0] * 40, good.problems))
    with pytest.raises(MonitorError, match="must be benign"):
        fit("m", Scope.COT, good, draw("other", 40, 0.5))
    with pytest.raises(MonitorError, match="one label only"):
        fit("m", Scope.COT, draw("none", 40, 0.0), benign)
    with pytest.raises(MonitorError, match="needs 1000 benign rollouts with a verdict, not 40"):
        fit("m", Scope.COT, good, benign)
    with pytest.raises(MonitorError, match='of scope "answer" is fitted on'):
        fit("m", Scope.ANSWER, good, benign)


def test_a_damaged_or_foreign_file_is_a_sentence(monitor: NgramMonitor, tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="is not a saved monitor"):
        NgramMonitor.load(tmp_path)
    monitor.save(tmp_path)
    header = json.loads((tmp_path / "monitor.json").read_text())
    (tmp_path / "monitor.json").write_text(json.dumps({**header, "kind": "probe"}))
    with pytest.raises(MonitorError, match="of kind 'probe'"):
        NgramMonitor.load(tmp_path)
    shorter = {**header, "vocabulary": header["vocabulary"][1:]}
    (tmp_path / "monitor.json").write_text(json.dumps(shorter))
    with pytest.raises(MonitorError, match="n-grams but"):
        NgramMonitor.load(tmp_path)
    (tmp_path / "monitor.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(MonitorError, match="is not a saved monitor"):
        NgramMonitor.load(tmp_path)


def test_ngrams_of_different_parts_are_different() -> None:
    view = look(Scope.COT_ANSWER, prompt="", question="", completion="so 12\n[ANSWER] 12")
    found = ngrams(view)
    assert {"cot:so", "cot:1 2", "cot:so 1 2", "cot:^ so", "answer:1 2", "answer:2 $"} <= found
    assert "cot:answer" not in found
