"""Settings that are valid and can hardly be meant, each with its reason: said at a run's start and by --dry-run."""

from __future__ import annotations

from collections.abc import Iterator

from glasshouse.config.schema import Config

MAX_LEARNING_RATE = 0.1
MIN_TEMPERATURE = 1e-3
"""Below it, only tokens of almost equal probability are not chosen greedily."""
ANSWER_TAG = "[ANSWER]"


def find_unlikely_settings(config: Config) -> Iterator[str]:
    """One sentence per setting that is probably a mistake."""
    data, learn = config.data, config.learn
    if data.source == "fixed" and not data.file and data.size < data.groups_per_step:
        yield (
            f"data.size={data.size} is less than data.groups_per_step={data.groups_per_step}: every step asks the same "
            "problems several times. Raise data.size."
        )
    late = [step for step in config.task.schedule if step > config.steps]
    if late and config.steps:
        yield (
            f"task.schedule: the stage of step {min(late)} is never reached, since steps={config.steps}. Raise steps, "
            "or lower the step of the stage."
        )
    for text in config.generate.stop:
        if text in ANSWER_TAG or (text.isdecimal() and len(text) == 1):
            what = "the answer tag" if text in ANSWER_TAG else "every number with this digit"
            yield f"generate.stop={text!r} cuts {what}, so answers are lost. Remove it."
    if learn.learning_rate > MAX_LEARNING_RATE:
        yield (
            f"learn.learning_rate={learn.learning_rate:g}: AdamW changes every weight by about this much per step, "
            "which destroys a model. Values between 1e-6 and 1e-3 are usual."
        )


def find_greedy_setting(config: Config) -> str:
    """The setting with which all completions of a group are equal, as key=value; empty if they can differ."""
    generate = config.generate
    is_greedy = {
        "temperature": generate.temperature < MIN_TEMPERATURE,
        "top_k": generate.top_k == 1,
        "top_p": generate.top_p < MIN_TEMPERATURE,
        "min_p": generate.min_p == 1,
    }
    return next(
        (f"{key}={getattr(generate, key):g}" for key, holds in is_greedy.items() if holds), ""
    )
