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

from glasshouse.monitor.monitors.base import (
    Monitor,
    Verdict,
    flags,
    identity,
    keep_apart,
    score_all,
    scores,
)
from glasshouse.monitor.monitors.client import Endpoint
from glasshouse.monitor.monitors.judge import JudgeMonitor
from glasshouse.monitor.monitors.ngrams import NgramMonitor
from glasshouse.monitor.monitors.probe import ProbeMonitor
from glasshouse.monitor.monitors.rule import RuleMonitor
from glasshouse.monitor.monitors.saved import saved
from glasshouse.monitor.monitors.steps import StepVerifier
from glasshouse.monitor.monitors.trained import Split
from glasshouse.monitor.views import Scope

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
