"""The results of a study in words: a headline, and one paragraph per question."""

from __future__ import annotations

from collections.abc import Sequence

from glasshouse.measurement.paired_seeds import ALPHA
from glasshouse.measurement.registry import lookup, owner_of
from glasshouse.study.questions import Comparison, Contrast
from glasshouse.study.spec import START
from glasshouse.study.verdict import (
    Verdict,
    decide_verdict,
    differs_from_zero,
    has_too_few_pairs,
    pairs_needed,
    tests_in_family,
)

SMALL_CEILING = 0.05
"""A measure whose largest possible effect is below this could hardly change."""


def compose_headline(comparisons: Sequence[Comparison]) -> str:
    """First what is shown, then what is not as predicted, then what is not shown.

    Example: "Shown: reliance rises in outcome (+0.72, 95 % interval +0.68 to +0.76). Not shown: …"
    """
    parts = []
    for verdict in Verdict:
        claims = [summarize_claim(c, verdict) for c in comparisons if decide_verdict(c) is verdict]
        if claims:
            parts.append(f"{verdict.value}: {'; '.join(claims)}.")
    if not parts:
        return "The study has no questions."
    bases = max(len(comparison.by_base) for comparison in comparisons)
    over_bases = {c.effect.paired.num_bases for c in comparisons} - {None}
    if over_bases:
        parts.append(f"Intervals over {max(n for n in over_bases if n)} bases, a random effect.")
    else:
        parts.append(
            f"All of it holds for {'this base' if bases == 1 else f'these {bases} bases'} only."
        )
    return " ".join(parts)


def explain_comparison(comparison: Comparison) -> str:
    """The verdict with its numbers; then seeds, null, equal accuracy, bases and ceiling."""
    if decide_verdict(comparison) is Verdict.UNDEFINED:
        return f"{Verdict.UNDEFINED.value}: {comparison.effect.paired.reason}."
    parts = [
        _explain_verdict(comparison),
        _explain_too_few_pairs(comparison),
        _explain_null(comparison),
        _explain_matched(comparison),
        _explain_bases(comparison),
        _explain_small_ceiling(comparison),
    ]
    return " ".join(part for part in parts if part)


def summarize_claim(comparison: Comparison, verdict: Verdict) -> str:
    """The claim of a question in a few words, with its effect."""
    question = comparison.question
    at = f" by {comparison.point}" if isinstance(question.at, int) else ""
    if verdict is Verdict.UNDEFINED:
        reason = comparison.effect.paired.reason
        return f"{name_measure(question.measure)} in {question.arm}{at} ({reason})"
    that = "that " if verdict is Verdict.NOT_SHOWN else ""
    return f"{that}{_claim(comparison, verdict)}{at} ({format_effect_in_words(comparison.effect)})"


def name_measure(measure: str) -> str:
    """Example: `name_measure("step_verifier.disclosure")` is "disclosure (step verifier)"."""
    label, owner = lookup(measure).label, owner_of(measure)
    if not owner:
        return label
    monitor = owner.replace(" (", ", ").replace(")", "")
    return f"{label.removesuffix(f', {owner}')} ({monitor})"


def _claim(comparison: Comparison, verdict: Verdict) -> str:
    """What the measure does or, if that is not shown, what it was expected to do."""
    question, reference = comparison.question, comparison.reference
    measure, direction = name_measure(question.measure), question.expect
    if verdict is Verdict.OPPOSITE:
        direction = "rises" if (comparison.effect.paired.effect or 0.0) > 0 else "falls"
    elif question.margin is not None:
        if reference == START:
            return f"{measure} stays within ±{question.margin:g} of its start in {question.arm}"
        return f"{measure} in {question.arm} stays within ±{question.margin:g} of {reference}"
    comparative = {"rises": "is higher", "falls": "is lower"}[direction]
    if question.against_measure:
        other = name_measure(question.against_measure)
        return f"{measure} {comparative} than {other} in {question.arm}"
    if reference == START:
        return f"{measure} {direction} in {question.arm}"
    return f"{measure} {comparative} in {question.arm} than in {reference}"


def _explain_verdict(comparison: Comparison) -> str:
    verdict, question = decide_verdict(comparison), comparison.question
    opening = verdict.value
    if verdict is Verdict.OPPOSITE:
        opening += (
            ", a change is shown" if question.margin is not None else ", the opposite is shown"
        )
    that = "that " if verdict is Verdict.NOT_SHOWN else ""
    before, after = format_value(comparison.effect.before), format_value(comparison.effect.after)
    change = (
        f"by {comparison.point}: {before} → {after}"
        if comparison.reference == START
        else f"at {comparison.point}: {after} against {before}"
    )
    effect = format_effect_in_words(comparison.effect)
    return (
        f"{opening}: {that}{_claim(comparison, verdict)} {change} "
        f"({effect}; {_explain_test(comparison)}; {_count_seeds(comparison)})."
    )


def _explain_test(comparison: Comparison) -> str:
    if comparison.question.margin is not None:
        return "the whole 95 % interval must lie within the margin, while TOST uses 90 %"
    larger = ", the larger of the two for the change and for the difference from the null arm,"
    tests = comparison.num_tests
    return (
        f"p {format_p_holm(comparison.effect)}{larger if comparison.must_exceed_null else ''} "
        f"after Holm correction over {tests} question{'s' * (tests != 1)}"
    )


def _count_seeds(comparison: Comparison) -> str:
    p = comparison.effect.paired
    dropped = f", {p.dropped} dropped because a value is missing" if p.dropped else ""
    of_bases = f" of {p.num_bases} bases" if p.num_bases else ""
    unanimous = f"; {p.reason}" if p.reason and p.low is not None else ""
    return f"{p.n} paired seeds{of_bases}{dropped}{unanimous}"


def _explain_too_few_pairs(comparison: Comparison) -> str:
    p, tests = comparison.effect.paired, comparison.num_tests
    if not has_too_few_pairs(comparison) or p.smallest_p is None:
        return ""
    smallest = f"the smallest possible p of {p.n} pairs is {format_p(p.smallest_p)}"
    if p.smallest_p <= ALPHA:
        smallest += (
            f", {format_p(p.smallest_p * tests)} after Holm correction over {tests} questions"
        )
    needed = pairs_needed(tests_in_family(comparison))
    return f"Too few seeds to show anything: {smallest}; {needed} pairs are needed."


def _explain_null(comparison: Comparison) -> str:
    """The effect in the null arm, and whether the arm differs from it."""
    null, beyond = comparison.null, comparison.beyond_null
    if null is None:
        is_null_arm = comparison.why_no_null.endswith("is the null arm")
        return "" if is_null_arm else "There is no null arm: the effect of RL on noise is unknown."
    to_arm = comparison.reference != START and not comparison.question.against_measure
    against = f" against {comparison.reference}" if to_arm else ""
    at = f" at {comparison.null_point}" if comparison.question.null_at == "kl" else ""
    own = f"In the null arm, {null.arm},{at} the effect{against} is {format_effect_in_words(null)}"
    if beyond is None:
        return f"{own}."
    if beyond.paired.effect is None:
        return f"{own}; the two cannot be compared: {beyond.paired.reason}."
    between = f"{beyond.arm} − {null.arm} is {format_effect_in_words(beyond)}, p {format_p(beyond.paired.p)}"
    same_direction = ((comparison.effect.paired.effect or 0.0) > 0) == (beyond.paired.effect > 0)
    if comparison.must_exceed_null and differs_from_zero(beyond) and same_direction:
        return f"{own}: RL on noise does not have the same effect ({between})."
    if comparison.must_exceed_null and differs_from_zero(comparison.effect):
        but = (
            "RL on noise has a larger effect"
            if differs_from_zero(beyond)
            else "it cannot be distinguished from that of RL on noise"
        )
        return f"{own}: there is a change from the start, but {but} ({between})."
    if not differs_from_zero(beyond):
        return f"{own}; {beyond.arm} cannot be distinguished from it ({between})."
    return f"{own} ({between})."


def _explain_matched(comparison: Comparison) -> str:
    """The comparison at equal accuracy: is the effect more than a difference in capability?"""
    matched, effect, equal = (
        comparison.matched,
        comparison.effect.paired.effect,
        comparison.equal_accuracy,
    )
    if matched is None or effect is None:
        return ""
    p = matched.paired
    if p.effect is None or p.low is None or p.high is None:
        return f"At {comparison.matched_point} they cannot be compared: {p.reason}."
    steps = ", ".join(
        f"{step:.1f} in {arm}" for arm, step in (equal.mean_steps if equal else {}).items()
    )
    text = (
        f"At {comparison.matched_point} the difference is {format_effect_in_words(matched)}, "
        f"p {format_p_holm(matched)}, not corrected; accuracy is equal at step {steps} on average"
    )
    vanishes = p.low <= 0 if effect > 0 else p.high >= 0
    if equal and equal.is_before_first_evaluation:
        text += ", before the first evaluation after the start, so this says little"
    elif (
        vanishes and comparison.effect.paired.shown and not comparison.point.startswith("accuracy")
    ):
        text += ": a difference in capability may explain the effect"
    return f"{text}."


def _explain_bases(comparison: Comparison) -> str:
    """The effect of each base, their interaction with the arm, and which bases the result holds for."""
    scope = _explain_scope(comparison)
    if len(comparison.by_base) < 2:
        return scope
    effects = {base: contrast.mean_difference for base, contrast in comparison.by_base.items()}
    text = ", ".join(
        f"{base} {'undefined' if effect is None else format_signed(effect)}"
        for base, effect in effects.items()
    )
    if len({effect > 0 for effect in effects.values() if effect is not None}) > 1:
        text += ": the direction differs between bases"
    return f"By base: {text}. {_explain_interaction(comparison)} {scope}"


def _explain_interaction(comparison: Comparison) -> str:
    """Whether the effect depends on the base."""
    interaction = comparison.effect.interaction
    if interaction.p is None or interaction.f is None:
        return f"Base × arm interaction: not tested ({interaction.reason})."
    numbers = (
        f"F({interaction.df_between}, {interaction.df_within}) = {interaction.f:.3g}, "
        f"p {format_p(interaction.p)}"
    )
    depends = "the effect depends on the base" if interaction.p <= ALPHA else "not shown"
    deviations = (
        f"standard deviation {format_value(interaction.sd_between)} between bases, "
        f"{format_value(interaction.sd_within)} between seeds of a base"
    )
    return f"Base × arm interaction: {depends} ({numbers}; {deviations}; not corrected)."


def _explain_scope(comparison: Comparison) -> str:
    """Which bases the interval and the test are about."""
    num_bases = comparison.effect.paired.num_bases
    if num_bases:
        return (
            f"Bases are a random effect: interval and test are Student's over the means of {num_bases} "
            "bases, so they are about bases like these, not only about these."
        )
    count = len(comparison.by_base)
    only = "this base" if count == 1 else f"these {count} bases"
    return f"The interval and the test hold for {only} only."


def _explain_small_ceiling(comparison: Comparison) -> str:
    largest = {"rises": comparison.max_effect.rise, "falls": comparison.max_effect.fall}
    ceiling = largest.get(comparison.question.expect)
    if ceiling is None or abs(ceiling) >= SMALL_CEILING:
        return ""
    return (
        f"The measure could hardly change: the largest possible effect is {format_signed(ceiling)}."
    )


# --- numbers ---------------------------------------------------------------------------------


def format_effect_in_words(contrast: Contrast) -> str:
    """`+0.72, 95 % interval +0.68 to +0.76`"""
    numbers = _format_interval(contrast)
    if numbers is None:
        mean = contrast.paired.effect
        value = "undefined" if mean is None else format_signed(mean)
        return f"{value}: {contrast.paired.reason}"
    effect, low, high = numbers
    return f"{effect}, 95 % interval {low} to {high}"


def format_effect(contrast: Contrast) -> str:
    """`+0.72 (+0.68 to +0.76)`; a dash if undefined."""
    numbers = _format_interval(contrast)
    return "–" if numbers is None else f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def _format_interval(contrast: Contrast) -> tuple[str, str, str] | None:
    p = contrast.paired
    if p.effect is None or p.low is None or p.high is None:
        return None
    digits = _decimals(max(abs(p.effect), abs(p.low), abs(p.high)))
    return _signed(p.effect, digits), _signed(p.low, digits), _signed(p.high, digits)


def format_signed(value: float) -> str:
    return _signed(value, _decimals(abs(value)))


def format_value(value: float | None) -> str:
    return "–" if value is None else f"{value:.{_decimals(abs(value))}f}"


def format_p_holm(contrast: Contrast) -> str:
    """The Holm-corrected p, or the uncorrected one if the test is not part of the family."""
    p = contrast.paired
    return format_p(p.p if p.p_holm is None else p.p_holm)


def format_p(p: float | None) -> str:
    """Two significant digits: `0.0078`, `0.5`."""
    return "–" if p is None else f"{p:.2g}"


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def _decimals(size: float) -> int:
    return 1 if size >= 10 else 2 if size == 0 or round(size, 3) >= 0.1 else 3
