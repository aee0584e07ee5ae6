"""The command line: exit codes, messages, help. In process, except where the process is the claim."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from proofs.resume import run_child

from glasshouse import reward, task
from glasshouse.cli.app import GROUPS, main, make_parser

ROOT = Path(__file__).resolve().parent.parent
MOCK = str(ROOT / "models" / "mock")
SMALL = [
    f"model={MOCK}", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=16",
]  # fmt: skip


def run_process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "learn.lerning_rate=1"], '"learn.learning_rate"'),
        (["train", "--config", "no/such.yaml"], "no/such.yaml"),
        (["train", "data.source=fixed", "data.file=none.jsonl", f"model={MOCK}"], "none.jsonl"),
        (["eval", "no/such/folder"], "no/such/folder"),
        (["config", "lern"], '"learn"'),
        (["tasks", "aritmetic"], '"arithmetic"'),
        (["report", "figure", ".", "--out", "x.svg"], "results/metrics.jsonl"),
        (["sft", "--recipe", "poket", "--out", "x"], "pocket"),
        (["sft", "--recipe", "pocket", "--out", "docs"], "docs"),
        (["rollouts", "no/such/run"], "no/such/run"),
        (["hosts", "worker", "--address", "tcp://h:1", "--certificates", "x"], "tls://"),
        *(
            (["train", "--dry-run", override], text)
            for override, text in {
                "task.name=sum_digit": '"sum_digits"',
                "task.options.cuont=3": "count",
                "task.options.count=[3, 1]": "minimum",
                "learn.algorithm=grop": "grpo",
                "reward.terms={exakt: 1}": "exact",
                "reward.penalties={lenght: {weight: 1}}": "length",
                "reward.penalties={length: {weight: x}}": "it must be",
                "evaluate.monitors={m: {scope: x}}": "it must be",
                "model=pockett": '"pocket"',
                "model=no/such/folder": "no/such/folder",
                "trackers=[wandbb]": "wandb",
                "generate.engine=vlm": "vllm",
                "evaluate.file=none.jsonl": "none.jsonl",
                "steps=1.5e0": "integer",
                "learn=3": "learn.algorithm",
                "checkpoints.keep=[last]": "previous",
                "checkpoints.keep={every: 30}": "multiple of checkpoints.every",
                "checkpoints.keep=[last, every]": "every: N",
            }.items()
        ),
    ],
)
def test_a_user_error_names_its_cause_and_exits_with_2(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" or "--dry-run" not in arguments
    assert printed.err.startswith("error: ")
    assert text in printed.err
    assert "Value error" not in printed.err
    assert "LearnConfig" not in printed.err


def test_an_error_of_the_users_code_names_its_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (reward, task):
        monkeypatch.setattr(registry, "parts", dict(registry.parts))
    code = tmp_path / "mine.py"
    code.write_text(
        "from glasshouse import reward, task\nfrom glasshouse.tasks.digits import SumDigits\n"
        "@task('my_task')\nclass Mine(SumDigits):\n    def problem_at(self, level, index):\n"
        "        return {}['x']\n"
        "@reward('my_term')\ndef polite(inputs):\n    return inputs.nothing\n"
    )
    settings = [f"imports={code}", f"out={tmp_path / 'run'}", "steps=1", *SMALL]
    assert main(["train", "task.name=my_task", *settings]) == 2
    assert f"{code}, line 6, in problem_at: KeyError" in capsys.readouterr().err
    assert main(["train", "reward.terms.my_term=1", *settings]) == 2
    assert f"({code}, line 9, in polite)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trian"], '"train"'),
        (["hosts", "wroker"], '"worker"'),
        (["eval", "pocket", "--style", "direkt"], '"direct"'),
        (["train", "--no-such-option"], "--no-such-option"),
        (["train", "steps"], "key=value"),
    ],
)
def test_a_usage_error_exits_with_2_and_suggests_the_nearest_name(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "MODEL", "steps=3", "--task", "a=b", "seed=1"],
        ["eval", "steps=3", "MODEL", "seed=1", "--task", "a=b"],
        ["eval", "steps=3", "--task", "a=b", "seed=1", "MODEL"],
        ["eval", "--json", "steps=3", "--task", "a=b", "MODEL", "seed=1"],
    ],
)
def test_overrides_may_be_placed_anywhere(arguments: list[str]) -> None:
    args = make_parser().parse_args(arguments)
    assert (args.model, args.task, args.overrides) == ("MODEL", "a=b", ["steps=3", "seed=1"])


def test_help_lists_every_command_with_an_example_and_imports_no_heavy_library() -> None:
    parser = make_parser()
    description = parser.format_help()
    assert all(f"\n{title}:\n" in description for title in GROUPS)
    (commands,) = [a.choices for a in parser._actions if a.dest == "command"]
    for name, command in commands.items():
        assert f"\n  {name} " in description
        assert f"  glasshouse {name}" in command.format_help().partition("examples:")[2]
    code = (
        "import sys, contextlib, io\n"
        "from glasshouse.cli.app import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
        "print([name for name in ('torch', 'numpy', 'pydantic', 'yaml', 'rich') if name in sys.modules])"
    )
    assert run_process("-c", code).stdout == "[]\n"


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'glasshouse.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from glasshouse.__main__ import main\n"
        "sys.exit(main())"
    )
    process = run_process("-c", code)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "interrupted\n")


class MonarchNotInstalled(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "monarch":
            raise ModuleNotFoundError("No module named 'monarch'", name=name)


def test_a_backend_that_is_not_installed_is_a_user_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.meta_path", [MonarchNotInstalled(), *sys.meta_path])
    for name in list(sys.modules):
        if f"{name}.".startswith(("monarch.", "glasshouse.distributed.monarch.")):
            monkeypatch.delitem(sys.modules, name)
    out = tmp_path / "run"
    assert main(["train", "backend=monarch", f"model={MOCK}", f"out={out}"]) == 2
    assert "shared[monarch]" in capsys.readouterr().err
    assert not out.exists()


def test_grade_reads_standard_input_and_names_the_rule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("so the answer is 28."))
    assert main(["tasks", "grade", "--task", "sum_digits", "--answer", "28"]) == 0
    assert re.search("(?s)28.*phrase", capsys.readouterr().out)


def test_tasks_are_listed_validated_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--validate", "5"]) == 0
    output = capsys.readouterr().out
    for name in ("sum_digits", "reverse_digits", "arithmetic", "multiplication", "interleave"):
        assert f"{name}: " in output
    assert "81,000 problems" in output
    assert "0 faults" in output
    assert "glasshouse tasks gym.basic_arithmetic" in output  # not how to install what is there
    assert main(["tasks", "arithmetic"]) == 0
    output = capsys.readouterr().out
    for text in ("Do not show steps", "task.style=cot", "task.style=direct", "decimals = 0"):
        assert text in output
    assert "interleave" not in output


def test_training_in_a_pipe_prints_only_the_result_and_an_error_has_no_traceback(
    tmp_path: Path,
) -> None:
    sizes = ["steps=3", "evaluate.problems=4", "evaluate.samples=0", f"out={tmp_path / 'run'}"]
    process = run_process("-m", "glasshouse", "train", *SMALL, *sizes)
    assert (process.returncode, process.stderr) == (0, "")
    assert "held-out problems" in process.stdout
    assert "glasshouse eval" in process.stdout
    assert process.stdout.count("\n") < 40
    process = run_process("-m", "glasshouse", "train", "learn.lrr=1")
    assert process.returncode == 2
    assert process.stderr.startswith("error: ")
    assert "Traceback" not in process.stderr


def test_verbose_prints_one_completion_per_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*SMALL, "steps=2", "evaluate.problems=0", f"out={tmp_path / 'run'}"]
    assert main(["train", "--verbose", *overrides]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"(?m)^[0-9:]{8}  step +(\d)  reward", output) == ["1", "2"]
    assert output.count("(rule ") == 2


@pytest.mark.parametrize("script", ["tests/run_test.py", "tools/new_experiment.py"])
def test_an_invalid_experiment_name_exits_with_2(script: str) -> None:
    process = run_process(script, "no such")
    assert process.returncode == 2
    assert ".rl" in process.stderr


def test_a_new_experiment_passes_its_own_tests() -> None:
    name = f"scratch-{os.getpid()}.rl"
    experiment = ROOT / "training" / name
    try:
        assert run_process("tools/new_experiment.py", name).returncode == 0
        assert not (experiment / "results").exists()
        for file in experiment.iterdir():
            assert "example.rl" not in file.read_text()
        assert "results/" not in (experiment / "README.md").read_text()
        tests = ["-q", "-p", "no:cacheprovider", str(experiment / "test_train.py")]
        assert run_child(lambda: os._exit(pytest.main(tests))) == 0
    finally:
        shutil.rmtree(experiment, ignore_errors=True)


def test_dry_run_prints_the_configuration_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["model=leaked-hint-0", "task.name=leaked_hint"]
    for overrides in ([], base, ["model=some-org/some-model"], [f"model={MOCK}"]):
        out = tmp_path / "run"
        arguments = ["train", "--dry-run", "learn.learning_rate=1e-5", f"out={out}", *overrides]
        assert main(arguments) == 0, capsys.readouterr().err
        assert "learning_rate: 1.0e-05" in capsys.readouterr().out
        assert not out.exists()
    assert main(["config"]) == 0
    assert "learn.learning_rate float, default 0.0003" in capsys.readouterr().out


def test_keys_of_parts_that_never_ran_on_their_hardware_do_not_crowd_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config"]) == 0
    listed = capsys.readouterr().out
    assert "learn.learning_rate" in listed
    assert "hosts.addresses" not in listed.replace("hosts.*", "")
    assert main(["config", "hosts"]) == 0
    assert "hosts." in capsys.readouterr().out
    assert listed.count("not run on hardware") >= 2
