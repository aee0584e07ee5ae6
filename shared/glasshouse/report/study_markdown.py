"""A study's published page: what was asked, what came out, how to make it again, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from glasshouse.report.study_table import HEAD, cells
from glasshouse.statistics import mean_interval
from glasshouse.study.analysis import Analysis, Line
from glasshouse.study.sentences import plain


def page(analysis: Analysis, figures: Mapping[str, str], command: str) -> str:
    """Everything in it follows from the table: it is written by the command, not by hand.

    Example: `page(analysis, {"effects.png": "Effects"}, "glasshouse study studies/mine.yaml")`
    """
    study = analysis.study
    seeds = len(analysis.bases)
    bases = ", ".join(f"`{base}`" for base in dict.fromkeys(analysis.bases.values()))
    parts = [
        f"# {study.title}",
        study.about.strip(),
        f"{len(analysis.arms)} arms × {seeds} paired seeds over the bases {bases}. "
        f"This page is written by `{command}`.",
        "## What came out",
        analysis.headline,
        "\n".join(_questions(analysis)),
        "A question's p is an exact sign-flip test over seeds, after Holm over the study's questions; against "
        "the start it must also hold against the null arm. How to read it: docs/studies_reading.md.",
        *(f"![{told}]({name})" for name, told in figures.items()),
        "## Each question",
        *(f"**{a.answer.question.ask}** {a.sentence}" for a in analysis.answers),
        "## Every arm, before and after",
        "Mean over seeds (lowest to highest seed).",
        "\n".join(_ends(analysis)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _questions(analysis: Analysis) -> Iterator[str]:
    yield f"| | {' | '.join(HEAD)} |"
    yield "|" + "---|" * (len(HEAD) + 1)
    for number, answered in enumerate(analysis.answers, 1):
        *told, verdict = cells(answered)
        yield f"| {number} | {' | '.join(told)} | **{verdict}** |"


def _ends(analysis: Analysis) -> Iterator[str]:
    measures = dict.fromkeys(line.measure for line in analysis.lines)
    yield f"| | {' | '.join(analysis.arms)} |"
    yield "|" + "---|" * (len(analysis.arms) + 1)
    for measure in measures:
        lines = [analysis.line(arm, measure) for arm in analysis.arms]
        yield f"| {measure} | {' | '.join('–' if x is None else _end(x) for x in lines)} |"


def _end(line: Line) -> str:
    """`0.24 → 0.97 (0.95–0.99)`"""
    first, last = (_known(values.values()) for values in (line.first, line.last))
    if not last:
        return "–"
    start = f"{plain(mean_interval(first)[0])} → " if first and len(line.steps) > 1 else ""
    return f"{start}{plain(mean_interval(last)[0])} ({plain(min(last))}–{plain(max(last))})"


def _known(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]
