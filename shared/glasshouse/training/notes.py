"""Two Markdown files of a run directory: README.md says what the run is and which commands read it, NOTES.md is its
lab notebook. Glasshouse only appends to the notebook, so that everything in it may be edited."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.config.loading import diff_configs, dump_yaml
from glasshouse.config.schema import Config
from glasshouse.files import write_text
from glasshouse.terminal import count_noun, escape_markdown, format_duration, shell_command
from glasshouse.training.display import format_accuracies

NOTES = "NOTES.md"
README = """\
# {name}

{algorithm} on {task} ({style}), model {model}, {steps} steps, seed {seed}.

| | |
|---|---|
| `NOTES.md` | the lab notebook of this run; yours to edit |
| `config.yaml` | every setting; `glasshouse train --config config.yaml out=NEW` repeats the run |
| `data/` | `manifest.json`: where the problems come from; `validation.jsonl`. `glasshouse tasks generate --run .` writes `train.jsonl` and `test.jsonl` |
| `results/` | `metrics.jsonl`, `events.jsonl`, `summary.json`, plots in `curves.svg`, every prompt and completion in `rollouts.jsonl.zst` |
| `checkpoints/` | models in the Hugging Face layout, with what is needed to resume |

```sh
glasshouse resume .      # continue
glasshouse rollouts .    # read every prompt and completion
glasshouse view .        # curves and rollouts in the browser
glasshouse check .       # verify every file
```
"""  # noqa: E501


def start_notes(run: Path, config: Config, step: int) -> None:
    """Write README.md, and begin the part of NOTES.md about this start or resumption."""
    name = run.resolve().name
    facts = {"task": config.task.name, "style": config.task.style.value}
    facts |= {"algorithm": config.learn.algorithm, "model": config.model}
    facts = {key: escape_markdown(value) for key, value in facts.items()}
    readme = README.format(
        name=escape_markdown(name), steps=config.steps, seed=config.seed, **facts
    )
    write_text(run / "README.md", readme)
    changed = {key: new for key, (_, new) in diff_configs(Config(), config).items() if key != "out"}
    differs = dump_yaml(changed, flow=True, width=100).strip().strip("{}")
    event = f"resumed after step {step}" if step else "started"
    text = f"## {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: {event}\n\n"
    if command := typed_command():
        text += f"    {command}\n\n"
    text += f"Differs from the defaults: {escape_markdown(differs) or 'nothing'}\n"
    if not (run / NOTES).exists():
        text = (
            f"# Notes on {escape_markdown(name)}\n\nThe lab notebook of this run. Write where you like: Glasshouse "
            f"only adds to the end.\n\n{text}"
        )
    _append(run / NOTES, text)


def note_result(run: Path, summary: Mapping[str, Any]) -> None:
    """Append what came of it to NOTES.md."""
    steps = f"{count_noun(summary['steps_done'], 'step')} in {format_duration(summary['seconds'])}"
    text = f"Result: {steps}."
    if "interrupted_at" in summary:
        text = f"Interrupted after {steps}."
    ends = [summary.get("before"), summary.get("after")]
    if all(ends):
        before, after = (format_accuracies(dict(results)) for results in ends if results)
        text += f" Before training: {before}. After it: {after}."
    _append(run / NOTES, f"{text}\n")


def typed_command() -> str:
    """The command of this process, as typed; empty if it is another program than ours or a script."""
    program = os.path.basename(sys.argv[0])
    if program == "glasshouse" or sys.argv[0].endswith("glasshouse/__main__.py"):
        return shell_command(["glasshouse", *sys.argv[1:]])
    return shell_command(["python", *sys.argv]) if program.endswith(".py") else ""


def _append(file: Path, text: str) -> None:
    """Append a paragraph."""
    old = file.read_bytes()[-2:] if file.exists() else b"\n\n"
    gap = "" if old == b"\n\n" else "\n" if old.endswith(b"\n") else "\n\n"
    with open(file, "a", encoding="utf-8", errors="backslashreplace") as opened:
        opened.write(f"{gap}{text}")
