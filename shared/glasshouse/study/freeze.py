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

from glasshouse.config.loading import (
    dump_yaml,
    flatten_keys,
    merge_layers,
    parse_yaml,
    read_yaml_file,
)
from glasshouse.errors import ConfigError
from glasshouse.files import write_text
from glasshouse.study.power import describe_power
from glasshouse.study.records import hash_content, hash_model
from glasshouse.study.spec import (
    Frozen,
    Study,
    format_seeds,
    load_study,
    parse_study,
    study_name,
)
from glasshouse.study.table import Table
from glasshouse.terminal import count_noun

COMMENT = (
    "# Written by `glasshouse study freeze`. Later changes of this file are reported as amendments."
)
STUDY_FILES = tuple(
    f"{folder}/*/{kind}*.yaml"
    for folder in ("studies", "training")
    for kind in ("study", "edition")
)
"""Where other study files are, from up to three folders above a study file; and beside it."""


OTHER_KEYS: dict[str, Any] = {
    "evaluation_problems": "shared",
    "null_at": "step",
    "monitors": [],
    "prepare": {},
}
"""Further keys of a study that are registered, with their defaults."""


def freeze_study(
    file: Path,
    today: datetime.date | None = None,
    *,
    pilot: Path | None = None,
    again: bool = False,
) -> Frozen:
    """Append the section `frozen` to a study file; the rest of the file stays as it is. `pilot`: a table whose rows of
    the study's measures are registered as known before. `again`: also if it was frozen before, which stays on record.

    Example: `freeze_study(Path("studies/mine/study.yaml")).sha256`
    """
    from glasshouse.models.sources import source_commit  # imports torch

    study, earlier = load_study(file), list[dict[str, Any]]()
    text = file.read_text().rstrip()
    if (old := study.frozen) is not None:
        if not again:
            raise ConfigError(
                f"{file} was frozen on {old.date}. Later changes are reported as amendments. To register it anew "
                "before its first run, with this freeze on record: --again."
            )
        changed = {"commit": old.content.get("commit", ""), "changed_after": list_amendments(study)}
        earlier = [*old.earlier, {"date": str(old.date), "sha256": old.sha256, **changed}]
        text = text.partition(f"\n{COMMENT}\n")[0].rstrip()
    check_seeds_are_fresh(study, file)
    content = registered_content(study) | {
        "commit": source_commit(),
        "base_sha256": {base: hash_model(base) for base in study.bases},
        "pilot": _list_pilot(pilot, study) if pilot else [],
        "power": describe_power(study),
    }
    date = today or datetime.datetime.now(datetime.UTC).date()
    frozen = Frozen(
        date=date, sha256=hash_content(content), content=content, earlier=tuple(earlier)
    )
    section = dump_yaml({"frozen": frozen.model_dump(mode="json")}, width=100)
    text = f"{text}\n\n{COMMENT}\n{section}"
    parsed = parse_study(parse_yaml(text), str(file))
    if parsed.frozen != frozen or list_amendments(parsed):
        raise ConfigError(f"{file} cannot be frozen: a section at its end would not be read back.")
    write_text(file, text)
    return frozen


def _list_pilot(file: Path, study: Study) -> list[str]:
    """One line per row of the study's measures in a pilot's table."""
    named = set(study.named_measures())
    return [
        f"{row.arm} {row.base} seed {row.seed} step {row.step}: {row.measure} {row.value}"
        for row in Table.load(file)
        if row.measure in named
    ]


def registered_content(study: Study) -> dict[str, Any]:
    """What a study registers, in one canonical form: settings as dotted keys, of an arm only those that
    differ from `config` (None for those that it removes), references and null arms filled in, defaults
    left out."""
    shared = dict(flatten_keys(merge_layers([study.config])))
    arms = {}
    for arm in study.arms:
        settings = dict(flatten_keys(merge_layers([study.config, study.arms[arm]])))
        changed = {k: v for k, v in settings.items() if k not in shared or shared[k] != v}
        arms[arm] = changed | {k: None for k in shared if k not in settings}
    content = {
        "bases": study.bases,
        "seeds": study.seeds,
        "config": shared,
        "arms": arms,
        "questions": [
            {
                **question.model_dump(exclude_defaults=True),
                "against": study.reference_of(question),
                "null_arm": study.null_arm_of(question),
            }
            for question in study.questions
        ],
        "reuse_seeds": study.reuse_seeds,
        **study.model_dump(exclude_defaults=True, include=set(OTHER_KEYS)),
    }
    copy: dict[str, Any] = json.loads(json.dumps(content))  # tuples become lists
    return copy


def list_amendments(study: Study, table: Table | None = None) -> list[str]:
    """What differs from the frozen content, one line each; empty if nothing does or if it is not frozen. With the
    table, also bases whose weights differ from the registered ones.

    Example: `["config.steps: 30 → 50", "arms.kl: added"]`
    """
    if study.frozen is None:
        return []
    old = dict(_list_entries(study.frozen.content))
    new = dict(_list_entries(registered_content(study)))
    changes = []
    for key in dict.fromkeys([*old, *new]):
        if key not in new:
            changes.append(f"{key}: removed (was {_show(old[key])})")
        elif key not in old:
            changes.append(f"{key}: added ({_show(new[key])})")
        elif old[key] != new[key]:
            changes.append(f"{key}: {_show(old[key])} → {_show(new[key])}")
    registered = study.frozen.content.get("base_sha256", {})
    for (_, seed), record in table.records.items() if table is not None else ():
        base = study.base_of(seed)
        if base in registered and record["model"] != registered[base]:
            changes.append(f"{base}: trained from other weights than the registered ones")
    return list(dict.fromkeys(changes))


def describe_registration(study: Study, amendments: Sequence[str] = ()) -> str:
    """Whether the file was frozen, when and with which code, and how many amendments there are."""
    if study.frozen is None:
        return (
            "The study file was not frozen: questions, seeds and horizon may have been chosen after a "
            "look at results."
        )
    commit, earlier = study.frozen.content.get("commit"), len(study.frozen.earlier)
    stamp = f"Frozen on {study.frozen.date} (sha256 {study.frozen.sha256[:12]}"
    stamp += f", code {commit})" if commit else ")"
    stamp += f", after {count_noun(earlier, 'earlier freeze')}" if earlier else ""
    if not amendments:
        return f"{stamp}; no amendments."
    return f"{stamp}; {count_noun(len(amendments), 'amendment')} since then:"


def _list_entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that is compared; a question is identified by its text."""
    for key in ("bases", "seeds", "reuse_seeds"):
        yield key, content.get(key, [])
    for key, default in OTHER_KEYS.items():
        yield key, content.get(key, default)
    sections = {"config": content.get("config", {})}
    sections |= {f"arms.{arm}": keys for arm, keys in content.get("arms", {}).items()}
    sections |= {f'question "{q["ask"]}"': q for q in content.get("questions", [])}
    for name, section in sections.items():
        yield name, "all of it"
        yield from ((f"{name}.{key}", value) for key, value in section.items() if key != "ask")


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def check_seeds_are_fresh(study: Study, file: Path) -> None:
    """Raise if another study file uses a seed of this one with the same base, unless one of the two
    names the other under `reuse_seeds`."""
    others = list(_find_other_studies(file))
    fresh = 100 * (1 + max((max(other.seeds) for _, other in others), default=0) // 100)
    for other_file, other in others:
        shared = [
            s for s in study.seeds if s in other.seeds and study.base_of(s) == other.base_of(s)
        ]
        name = study_name(other_file)
        if shared and name not in study.reuse_seeds and study_name(file) not in other.reuse_seeds:
            raise ConfigError(
                f"{file}: seeds: {format_seeds(shared)} of the same bases are used by the study {name} "
                f"({other_file}). Choose others, such as `seeds: {{first: {fresh}, "
                f"count: {len(study.seeds)}}}`, or allow it with `reuse_seeds: [{name}]`."
            )


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
