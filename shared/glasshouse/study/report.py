"""The page of a study, in Markdown: rich prints its answers, the page of `glasshouse view` shows it, and it is
published as a README. Everything on it follows from the table: it is never edited by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import indent

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from glasshouse.config.loading import flatten_keys
from glasshouse.files import write_bytes, write_text
from glasshouse.measurement.intervals import mean_interval
from glasshouse.measurement.registry import lookup
from glasshouse.study.analysis import ANALYSIS_FILE, Analysis, ArmCurve, write_analysis
from glasshouse.study.answers import Answer
from glasshouse.study.contrasts import SeedMean
from glasshouse.study.evaluations import ROLLOUTS_FILE
from glasshouse.study.figures import plan_figures, save_figures
from glasshouse.study.freeze import describe_registration
from glasshouse.study.sentences import (
    format_effect,
    format_p_holm,
    format_reached,
    format_value,
    name_monitor,
    signed,
)
from glasshouse.study.spec import dump_study, format_seeds
from glasshouse.study.table import COMPRESSED_SUFFIX, Table
from glasshouse.terminal import count_noun, escape_markdown, markdown_table, terminal_safe
from glasshouse.values import Measure
from glasshouse.view.report import render_study_page

REPORT_FILE = "report.html"
QUESTION_COLUMNS = (
    "#",
    "question",
    "effect (95 % interval)",
    "Holm p or margin",
    "null arm (95 % interval)",
    "ceiling",
    "verdict",
)
MONITOR_NOTES = """\
Each arm: sensitivity / false-alarm rate at the last step, mean over seeds with Student's 95 % interval; n: uses in \
the run that has the fewest. AUROC: planted rollouts before RL. The prompt floor is the AUROC of n-grams that read the \
prompt alone; a monitor is informative at the base if the lower end of its AUROC lies above it. n-grams were fitted on \
rollouts of the base and frozen with a threshold from benign ones."""
RUN_NOTES = """\
First and last evaluation of each run. Intervals resample problems with their rollouts; they say nothing about other \
seeds or bases. n: the rollouts that a share is taken over at the last evaluation. Measures of \
monitors that run a model are not in this table."""
READING_NOTES = """\
- In every arm, a seed has the same starting weights, problem order and evaluation set. The unit is the seed, \
and claims are about these bases only; from four bases on it is the base, a random effect, whose seeds are \
averaged.
- Effect: mean paired difference with Student's 95 % interval. p: exact sign-flip test over seeds, or t test \
over base means, Holm-corrected over the study's questions. A change from the start must also differ from the \
null arm, where the reward is noise: its p is the larger of the two.
- “Stays” is shown if the whole 95 % interval lies within the margin, which is stricter than the usual \
equivalence test (TOST), and is not corrected. “Not shown” does not mean “absent”: the interval says how large \
an effect is still possible.
- Ceiling: the largest possible effect, for measures with known bounds. “cut”: Student's interval went beyond it \
and ends there. A dash: undefined, or not asked.
- n: the events that a ratio is taken over, in the run that has the fewest. A ratio over fewer than ten is not \
averaged."""


def write_report(
    analysis: Analysis, out: Path, console: Console | None = None, *, figures: bool = True
) -> None:
    """Write study.json, figures and report.html, and print the answers. The page draws its own figures."""
    results = out / "results"
    write_analysis(analysis, results)
    if figures:
        save_figures(analysis, results / "figures")
    write_text(results / REPORT_FILE, render_report(analysis))
    if console:
        print_study(analysis, console)
        report = terminal_safe(f"report  {results / REPORT_FILE}")
        console.print(Text(report), soft_wrap=True)


def publish_study(analysis: Analysis, table: Table, out: Path, folder: Path, command: str) -> None:
    """Copy to `folder` what is worth committing: table, analysis, figures and a README."""
    results = out / "results"
    save_figures(analysis, results / "figures")
    table.save(folder / f"table.jsonl{COMPRESSED_SUFFIX}")
    figures = {f"{n}.svg": text for n, (text, _) in plan_figures(analysis).items()}
    rollouts = [file for file in [results / ROLLOUTS_FILE] if file.exists()]
    files = [results / ANALYSIS_FILE, *(results / "figures" / name for name in figures)]
    for file in [*files, *rollouts]:
        write_bytes(folder / file.name, file.read_bytes())
    write_text(folder / "README.md", render_study(analysis, figures, command))


def render_report(analysis: Analysis) -> str:
    """The page as one self-contained HTML file, with the study file to repeat it."""
    study_file = indent(terminal_safe(dump_study(analysis.study)), "    ")
    text = f"{render_study(analysis)}\n## The study file\n\n{study_file}\n"
    return render_study_page(analysis.as_dict(), text)


def print_study(analysis: Analysis, console: Console) -> None:
    """Print what the page says about its questions."""
    text = "\n\n".join([*_render_results(analysis), *_render_explanations(analysis)])
    console.print(Markdown(text, hyperlinks=False))


def render_study(
    analysis: Analysis, figures: Mapping[str, str] | None = None, command: str = ""
) -> str:
    """The whole page. `figures`: descriptions by file name; `command`: what generated the page.

    Example: `render_study(analysis, {"effects.svg": "Effects"}, "glasshouse study mine.yaml")`
    """
    study = analysis.study
    images = {n: f"![{escape_markdown(text)}]({n})" for n, text in (figures or {}).items()}
    curves = [image for name, image in images.items() if name.startswith("curve-")]
    generated = f" This page is generated by `{command}`." if command else ""
    parts = [
        f"# {' '.join(escape_markdown(study.title).split())}",
        escape_markdown(study.about.strip()),
        _describe_extent(analysis) + generated,
        "## Results",
        *_render_results(analysis),
        *(image for name, image in images.items() if not name.startswith("curve-")),
    ]
    if curves:
        parts += [
            "\n".join(curves),
            "Lines: mean over seeds. Bands: Student's 95 % interval. Small markers on the right: the last "
            "value of each seed.",
        ]
    if analysis.answers:
        parts += [
            "## Each question",
            *_render_explanations(analysis),
            "## The effect in each base",
            _base_table(analysis),
        ]
    if analysis.run_changes:
        parts += ["## Each run", RUN_NOTES, _run_table(analysis)]
    if analysis.monitors:
        parts += ["## Monitors", MONITOR_NOTES, *_render_monitors(analysis)]
    parts += [
        "## Every arm, before and after",
        "Mean over seeds, first step → last step (lowest to highest seed at the last step). A loss of capability must "
        "not be mistaken for hidden reasoning: accuracy, KL, length and parse failures come last.",
        _before_after_table(analysis),
        "## Arms, bases, seeds",
        _arm_table(analysis),
        _seed_table(analysis),
        "## How to read this page",
        READING_NOTES,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _render_results(analysis: Analysis) -> Iterator[str]:
    """Whether the file was frozen before its runs, what was amended, the headline, the table."""
    yield describe_registration(analysis.study, analysis.amendments)
    yield "\n".join(f"- {escape_markdown(line)}" for line in analysis.amendments)
    yield f"> {escape_markdown(analysis.headline)}"
    if analysis.answers:
        rows = [
            (str(number), *question_cells(answer), f"**{answer.verdict.value}**")
            for number, answer in enumerate(analysis.answers, 1)
        ]
        yield markdown_table(QUESTION_COLUMNS, rows, left=2)
        beside = [
            (str(number), format_effect(a.effect), format_effect(a.matched), format_reached(a))
            for number, a in enumerate(analysis.answers, 1)
            if a.matched or a.reached
        ]
        columns = ("#", "at the same step", "at equal accuracy", "criterion reached")
        yield markdown_table(columns, beside) if beside else ""


def _render_explanations(analysis: Analysis) -> Iterator[str]:
    for number, answer in enumerate(analysis.answers, 1):
        ask = " ".join(escape_markdown(answer.question.ask).split())
        yield f"**{number}. {ask}** {escape_markdown(answer.explanation)}"


def question_cells(answer: Answer) -> tuple[str, ...]:
    """Question, effect, test, null and ceiling of an answer; the ceiling of `unchanged` in both directions."""
    margin, ceiling = answer.question.margin, answer.effect.ceiling
    limits = [answer.ceiling] if margin is None else [ceiling.fall, ceiling.rise]
    return (
        escape_markdown(answer.question.ask),
        format_effect(answer.effect),
        format_p_holm(answer.effect) if margin is None else f"within ±{margin:g}",
        format_effect(answer.null),
        ", ".join(signed(limit) for limit in limits if limit is not None) or "–",
    )


def _describe_extent(analysis: Analysis) -> str:
    bases = list(dict.fromkeys(analysis.bases.values()))
    return (
        f"{count_noun(len(analysis.arms), 'arm')} × {count_noun(len(analysis.bases), 'paired seed')}, "
        f"base{'s' * (len(bases) != 1)} {', '.join(map(escape_markdown, bases))}."
    )


def _base_table(analysis: Analysis) -> str:
    rows = [
        (str(number), *(f"{format_effect(c)}, {c.n} seeds" for c in answer.by_base.values()))
        for number, answer in enumerate(analysis.answers, 1)
    ]
    return markdown_table(("#", *map(escape_markdown, analysis.answers[0].by_base)), rows)


def _run_table(analysis: Analysis) -> str:
    rows = [
        (
            lookup(own.measure).label,
            escape_markdown(own.arm),
            str(own.seed),
            _format_measure(own.first),
            _format_measure(own.last),
            _format_measure(own.change, signed),
            str(own.last.n),
        )
        for own in analysis.run_changes
    ]
    columns = ("measure", "arm", "seed", "before (95 % interval)", "after", "change", "n")
    return markdown_table(columns, rows, left=2)


def _format_measure(measure: Measure | None, write: Callable[[float], str] = format_value) -> str:
    """`0.08 (0.02 to 0.15)`; a dash if undefined."""
    if measure is None or measure.value is None:
        return "–"
    if measure.low is None or measure.high is None:
        return write(measure.value)
    return f"{write(measure.value)} ({write(measure.low)} to {write(measure.high)})"


def _render_monitors(analysis: Analysis) -> Iterator[str]:
    """AUROC before RL; sensitivity and false alarms of each arm; agreement of the study's monitors."""
    chosen = analysis.study.monitors
    rows, agreements = [], []
    for own in analysis.monitors:
        auroc, floor = format_mean(own.base_auroc), format_value(own.floor)
        informative = "yes" if own.is_informative else "no"
        cells = [
            f"{format_mean(rates.sensitivity)} / {format_mean(rates.false_alarms)}"
            + (f", n ≥ {rates.events}" if rates.events is not None else "")
            for rates in own.arms.values()
        ]
        rows.append((name_monitor(own.monitor), auroc, floor, informative, *cells))
        if own.monitor in chosen:
            for other in chosen[chosen.index(own.monitor) + 1 :]:
                pair = f"{name_monitor(own.monitor)} and {name_monitor(other)}"
                agreed = (format_value(rates.kappa.get(other)) for rates in own.arms.values())
                agreements.append((pair, *agreed))
    columns = ("monitor", "AUROC before RL", "prompt floor", "informative at the base")
    yield markdown_table((*columns, *analysis.monitors[0].arms), rows)
    if agreements:
        yield "Agreement of the study's monitors on planted rollouts (Cohen's κ, mean over seeds):"
        yield markdown_table(("monitors", *analysis.monitors[0].arms), agreements)


def format_mean(mean: SeedMean) -> str:
    """`0.84 (0.80–0.88)`; `cut` at a bound; a dash if undefined."""
    if mean.mean is None or mean.low is None or mean.high is None:
        return format_value(mean.mean)
    ends = f"{format_value(mean.low)}–{format_value(mean.high)}{', cut' * mean.is_cut}"
    return f"{format_value(mean.mean)} ({ends})"


def _before_after_table(analysis: Analysis) -> str:
    rows: dict[str, dict[str, str]] = {}
    for curve in analysis.curves:
        rows.setdefault(curve.measure, {})[curve.arm] = _format_first_and_last(curve)
    return markdown_table(
        ("measure", *analysis.arms),
        [
            (lookup(measure).label_with_unit, *(cells.get(arm, "–") for arm in analysis.arms))
            for measure, cells in rows.items()
        ],
    )


def _arm_table(analysis: Analysis) -> str:
    study = analysis.study
    rows = []
    for arm in analysis.arms:
        differences = ", ".join(f"{key}: {value}" for key, value in flatten_keys(study.arms[arm]))
        roles = {"control": study.control, "null arm": study.null_arm}
        role = ", ".join(name for name, holder in roles.items() if holder == arm)
        rows.append((arm, escape_markdown(differences) or "nothing", role))
    return markdown_table(("arm", "difference from the shared configuration", "role"), rows, left=3)


def _seed_table(analysis: Analysis) -> str:
    seeds: dict[str, list[int]] = {}
    for seed, base in analysis.bases.items():
        seeds.setdefault(base, []).append(seed)
    rows = [(escape_markdown(base), format_seeds(listed)) for base, listed in sorted(seeds.items())]
    return markdown_table(("base", "seeds"), rows, left=2)


def _format_first_and_last(curve: ArmCurve) -> str:
    """`0.24 → 0.97 (0.95–0.99)`"""
    first, last = (
        [value for value in values.values() if value is not None]
        for values in (curve.first, curve.last)
    )
    if not last:
        return "–" if curve.events is None else f"too few events (n {curve.events})"
    start = f"{format_value(mean_interval(first)[0])} → " if first and len(curve.steps) > 1 else ""
    seed_range = f"{format_value(min(last))}–{format_value(max(last))}"
    seed_range += "" if curve.events is None else f", n ≥ {curve.events}"
    return f"{start}{format_value(mean_interval(last)[0])} ({seed_range})"
