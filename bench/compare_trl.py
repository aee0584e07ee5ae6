"""Do our losses equal those of TRL? One frozen batch through TRL 1.16's trainers and through ours.

    make proofs ONLY=losses                                   # its own environment, then this script
    python bench/compare_trl.py --write-fixture tests/learn/trl_fixture.json

TRL's `GRPOTrainer` samples a batch from a tiny random Llama, scores it and computes advantages
(`_generate_and_score_completions`); `RLOOTrainer` does the same for its advantages. Then each case
goes through the trainer's `_compute_loss` with old log-probabilities moved far enough that ratios
clip, and through our loss fed by a plain forward of the same model. To 1e-5 must agree: the value,
the advantages, and, as a share of the largest entry, the gradient with respect to each token's
log-probability and to every parameter of the model.

The fixture holds the inputs with TRL's values and gradients, so that CI checks without TRL.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from glasshouse.learn.losses import LossInputs, LossSettings, get_algorithm

GROUPS, GROUP_SIZE, MAX_TOKENS = 5, 4, 16
TOLERANCE = 1e-5

REWARDS = [
    [1.0, 0.0, 0.0, 1.0],
    [0.1, 0.1, 0.1, 0.1],  # no training signal
    [0.0, 0.0, 0.0, 1.0],
    [1.0, 0.3, 0.7, -0.5],
    [1.0, 1.0, 1.0, 0.0],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    label: str
    algorithm: str
    settings: LossSettings
    spread: float = 0.3
    """How far the old log-probabilities are from those of the policy; 0 is on-policy."""


def cases() -> list[Case]:
    """Every algorithm both have, with and without KL, and each further setting once."""
    wide = {"gspo": {"clip_low": 0.1, "clip_high": 0.12}}  # some rows inside, some clipped
    listed = []
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo"):
        settings = replace(get_algorithm(name).settings, **wide.get(name, {}))
        listed.append(Case(label=name, algorithm=name, settings=settings))
        settings = replace(settings, kl_coef=0.05)
        listed.append(Case(label=f"{name}, KL", algorithm=name, settings=settings))
    grpo = get_algorithm("grpo").settings
    further = {
        "grpo, entropy bonus": replace(grpo, entropy_coef=0.01),
        "grpo, KL and entropy": replace(grpo, kl_coef=0.1, entropy_coef=0.02),
        "grpo, capped ratio": replace(grpo, importance_cap=1.3),
    }
    listed += [Case(label=k, algorithm="grpo", settings=v) for k, v in further.items()]
    listed.append(Case(label="grpo, on-policy", algorithm="grpo", settings=grpo, spread=0.0))
    gspo = get_algorithm("gspo").settings
    listed.append(Case(label="gspo, paper's clip", algorithm="gspo", settings=gspo, spread=0.001))
    tight = replace(get_algorithm("cispo").settings, importance_cap=1.2)
    listed.append(Case(label="cispo, cap 1.2", algorithm="cispo", settings=tight))
    rloo = get_algorithm("rloo").settings
    listed.append(Case(label="rloo", algorithm="rloo", settings=rloo, spread=0.08))
    listed.append(Case(label="rloo, on-policy", algorithm="rloo", settings=rloo, spread=0.0))
    return listed


# ── TRL's side ───────────────────────────────────────────────────────────────────────────────────


def save_tiny_model(folder: str) -> None:
    """A random Llama on disk, since TRL loads its reference model from where the policy came."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,  # far from uniform, so that log-probabilities differ
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(20))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def make_trainer(case: Case, folder: str) -> Any:
    """TRL's trainer with the settings of the case."""
    settings, algorithm = case.settings, case.algorithm
    common: dict[str, Any] = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "per_device_train_batch_size": GROUPS * GROUP_SIZE,
        "num_generations": GROUP_SIZE,
        "steps_per_generation": 1,
        "max_completion_length": MAX_TOKENS,
        "temperature": 1.0,
        "top_k": 0,
        "beta": settings.kl_coef,
        "epsilon": settings.clip_low,
        "epsilon_high": settings.clip_high,
        "seed": 7,
    }
    rows = [{"prompt": " ".join(f"w{i + j}" for j in range(2 + i))} for i in range(GROUPS)]
    flat = [reward for group in REWARDS for reward in group]
    parts = {
        "model": LlamaForCausalLM.from_pretrained(folder),
        "reward_funcs": lambda completions, **_: flat,
        "train_dataset": Dataset.from_list(rows),
        "processing_class": tiny_tokenizer(),
    }
    if algorithm == "rloo":
        trainer: Any = trl.RLOOTrainer(args=trl.RLOOConfig(**common), **parts)
    else:
        common["loss_type"] = "grpo" if algorithm == "gspo" else algorithm
        common["importance_sampling_level"] = "sequence" if algorithm == "gspo" else "token"
        common["scale_rewards"] = "none" if algorithm == "dr_grpo" else "group"
        common["entropy_coef"] = settings.entropy_coef
        if algorithm == "cispo":  # there TRL's epsilon_high is the cap itself, not 1 + something
            common["epsilon_high"] = settings.importance_cap
        elif settings.importance_cap:
            common["delta"] = settings.importance_cap
        trainer = trl.GRPOTrainer(args=trl.GRPOConfig(**common), **parts)
    trainer.current_gradient_accumulation_steps = 1  # set by Trainer.train(), which is not run
    trainer.model.train()
    return trainer


def sample_batch(trainer: Any) -> dict[str, Tensor]:
    """Samples the batch and computes the advantages with TRL."""
    torch.manual_seed(1)
    rows = [row for row in trainer.train_dataset for _ in range(GROUP_SIZE)]
    return trainer._generate_and_score_completions(rows)


def trl_loss(trainer: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """TRL's value, its gradient by each token's log-probability, and by each parameter."""
    captured: list[Tensor] = []
    forward = type(trainer)._get_per_token_logps_and_entropies

    def capture(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(trainer, *args, **kwargs)
        captured.append(outputs[0])
        return outputs

    trainer._get_per_token_logps_and_entropies = capture
    loss = trainer._compute_loss(trainer.model, inputs)
    parameters = list(trainer.model.parameters())
    by_token, *by_parameter = torch.autograd.grad(loss, [captured[0], *parameters])
    return loss.detach(), by_token, by_parameter


# ── our side ─────────────────────────────────────────────────────────────────────────────────────


def plain_forward(model: LlamaForCausalLM, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropy (R, T) without TRL's fused code."""
    tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    width = batch["completion_ids"].shape[1]
    logits = model(input_ids=tokens, attention_mask=attention).logits[:, -width - 1 : -1]
    all_logprobs = logits.log_softmax(-1)  # (R, T, V)
    chosen = all_logprobs.gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
    return chosen, -(all_logprobs.exp() * all_logprobs).sum(-1)


def our_loss(case: Case, tensors: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    mask = tensors["mask"]
    return get_algorithm(case.algorithm).loss(
        LossInputs(
            logprobs=tensors["logprobs"],
            sampler_logprobs=tensors["old"],
            mask=mask,
            advantages=tensors["advantages"],
            reference_logprobs=tensors["reference"] if case.settings.kl_coef else None,
            entropy=tensors["entropy"] if case.settings.entropy_coef else None,
            rows=mask.shape[0],
            tokens=int(mask.sum()),
            max_tokens=MAX_TOKENS,
            settings=case.settings,
        )
    )


def relative_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, as a share of the largest value."""
    size = max(t.abs().max().item() for t in theirs)
    difference = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    return difference / size if size else difference


def perturb(logprobs: Tensor, spread: float, seed: int) -> Tensor:
    """Log-probabilities of another policy: a shift per row and noise per token."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(logprobs.shape[0], 1, generator=draw)
    return logprobs.detach() + spread * (rows + torch.randn(logprobs.shape, generator=draw)) / 2


def compare() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run every case: the rows of the table, and the fixture."""
    table: list[dict[str, Any]] = []
    fixture: dict[str, Any] = {}
    rewards = torch.tensor(REWARDS)
    frozen: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(folder)
        for case in cases():
            trainer = make_trainer(case, folder)
            batch = sample_batch(trainer)
            frozen = frozen or batch
            for name in ("completion_ids", "completion_mask"):
                if not torch.equal(batch[name], frozen[name]):
                    raise SystemExit(f"{case.label}: TRL sampled another batch ({name} differs).")
            logprobs, entropy = plain_forward(trainer.model, batch)
            tensors = {
                "logprobs": logprobs,
                "entropy": entropy,
                "mask": batch["completion_mask"],
                "old": perturb(logprobs, case.spread, seed=2),
                "reference": perturb(logprobs, 0.4, seed=3),
                "advantages": batch["advantages"],
            }
            inputs = dict(batch)
            inputs["old_per_token_logps"] = tensors["old"]
            inputs["old_logps"] = (tensors["old"] * tensors["mask"]).sum(1)  # RLOOTrainer's
            inputs["ref_per_token_logps"] = tensors["reference"]
            value, by_token, by_parameter = trl_loss(trainer, inputs)

            ours, metrics = our_loss(case, tensors)
            parameters = list(trainer.model.parameters())
            our_token, *our_parameter = torch.autograd.grad(ours, [logprobs, *parameters])
            our_advantages = get_algorithm(case.algorithm).advantage(rewards).flatten()
            clipped = sum(metrics.get(k, torch.zeros(())) for k in ("clip_low", "clip_high"))
            row = {
                "case": case.label,
                "trl": value.item(),
                "ours": ours.item(),
                "value": abs(ours.item() - value.item()),
                "token": relative_difference([our_token], [by_token]),
                "parameter": relative_difference(our_parameter, by_parameter),
                "advantages": relative_difference([our_advantages], [batch["advantages"]]),
                "clipped": (clipped / metrics["tokens"]).item(),
            }
            checked = ("value", "token", "parameter", "advantages")
            row["agrees"] = all(row[name] <= TOLERANCE for name in checked)
            table.append(row)
            add_to_fixture(fixture, case, tensors, value, by_token)
    return table, fixture


def add_to_fixture(
    fixture: dict[str, Any], case: Case, tensors: dict[str, Tensor], value: Tensor, grad: Tensor
) -> None:
    """Adds a case to the fixture; values shared by all cases are written once."""
    if not fixture:
        fixture |= {
            "made_by": f"bench/compare_trl.py with trl {trl.__version__}, torch {torch.__version__}"
            f", transformers {transformers.__version__}",
            "max_tokens": MAX_TOKENS,
            "rewards": REWARDS,
            "mask": tensors["mask"].tolist(),
            "cases": [],
        } | {k: rounded(tensors[k]) for k in ("logprobs", "entropy", "reference")}
    fixture["cases"].append(
        {
            "label": case.label,
            "algorithm": case.algorithm,
            "settings": asdict(case.settings),
            "advantages": rounded(tensors["advantages"]),
            "old": rounded(tensors["old"]),
            "loss": float(f"{value.item():.9g}"),
            "gradient": rounded(grad),
        }
    )


def rounded(tensor: Tensor) -> Any:
    """Nested lists of the shortest decimals that give the same 32-bit floats back."""
    if tensor.ndim:
        return [rounded(t) for t in tensor.detach()]
    return float(f"{tensor.item():.9g}")


def print_table(table: list[dict[str, Any]]) -> None:
    print(
        f"TRL {trl.__version__} beside Glasshouse on one batch of {GROUPS} x {GROUP_SIZE} completions."
    )
    print("Differences (of gradients and advantages: as a share of the largest); ≤ 1e-5 agrees.\n")
    print(f"{'case':<21}{'TRL':>12}{'ours':>12}  {'value':>7}  {'d/dlogp':>7}  {'d/dweights':>10}"
          f"  {'advant.':>7}  {'clipped':>7}")  # fmt: skip
    for r in table:
        print(f"{r['case']:<21}{r['trl']:>12.7f}{r['ours']:>12.7f}  {r['value']:>7.0e}"
              f"  {r['token']:>7.0e}  {r['parameter']:>10.0e}  {r['advantages']:>7.0e}"
              f"  {r['clipped']:>7.0%}  {'agrees' if r['agrees'] else 'DIFFERS'}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write-fixture", type=Path, metavar="PATH")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    table, fixture = compare()
    print_table(table)
    differing = [row["case"] for row in table if not row["agrees"]]
    if differing:
        print(f"\n{len(differing)} of {len(table)} differ from TRL: {', '.join(differing)}.")
        return 1
    print(f"\nall {len(table)} agree with TRL.")
    if options.write_fixture:
        head = {k: v for k, v in fixture.items() if k != "cases"}
        lines = [json.dumps(head)[:-1] + ', "cases": [']  # one case per line: diffs stay readable
        lines.append(",\n".join(json.dumps(case) for case in fixture["cases"]))
        options.write_fixture.write_text("\n".join([*lines, "]}"]) + "\n")
        print(f"wrote {options.write_fixture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
