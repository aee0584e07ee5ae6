"""Evaluation of a model: it needs neither an optimizer nor a reference model; partial credit of its answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rollout.test_penalties import make_rollout

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.measurement.evaluate import (
    draw_validation,
    evaluate_model,
    evaluate_policy,
    open_collector,
    summarize_partial_credit,
)
from glasshouse.measurement.reading import count_unread, describe_reading
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import make_task
from glasshouse.training.run import TrainingRun
from glasshouse.types import Completion, FinishReason, Grade, Rollout

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "evaluate.problems=6", "evaluate.samples=2", "generate.max_tokens=32",
    "monitor.problems=4", "data.groups_per_step=2", "generate.group_size=2",
]  # fmt: skip


@pytest.mark.parametrize("parser", ["lenient", "strict"])
def test_unread_answers_and_cut_completions_are_counted_apart(parser: str) -> None:
    """Unread means that no lenient rule applies, whichever parser grades."""
    texts = ["[ANSWER] 5", "so it is 5, I think", "I do not know.", "I cannot\nsay", "", "no idea"]
    finish = [FinishReason.END] * 3 + [FinishReason.LENGTH] * 3
    problem = make_task("sum_digits").example()
    rollouts = [
        replace(
            make_rollout(problem, text),
            completion=Completion(finish_reason=reason),
            grade=grade_completion(problem, text, strict=parser == "strict"),
        )
        for text, reason in zip(texts, finish, strict=True)
    ]
    reading = count_unread(rollouts)
    assert (reading.answers, reading.unread, reading.ended, reading.cut) == (6, 4, 6, 3)
    line, *examples = describe_reading(reading)
    assert line == "unread answers 4 of 6, cut completions 3 of 6"
    assert examples == [
        f"  unread: {text}" for text in ("I do not know.", "I cannot say", "(empty)")
    ]
    unknown = count_unread(
        replace(r, completion=Completion(), grade=Grade(reward=1, correct=True)) for r in rollouts
    )
    assert describe_reading(unknown) == ["unread answers unknown, cut completions unknown"]


def test_samples_are_drawn_at_their_own_temperature() -> None:
    """Close to 0 they are the greedy completions; the temperature of training has no part in it."""
    same = []
    for temperature in (0.001, 1):
        config = load_config(
            overrides=[*SMALL, f"evaluate.temperature={temperature}", "generate.temperature=0.5"]
        )
        collector = open_collector(config)
        problems = draw_validation(collector.config, collector.task)
        texts: dict[str, dict[str, set[str]]] = {}
        for rollout in evaluate_policy(collector, problems, step=0)[1]:
            texts.setdefault(rollout.split, {}).setdefault(rollout.problem.key, set()).add(
                rollout.text
            )
        same.append(texts["validation/greedy"] == texts["validation/sampled"])
    assert same == [True, False]


def test_unread_answers_to_a_file_leave_no_accuracy_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kind of the answers is that of the file, and no rule finds a letter in what the model writes."""
    file = tmp_path / "p.jsonl"
    rows = [{"question": f"Is it A or B, {n}?", "answer": "AB"[n % 2]} for n in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = ["task.name=dataset", f"task.options.file={file}"]
    arguments = ["eval", str(MOCK), *dataset, *SMALL[2:4], "evaluate.problems=4"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "no accuracy: 12 of 12 answers are unread" in printed
    assert "accuracy, greedy" not in printed
    assert "answers of the kind choice" in printed
    assert main([*arguments, "--json", "evaluate.allow_unread=true"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0
    assert main([*arguments, "--json", "task.options.kind=text"]) == 0
    assert json.loads(capsys.readouterr().out)["reading"]["kinds"] == {"text": 12}
    assert main([*arguments, "task.options.kind=number"]) == 2
    assert "'A' is not a number" in capsys.readouterr().err


def test_evaluation_equals_the_first_evaluation_of_a_run(tmp_path: Path) -> None:
    summary = TrainingRun(load_config([], [*SMALL, "steps=0", f"out={tmp_path / 'run'}"])).train()
    after = {key: value for key, value in summary["after"].items() if key != "removed"}
    results = evaluate_model(load_config([], SMALL))
    assert results.pop("task")["name"] == "sum_digits"
    assert results == after


def test_evaluating_no_problems_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.problems"):
        evaluate_model(load_config([], [*SMALL, "evaluate.problems=0"]))


# --- partial credit

GOLD = 12558  # 273 * 46


def answer(text: str) -> Rollout:
    return make_rollout(make_task("multiplication", {}).example(), text)


def test_an_answer_that_is_closer_has_more_credit_and_a_smaller_error() -> None:
    far, near, exact = (
        summarize_partial_credit([answer(f"[ANSWER] {number}")])
        for number in (GOLD * 2, GOLD + 1000, GOLD)
    )
    assert near["closeness"] == pytest.approx(1 / (1 + 10 * math.log(1 + 1000 / GOLD)))
    assert near["alignment"] == 4 / 5  # 13558
    assert near["median_relative_error"] == pytest.approx(1000 / GOLD)
    assert far["closeness"] < near["closeness"] < exact["closeness"] == exact["alignment"] == 1
    assert far["median_relative_error"] == 1
    assert exact["median_relative_error"] == 0


def test_no_answer_has_no_credit_and_an_infinite_error() -> None:
    silent, exact = answer("I do not know."), answer(f"[ANSWER] {GOLD}")
    results = summarize_partial_credit([silent, exact, exact], "sampled_")
    assert results["sampled_closeness"] == results["sampled_alignment"] == pytest.approx(2 / 3)
    assert results["sampled_median_relative_error"] == 0
    assert summarize_partial_credit([silent])["median_relative_error"] is None


def test_answers_that_are_not_numbers_have_none_of_the_measures() -> None:
    task = make_task("interleave", {})
    rollout = make_rollout(task.example(), f"[ANSWER] {task.example().gold_answer}")
    assert summarize_partial_credit([rollout]) == {}
