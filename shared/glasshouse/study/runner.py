"""Train the runs of a study, arms × seeds, collect their rows in one table, and report it.

    OUT/study.yaml                  the study, with overrides
    OUT/runs/<arm>/seed-<s>/        a run directory; finished once results/rows.jsonl exists
    OUT/results/table.jsonl         the rows of all runs
    OUT/results/evaluations.jsonl.zst  the evaluation rollouts of all runs with an organism

Can be killed at any time and resumed: a run's rows are written atomically, and only then are its
checkpoints and rollouts deleted.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from glasshouse.config.loading import dump_yaml
from glasshouse.errors import ConfigError, RunError, did_you_mean, import_extra
from glasshouse.files import check_output_folder, write_text
from glasshouse.monitors.fitted import FITTING
from glasshouse.runs.run_directory import acquire_lock, is_locked, load_events
from glasshouse.study.analysis import Analysis, analyse_study
from glasshouse.study.evaluations import (
    ROLLOUTS_FILE,
    Row,
    keep_rollouts,
    load_rollouts,
    save_rollouts,
)
from glasshouse.study.process_pool import ProcessPool
from glasshouse.study.records import gives_same_bits, is_same_run
from glasshouse.study.report import write_report
from glasshouse.study.spec import ROWS_FILE, Study, StudyRun, dump_study, load_study, study_name
from glasshouse.study.table import (
    StudyRow,
    Table,
    collect_values,
    compare_tables,
    measure_again,
    to_rows,
)
from glasshouse.terminal import make_console, shows_bars, terminal_safe


class StudyProgress:
    """Without a terminal (in a pipe) only the lines are printed; on a quiet console nothing."""

    def __init__(self, console: Console) -> None:
        self.last_steps: dict[str, int] = {}
        """Last step of each run, by its name."""
        self.warned: set[str] = set()
        """Kinds of warnings that were printed."""
        self.progress = Progress(
            TextColumn("[bold]study"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            console=console,
            disable=console.quiet or not shows_bars(console),
            transient=True,
            speed_estimate_period=600,  # runs differ in speed: estimate over several of them
        )

    def on_start(self, runs: Sequence[StudyRun], finished: int) -> None:
        self.total, self.finished = len(runs), finished
        if finished:
            self.print(f"{finished} of {len(runs)} runs are already finished.", "dim")
        steps = sum(run.config.steps for run in runs if not run.is_finished)
        self.bar = self.progress.add_task("", total=steps, line=f"{finished}/{self.total} runs")

    def on_step(self, run: StudyRun, step: int) -> None:
        self.last_steps[run.name] = max(step, self.last_steps.get(run.name, 0))
        self.progress.update(self.bar, completed=sum(self.last_steps.values()))

    def on_run_finished(self, run: StudyRun, seconds: float, path: str) -> None:
        self.finished += 1
        self.on_step(run, run.config.steps)
        self.progress.update(self.bar, line=f"{self.finished}/{self.total} runs")
        about = f"({run.base}, {seconds:.0f} s, {path})"
        self.print(f"{self.finished:>3}/{self.total}  {run.name} {about}")

    def on_warning(self, run: StudyRun, kind: str, text: str) -> None:
        """Print the first warning of each kind."""
        if kind not in self.warned:
            self.warned.add(kind)
            self.print(f"{run.name}: {text}", "yellow")

    def print(self, line: str, style: str = "") -> None:
        self.progress.console.print(Text(terminal_safe(line), style), soft_wrap=True)


STUDY_FILE, TABLE_FILE = "study.yaml", "table.jsonl"
KEPT_RESULTS = {
    "summary.json", "metrics.jsonl", "events.jsonl", "curves.svg", "monitor.json", ROWS_FILE, ROLLOUTS_FILE,
}  # fmt: skip
"""Result files of a finished run that are not deleted; config.yaml and NOTES.md are kept as well."""
LOCK_WAIT_SECONDS = 10.0
"""How long the workers of a killed command may take to save their runs and release the locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The table of a study, and the answers to its questions."""

    study: Study
    path: Path
    """The folder: runs/, and results/ with table, study.json, figures and report.html."""
    table: Table
    analysis: Analysis
    warnings: Mapping[str, int]
    """By kind of warning, such as unread answers, the number of runs that have it."""


def run_study(
    study: Study | str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 2,
    keep_all: bool = False,
    table: str | Path | None = None,
    remeasure: bool = False,
    continue_from: str | Path | None = None,
    progress: bool = True,
) -> StudyResult:
    """Train the runs that are not finished, then answer the study's questions and write table,
    figures and report. `continue_from`: a table whose runs count as finished. With `table`, train nothing and analyse
    that file; with `remeasure`, after measuring the rollouts beside it again.

    Example: `run_study("my-study.yaml", jobs=4).analysis.answers`
    """
    if isinstance(study, str | Path):
        out = out or default_folder(study)
        study = load_study(study)
    folder = Path(out) if out else Path("runs") / "studies" / "study"
    console = make_console() if progress else None
    warnings: dict[str, int] = {}
    if table is not None:
        rows = Table.load(Path(table)).subset(study.arms, study.seeds)
        if remeasure:
            rows = measure_again(rows, load_rollouts(Path(table).with_name(ROLLOUTS_FILE)), study)
    else:
        known = Path(continue_from) if continue_from else None
        rows = train_study(
            study, folder, jobs=jobs, keep_all=keep_all, known=known, console=console
        )
        warnings = count_warnings(plan_runs(study, folder))
    file = Path(table).with_name(ROLLOUTS_FILE) if table else folder / "results" / ROLLOUTS_FILE
    kept = load_rollouts(file) if file.exists() and not study.questions else {}
    analysis = analyse_study(study, rows, kept)
    write_report(analysis, folder, console, figures=table is None)
    return StudyResult(study=study, path=folder, table=rows, analysis=analysis, warnings=warnings)


def check_study(result: StudyResult, committed: Table, file: str) -> tuple[int, str]:
    """An exit code and a sentence: 0 for equal rows; 3 for other rows with equal verdicts, where some run cannot give
    the same bits (by torch on another CPU); else 1."""
    same, sentence = compare_tables(result.table, committed, file)
    if same:
        return 0, sentence
    runs = {(row.arm, row.seed) for row in result.table}
    records = [(result.table.records.get(run), committed.records.get(run)) for run in runs]
    if all(gives_same_bits(*pair) for pair in records):
        return 1, sentence
    old = analyse_study(result.study, committed.subset(result.study.arms, result.study.seeds))
    verdicts = [[answer.verdict for answer in own.answers] for own in (old, result.analysis)]
    differing = [
        number for number, pair in enumerate(zip(*verdicts, strict=True), 1) if pair[0] != pair[1]
    ]
    if differing:
        numbers = ", ".join(map(str, differing))
        return 1, f"{sentence}\nThe verdicts on questions {numbers} differ."
    return 3, f"{sentence}\nOther software or another CPU computed {file}; all verdicts are equal."


def default_folder(file: str | Path) -> Path:
    """Where a study file's results go: runs/studies/<name of the study>."""
    return Path("runs") / "studies" / study_name(Path(file))


def plan_runs(study: Study, out: Path) -> list[StudyRun]:
    """All runs, in the order in which they are trained; raises if `out` cannot be a folder."""
    check_output_folder("--out", out)
    runs = []
    for arm, seed in study.arm_seed_pairs():
        path = out / "runs" / arm / f"seed-{seed}"
        config, base = study.run_config(arm, seed, path), study.base_of(seed)
        prepared = study.prepare.get(arm)
        if prepared:
            config = config.model_copy(update={"model": str(out / "bases" / arm / base)})
        runs.append(StudyRun(arm, base, seed, path, config, prepared))
    return runs


def train_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 2,
    keep_all: bool = False,
    known: Path | None = None,
    console: Console | None = None,
) -> Table:
    """Train the runs that neither `out` nor a `known` table has, and write the table; the console shows the progress.

    Example: `train_study(load_study("mine.yaml"), Path("runs/studies/mine"), jobs=4)`
    """
    runs = plan_runs(study, out)
    if any(run.config.evaluate.reserve for run in runs if not run.is_finished):
        import_extra("monitor", FITTING, "sklearn.linear_model")  # before the first run
    known_arms = _load_known_arms(study, out)
    console = console or Console(quiet=True)
    shown = StudyProgress(console)
    with shown.progress, ProcessPool(jobs) as pool, _announce_stop(shown):
        copied = find_known_runs(runs, known, shown) if known else {}
        unfinished = [run for run in runs if not run.is_finished and run.name not in copied]
        if any(run.preparation for run in unfinished):
            out.mkdir(parents=True, exist_ok=True)
            write_text(out / STUDY_FILE, dump_study(study))
            prepare_bases(unfinished, shown)
        # build one run per new arm and base, so that any error is reported before training starts
        new = {(r.arm, r.base): r for r in reversed(unfinished) if r.arm not in known_arms}
        for _ in pool.train(reversed(new.values()), only_check=True):
            pass
        out.mkdir(parents=True, exist_ok=True)
        with acquire_lock(out):
            write_text(out / STUDY_FILE, dump_study(study))
            for run in runs:
                if run.name in copied:
                    _write_run(run, *copied[run.name])
            shown.on_start(runs, len(runs) - len(unfinished))
            for run in runs:
                if run.is_finished:
                    _check_measures(study, run.arm, _load_run(run).rows)
                    _prune(run, keep_all)  # the command may have been killed while pruning
            _wait_for_locks(unfinished)
            for run, kind, value in pool.train(unfinished):
                if kind == "step":
                    shown.on_step(run, value)
                elif kind == "restarted":
                    shown.print(value, "yellow")
                elif kind == "warning":
                    shown.on_warning(run, value[0] or value[1], value[1])
                else:
                    kept = keep_rollouts(run.path, run.arm, run.seed)
                    values = collect_values(run.path, kept, run.config)
                    rows = list(to_rows(run.arm, run.base, run.seed, values))
                    _check_measures(study, run.arm, rows)
                    _write_run(run, Table(rows, {(run.arm, run.seed): value["record"]}), kept)
                    _prune(run, keep_all)
                    shown.on_run_finished(run, value["seconds"], value["record"]["path"])
            table = Table.join(_load_run(run) for run in runs)
            table.save(out / "results" / TABLE_FILE)
            files = [run.path / "results" / ROLLOUTS_FILE for run in runs]
            by_run = [
                own for file in files if file.exists() for own in load_rollouts(file).values()
            ]
            if by_run:
                save_rollouts(
                    out / "results" / ROLLOUTS_FILE, [row for own in by_run for row in own]
                )
        for kind, count in count_warnings(runs).items():
            shown.print(f"Warning in {count} of {len(runs)} runs: {kind}", "yellow")
    return table


@contextmanager
def _announce_stop(shown: StudyProgress) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        shown.print("Stopping after the steps in progress, to save them. Ctrl-C again: at once.")
        raise


def prepare_bases(runs: Sequence[StudyRun], shown: StudyProgress) -> None:
    """Continue the bases of prepared arms by supervised training; finished ones are skipped."""
    from glasshouse.training.sft import sft  # imports torch

    for run in runs:
        folder, settings = Path(run.config.model), run.preparation
        if settings is None or folder.exists():
            continue
        shown.print(
            f"continuing {run.base} for {run.arm}: {settings.steps} supervised steps", "dim"
        )
        recipe = folder.parent / "recipe.yaml"  # its name keys the demonstrations: one in every arm
        recipe.parent.mkdir(parents=True, exist_ok=True)
        write_text(recipe, dump_yaml({"mixture": settings.mixture}))
        overrides = {"steps": settings.steps, "learn.learning_rate": settings.learning_rate}
        sft(
            run.base, str(recipe), folder, overrides, batch_size=settings.batch_size, progress=False
        )


def find_known_runs(
    runs: Sequence[StudyRun], file: Path, shown: StudyProgress
) -> dict[str, tuple[Table, list[Row]]]:
    """The rows and rollouts of a published table, by the name of the run, if its configuration and model are those of
    the study today."""
    table, rollouts = Table.load(file), file.with_name(ROLLOUTS_FILE)
    kept = load_rollouts(rollouts) if rollouts.exists() else {}
    measured, found, others = {(row.arm, row.seed) for row in table}, {}, 0
    for run in runs:
        place = run.arm, run.seed
        if run.is_finished or place not in measured:
            continue
        record = table.records.get(place)
        if record and is_same_run(record, run):
            found[run.name] = table.subset([run.arm], [run.seed]), kept.get(place, [])
        else:
            others += 1
    if others:
        shown.print(f"{others} runs of {file} have another configuration or model: trained again.")
    return found


def _write_run(run: StudyRun, table: Table, kept: Sequence[Row]) -> None:
    """Write what is left of a finished run; with its rows it counts as finished."""
    results = run.path / "results"
    results.mkdir(parents=True, exist_ok=True)
    if kept:
        save_rollouts(results / ROLLOUTS_FILE, kept)
    table.save(results / ROWS_FILE)


def _load_run(run: StudyRun) -> Table:
    return Table.load(run.path / "results" / ROWS_FILE)


def count_warnings(runs: Sequence[StudyRun]) -> dict[str, int]:
    """By kind of warning, such as unread answers, the number of runs that have it in their events."""
    kinds = Counter[str]()
    for run in runs:
        warnings = load_events(run.path, "warning")
        kinds.update({warning.get("warning") or warning["text"] for warning in warnings})
    return dict(kinds)


def _load_known_arms(study: Study, out: Path) -> set[str]:
    """The arms that were started before; raises if the directory holds another study."""
    if not (out / STUDY_FILE).exists():
        if out.exists() and any(p.name[0] != "." for p in out.iterdir()):
            raise RunError(
                f"{out} already contains files that are not a study's. Choose another --out, or "
                "remove it."
            )
        return set()
    previous = load_study(out / STUDY_FILE)
    if differences := previous.run_differences(study):
        raise RunError(
            f"{out} holds another study: {'; '.join(differences)}. Choose another --out, or remove it."
        )
    return set(previous.arms)


def _check_measures(study: Study, arm: str, rows: Sequence[StudyRow]) -> None:
    """Every measure that the study draws or asks about must exist, at the step in question."""
    steps: dict[str, set[int]] = {}
    for row in rows:
        steps.setdefault(row.measure, set()).add(row.step)
    required: list[tuple[str, str, int | None]] = [("measures", n, None) for n in study.measures]
    required += [
        (f"questions.{number}", name, question.at)
        for number, question in enumerate(study.questions)
        if arm in (question.arm, study.reference_of(question))
        for name in filter(None, (*study.measures_of(question), question.against_measure))
    ]
    for where, name, at in required:
        if name not in steps:
            raise ConfigError(
                f'{where}: "{name}" is not a measure of these runs.{did_you_mean(name, steps)}'
            )
        if at is not None and at not in steps[name]:
            measured = ", ".join(map(str, sorted(steps[name])))
            raise ConfigError(
                f'{where}: "{name}" was measured at steps {measured}, not at step {at}. Change `at` or '
                "evaluate.every."
            )


def _prune(run: StudyRun, keep_all: bool) -> None:
    """Delete what the table does not need."""
    if keep_all:
        return
    results = run.path / "results"
    for folder, kept in (
        (run.path, {"config.yaml", "NOTES.md", "results"}),
        (results, KEPT_RESULTS),
    ):
        for entry in [entry for entry in folder.iterdir() if entry.name not in kept]:
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _wait_for_locks(runs: Sequence[StudyRun]) -> None:
    """Workers of a killed command may still be saving; opening a run raises if its lock is held longer."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while any(is_locked(run.path) for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
