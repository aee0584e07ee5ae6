"""`glasshouse check`, `report` and `view`: look at runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import (
    add_actions,
    add_command,
    add_json,
    add_run_directory,
    print_damage,
)
from glasshouse.terminal import count_noun, terminal_safe, terminal_safe_json

PRINTED_LEAKS = 20


def add_commands(commands: Any) -> None:
    _add_check(commands)
    _add_report(commands)
    _add_view(commands)


def _add_check(commands: Any) -> None:
    parser = add_command(
        commands,
        "check",
        None,
        "verify the files of a run, list its checkpoints, find leaked problems",
        examples=["glasshouse check runs/try", "glasshouse check audit runs/try"],
    )
    actions = add_actions(parser, default="run")
    run = add_command(
        actions,
        "run",
        _check,
        "verify every file of a run and list what is damaged",
        "Compares the configuration, the checkpoints, the rollout log, metrics, events, summary and monitor "
        "results with their checksums, and prints for each damage what is lost, what still works and what to do. "
        "Changes nothing. Exit code 0 if the run is intact, 1 if a part is damaged, 2 if it is not a run.",
        ["glasshouse check runs/try", "glasshouse check runs/try --json"],
    )
    add_run_directory(run)
    add_json(run)

    checkpoints = add_command(
        actions,
        "checkpoints",
        _checkpoints,
        "list and verify the checkpoints of a run",
        "Shows step, reward, size, the retention rule that keeps each checkpoint, and why it was saved. "
        "Reads every file and compares it with its checksum; exit code 1 if one is damaged.",
        ["glasshouse check checkpoints runs/try", "glasshouse check checkpoints runs/try --json"],
    )
    add_run_directory(checkpoints)
    add_json(checkpoints)

    audit = add_command(
        actions,
        "audit",
        _audit,
        "check whether a run was evaluated on problems it was trained on",
        "Compares problems with those in the run's rollout log of training; exit code 1 if any is there. "
        "Problems match by canonical key, by the words of the question, and, where a file has no keys, by "
        "the same words and numbers in another order with the same answer.",
        [
            "glasshouse check audit runs/try",
            "glasshouse check audit runs/try --file my-test-set.jsonl",
        ],
    )
    add_run_directory(audit)
    audit.add_argument(
        "--file", help="check this problem file (.jsonl or .parquet) instead of the run's own"
    )
    add_json(audit)


def _add_report(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        None,
        "write a page about runs, plot their curves, upload them to a tracker",
        examples=["glasshouse report runs/try", "glasshouse report figure runs/try"],
    )
    actions = add_actions(parser, default="page")
    page = add_command(
        actions,
        "page",
        _report,
        "write an HTML page about one or more runs",
        "One self-contained file: verdict, accuracy before and after, curves, monitorability, examples, "
        "configuration, and how to reproduce it. Several runs are grouped into arms and seeds, with "
        "the mean and a band over seeds.",
        [
            "glasshouse report runs/try",
            "glasshouse report runs/control/* --out control.html",
        ],
    )
    page.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    page.add_argument("--out", help="the file to write (default RUN/results/report.html)")

    figure = add_command(
        actions,
        "figure",
        _figure,
        "plot the learning curves of runs",
        examples=["glasshouse report figure runs/try --out curves.png"],
    )
    figure.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories; several are averaged"
    )
    figure.add_argument("--out", required=True, help="the image to write, .png or .svg")
    figure.add_argument("--title", default="", help="the title of the figure")

    track = add_command(
        actions,
        "track",
        _track,
        "upload a run to wandb, trackio, tensorboard or mlflow",
        "Sends what the tracker does not have yet: a run that was trained without it, or whose tracker "
        "failed. To log live during training, set trackers=[NAME].",
        ["glasshouse report track runs/try --to tensorboard"],
    )
    add_run_directory(track)
    track.add_argument(
        "--to",
        action="append",
        required=True,
        metavar="NAME",
        help="mlflow, tensorboard, trackio or wandb; repeatable",
    )


def _add_view(commands: Any) -> None:
    parser = add_command(
        commands,
        "view",
        _view,
        "show runs in the browser, live while they train",
        "Serves run directories, a folder of them or a study: curves, rollouts with filters and search, one "
        "problem across checkpoints, and comparisons. Reads "
        "only; makes no request to other machines. Listens on this machine only unless --host says "
        "otherwise, and then requires a token. Needs the extra `view`.",
        [
            "glasshouse view",
            "glasshouse view runs/sum_digits-grpo-1 --open",
            "glasshouse view runs/studies/leaked_hint --port 0",
        ],
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", default=["runs"],
        help="run directories, folders of them, or studies (default: runs)",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8420, help="the port (default 8420, or a free one; 0: any)"
    )
    parser.add_argument(
        "--token",
        default="",
        help="require this token (default: a random one if --host is not loopback)",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="answer requests for this host name as well, as behind a proxy; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--cache", help="the folder for indexes of rollouts (default ~/.cache/glasshouse/view)"
    )


def _check(args: argparse.Namespace) -> int:
    import json

    from glasshouse.runs.verify import verify_run

    result = verify_run(Path(args.run_directory))
    if args.json:
        print(json.dumps(result.as_dict(), indent=2))
        return 0 if result.is_sound else 1
    count = len(result.damage)
    verdict = "sound" if result.is_sound else f"damaged, {count} problem{'s' * (count > 1)}"
    lines = [f"{result.run}: {verdict}"]
    lines += [f"  {part:<14} {content}" for part, content in result.contents.items()]
    lines += [f"damage: {item}" for item in result.damage]
    for line in lines:
        print(terminal_safe(line))
    return 0 if result.is_sound else 1


def _checkpoints(args: argparse.Namespace) -> int:
    import json

    from rich.table import Table
    from rich.text import Text

    from glasshouse.runs.checkpoints import roles_of
    from glasshouse.runs.run import Run
    from glasshouse.runs.run_config import load_verified_config
    from glasshouse.terminal import make_console, shell_command

    path = Path(args.run_directory)
    _, damage = load_verified_config(path)  # raises if this is not a run directory
    for item in damage:
        print_damage(str(item))
    run = Run(path)
    entries = run.checkpoints()
    roles = roles_of(entries)
    valid = [entry for entry in entries if not entry.damage]
    if args.json:
        rows = [
            {"step": c.step, "reward": c.reward, "why_saved": c.why_saved, "bytes": c.bytes, "path": str(c.path),
             "valid": not c.damage, "damage": list(c.damage), "kept_as": roles[c.path]}
            for c in entries
        ]  # fmt: skip
        print(json.dumps(rows, indent=2))
    elif not entries:
        print(terminal_safe(f"{path} has no checkpoints yet."))
    else:
        table = Table("step", "reward", "size", "kept as", "valid", "saved because")
        for c in entries:
            reward = "" if c.reward is None else f"{c.reward:+.3f}"
            problem = terminal_safe(c.damage[0]) if c.damage else ""
            validity = Text("yes") if not problem else Text.assemble(("no", "red"), f": {problem}")
            size = f"{c.bytes / 1e6:.1f} MB"
            reason = Text(terminal_safe(c.why_saved))
            table.add_row(str(c.step), reward, size, ", ".join(roles[c.path]), validity, reason)
        make_console().print(table)
        if valid:
            print(f"next    {shell_command(['glasshouse', 'eval', valid[-1].path])}")
            print(f"        {shell_command(['glasshouse', 'resume', path])}")
    return 0 if len(valid) == len(entries) else 1


def _audit(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from glasshouse.measurement.validation_filter import audit_run

    report = audit_run(Path(args.run_directory), Path(args.file) if args.file else None)
    if args.json:
        print(terminal_safe_json(json.dumps(asdict(report), indent=2, ensure_ascii=False)))
        return 1 if report.leaks else 0
    checked, count = (count_noun(n, "problem") for n in (report.checked, report.trained))
    evaluated = terminal_safe(f"{checked} of {args.file or 'its evaluations'}")
    trained = terminal_safe(f"{count} that {args.run_directory} was trained on")
    if not report.leaks:
        print(f"No leak: none of the {evaluated} is among the {trained}.")
        return 0
    for leak in report.leaks[:PRINTED_LEAKS]:
        print(f"leak at step {leak.step} ({leak.match}): {leak.problem.question!r} was trained on as "
              f"{leak.training_question!r}")  # fmt: skip
    if len(report.leaks) > PRINTED_LEAKS:
        print(f"… and {len(report.leaks) - PRINTED_LEAKS:,} more")
    print(f"{len(report.leaks):,} of the {evaluated} are among the {trained}.")
    return 1


def _report(args: argparse.Namespace) -> None:
    from glasshouse.view.report import write_report

    print(terminal_safe(str(write_report(*args.runs, out=args.out, warn=print_damage))))


def _figure(args: argparse.Namespace) -> None:
    from glasshouse.view.figures import plot_learning_curves

    plot_learning_curves(*args.runs, title=args.title, out=args.out, warn=print_damage)


def _track(args: argparse.Namespace) -> None:
    from glasshouse.track.upload import upload_run

    run = args.run_directory
    for name, url in upload_run(run, args.to, warn=print_damage).items():
        print(terminal_safe(f"{run} is uploaded to {name}: {url}"))


def _view(args: argparse.Namespace) -> None:
    from glasshouse.view.server import serve

    serve(
        [Path(run) for run in args.runs],
        host=args.host,
        port=args.port,
        token=args.token,
        allow_hosts=args.allow_host,
        cache=Path(args.cache) if args.cache else None,
        open_browser=args.open,
    )
