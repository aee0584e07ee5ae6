"""What a study says of its table: hand-worked numbers, and verdicts that hold in simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.study import synthetic

from glasshouse.errors import GlasshouseError
from glasshouse.study.analysis import Analysis, analyse, write
from glasshouse.study.bounds import bounds, room
from glasshouse.study.spec import Study, check
from glasshouse.study.table import Row, Table
from glasshouse.study.verdict import Verdict, apart, pairs_needed


def asking(*questions: Mapping[str, Any], null: str | None = "random") -> Study:
    """A study of three arms that asks these."""
    tree = {
        "title": "t",
        "bases": ["a", "b"],
        "arms": {"outcome": {}, "kl": {"learn.kl_coef": 0.3}, "random": {"reward.random": True}},
        "null_arm": null,
        "questions": [{"ask": "?", "measure": "m", "arm": "outcome", **q} for q in questions],
    }
    return check(tree, "the study")


RISES = {"against": "start", "expect": "rises"}


def told(
    arms: Mapping[str, Sequence[Sequence[float | None]]],
    measure: str = "m",
    accuracy: Sequence[float] = (),
) -> Table:
    """Values by arm, seed and step: steps are 0, 10, 20 …; two bases in turn."""
    rows = []
    for arm, seeds in arms.items():
        for seed, values in enumerate(seeds):
            for i, value in enumerate(values):
                more = [("accuracy", accuracy[i])] if accuracy else []
                for name, v in [(measure, value), *more]:
                    base = "ab"[seed % 2]
                    rows.append(
                        Row(arm=arm, seed=seed, step=10 * i, measure=name, base=base, value=v)
                    )
    return Table(rows)


def only(analysis: Analysis) -> Any:
    (answered,) = analysis.answers
    return answered


FLAT = [[0.2, 0.2]] * 3
THREE = [[0.2, 0.5], [0.2, 0.6], [0.2, 0.7]]


def test_the_numbers_are_those_worked_out_by_hand() -> None:
    found = only(analyse(asking(RISES), told({"outcome": THREE, "random": FLAT}))).answer
    effect = found.effect.paired
    # differences .3 .4 .5: mean .4, deviation .1, half = 4.303 · .1 / √3; p = 2/8; d = 4
    half = 4.303 * 0.1 / math.sqrt(3)
    assert effect.effect == pytest.approx(0.4)
    assert (effect.low, effect.high) == pytest.approx((0.4 - half, 0.4 + half))
    assert (effect.p, effect.smallest_p, effect.n, effect.dropped) == (0.25, 0.25, 3, 0)
    assert effect.d == pytest.approx(4.0)
    assert (
        effect.p_holm == 0.25
    )  # one question: the larger of its p and of what goes beyond the null
    assert (found.effect.before, found.effect.after) == pytest.approx((0.2, 0.6))
    assert found.null.paired.effect == 0.0
    assert found.beyond_null.paired.effect == pytest.approx(0.4)
    assert found.by_base["a"].paired.effect == pytest.approx(0.4)  # seeds 0 and 2: .3 and .5
    assert found.by_base["b"].paired.n == 1
    assert found.place == "step 10"


def test_arms_are_compared_at_a_step_and_where_they_are_equally_accurate() -> None:
    """Both go from accuracy .2 to .6 in two steps; m is the arm's own function of the step."""
    table = told({"outcome": [[0.0, 0.0]] * 2, "kl": [[0.0, 0.4], [0.0, 0.8]]}, accuracy=[0.2, 0.6])
    asked = {"arm": "kl", "expect": "rises"}
    found = only(analyse(asking(asked, null=None), table)).answer
    assert (found.against, found.place) == ("outcome", "step 10")
    assert found.effect.paired.effect == pytest.approx(0.6)
    assert found.matched_place == "accuracy 0.400"  # midway between .2 and .6
    assert found.matched.paired.effect == pytest.approx(0.3)  # .2 and .4
    assert found.equal.when == pytest.approx({"kl": 5.0, "outcome": 5.0})
    assert found.equal.early  # between the start and the first evaluation after it
    turned = only(analyse(asking({**asked, "at": "accuracy"}, null=None), table)).answer
    assert (turned.place, turned.matched_place) == ("accuracy 0.400", "step 10")
    assert turned.effect.paired.effect == pytest.approx(0.3)


def test_an_effect_that_goes_with_accuracy_is_gone_where_accuracy_is_equal() -> None:
    """m is accuracy itself: kl lags behind, and at one step it looks different."""
    levels = {"outcome": (0.2, 0.5, 0.8), "kl": (0.2, 0.3, 0.7)}
    rows = []
    for seed, arm, i in product(range(8), levels, range(3)):
        level = levels[arm][i]
        own = level + (0.002 * (seed - 3.5) if arm == "kl" else 0.0)  # zero on average
        for name, value in (("accuracy", level), ("m", own)):
            rows.append(Row(arm=arm, seed=seed, step=10 * i, measure=name, base="a", value=value))
    table = Table(rows)
    found = only(analyse(asking({"arm": "kl", "expect": "falls", "at": 10}, null=None), table))
    assert found.verdict is Verdict.SHOWN
    assert found.answer.effect.paired.effect == pytest.approx(-0.2)
    assert found.answer.matched.paired.effect == pytest.approx(0.0, abs=1e-9)
    assert (
        "step 13.8 in kl, 8.3 in outcome on average: a difference in capability" in found.sentence
    )


def test_the_ceiling_is_the_room_that_is_left() -> None:
    assert bounds("discloses.disclosure") == bounds("monitors.steps: TPR") == (0.0, 1.0)
    assert bounds("kl") is None
    assert (room("reliance", 0.25).rise, room("reliance", 0.25).fall) == (0.75, -0.25)
    assert "no known bounds" in room("cot_characters", 60.0).reason
    found = only(
        analyse(
            asking(RISES | {"measure": "reliance"}),
            told({"outcome": THREE, "random": FLAT}, "reliance"),
        )
    )
    assert found.answer.room.rise == pytest.approx(0.8)


def eight(first: float, last: float, spread: float = 0.01) -> list[list[float]]:
    return [[first, last + spread * (seed - 3.5)] for seed in range(8)]


def test_a_change_that_rl_on_noise_does_as_well_is_not_shown() -> None:
    alone = only(
        analyse(asking(RISES), told({"outcome": eight(0.2, 0.9), "random": eight(0.2, 0.2)}))
    )
    assert alone.verdict is Verdict.SHOWN
    assert "RL on noise does not do the same (outcome − random is +0.70" in alone.sentence
    wiggle = [[0.2, 0.9 + 0.01 * (-1) ** seed] for seed in range(8)]
    drift = only(analyse(asking(RISES), told({"outcome": eight(0.2, 0.9), "random": wiggle})))
    assert apart(drift.answer.effect)
    assert drift.verdict is Verdict.NOT_SHOWN
    assert "not told apart from RL on noise" in drift.sentence
    more = only(
        analyse(asking(RISES), told({"outcome": eight(0.2, 0.5), "random": eight(0.2, 0.9)}))
    )
    assert more.verdict is Verdict.NOT_SHOWN
    assert "RL on noise goes further" in more.sentence


def test_the_opposite_of_what_was_expected_is_called_so() -> None:
    found = only(
        analyse(asking(RISES), told({"outcome": eight(0.9, 0.2), "random": eight(0.9, 0.9)}))
    )
    assert found.verdict is Verdict.OPPOSITE
    assert found.sentence.startswith("Not as predicted: the opposite is shown: m falls in outcome")


def test_that_a_measure_stays_needs_its_whole_interval_within_the_margin() -> None:
    table = told({"kl": eight(0.2, 0.52), "outcome": [[0.2, 0.5]] * 8})
    asked = {"arm": "kl", "expect": "unchanged"}
    # mean .02, deviation .0245: the interval is .02 ± 2.365 · .0245 / √8 = -.0005 to .0405
    for margin, verdict in ((0.041, Verdict.SHOWN), (0.04, Verdict.NOT_SHOWN)):
        found = only(analyse(asking({**asked, "margin": margin}, null=None), table))
        assert found.verdict is verdict, margin
    changed = told({"kl": eight(0.2, 0.9), "outcome": [[0.2, 0.5]] * 8})
    found = only(analyse(asking({**asked, "margin": 0.1}, null=None), changed))
    assert found.verdict is Verdict.OPPOSITE
    assert "a change is shown" in found.sentence
    same = told({"kl": [[0.2, 0.5]] * 2, "outcome": [[0.2, 0.5]] * 2})  # two seeds that agree
    assert (
        only(analyse(asking({**asked, "margin": 0.1}, null=None), same)).verdict
        is Verdict.NOT_SHOWN
    )


def test_so_few_seeds_can_show_nothing_and_the_sentence_says_how_many_could() -> None:
    two = {"outcome": eight(0.2, 0.9)[:2], "random": eight(0.2, 0.2)[:2]}
    found = only(analyse(asking(RISES), told(two)))
    assert found.verdict is Verdict.NOT_SHOWN
    assert (
        "So few seeds can show nothing: 2 pairs give a p of 0.5 at best; 6 would" in found.sentence
    )
    # eight seeds are enough for six questions and not for seven
    arms = {"outcome": eight(0.2, 0.9), "random": eight(0.2, 0.2)}
    for questions, shown in ((6, 6), (7, 0)):
        many = analyse(asking(*[RISES] * questions), told(arms))
        assert [a.verdict for a in many.answers].count(Verdict.SHOWN) == shown
    assert "0.055 after Holm over 7 questions; 9 would be needed" in many.answers[0].sentence
    assert [pairs_needed(n) for n in (1, 6, 7, 8, 12, 13)] == [6, 8, 9, 9, 9, 10]
    for n in range(1, 40):
        assert n * 2.0 ** (1 - pairs_needed(n)) <= 0.05 < n * 2.0 ** (2 - pairs_needed(n))


def test_an_undefined_measure_and_a_missing_seed_are_dropped_and_counted() -> None:
    arms: dict[str, list[list[float | None]]] = {
        "outcome": [list(v) for v in eight(0.2, 0.9)],
        "random": [list(v) for v in eight(0.2, 0.2)][:7],
    }
    arms["outcome"][0][1] = None
    found = only(analyse(asking(RISES), told(arms)))
    assert (found.answer.effect.paired.n, found.answer.effect.paired.dropped) == (7, 1)
    assert (found.answer.null.paired.n, found.answer.null.paired.dropped) == (7, 1)
    assert (found.answer.beyond_null.paired.n, found.answer.beyond_null.paired.dropped) == (6, 2)
    assert "7 paired seeds, 1 dropped for want of a value" in found.sentence
    never = told({"outcome": [[0.2, None]] * 8, "random": [[0.2, 0.2]] * 8})
    nothing = only(analyse(asking(RISES), never))
    assert nothing.verdict is Verdict.UNDEFINED
    assert nothing.sentence.startswith("Not measured: 0 pairs of seeds")


def test_a_question_that_the_runs_cannot_answer_says_why() -> None:
    arms = {"outcome": eight(0.2, 0.9), "random": eight(0.2, 0.2)}
    late = only(analyse(asking({**RISES, "at": 40}), told(arms)))
    assert late.sentence == "Not measured: m was not measured at step 40, but at 0, 10."
    absent = only(analyse(asking({**RISES, "arm": "kl"}), told(arms)))
    assert absent.sentence == "Not measured: kl has no run that measured m."
    alone = only(analyse(asking(RISES), told({"outcome": eight(0.2, 0.9)})))
    assert alone.verdict is Verdict.NOT_SHOWN  # the study has a null arm, and it was not run
    assert "cannot be compared: random has no run that measured m" in alone.sentence
    without = only(analyse(asking(RISES, null=None), told(arms)))
    assert without.verdict is Verdict.SHOWN
    assert "There is no null arm: what RL on noise does is not known." in without.sentence
    with pytest.raises(
        GlasshouseError, match=r'No run measured "relianse". Did you mean "reliance"\?'
    ):
        analyse(asking({**RISES, "measure": "relianse"}), told(arms, "reliance"))
    with pytest.raises(GlasshouseError, match="Did you mean"):
        analyse(synthetic.study(measures={"relianc": "x"}), synthetic.table())
    rows = [*told(arms), Row(arm="kl", seed=0, step=0, measure="m", base="other", value=0.1)]
    with pytest.raises(GlasshouseError, match="Seed 0 starts from"):
        analyse(asking(RISES), Table(rows))


def test_bases_that_disagree_are_named() -> None:
    outcome = [[0.5, 0.9 if seed % 2 else 0.4] for seed in range(8)]
    found = only(analyse(asking(RISES), told({"outcome": outcome, "random": eight(0.5, 0.5)})))
    assert "By base: a -0.10, b +0.40: not one direction in all bases." in found.sentence


def test_the_study_is_told_from_what_is_shown_to_what_is_not() -> None:
    found = analyse(synthetic.study(), synthetic.table())
    assert [a.verdict for a in found.answers] == [
        Verdict.SHOWN, Verdict.NOT_SHOWN, Verdict.SHOWN, Verdict.SHOWN,
    ]  # fmt: skip
    assert found.headline.startswith("Shown: reliance rises in outcome (+0.7")
    assert found.headline.index("Shown:") < found.headline.index("Not shown: that disc")
    assert found.answers[2].answer.companions["penalty"]["kl"].n == 8
    line = found.line("kl", "reliance")
    assert line is not None
    assert line.steps == synthetic.STEPS
    assert sorted(line.last) == list(range(8))
    assert sum(line.last.values()) / 8 == pytest.approx(line.mean[-1])  # type: ignore[arg-type]


def test_the_same_table_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    table = synthetic.table()
    texts = []
    for name, rows in (("a", table.rows), ("b", table.rows[::-1])):
        texts.append(write(analyse(synthetic.study(), Table(rows)), tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    read = json.loads(texts[0])
    assert list(read) == sorted(read)
    assert str(tmp_path) not in texts[0].decode()
    first = read["questions"][0]
    for key in ("effect", "null", "beyond_null", "ceiling", "companions", "by_base", "verdict"):
        assert key in first
    for key in ("effect", "low", "high", "p", "p_holm", "smallest_p", "d", "n", "dropped"):
        assert key in first["effect"]


# --- simulated studies: do the verdicts keep what they promise? -------------------------------

QUESTIONS = (
    RISES,
    {"arm": "kl", "expect": "falls"},
    {"arm": "random", "expect": "rises"},
)


def simulated(rng: Any, effect: Mapping[str, float]) -> Table:
    """Eight seeds; an arm's end is its start, its effect, and noise of deviation 1."""
    start = rng.normal(0, 1, 8)
    arms = {
        arm: [[s, s + effect.get(arm, 0.0) + rng.normal()] for s in start]
        for arm in ("outcome", "kl", "random")
    }
    return told(arms)


def test_where_nothing_happens_at_most_one_study_in_twenty_claims_something() -> None:
    rng, studies, wrong = np.random.default_rng(7), 600, 0
    claims = (Verdict.SHOWN, Verdict.OPPOSITE)
    asked = asking(*QUESTIONS[1:], {"arm": "kl", "against": "random", "expect": "rises"}, null=None)
    for _ in range(studies):
        wrong += any(a.verdict in claims for a in analyse(asked, simulated(rng, {})).answers)
    # exact binomial: 42 or more of 600 at a true share of 5 % has a chance below 2 %
    assert 0 < wrong <= 42


def test_against_the_start_the_null_arm_makes_false_claims_rarer_still() -> None:
    """Under drift, which all arms share, the start alone would be a claim in most studies."""
    rng, studies = np.random.default_rng(8), 200
    drift = {"outcome": 2.0, "kl": 2.0, "random": 2.0}
    found = [only(analyse(asking(RISES), simulated(rng, drift))) for _ in range(studies)]
    from_start = sum(apart(a.answer.effect) for a in found)
    claimed = sum(a.verdict is Verdict.SHOWN for a in found)
    assert from_start > 0.5 * studies
    assert claimed <= 0.08 * studies


def test_an_effect_of_two_deviations_is_mostly_shown_with_eight_seeds() -> None:
    rng, studies = np.random.default_rng(9), 200
    asked = asking(
        {"arm": "kl", "expect": "rises"},
        {"arm": "random", "expect": "unchanged", "margin": 9.0},
        null=None,
    )
    effect = {"kl": 2.0 * math.sqrt(2)}  # the difference of two arms has the deviation √2
    shown = sum(
        analyse(asked, simulated(rng, effect)).answers[0].verdict is Verdict.SHOWN
        for _ in range(studies)
    )
    assert shown > 0.8 * studies


def test_two_measures_of_the_same_runs_are_compared_within_an_arm() -> None:
    seen = told({"outcome": eight(0.2, 0.9), "random": eight(0.2, 0.3)}, measure="cot")
    floor = told({"outcome": eight(0.2, 0.5), "random": eight(0.2, 0.3)}, measure="answer")
    found = only(
        analyse(
            asking({"measure": "cot", "over": "answer", "expect": "rises"}),
            Table([*seen, *floor]),
        )
    )
    assert found.answer.effect.paired.effect == pytest.approx(0.4)
    assert found.verdict is Verdict.SHOWN
    assert "cot is higher in outcome than answer at step 10: 0.90 against 0.50" in found.sentence
    assert "In the null arm, random, the effect is +0.00" in found.sentence


def test_a_question_may_have_a_null_arm_of_its_own() -> None:
    tree = asking(RISES, {**RISES, "null_arm": "kl"})
    arms = {"outcome": eight(0.2, 0.9), "kl": eight(0.2, 0.9), "random": eight(0.2, 0.2)}
    first, second = analyse(tree, told(arms)).answers
    assert first.verdict is Verdict.SHOWN
    assert second.verdict is Verdict.NOT_SHOWN
    assert second.answer.null is not None
    assert second.answer.null.arm == "kl"


def test_the_claim_beyond_noise_costs_a_question_one_test_and_not_two() -> None:
    """Both of its tests must pass, so the larger p is the claim's: six questions fit eight seeds."""
    found = analyse(
        asking(*[RISES] * 6), told({"outcome": eight(0.2, 0.9), "random": eight(0.2, 0.2)})
    )
    assert found.tests == 6
    assert all(a.verdict is Verdict.SHOWN for a in found.answers)
