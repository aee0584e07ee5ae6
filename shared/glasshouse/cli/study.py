"""`glasshouse demo` and `study`: train arms × seeds, write a table, answer each question."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.parser import command, command_group, print_safe
from glasshouse.terminal import count_noun, shell_command

if TYPE_CHECKING:
    from glasshouse.study.spec import Study


@command(
    "demo",
    "compare the outcome reward with a monitor in the reward, in half a minute",
    {
        "--out FOLDER = runs/demo": "output folder",
        "key=value": "override the configuration of both runs, e.g. steps=20",
    },
    "Trains the organism leaked_hint twice at the same time, in two processes: with the outcome reward, "
    "and with a monitor in the reward. Ends with a picture, the rates and their intervals, and one problem "
    "before and after. If it is interrupted, the same command resumes; if it is finished, the same command "
    "only shows the result again.",
    examples=["glasshouse demo", "glasshouse demo --out runs/short steps=20"],
)
def _demo(args: argparse.Namespace) -> int:
    from glasshouse.study.demo import run_demo
    from glasshouse.terminal import make_console

    try:
        run_demo(Path(args.out), args.overrides, make_console())
    except KeyboardInterrupt:
        again = shell_command(["glasshouse", "demo", "--out", args.out, *args.overrides])
        print(f"Interrupted; both runs are saved. Resume with: {again}")
        return 130
    return 0


command_group(
    "study",
    "compare arms over paired seeds and answer a study's questions",
    "docs/studies.md explains the study file.",
    examples=[
        "glasshouse study my-study.yaml --dry-run",
        "glasshouse study freeze my-study.yaml",
    ],
)


@command(
    "study freeze",
    "register a study before its runs",
    {
        "STUDY.yaml": "the study file",
        "--pilot FILE": "a pilot's table: its rows of the study's measures are registered as known before",
        "--again": "register it anew before its first run; the earlier freeze stays on record",
    },
    "Writes the date, a hash and a copy of its bases, seeds, config, arms and questions into the file, with the "
    "commit of the code and the SHA-256 of each base. Later changes are reported as amendments.",
    examples=["glasshouse study freeze my-study.yaml"],
)
def _freeze(args: argparse.Namespace) -> None:
    from glasshouse.study.freeze import describe_registration, freeze_study
    from glasshouse.study.spec import load_study

    pilot = Path(args.pilot) if args.pilot else None
    freeze_study(Path(args.study), pilot=pilot, again=args.again)
    print_safe(f"{args.study}: {describe_registration(load_study(args.study))}")
    study = shell_command(["glasshouse", "study", args.study])
    print_safe(
        f"next  {study}     # commit the file first: the commit shows that it came before the runs"
    )


@command(
    "study export",
    "write a sample of a study's evaluation rollouts to a file",
    {
        "FILE": "evaluations.jsonl.zst of the study",
        "--out FILE!": "the file to write, JSON lines for `glasshouse measure` and `glasshouse view`",
        "--count N = 100": "rollouts of the planted arm, as many of each run's first and last step",
        "--blind": "without arm, seed and step, for a reader who must not know them",
    },
    "A judge that is too slow for every evaluation, or a person, reads the sample; `glasshouse measure` then gives "
    "their agreement (Cohen's κ) with every monitor.",
    examples=[
        "glasshouse study export results/evaluations.jsonl.zst --blind --out reading.jsonl",
    ],
)
def _export(args: argparse.Namespace) -> None:
    from glasshouse.study.export import export_rollouts

    count = export_rollouts(Path(args.file), Path(args.out), args.count, blind=args.blind)
    print_safe(f"{count_noun(count, 'rollout')} → {args.out}")


@command(
    "study run",
    "train every arm with every seed and answer the questions",
    {
        "STUDY.yaml": "the study file",
        "key=value": "override the study's config, but not what its arms set, e.g. steps=4",
        "--seeds N": "seeds per arm (default as in the study)",
        "--jobs N = 2": "parallel runs",
        "--out FOLDER": "default: runs/studies/<name of the study>",
        "--check FILE": "compare the rows of this study's arms and seeds byte by byte with this table; exit code 1 "
        "if they differ, 3 if torch computed one of them on another CPU and all verdicts are equal",
        "--continue FILE": "take the runs of this published table that have the same configuration and model, and "
        "train the others",
        "--keep": "keep checkpoints and rollouts of finished runs",
        "--table FILE": "train nothing: analyse this table (.jsonl or .jsonl.zst)",
        "--remeasure": "with --table: first measure the rollouts beside it again, for example with a new monitor",
        "--publish FOLDER": "write the compressed table, the analysis and the figures to this folder",
        "--dry-run": "list the runs, print the smallest effect that the study can show, and exit",
    },
    "Trains several runs in parallel. If it is interrupted, the same command resumes. Finished runs "
    "are not repeated, so seeds and arms can be added later. Of a finished run only about 0.1 MB is "
    "kept: configuration, summary, metrics, events and table rows.",
    examples=[
        "glasshouse study training/digits.reinforce/study.yaml --dry-run",
        "glasshouse study training/digits.reinforce/study.yaml --seeds 3 --jobs 4",
        "glasshouse study my-study.yaml --publish results",
    ],
)
def _study(args: argparse.Namespace) -> int:
    from glasshouse.study.freeze import check_seeds_are_fresh
    from glasshouse.study.power import describe_power
    from glasshouse.study.report import publish_study
    from glasshouse.study.runner import check_study, default_folder, run_study
    from glasshouse.study.spec import load_study
    from glasshouse.study.table import Table

    file = Path(args.study)
    study = load_study(file, args.overrides, seeds=args.seeds)
    out = Path(args.out) if args.out else default_folder(file)
    # read it first: it may be the file that this study overwrites
    committed = Table.load(Path(args.check)) if args.check else None
    if study.frozen is not None and not args.table:
        check_seeds_are_fresh(study, file)
    if args.dry_run:
        _list_runs(study, out)
    else:
        print_safe(f"{study.title}: {_describe_size(study)} → {out}")
    if not args.table and (power := describe_power(study)):
        print_safe(power)
    if args.dry_run:
        return 0
    try:
        result = run_study(
            study,
            out,
            jobs=args.jobs,
            keep_all=args.keep,
            table=args.table or None,
            remeasure=args.remeasure,
            continue_from=getattr(args, "continue") or None,
        )
    except KeyboardInterrupt:
        print("Interrupted; unfinished runs are saved. Repeat the command to resume.")
        return 130
    if args.publish:
        command = shell_command(["glasshouse", "study", args.study, "--publish", args.publish])
        publish_study(result.analysis, result.table, out, Path(args.publish), command)
    if committed is None:
        return 0
    code, sentence = check_study(result, committed, args.check)
    print_safe(sentence)
    return code


def _describe_size(study: Study) -> str:
    arms, seeds = len(study.arms), len(study.seeds)
    bases = len({study.base_of(seed) for seed in study.seeds})
    return (
        f"{count_noun(arms, 'arm')} × {count_noun(seeds, 'seed')} = {count_noun(arms * seeds, 'run')}, "
        f"{count_noun(bases, 'base')}"
    )


def _list_runs(study: Study, out: Path) -> None:
    """Print the runs of the study and which of them are finished."""
    from glasshouse.study.runner import plan_runs

    runs = plan_runs(study, out)
    for run in runs:
        state = "finished" if run.is_finished else "to do"
        print_safe(f"{run.name} ({run.base}, {run.config.steps} steps): {state}")
    remaining = sum(not run.is_finished for run in runs)
    print_safe(f"{_describe_size(study)}; {remaining} to do → {out}")
