"""`glasshouse rollouts`, `check`, `report` and `view`: look at runs."""

from __future__ import annotations

import argparse
import math
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.measure import ROLLOUTS, rollout_options
from glasshouse.cli.parser import RUN, command, command_group, print_damage, print_safe
from glasshouse.errors import RunError
from glasshouse.terminal import count_noun, format_bytes, shell_command, terminal_safe_json

if TYPE_CHECKING:
    from glasshouse.runs.checkpoints import Checkpoint
    from glasshouse.runs.rollout_log import RolloutReader

PRINTED_LEAKS = 20


@command(
    "rollouts",
    "query the rollout log: every prompt and completion of a run",
    {
        **RUN,
        "--step N..M": "for example 5, 10..20, 10..",
        "--split NAME": "train, validation (or a part of it, as validation/greedy), discarded (resampled by DAPO)",
        "--correct": {"action": "store_const", "const": True, "help": "only correct answers"},
        "--wrong": {
            "dest": "correct",
            "action": "store_const",
            "const": False,
            "help": "only wrong answers",
        },
        "--reward A..B": "reward in this range (negative: --reward=-1..0)",
        "--text TEXT": "contained in the question or completion, ignoring case",
        "--limit N": "at most N (default 3 with --show)",
        "--show": "print each rollout in full",
        "--json": "print JSON lines, with all fields",
        "--prompt": "with --show: print the whole prompt",
    },
    "Options from --step to --limit select rollouts. Without --show or --json, prints a table "
    " of what the log holds. Exit code 1 if the log is damaged; the readable part is shown anyway.",
    examples=[
        "glasshouse rollouts runs/try",
        "glasshouse rollouts runs/try --step 60 --wrong --show",
        "glasshouse rollouts runs/try --correct --reward 0.3..1 --json",
    ],
    exclusive=(("--correct", "--wrong"), ("--show", "--json")),
)
def _rollouts(args: argparse.Namespace) -> int:
    from glasshouse.runs.rollout_log import RolloutReader
    from glasshouse.runs.rows import RolloutFilter, encode_rows
    from glasshouse.terminal import make_console
    from glasshouse.view.terminal_tables import overview_table, render_rollout, tally_by_step

    run = Path(args.run)
    reader = RolloutReader(run)
    first, last = _parse_range(args.step, "--step", 0)
    lowest, highest = _parse_range(args.reward, "--reward", -math.inf)
    query = RolloutFilter(
        splits=(args.split,) if args.split else (),
        first_step=math.ceil(first),
        last_step=last,
        correct=args.correct,
        min_reward=lowest,
        max_reward=highest,
        text=args.text,
    )
    if args.limit is not None and args.limit < 1:
        raise RunError(f"--limit is {args.limit}; it must be at least 1.")
    rows = islice(reader.iter_rows(query), args.limit or (3 if args.show else None))
    console, count = make_console(), 0
    if args.json or args.show:
        for row in rows:
            count += 1
            if args.json:
                sys.stdout.write(terminal_safe_json(encode_rows([row]).decode()))
            else:
                console.print(render_rollout(row, args.prompt))
    else:
        tallies = tally_by_step(rows)
        if count := sum(tally["rows"] for tally in tallies.values()):
            console.print(overview_table(tallies))
            _print_overview(args.run, reader.file, count, max(step for _, step in tallies))
    damaged = _print_damage(run, reader)
    if not count and not damaged:
        raise RunError(f"No rollouts of {run} match these filters.")
    return 1 if damaged else 0


def _print_overview(run: str, log: Path, count: int, last_step: int) -> None:
    """Print the size of the log, and further commands."""
    from glasshouse.runs.rollout_log import LogSize, scan_log

    total = LogSize.of(scan_log(log).frames)
    selected = "" if count == total.rows else f"{count:,} of "
    print(
        f"\n{selected}{count_noun(total.rows, 'rollout')} in {count_noun(total.frames, 'frame')}: {total} "
        f"({total.raw / max(1, total.bytes):.1f} to 1, "
        f"{format_bytes(total.bytes / max(1, total.rows))} per rollout)\nnext:"
    )
    for options in (["--step", str(last_step), "--wrong", "--show"], ["--json"]):
        print(f"  {shell_command(['glasshouse', 'rollouts', run, *options])}")


def _print_damage(run: Path, reader: RolloutReader) -> bool:
    """Print what is damaged or missing to stderr; returns whether anything is."""
    from glasshouse.runs.checkpoints import read_newest_state
    from glasshouse.runs.verify import find_lost_rollouts

    state = read_newest_state(run / "checkpoints")
    messages = [*reader.damage, *find_lost_rollouts(run, state)]
    for message in messages:
        print_damage(message)
    if reader.unfinished:
        print(f"note: {reader.unfinished}: being written, or cut off by a crash.", file=sys.stderr)
    return bool(messages)


def _parse_range(text: str, option: str, least: float) -> tuple[float, float]:
    """The bounds of `3`, `10..20`, `10..` or `..20`, both inclusive."""
    low, dots, high = text.partition("..")
    try:
        lowest = float(low) if low else least
        highest = float(high) if high else math.inf
        if not dots and low:
            highest = lowest
        if math.isnan(lowest) or math.isnan(highest) or lowest > highest or text == "..":
            raise ValueError
    except ValueError:
        raise RunError(f'{option} is "{text}"; write a number, or a range as in 10..20.') from None
    return lowest, highest


command_group(
    "check",
    "say what is installed; verify a run, list its checkpoints, find leaked problems",
    examples=["glasshouse check", "glasshouse check runs/try", "glasshouse check audit runs/try"],
)


@command(
    "check run",
    "verify every file of a run, list its checkpoints and what is damaged",
    {
        "RUN?": "a run directory; without one: what is installed, and what each missing part would enable"
    },
    "Compares the configuration, the checkpoints, the rollout log, metrics, events, summary and monitor "
    "results with their checksums, and prints for each checkpoint its reward, size, the retention rules that keep it "
    "and why it was saved, and for each damage what is lost, what still works and what to do. "
    "Changes nothing. Exit code 0 if the run is intact, 1 if a part is damaged, 2 if it is not a run.",
    examples=["glasshouse check runs/try"],
)
def _check(args: argparse.Namespace) -> int:
    if not args.run:
        from glasshouse.cli.installation import describe_installation

        print_safe(*describe_installation())
        return 0
    from glasshouse.runs.checkpoints import roles_of
    from glasshouse.runs.verify import verify_run

    result = verify_run(Path(args.run))
    roles = roles_of(result.checkpoints)
    problems = count_noun(len(result.damage), "problem")
    print_safe(
        f"{result.run}: {'sound' if result.is_sound else f'damaged, {problems}'}",
        *(f"  {part:<14} {content}" for part, content in result.contents.items()),
        *(f"  {_describe_checkpoint(c, roles[c.path])}" for c in result.checkpoints),
        *(f"damage: {item}" for item in result.damage),
    )
    return 0 if result.is_sound else 1


def _describe_checkpoint(checkpoint: Checkpoint, roles: list[str]) -> str:
    reward = "" if checkpoint.reward is None else f"{checkpoint.reward:+.3f}"
    status = f"{', '.join(roles)} (saved: {checkpoint.why_saved})"
    return (
        f"{checkpoint.name:<14} {reward:>7} {format_bytes(checkpoint.bytes):>9}  "
        f"{'damaged' if checkpoint.damage else status}"
    )


@command(
    "check audit",
    "check whether a run was evaluated on problems it was trained on",
    {**RUN, "--file FILE": "check this problem file (.jsonl or .parquet) instead of the run's own"},
    "Compares problems with those in the run's rollout log of training; exit code 1 if any is there. "
    "Problems match by canonical key, by the words of the question, and, where a file has no keys, by "
    "the same words and numbers in another order with the same answer.",
    examples=[
        "glasshouse check audit runs/try",
        "glasshouse check audit runs/try --file my-test-set.jsonl",
    ],
)
def _audit(args: argparse.Namespace) -> int:
    from glasshouse.measurement.contamination import audit_run

    report = audit_run(Path(args.run), Path(args.file) if args.file else None)
    leaks = report.leaks
    evaluated = f"{count_noun(report.checked, 'problem')} of {args.file or 'its evaluations'}"
    trained = f"{count_noun(report.trained, 'problem')} that {args.run} was trained on"
    if not leaks:
        print_safe(f"No leak: none of the {evaluated} is among the {trained}.")
        if report.removed:
            print_safe(f"At its last evaluation, {report.removed}")
        return 0
    for leak in leaks[:PRINTED_LEAKS]:
        where = f"leak at step {leak.step} ({leak.match})"
        print_safe(
            f"{where}: {leak.problem.question!r} was trained on as {leak.training_question!r}"
        )
    if len(leaks) > PRINTED_LEAKS:
        print(f"… and {len(leaks) - PRINTED_LEAKS:,} more")
    print_safe(f"{len(leaks):,} of the {evaluated} are among the {trained}.")
    return 1


command_group(
    "report",
    "write a page about runs, plot their curves, upload them to a tracker",
    examples=["glasshouse report runs/try", "glasshouse report figure runs/try"],
)


@command(
    "report page",
    "write an HTML page about one or more runs",
    {
        "RUN+": "run directories, folders of them, or files of rollouts",
        "--out FILE": "the file to write (default RUN/results/report.html, or beside the folder or file)",
    },
    "One self-contained file: verdict, accuracy before and after, curves, monitorability, examples, "
    "configuration, and how to reproduce it. Several runs are grouped into arms and seeds, with "
    "the mean and a band over seeds.",
    examples=["glasshouse report runs/try", "glasshouse report runs/control/* --out control.html"],
)
def _report(args: argparse.Namespace) -> None:
    from glasshouse.view.report import write_report

    print_safe(write_report(*args.run, out=args.out or None, warn=print_damage))


@command(
    "report figure",
    "plot the learning curves of runs",
    {
        "RUN+": "run directories; several are averaged",
        "--out FILE": "the .svg file to write (default: RUN/results/curves.svg; of several runs, curves.svg here)",
    },
    examples=["glasshouse report figure runs/try", "glasshouse report figure runs/* --out all.svg"],
)
def _figure(args: argparse.Namespace) -> None:
    from glasshouse.runs.curves import CURVES, plot_learning_curves

    folder = Path(args.run[0], "results") if len(args.run) == 1 else Path()
    out = Path(args.out or folder / CURVES)
    plot_learning_curves(*args.run, out=out, warn=print_damage)
    print_safe(out)


@command(
    "report track",
    "upload a run to wandb, trackio, tensorboard or mlflow",
    {
        **RUN,
        "--to NAME...": {
            "required": True,
            "help": "mlflow, tensorboard, trackio or wandb; repeatable",
        },
    },
    "Sends what the tracker does not have yet: a run that was trained without it, or whose tracker "
    "failed. To log live during training, set trackers=[NAME].",
    examples=["glasshouse report track runs/try --to tensorboard"],
)
def _track(args: argparse.Namespace) -> None:
    from glasshouse.track.trackers import upload_run

    for name, url in upload_run(args.run, args.to, warn=print_damage).items():
        print_safe(f"{args.run} is uploaded to {name}: {url}")


@command(
    "view",
    "show runs in the browser, live while they train; and rollouts of any trainer",
    {
        "RUN*": "run directories, folders of them, studies, or files of rollouts (default: runs)",
        "--open": "open the page in a browser",
        "--port N = 8420": "the port, or a free one if it is taken; 0: any",
        **ROLLOUTS,
    },
    "Shows runs, studies and whatever `glasshouse measure` reads: curves, rollouts with filters and search, one "
    "problem across checkpoints, and comparisons. The keys 1 and 0 label a rollout, in a file beside it; nothing else "
    "is written, and no request is made to other machines. Options from --map on say how files are read. Listens on "
    "this machine only; `ssh -L 8420:localhost:8420 MACHINE` shows it on another one. Needs the extra `view`.",
    examples=[
        "glasshouse view",
        "glasshouse view runs/sum_digits-grpo-1 --open",
        "glasshouse view outputs/completions --monitor 'rule:hint=(?i)hint'",
        "glasshouse view runs/studies/leaked_hint --port 0",
    ],
)
def _view(args: argparse.Namespace) -> None:
    from glasshouse.view.server import serve

    serve(
        [Path(run) for run in args.run or ["runs"]],
        port=args.port,
        open_browser=args.open,
        options=rollout_options(args, Path(".glasshouse") / "judge"),
    )
