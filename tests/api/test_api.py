"""The public Python API: `import glasshouse` and what its names do."""

from __future__ import annotations

import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib import pyplot
from tests.view.example_runs import write_run

import glasshouse
from glasshouse.monitors.rules import RuleMonitor
from glasshouse.study.analysis import analyse_study
from glasshouse.study.spec import load_study
from glasshouse.study.table import Table

ROOT = Path(__file__).parents[2]
SHORT = {
    "model": "models/mock", "steps": 2, "data.groups_per_step": 2, "generate.group_size": 2,
    "generate.max_tokens": 8, "evaluate.problems": 3, "evaluate.samples": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    return glasshouse.train(
        glasshouse.load_config(overrides={**SHORT, "out": str(out)}), progress=False
    )


def test_import_is_fast_and_without_torch():
    code = (
        "import resource, sys\n"
        "before = resource.getrusage(resource.RUSAGE_SELF)\n"
        "import glasshouse\n"
        "after = resource.getrusage(resource.RUSAGE_SELF)\n"
        "slow = {'torch', 'numpy', 'pydantic', 'rich', 'transformers'} & set(sys.modules)\n"
        "print(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, sorted(slow))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    seconds, _, slow = printed.strip().partition(" ")
    assert float(seconds) < 0.2
    assert slow == "[]"


def test_every_public_name_exists_is_documented_and_no_module_replaces_it():
    assert sorted(glasshouse.__all__) == glasshouse.__all__
    assert all(getattr(glasshouse, name).__doc__ for name in glasshouse.__all__)
    assert set(glasshouse.__all__) <= set(dir(glasshouse))
    modules = {module.name for module in pkgutil.iter_modules(glasshouse.__path__)}
    assert not modules & set(glasshouse.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = glasshouse.no_such_name


def test_train_resume_and_evaluate_return_typed_results(result, tmp_path):
    assert (result.outcome, result.steps, result.after["problems"]) == ("finished", 2, 3)
    assert 0 <= result.before["accuracy"] <= 1
    assert result.checkpoint.is_dir()
    with pytest.raises(AttributeError):
        result.steps = 3
    run = shutil.copytree(result.path, tmp_path / "copy")
    longer = glasshouse.resume(run, {"steps": 3}, progress=False)
    assert (longer.outcome, longer.steps, longer.path) == ("finished", 3, run)
    evaluation = glasshouse.evaluate(result.checkpoint)
    assert (evaluation.task, evaluation.problems) == ("sum_digits", 3)
    assert evaluation.accuracy_low <= evaluation.accuracy <= evaluation.accuracy_high


def test_run_as_iterators_and_tables(result):
    run = result.open()
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert run.metrics().to_pandas()["step"].tolist() == [1, 2]
    assert "evaluation" in run.events().to_pandas()["event"].tolist()
    rollouts = run.rollouts(splits=("train",))
    assert len(list(rollouts)) == len(list(rollouts)) == 8  # it can be iterated over again
    assert len(rollouts.to_pandas()) == 8
    assert run.config.steps == 2
    assert run.summary["steps_done"] == 2
    assert run.verify().is_sound
    assert [c.step for c in run.checkpoints()][-1] == 2


def test_plot_study_draws_the_effects_and_a_curve_of_each_measure():
    folder = Path(__file__).resolve().parents[2] / "studies" / "confirmation"
    analysis = analyse_study(
        load_study(folder / "study.yaml"), Table.load(folder / "table.jsonl.zst")
    )
    figures = glasshouse.plot_study(SimpleNamespace(analysis=analysis))
    published = {file.stem for file in folder.glob("*.svg")}
    assert {Path(name).stem for name in figures} == published
    assert all(figure.axes for figure in figures.values())
    assert not pyplot.get_fignums()  # the plots of the caller are left alone


def test_learning_curves_of_several_runs_are_averaged(result, tmp_path):
    picture = glasshouse.plot_learning_curves(result.path, result.path, out=tmp_path / "c.svg")
    assert (
        picture == (tmp_path / "c.svg").read_text() == picture._repr_svg_()
    )  # a notebook shows it
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]+)"', picture)
    assert [kind for kind, _ in lines[:3]] == ["each", "each", "mean"]
    assert len({points for _, points in lines[:3]}) == 1  # the mean of equal runs is each of them


def test_config_grades_and_parts():
    config = glasshouse.load_config(overrides={"learn.learning_rate": 1e-4, "seed": 3})
    changed = glasshouse.override_config(config, {"seed": 4})
    assert (changed.seed, changed.learn.learning_rate) == (4, 1e-4)
    assert glasshouse.override_config(config, ["seed=5"]).seed == 5
    graded = glasshouse.grade("so the answer is 28.", 28)
    assert (graded.correct, graded.strict) == (True, False)
    assert glasshouse.grade("[ANSWER] 27", "28", terms={"exact": 1.0}).reward == -1
    assert "rule tag" in glasshouse.explain_grade("[ANSWER] 28", 28)
    task = glasshouse.make_task("sum_digits", {"count": [2, 2]})
    assert glasshouse.check_task(task, 20).passed
    assert glasshouse.make_penalty("length", task, budget=3).options.budget == 3
    monitor = glasshouse.make_monitor("hint", {"keywords": ["hint"]})
    assert monitor.describe()["keywords"] == ["hint"]
    assert callable(glasshouse.reward.get("closeness"))


def test_common_mistakes_get_a_sentence(result, tmp_path):
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text('{"response": "<think>a hint</think>4"}\n')
    report = glasshouse.measure(rollouts, "completion=response", monitors="rule:hint=hint")
    assert report.cells[0].measures["hint.flag_rate"].value == 1
    for mistake, named in (
        (lambda: glasshouse.train({"steps": 3}), r"load_config\(overrides"),
        (lambda: glasshouse.load_config({"steps": 3}), r"load_config\(overrides"),
        (lambda: result.open().rollouts(step=3), '"step".*last_step'),
        (lambda: glasshouse.make_monitor("m", {"keyword": ["hint"]}), '"keyword".*keywords'),
        (lambda: glasshouse.measure(rollouts, monitors=[RuleMonitor]), "RuleMonitor is a class"),
        (lambda: glasshouse.measure(rollouts, monitors=[object()]), "lacks name, scope"),
        (lambda: glasshouse.plot_learning_curves(), "path of a run"),
        (lambda: glasshouse.open_run(tmp_path), r"config\.yaml"),
        (lambda: glasshouse.open_run(tmp_path / "missing"), "does not exist"),
        (lambda: glasshouse.parse_monitor(f"saved:{tmp_path / 'missing'}"), "missing"),
        (lambda: glasshouse.make_task("sum_digit"), "sum_digits"),
        (lambda: glasshouse.reward.get("closenes"), "closeness"),
        (lambda: glasshouse.override_config(result.open().config, {"learn.lrr": 1}), "lrr"),
    ):
        with pytest.raises(glasshouse.GlasshouseError, match=named):
            mistake()


PACKAGES = (
    "types", "randomness", "registry", "errors", "files", "terminal", "values", "config", "tasks",
    "monitors", "runs", "rollout", "track", "measurement", "view", "study", "cli",
)  # fmt: skip
WITHOUT_TORCH = """
import importlib, json, pkgutil, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
IMPORT_ALL = f"""{WITHOUT_TORCH}
failed = []
for package in sys.argv[1:]:
    found = importlib.import_module("glasshouse." + package)
    inside = pkgutil.walk_packages(getattr(found, "__path__", []), "glasshouse." + package + ".")
    for name in [module.name for module in inside]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            failed.append(name)
print(json.dumps(failed))
"""


def test_every_module_is_imported_without_torch() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, *PACKAGES]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(result.stdout) == []


def test_commands_that_run_no_model_work_without_torch(tmp_path: Path) -> None:
    """What `pip install` of the package without the extra `train` gives."""
    run, study = write_run(tmp_path / "run"), ROOT / "studies" / "grader_bug"
    rows = [{"prompt": "1+1?", "completion": f"<think>{n}</think>2", "gold": "2"} for n in "abc"]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = {
        ("measure", str(file)): 0,
        ("rollouts", str(run)): 0,
        ("report", str(run)): 0,
        ("check", str(run)): 0,
        ("study", str(study / "study.yaml"), "--table", str(study / "table.jsonl.zst"),
         "--out", str(tmp_path / "study")): 0,
        ("view", "--help"): 0,
        ("train", f"out={tmp_path / 'none'}"): 2,
        ("train", "--dry-run"): 0,
        ("eval", "pocket"): 2,
    }  # fmt: skip
    code = f"""{WITHOUT_TORCH}
from glasshouse.cli.app import main
codes = []
for command in json.loads(sys.argv[1]):
    try:
        codes.append(main(command))
    except SystemExit as end:
        codes.append(end.code)
import re, threading, time, urllib.request
from contextlib import redirect_stdout
from io import StringIO
printed = StringIO()
with redirect_stdout(printed):
    threading.Thread(target=main, args=(["view", sys.argv[2], "--port", "0"],), daemon=True).start()
    while "http" not in printed.getvalue():
        time.sleep(0.05)
address = re.search("http://[^#\\s]*", printed.getvalue())[0]
for name in ("api/rollouts", "api/run"):
    with urllib.request.urlopen(address + name + "?run=rollouts.jsonl", timeout=60) as answer:
        codes.append(answer.status if b"error" not in answer.read() else 0)
assert "torch" not in sys.modules
print(json.dumps(codes))
"""
    command = [sys.executable, "-c", code, json.dumps([*commands]), str(file)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(result.stdout.splitlines()[-1]) == [*commands.values(), 200, 200]
    assert result.stderr.count("shared[train]") == 2
