"""`glasshouse report`: one HTML file that needs nothing else, for one run or for several.

Everything that a model or a person wrote is escaped, once, where it enters the page (`elements.text`). The
page has no script and forbids itself every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glasshouse import config as configuration
from glasshouse.report import figures
from glasshouse.report.arms import Arm, arms
from glasshouse.report.html import document, gallery, section, table, text
from glasshouse.report.monitor_table import cell, changed, label, measure, number, ordered
from glasshouse.report.run_data import EDGE, Gathered, edges, examples, gather
from glasshouse.report.run_verdict import verdict
from glasshouse.store.atomic_files import write_text

FILE = "report.html"
SECOND = (
    ("strict reading", "strict"),
    ("format", "format"),
)


def write(runs: Sequence[Path], out: Path | None = None) -> Path:
    """The report of these runs, whole or not at all; returns where it is."""
    figures.library()
    found = [gather(run) for run in runs]
    target = out or found[0].path / "results" / FILE
    write_text(target, page(found))
    return target


def page(runs: Sequence[Gathered]) -> str:
    groups = arms(runs)
    title = runs[0].path.resolve().name if len(runs) == 1 else f"{len(runs)} runs"
    parts = [_head(runs, title), f'<p class="verdict">{text(verdict(groups))}</p>']
    parts += [_single(runs[0])] if len(runs) == 1 else [_several(groups)]
    parts += [section("Over training", gallery(figures.curves(groups)))]
    parts += [_readability(runs, groups)]
    if len(runs) == 1:
        parts += [_rewards(runs[0]), _examples(runs[0])]
    parts += [_reproduce(run) for run in runs[:1]]
    return document(title, "\n".join(part for part in parts if part))


# --- sections --------------------------------------------------------------------------------


def _head(runs: Sequence[Gathered], title: str) -> str:
    c = runs[0].config
    what = (
        f"{c.task.name} ({c.task.style.value}), {c.learn.algorithm} on {c.model}, {c.steps} steps of "
        f"{c.data.groups_per_step} problems × {c.generate.group_size} samples"
    )
    seeds = ", ".join(str(s) for s in sorted({run.config.seed for run in runs}))
    said = f"{what}; seed{'s' * (len(runs) > 1)} {seeds}"
    return f'<h1>{text(title)}</h1><p class="soft">{text(said)}</p>'


def _single(run: Gathered) -> str:
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    if not before or not after:
        return section("Before and after", "<p>The run has not come to its end.</p>")
    rows = [("accuracy, greedy", *(_rate(found, "accuracy") for found in (before, after)))]
    rows += [(name, *(_rate(found, key) for found in (before, after))) for name, key in SECOND]
    for key in (k for k in before if k.startswith("pass_at_") and k in after):
        name = f"pass@{key.removeprefix('pass_at_')}, sampled"
        rows.append((name, f"{before[key]:.3f}", f"{after[key]:.3f}"))
    rows.append(("length, tokens", f"{before['length']:.1f}", f"{after['length']:.1f}"))
    for level, rates in after["levels"].items():
        old = before["levels"].get(level)
        rows.append((f"accuracy, {level}", _rate(old, "accuracy"), _rate(rates, "accuracy")))
    note = f"<p class=soft>{after['problems']} held-out problems; 95 % intervals (Wilson).</p>"
    return section("Before and after", table(("", "before", "after"), rows) + note)


def _several(groups: Sequence[Arm]) -> str:
    rows = []
    for arm in groups:
        for run in arm.runs:
            s = run.summary or {}
            rows.append(
                (
                    arm.name,
                    str(run.config.seed),
                    _rate(s.get("before"), "accuracy"),
                    _rate(s.get("after"), "accuracy"),
                    *(_last(run, name) for name in figures.READABILITY),
                )
            )
    head = ("arm", "seed", "accuracy before", "after", *figures.READABILITY)
    note = "<p class=soft>Readability is that of the last checkpoint that was monitored.</p>"
    return section("Arms and seeds", table(head, rows) + note)


def _readability(runs: Sequence[Gathered], groups: Sequence[Arm]) -> str:
    if not any(run.monitor for run in runs):
        how = f"<code>glasshouse monitor {text(str(runs[0].path))}</code>"
        return section(
            "Can it be read?", f"<p>Not measured yet: {how}, then this report again.</p>"
        )
    inner = gallery(figures.readability(groups))
    only = runs[0].monitor if len(runs) == 1 else None
    if only:
        inner += _monitored(only)
    return section("Can it be read?", inner)


def _monitored(found: dict[str, Any]) -> str:
    """Every measure, first and last subject, its change, its null and its ceiling."""
    subjects, change = found["subjects"], found.get("change", {}).get("measures", {})
    first, last = subjects[0], subjects[-1]
    rows = []
    for group in last["measures"].values():
        for name in ordered(group):
            scored = group[name]
            null, ceiling = scored.get("null"), scored.get("ceiling")
            shown = (
                ""
                if not null or null["mean"] is None
                else f"{null['mean']:.2f} (p {null['p']:.4f})"
            )
            row = (cell(measure(first, name)), cell(scored), changed(change.get(name)), shown)
            rows.append((name, *row, "" if ceiling is None else number(_as_measure(ceiling))))
    head = ("", label(first), label(last), "change", "null", "ceiling")
    s = found["settings"]
    note = (
        f"{s['problems']} held-out problems, rollouts {s['rollouts']}; 95 % intervals by cluster bootstrap over "
        "problems; a dash: undefined. Null: the same measure of the last checkpoint without the intervention, "
        "or with permuted verdicts. docs/monitoring.md says how to read each."
    )
    return table(head, rows) + f'<p class="soft">{text(note)}</p>'


def _rewards(run: Gathered) -> str:
    first, last = edges(run.path)
    if not first or not last:
        return ""
    return section("Rewards", gallery([figures.histogram(first, last, EDGE)]))


def _examples(run: Gathered) -> str:
    cards = []
    for name, why, row in examples(run.path):
        verdict = "right" if row["correct"] else "wrong"
        answer = "none" if row["answer"] is None else row["answer"]
        cards.append(
            f'<div class="example"><h3>{text(name)} <span class="{verdict}">{verdict}</span></h3>'
            f'<p class="soft">{text(why)}</p><p>{text(row["question"])}</p>'
            f"<pre>{text(row['completion'])}</pre>"
            f'<p class="soft">{text(row["split"])}, step {row["step"]}: answer {text(str(answer))} by rule '
            f"{text(row['rule'])}, gold {text(row['gold'])}, reward {row['reward']:+.2f}, "
            f"{row['length']} tokens</p></div>"
        )
    return section("Examples", f'<div class="examples">{"".join(cards)}</div>') if cards else ""


def _reproduce(run: Gathered) -> str:
    versions = run.state.get("versions", {})
    facts = {**versions, "starting weights": run.state.get("start", "unknown")}
    listed = "".join(f"<dt>{text(k)}</dt><dd>{text(str(v))}</dd>" for k, v in facts.items())
    how = (
        "Save the configuration below as config.yaml and run it where these versions are installed: the same "
        "bits come out."
    )
    out = "glasshouse train --config config.yaml out=again\nglasshouse monitor again\nglasshouse report again"
    return section(
        "How to reproduce",
        f"<p>{how}</p><pre>{out}</pre><dl>{listed}</dl><details><summary>config.yaml</summary>"
        f"<pre>{text(configuration.dump(run.config))}</pre></details>",
    )


# --- elements --------------------------------------------------------------------------------


def _rate(found: dict[str, Any] | None, key: str) -> str:
    if not found:
        return "–"
    return f"{found[key]:.3f} ({found[f'{key}_low']:.2f}–{found[f'{key}_high']:.2f})"


def _last(run: Gathered, name: str) -> str:
    return cell(measure(run.monitor["subjects"][-1], name)) if run.monitor else "–"


def _as_measure(value: float) -> dict[str, Any]:
    return {"measure": {"value": value}}
