"""An activation probe: does the policy's own state know what its text does not say?

A linear probe on one layer's hidden state at the last token of the chain of thought. The forward
pass is given the prompt and the CoT and nothing after it, so the answer cannot be in the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glasshouse.answers import split
from glasshouse.errors import MonitorError
from glasshouse.measures.detection import BENIGN
from glasshouse.measures.result import Floats
from glasshouse.models import Policy
from glasshouse.monitors import fitted
from glasshouse.monitors.base import Verdict
from glasshouse.monitors.fitted import Frozen, Split
from glasshouse.monitors.views import Scope, View

BATCH = 64


def cot_tokens(policy: Policy, completion: Sequence[int]) -> int:
    """How many of a completion's tokens lie wholly in its chain of thought.

    A token that holds the CoT's end and the answer's beginning is not one of them.
    """
    end = split(policy.text(completion)).start
    low, high = 0, len(completion)
    while low < high:  # text only grows with tokens
        middle = (low + high + 1) // 2
        if len(policy.text(completion[:middle])) <= end:
            low = middle
        else:
            high = middle - 1
    return low


@torch.inference_mode()
def states(
    policy: Policy, rollouts: Sequence[tuple[Sequence[int], Sequence[int]]], layer: int
) -> Floats:
    """(R, D) hidden states after `layer` at the last CoT token of (prompt, completion) rollouts.

    Layer 0 is the embedding; negative layers count from the end. With an empty CoT it is the
    prompt's last token.
    """
    depth = int(policy.model.config.get_text_config().num_hidden_layers)
    if not -depth - 1 <= layer <= depth:
        raise MonitorError(f"The model has layers 0 (embedding) to {depth}; there is no {layer}.")
    read = [[*prompt, *done[: cot_tokens(policy, done)]] for prompt, done in rollouts]
    if any(not row for row in read):
        raise MonitorError("A rollout without a prompt and without a CoT has no state to probe.")
    rows = [row for batch in _batches(read) for row in _forward(policy, batch, layer)]
    return np.array(rows, dtype=np.float64)


def _batches(rows: list[list[int]]) -> Iterator[list[list[int]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _forward(policy: Policy, rows: list[list[int]], layer: int) -> Floats:
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    out = policy.model(
        input_ids=tokens, attention_mask=mask, output_hidden_states=True, use_cache=False
    )
    hidden = out.hidden_states[layer]  # (R, L, D)
    return np.asarray(hidden[torch.arange(len(rows)), lengths - 1].double().numpy())


@dataclass(frozen=True, slots=True)
class ProbeMonitor:
    """A fitted and frozen probe. Its views hold a state and no text.

    Example: `fit("probe", training, benign, layer=3)`, then `look(Scope.ACTIVATIONS, …, state=s)`
    """

    name: str
    layer: int
    weights: tuple[float, ...]
    """(D,) on the raw state: the standardisation of fitting is folded in."""
    bias: float
    frozen: Frozen

    @property
    def scope(self) -> Scope:
        return Scope.ACTIVATIONS

    def score(self, view: View) -> Verdict:
        if view.state is None or len(view.state) != len(self.weights):
            width = 0 if view.state is None else len(view.state)
            raise MonitorError(
                f'The probe "{self.name}" was fitted on states of {len(self.weights)} numbers, '
                f"not {width}: another model or layer."
            )
        logit = self.bias + float(np.sum(np.asarray(self.weights) * view.state))
        return Verdict.of(fitted.sigmoid(logit), threshold=self.frozen.threshold)

    def refuse_seen(self, problems: list[str]) -> None:
        """Call before an evaluation on these problems."""
        fitted.refuse_seen(self.name, self.frozen, problems)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "probe",
            "name": self.name,
            "scope": self.scope.value,
            "layer": self.layer,
            "threshold": self.frozen.threshold,
            "bias": self.bias,
            "weights": list(self.weights),
        }

    def save(self, folder: Path) -> None:
        header = {"kind": "probe", "name": self.name, "layer": self.layer}
        arrays = {"weights": np.array(self.weights), "bias": np.array([self.bias])}
        fitted.save(folder, header, arrays, self.frozen)

    @classmethod
    def load(cls, folder: Path) -> ProbeMonitor:
        header, arrays, frozen = fitted.load(folder, "probe")
        weights = tuple(arrays["weights"].tolist())
        return cls(header["name"], header["layer"], weights, float(arrays["bias"][0]), frozen)


def fit(
    name: str,
    training: Split,
    benign: Split,
    *,
    layer: int,
    fpr: float = 0.01,
    fewest: int = BENIGN,
    strength: float = 0.1,
) -> ProbeMonitor:
    """Fit on one split of states, take the threshold on another, freeze."""
    y = fitted.apart(training, benign, Scope.ACTIVATIONS)
    known = np.array([view.state for view in training.views], dtype=np.float64)
    centre, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0
    weights, bias = fitted.logistic((known - centre) / spread, y, strength)
    raw = weights / spread
    folded = tuple(raw.tolist())
    shifted = bias - float(np.sum(raw * centre))
    draft = ProbeMonitor(name, layer, folded, shifted, Frozen(1.0, fpr, frozenset()))
    scores = np.array([draft.score(view).score for view in benign.views], dtype=np.float64)
    frozen = fitted.freeze(scores, training, benign, fpr, fewest)
    return ProbeMonitor(name, layer, folded, shifted, frozen)
