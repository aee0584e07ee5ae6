"""Where the figures of README.md come from."""

from tests.docs.tables import (
    UNDETECTED,
    Value,
    against,
    count,
    differences,
    ends,
    mean,
    published_effect,
    seeds,
)

PENALTY = ("penalty-1", "outcome")


def front_page_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph or table row: its figures in order."""
    plain = differences(*(seeds("ladder", "plain", UNDETECTED, step) for step in (40, 0)))
    undetected = against("confirmation", ("penalty", "permuted"), UNDETECTED, 80)
    return {
        "*The prompt contains a hint": [*undetected, *published_effect("confirmation", 4)],
        "| Does outcome reward alone": [
            *ends("confirmation", "outcome", UNDETECTED, 80),
            *published_effect("confirmation", 3),
            *ends("ladder", "plain", UNDETECTED, 40),
            count([change > 0 for change in plain]),
        ],
        "| Does a penalty on CoTs": [*undetected],
        "| Do monitors outside the reward": [
            mean("cot_penalty", "penalty-1", "step_verifier.disclosure", 50),
            1 - mean("cot_penalty", "penalty-1", "step_verifier.tnr", 50),
            *against("cot_penalty", PENALTY, "organism.ngrams_base.cot.tpr", 50),
        ],
        "| What if the hint must be computed": [
            *against("ladder", ("shifted-penalty", "shifted"), "reliance", 40),
        ],
        "| What if words of the CoT": [
            *against("substitution", PENALTY, "synonym_rule.disclosure", 50),
            *against("substitution", PENALTY, "accuracy_planted", 50),
        ],
        "| Does the policy exploit": [*ends("grader_bug", "bug-length", "behaviour", 40)],
    }
