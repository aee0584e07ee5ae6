"""`glasshouse demo`: the two runs of the study demo.yaml, and what they show."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from glasshouse.errors import RunError
from glasshouse.files import write_bytes, write_text
from glasshouse.runs.rollout_log import LOG
from glasshouse.study.demo_comparison import (
    CURVES,
    LABELS,
    Curve,
    DemoComparison,
    compare_demo_runs,
    format_percent,
    format_share,
)
from glasshouse.study.demo_display import ARM_LABELS, DemoDisplay, sparkline
from glasshouse.study.figures import LIGHT_COLOURS
from glasshouse.study.runner import plan_runs, train_study
from glasshouse.study.spec import Study, dump_study, load_study
from glasshouse.terminal import shell_command, terminal_safe
from glasshouse.view import figures
from glasshouse.view.html import escape_markdown, markdown_table, render_markdown_page

CONTROL, TREATED = ARM_LABELS
PICTURE = "demo.png"
MARKERS = "os"


def demo_study(overrides: Sequence[str] = ()) -> Study:
    """The study of the demo. Overrides apply to both arms.

    Example: `demo_study(["steps=4"])`
    """
    return load_study(Path(__file__).with_name("demo.yaml"), overrides)


def run_demo(
    out: Path, overrides: Sequence[str] = (), console: Console | None = None
) -> DemoComparison:
    """Train what is not finished, write `demo.png` and `demo.html` to `out`, and print the answer.

    After an interruption the same call resumes; once both runs are finished it only reports.

    Example: `run_demo(Path("runs/demo")).sentences()`
    """
    console = console or Console(highlight=False, emoji=False)
    study = demo_study(overrides)
    train_study(study, out, jobs=2, keep_rollouts=True, progress=DemoDisplay(study, console))
    runs = {run.arm: run.path for run in plan_runs(study, out)}
    for path in runs.values():
        if not (path / "results" / LOG).is_file():
            raise RunError(
                f"{path} has no rollouts any more, so there is nothing to show. Remove "
                f"{out} or choose another --out, and run the demo again."
            )
    comparison = compare_demo_runs(runs[CONTROL], runs[TREATED])
    image = io.BytesIO()
    figure = draw_curves(comparison, LIGHT_COLOURS)
    figure.savefig(image, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    write_bytes(out / PICTURE, image.getvalue())
    write_text(out / "demo.html", render_demo_page(comparison, study))
    answer = [_render_chart(comparison), *_render_answer(comparison)]
    console.print(Markdown("\n\n".join(answer), hyperlinks=False))
    view = shell_command(["glasshouse", "view", out, "--open"])
    study_command = shell_command(["glasshouse", "study", out / "study.yaml", "--seeds", "8"])
    for line in (
        "",
        f"picture  {out / PICTURE}",
        f"page     {out / 'demo.html'}",
        f"next     {view}     # every rollout, in the browser",
        f"         {study_command}     # the same over 8 seeds, with a verdict",
    ):
        console.print(terminal_safe(line), markup=False, soft_wrap=True)
    return comparison


def render_demo_page(comparison: DemoComparison, study: Study) -> str:
    """demo.html: the answer, the picture, and all rates with their intervals."""
    ends = {
        "before training": comparison.outcome[0],
        ARM_LABELS[CONTROL]: comparison.outcome[-1],
        ARM_LABELS[TREATED]: comparison.monitor[-1],
    }
    rates = [
        (label, *(format_share(e.measure(m)) for e in ends.values())) for m, label in LABELS.items()
    ]
    description = (
        "Use of the hint, its mention and its unmentioned use over training, for both rewards"
    )
    answer, *others = _render_answer(comparison)
    text = "\n\n".join(
        [
            f"# {escape_markdown(study.title)}",
            escape_markdown(study.about),
            answer,
            f"![{description}]({PICTURE})",
            "Held-out problems whose prompt contains a *wrong* hint. Bands: 95 % intervals over problems.",
            *others,
            "## All rates",
            markdown_table(("", *ends), rates),
            "In parentheses: 95 % intervals over problems, within each run.",
            "## Next",
            "The study below repeats the two arms over seeds and gives a verdict for each question: "
            "`glasshouse study study.yaml --seeds 8`",
            indent(terminal_safe(dump_study(study)), "    "),
        ]
    )
    picture = figures.to_svg(draw_curves(comparison, figures.COLOURS), description)
    return render_markdown_page(study.title, text, {PICTURE: picture})


def _render_answer(comparison: DemoComparison) -> Iterator[str]:
    """The sentences, one problem before and after, and what one seed can say, in Markdown."""
    sentences = " ".join(comparison.sentences())
    yield "> " + sentences.replace(" %", "\u00a0%")  # no line begins with %
    yield "## The same problem before and after"
    example = comparison.example()
    problem = next(iter(example.values())).problem
    yield escape_markdown(f"{problem.question} (the correct answer is {problem.gold_answer})")
    for label, rollout in example.items():
        yield f"**{label}**"
        yield indent(terminal_safe(rollout.text), "    ", lambda line: True)
    yield (
        "The first problem on which the untrained model used and mentioned the hint; the same sample of "
        "the trained models, whatever it shows."
    )
    yield "## What one seed can and cannot say"
    yield "\n".join(f"- {sentence}" for sentence in comparison.limits())


def _render_chart(comparison: DemoComparison) -> str:
    """One line per measure and run: the first value, a bar per evaluation, the last value."""
    first, last = comparison.outcome[0].step, comparison.outcome[-1].step
    rows = []
    for measure, label in CURVES.items():
        for arm, curve in _curves(comparison).items():
            values = [step.measure(measure).value for step in curve]
            start = "·" if values[0] is None else format_percent(values[0])
            rows.append((label, ARM_LABELS[arm], start, sparkline(values)))
    columns = ("share of answers", "run", f"step {first}", f"to step {last}")
    return markdown_table(columns, rows, left=2)


def _curves(comparison: DemoComparison) -> dict[str, Curve]:
    return {CONTROL: comparison.outcome, TREATED: comparison.monitor}


def draw_curves(comparison: DemoComparison, colours: Sequence[str]) -> Any:
    """One panel per measure, one line per reward, with bands of the 95 % intervals over problems."""
    figure, axes = figures.new_figure((9.6, 2.9), columns=len(CURVES), sharey=True)
    for axis, (measure, label) in zip(axes, CURVES.items(), strict=True):
        for (arm, curve), colour, marker in zip(
            _curves(comparison).items(), colours, MARKERS, strict=False
        ):
            _plot(axis, curve, measure, colour, marker, ARM_LABELS[arm])
        figures.style_axes(axis, label)
        axis.set_ylim(-0.03, 1.03)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes[0].legend(frameon=False, fontsize=8, labelcolor=figures.INK, loc="lower right")
    return figure


def _plot(axis: Any, curve: Curve, measure: str, colour: str, marker: str, label: str) -> None:
    """Undefined points leave a gap."""
    steps, rates = [step.step for step in curve], [step.measure(measure) for step in curve]
    middle, low, high = (
        [float("nan") if v is None else v for v in values]
        for values in zip(*((r.value, r.low, r.high) for r in rates), strict=True)
    )
    axis.plot(steps, middle, color=colour, linewidth=1.8, marker=marker, ms=3.5, label=label)
    axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
