"""The packaged models with their real weights: converted, loaded, and right about `<bos>` and log-probabilities.

    python -m proofs.packaged_models [smollm2 gemma3-270m]     5 minutes; needs the extras `smollm2` and `gemma3`

CI converts a tiny GGUF file instead (tests/models/test_packaged.py). Exit code 2 if an extra is missing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from glasshouse.errors import GlasshouseError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.packaged import PACKAGED_MODELS, convert_once
from glasshouse.models.policy import Policy, load_policy
from glasshouse.types import Request, SamplingParams

TEXT = (
    "The Eiffel Tower is a wrought-iron lattice tower in Paris. It is named after the engineer Gustave Eiffel, "
    "whose company designed and built the tower from 1887 to 1889."
)
MAX_NATS = {"smollm2": 4.0, "gemma3-270m": 4.0}
"""Next-token loss on TEXT that a working conversion stays below; random weights have about 11."""
MAX_DIFFERENCE = 1e-3
"""Between the log-probabilities of sampler and learner."""


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    failures = 0
    for name in names or list(PACKAGED_MODELS):
        with tempfile.TemporaryDirectory() as cache:
            started = time.monotonic()
            try:
                folder = convert_once(PACKAGED_MODELS[name], Path(cache))
            except (GlasshouseError, KeyError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            print(f"{name}: converted in {time.monotonic() - started:.0f} s")
            failures += check_model(load_policy(str(folder)), name)
    print("failed" if failures else "passed")
    return 1 if failures else 0


def check_model(policy: Policy, name: str) -> int:
    """Prints each measurement; returns the number of failed checks."""
    checks = {}
    bos = policy.tokenizer.bos_token_id
    tokens = policy.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    if policy.tokenizer.chat_template is None:  # a base model
        _, prompt = policy.encode_prompt([{"role": "user", "content": TEXT}])
        checks["a prompt starts with <bos>, once"] = prompt[0] == bos and bos not in prompt[1:]
        without = mean_loss(policy, tokens[:1], tokens[1:])
        with_bos = mean_loss(policy, [bos], tokens)
        print(f"  nats per token: {with_bos:.2f} with <bos>, {without:.2f} without")
        checks["<bos> lowers the loss"] = with_bos < without
    else:
        with_bos = mean_loss(policy, tokens[:1], tokens[1:])
        print(f"  nats per token: {with_bos:.2f}")
    checks["the loss is that of a trained model"] = with_bos < MAX_NATS[name]
    _, prompt = policy.encode_prompt([{"role": "user", "content": "What is 2 + 3?"}])
    request = Request(prompt=prompt, noise_keys=(1,))
    [[completion]] = TorchGenerator(policy).generate([request], SamplingParams(max_tokens=16))
    batch = CompletionBatch.from_pairs([(prompt, completion.tokens)])
    learner = compute_logprobs(policy.model, batch)[0][0].detach()
    difference = float((learner - torch.tensor(completion.logprobs)).abs().max())
    print(f"  largest difference between sampler and learner: {difference:.1e}")
    checks["log-probabilities of sampler and learner agree"] = difference < MAX_DIFFERENCE
    for check, passed in checks.items():
        print(f"  {'passed' if passed else 'FAILED'}: {check}")
    return sum(not passed for passed in checks.values())


@torch.no_grad()
def mean_loss(policy: Policy, prompt: list[int], tokens: list[int]) -> float:
    """Mean negative log-probability of the tokens after the prompt."""
    logprobs, _ = compute_logprobs(policy.model, CompletionBatch.from_pairs([(prompt, tokens)]))
    return -float(logprobs.sum()) / len(tokens)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
