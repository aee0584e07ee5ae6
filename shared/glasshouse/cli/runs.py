"""`glasshouse check`, `report` and `view`: look at runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.measure import ROLLOUTS, rollout_options
from glasshouse.cli.parser import RUN, command, command_group, print_damage, print_safe
from glasshouse.terminal import count_noun, format_bytes

if TYPE_CHECKING:
    from glasshouse.runs.checkpoints import Checkpoint

PRINTED_LEAKS = 20

command_group(
    "check",
    "verify the files of a run, list its checkpoints, find leaked problems",
    examples=["glasshouse check runs/try", "glasshouse check audit runs/try"],
)


@command(
    "check run",
    "verify every file of a run, list its checkpoints and what is damaged",
    RUN,
    "Compares the configuration, the checkpoints, the rollout log, metrics, events, summary and monitor "
    "results with their checksums, and prints for each checkpoint its reward, size, the retention rules that keep it "
    "and why it was saved, and for each damage what is lost, what still works and what to do. "
    "Changes nothing. Exit code 0 if the run is intact, 1 if a part is damaged, 2 if it is not a run.",
    examples=["glasshouse check runs/try"],
)
def _check(args: argparse.Namespace) -> int:
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
        "RUN+": "run directories, or files of rollouts",
        "--out FILE": "the file to write (default RUN/results/report.html, or beside the file)",
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
        "--out FILE!": "the image to write, .png or .svg",
    },
    examples=["glasshouse report figure runs/try --out curves.png"],
)
def _figure(args: argparse.Namespace) -> None:
    from glasshouse.view.figures import plot_learning_curves

    plot_learning_curves(*args.run, out=args.out, warn=print_damage)


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
        "--host NAME = 127.0.0.1": "the address to listen on",
        "--port N = 8420": "the port, or a free one if it is taken; 0: any",
        "--token TEXT": "require this token (default: a random one if --host is not loopback)",
        "--allow-host NAME...": "answer requests for this host name as well, as behind a proxy; repeatable",
        **ROLLOUTS,
    },
    "Shows runs, studies and whatever `glasshouse measure` reads: curves, rollouts with filters and search, one "
    "problem across checkpoints, and comparisons. The keys 1 and 0 label a rollout, in a file beside it; nothing else "
    "is written, and no request is made to other machines. Options from --map on say how files are read. Listens on "
    "this machine only unless --host says otherwise, and then requires a token. Needs the extra `view`.",
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
        host=args.host,
        port=args.port,
        token=args.token,
        allow_hosts=args.allow_host,
        open_browser=args.open,
        options=rollout_options(args, Path(".glasshouse") / "judge"),
    )
