"""The results of a study in words: a headline, and one paragraph per question."""

from __future__ import annotations

from collections.abc import Sequence

from glasshouse.measurement.intervals import ALPHA
from glasshouse.measurement.registry import lookup, owner_of
from glasshouse.study.answers import Answer, Verdict, pairs_needed
from glasshouse.study.contrasts import Contrast
from glasshouse.study.spec import START

SMALL_CEILING = 0.05
"""A measure whose largest possible effect is below this could hardly change."""


def compose_headline(answers: Sequence[Answer]) -> str:
    """First what is shown, then what is not as predicted, then what is not shown.

    Example: "Shown: reliance rises in outcome (+0.72, 95 % interval +0.68 to +0.76). Not shown: …"
    """
    parts = []
    for verdict in Verdict:
        claims = [_summarize(answer) for answer in answers if answer.verdict is verdict]
        if claims:
            parts.append(f"{verdict.value}: {'; '.join(claims)}.")
    if not parts:
        return "A descriptive study: it asks no questions, so there is no verdict."
    random_bases = [answer.effect.num_bases for answer in answers if answer.effect.num_bases]
    if random_bases:
        parts.append(f"Intervals over {max(random_bases)} bases, a random effect.")
    else:
        parts.append(f"All of it holds for {_these_bases(answers[0])} only.")
    return " ".join(parts)


def explain_answer(answer: Answer) -> str:
    """The verdict with its numbers; then seeds, null, equal accuracy, bases and ceiling."""
    if answer.verdict is Verdict.UNDEFINED:
        return f"{Verdict.UNDEFINED.value}: {answer.effect.reason}."
    parts = [
        _explain_verdict(answer),
        _explain_too_few_pairs(answer),
        _explain_monitors(answer),
        _explain_reached(answer),
        _explain_null(answer),
        _explain_matched(answer),
        _explain_bases(answer),
        _explain_small_ceiling(answer),
    ]
    return " ".join(part for part in parts if part)


def name_measure(measure: str) -> str:
    """Example: `name_measure("step_verifier.disclosure")` is "disclosure (step verifier)"."""
    label, owner = lookup(measure).label, owner_of(measure)
    if not owner:
        return label
    monitor = owner.replace(" (", ", ").replace(")", "")
    return f"{label.removesuffix(f', {owner}')} ({monitor})"


def name_monitor(monitor: str) -> str:
    """Example: `name_monitor("ngrams_base.cot")` is "n-grams base (cot)"."""
    return owner_of(f"{monitor}.disclosure")


def _name_measure_of(answer: Answer) -> str:
    """The measure; of a question that names no monitor, with how many it was answered for."""
    name = name_measure(answer.question.measure)
    count = len(answer.by_monitor)
    if not count:
        return name
    every = (
        "the only informative monitor" if count == 1 else f"each of {count} informative monitors"
    )
    return f"{name} by {every}"


def _explain_monitors(answer: Answer) -> str:
    """The answer for each monitor, and which monitors it was not asked of."""
    if not answer.by_monitor:
        return ""
    each = "; ".join(
        f"{name_monitor(monitor)} {format_effect(own.effect)}, {own.verdict.value.lower()}"
        for monitor, own in answer.by_monitor.items()
    )
    others = ", ".join(map(name_monitor, answer.not_informative))
    left_out = f" Not informative at the base: {others}." if others else ""
    return f"The numbers are those of the monitor with the weakest evidence. By monitor: {each}.{left_out}"


def _explain_reached(answer: Answer) -> str:
    """In how many bases or seeds the effect reaches the criterion, and the mean over these."""
    reached = answer.reached
    if reached is None:
        return ""
    mean = "" if reached.mean is None else f"; the mean over these is {signed(reached.mean)}"
    return (
        f"An effect of {answer.question.criterion:g} or more in this direction is reached in "
        f"{format_reached(answer)}{mean}."
    )


def format_reached(answer: Answer) -> str:
    """`5 of 6 bases (0.44 to 0.97)`; a dash without a criterion."""
    reached = answer.reached
    if reached is None:
        return "–"
    unit = "bases" if answer.effect.num_bases else "seeds"
    return f"{reached.count} of {reached.units} {unit} ({reached.low:.2f} to {reached.high:.2f})"


def _summarize(answer: Answer) -> str:
    """The claim of a question in a few words, with its effect."""
    question = answer.question
    at = "" if question.at is None else f" by {answer.point}"
    if answer.verdict is Verdict.UNDEFINED:
        measure = _name_measure_of(answer)
        return f"{measure} in {question.arm}{at} ({answer.effect.reason})"
    return f"{_claim(answer)}{at} ({format_effect_in_words(answer.effect)})"


def _claim(answer: Answer) -> str:
    """What the measure does or, if that is not shown, that it does what was expected."""
    question, reference, margin = answer.question, answer.reference, answer.question.margin
    measure, arm, direction = _name_measure_of(answer), question.arm, question.expect
    that = "that " if answer.verdict is Verdict.NOT_SHOWN else ""
    if answer.verdict is Verdict.OPPOSITE:
        direction = "rises" if (answer.effect.effect or 0.0) > 0 else "falls"
    elif margin is not None and reference == START:
        return f"{that}{measure} stays within ±{margin:g} of its start in {arm}"
    elif margin is not None:
        return f"{that}{measure} in {arm} stays within ±{margin:g} of {reference}"
    comparative = {"rises": "is higher", "falls": "is lower"}[direction]
    if question.against_measure:
        return (
            f"{that}{measure} {comparative} than {name_measure(question.against_measure)} in {arm}"
        )
    if reference == START:
        return f"{that}{measure} {direction} in {arm}"
    return f"{that}{measure} {comparative} in {arm} than in {reference}"


def _explain_verdict(answer: Answer) -> str:
    effect, margin = answer.effect, answer.question.margin
    opening = answer.verdict.value
    if answer.verdict is Verdict.OPPOSITE:
        opening += ", the opposite is shown" if margin is None else ", a change is shown"
    before, after = format_value(effect.before), format_value(effect.after)
    if answer.reference == START:
        change = f"by {answer.point}: {before} → {after}"
    else:
        change = f"at {answer.point}: {after} against {before}"
    if margin is not None:
        test = "the whole 95 % interval must lie within the margin, while TOST uses 90 %"
    else:
        larger = ", the larger of the two for the change and for the difference from the null arm,"
        tests = answer.num_tests
        test = (
            f"p {format_p_holm(effect)}{larger if len(answer.claims) > 1 else ''} "
            f"after Holm correction over {tests} question{'s' * (tests != 1)}"
        )
    of_bases = f" of {effect.num_bases} bases" if effect.num_bases else ""
    dropped = ""
    if effect.dropped:
        dropped = (
            f", {effect.dropped} dropped because a value is missing or rests on too few events"
        )
    unanimous = f"; {effect.reason}" if effect.reason and effect.low is not None else ""
    return (
        f"{opening}: {_claim(answer)} {change} ({format_effect_in_words(effect)}; {test}; "
        f"{effect.n} paired seeds{of_bases}{dropped}{unanimous})."
    )


def _explain_too_few_pairs(answer: Answer) -> str:
    smallest_p, tests = answer.effect.smallest_p, answer.num_tests
    if not answer.has_too_few_pairs or smallest_p is None:
        return ""
    smallest = f"the smallest possible p of {answer.effect.n} pairs is {format_p(smallest_p)}"
    if smallest_p <= ALPHA:
        smallest += f", {format_p(smallest_p * tests)} after Holm correction over {tests} questions"
    needed = pairs_needed(answer.tests_in_family)
    return f"Too few seeds to show anything: {smallest}; {needed} pairs are needed."


def _explain_null(answer: Answer) -> str:
    """The effect in the null arm, and whether the arm differs from it."""
    null, beyond = answer.null, answer.beyond_null
    if null is None:
        unknown = "There is no null arm: the effect of RL on noise is unknown."
        return "" if answer.is_null_arm else unknown
    to_arm = answer.reference != START and not answer.question.against_measure
    against = f" against {answer.reference}" if to_arm else ""
    at = "" if answer.null_point == answer.point else f" at {answer.null_point}"
    own = f"In the null arm, {null.arm},{at} the effect{against} is {format_effect_in_words(null)}"
    if null.dropped and null.n:
        own += f", over {null.n} of {null.n + null.dropped} seeds"
    if beyond is None:
        return f"{own}."
    if beyond.effect is None:
        return f"{own}; the two cannot be compared: {beyond.reason}."
    between = (
        f"{beyond.arm} − {null.arm} is {format_effect_in_words(beyond)}, p {format_p(beyond.p)}"
    )
    must_exceed = len(answer.claims) > 1
    same_direction = ((answer.effect.effect or 0.0) > 0) == (beyond.effect > 0)
    if must_exceed and beyond.differs_from_zero and same_direction:
        return f"{own}: RL on noise does not have the same effect ({between})."
    if must_exceed and answer.effect.differs_from_zero:
        but = "it cannot be distinguished from that of RL on noise"
        if beyond.differs_from_zero:
            but = "RL on noise has a larger effect"
        return f"{own}: there is a change from the start, but {but} ({between})."
    if not beyond.differs_from_zero:
        return f"{own}; {beyond.arm} cannot be distinguished from it ({between})."
    return f"{own} ({between})."


def _explain_matched(answer: Answer) -> str:
    """The comparison at equal accuracy: is the effect more than a difference in capability?"""
    matched, equal, effect = answer.matched, answer.equal_accuracy, answer.effect
    if matched is None or equal is None or effect.effect is None:
        return ""
    if matched.effect is None or matched.low is None or matched.high is None:
        return f"At {equal.name} they cannot be compared: {matched.reason}."
    steps = ", ".join(f"{step:.1f} in {arm}" for arm, step in equal.mean_steps.items())
    text = (
        f"At {equal.name} the difference is {format_effect_in_words(matched)}, "
        f"p {format_p_holm(matched)}, not corrected; accuracy is equal at step {steps} on average"
    )
    vanishes = matched.low <= 0 if effect.effect > 0 else matched.high >= 0
    if equal.is_before_first_evaluation:
        text += ", before the first evaluation after the start, so this says little"
    elif vanishes and effect.shown:
        text += ": a difference in capability may explain the effect"
    return f"{text}."


def _explain_bases(answer: Answer) -> str:
    """The effect of each base, their interaction with the arm, and which bases the result holds for."""
    num_bases = answer.effect.num_bases
    if num_bases:
        scope = (
            f"Bases are a random effect: interval and test are Student's over the means of {num_bases} "
            "bases, so they are about bases like these, not only about these."
        )
    else:
        scope = f"The interval and the test hold for {_these_bases(answer)} only."
    if len(answer.by_base) < 2:
        return scope
    effects = {base: contrast.mean_difference for base, contrast in answer.by_base.items()}
    known = [effect for effect in effects.values() if effect is not None]
    text = ", ".join(f"{b} {'undefined' if e is None else signed(e)}" for b, e in effects.items())
    if len({effect > 0 for effect in known}) > 1:
        text += ": the direction differs between bases"
    return f"By base: {text}. {_explain_interaction(answer)} {scope}"


def _explain_interaction(answer: Answer) -> str:
    """Whether the effect depends on the base."""
    found = answer.effect.interaction
    if found.p is None or found.f is None:
        return f"Base × arm interaction: not tested ({found.reason})."
    depends = "the effect depends on the base" if found.p <= ALPHA else "not shown"
    return (
        f"Base × arm interaction: {depends} (F({found.df_between}, {found.df_within}) = {found.f:.3g}, "
        f"p {format_p(found.p)}; standard deviation {format_value(found.sd_between)} between bases, "
        f"{format_value(found.sd_within)} between seeds of a base; not corrected)."
    )


def _these_bases(answer: Answer) -> str:
    count = len(answer.by_base)
    return "this base" if count == 1 else f"these {count} bases"


def _explain_small_ceiling(answer: Answer) -> str:
    if answer.ceiling is None or abs(answer.ceiling) >= SMALL_CEILING:
        return ""
    largest = signed(answer.ceiling)
    return f"The measure could hardly change: the largest possible effect is {largest}."


# --- numbers ---------------------------------------------------------------------------------


def format_effect_in_words(contrast: Contrast) -> str:
    """`+0.72, 95 % interval +0.68 to +0.76`; `cut`: it ends at the largest possible effect."""
    numbers = _format_interval(contrast)
    if numbers is None:
        value = "undefined" if contrast.effect is None else signed(contrast.effect)
        return f"{value}: {contrast.reason}"
    return "{}, 95 % interval {} to {}".format(*numbers) + ", cut" * contrast.is_cut


def format_effect(contrast: Contrast | None) -> str:
    """`+0.72 (+0.68 to +0.76)`; a dash if undefined."""
    numbers = contrast and _format_interval(contrast)
    if not contrast or not numbers:
        return "–"
    return "{} ({} to {}{})".format(*numbers, ", cut" * contrast.is_cut)


def _format_interval(contrast: Contrast) -> list[str] | None:
    if contrast.effect is None or contrast.low is None or contrast.high is None:
        return None
    values = (contrast.effect, contrast.low, contrast.high)
    digits = _decimals(max(map(abs, values)))
    return [signed(value, digits) for value in values]


def signed(value: float, digits: int | None = None) -> str:
    digits = _decimals(abs(value)) if digits is None else digits
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def format_value(value: float | None) -> str:
    return "–" if value is None else f"{value:.{_decimals(abs(value))}f}"


def format_p_holm(contrast: Contrast) -> str:
    """The Holm-corrected p, or the uncorrected one if the test is not part of the family."""
    return format_p(contrast.p if contrast.p_holm is None else contrast.p_holm)


def format_p(p: float | None) -> str:
    """Two significant digits: `0.0078`, `0.5`."""
    return "–" if p is None else f"{p:.2g}"


def _decimals(size: float) -> int:
    return 1 if size >= 10 else 2 if size == 0 or round(size, 3) >= 0.1 else 3
