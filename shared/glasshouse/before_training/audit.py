"""Which terms of a reward read the chain of thought, by how much, and does hiding pay?

    audit_reward("rollouts.jsonl", rewards=["rewards.py:accuracy"]).terms["accuracy"].reads_cot

A term that is a function of the rollout reads the CoT if a single edit moves it: no statistics are needed for that.
How much it moves is a mean over rollouts with a bootstrap interval over problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.before_training.base import MIN_ROLLOUTS, resolve_task
from glasshouse.before_training.estimates import Estimate, estimate_mean
from glasshouse.before_training.rewards import score_by_functions
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RolloutFileError, did_you_mean
from glasshouse.rollout.cot_edits import (
    DISCLOSE,
    OTHER_ANSWER,
    Change,
    Score,
    compare_edits,
    full_text,
    get_cot,
    score_by_config,
    sentence_of,
)
from glasshouse.rollout.grading import validate_reward_terms
from glasshouse.rollout.penalties import Penalties
from glasshouse.runs.foreign import FieldMapping, RolloutSource
from glasshouse.runs.rows import to_row
from glasshouse.runs.run_directory import is_run_directory, load_verified_config
from glasshouse.types import Rollout

EDITS = ("delete", "shorten", "swap", "pad", "reword", "rival_answer", DISCLOSE)
EXAMPLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an edit does to a term."""

    rollouts: int
    moved: int
    """Rollouts whose value changes."""
    mean: Estimate
    """The mean change. That of `disclose` is beyond a sentence of the same length that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermAudit:
    """One term of a reward."""

    term: str
    kind: str
    """`term`, `penalty`, `function` or `reward` (their sum)."""
    effects: Mapping[str, Effect]
    """By edit."""
    is_stable: bool
    """Does it give the same value again? Otherwise it is random, keeps state, or depends on the other rollouts."""
    examples: Sequence[Mapping[str, Any]]
    """The rollouts of two different edits that move it most."""

    def format(self, edit: str) -> str:
        own = self.effects.get(edit)
        return "–" if own is None else own.mean.format("+") if own.moved else "0"

    @property
    def reads_cot(self) -> bool:
        return self.is_stable and any(e.moved for n, e in self.effects.items() if n in EDITS)

    @property
    def verdict(self) -> str:
        if not self.is_stable:
            return "not a function of the rollout: random, keeps state, or depends on the batch"
        if not self.reads_cot:
            return "does not read the CoT"
        ways = {DISCLOSE: ("hiding", "disclosing"), "delete": ("writing more", "writing less")}
        for edit, (below, above) in ways.items():
            if edit in self.effects and (sign := self.effects[edit].mean.sign):
                return f"reads the CoT; {below if sign < 0 else above} pays"
        return "reads the CoT; neither hiding nor writing less pays"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAudit:
    """What `audit_reward` returns."""

    source: str
    rollouts: int
    problems: int
    sentence: str
    """What the edit `disclose` inserts."""
    terms: Mapping[str, TermAudit]
    outcome_only: Sequence[str]
    """Terms that were declared not to read the CoT."""

    @property
    def violations(self) -> list[str]:
        """Declared terms that read the CoT, or of which it cannot be said that they do not."""
        own = (self.terms[name] for name in self.outcome_only)
        return [audit.term for audit in own if audit.reads_cot or not audit.is_stable]

    def as_dict(self) -> dict[str, Any]:
        terms = {
            name: {**asdict(own), "reads_cot": own.reads_cot, "verdict": own.verdict}
            for name, own in self.terms.items()
        }
        return {**asdict(self), "terms": terms, "violations": self.violations}


def audit_reward(
    rollouts: str | Path | Sequence[Rollout],
    config: Config | None = None,
    *,
    rewards: Sequence[str] = (),
    map: Mapping[str, str] | Sequence[str] = (),
    columns: Sequence[str] = (),
    outcome_only: Sequence[str] = (),
    sentence: str = "",
    limit: int = 300,
    allow_network: bool = False,
    on_progress: Callable[[float], None] = lambda share: None,
) -> RewardAudit:
    """Audit reward functions, or the reward of a configuration; of a run directory, its own. `rollouts` is what
    `measure` reads, or rollouts that were sampled.

    Example: `audit_reward("runs/try").terms["exact"].reads_cot`
    """
    source, rows = "sampled rollouts", list[Mapping[str, Any]]()
    if isinstance(rollouts, str | Path):
        path, source = Path(rollouts), str(rollouts)
        if config is None and not rewards:
            if not is_run_directory(path):
                raise ConfigError(
                    "Which reward? Give --reward module:function, or a configuration with --config or key=value."
                )
            config = load_verified_config(path)[0]
        reader = RolloutSource(path, FieldMapping.parse(map))
        pairs = zip(reader.rollouts(), reader.rows(), strict=True)
        kept = list(islice(((r, row) for r, row in pairs if get_cot(r).strip()), limit))
        given, rows = [rollout for rollout, _ in kept], [row for _, row in kept]
    else:
        given = [r for r in rollouts if get_cot(r).strip()][:limit]
        rows = [to_row(r, with_tokens=False) for r in given]
    if len(given) < MIN_ROLLOUTS:
        raise RolloutFileError(
            f"{source}: {len(given)} rollouts have a CoT; an audit needs {MIN_ROLLOUTS}."
        )
    named = set(outcome_only)
    if rewards:
        score = score_by_functions(rewards, given, rows, columns, allow_network)
        kinds = {text.partition(":")[2]: "function" for text in rewards}
    else:
        assert config is not None
        score, kinds, sentence = _score_config(config, given, sentence)
        named |= set(config.reward.outcome_only)
    for name in named - kinds.keys():
        raise ConfigError(f'--outcome-only "{name}" is no term.{did_you_mean(name, kinds)}')
    sentence = sentence or sentence_of(None)
    changes, unstable = compare_edits(given, score, sentence, on_progress)
    return RewardAudit(
        source=source,
        rollouts=len(given),
        problems=len({r.problem.key for r in given}),
        sentence=sentence,
        terms={
            name: _audit_term(name, kind, [c for c in changes if c.term == name], name in unstable)
            for name, kind in kinds.items()
        },
        outcome_only=sorted(named),
    )


def _score_config(
    config: Config, rollouts: Sequence[Rollout], sentence: str
) -> tuple[Score, dict[str, str], str]:
    config, task = resolve_task(config)
    validate_reward_terms(config.reward.terms)
    penalties = Penalties.from_config(config.reward.penalties, task)
    if not any(rollout.problem.gold_answer for rollout in rollouts):
        raise RolloutFileError(
            "The rollouts have no gold answers, which the reward terms compare with: --map gold=COLUMN."
        )
    kinds = dict.fromkeys(config.reward.terms, "term")
    kinds |= {item.name: "penalty" for item in penalties.penalties}
    kinds |= {"reward": "reward"} if len(kinds) > 1 else {}
    return score_by_config(config.reward, penalties), kinds, sentence or sentence_of(task)


def _audit_term(name: str, kind: str, changes: Sequence[Change], unstable: bool) -> TermAudit:
    by_edit = {edit: [c for c in changes if c.edit == edit] for edit in (*EDITS, OTHER_ANSWER)}
    largest = [max(by_edit[edit], key=lambda c: c.size) for edit in EDITS if by_edit[edit]]
    examples = sorted((c for c in largest if c.moves), key=lambda c: -c.size)[:EXAMPLES]
    return TermAudit(
        term=name,
        kind=kind,
        effects={edit: _effect(own) for edit, own in by_edit.items() if own},
        is_stable=not unstable,
        examples=[
            {"edit": c.edit, "before": c.before, "after": c.after}
            | {"completion": full_text(c.rollout), "edited": full_text(c.edited)}
            for c in examples
        ],
    )


def _effect(changes: Sequence[Change]) -> Effect:
    differences = np.array([change.after - change.before for change in changes])
    problems = np.array([change.rollout.problem.key for change in changes])
    mean = estimate_mean(differences, problems, "audit")
    return Effect(rollouts=len(changes), moved=sum(c.moves for c in changes), mean=mean)
