"""Does a configuration learn, and only from its rewards? A study of two arms answers it.

The configuration itself must improve. The same with the rewards of a step shuffled among its rollouts must not: a
pipeline that learns from shuffled rewards leaks answers.

    python -m proofs.control training/example.rl/config.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from glasshouse.config.loading import read_yaml_file
from glasshouse.study.answers import Verdict
from glasshouse.study.runner import run_study
from glasshouse.study.spec import RESERVED_KEYS, parse_study

QUESTIONS = {
    "positive": "Does sampled accuracy rise, more than with shuffled rewards?",
    "negative": "Does it rise with shuffled rewards? It must not.",
}


def main() -> int:
    config = read_yaml_file(Path(sys.argv[1]))
    question = {"measure": "pass_at_1", "against": "start", "expect": "rises"}
    tree = {
        "title": "Positive and negative control",
        "bases": [config.get("model", "pocket")],
        "seeds": 8,
        "config": {key: own for key, own in config.items() if key not in RESERVED_KEYS},
        "arms": {"positive": {}, "negative": {"reward.shuffle": True}},
        "null_arm": "negative",
        "measures": {"pass_at_1": "accuracy of samples", "accuracy": "accuracy of greedy answers"},
        "questions": [{"ask": ask, "arm": arm, **question} for arm, ask in QUESTIONS.items()],
    }
    result = run_study(parse_study(tree, sys.argv[1]), "build/control")
    learns, leaks = (answer.verdict is Verdict.SHOWN for answer in result.analysis.answers)
    print(f"learns: {learns}; learns from shuffled rewards: {leaks}")
    return 0 if learns and not leaks else 1


if __name__ == "__main__":
    sys.exit(main())
