"""A study's table, and the effects, nulls, ceilings and verdicts that follow from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.study import synthetic_study
from tests.study.synthetic_study import make_row

from glasshouse.config.schema import Config
from glasshouse.errors import GlasshouseError
from glasshouse.runs.monitor_results import VERSION
from glasshouse.study.analysis import Analysis, analyse_study, mean_curve
from glasshouse.study.answers import Verdict, pairs_needed
from glasshouse.study.contrasts import interpolate_at, max_effect, point_at_equal_accuracy
from glasshouse.study.spec import Study, parse_study
from glasshouse.study.table import StudyRow, Table, collect_values, compare_tables

RISES = {"against": "start", "expect": "rises"}


def make_study(*questions: Mapping[str, Any], null_arm: str | None = "random") -> Study:
    """A study of three arms with these questions about `m` in the arm `outcome`."""
    tree = {
        "title": "t",
        "bases": ["a", "b"],
        "arms": {"outcome": {}, "kl": {"learn.kl_coef": 0.3}, "random": {"reward.random": True}},
        "null_arm": null_arm,
        "questions": [{"ask": "?", "measure": "m", "arm": "outcome", **q} for q in questions],
    }
    return parse_study(tree, "the study")


def make_table(
    arms: Mapping[str, Sequence[Sequence[float | None]]],
    measure: str = "m",
    accuracy: Sequence[float] = (),
    bases: str = "ab",
) -> Table:
    """Values by arm, seed and step; steps are 0, 10, 20 …; seeds alternate between the bases."""
    rows = []
    for arm, seeds in arms.items():
        for seed, values in enumerate(seeds):
            for i, value in enumerate(values):
                more = [("accuracy", accuracy[i])] if accuracy else []
                for name, v in [(measure, value), *more]:
                    base = bases[seed % len(bases)]
                    rows.append(
                        StudyRow(arm=arm, seed=seed, step=10 * i, measure=name, base=base, value=v)
                    )
    return Table(rows)


def single_answer(study: Study, table: Table) -> Any:
    (answer,) = analyse_study(study, table).answers
    return answer


def eight_seeds(first: float, last: float, spread: float = 0.01) -> list[list[float]]:
    """The last values are spread around their mean, in another order for another mean."""
    factor = (1, 3, 5, 7)[round(10 * last) // 2 % 4]
    return [[first, last + spread * (factor * seed % 8 - 3.5)] for seed in range(8)]


FLAT = [[0.2, 0.2]] * 3
THREE = [[0.2, 0.5], [0.2, 0.6], [0.2, 0.7]]


def test_effect_interval_and_p_match_a_hand_calculation() -> None:
    comparison = single_answer(make_study(RISES), make_table({"outcome": THREE, "random": FLAT}))
    effect = comparison.effect
    # differences .3 .4 .5: mean .4, deviation .1, half width 4.303 · .1 / √3; p = 2/8; d = 4
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert effect.effect == pytest.approx(0.4)
    assert (effect.low, effect.high) == pytest.approx((0.4 - half, 0.4 + half))
    assert (effect.p, effect.smallest_p, effect.n, effect.dropped) == (0.25, 0.25, 3, 0)
    assert effect.d == pytest.approx(4.0)
    assert effect.p_holm == 0.25  # one question: the larger of its own p and that beyond the null
    assert (comparison.effect.before, comparison.effect.after) == pytest.approx((0.2, 0.6))
    assert comparison.null.effect == 0.0
    assert comparison.beyond_null.effect == pytest.approx(0.4)
    assert comparison.by_base["a"].effect == pytest.approx(0.4)  # seeds 0 and 2: .3 and .5
    assert comparison.by_base["b"].n == 1
    assert comparison.point == "step 10"


def test_arms_are_compared_at_a_step_and_at_equal_accuracy() -> None:
    """Both arms go from accuracy .2 to .6 in two steps; m depends on the arm and the step."""
    arms = {"outcome": [[0.0, 0.0]] * 2, "kl": [[0.0, 0.4], [0.0, 0.8]]}
    table = make_table(arms, accuracy=[0.2, 0.6])
    question = {"arm": "kl", "expect": "rises"}
    at_step = single_answer(make_study(question, null_arm=None), table)
    assert (at_step.reference, at_step.point) == ("outcome", "step 10")
    assert at_step.effect.effect == pytest.approx(0.6)
    assert at_step.equal_accuracy.name == "accuracy 0.400"  # the midpoint of .2 and .6
    assert at_step.matched.effect == pytest.approx(0.3)  # .2 and .4
    assert at_step.equal_accuracy.mean_steps == pytest.approx({"kl": 5.0, "outcome": 5.0})
    assert at_step.equal_accuracy.is_before_first_evaluation


def test_the_value_where_another_measure_first_passes_a_level() -> None:
    xs, values = [0.2, 0.6, 0.4], [1.0, 0.5, None]
    assert interpolate_at(0.4, xs, values) == pytest.approx(0.75)  # the first passage
    assert interpolate_at(0.6, xs, values) == 0.5
    assert interpolate_at(0.7, xs, values) is None  # never passed
    assert interpolate_at(0.5, xs[1:], values[1:]) is None  # undefined on one side
    assert interpolate_at(0.4, [0.6, 0.2], [0.0, 1.0]) == pytest.approx(0.5)  # falling
    rows = [
        StudyRow(arm, 0, step, "accuracy", "base", accuracy + 0.1 * step)
        for arm, accuracy in (("low", 0.1), ("high", 0.8))
        for step in (0, 1)
    ]
    point = point_at_equal_accuracy(Table(rows), ["low", "high"])
    assert "no accuracy is passed by every seed of low and high" in point.reason
    assert not point.values_of("low", "accuracy")


def test_the_ceiling_is_what_the_interval_of_the_reference_allows() -> None:
    ceiling = max_effect("reliance", [0.25] * 4)
    assert (ceiling.rise, ceiling.fall) == (0.75, -0.25)
    assert max_effect("cot_characters", [60.0]).reason
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    ceiling = max_effect("reliance", [0.2, 0.3, 0.4])
    assert (ceiling.rise, ceiling.fall) == pytest.approx((0.7 + half, -0.3 - half), abs=1e-4)
    question = RISES | {"measure": "reliance"}
    table = make_table({"outcome": THREE, "random": FLAT}, "reliance")
    answer = single_answer(make_study(question), table)
    assert answer.effect.ceiling.rise == pytest.approx(0.8)


def test_no_interval_exceeds_the_ceiling() -> None:
    """All seeds but one reach 1 from 0.2: Student's interval alone would end above the ceiling."""
    outcome = [[0.2, 1.0]] * 7 + [[0.2, 0.3]]
    table = make_table({"outcome": outcome, "random": [[0.2, 0.2]] * 8}, "reliance")
    comparison = single_answer(make_study(RISES | {"measure": "reliance"}), table)
    paired = comparison.effect
    assert paired.effect + stats.t.ppf(0.975, 7) * paired.effect / paired.d / math.sqrt(8) > 0.8
    assert paired.high == pytest.approx(0.8)
    saturated = [[0.1 + 0.02 * seed, 1.0] for seed in range(8)]  # the reference varies
    table = make_table({"outcome": saturated, "random": eight_seeds(0.2, 0.2)}, "reliance")
    comparison = single_answer(make_study(RISES | {"measure": "reliance"}), table)
    paired = comparison.effect
    assert paired.high > paired.effect + 0.02  # not cut off at its own mean
    assert paired.high == pytest.approx(comparison.effect.ceiling.rise)


def test_a_change_that_rl_on_noise_also_causes_is_not_shown() -> None:
    outcome = eight_seeds(0.2, 0.9)
    flat = make_table({"outcome": outcome, "random": eight_seeds(0.2, 0.2)})
    answer = single_answer(make_study(RISES), flat)
    assert answer.verdict is Verdict.SHOWN
    wiggle = [[0.2, 0.9 + 0.01 * (-1) ** seed] for seed in range(8)]
    answer = single_answer(make_study(RISES), make_table({"outcome": outcome, "random": wiggle}))
    assert answer.effect.differs_from_zero
    assert answer.verdict is Verdict.NOT_SHOWN
    larger = make_table({"outcome": eight_seeds(0.2, 0.5), "random": outcome})
    answer = single_answer(make_study(RISES), larger)
    assert answer.verdict is Verdict.NOT_SHOWN
    falling = make_table({"outcome": eight_seeds(0.9, 0.2), "random": eight_seeds(0.9, 0.9)})
    assert single_answer(make_study(RISES), falling).verdict is Verdict.OPPOSITE


def test_unchanged_needs_the_whole_interval_within_the_margin() -> None:
    table = make_table({"kl": eight_seeds(0.2, 0.52), "outcome": [[0.2, 0.5]] * 8})
    question = {"arm": "kl", "expect": "unchanged"}
    # mean .02, deviation .0245: the interval is .02 ± 2.365 · .0245 / √8 = -.0005 to .0405
    for margin, verdict in ((0.041, Verdict.SHOWN), (0.04, Verdict.NOT_SHOWN)):
        answer = single_answer(make_study({**question, "margin": margin}, null_arm=None), table)
        assert answer.verdict is verdict, margin
    within_a_tenth = make_study({**question, "margin": 0.1}, null_arm=None)
    changed = make_table({"kl": eight_seeds(0.2, 0.9), "outcome": [[0.2, 0.5]] * 8})
    answer = single_answer(within_a_tenth, changed)
    assert answer.verdict is Verdict.OPPOSITE
    two_equal_seeds = make_table({"kl": [[0.2, 0.5]] * 2, "outcome": [[0.2, 0.5]] * 2})
    assert single_answer(within_a_tenth, two_equal_seeds).verdict is Verdict.NOT_SHOWN


def test_too_few_seeds_show_nothing_and_the_needed_number_is_reported() -> None:
    arms = {"outcome": eight_seeds(0.2, 0.9), "random": eight_seeds(0.2, 0.2)}
    two = single_answer(
        make_study(RISES), make_table({arm: runs[:2] for arm, runs in arms.items()})
    )
    assert two.verdict is Verdict.NOT_SHOWN
    assert "2 pairs is 0.5; 6 pairs are needed" in two.explanation
    # eight seeds are enough for six questions, but not for seven
    for questions, shown in ((6, 6), (7, 0)):
        analysis = analyse_study(make_study(*[RISES] * questions), make_table(arms))
        assert [a.verdict for a in analysis.answers].count(Verdict.SHOWN) == shown
    assert "9 pairs are needed" in analysis.answers[0].explanation
    assert [pairs_needed(n) for n in (1, 6, 7, 8, 12, 13)] == [6, 8, 9, 9, 9, 10]
    for n in range(1, 40):
        assert n * 2.0 ** (1 - pairs_needed(n)) <= 0.05 < n * 2.0 ** (2 - pairs_needed(n))


def test_pairs_with_a_missing_value_are_dropped_and_counted() -> None:
    arms: dict[str, list[list[float | None]]] = {
        "outcome": [list(v) for v in eight_seeds(0.2, 0.9)],
        "random": [list(v) for v in eight_seeds(0.2, 0.2)][:7],
    }
    arms["outcome"][0][1] = None
    answer = single_answer(make_study(RISES), make_table(arms))
    contrasts = (answer.effect, answer.null, answer.beyond_null)
    assert [(contrast.n, contrast.dropped) for contrast in contrasts] == [(7, 1), (7, 1), (6, 2)]
    undefined = make_table({"outcome": [[0.2, None]] * 8, "random": [[0.2, 0.2]] * 8})
    answer = single_answer(make_study(RISES), undefined)
    assert answer.verdict is Verdict.UNDEFINED


def test_a_question_that_cannot_be_answered_gives_the_reason() -> None:
    arms = {"outcome": eight_seeds(0.2, 0.9), "random": eight_seeds(0.2, 0.2)}
    table = make_table(arms)
    late = single_answer(make_study({**RISES, "at": 40}), table)
    assert "steps 0, 10, not at step 40" in late.explanation
    without_runs = single_answer(make_study({**RISES, "arm": "kl"}), table)
    assert "no run of kl measured m" in without_runs.explanation
    no_null_runs = single_answer(make_study(RISES), make_table({"outcome": arms["outcome"]}))
    assert no_null_runs.verdict is Verdict.NOT_SHOWN
    assert "no run of random measured m" in no_null_runs.explanation
    no_null_arm = single_answer(make_study(RISES, null_arm=None), table)
    assert no_null_arm.verdict is Verdict.SHOWN


def test_a_wrong_measure_or_base_is_an_error() -> None:
    arms = {"outcome": eight_seeds(0.2, 0.9), "random": eight_seeds(0.2, 0.2)}
    with pytest.raises(GlasshouseError, match=r'"relianse".*"reliance"'):
        analyse_study(make_study({**RISES, "measure": "relianse"}), make_table(arms, "reliance"))
    with pytest.raises(GlasshouseError, match=r'"relianc".*"reliance"'):
        analyse_study(
            synthetic_study.make_study(measures={"relianc": "x"}), synthetic_study.make_table()
        )
    other_base = StudyRow(arm="kl", seed=0, step=0, measure="m", base="other", value=0.1)
    with pytest.raises(GlasshouseError, match="Seed 0 starts from"):
        analyse_study(make_study(RISES), Table([*make_table(arms), other_base]))


def test_four_or_more_bases_are_a_random_effect_and_fewer_are_not() -> None:
    """Some bases do not respond: the interval over bases is wider than that over seeds."""
    outcome = [[0.2, (0.9 if seed % 6 else 0.201) + 0.001 * seed] for seed in range(12)]
    arms = {"outcome": outcome, "random": [[0.2, 0.2 + 0.001 * seed] for seed in range(12)]}
    few = single_answer(make_study(RISES), make_table(arms))
    assert few.effect.num_bases is None
    answer = single_answer(make_study(RISES), make_table(arms, bases="abcdef"))
    paired = answer.effect
    means = [(outcome[b][1] + outcome[b + 6][1]) / 2 - 0.2 for b in range(6)]
    expected = stats.ttest_1samp(means, 0)
    assert paired.effect == pytest.approx(np.mean(means))
    assert paired.p == pytest.approx(expected.pvalue)
    assert tuple(expected.confidence_interval()) == pytest.approx(
        (paired.low, paired.high), abs=1e-4
    )
    assert paired.num_bases == 6
    assert answer.effect.interaction.p < 0.001
    assert (few.verdict, answer.verdict) == (Verdict.SHOWN, Verdict.SHOWN)
    for seed in (1, 2, 7, 8):  # now three of six do not respond
        outcome[seed] = [0.2, 0.201 + 0.001 * seed]
    arms["random"] = [[0.2, 0.2]] * 12
    assert single_answer(make_study(RISES), make_table(arms)).verdict is Verdict.SHOWN
    table = make_table(arms, bases="abcdef")
    assert single_answer(make_study(RISES), table).verdict is Verdict.NOT_SHOWN
    three = make_table(arms, bases="abc")
    assert single_answer(make_study(RISES), three).effect.num_bases is None


def test_the_headline_lists_what_is_shown_before_what_is_not() -> None:
    analysis = analyse_study(synthetic_study.make_study(), synthetic_study.make_table())
    assert [answer.verdict for answer in analysis.answers] == [
        Verdict.SHOWN, Verdict.NOT_SHOWN, Verdict.SHOWN, Verdict.SHOWN,
    ]  # fmt: skip
    assert analysis.headline.startswith("Shown: reliance rises in outcome (+0.7")
    assert analysis.headline.index("Shown:") < analysis.headline.index("Not shown: that disc")
    [curve] = [c for c in analysis.curves if (c.arm, c.measure) == ("kl", "reliance")]
    assert curve.steps == synthetic_study.STEPS
    assert sorted(curve.last) == list(range(8))
    assert sum(curve.last.values()) / 8 == pytest.approx(curve.mean[-1])  # type: ignore[arg-type]


def test_two_measures_of_the_same_runs_are_compared_within_an_arm() -> None:
    noise = eight_seeds(0.2, 0.3)
    cot = make_table({"outcome": eight_seeds(0.2, 0.9), "random": noise}, "cot")
    answer_only = make_table({"outcome": eight_seeds(0.2, 0.5), "random": noise}, "answer")
    question = {"measure": "cot", "against_measure": "answer", "expect": "rises"}
    answer = single_answer(make_study(question), Table([*cot, *answer_only]))
    assert answer.effect.effect == pytest.approx(0.4)
    assert answer.verdict is Verdict.SHOWN


def test_a_question_can_have_its_own_null_arm() -> None:
    study, moved = make_study(RISES, {**RISES, "null_arm": "kl"}), eight_seeds(0.2, 0.9)
    arms = {"outcome": moved, "kl": moved, "random": eight_seeds(0.2, 0.2)}
    first, second = analyse_study(study, make_table(arms)).answers
    assert first.verdict is Verdict.SHOWN
    assert second.verdict is Verdict.NOT_SHOWN
    assert second.null is not None
    assert second.null.arm == "kl"


def join(*tables: Table) -> Table:
    return Table.join(tables)


def test_a_question_without_a_monitors_name_holds_for_all_informative_monitors() -> None:
    """The first two monitors are informative at the base, the third is below the prompt floor."""
    aurocs = {"a": 0.9, "b": 0.8, "c": 0.5, "ngrams_base.prompt": 0.55}
    ends = {"a": 0.9, "b": 0.8, "c": 0.1}
    study = make_study(RISES | {"measure": "undetected_use"}, null_arm=None)
    study = study.model_copy(update={"monitors": ("a", "b", "c")})

    def table_of(ends: Mapping[str, float]) -> Table:
        uses = [
            make_table({"outcome": eight_seeds(0.2, end)}, f"{monitor}.undetected_use")
            for monitor, end in ends.items()
        ]
        scored = [
            make_table({"outcome": eight_seeds(auroc, auroc)}, f"{monitor}.auroc_planted")
            for monitor, auroc in aurocs.items()
        ]
        return join(*uses, *scored)

    answer = single_answer(study, table_of(ends))
    assert (list(answer.by_monitor), answer.not_informative) == (["a", "b"], ("c",))
    assert answer.verdict is Verdict.SHOWN
    assert answer.effect.effect == pytest.approx(0.6)  # of the weaker evidence
    answer = single_answer(study, table_of(ends | {"a": 0.1}))  # the other way for one of them
    assert {own.verdict for own in answer.by_monitor.values()} == {Verdict.SHOWN, Verdict.OPPOSITE}
    assert answer.verdict is Verdict.NOT_SHOWN
    aurocs |= {"a": 0.5, "b": 0.5}
    answer = single_answer(study, table_of(ends))
    assert answer.verdict is Verdict.UNDEFINED
    assert "informative" in answer.effect.reason


def test_a_criterion_counts_the_bases_that_reach_it() -> None:
    question = RISES | {"criterion": 0.3}
    outcome = [[0.2, 0.9 if seed % 6 else 0.25] for seed in range(12)]
    table = make_table({"outcome": outcome}, bases="abcdef")
    reached = single_answer(make_study(question, null_arm=None), table).reached
    assert (reached.count, reached.units, reached.mean) == (5, 6, pytest.approx(0.7))
    low, high = stats.binomtest(5, 6).proportion_ci(method="wilson")
    assert (reached.low, reached.high) == pytest.approx((low, high))
    by_seed = single_answer(make_study(question, null_arm=None), make_table({"outcome": outcome}))
    assert (by_seed.reached.count, by_seed.reached.units) == (10, 12)
    fallen = RISES | {"expect": "falls", "criterion": 0.3}
    assert single_answer(make_study(fallen, null_arm=None), table).reached.count == 0


def test_the_null_arm_is_taken_where_it_has_moved_as_far() -> None:
    """The null arm moves twice as far per step: at half of its way its measure has changed by .1."""
    values = make_table({"outcome": eight_seeds(0.2, 0.9), "random": [[0.2, 0.4]] * 8})
    moved = make_table({"outcome": [[0.0, 1.0]] * 8, "random": [[0.0, 2.0]] * 8}, "kl")
    study = make_study(RISES)
    assert single_answer(study, join(values, moved)).null.effect == pytest.approx(0.2)
    study = study.model_copy(update={"null_at": "kl"})
    answer = single_answer(study, join(values, moved))
    assert answer.null.effect == pytest.approx(0.1)
    assert answer.beyond_null.effect == pytest.approx(0.7 - 0.1)
    assert answer.null_point == "the KL of outcome at step 10"
    still = make_table({"outcome": [[0.0, 1.0]] * 8, "random": [[0.0, 0.5]] * 8}, "kl")
    assert single_answer(study, join(values, still)).null.effect is None  # never that far
    some = make_table(
        {"outcome": [[0.0, 1.0]] * 8, "random": [[0.0, 0.5]] * 5 + [[0.0, 2.0]] * 3}, "kl"
    )
    assert "over 3 of 8 seeds" in single_answer(study, join(values, some)).explanation


def test_ratios_over_few_events_are_not_averaged_and_cut_intervals_are_marked() -> None:
    measure = "rule.disclosure"
    table = make_table({"outcome": eight_seeds(0.2, 0.9)}, measure)
    few = Table(row._replace(n=3 if row.seed < 6 and row.step else 40) for row in table)
    study = make_study(RISES | {"measure": measure}, null_arm=None)
    assert single_answer(study, table).effect.n == 8
    analysis = analyse_study(study, few)
    assert analysis.answers[0].effect.n == 2
    assert few.fewest_events("outcome", measure, 10) == 3
    none = Table(row._replace(n=9) for row in table)
    answer = single_answer(study, none)
    assert answer.verdict is Verdict.UNDEFINED
    assert "too few events" in answer.explanation
    curve = mean_curve(
        make_table({"outcome": [[0.2, 1.0], [0.2, 0.7]]}, measure), "outcome", measure
    )
    assert (curve.high[1], curve.is_cut) == (1.0, (False, True))


# --- simulated studies: error rates of the verdicts ------------------------------------------


def simulate(rng: Any, effects: Mapping[str, float]) -> Table:
    """Eight seeds; the end of an arm is its start plus its effect plus noise of deviation 1."""
    starts = rng.normal(0, 1, 8)
    arms = {
        arm: [[start, start + effects.get(arm, 0.0) + rng.normal()] for start in starts]
        for arm in ("outcome", "kl", "random")
    }
    return make_table(arms)


def claims_something(analysis: Analysis) -> bool:
    return any(a.verdict in (Verdict.SHOWN, Verdict.OPPOSITE) for a in analysis.answers)


def test_without_effects_at_most_one_study_in_twenty_claims_one() -> None:
    rng, studies = np.random.default_rng(7), 300
    study = make_study(
        {"arm": "kl", "expect": "falls"},
        {"arm": "random", "expect": "rises"},
        {"arm": "kl", "against": "random", "expect": "rises"},
        null_arm=None,
    )
    wrong = sum(claims_something(analyse_study(study, simulate(rng, {}))) for _ in range(studies))
    # binomial: with a true share of 5 %, 24 or more of 300 have a probability below 2 %
    assert 0 < wrong < 24


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run directory that the table is collected from; step 2 was evaluated twice."""
    results = tmp_path / "results"
    results.mkdir()
    first = {"event": "evaluation", "time": "now", "step": 0, "accuracy": 0.5, "accuracy_low": 0.1,
             "levels": {"a": {"accuracy": 1}}}  # fmt: skip
    second = first | {"step": 2, "accuracy": 0.75}
    events = [{"event": "start"}, first, second | {"accuracy": 0.1}, second]
    (results / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    metrics = [
        {"step": s, "kl": s / 10, "reward": -1.0, "rule_none": 0, "accuracy": 9} for s in (1, 2)
    ]
    (results / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    uplift = {"uplift": {"value": 0.5, "n": 3, "low": 0, "high": 1}}
    monitored = {"version": VERSION, "settings": {}, "checkpoints": [
        {"name": "base", "step": 0, "measures": {"interventions": uplift}},
        {"name": "step-000002", "step": 2, "measures": {"monitors": {"x": {"value": None}}}}]}  # fmt: skip
    (results / "monitor.json").write_text(json.dumps(monitored))
    return tmp_path


def test_values_come_from_evaluations_training_steps_and_monitoring(run: Path) -> None:
    values = {(v.step, v.measure): v.value for v in collect_values(run, [], Config())}
    assert values == {
        (0, "accuracy"): 0.5, (0, "kl"): 0, (0, "interventions.uplift"): 0.5, (2, "accuracy"): 0.75,
        (2, "kl"): 0.2, (2, "reward"): -1, (2, "rule_none"): 0, (2, "monitors.x"): None,
    }  # fmt: skip


def test_a_table_is_sorted_and_survives_a_round_trip(tmp_path: Path) -> None:
    rows = [
        make_row("b", 0, 0, "x", 1),
        make_row("a", 10, 2, "x", None),
        make_row("a", 2, 2, "x", 0.1),
    ]
    Table(rows).save(tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    assert text.splitlines()[0] == (
        '{"arm": "a", "base": "leaked-hint-0", "seed": 2, "step": 2, "measure": "x", "value": 0.1}'
    )
    loaded = Table.load(tmp_path / "t.jsonl")
    assert loaded.text() == text
    assert [row.seed for row in loaded] == [2, 10, 0]
    assert loaded.runs_of("a", "x") == {2: {2: 0.1}, 10: {2: None}}


def test_invalid_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GlasshouseError, match="two rows"):
        Table([make_row("a", 0, 0, "x", 1), make_row("a", 0, 0, "x", 2)])
    (tmp_path / "t.jsonl").write_text('{"arm": "a"}\n')
    with pytest.raises(GlasshouseError, match=r"t\.jsonl"):
        Table.load(tmp_path / "t.jsonl")
    (tmp_path / "bad.jsonl.zst").write_bytes(b"not a table")
    for name in ("none.jsonl", "bad.jsonl.zst"):
        with pytest.raises(GlasshouseError, match=name):
            Table.load(tmp_path / name)


def test_tables_are_compared_byte_by_byte_and_differing_rows_are_listed() -> None:
    rows = [make_row("a", seed, 0, "x", 0.5) for seed in range(8)]
    committed = Table(rows)
    identical, message = compare_tables(Table(rows), committed, "t")
    assert identical
    assert "8 rows" in message
    changed = Table([*rows[:-1], make_row("a", 7, 0, "x", 0.5000000001)])
    identical, message = compare_tables(changed, committed, "t")
    assert not identical
    assert "1 of 8 rows" in message
    assert '"value": 0.5000000001' in message
    assert compare_tables(Table(rows[:3]), committed, "t")[0]
    longer = Table([*rows, make_row("a", 7, 1, "x", 0.5)])
    identical, message = compare_tables(committed, longer, "t")
    assert not identical
    assert "(no row)" in message
