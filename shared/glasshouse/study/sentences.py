"""What a study says, in sentences: a headline, and one paragraph a question."""

from __future__ import annotations

from collections.abc import Sequence

from glasshouse.estimation.paired_seeds import ALPHA
from glasshouse.study.questions import Answer, Contrast
from glasshouse.study.spec import START
from glasshouse.study.verdict import Verdict, apart, decide, pairs_needed, tests, too_few

LITTLE_ROOM = 0.05
"""A measure with less room than this could hardly have moved."""


def headline(answers: Sequence[Answer]) -> str:
    """First what is shown, then what is not as predicted, then what is not shown.

    Example: "Shown: reliance rises in outcome (+0.72, 95 % interval +0.68 to +0.76). Not shown: …"
    """
    parts = []
    for verdict in Verdict:
        told = [claim(a, verdict) for a in answers if decide(a) is verdict]
        if told:
            parts.append(f"{verdict.value}: {'; '.join(told)}.")
    return " ".join(parts) or "The study asks no question."


def sentence(a: Answer) -> str:
    """The verdict with its figures; then seeds, null, equal accuracy, bases and room."""
    if a.effect.paired.effect is None:
        return f"{Verdict.UNDEFINED.value}: {a.effect.paired.reason}."
    parts = [_verdict(a), _few(a), _null(a), _matched(a), _bases(a), _room(a)]
    return " ".join(part for part in parts if part)


def claim(a: Answer, verdict: Verdict) -> str:
    """A question in a few words."""
    early = f" by {a.place}" if isinstance(a.question.at, int) else ""
    where = f"in {a.question.arm}{_against(a)}{early}"
    if verdict is Verdict.UNDEFINED:
        return f"{a.question.measure} {where} ({a.effect.paired.reason})"
    that = "that " if verdict is Verdict.NOT_SHOWN else ""
    return f"{that}{a.question.measure} {_does(a, verdict)} {where} ({span(a.effect)})"


def _against(a: Answer) -> str:
    if a.question.over:
        return f" than {a.question.over}"
    return "" if a.against == START else f" against {a.against}"


def _does(a: Answer, verdict: Verdict) -> str:
    """What the measure does; where that is not shown, what it was expected to do."""
    does: str = a.question.expect
    if verdict is Verdict.OPPOSITE:
        does = "rises" if (a.effect.paired.effect or 0.0) > 0 else "falls"
    elif a.question.margin is not None:
        return f"stays within ±{a.question.margin:g}"
    return {"rises": "is higher", "falls": "is lower"}[does] if a.question.over else does


def _verdict(a: Answer) -> str:
    verdict, q = decide(a), a.question
    opening = verdict.value
    if verdict is Verdict.OPPOSITE:
        opening += ": a change is shown" if q.margin is not None else ": the opposite is shown"
    lead = "that " if verdict is Verdict.NOT_SHOWN else ""
    before, after = plain(a.effect.before), plain(a.effect.after)
    if a.against == START:
        what = f"{q.measure} {_does(a, verdict)} in {q.arm} by {a.place}: {before} → {after}"
    else:
        what = (
            f"{q.measure} {_does(a, verdict)} in {q.arm}{_against(a)} at {a.place}: "
            f"{after} against {before}"
        )
    return f"{opening}: {lead}{what} ({span(a.effect)}; {_test(a)}; {_seeds(a)})."


def _test(a: Answer) -> str:
    if a.question.margin is not None:
        return "the whole 95 % interval must lie within the margin, where TOST takes 90 %"
    larger = ", the larger of this and of what goes beyond noise," if a.held_to_null else ""
    return f"p {p_value(a.effect)}{larger} after Holm over {a.tests} question{'s' * (a.tests != 1)}"


def _seeds(a: Answer) -> str:
    p = a.effect.paired
    dropped = f", {p.dropped} dropped for want of a value" if p.dropped else ""
    return f"{p.n} paired seeds{dropped}"


def _few(a: Answer) -> str:
    p = a.effect.paired
    if not too_few(a) or p.smallest_p is None:
        return ""
    best = f"{p.n} pairs give a p of {probability(p.smallest_p)} at best"
    if p.smallest_p <= ALPHA:
        best += f", {probability(p.smallest_p * a.tests)} after Holm over {a.tests} questions"
    return f"So few seeds can show nothing: {best}; {pairs_needed(tests(a))} would be needed."


def _null(a: Answer) -> str:
    """The null arm's own effect, and whether the arm can be told from it."""
    if a.null is None:
        itself = "itself" in a.why_no_null
        return "" if itself else "There is no null arm: what RL on noise does is not known."
    name, beyond = a.null.arm, a.beyond_null
    against = "" if a.against == START or a.question.over else f" against {a.against}"
    own = f"In the null arm, {name}, the effect{against} is {span(a.null)}"
    if beyond is None:
        return f"{own}."
    if beyond.paired.effect is None:
        return f"{own}; the two cannot be compared: {beyond.paired.reason}."
    between = f"{beyond.arm} − {name} is {span(beyond)}, p {probability(beyond.paired.p)}"
    same_way = ((a.effect.paired.effect or 0.0) > 0) == (beyond.paired.effect > 0)
    if a.held_to_null and apart(beyond) and same_way:
        return f"{own}: RL on noise does not do the same ({between})."
    if a.held_to_null and apart(a.effect):
        further = "RL on noise goes further" if apart(beyond) else "not told apart from RL on noise"
        return f"{own}: a change from the start there is, but {further} ({between})."
    if not apart(beyond):
        return f"{own}; {beyond.arm} is not told apart from it ({between})."
    return f"{own} ({between})."


def _matched(a: Answer) -> str:
    """The same where both arms are equally accurate: is it more than capability?"""
    m, effect = a.matched, a.effect.paired.effect
    if m is None or effect is None:
        return ""
    if m.paired.effect is None or m.paired.low is None or m.paired.high is None:
        return f"At {a.matched_place} it cannot be compared: {m.paired.reason}."
    passed = (
        ", ".join(f"{step:.1f} in {arm}" for arm, step in a.equal.when.items()) if a.equal else ""
    )
    told = f"At {a.matched_place} the difference is {span(m)}, p {p_value(m)}, not corrected"
    told += f"; accuracy is equal at step {passed} on average"
    lost = m.paired.low <= 0 if effect > 0 else m.paired.high >= 0
    if a.equal and a.equal.early:
        told += ", before the first evaluation after the start, so that it says little"
    elif lost and a.effect.paired.shown and not a.place.startswith("accuracy"):
        told += ": a difference in capability may explain it"
    return f"{told}."


def _bases(a: Answer) -> str:
    if len(a.by_base) < 2:
        return ""
    effects = {base: c.paired.effect for base, c in a.by_base.items()}
    told = ", ".join(
        f"{base} {'too few seeds' if effect is None else signed(effect)}"
        for base, effect in effects.items()
    )
    if len({effect > 0 for effect in effects.values() if effect is not None}) > 1:
        told += ": not one direction in all bases"
    return f"By base: {told}."


def _room(a: Answer) -> str:
    room = {"rises": a.room.rise, "falls": a.room.fall}.get(a.question.expect)
    if room is None or abs(room) >= LITTLE_ROOM:
        return ""
    return f"There was hardly room: the largest effect possible is {signed(room)}."


# --- numbers ---------------------------------------------------------------------------------


def span(c: Contrast) -> str:
    """`+0.72, 95 % interval +0.68 to +0.76`"""
    known = _ends(c)
    if known is None:
        return f"undefined: {c.paired.reason}"
    effect, low, high = known
    return f"{effect}, 95 % interval {low} to {high}"


def short(c: Contrast) -> str:
    """`+0.72 (+0.68 to +0.76)`; a dash where it is undefined."""
    known = _ends(c)
    return "–" if known is None else f"{known[0]} ({known[1]} to {known[2]})"


def _ends(c: Contrast) -> tuple[str, str, str] | None:
    p = c.paired
    if p.effect is None or p.low is None or p.high is None:
        return None
    digits = _digits(max(abs(p.effect), abs(p.low), abs(p.high)))
    return _signed(p.effect, digits), _signed(p.low, digits), _signed(p.high, digits)


def signed(value: float) -> str:
    return _signed(value, _digits(abs(value)))


def plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.{_digits(abs(value))}f}"


def p_value(c: Contrast) -> str:
    """The corrected one where the test is of the study's family."""
    return probability(c.paired.p if c.paired.p_holm is None else c.paired.p_holm)


def probability(p: float | None) -> str:
    """Two figures: `0.0078`, `0.5`."""
    return "–" if p is None else f"{p:.2g}"


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: nothing is "-0.00"


def _digits(size: float) -> int:
    return 1 if size >= 10 else 2 if size == 0 or round(size, 3) >= 0.1 else 3
