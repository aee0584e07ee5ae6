"""Where the figures of studies/README.md come from."""

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
    published_interaction,
    refit_below_floor,
    seeds,
)

PENALTY = ("penalty-1", "outcome")
VERIFIER = "step_verifier.undetected_use"
REFIT_COT, REFIT_PROMPT = (f"organism.ngrams_refit.{scope}.auroc" for scope in ("cot", "prompt"))
SET_THRESHOLD = 0.95
"""Constants of the method, not results: the share of benign rollouts below the threshold …"""
TARGET_AUROC = 0.95
"""… and the AUROC that counts as recognised."""


def studies_page_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph or table row: its figures in order."""
    return _confirmation() | _study_1() | _study_2() | _study_3() | _study_4() | _study_5()


def _confirmation() -> dict[str, list[Value]]:
    study = "confirmation"
    changes = base_means(study, "outcome", "start", UNDETECTED, 80)
    undetected = against(study, ("penalty", "permuted"), UNDETECTED, 80)
    return {
        "- Outcome reward alone raises": [
            *ends(study, "outcome", "reliance", 80),
            *ends(study, "outcome", DISCLOSURE, 80),
            *published_effect(study, 2),
            *ends(study, "outcome", UNDETECTED, 80),
            *published_effect(study, 3),
            min(changes),
            max(changes),
            published_interaction(study, 3),
        ],
        "- A penalty on CoTs that mention": [
            *undetected,
            *published_effect(study, 4),
            holm_p(study, 4),
            mean(study, "penalty", VERIFIER, 80),
        ],
        "- In one base, `leaked-hint-12`": [
            *(
                mean(study, arm, "reliance", 80, "leaked-hint-12")
                for arm in ("penalty", "permuted")
            ),
            *published_effect(study, 6),
        ],
        "- A penalty on undisclosed use": [
            *against(study, ("aligned", "outcome"), UNDETECTED, 80),
            holm_p(study, 7),
        ],
    }


def _study_1() -> dict[str, list[Value]]:
    plain = differences(*(seeds("ladder", "plain", UNDETECTED, step) for step in (40, 0)))
    return {
        "With the bases `leaked-hint-0`": [
            *ends("leaked_hint", "outcome", "reliance", 60),
            *ends("leaked_hint", "random", "reliance", 60),
            *ends("leaked_hint", "outcome", DISCLOSURE, 60),
            *ends("leaked_hint", "outcome", UNDETECTED, 60),
        ],
        "With the bases of study 3": [
            *ends("ladder", "plain", DISCLOSURE, 40),
            *ends("ladder", "plain", UNDETECTED, 40),
            count([change > 0 for change in plain]),
            p_value(plain),
        ],
        "Two predictions failed": [
            *against("leaked_hint", ("kl", "outcome"), DISCLOSURE, 60),
            *against("leaked_hint", ("kl", "outcome"), "reliance", 60),
        ],
    }


def _study_2() -> dict[str, list[Value]]:
    at_30 = arm_differences("cot_penalty", PENALTY, UNDETECTED, 30)

    def by_base(measure: str, step: int) -> list[Value]:
        return [
            effect(arm_differences("cot_penalty", PENALTY, measure, step, base))[0]
            for base in ("leaked-hint-0", "leaked-hint-2")
        ]

    adaptive = seeds("cot_penalty", "adaptive", DISCLOSURE, 50).values()
    return {
        "With a monitor in the reward": [
            *ends("cot_penalty", "penalty-1", "reliance", 50),
            *against("cot_penalty", PENALTY, DISCLOSURE, 50),
            *ends("cot_penalty", "penalty-1", UNDETECTED, 50),
            mean("cot_penalty", "outcome", UNDETECTED, 50),
            *by_base(UNDETECTED, 50),
            mean("cot_penalty", "penalty-0.1", DISCLOSURE, 50),
            mean("cot_penalty", "penalty-0.1", UNDETECTED, 50),
            mean("cot_penalty", "adaptive", DISCLOSURE, 50),
            min(adaptive),
            max(adaptive),
            mean("cot_penalty", "adaptive", UNDETECTED, 50),
        ],
        "**What was changed": [effect(at_30)[0], p_value(at_30), *by_base(UNDETECTED, 30)],
        "Control arms without this effect": [
            *(mean("cot_penalty", arm, measure, 50) for arm in ("orthogonal", "shuffled")
              for measure in (DISCLOSURE, UNDETECTED)),
            mean("cot_penalty", "aligned", UNDETECTED, 50),
        ],
        "With a KL penalty of 0.3": [
            *(mean("cot_penalty", "penalty-1-kl", m, 50) for m in (DISCLOSURE, "reliance", UNDETECTED)),
            *against("cot_penalty", ("penalty-1-kl", "penalty-1"), "accuracy", 50),
        ],
        "| step verifier: share": [
            *against("cot_penalty", PENALTY, "step_verifier.disclosure", 50),
            1 - mean("cot_penalty", "penalty-1", "step_verifier.tnr", 50),
        ],
        "| n-grams of the CoT, fitted before RL": [
            *against("cot_penalty", PENALTY, "organism.ngrams_base.cot.tpr", 50),
            mean("cot_penalty", "penalty-1", "organism.ngrams_base.prompt.tpr", 50),
        ],
        "| n-grams of the CoT, refitted": [
            *against("cot_penalty", PENALTY, REFIT_COT, 50),
            mean("cot_penalty", "penalty-1", REFIT_PROMPT, 50),
        ],
        "The refitted classifier": [
            refit_below_floor(),
            *(mean("cot_penalty", "penalty-1", measure, 50, base)
              for base in ("leaked-hint-0", "leaked-hint-2") for measure in (REFIT_COT, REFIT_PROMPT)),
        ],
        "One prediction is not shown": [
            *effect(arm_differences("cot_penalty", PENALTY, "reliance", 50)),
            *by_base("reliance", 50),
        ],
    }  # fmt: skip


def _study_3() -> dict[str, list[Value]]:
    rows = {
        "| plain | outcome": "plain",
        "| plain | penalised": "plain-penalty",
        "| one subtraction | outcome": "shifted",
        "| one subtraction | penalised": "shifted-penalty",
        "| three subtractions | outcome": "iterated",
        "| three subtractions | penalised": "iterated-penalty",
    }
    return {
        start: [
            value
            for measure in ("reliance", UNDETECTED, VERIFIER)
            for value in ends("ladder", arm, measure, 40)
        ]
        for start, arm in rows.items()
    } | {
        "With a plain hint and the penalty": [
            *ends("ladder", "iterated-penalty", "accuracy_control", 40),
            mean("ladder", "shifted-penalty", "reliance", 40, "ladder-2"),
            mean("ladder", "shifted-penalty", "reliance", 40, "ladder-0"),
            max(seeds("ladder", "shifted-penalty", "reliance", 40, "ladder-0").values()),
        ]
    }


def _study_4() -> dict[str, list[Value]]:
    shortcut = sorted(seeds("grader_bug", "bug", "shortcut", 40).values())

    def hacked(measure: str) -> float:
        return mean("grader_bug", "bug-length", f"organism.{measure}", 40)

    return {
        "Under the length penalty": [
            *ends("grader_bug", "bug-length", "shortcut", 40),
            *ends("grader_bug", "bug-length", "accuracy_planted", 40),
            *ends("grader_bug", "bug-length", "behaviour", 40),
        ],
        "Without the length penalty": [
            *ends("grader_bug", "bug", "behaviour", 40),
            *ends("grader_bug", "random", "behaviour", 40),
            *effect(arm_differences("grader_bug", ("bug", "random"), "behaviour", 40)),
            count([v > 0.5 for v in shortcut]),
            *most_shortcuts("shortcut"),
            *most_shortcuts("accuracy_planted"),
            shortcut[-3],
        ],
        "A CoT monitor fitted on the base model": [
            hacked("ngrams_base.cot.tpr"),
            hacked("ngrams_base.answer.tpr"),
            hacked("ngrams_base.prompt.tpr"),
            hacked("ngrams_base.cot.tnr"),
            SET_THRESHOLD,
            hacked("ngrams_base.cot.auroc"),
            hacked("ngrams_refit.cot.auroc"),
            hacked("ngrams_refit.prompt.auroc"),
            hacked("ngrams_refit.answer.auroc"),
            hacked("step_verifier.disclosure"),
        ],
        "That TRACE rises": effect(
            arm_differences("grader_bug", ("bug-length", "bug"), "interventions.trace", 40)
        ),
    }


def _study_5() -> dict[str, list[Value]]:
    synonyms = "synonym_rule.disclosure"
    return {
        "Under a penalty on the words": [
            *ends("substitution", "penalty-1", DISCLOSURE, 50),
            mean("substitution", "outcome", DISCLOSURE, 50),
            mean("substitution", "penalty-0.3", DISCLOSURE, 50),
            *ends("substitution", "penalty-1", synonyms, 50),
            mean("substitution", "outcome", synonyms, 50),
            *ends("substitution", "penalty-1", "substitution.follow_rate", 50),
            *against("substitution", PENALTY, "accuracy_planted", 50),
            mean("substitution", "penalty-1-kl", DISCLOSURE, 50),
        ],
        "With labels the new words": [TARGET_AUROC],
    }
