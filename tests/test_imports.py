"""`imports`: reward terms and tasks of the user's own modules are known to every command."""

import sys

import pytest

from glasshouse.cli.app import main
from glasshouse.errors import ConfigError, TaskError
from glasshouse.registry import import_modules, script_import
from glasshouse.rollout.terms import reward
from glasshouse.tasks.base import task

SOURCE = """
import helper_beside
from glasshouse import reward, task
from glasshouse.tasks.digits import SumDigits

@reward("brief")
def brief(inputs):
    return 1 - min(len(inputs.text) / helper_beside.LIMIT, 2)

@task("own_task")
class OwnTask(SumDigits):
    name = "own_task"
"""
SHORT = (
    "model=models/mock", "steps=1", "data.groups_per_step=2", "generate.group_size=2",
    "generate.max_tokens=8", "evaluate.problems=2", "evaluate.samples=0", "monitor.problems=2",
)  # fmt: skip


@pytest.fixture
def forget_imports():
    """Undo what a test imports: returns a function that does what a new process would."""
    modules, path = set(sys.modules), list(sys.path)

    def forget():
        for name in set(sys.modules) - modules:
            if name.startswith("imported from ") or name == "helper_beside":
                del sys.modules[name]
        sys.path[:] = path
        reward.parts.pop("brief", None)
        task.parts.pop("own_task", None)

    yield forget
    forget()


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "code" / "train.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    (file.parent / "helper_beside.py").write_text("LIMIT = 200\n")
    return file


def test_registered_reward_and_task_are_known_to_every_command(script, tmp_path, forget_imports):
    run = str(tmp_path / "run")
    own = [f"imports=[{script}]", "task.name=own_task", "reward.terms={exact: 1, brief: 0.1}"]
    for command, code in (
        (["train", *SHORT, *own, f"out={run}", "--quiet"], 0),
        (["resume", run, "steps=2", "--quiet"], 0),
        (["monitor", run], 0),
        (["eval", f"{run}/checkpoints/step-000002"], 0),
        (["tasks", "own_task"], 2),
        (["tasks", "own_task", "--imports", str(script)], 0),
    ):
        assert main(command) == code, command
        forget_imports()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("no_such_module", "no_such_module"),
        ("missing.py", "missing.py"),
        ("broken.py", "ZeroDivisionError.*line 2"),
    ],
)
def test_import_error_names_the_module_and_the_cause(
    name, named, tmp_path, monkeypatch, forget_imports
):
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
