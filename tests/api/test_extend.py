"""Parts from outside: the examples of docs/python.md and of the experiment template, run as written."""

import re
import sys
from abc import abstractmethod
from pathlib import Path

import pytest

import glasshouse
from glasshouse.cli.app import main
from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, TaskError
from glasshouse.generate.engines import engine, make_generator
from glasshouse.learn.losses import algorithm, get_algorithm
from glasshouse.measurement.interventions.base import intervention
from glasshouse.models.policy import load_policy
from glasshouse.monitors.base import Scope, monitor
from glasshouse.monitors.factory import make_monitor
from glasshouse.registry import import_modules, script_import
from glasshouse.rollout.grading import reward
from glasshouse.rollout.penalties import Penalty, penalty
from glasshouse.tasks.base import list_tasks, task
from glasshouse.tasks.organisms import Organism
from glasshouse.track.trackers import tracker, validate_trackers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text().partition("## Your own parts")[2]
VOWELS, PARTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REGISTRIES = (task, reward, penalty, monitor, intervention, tracker, engine, algorithm)


@pytest.fixture(autouse=True)
def forget():
    """Undo what a test registers and imports: returns a function that does what a new process would."""
    before = [set(registry.parts) for registry in REGISTRIES]
    modules, path = set(sys.modules), list(sys.path)

    def undo():
        for registry, names in zip(REGISTRIES, before, strict=True):
            for name in set(registry.parts) - names - set(registry.modules):
                del registry.parts[name]
        for name in set(sys.modules) - modules:
            if name.startswith(("imported from ", "outside_", "helper_beside")):
                del sys.modules[name]
        sys.path[:] = path

    yield undo
    undo()


def test_documented_task_passes_its_validation_and_one_with_a_fault_fails_it(tmp_path, capsys):
    wrong = VOWELS.replace("return str(count)", "return str(count + 1)")
    for name, source, code, text in (("a", VOWELS, 0, "0 faults"), ("b", wrong, 1, "rejects")):
        file = tmp_path / f"{name}.py"
        file.write_text(source)
        task.parts.pop("count_vowels", None)
        assert main(["tasks", "count_vowels", "--imports", str(file), "--validate", "20"]) == code
        assert text in capsys.readouterr().out


def install(tmp_path: Path, monkeypatch, entry_points: str, source: str) -> None:
    """What pip leaves of a package `outside`."""
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (tmp_path / "outside_parts.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


def test_every_kind_of_part_from_an_installed_package(tmp_path, monkeypatch, capsys):
    # entry points take the decorators' place
    undecorated = re.sub(r"(?m)^@(?!algorithm)\w+.*$", "", PARTS)
    points = {
        "tasks": "digit_pairs = outside_parts:DigitPairs\nsecond_hint = outside_parts:SecondHint",
        "algorithms": "half_grpo = outside_parts:half_grpo",
        "rewards": "brief = outside_parts:brief",
        "penalties": "shouting = outside_parts:Shouting",
        "monitors": "length = outside_parts:LengthMonitor",
        "interventions": "reversed_cot = outside_parts:reversed_cot",
        "trackers": "print = outside_parts:PrintTracker",
        "engines": "counting = outside_parts:CountingEngine",
    }
    text = "\n".join(f"[glasshouse.{group}]\n{point}\n" for group, point in points.items())
    install(tmp_path, monkeypatch, text, undecorated)
    assert {"digit_pairs", "second_hint"} <= set(list_tasks())
    assert glasshouse.check_task(glasshouse.make_task("digit_pairs"), 20).passed
    assert isinstance(glasshouse.make_task("second_hint"), Organism)
    assert callable(reward.get("brief"))
    assert glasshouse.make_penalty("shouting", "sum_digits", weight=0.5).options.weight == 0.5
    assert glasshouse.make_monitor("long", {"kind": "length", "limit": 3}).limit == 3
    assert callable(intervention.get("reversed_cot"))
    assert get_algorithm("half_grpo").min_group == 2
    validate_trackers(["print"])
    assert tracker.get("print").url == "this terminal"
    policy = load_policy("models/mock")
    made = make_generator(policy, GenerateConfig(engine="counting"))
    assert type(made).__name__ == "CountingEngine"
    for name in ("digit_pairs", "second_hint"):
        assert main(["tasks", name, "--validate", "20"]) == 0
        assert "0 faults" in capsys.readouterr().out


def test_a_run_uses_every_part_of_its_own_file_as_later_commands_do(tmp_path, capsys, forget):
    own = tmp_path / "parts.py"
    own.write_text(PARTS.replace("\n\n\n", "\nimport helper_beside\n\n\n", 1))
    (tmp_path / "helper_beside.py").write_text("LIMIT = 200\n")
    config = glasshouse.load_config(
        overrides={
            "imports": [str(own)], "model": "models/mock", "steps": 1,
            "data.groups_per_step": 2, "generate.group_size": 2, "generate.max_tokens": 8,
            "evaluate.problems": 2, "evaluate.samples": 0, "out": str(tmp_path / "run"),
            "task.name": "digit_pairs", "reward.terms": {"exact": 1, "brief": 0.1},
            "reward.penalties": {"shouting": {"weight": 0.5}}, "trackers": ["print"],
            "generate.engine": "counting", "learn.algorithm": "half_grpo",
            "monitor.interventions": ["reversed_cot"], "monitor.problems": 4,
        }
    )  # fmt: skip
    result = glasshouse.train(config, progress=False)
    rows = list(result.open().rollouts(splits=("train",)))
    assert {row["task"] for row in rows} == {"digit_pairs"}
    assert all({"brief", "shouting"} <= row["terms"].keys() for row in rows)
    assert engine.get("counting").requests >= 2
    assert "train 1" in capsys.readouterr().out
    monitored = glasshouse.monitor_run(result.path, progress=False)
    for entry in monitored["checkpoints"]:
        assert entry["measures"]["reversed_cot"]["reversed_same"]["n"] == 4
    assert "reversed_same" in monitored["change"]["measures"]
    for command, code in (
        (["resume", str(result.path), "steps=2", "--quiet"], 0),
        (["monitor", str(result.path)], 0),
        (["eval", str(result.path / "checkpoints" / "step-000002")], 0),
        (["tasks", "digit_pairs"], 2),
        (["tasks", "digit_pairs", "--imports", str(own)], 0),
    ):
        forget()
        assert main(command) == code, command


def test_a_wrong_class_gets_a_sentence_that_names_the_missing_method():
    unsolved = abstractmethod(lambda self, problem, scratchpad: "")
    monitor("m")(type("Empty", (), {"__init__": lambda self, name: None, "scope": Scope.COT}))
    organism = {"description": "", "role": "", "Options": object}
    for kind, part, named in (
        (task, type("Half", (task.get("sum_digits"),), {"solve": unsolved}), "Half.*solve"),
        (task, dict, "not a task"),
        (task, type("Empty", (Organism,), organism), "shows_behaviour"),
        (reward, "not a function", "function of RewardInputs"),
        (penalty, type("Empty", (Penalty,), {}), "compute"),
        (tracker, type("Empty", (), {"log": print}), "start and finish"),
        (engine, type("Empty", (), {"generate": print}), "load_weights and free"),
    ):
        with pytest.raises(glasshouse.GlasshouseError, match=named):
            kind("x")(part)
    for options, named in (({}, "score, describe"), ({"limits": 3}, "limits")):
        with pytest.raises(ConfigError, match=named):
            make_monitor("m", {"kind": "m", **options})


def test_a_broken_package_is_named(tmp_path, monkeypatch):
    points = "[glasshouse.tasks]\nbroken = outside_parts:Missing\n"
    install(tmp_path, monkeypatch, points, "x = 1 / 1\n")
    with pytest.raises(TaskError, match=r"broken.*outside.*Missing"):
        glasshouse.make_task("broken")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("no_such_module", "no_such_module"),
        ("missing.py", "missing.py"),
        ("broken.py", "ZeroDivisionError.*line 2"),
    ],
)
def test_import_error_names_the_module_and_the_cause(name, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    with pytest.raises(ConfigError, match=rf"imports: .*{named}"):
        import_modules([name])


def test_script_is_named_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert script_import("a/train.py") == "a/train.py"
    assert script_import(str(tmp_path.parent / "train.py")) == str(tmp_path.parent / "train.py")
    with pytest.raises(TaskError, match="sum_digits"):  # a built-in task cannot be replaced
        task("sum_digits")(type("Other", (task.get("sum_digits"),), {}))
