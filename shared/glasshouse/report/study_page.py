"""A study as one HTML file that needs nothing else: what is shown first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glasshouse.report import study_figures, study_table
from glasshouse.report.html import document, gallery, section, table, text
from glasshouse.store.atomic_files import write_text
from glasshouse.study import spec
from glasshouse.study.analysis import Analysis, Answered, Line
from glasshouse.study.questions import COMPANIONS, Mean
from glasshouse.study.sentences import claim, plain, short
from glasshouse.study.verdict import Verdict, pairs_needed

FILE = "report.html"
NAMES = {
    "accuracy": "accuracy, greedy",
    "kl": "KL from the start",
    "cot_characters": "CoT length, characters",
    "sampled_length": "completion length, tokens",
    "rule_none": "parse failures",
}
"""Companions as people read them."""


def write(analysis: Analysis, results: Path, versions: Mapping[str, str]) -> Path:
    """results/report.html, whole or not at all."""
    write_text(results / FILE, page(analysis, versions))
    return results / FILE


def page(analysis: Analysis, versions: Mapping[str, str]) -> str:
    pictures = study_figures.embedded(analysis)
    effects = pictures.pop("effects", "")
    parts = [
        _head(analysis),
        _verdicts(analysis),
        _questions(analysis, effects),
        section("Over training", _curves(list(pictures.values()))),
        _before_and_after(analysis),
        _arms(analysis),
        _reading(analysis),
        _reproduce(analysis, versions),
    ]
    return document(analysis.study.title, "\n".join(parts))


# --- sections --------------------------------------------------------------------------------


def _head(analysis: Analysis) -> str:
    arms, seeds = len(analysis.arms), len(analysis.bases)
    bases = sorted(set(analysis.bases.values()))
    extent = (
        f"{arms} arm{'s' * (arms != 1)} × {seeds} seed{'s' * (seeds != 1)}; "
        f"base{'s' * (len(bases) != 1)}: {', '.join(bases)}"
    )
    return (
        f"<h1>{text(analysis.study.title)}</h1><p>{text(analysis.study.about)}</p>"
        f'<p class="soft">{text(extent)}</p>'
    )


def _verdicts(analysis: Analysis) -> str:
    """The headline, a line a claim."""
    parts = []
    for verdict in Verdict:
        told = [claim(a.answer, verdict) for a in analysis.answers if a.verdict is verdict]
        items = "".join(f"<li>{text(one)}</li>" for one in told)
        if told:
            parts.append(f"<p><strong>{verdict.value}</strong></p><ul>{items}</ul>")
    return f'<div class="verdict">{"".join(parts) or text(analysis.headline)}</div>'


def _questions(analysis: Analysis, effects: str) -> str:
    if not analysis.answers:
        return ""
    rows = [study_table.cells(answered) for answered in analysis.answers]
    listed = "".join(_question(answered) for answered in analysis.answers)
    drawn = f'<figure class="effects">{effects}</figure>' if effects else ""
    told = table(study_table.HEAD, rows)
    return section("Questions", f'<div class="questions">{told}</div>{drawn}{listed}')


def _question(answered: Answered) -> str:
    a = answered.answer
    found = [(name, a.companions) for name in COMPANIONS]
    rows = [
        (NAMES[name], *(_mean(means.get(name)) for means in beside.values()))
        for name, beside in found
        if any(name in means for means in beside.values())
    ]
    more = [(base, short(c), str(c.paired.n)) for base, c in a.by_base.items()]
    beside = table((f"at {a.place}", *a.companions), rows) if rows else ""
    bases = table(("base", "effect (95 % interval)", "seeds"), more)
    return (
        f"<h3>{text(a.question.ask)}</h3><p>{text(answered.sentence)}</p>"
        f"<details><summary>Beside it: accuracy, KL, length, parse failures; each base</summary>"
        f"{beside}{bases}</details>"
    )


def _curves(pictures: list[str]) -> str:
    note = (
        "Lines: the mean over seeds; bands: Student's 95 % interval of that mean; small marks at "
        "the right: each seed's last value."
    )
    return f'<div class="curves">{gallery(pictures)}</div><p class="soft">{note}</p>'


def _before_and_after(analysis: Analysis) -> str:
    """A row a measure, a column an arm."""
    rows = []
    for measure in dict.fromkeys(line.measure for line in analysis.lines):
        lines = [analysis.line(arm, measure) for arm in analysis.arms]
        rows.append((NAMES.get(measure, measure), *(_change(line) for line in lines)))
    note = (
        "Means over seeds at the first and at the last step; in parentheses the last one's 95 % "
        "interval. What is not among the study's own measures stands beside them, so that a loss of "
        "capability is not mistaken for hiding."
    )
    inner = table(("", *analysis.arms), rows) + f'<p class="soft">{note}</p>'
    return section("Before and after", inner)


def _arms(analysis: Analysis) -> str:
    study = analysis.study
    rows = []
    for arm in analysis.arms:
        differs = (
            ", ".join(f"{key}: {value}" for key, value in _leaves(study.arms[arm])) or "nothing"
        )
        roles = [name for name in ("control", "null") if getattr(study, name) == arm]
        rows.append((arm, differs, ", ".join(roles)))
    pairs: dict[str, list[str]] = {}
    for seed, base in sorted(analysis.bases.items()):
        pairs.setdefault(base, []).append(str(seed))
    bases = [(base, ", ".join(seeds)) for base, seeds in sorted(pairs.items())]
    told = table(("arm", "what differs from the common configuration", "role"), rows)
    return section(
        "Arms, bases, seeds", f'<div class="left">{told}{table(("base", "seeds"), bases)}</div>'
    )


def _reading(analysis: Analysis) -> str:
    tests = analysis.tests
    items = [
        "The unit is the seed. A pair has the same starting weights, problem order and evaluation set "
        "in every arm; the seeds are of RL on these bases, and the claims are about these bases.",
        "Effect: mean difference within pairs with Student's 95 % interval. p: exact sign-flip test, "
        f"corrected by Holm over {tests} test{'s' * (tests != 1)}: each question's effect and, for a "
        "change against the start, the arm − the null arm.",
        f"So many tests need {pairs_needed(tests)} pairs at least; with fewer, nothing can be shown.",
        "Null arm: the same effect where the reward is noise. A change against the start counts only "
        "where it also differs from the null arm.",
        "“Stays” is shown if the whole 95 % interval lies within the margin: stricter than the usual "
        "equivalence test (TOST), which takes the 90 % interval. It is not corrected for their number.",
        "Ceiling: the room that was left, for measures with known bounds. A dash: undefined.",
        "“Not shown” is not “absent”: the interval says how large an effect may still be.",
    ]
    return section("How to read it", f"<ul>{''.join(f'<li>{text(i)}</li>' for i in items)}</ul>")


def _reproduce(analysis: Analysis, versions: Mapping[str, str]) -> str:
    listed = "".join(f"<dt>{text(k)}</dt><dd>{text(str(v))}</dd>" for k, v in versions.items())
    how = (
        "Save the study below as study.yaml and run it where these versions are installed: table.jsonl "
        "comes out the same, byte for byte, and everything on this page follows from it."
    )
    command = "glasshouse study study.yaml --out again --check table.jsonl"
    return section(
        "How to reproduce",
        f"<p>{text(how)}</p><pre>{command}</pre><dl>{listed}</dl><details><summary>study.yaml</summary>"
        f"<pre>{text(spec.dump(analysis.study))}</pre></details>",
    )


# --- cells -----------------------------------------------------------------------------------


def _change(line: Line | None) -> str:
    """`0.24 → 0.96 (0.94 to 0.98)`"""
    if line is None:
        return "–"
    end = Mean(mean=line.mean[-1], low=line.low[-1], high=line.high[-1], n=line.n[-1])
    return f"{plain(line.mean[0])} → {_mean(end)}" if len(line.steps) > 1 else _mean(end)


def _mean(found: Mean | None) -> str:
    if found is None or found.mean is None:
        return "–"
    if found.low is None:
        return plain(found.mean)
    return f"{plain(found.mean)} ({plain(found.low)} to {plain(found.high)})"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
