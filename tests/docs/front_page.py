"""Where the figures of README.md come from."""

from tests.docs.tables import (
    DISCLOSURE,
    UNDETECTED,
    Value,
    against,
    arm_differences,
    base_means,
    count,
    differences,
    effect,
    ends,
    holm_p,
    mean,
    most_shortcuts,
    p_value,
    published_effect,
    refit_below_floor,
    seeds,
)

PENALTY = ("penalty-1", "outcome")


def front_page_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph or table row: its figures in order."""
    plain = differences(*(seeds("ladder", "plain", UNDETECTED, step) for step in (40, 0)))
    at_30 = arm_differences("cot_penalty", PENALTY, UNDETECTED, 30)
    return {
        "*A hint to the answer": [
            *against("confirmation", ("penalty", "permuted"), UNDETECTED, 80),
            *published_effect("confirmation", 4),
        ],
        "| **Confirmation**: does the outcome": [
            *ends("confirmation", "outcome", "reliance", 80),
            *published_effect("confirmation", 1),
            *ends("confirmation", "outcome", DISCLOSURE, 80),
            *published_effect("confirmation", 2),
            *ends("confirmation", "outcome", UNDETECTED, 80),
            *published_effect("confirmation", 3),
            *_range(base_means("confirmation", "outcome", "start", UNDETECTED, 80)),
        ],
        "| **Confirmation**: and with": [
            *against("confirmation", ("penalty", "permuted"), UNDETECTED, 80),
            *published_effect("confirmation", 4),
            holm_p("confirmation", 4),
            *(
                mean("confirmation", arm, "reliance", 80, "leaked-hint-12")
                for arm in ("penalty", "permuted")
            ),
            *published_effect("confirmation", 6),
            *against("confirmation", ("aligned", "outcome"), UNDETECTED, 80),
            *published_effect("confirmation", 7),
            holm_p("confirmation", 7),
        ],
        "| Does the outcome reward alone": [
            *ends("leaked_hint", "outcome", "reliance", 60),
            *ends("leaked_hint", "outcome", DISCLOSURE, 60),
            *ends("leaked_hint", "outcome", UNDETECTED, 60),
            *ends("ladder", "plain", DISCLOSURE, 40),
            *ends("ladder", "plain", UNDETECTED, 40),
            count([change > 0 for change in plain]),
            p_value(plain),
        ],
        "| And with a monitor in the reward": [
            *ends("cot_penalty", "penalty-1", UNDETECTED, 50),
            mean("cot_penalty", "outcome", UNDETECTED, 50),
            mean("cot_penalty", "orthogonal", UNDETECTED, 50),
            *against("cot_penalty", PENALTY, "reliance", 50),
            *effect(arm_differences("cot_penalty", PENALTY, "reliance", 50)),
            effect(at_30)[0],
            p_value(at_30),
        ],
        "| Do other monitors": [
            mean("cot_penalty", "penalty-1", "step_verifier.disclosure", 50),
            1 - mean("cot_penalty", "penalty-1", "step_verifier.tnr", 50),
            *against("cot_penalty", PENALTY, "organism.ngrams_base.cot.tpr", 50),
            mean("cot_penalty", "penalty-1", "organism.ngrams_base.prompt.tpr", 50),
            mean("cot_penalty", "penalty-1", "organism.ngrams_refit.cot.auroc", 50),
            mean("cot_penalty", "penalty-1", "organism.ngrams_refit.prompt.auroc", 50),
            refit_below_floor(),
        ],
        "| And if the hint must be computed": [
            *against("ladder", ("shifted-penalty", "shifted"), "reliance", 40),
            *against("ladder", ("iterated-penalty", "iterated"), "reliance", 40),
            mean("ladder", "shifted-penalty", UNDETECTED, 40),
            *ends("ladder", "shifted", "step_verifier.undetected_use", 40),
            *ends("ladder", "iterated", "step_verifier.undetected_use", 40),
        ],
        "| What if words of the CoT": [
            *against("substitution", PENALTY, DISCLOSURE, 50),
            *against("substitution", PENALTY, "synonym_rule.disclosure", 50),
            mean("substitution", "penalty-1", "substitution.follow_rate", 50),
            *against("substitution", PENALTY, "accuracy_planted", 50),
        ],
        "| Is a grader bug exploited": [
            *ends("grader_bug", "bug-length", "behaviour", 40),
            *ends("grader_bug", "bug", "behaviour", 40),
            *ends("grader_bug", "random", "behaviour", 40),
            *effect(arm_differences("grader_bug", ("bug", "random"), "behaviour", 40)),
            count([v > 0.5 for v in seeds("grader_bug", "bug", "shortcut", 40).values()]),
            *most_shortcuts("shortcut"),
            *most_shortcuts("accuracy_planted"),
        ],
    }


def _range(values: list[float]) -> list[Value]:
    return [min(values), max(values)]
