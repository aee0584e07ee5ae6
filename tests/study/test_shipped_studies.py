"""The shipped studies: each file runs in a tiny version, and each published analysis follows from its
table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool

from glasshouse.measurement.evaluate import fill_task_options, make_evaluation_monitors
from glasshouse.models.packaged import PACKAGED_MODELS
from glasshouse.models.policy import load_policy
from glasshouse.rollout.penalties import Penalties
from glasshouse.study.analysis import ANALYSIS_FILE, analyse_study, write_analysis
from glasshouse.study.answers import Verdict
from glasshouse.study.evaluations import ROLLOUTS_FILE, keep_rollouts, load_rollouts
from glasshouse.study.figures import plan_figures
from glasshouse.study.records import hash_settings
from glasshouse.study.report import render_study
from glasshouse.study.runner import plan_runs
from glasshouse.study.spec import Study, load_study, study_name
from glasshouse.study.table import Table, collect_values, to_rows
from glasshouse.tasks.base import make_task
from glasshouse.training.build import validate_config

pytestmark = pytest.mark.xdist_group(
    "shipped studies"
)  # one worker makes the expensive fixtures once
ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "studies").glob("*/study.yaml"))
TRAINED = [file for file in STUDIES if not load_study(file).prepare]
"""Those whose bases need no supervised training first."""
EXPERIMENTS = sorted((ROOT / "training").glob("*/study*.yaml"))
UNFINISHED = {"hint.qwen"}
"""Frozen studies that have not computed all of their runs."""
PUBLISHED = {file: file.parent for file in STUDIES} | {
    file: file.parent / file.stem.replace("study", "results")
    for file in EXPERIMENTS
    if study_name(file) not in UNFINISHED
}
"""The folder of the published results of each study."""
EDITIONS = sorted(
    f for folder in ("studies", "training") for f in (ROOT / folder).glob("*/edition*.yaml")
)
"""Studies of the next edition, which were not run yet."""
SMALL = [
    "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=40", "evaluate.problems=6",
    "evaluate.samples=1", "monitor.at_end=true", "monitor.problems=4", "monitor.samples=1",
    "monitor.threshold_problems=4",
]  # fmt: skip


def make_tiny_study(file: Path) -> Study:
    """Two seeds in one of the studies, so that it has pairs."""
    question_steps = [q.at for q in load_study(file).questions if isinstance(q.at, int)]
    steps = [f"steps={max(question_steps, default=2)}"]
    steps += [f"evaluate.every={min(question_steps, default=2)}"]
    return load_study(file, [*SMALL, *steps], seeds=2 if file == STUDIES[0] else 1)


@pytest.fixture(scope="module")
def tiny_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Table]:
    """A table of each tiny study. One run of each is really trained and monitored; its rows stand for
    the other arm and seed too, since every run of a study measures the same."""
    folder, tables = tmp_path_factory.mktemp("tiny"), {}
    for file in TRAINED:
        runs = plan_runs(make_tiny_study(file), folder / study_name(file))
        trained = runs[0]
        assert list(InProcessPool(1).train([trained]))
        kept = keep_rollouts(trained.path, trained.arm, trained.seed)
        values = collect_values(trained.path, kept, trained.config)
        rows = list(to_rows(trained.arm, trained.base, trained.seed, values))
        tables[file] = Table(
            row._replace(arm=run.arm, base=run.base, seed=run.seed) for run in runs for row in rows
        )
    return tables


@pytest.mark.parametrize(
    "file", [*PUBLISHED, *EDITIONS], ids=lambda file: file.parent.name + file.stem
)
def test_every_arm_of_a_shipped_study_can_be_built(file: Path) -> None:
    study = load_study(file)
    for arm in study.arms:
        config = study.run_config(arm, 0, Path("unused"))
        # the weights of real models are not here; any model without task options stands for them
        is_real = config.model in PACKAGED_MODELS or config.model.startswith("models/")
        model = str(ROOT / "models" / "mock") if is_real else config.model
        config = fill_task_options(config, load_policy(model).card)
        task = make_task(config.task.name, config.task.options)
        validate_config(config)
        monitors = make_evaluation_monitors(config, task)
        built = Penalties.from_config(config.reward.penalties, task, monitors)
        assert len(built.penalties) == len(config.reward.penalties)


@pytest.mark.parametrize("file", TRAINED, ids=study_name)
def test_a_tiny_version_of_a_shipped_study_measures_all_that_it_asks_about(
    file: Path, tiny_tables: dict[Path, Table]
) -> None:
    study = make_tiny_study(file)
    answers = analyse_study(study, tiny_tables[file]).answers
    assert answers
    assert {a.verdict for a in answers} <= {Verdict.NOT_SHOWN, Verdict.UNDEFINED}
    assert not any("not at step" in a.explanation for a in answers)
    too_few = any("Too few seeds" in a.explanation for a in answers)
    assert too_few == (len(study.seeds) == 2)


@pytest.mark.parametrize("file", PUBLISHED, ids=study_name)
def test_what_is_published_is_that_of_its_table_and_says_if_its_seeds_are_too_few(
    file: Path, tmp_path: Path
) -> None:
    study, folder = load_study(file), PUBLISHED[file]
    if file in STUDIES:
        assert len(study.seeds) >= 8
        assert len(study.bases) >= 2
        assert study.null_arm
    table = Table.load(folder / "table.jsonl.zst")
    assert {(row.arm, row.seed) for row in table} == set(study.arm_seed_pairs())
    rollouts = {} if study.questions else load_rollouts(folder / ROLLOUTS_FILE)
    analysis = analyse_study(study, table, rollouts)
    if 2.0 ** (1 - len(study.seeds)) * len(study.questions) > 0.05:
        assert all("Too few seeds" in answer.explanation for answer in analysis.answers)
    written = write_analysis(analysis, tmp_path)
    assert written.read_bytes() == (folder / ANALYSIS_FILE).read_bytes()
    figures = {f"{name}.svg": text for name, (text, _) in plan_figures(analysis).items()}
    assert {path.name for path in folder.glob("*.svg")} == set(figures)
    paths = [path.relative_to(ROOT) for path in (file, folder)]
    command = f"glasshouse study {paths[0]} --publish {paths[1]}"
    assert (folder / "README.md").read_text() == render_study(analysis, figures, command)


def test_an_unfinished_study_continues_the_runs_that_it_has(tmp_path: Path) -> None:
    for file in [file for file in EXPERIMENTS if study_name(file) in UNFINISHED]:
        study, table = load_study(file), Table.load(file.parent / "unfinished" / "table.jsonl.zst")
        runs = {(run.arm, run.seed): run for run in plan_runs(study, tmp_path)}
        assert 0 < len(table.records) < len(runs)
        assert study.frozen is not None
        for place, record in table.records.items():
            assert record["config"] == hash_settings(runs[place])
            assert record["model"] == study.frozen.content["base_sha256"][runs[place].base]


def test_a_published_table_is_analysed_without_training_and_without_torch(tmp_path: Path) -> None:
    """In another process, in which nothing has imported torch yet."""
    folder = ROOT / "studies" / "leaked_hint"
    table, again, published = folder / "table.jsonl.zst", tmp_path / "again", tmp_path / "published"
    arguments = ["study", folder / "study.yaml", "--table", table, "--check", table]
    arguments += ["--out", again, "--publish", published]
    program = (
        "import sys; from glasshouse.cli.app import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "identical: " in process.stdout
    assert (published / ANALYSIS_FILE).read_bytes() == (folder / ANALYSIS_FILE).read_bytes()
    assert Table.load(published / "table.jsonl.zst").text() == Table.load(table).text()
    assert {path.name for path in published.iterdir()} == {
        path.name
        for path in folder.iterdir()
        if path.suffix != ".yaml" and path.name != ROLLOUTS_FILE  # rollouts come from runs
    }
