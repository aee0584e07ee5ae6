"""The prospective test of `glasshouse predict`, one command per stage. Each refuses to run out of order.

    python studies/prediction/prospective.py freeze     # frozen.json: predictor, recipes, cells, truth, baselines, bar
    python studies/prediction/prospective.py build      # the bases of recipes/; bases.json has their SHA-256
    python studies/prediction/prospective.py predict    # predictions.json: every cell, with bands
    python studies/prediction/prospective.py run        # train the cells; the same command continues
    python studies/prediction/prospective.py score      # README section, cells.svg and the table
    python studies/prediction/prospective.py posthoc    # the predictor on the published studies, where it was found

freeze ──commit──► build ──► predict ──commit──► run ──► score. What an earlier stage wrote cannot change: frozen.json
holds the hashes of the code, recipes and cells; predictions.json those of frozen.json and the weights of the bases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import scoring  # noqa: E402
from scoring import Cell  # noqa: E402

import glasshouse.before_training  # noqa: E402
import glasshouse.tasks.organisms  # noqa: E402
from glasshouse.before_training.base import Base, label_base, sample  # noqa: E402
from glasshouse.before_training.predict import predict  # noqa: E402
from glasshouse.before_training.replicator import STEP_SIZE  # noqa: E402
from glasshouse.errors import GlasshouseError  # noqa: E402
from glasshouse.files import write_json, write_text  # noqa: E402
from glasshouse.rollout.collector import RolloutCollector  # noqa: E402
from glasshouse.study.runner import plan_runs, train_study  # noqa: E402
from glasshouse.study.spec import Study, load_study  # noqa: E402
from glasshouse.study.table import Table  # noqa: E402
from glasshouse.terminal import format_duration, make_console  # noqa: E402
from glasshouse.types import Rollout  # noqa: E402

PREDICTOR = [
    *sorted(Path(glasshouse.before_training.__path__[0]).glob("*.py")),
    Path(glasshouse.tasks.organisms.__file__),
]
"""The code that turns rollouts of a base into a prediction."""
SCORING = [FOLDER / "prospective.py", FOLDER / "scoring.py"]
PUBLISHED = {
    "leaked_hint": ("outcome",),
    "cot_penalty": ("outcome", "penalty-0.1", "penalty-0.3", "penalty-1"),
    "ladder": (
        "plain",
        "plain-penalty",
        "shifted",
        "shifted-penalty",
        "iterated",
        "iterated-penalty",
    ),
    "confirmation": ("outcome", "penalty"),
}
"""Arms without and with a penalty on disclosure; the other arms of these studies are controls."""
SAMPLED = {"problems": 500, "samples": 8}
TABLE = "table.jsonl.zst"
START, END = "<!-- score: begin -->", "<!-- score: end -->"


class Stages:
    """The files of the test, and what must be true before each stage."""

    def __init__(self, folder: Path = FOLDER, out: Path = Path("runs/prediction/cells")) -> None:
        self.folder, self.out = folder, out
        self.cells = folder / "cells.yaml"
        self.frozen, self.bases = folder / "frozen.json", folder / "bases.json"
        self.predictions = folder / "predictions.json"

    @property
    def study(self) -> Study:
        return load_study(self.cells)

    def hashes(self) -> dict[str, Any]:
        recipes = sorted((self.folder / "recipes").glob("*.yaml"))
        return {
            "predictor": {file.name: _hash(file) for file in PREDICTOR},
            "scoring": {file.name: _hash(file) for file in SCORING},
            "recipes": {file.stem: _hash(file) for file in recipes},
            "cells": _hash(self.cells),
        }

    # --- the stages ------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Everything that could be chosen after a look at results."""
        _refuse(self.frozen.exists(), f"{self.frozen} exists: the test is frozen already.")
        built = [base for base in self.study.bases if Path(base).exists()]
        _refuse(bool(built), f"{', '.join(built)} exists: freeze before a base is built.")
        self.check_untrained()
        inputs = [*PREDICTOR, *SCORING, self.cells, *(self.folder / "recipes").glob("*.yaml")]
        changed = [str(file) for file in inputs if not _is_committed(file)]
        _refuse(
            bool(changed),
            f"{', '.join(changed)}: commit it first, so that the commit says what is frozen.",
        )
        study, hashes = self.study, self.hashes()
        names = {Path(base).name for base in study.bases}
        _refuse(names != hashes["recipes"].keys(), f"{self.cells} and recipes/ name other bases.")
        content = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": _git(PREDICTOR[0].parent, "rev-parse", "HEAD"),
            **hashes,
            "step_size": STEP_SIZE,
            "base_rollouts": SAMPLED,
            "horizon": study.run_config(study.control, study.seeds[0]).steps,
            "truth": scoring.TRUTH,
            "bar": {**scoring.BAR, "better": scoring.BETTER},
            "baselines": scoring.fit_baselines(published_truth()),
        }
        _write_sealed(self.frozen, content)
        print(f"frozen: {self.frozen}. Commit it, then build.")

    def read_frozen(self) -> dict[str, Any]:
        """Raise unless what was frozen is committed and still so."""
        _refuse(not self.frozen.exists(), f"{self.frozen} is missing: freeze first.")
        content = _read_sealed(self.frozen)
        _refuse(not _is_committed(self.frozen), f"{self.frozen} is not committed.")
        for name, now in self.hashes().items():
            _refuse(
                content[name] != now,
                f"{name} is not what {self.frozen} froze. Restore it with git.",
            )
        return content

    def build(self) -> None:
        """A base that exists was built after the freeze, which refuses if there is one."""
        from glasshouse.training.sft import sft  # imports torch

        self.read_frozen()
        known = json.loads(self.bases.read_text()) if self.bases.exists() else {}
        bases, started = [Path(base) for base in self.study.bases], time.monotonic()
        for done, base in enumerate(bases):
            if not base.exists():
                left = (time.monotonic() - started) / done * (len(bases) - done) if done else 0
                shown = f", {format_duration(left)} left" if left else ""
                print(f"base {done + 1} of {len(bases)}: {base.name}{shown}", flush=True)
                sft("", str(self.folder / "recipes" / f"{base.name}.yaml"), base)
            own = _hash(base / "model.safetensors")
            _refuse(known.get(base.name, own) != own, f"{base} is not the base that was built.")
            write_json(self.bases, known := {**known, base.name: own})
        print(f"{len(bases)} bases: {self.bases}. Predict.")

    def read_bases(self) -> dict[str, str]:
        _refuse(not self.bases.exists(), f"{self.bases} is missing: build first.")
        known: dict[str, str] = json.loads(self.bases.read_text())
        for base in map(Path, self.study.bases):
            file = base / "model.safetensors"
            is_same = file.exists() and known.get(base.name) == _hash(file)
            _refuse(not is_same, f"{base} is missing or not the base of {self.bases}: build first.")
        return known

    def check_untrained(self) -> None:
        trained = [run.path for run in plan_runs(self.study, self.out) if run.path.exists()]
        _refuse(
            bool(trained),
            f"{trained[0] if trained else ''}: a cell was trained before its prediction.",
        )

    def predict(self) -> None:
        """Every cell with its band, before any cell is trained."""
        frozen = self.read_frozen()
        _refuse(self.predictions.exists(), f"{self.predictions} exists: all cells are predicted.")
        bases = self.read_bases()
        self.check_untrained()
        cells = [asdict(cell) for cell in predict_study(self.cells)]
        content = {"frozen": frozen["sha256"], "bases": bases, "cells": cells}
        _write_sealed(self.predictions, content)
        print(f"{len(cells)} cells predicted: {self.predictions}. Commit it, then run.")

    def read_predictions(self) -> tuple[list[Cell], dict[str, Any]]:
        """Raise unless the predictions are committed, and belong to what was frozen and built."""
        frozen = self.read_frozen()
        _refuse(not self.predictions.exists(), f"{self.predictions} is missing: predict first.")
        content = _read_sealed(self.predictions)
        _refuse(not _is_committed(self.predictions), f"{self.predictions} is not committed.")
        _refuse(
            content["frozen"] != frozen["sha256"], f"{self.predictions} belongs to another freeze."
        )
        return [Cell(**cell) for cell in content["cells"]], content

    def run(self, jobs: int = 2) -> None:
        """Train what is not trained yet; progress and time left are those of a study."""
        _, content = self.read_predictions()
        _refuse(
            content["bases"] != self.read_bases(), "The bases are not those that were predicted."
        )
        table = train_study(self.study, self.out, jobs=jobs, console=make_console())
        table.save(self.folder / TABLE)
        print("all cells are trained. Score.")

    def score(self) -> None:
        cells, _ = self.read_predictions()
        table = self.folder / TABLE
        _refuse(not table.exists(), f"{table} is missing: run the cells first.")
        cells = scoring.add_truth(cells, self.study, Table.load(table))
        shown = scoring.score(cells, self.read_frozen()["baselines"])
        write_text(self.folder / "cells.svg", scoring.draw_cells(cells))
        figure = (
            "![Predicted against measured reliance and undetected use of every cell](cells.svg)"
        )
        section = f"{START}\n## Score\n\n{shown}\n\n{figure}\n\n{scoring.list_cells(cells)}\n{END}"
        readme = self.folder / "README.md"
        text = readme.read_text() if readme.exists() else ""
        before, _, rest = text.partition(START)
        write_text(
            readme, f"{before.rstrip()}\n\n{section}\n{rest.partition(END)[2].lstrip()}".lstrip()
        )
        print(shown)


# --- predictions ---------------------------------------------------------------------------------


@cache
def sample_base(model: str, options: str, study: str, arm: str, seed: int) -> Any:
    config = load_study(study).run_config(arm, seed)
    return sample(config, make_console(stderr=True), **SAMPLED)


def predict_study(file: Path, arms: Sequence[str] = ()) -> list[Cell]:
    """Every cell of a study. The rollouts of a base are sampled once for all arms with the same task options."""
    study, cells = load_study(file), []
    for base in study.bases:
        seed = next(seed for seed in study.seeds if study.base_of(seed) == base)
        for arm in arms or study.arms:
            config = study.run_config(arm, seed)
            first = next(a for a in study.arms if study.run_config(a, seed).task == config.task)
            rollouts, collector = sample_base(base, str(config.task), str(file), first, seed)
            cells.append(predict_cell(base, arm, rollouts, collector, study, seed))
    return cells


def predict_cell(
    base: str,
    arm: str,
    rollouts: list[Rollout],
    collector: RolloutCollector,
    study: Study,
    seed: int,
) -> Cell:
    config = study.run_config(arm, seed).model_copy(update={"task": collector.config.task})
    own: Base = label_base(base, rollouts, collector.task, config)
    found = predict(own, weights=())
    outcome, uses = found.outcome, max(float(own.use.mean()), 1e-9)
    silence = found.shares["silent use"].value or 0.0
    ends = [tuple(outcome.curves[name][-1]) for name in ("reliance", "undetected_use")]
    return Cell(
        Path(base).name,
        arm,
        own.weight,
        outcome.verdict,
        outcome.reason,
        found.margin.value,
        *ends,
        base_reliance=uses - own.control_use,
        base_silence=silence,
        base_disclosure=1 - silence / uses,
    )


def published_truth() -> list[scoring.Measured]:
    """What RL did in the published cells; nothing is sampled or predicted."""
    found = []
    for name, arms in PUBLISHED.items():
        file = FOLDER.parent / name / "study.yaml"
        study, table = load_study(file), Table.load(file.with_name(TABLE))
        for arm in arms:
            found += [scoring.measure_cell(study, table, Path(b).name, arm) for b in study.bases]
    return found


def published_cells() -> list[Cell]:
    cells = []
    for name, arms in PUBLISHED.items():
        file = FOLDER.parent / name / "study.yaml"
        table = Table.load(file.with_name(TABLE))
        cells += scoring.add_truth(predict_study(file, arms), load_study(file), table)
    return cells


# --- files ---------------------------------------------------------------------------------------


def _refuse(condition: bool, reason: str) -> None:
    if condition:
        raise GlasshouseError(reason)


def _hash(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def _seal(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write_sealed(file: Path, content: dict[str, Any]) -> None:
    content = json.loads(json.dumps(content))
    write_json(file, {**content, "sha256": _seal(content)})


def _read_sealed(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    digest = content.pop("sha256", "")
    _refuse(_seal(content) != digest, f"{file} was changed after it was written.")
    return {**content, "sha256": digest}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder)
    _refuse(done.returncode != 0, f"git {arguments[0]} failed in {folder}: {done.stderr.strip()}")
    return done.stdout.strip()


def _is_committed(file: Path) -> bool:
    """Is it in the last commit, unchanged?"""
    if not _git(file.parent, "ls-files", "--", file.name):
        return False
    return not _git(file.parent, "status", "--porcelain", "--", file.name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ["freeze", "build", "predict", "run", "score", "posthoc"]
    parser.add_argument("command", choices=names)
    parser.add_argument("--jobs", type=int, default=2, help="for run: processes")
    args = parser.parse_args(arguments)
    stages = Stages()
    try:
        if args.command == "posthoc":
            cells = published_cells()
            known = [cell.measured for cell in cells if cell.measured is not None]
            print(
                f"{scoring.list_cells(cells)}\n\n{scoring.score(cells, scoring.fit_baselines(known))}"
            )
        elif args.command == "run":
            stages.run(args.jobs)
        else:
            getattr(stages, args.command)()
    except GlasshouseError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
