"""`make edition`: compute every study again, publish it, and set the old and the new verdicts side by side.

    make edition                        # all of it; after an interruption the same command continues
    make edition ARGS="--only ladder"   # one study; --list names them
    make edition ARGS="--analyse"       # train nothing: tables as they are, new analyses, figures and pages
    make edition ARGS="--try"           # every study with one seed and two tiny steps; publishes nothing

The next edition of a study is `edition.yaml` beside its `study.yaml` (`edition_x.yaml` beside `study_x.yaml`). Once its
last run is finished it takes the place of that file, with its table, rollouts, analysis, figures and page. Without
such a file `study.yaml` itself is computed again. Runs of a published table with the same configuration and base are
kept. Results are tied to the version of the code: the records in the tables name it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.errors import GlasshouseError
from glasshouse.files import write_text
from glasshouse.models.folders import find_model
from glasshouse.study.analysis import ANALYSIS_FILE
from glasshouse.study.report import publish_study
from glasshouse.study.runner import plan_runs, run_study
from glasshouse.study.spec import Study, load_study
from glasshouse.terminal import escape_markdown, format_duration, markdown_table

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("runs") / "edition"
VERDICTS = Path("studies") / "verdicts.md"
TABLE = "table.jsonl.zst"
TINY = [
    "steps=2", "data.groups_per_step=2", "generate.group_size=2", "evaluate.problems=4", "evaluate.samples=1",
    "evaluate.every=1", "monitor.problems=4", "monitor.samples=1", "monitor.threshold_problems=4",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One study of the edition."""

    name: str
    file: Path
    """What is computed: edition.yaml, or study.yaml if there is none."""
    published: Path
    """The study file that the results belong to."""
    results: Path

    @property
    def is_new(self) -> bool:
        return self.file != self.published


def list_entries() -> list[Entry]:
    entries = {}
    for pattern in ("studies/*/*.yaml", "training/*/*.yaml"):
        for file in sorted(Path().glob(pattern)):
            kind, _, suffix = file.stem.partition("_")
            if kind not in ("study", "edition"):
                continue
            published = file.with_name(f"{'_'.join(filter(None, ('study', suffix)))}.yaml")
            in_studies = file.parts[0] == "studies"
            folder = (
                file.parent
                if in_studies
                else file.parent / published.stem.replace("study", "results")
            )
            name = "_".join(filter(None, (file.parent.name, suffix)))
            if name not in entries or kind == "edition":
                entries[name] = Entry(name, file, published, folder)
    return [entries[name] for name in sorted(entries, key=lambda name: (name[0].isupper(), name))]


def count_work(study: Study, out: Path) -> int:
    """Rollouts that are still to be sampled in training: what the time left is estimated from."""
    return sum(
        run.config.steps * run.config.data.groups_per_step * run.config.generate.group_size
        for run in plan_runs(study, out)
        if not run.is_finished
    )


def remember_verdicts(entry: Entry) -> None:
    """Copy the previous edition's analysis before it is replaced."""
    kept, file = OUT / "previous" / f"{entry.name}.json", entry.results / ANALYSIS_FILE
    if entry.is_new and file.exists() and not kept.exists():
        write_text(kept, file.read_text())


def write_verdicts(entries: list[Entry]) -> None:
    """One row per question of the new studies, beside the previous edition's verdict on the same words."""
    rows = []
    for entry in entries:
        kept, file = OUT / "previous" / f"{entry.name}.json", entry.results / ANALYSIS_FILE
        if not kept.exists() or not file.exists() or entry.is_new:
            continue
        old = {q["ask"]: q for q in json.loads(kept.read_text())["questions"]}
        new = {q["ask"]: q for q in json.loads(file.read_text())["questions"]}
        for ask in dict.fromkeys([*new, *old]):
            before, after = (_describe(questions.get(ask)) for questions in (old, new))
            both = ask in old and ask in new
            changed = both and old[ask]["verdict"] != new[ask]["verdict"]
            rows.append(
                (entry.name, escape_markdown(ask), before, after, "**changed**" if changed else "")
            )
    if rows:
        table = markdown_table(
            ("study", "question", "previous edition", "this edition", ""), rows, left=5
        )
        text = (
            "# Verdicts of the previous and of this edition\n\nGenerated by `make edition`. A question is the same if "
            f"its words are; the design may differ (see both study files).\n\n{table}\n"
        )
        write_text(VERDICTS, text)


def _describe(question: dict[str, Any] | None) -> str:
    if question is None:
        return "not asked"
    effect = question["effect"]["effect"]
    number = "" if effect is None else f" ({effect:+.2f})"
    return f"{question['verdict']}{number}"


def run_entry(entry: Entry, arguments: argparse.Namespace) -> None:
    out = OUT / entry.name
    if arguments.attempt:
        study = load_study(entry.file, TINY, seeds=1)
        asked = [question.model_copy(update={"at": None}) for question in study.questions]
        study = study.model_copy(update={"questions": tuple(asked)})
        run_study(study, OUT / "try" / entry.name, jobs=arguments.jobs)
        return
    study, table = load_study(entry.file), entry.results / TABLE
    if arguments.analyse:
        if entry.is_new:
            study = load_study(entry.published)
        result = run_study(study, OUT / "analysed" / entry.name, table=table, progress=False)
    else:
        remember_verdicts(entry)
        known = table if table.exists() else None
        result = run_study(study, out, jobs=arguments.jobs, continue_from=known)
    for figure in [*entry.results.glob("curve-*.svg"), *entry.results.glob("effects.svg")]:
        figure.unlink()
    command = f"glasshouse study {entry.published} --publish {entry.results}"
    publish_study(result.analysis, result.table, result.path, entry.results, command)
    if entry.is_new and not arguments.analyse:
        os.replace(entry.file, entry.published)


def main(arguments: argparse.Namespace) -> int:
    os.chdir(ROOT)
    entries = [e for e in list_entries() if not arguments.only or e.name in arguments.only]
    if arguments.analyse:
        entries = [entry for entry in entries if (entry.results / TABLE).exists()]
    if arguments.list or not entries:
        print("\n".join(f"{entry.name:28}{entry.file}" for entry in list_entries()))
        return 0 if arguments.list else 2
    work = {e.name: count_work(load_study(e.file), OUT / e.name) for e in entries}
    started, left_out = time.monotonic(), []
    for number, entry in enumerate(entries):
        done = sum(work[e.name] for e in entries[:number])
        elapsed, remaining = time.monotonic() - started, sum(work.values()) - done
        estimate = f", about {format_duration(elapsed / done * remaining)} left" if done else ""
        print(
            f"[{number + 1}/{len(entries)}] {entry.name} after {format_duration(elapsed)}{estimate}",
            flush=True,
        )
        try:
            for base in () if arguments.analyse else load_study(entry.file).bases:
                find_model(base)
        except GlasshouseError as error:
            left_out.append(f"{entry.name}: {error}")
            continue
        run_entry(entry, arguments)
    write_verdicts(list_entries())
    for line in left_out:
        print(f"not run: {line}")
    return 1 if left_out else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--analyse", action="store_true")
    parser.add_argument("--try", dest="attempt", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    try:
        sys.exit(main(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit("Interrupted; the same command continues.")
    except GlasshouseError as error:
        sys.exit(f"error: {error}")
