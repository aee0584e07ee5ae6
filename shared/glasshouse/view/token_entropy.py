"""The entropy of the policy at every token of a completion, computed by a separate process.

The rollout log holds the log-probability of each sampled token, but not the distribution that it was
sampled from. The weights of the nearest checkpoint give it. Loading them needs torch, which the
server does not import, so this module runs as a program: JSON in, JSON out.

    python -m glasshouse.view.token_entropy < request.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.view.run_reader import list_checkpoint_steps

TIMEOUT = 180.0
CACHED = 64
_lock = threading.Lock()
_known: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()


def compute_entropies(run: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """`{"entropies": [nats per token], "checkpoint": step}` under the newest checkpoint that is not
    newer than the weights that sampled the rollout, or else the oldest; raise if there is none."""
    steps = list_checkpoint_steps(run)
    if not steps:
        raise RunError("The run has no checkpoint, so the entropy cannot be computed.")
    step = max((s for s in steps if s <= (row["version"] or 0)), default=min(steps))
    folder = run / "checkpoints" / f"step-{step:06d}"
    key = (str(folder), str(row["ref"]))
    with _lock:  # one process at a time
        if key not in _known:
            request = {
                "checkpoint": str(folder),
                "prompt_tokens": row["prompt_tokens"],
                "tokens": row["tokens"],
            }
            _known[key] = {"entropies": _run_program(request), "checkpoint": step}
            while len(_known) > CACHED:
                _known.popitem(last=False)
        return _known[key]


def _run_program(request: dict[str, Any]) -> list[float]:
    command = [sys.executable, "-m", "glasshouse.view.token_entropy"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=TIMEOUT
        )
        values: list[float] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise RunError(f"Computing the entropy took more than {TIMEOUT:.0f} s.") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"The entropy could not be computed: {last[:300]}") from None
    return values


def entropies_of(request: Mapping[str, Any]) -> list[float]:
    """Nats per token of a completion under the weights of a checkpoint; imports torch."""
    import torch

    from glasshouse.models import load_policy

    policy = load_policy(request["checkpoint"])
    prompt, tokens = request["prompt_tokens"], request["tokens"]
    inputs = torch.tensor([[*prompt, *tokens]], device=next(policy.model.parameters()).device)
    with torch.inference_mode():
        logits = policy.model(input_ids=inputs).logits[0, len(prompt) - 1 : -1].float()  # (T, V)
    logprobs = logits.log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return [round(value, 6) for value in entropies.tolist()]


if __name__ == "__main__":
    json.dump(entropies_of(json.load(sys.stdin)), sys.stdout)
