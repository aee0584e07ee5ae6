"""Which other studies use the same seeds from the same bases.

A seed fixes problem order, sampling and evaluation set, so a run of the same base with the same seed
is no new evidence: two studies that share it share their noise, and one of them may have suggested
what the other asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from glasshouse.config.yaml_files import read_yaml_file
from glasshouse.errors import ConfigError
from glasshouse.study.spec import Study, format_seeds, parse_study, study_name

PATTERNS = ("*.yaml", "studies/*/study.yaml", "training/*/study*.yaml")
"""Where other study files are searched: beside the file, and from up to three folders above it."""


def check_seeds_are_fresh(study: Study, file: Path) -> None:
    """Raise if another study file uses a seed of this one with the same base, unless one of the two
    names the other under `reuse_seeds`."""
    own = _base_seed_pairs(study)
    for other_file, other in _find_other_studies(file):
        shared = sorted({seed for _, seed in own & _base_seed_pairs(other)})
        name = study_name(other_file)
        if not shared or name in study.reuse_seeds or study_name(file) in other.reuse_seeds:
            continue
        raise ConfigError(
            f"{file}: seeds: {format_seeds(shared)} of the same bases are used by the study {name} "
            f"({other_file}). Choose others, such as `seeds: {{first: {_first_fresh_seed(file)}, "
            f"count: {len(study.seeds)}}}`, or allow it with `reuse_seeds: [{name}]`."
        )


def _base_seed_pairs(study: Study) -> set[tuple[str, int]]:
    return {(study.base_of(seed), seed) for seed in study.seeds}


def _first_fresh_seed(file: Path) -> int:
    """A round number above all seeds in use."""
    used = [max(study.seeds) for _, study in _find_other_studies(file)]
    return 100 * (1 + max(used, default=0) // 100)


def _find_other_studies(file: Path) -> Iterator[tuple[Path, Study]]:
    """Valid study files other than this one. Other YAML files are skipped."""
    file = file.resolve()
    folders: Sequence[Path] = file.parents[:3]
    candidates = [*file.parent.glob(PATTERNS[0])]
    candidates += [
        path for folder in folders for name in PATTERNS[1:] for path in folder.glob(name)
    ]
    for path in sorted({candidate.resolve() for candidate in candidates} - {file}):
        try:
            yield path, parse_study(read_yaml_file(path), str(path))
        except ConfigError:
            continue
