"""A study as one self-contained HTML file: the verdicts first, then what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.config.yaml_files import flatten_keys
from glasshouse.files import write_text
from glasshouse.measurement.registry import companion_measures, lookup
from glasshouse.study import figures as study_figures
from glasshouse.study.analysis import Analysis, Answer, ArmCurve, describe_test
from glasshouse.study.freeze import describe_registration, list_amendments
from glasshouse.study.questions import SeedMean
from glasshouse.study.sentences import format_effect, format_value, summarize_claim
from glasshouse.study.spec import Study, dump_study
from glasshouse.study.terminal_table import QUESTION_COLUMNS, question_cells
from glasshouse.study.verdict import Verdict, pairs_needed
from glasshouse.view.html import render_page

REPORT_FILE = "report.html"


def write_study_report(analysis: Analysis, results: Path, versions: Mapping[str, str]) -> Path:
    """Write results/report.html atomically."""
    write_text(results / REPORT_FILE, render_study_report(analysis, versions))
    return results / REPORT_FILE


def render_study_report(analysis: Analysis, versions: Mapping[str, str]) -> str:
    study = analysis.study
    figures = study_figures.render_svg_figures(analysis)
    return render_page(
        "study_page.html.j2",
        title=study.title,
        about=study.about,
        extent=_describe_extent(analysis),
        registration=describe_registration(study),
        amendments=list_amendments(study),
        headline=analysis.headline,
        claims_by_verdict=_claims_by_verdict(analysis),
        question_columns=QUESTION_COLUMNS,
        question_rows=[question_cells(answer) for answer in analysis.answers],
        effects_figure=figures.pop("effects", ""),
        questions=[_question_context(answer) for answer in analysis.answers],
        curves=list(figures.values()),
        before_after_columns=("measure", *analysis.arms),
        before_after_rows=_before_after_rows(analysis),
        arm_rows=[_arm_row(study, arm) for arm in analysis.arms],
        base_rows=_base_rows(analysis),
        over_bases=analysis.over_bases,
        test=describe_test(analysis),
        num_tests=analysis.num_tests,
        pairs_needed=pairs_needed(analysis.num_tests),
        num_seeds=len(analysis.bases),
        smallest_p=2.0 ** (1 - len(analysis.bases)),
        versions=dict(versions),
        study_yaml=dump_study(study),
    )


def _describe_extent(analysis: Analysis) -> str:
    arms, seeds = len(analysis.arms), len(analysis.bases)
    bases = sorted(set(analysis.bases.values()))
    return (
        f"{arms} arm{'s' * (arms != 1)} × {seeds} seed{'s' * (seeds != 1)}; "
        f"base{'s' * (len(bases) != 1)}: {', '.join(bases)}"
    )


def _claims_by_verdict(analysis: Analysis) -> dict[str, list[str]]:
    claims: dict[str, list[str]] = {}
    for verdict in Verdict:
        for answer in analysis.answers:
            if answer.verdict is verdict:
                claim = summarize_claim(answer.comparison, verdict)
                claims.setdefault(verdict.value, []).append(claim)
    return claims


def _question_context(answer: Answer) -> dict[str, Any]:
    """What the template prints about one question."""
    comparison = answer.comparison
    companions = comparison.companions  # by arm, then by measure
    return {
        "ask": comparison.question.ask,
        "explanation": answer.explanation,
        "companion_columns": (f"at {comparison.point}", *companions),
        "companion_rows": [
            (
                lookup(name).label_with_unit,
                *(_format_mean(means.get(name)) for means in companions.values()),
            )
            for name in companion_measures()
            if any(name in means for means in companions.values())
        ],
        "base_rows": [
            (base, format_effect(contrast), str(contrast.paired.n))
            for base, contrast in comparison.by_base.items()
        ],
    }


def _before_after_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """One row per measure, one column per arm."""
    return [
        (
            lookup(measure).label_with_unit,
            *(_format_first_and_last(analysis.curve(arm, measure)) for arm in analysis.arms),
        )
        for measure in analysis.measures
    ]


def _arm_row(study: Study, arm: str) -> tuple[str, str, str]:
    differences = ", ".join(f"{key}: {value}" for key, value in flatten_keys(study.arms[arm]))
    roles = {"control": study.control, "null arm": study.null_arm}
    return (
        arm,
        differences or "nothing",
        ", ".join(role for role, name in roles.items() if name == arm),
    )


def _base_rows(analysis: Analysis) -> list[tuple[str, str]]:
    seeds: dict[str, list[str]] = {}
    for seed, base in sorted(analysis.bases.items()):
        seeds.setdefault(base, []).append(str(seed))
    return [(base, ", ".join(listed)) for base, listed in sorted(seeds.items())]


def _format_first_and_last(curve: ArmCurve | None) -> str:
    """`0.24 → 0.96 (0.94 to 0.98)`"""
    if curve is None:
        return "–"
    last = SeedMean(mean=curve.mean[-1], low=curve.low[-1], high=curve.high[-1], n=curve.n[-1])
    first = f"{format_value(curve.mean[0])} → " if len(curve.steps) > 1 else ""
    return first + _format_mean(last)


def _format_mean(mean: SeedMean | None) -> str:
    if mean is None or mean.mean is None:
        return "–"
    if mean.low is None:
        return format_value(mean.mean)
    return f"{format_value(mean.mean)} ({format_value(mean.low)} to {format_value(mean.high)})"
