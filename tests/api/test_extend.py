"""Parts from outside: the examples of docs/python.md and of the experiment template, run as written."""

import re
import sys
from pathlib import Path

import pytest

import glasshouse
from glasshouse.cli.app import main
from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, TaskError, TrackError
from glasshouse.generate.engines import engine, make_generator
from glasshouse.learn.losses import algorithm, get_algorithm
from glasshouse.measurement.interventions.base import intervention
from glasshouse.models.policy import load_policy
from glasshouse.monitors.base import MonitorOutput, monitor
from glasshouse.monitors.factory import make_monitor
from glasshouse.monitors.views import Scope
from glasshouse.rollout.penalties import Penalty, penalty
from glasshouse.rollout.terms import reward
from glasshouse.tasks.base import list_tasks, task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.track.base import tracker, validate_trackers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text().partition("## Your own parts")[2]
VOWELS, PARTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
REGISTRIES = (task, reward, penalty, monitor, intervention, tracker, engine, algorithm)


@pytest.fixture(autouse=True)
def restore_registries():
    before = [set(registry.parts) for registry in REGISTRIES]
    modules = set(sys.modules)
    yield
    for registry, names in zip(REGISTRIES, before, strict=True):
        for name in set(registry.parts) - names - set(registry.modules):
            del registry.parts[name]
    for name in set(sys.modules) - modules:
        if name.startswith(("imported from ", "outside_")):
            del sys.modules[name]


def test_documented_task_passes_its_validation(tmp_path, capsys):
    file = tmp_path / "vowels.py"
    file.write_text(VOWELS)
    arguments = ["tasks", "count_vowels", "--imports", str(file), "--validate", "100"]
    assert main(arguments) == 0
    assert "0 faults" in capsys.readouterr().out


def test_a_task_with_a_fault_fails_its_validation(tmp_path, capsys):
    file = tmp_path / "vowels.py"
    file.write_text(VOWELS.replace("return str(count)", "return str(count + 1)"))
    arguments = ["tasks", "count_vowels", "--imports", str(file), "--validate", "5"]
    assert main(arguments) == 1
    assert "rejects" in capsys.readouterr().out


def install(tmp_path: Path, monkeypatch, entry_points: str, source: str) -> None:
    """What pip leaves of a package `outside`."""
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (tmp_path / "outside_parts.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


def test_every_kind_of_part_from_an_installed_package(tmp_path, monkeypatch, capsys):
    undecorated = re.sub(
        r"(?m)^@(?!algorithm)\w+.*$", "", PARTS
    )  # entry points take the decorators' place
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


def test_a_run_uses_every_part_of_its_own_file(tmp_path, capsys):
    (tmp_path / "parts.py").write_text(PARTS)
    config = glasshouse.load_config(
        overrides={
            "imports": [str(tmp_path / "parts.py")], "model": "models/mock", "steps": 1,
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


def test_a_wrong_class_gets_a_sentence_that_names_the_missing_method():
    with pytest.raises(TaskError, match=r"Half.*solve"):
        task("half")(type("Half", (task.get("sum_digits"),), {"solve": abstract()}))
    with pytest.raises(TaskError, match="not a task"):
        task("d")(dict)
    with pytest.raises(TaskError, match="shows_behaviour"):
        task("o")(type("Empty", (Organism,), {"description": "", "role": "", "Options": object}))
    with pytest.raises(ConfigError, match="function of RewardInputs"):
        reward("r")("not a function")
    with pytest.raises(ConfigError, match="compute"):
        penalty("p")(type("Empty", (Penalty,), {}))
    with pytest.raises(TrackError, match="start and finish"):
        tracker("t")(type("Empty", (), {"log": print}))
    with pytest.raises(ConfigError, match="load_weights and free"):
        engine("e")(type("Empty", (), {"generate": print}))
    monitor("m")(type("Empty", (), {"__init__": lambda self, name: None, "scope": Scope.COT}))
    with pytest.raises(ConfigError, match="score, describe"):
        make_monitor("m", {"kind": "m"})
    with pytest.raises(ConfigError, match="limits"):
        make_monitor("m", {"kind": "m", "limits": 3})


def abstract():
    from abc import abstractmethod

    return abstractmethod(lambda self, problem, scratchpad: "")


def test_own_monitor_kind_in_measure(tmp_path):
    class Constant:
        scope = Scope.ANSWER

        def __init__(self, name):
            self.name = name

        def score(self, view):
            return MonitorOutput.from_score(1.0, threshold=0.5)

        def describe(self):
            return {"kind": "constant", "name": self.name, "scope": self.scope.value}

    monitor("constant")(Constant)
    file = tmp_path / "rollouts.jsonl"
    file.write_text('{"completion": "a"}\n{"completion": "b"}\n')
    report = glasshouse.measure(file, monitors=["constant"], progress=False)
    assert report.cells[0].measures["constant.flag_rate"].value == 1


def test_broken_and_ambiguous_packages(tmp_path, monkeypatch):
    install(
        tmp_path, monkeypatch, "[glasshouse.tasks]\nbroken = outside_parts:Missing\n", "x = 1 / 1\n"
    )
    with pytest.raises(TaskError, match=r"broken.*outside.*Missing"):
        glasshouse.make_task("broken")
