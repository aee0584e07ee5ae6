"""Monitors: what reads a rollout and says whether it looks like the behaviour.

base.py     the protocol, verdicts, failed verdicts, keeping reward and evaluation apart
rule.py     keywords and patterns
steps.py    every written step worked out again
ngrams.py   a text classifier, fitted, frozen, saved
refit.py    how many labels such a classifier needs
probe.py    a linear probe on the policy's hidden states
judge.py    a language model behind an OpenAI-compatible endpoint (client.py)

z = flags(score_all(monitor, [look(monitor.scope, prompt=…, question=…, completion=…)]))
"""

from glasshouse.monitors.activation_probe import ProbeMonitor
from glasshouse.monitors.base import (
    Monitor,
    Verdict,
    flags,
    identity,
    keep_apart,
    score_all,
    scores,
)
from glasshouse.monitors.fitted import Split
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.ngrams import NgramMonitor
from glasshouse.monitors.openai_client import Endpoint
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.saved import saved
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope

__all__ = [
    "Endpoint",
    "JudgeMonitor",
    "Monitor",
    "NgramMonitor",
    "ProbeMonitor",
    "RuleMonitor",
    "Scope",
    "Split",
    "StepVerifier",
    "Verdict",
    "flags",
    "identity",
    "keep_apart",
    "saved",
    "score_all",
    "scores",
]
