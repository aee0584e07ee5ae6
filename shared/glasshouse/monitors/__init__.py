"""Monitors: score a rollout for a behaviour, from the parts of it that their scope allows.

views.py             scopes, and the view of a rollout that a monitor receives
base.py              the monitor protocol and its outputs; reward and evaluation monitors are disjoint
rule.py              keywords and regular expressions
step_verifier.py     recomputes every written step (arithmetic_statements.py)
ngrams.py            logistic regression on n-grams; learning_curve.py: how many labels it needs
activation_probe.py  a linear probe on the policy's hidden states
llm_judge.py         a language model behind an OpenAI-compatible endpoint (openai_client.py)
factory.py           monitors from a config or from a folder

Example:
    views = [make_view(monitor.scope, prompt=…, question=…, completion=…)]
    flagged = stack_flags(score_all(monitor, views))
"""

from glasshouse.monitors.activation_probe import ProbeMonitor
from glasshouse.monitors.base import (
    Monitor,
    MonitorOutput,
    check_disjoint,
    hash_monitor,
    score_all,
    stack_flags,
    stack_scores,
)
from glasshouse.monitors.factory import load_monitor, make_monitor, monitor_kind
from glasshouse.monitors.fitted import LabelledViews
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.ngrams import NgramMonitor
from glasshouse.monitors.openai_client import Endpoint
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope, make_view

__all__ = [
    "Endpoint",
    "JudgeMonitor",
    "LabelledViews",
    "Monitor",
    "MonitorOutput",
    "NgramMonitor",
    "ProbeMonitor",
    "RuleMonitor",
    "Scope",
    "StepVerifier",
    "check_disjoint",
    "hash_monitor",
    "load_monitor",
    "make_monitor",
    "make_view",
    "monitor_kind",
    "score_all",
    "stack_flags",
    "stack_scores",
]
