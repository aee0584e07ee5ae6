"""`glasshouse tasks` and `config`: what a run can be built from."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import IMPORTS, command, command_group, print_safe
from glasshouse.errors import install_command
from glasshouse.terminal import terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.tasks.base import Task
    from glasshouse.types import Problem

UNTRIED_SECTIONS = ("generate.vllm.", "hosts.")
"""Keys of parts that never ran on the hardware that they are for."""


OPTIONS = {
    "--options key=value...": {
        "nargs": "*",
        "action": "extend",
        "help": "task options, e.g. left_digits=3 count=[2,2]",
    }
}


@command(
    "config",
    "explain every configuration key, with type and default",
    {"SECTION?": "only keys with this prefix, e.g. learn"},
    examples=["glasshouse config", "glasshouse config learn"],
)
def _config(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    from glasshouse.config.loading import describe_keys
    from glasshouse.errors import ConfigError, did_you_mean

    described = describe_keys()
    rows = [row for row in described if row[0].startswith(args.section)]
    if not args.section:  # keys of parts that few people have come last, in one line each
        rows = [row for row in rows if not row[0].startswith(UNTRIED_SECTIONS)]
    if not rows:
        sections = {row[0].split(".")[0] for row in described}
        raise ConfigError(
            f'No configuration key begins with "{args.section}".{did_you_mean(args.section, sections)}'
        )
    console = Console(highlight=False, emoji=False)
    for key, kind, default, about in rows:
        console.print(f"[bold]{key}[/] [dim]{escape(kind)}, default[/] {escape(default)}")
        console.print(Padding(Text(about), (0, 0, 0, 4)))
    if not args.section:
        for section in UNTRIED_SECTIONS:
            count = sum(row[0].startswith(section) for row in described)
            command = f"glasshouse config {section[:-1]}"
            console.print(Text(f"{section}*: {count} keys, not run on hardware ({command})", "dim"))


command_group(
    "tasks",
    "list the tasks, show one in full, grade a text, write a problem file",
    examples=["glasshouse tasks", "glasshouse tasks arithmetic", "glasshouse tasks grade --help"],
)


@command(
    "tasks show",
    "list the tasks with an example each, or show one in full",
    {
        "TASK?": "show this task in full",
        **OPTIONS,
        **IMPORTS,
        "--model NAME = pocket": "show the prompts that this model gets",
        "--show N": "print N problems: the text that the model is sent, and how completions are graded",
        "--validate N": "check the grading of each task on N problems",
    },
    "Without a name: every task with its size and options. With a name: also the messages of both "
    "styles, the exact prompt that a model receives, and a demonstration of each mode.",
    examples=[
        "glasshouse tasks",
        "glasshouse tasks arithmetic",
        "glasshouse tasks arithmetic --model models/my-model",
        "glasshouse tasks --validate 100",
        "glasshouse tasks dataset --options file=problems.jsonl --show 3",
    ],
)
def _show(args: argparse.Namespace) -> int:
    from rich.markup import escape

    from glasshouse.rollout.self_check import check_task
    from glasshouse.tasks.base import list_tasks, make_example_task, make_task
    from glasshouse.terminal import make_console

    console, passed, options = make_console(), True, _read_options(args.options)
    for name in [args.task] if args.task else list_tasks():
        task = make_task(name, options) if options else make_example_task(name)
        _print_task(console, task)
        if args.task or args.show:
            for heading, text in _render_problems(task, args.model, args.show or 0):
                console.rule(escape(terminal_safe(heading)), align="left")
                console.print(terminal_safe(text), soft_wrap=True, markup=False)
        if args.validate:
            report = check_task(task, args.validate)
            passed &= report.passed
            console.print(f"    {report}", markup=False)
    if not args.task:
        has_gym = importlib.util.find_spec("reasoning_gym") is not None
        gym = "as in glasshouse tasks gym.basic_arithmetic" if has_gym else install_command("gym")
        for line in (
            f"gym.<name>: any procedural task of reasoning-gym ({gym})",
            "dataset: your own problems (glasshouse tasks dataset --options file=FILE)",
        ):
            console.print(line, soft_wrap=True, markup=False)
    return 0 if passed else 1


def _print_task(console: Console, task: Task[Any]) -> None:
    """Print what the task is, its number of problems, an example and its options."""
    problem, size = _draw_example(task), task.size()
    counted = f"{size:,}" if size else "uncounted"
    lines = [f"{task.name}: {task.description}; {counted} problems"]
    lines += [f"    {found}"] if (found := task.describe()) else []
    lines.append(f"    {problem.question}  →  {problem.gold_answer}")
    for option, field in task.Options.model_fields.items():
        default = field.get_default(call_default_factory=True)
        lines.append(f"    {option} = {default}: {' '.join((field.description or '').split())}")
    for line in lines:
        console.print(line, markup=False)


def _draw_example(task: Task[Any]) -> Problem:
    """The problem with which a task is shown."""
    from glasshouse import randomness

    return task.draw(randomness.stream("example", task.name))


def _read_options(options: list[str]) -> dict[str, Any]:
    from glasshouse.config.loading import load_config

    return load_config([], [f"task.options.{option}" for option in options]).task.options


def _render_problems(task: Task[Any], model: str, count: int) -> Iterator[tuple[str, str]]:
    """Headings and texts: the prompts of drawn problems as a model is sent them, and how three typical
    completions are graded. Without a count: the example in every style, and a demonstration of each mode."""
    from glasshouse import randomness
    from glasshouse.models.chat_template import describe_system_message, render_prompt
    from glasshouse.models.policy import load_tokenizer
    from glasshouse.rollout.grading import grade_completion
    from glasshouse.types import Style

    tokenizer = load_tokenizer(model)
    for number in range(count):
        problem = task.draw(randomness.stream("example", task.name, number))
        gold = problem.gold_answer
        lines = [render_prompt(tokenizer, task.messages(problem, Style.COT), model), ""]
        lines.append(f"gold answer: {gold} ({problem.answer_kind.value})")
        for completion in (f"[ANSWER] {gold}", f"So the answer is {gold}.", "I do not know."):
            graded = grade_completion(problem, completion)
            read = graded.extracted.model_answer
            lenient = "correct" if graded.lenient else "wrong" if read else "unread"
            strict = "correct" if graded.strict else "not paid"
            lines.append(f"  {completion!r}: lenient {lenient}, strict {strict}")
        yield f"problem {number + 1} of {task.name}, as {model} is sent it", "\n".join(lines)
    if count:
        return
    problem, effect = _draw_example(task), describe_system_message(tokenizer)
    for style in Style:
        messages = task.messages(problem, style)
        chat = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        yield f"task.style={style.value}: messages of the task", chat
        prompt = render_prompt(tokenizer, messages, model)
        note = f"(its chat template {effect})\n" if effect else ""
        yield f"task.style={style.value}: prompt of the model {model}", note + prompt
    for name, mode in task.modes.items():
        rng = randomness.stream("shown", task.name, name)
        yield f"{name}: {mode.description}", task.demonstrate(problem, name, rng)


@command(
    "tasks grade",
    "grade a text and explain which parsing rule applied",
    {
        "--task NAME = sum_digits": "see glasshouse tasks",
        "--answer TEXT!": "the correct answer",
        "--decimals N": "decimals that the question asks for (default 0)",
        "TEXT?": {"default": None, "help": "the completion (default: standard input)"},
    },
    examples=[
        'glasshouse tasks grade --answer 28 "so the answer is 28."',
        "glasshouse tasks grade --task multiplication --answer 12558 < completion.txt",
    ],
)
def _grade(args: argparse.Namespace) -> None:
    from glasshouse.rollout.grading import explain_grade

    text = args.text if args.text is not None else sys.stdin.read()
    explanation = explain_grade(text, args.answer, task=args.task, decimals=args.decimals or 0)
    print_safe(explanation)


@command(
    "tasks generate",
    "write a problem file with its provenance",
    {
        "--task NAME": "see glasshouse tasks",
        "--run RUN": "write what is missing of the run's data/train.jsonl (the problems that it was trained on), "
        "validation.jsonl and test.jsonl; only --count and --imports apply",
        "--split train|validation|test = validation": "which problems",
        "--count N = 1000": "problems",
        "--oversize X = 1": "multiplies --count, so that enough problems remain after decontamination",
        "--seed N": "seed of the draw (default 0)",
        **OPTIONS,
        **IMPORTS,
        "--out FILE": "the file to write, .jsonl",
    },
    "Draws count × oversize distinct problems of one split and writes them with a provenance file "
    "and a checksum. Never overwrites a file.",
    examples=[
        "glasshouse tasks generate --task multiplication --count 1000 --oversize 1.5 --out val.jsonl",
        "glasshouse tasks generate --run runs/try",
    ],
)
def _generate(args: argparse.Namespace) -> None:
    from glasshouse.errors import ConfigError
    from glasshouse.tasks.problem_files import create_problem_file
    from glasshouse.tasks.streams import Split

    if args.run:
        return _write_run_data(Path(args.run), args.count)
    if not args.task or not args.out:
        raise ConfigError("Give --task and --out, or --run.")
    options = _read_options(args.options)
    split, out = Split(args.split), Path(args.out)
    provenance = create_problem_file(
        args.task, options, split, args.count, args.oversize, args.seed or 0, out
    )
    problems = f"{provenance['problems']:,} {split} problems of {args.task}"
    print_safe(f"{problems} → {out}", f"sha256 {provenance['sha256']}")


def _write_run_data(run: Path, count: int) -> None:
    """Write the problems of a run's splits that are not files in its folder data yet. Those of the training split
    are in its rollout log; the test problems are drawn, and the run never uses them."""
    from glasshouse.measurement.evaluate import draw_validation
    from glasshouse.registry import import_modules
    from glasshouse.runs.rollout_log import read_rows
    from glasshouse.runs.rows import problem_from_row
    from glasshouse.runs.run import open_run
    from glasshouse.tasks.base import make_task
    from glasshouse.tasks.problem_files import write_problem_file
    from glasshouse.tasks.streams import FreshProblems, ProblemsExhausted, Split

    config = open_run(run).config
    import_modules(config.imports)
    task = make_task(config.task.name, config.task.options)
    for split in Split:
        file = run / "data" / f"{split}.jsonl"
        if file.exists():
            print_safe(f"{file} is there")
            continue
        if split is Split.TRAIN:
            problems = [problem_from_row(row) for row in read_rows(run, "train")]
        elif split is Split.VALIDATION:
            problems = draw_validation(config, task)[: config.evaluate.problems]
        else:
            stream, problems = FreshProblems(task, split, config.evaluate.seed, "stop"), []
            with suppress(ProblemsExhausted):  # a small problem space has fewer
                while len(problems) < count:
                    problems += stream.take(1)
        distinct = list({problem.key: problem for problem in problems}.values())
        write_problem_file(file, distinct)
        print_safe(f"{len(distinct):,} {split} problems → {file}")
