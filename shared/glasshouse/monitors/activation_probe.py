"""An activation probe: a linear classifier on the policy's hidden states.

It reads one layer's state at the last token of the chain of thought. The forward pass gets the
prompt and the CoT but not the answer, so the state cannot contain the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.monitors import fitted
from glasshouse.monitors.base import MonitorOutput, Scope, View
from glasshouse.monitors.fitted import MIN_BENIGN, NOT_CALIBRATED, Calibration, LabelledViews
from glasshouse.tasks.answers import split_completion
from glasshouse.values import Floats

if TYPE_CHECKING:  # torch is imported where a model is run: the other monitors do not need it
    from glasshouse.models.policy import Policy

BATCH_SIZE = 64


def tokens_within(policy: Policy, tokens: Sequence[int], characters: int) -> int:
    """How many of the tokens lie entirely within the first `characters` of their text."""
    low, high = 0, len(tokens)
    while low < high:  # bisection: the text only grows with the tokens
        middle = (low + high + 1) // 2
        if len(policy.decode(tokens[:middle])) <= characters:
            low = middle
        else:
            high = middle - 1
    return low


def count_cot_tokens(policy: Policy, completion: Sequence[int]) -> int:
    """How many of a completion's tokens lie entirely within its chain of thought.

    A token that holds the end of the CoT and the start of the answer is not counted.
    """
    return tokens_within(
        policy, completion, split_completion(policy.decode(completion)).answer_start
    )


def compute_cot_states(
    policy: Policy, rollouts: Sequence[tuple[Sequence[int], Sequence[int]]], layer: int
) -> Floats:
    """(R, D) hidden states after `layer` at the last CoT token of (prompt, completion) rollouts.

    Layer 0 is the embedding; negative layers count from the end. With an empty CoT it is the state
    at the prompt's last token.
    """
    depth = int(policy.model.config.get_text_config().num_hidden_layers)
    if not -depth - 1 <= layer <= depth:
        raise MonitorError(f"The model has layers 0 (embedding) to {depth}, not {layer}.")
    inputs = [
        [*prompt, *completion[: count_cot_tokens(policy, completion)]]
        for prompt, completion in rollouts
    ]
    if not all(inputs):
        raise MonitorError("A rollout without a prompt and without a CoT has no state to probe.")
    batches = (inputs[i : i + BATCH_SIZE] for i in range(0, len(inputs), BATCH_SIZE))
    states = [state for batch in batches for state in _last_states(policy, batch, layer)]
    return np.array(states, dtype=np.float64)


def _last_states(policy: Policy, inputs: list[list[int]], layer: int) -> Floats:
    """(R, D) states after `layer` at the last token of each input."""
    import torch

    lengths = torch.tensor([len(row) for row in inputs])
    tokens = torch.zeros(len(inputs), int(lengths.max()), dtype=torch.long)  # (R, L)
    for i, row in enumerate(inputs):
        tokens[i, : len(row)] = torch.tensor(row)
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    with torch.inference_mode():
        output = policy.model(
            input_ids=tokens.to(policy.device),
            attention_mask=mask.to(policy.device),
            output_hidden_states=True,
            use_cache=False,
        )
    hidden = output.hidden_states[layer].cpu()  # (R, L, D)
    return np.asarray(hidden[torch.arange(len(inputs)), lengths - 1].double().numpy())


@dataclass(frozen=True, slots=True)
class ProbeMonitor(fitted.FittedMonitor):
    """A fitted and frozen probe. Its views hold a state and no text.

    Example: `fit_probe("probe", training, benign, layer=3).score(view)`, where the view is
    `make_view(Scope.ACTIVATIONS, …, state=compute_cot_states(policy, rollouts, 3)[0])`
    """

    kind: ClassVar[str] = "probe"
    name: str
    layer: int
    weights: tuple[float, ...]
    """(D,) for the raw state: the standardisation from fitting is folded in."""
    bias: float
    calibration: Calibration
    scope: Scope = Scope.ACTIVATIONS

    def score(self, view: View) -> MonitorOutput:
        if view.state is None or len(view.state) != len(self.weights):
            width = 0 if view.state is None else len(view.state)
            raise MonitorError(
                f'The probe "{self.name}" was fitted on states of width {len(self.weights)}, '
                f"not {width}; use it with the model and layer that it was fitted on."
            )
        logit = self.bias + float(np.sum(np.asarray(self.weights) * view.state))
        return self.output(logit)

    def describe(self) -> dict[str, Any]:
        return fitted.FittedMonitor.describe(self) | {
            "layer": self.layer,
            "weights": list(self.weights),
        }

    def save(self, folder: Path) -> None:
        self.save_weights(folder, self.weights, layer=self.layer)

    @classmethod
    def load(cls, folder: Path) -> ProbeMonitor:
        header, weights, bias, calibration = fitted.load_weights(folder, cls.kind)
        return cls(header["name"], header["layer"], tuple(weights), bias, calibration)


def fit_probe(
    name: str,
    training: LabelledViews,
    benign: LabelledViews,
    *,
    layer: int,
    fpr: float = 0.01,
    min_benign: int = MIN_BENIGN,
) -> ProbeMonitor:
    """Fits on the training split, sets the threshold on the benign split, and freezes both."""
    labels = fitted.check_training_splits(training, benign, Scope.ACTIVATIONS)
    states = np.array([view.state for view in training.views], dtype=np.float64)  # (R, D)
    mean, std = states.mean(axis=0), states.std(axis=0)
    std[std == 0] = 1.0
    standardised_weights, bias = fitted.fit_logistic_regression(
        (states - mean) / std, labels, c=0.1
    )
    weights = standardised_weights / std
    bias -= float(np.sum(weights * mean))
    draft = ProbeMonitor(name, layer, tuple(weights.tolist()), bias, NOT_CALIBRATED)
    return fitted.calibrate(draft, training, benign, fpr, min_benign)
