"""Freeze a study file before its runs, and list what was changed afterwards.

`freeze_study` appends a copy of what the study registers (bases, seeds, config with the horizon
`steps`, arms, questions) with its hash and the date. The file can still be changed; every difference
from the copy is then an amendment, which all reports list.

A frozen study needs fresh seeds. A seed fixes problem order, sampling and evaluation set, so a run of
the same base with the same seed is no new evidence: two studies that share it share their noise, and
one of them may have suggested what the other asks.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.config.loading import merge_layers
from glasshouse.config.yaml_files import dump_yaml, flatten_keys, parse_yaml, read_yaml_file
from glasshouse.errors import ConfigError
from glasshouse.files import write_text
from glasshouse.study.spec import (
    Frozen,
    Study,
    check_seeds_per_base,
    format_seeds,
    hash_content,
    load_study,
    parse_study,
    study_name,
)

COMMENT = (
    "# Written by `glasshouse study freeze`. Later changes of this file are reported as amendments."
)
OPTIONS = ("evaluation_problems",)
"""Keys of a study that are registered unless they have their default value."""
STUDY_FILES = ("studies/*/study.yaml", "training/*/study*.yaml")
"""Where other study files are, from up to three folders above a study file; and beside it."""
NOT_FROZEN = (
    "The study file was not frozen: questions, seeds and horizon may have been chosen after a look at "
    "results."
)


def freeze_study(file: Path, today: datetime.date | None = None) -> Frozen:
    """Append the section `frozen` to a study file; the rest of the file stays as it is.

    Example: `freeze_study(Path("studies/mine/study.yaml")).sha256`
    """
    study = load_study(file)
    if study.frozen is not None:
        raise ConfigError(
            f"{file} was frozen on {study.frozen.date}. It is frozen once: later changes are reported "
            "as amendments. For a new study, copy the file without its section `frozen`."
        )
    check_seeds_per_base(study)
    check_seeds_are_fresh(study, file)
    content = registered_content(study)
    frozen = Frozen(
        date=today or datetime.datetime.now(datetime.UTC).date(),
        sha256=hash_content(content),
        content=content,
    )
    section = dump_yaml({"frozen": frozen.model_dump(mode="json")}, width=100)
    text = f"{file.read_text().rstrip()}\n\n{COMMENT}\n{section}"
    parsed = parse_study(parse_yaml(text), str(file))
    if parsed.frozen != frozen or list_amendments(parsed):
        raise ConfigError(f"{file} cannot be frozen: a section at its end would not be read back.")
    write_text(file, text)
    return frozen


def registered_content(study: Study) -> dict[str, Any]:
    """What a study registers, in one canonical form: settings as dotted keys, of an arm only those
    that differ from `config`, references and null arms filled in, defaults left out."""
    shared = dict(flatten_keys(merge_layers([study.config])))
    content = {
        "bases": study.bases,
        "seeds": study.seeds,
        "config": shared,
        "arms": {
            arm: _differing(
                shared,
                dict(flatten_keys(merge_layers([study.config, study.arms[arm]]))),
            )
            for arm in study.arms
        },
        "questions": [
            {
                **question.model_dump(exclude_defaults=True),
                "against": study.reference_of(question),
                "null_arm": study.null_arm_of(question),
            }
            for question in study.questions
        ],
        "reuse_seeds": study.reuse_seeds,
        **{
            key: getattr(study, key)
            for key in OPTIONS
            if key in study.model_dump(exclude_defaults=True)
        },
    }
    copy: dict[str, Any] = json.loads(json.dumps(content))  # tuples become lists
    return copy


def list_amendments(study: Study) -> list[str]:
    """What differs from the frozen content, one line each; empty if nothing does or if it is not frozen.

    Example: `["config.steps: 30 → 50", "arms.kl: added"]`
    """
    if study.frozen is None:
        return []
    before, after = study.frozen.content, registered_content(study)
    old, new = dict(_list_entries(before)), dict(_list_entries(after))
    changes = []
    for key in dict.fromkeys([*old, *new]):
        if key not in new:
            changes.append(f"{key}: removed (was {_show(old[key])})")
        elif key not in old:
            changes.append(f"{key}: added ({_show(new[key])})")
        elif old[key] != new[key]:
            changes.append(f"{key}: {_show(old[key])} → {_show(new[key])}")
    return changes


def describe_registration(study: Study) -> str:
    """Whether the file was frozen, when, and how many amendments there are."""
    if study.frozen is None:
        return NOT_FROZEN
    amendments = list_amendments(study)
    stamp = f"Frozen on {study.frozen.date} (sha256 {study.frozen.sha256[:12]})"
    if not amendments:
        return f"{stamp}; no amendments."
    return f"{stamp}; {len(amendments)} amendment{'s' * (len(amendments) != 1)} since then:"


def _list_entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that is compared; a question is identified by its text."""
    for key in ("bases", "seeds", "reuse_seeds"):
        yield key, content.get(key, [])
    for key in OPTIONS:
        yield key, content.get(key, Study.model_fields[key].default)
    for key, value in content.get("config", {}).items():
        yield f"config.{key}", value
    for arm, settings in content.get("arms", {}).items():
        yield f"arms.{arm}", True
        for key, value in settings.items():
            yield f"arms.{arm}.{key}", value
    for question in content.get("questions", []):
        name = f'question "{question["ask"]}"'
        yield name, True
        for key, value in question.items():
            if key != "ask":
                yield f"{name}, {key}", value


def _differing(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an arm that `config` does not have; None for those that the arm removes."""
    changed = {k: v for k, v in settings.items() if k not in shared or shared[k] != v}
    return changed | {k: None for k in shared if k not in settings}


def _show(value: Any) -> str:
    if value is True:
        return "yes"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return str(value)


# --- fresh seeds ------------------------------------------------------------------------------


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
    found = {path.resolve() for path in file.parent.glob("*.yaml")}
    for folder in file.parents[:3]:
        found |= {path.resolve() for name in STUDY_FILES for path in folder.glob(name)}
    for path in sorted(found - {file}):
        try:
            yield path, parse_study(read_yaml_file(path), str(path))
        except ConfigError:
            continue
