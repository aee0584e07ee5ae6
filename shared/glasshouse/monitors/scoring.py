"""Score rollouts with any monitor: build its views, and for a probe the hidden states that it reads.

A probe reads one layer's state at the last token of the chain of thought. The forward pass gets the prompt and the CoT
but not the answer, so the state cannot contain the answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import Monitor, MonitorOutput, Scope, View, score_all, view_rollout
from glasshouse.monitors.fitted import LinearMonitor
from glasshouse.tasks.answers import split_completion
from glasshouse.types import Rollout
from glasshouse.values import Floats

if TYPE_CHECKING:  # torch is imported where a model is run: other monitors do not need it
    from glasshouse.models.policy import Policy

BATCH_SIZE = 64


def score_rollouts(
    monitor: Monitor, rollouts: Sequence[Rollout], policy: Policy | None = None
) -> list[MonitorOutput]:
    """Score each rollout within the monitor's scope; raise if it was fitted on their problems. Equal views
    (the prompt of all samples of a problem) are scored once. A probe reads the states of `policy`."""
    if isinstance(monitor, LinearMonitor):
        monitor.check_unseen([rollout.problem.key for rollout in rollouts])
    if monitor.scope is Scope.ACTIVATIONS:
        views, cost = probe_views(rollouts, policy, int(monitor.describe()["layer"]))
        return [replace(output, **cost) for output in score_all(monitor, views)]
    views = [view_rollout(monitor.scope, rollout) for rollout in rollouts]
    distinct = {tuple(view.parts.values()): view for view in views}
    outputs = dict(zip(distinct, score_all(monitor, list(distinct.values())), strict=True))
    return [outputs[tuple(view.parts.values())] for view in views]


def probe_views(
    rollouts: Sequence[Rollout], policy: Policy | None, layer: int
) -> tuple[list[View], dict[str, Any]]:
    """The states that a probe reads, and the mean cost of one. A text without its tokens is tokenized again."""
    if policy is None:
        raise MonitorError(
            "A probe reads hidden states, so it needs the model: use it in a run's evaluations, its reward or "
            "`glasshouse monitor`."
        )

    def encode(text: str) -> list[int]:
        return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])

    started, pairs = time.perf_counter(), []
    for r in rollouts:
        own = r.completion.tokens
        is_own = own is not None and policy.decode(own) == r.text  # an edited text is not
        pairs.append((r.prompt_tokens or encode(r.prompt), own if is_own else encode(r.text)))
    states = compute_cot_states(policy, pairs, layer)
    count = max(1, len(pairs))
    tokens = sum(len(prompt) + len(completion) for prompt, completion in pairs) // count
    cost = {"tokens": max(1, tokens), "seconds": (time.perf_counter() - started) / count}
    scope = Scope.ACTIVATIONS
    return [view_rollout(scope, r, s) for r, s in zip(rollouts, states, strict=True)], cost


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
    """How many of a completion's tokens lie entirely within its chain of thought. One that holds the end of the CoT
    and the start of the answer is not counted."""
    start = split_completion(policy.decode(completion)).answer_start
    return tokens_within(policy, completion, start)


def compute_cot_states(
    policy: Policy, rollouts: Sequence[tuple[Sequence[int], Sequence[int]]], layer: int
) -> Floats:
    """(R, D) hidden states after `layer` at the last CoT token of (prompt, completion) rollouts; with an empty CoT,
    at the prompt's last token. Layer 0 is the embedding; negative layers count from the end."""
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
