"""vLLM as the engine of a run: `make proofs ONLY=vllm` (in .venv-vllm, see docs/models.md).

    python -m proofs.vllm                                   all checks, on SmolLM2
    python -m proofs.vllm --model pocket --only tokens weights
    python -m proofs.vllm --model FOLDER --steps 5

tokens      greedy and sampled tokens of both engines: how many completions diverge; differences of
            log-probabilities; how much of the prompts the prefix cache served
weights     after every transfer: equal checksums, and the packed matrices inside vLLM, read back, are bitwise the
            learner's; a stale version and damaged weights are refused, and the engine continues with its own
training    RL steps; the checksum after every sync is recomputed from the learner's weights; differences of
            log-probabilities of every step; the gradient with and without truncated importance sampling
adapters    LoRA with vLLM in a Monarch process: only the adapters travel, the engine generates with the merged
            weights
server      a vLLM engine in a Monarch process is killed: it is respawned and generates with the right version
curves      accuracy of some seeds with either engine, and with the torch engine and other batches

Exit code 0 if all checks pass, 1 if one fails, 2 without vLLM. The report is build/vllm/report.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glasshouse import randomness
from glasshouse.config.loading import load_config
from glasshouse.distributed.backend import LocalBackend
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.generate.vllm.engine import (
    CPU_BLOCK_SIZE,
    VllmGenerator,
    checksum_weights,
    find_version,
    import_vllm,
    merge_weights,
)
from glasshouse.learn.learner import Learner, StepSize
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.measurement.evaluate import fill_task_options
from glasshouse.measurement.intervals import mean_interval
from glasshouse.models.devices import configure_torch, resolve_device
from glasshouse.models.policy import Policy, load_policy
from glasshouse.runs.run_directory import load_events, load_metrics
from glasshouse.tasks.base import make_task
from glasshouse.training.build import make_problem_stream
from glasshouse.training.run import TrainingRun
from glasshouse.types import Completion, Request, SamplingParams
from proofs.checks import run_checks
from proofs.processes import wait_for_exit, wait_until

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "vllm" / "report.json"
MAX_LOGPROB_DIFF = 1e-3
"""Between the engines, for the same token after the same tokens, in float32."""
MAX_DIVERGED = 0.10
"""Share of completions of which the engines may choose another token somewhere."""
IMPORTANCE_CAP = 2.0
MONARCH = (
    "backend=monarch", "monarch.generators=1", "monarch.verify_every=1", "monarch.spawn_timeout=1200",
    "monarch.chunk_timeout=1200",
)  # fmt: skip
"""One vLLM engine in a separate process. The limits are for busy machines."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, default=20, help="RL steps of the training check")
    parser.add_argument("--curve-steps", type=int, default=8, help="RL steps of each curve")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the curves")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    arguments = parser.parse_args()
    configure_torch(threads=1)
    try:
        import_vllm(in_process=True)
        policy = load_on_device(arguments)
    except GlasshouseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    checks = {name: partial(check, policy, arguments) for name, check in CHECKS.items()}
    facts = {"vllm": find_version(), "model": arguments.model}
    return run_checks(checks, arguments.only, REPORT, **facts)


# ── what the checks share ────────────────────────────────────────────────────────────────────────


def configure(arguments: Any, out: Path, *overrides: str) -> list[str]:
    """A small run. SmolLM2 solves the task of training/smollm2.grpo sometimes, the pocket model its own."""
    task = ["generate.max_tokens=72"]
    if arguments.model != "pocket":
        task = [
            "task.name=arithmetic", "task.style=direct", "task.options={steps: [1, 1], operand_high: 12}",
            "generate.max_tokens=10",
        ]  # fmt: skip
    return [
        f"model={arguments.model}", f"device={arguments.device}", f"out={out}", *task,
        "data.groups_per_step=4", "generate.group_size=4", "generate.kv_cache_mb=256", "evaluate.problems=0",
        "checkpoints.every=0", "checkpoints.save_above_reward=null", "checkpoints.save_best=false", *overrides,
    ]  # fmt: skip


def load_on_device(arguments: Any) -> Policy:
    policy = load_policy(arguments.model)
    policy.model.to(resolve_device(arguments.device, policy.model.num_parameters()))
    return policy


def make_requests(policy: Policy, config: Any, problems: int, samples: int) -> list[Request]:
    config = fill_task_options(config, policy.card)
    task = make_task(config.task.name, config.task.options)
    drawn = make_problem_stream(config, task).take(problems)
    return [
        Request(
            prompt=policy.encode_prompt(task.messages(problem, config.task.style))[1],
            noise_keys=tuple(randomness.key("proof", number, k) for k in range(samples)),
        )
        for number, problem in enumerate(drawn)
    ]


def compare_completions(
    mine: Sequence[Sequence[Completion]], theirs: Sequence[Sequence[Completion]]
) -> dict[str, Any]:
    """Where two engines diverge, and the log-probabilities of the tokens up to there."""
    pairs = [
        (a, b)
        for g, h in zip(mine, theirs, strict=True)
        for a, b in zip(g, h, strict=True)
    ]  # fmt: skip
    diverged, differences = [], []
    for a, b in pairs:
        same = next(
            (n for n, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y), None
        )
        if same is not None:
            diverged.append(same)
        end = len(a.tokens) if same is None else same
        differences += [
            abs(x - y) for x, y in zip(a.logprobs[:end], b.logprobs[:end], strict=False)
        ]
        assert same is not None or (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
    ordered = sorted(differences)
    return {
        "completions": len(pairs),
        "tokens": sum(len(a.tokens) for a, _ in pairs),
        "diverged": len(diverged),
        "first_divergence_rate": len(diverged) / len(ordered),
        "logprob_diff_p50": ordered[len(ordered) // 2],
        "logprob_diff_p99": ordered[int(0.99 * len(ordered))],
        "logprob_diff_max": ordered[-1],
    }


@torch.no_grad()
def perturb(policy: Policy, seed: int, scale: float = 0.02) -> None:
    """Change every weight by noise, relative to the spread of its tensor."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_(scale * parameter.std() * noise.to(parameter.device))


# ── checks ───────────────────────────────────────────────────────────────────────────────────────


def check_tokens(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    config = load_config([], configure(arguments, work / "tokens"))
    distinct = make_requests(policy, config, problems=32, samples=1)
    groups = make_requests(policy, config, problems=8, samples=4)
    engine, torch_engine = (
        VllmGenerator(policy, config.generate),
        TorchGenerator(policy, config.generate),
    )
    results: dict[str, Any] = {}
    for name, temperature, requests in (
        ("greedy", 0.0, distinct), ("sampled", 1.0, groups), ("temperature_0.7", 0.7, groups),
    ):  # fmt: skip
        sampling = SamplingParams(max_tokens=32, temperature=temperature)
        started = time.perf_counter()
        theirs = engine.generate(requests, sampling)
        seconds = time.perf_counter() - started
        results[name] = compare_completions(torch_engine.generate(requests, sampling), theirs)
        prompt_tokens = sum(len(r.prompt) * len(r.noise_keys) for r in requests)
        results[name] |= {
            "prompt_tokens_from_cache": engine.cached_prompt_tokens / prompt_tokens,
            "vllm_seconds": round(seconds, 2),
        }
        assert results[name]["logprob_diff_max"] < MAX_LOGPROB_DIFF, results[name]
        assert results[name]["diverged"] <= MAX_DIVERGED * results[name]["completions"]
        longest = max(len(request.prompt) for request in requests)
        if longest > CPU_BLOCK_SIZE:  # only whole blocks are cached
            assert engine.cached_prompt_tokens > 0, "the prefix cache served nothing"
    engine.close()
    return results


def check_weights(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    config = load_config([], configure(arguments, work / "weights"))
    engine = VllmGenerator(policy, config.generate)
    requests = make_requests(policy, config, problems=4, samples=2)
    sampling, syncs, seconds = SamplingParams(max_tokens=8), 5, list[float]()
    for version in range(1, syncs + 1):
        perturb(policy, version)
        started = time.perf_counter()
        engine.load_weights(policy.weights(), version)
        seconds.append(time.perf_counter() - started)
        assert engine.checksum == checksum_weights(merge_weights(policy.model, torch.float32))
        compared = compare_inner_weights(engine, policy)
        found = compare_completions(
            TorchGenerator(policy, config.generate).generate(requests, sampling),
            engine.generate(requests, sampling),
        )
        assert found["logprob_diff_max"] < MAX_LOGPROB_DIFF, found
    refuse_bad_weights(engine, policy, syncs)
    after = engine.generate(requests, sampling)
    assert {c.policy_version for group in after for c in group} == {syncs}
    engine.close()
    return {"syncs": syncs, "sync_seconds": statistics.median(seconds), "matrices_equal": compared}


def compare_inner_weights(engine: VllmGenerator, policy: Policy) -> int:
    """Read the matrices back from vLLM's layers by multiplying the identity, which is exact in float32, and
    compare them bitwise with the learner's. Returns how many numbers were compared."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    ours = merge_weights(policy.model, torch.float32)
    groups = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

    @torch.no_grad()
    def compare(model: torch.nn.Module) -> int:
        compared = 0
        for name, module in model.named_modules():
            if not isinstance(module, LinearBase | ParallelLMHead):
                continue
            parent, _, last = name.rpartition(".")
            names = [f"{parent}.{part}.weight".lstrip(".") for part in groups.get(last, (last,))]
            if names == ["lm_head.weight"] and names[0] not in ours:
                names = ["model.embed_tokens.weight"]  # tied
            expected = torch.cat([ours[n] for n in names])
            identity = torch.eye(expected.shape[1], device=expected.device)
            got = module.quant_method.apply(module, identity).T
            assert torch.equal(got[: len(expected)], expected), f"{name} differs from the learner's"
            compared += expected.numel()
        return compared

    [count] = engine._llm.apply_model(compare)
    return int(count)


def refuse_bad_weights(engine: VllmGenerator, policy: Policy, version: int) -> None:
    """A stale version and damaged weights raise, and the engine keeps the weights that it has."""
    file, write = engine._file, engine._file.write
    file.write = lambda weights, announced: write(weights, version)  # type: ignore[method-assign]
    expect_refusal(lambda: engine.load_weights(policy.weights(), version + 1), "announced")

    def damage(weights: Mapping[str, torch.Tensor], version: int) -> None:
        write(weights, version)
        byte = os.pread(file.file.fileno(), 1, 200_000)
        os.pwrite(file.file.fileno(), bytes([byte[0] ^ 1]), 200_000)

    file.write = damage  # type: ignore[method-assign]
    expect_refusal(lambda: engine.load_weights(policy.weights(), version + 1), "checksum")
    file.write = write  # type: ignore[method-assign]
    assert engine.version == version
    compare_inner_weights(engine, policy)


def expect_refusal(call: Callable[[], None], word: str) -> None:
    message = ""
    try:
        call()
    except RunError as error:
        message = str(error)
    assert word in message, f"expected a refusal that says {word!r}, got {message!r}"


def check_training(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    out = work / "training"
    overrides = configure(
        arguments, out, f"steps={arguments.steps}", "generate.engine=vllm",
        "learn.learning_rate=1e-5", "reward.terms={exact: 1, closeness: 1}",
    )  # fmt: skip
    run = TrainingRun(load_config([], overrides))
    backend = run.backend
    assert isinstance(backend, LocalBackend)
    assert isinstance(backend.generator, VllmGenerator)
    checksums = list[tuple[int, bool]]()
    load_weights, update = backend.generator.load_weights, backend.update
    batches = list[Sequence[TrainingSample]]()

    def load_and_compare(weights: Any, version: int) -> None:
        load_weights(weights, version)
        ours = checksum_weights(merge_weights(backend.learner.policy.model, torch.float32))
        checksums.append((version, ours == backend.generator.checksum))

    def keep_batch(samples: Sequence[TrainingSample]) -> dict[str, float]:
        batches.append(samples)
        return update(samples)

    backend.generator.load_weights = load_and_compare  # type: ignore[method-assign]
    backend.update = keep_batch  # type: ignore[method-assign]
    summary = run.train()
    rows = load_metrics(out)
    assert summary["steps_done"] == arguments.steps == len(rows)
    assert [v for v, equal in checksums if equal] == list(range(1, arguments.steps + 1)), checksums
    return {
        "steps": len(rows),
        "checksums_equal": len(checksums),
        "reward": [round(row["reward"], 3) for row in rows],
        "logprob_diff": [
            {k: row[f"logprob_diff_{k}"] for k in ("p50", "p99", "max")} for row in rows
        ],
        "gradient": compare_gradients(load_on_device(arguments), batches[0], run.config),
        "timing": rows[-1]["timing"],
    }


def compare_gradients(
    policy: Policy, samples: Sequence[TrainingSample], config: Any
) -> dict[str, Any]:
    """The gradient of vLLM's first batch without importance weights, with truncated ones, and with whole ones:
    for the policy that sampled the batch, and for one that has moved away from it."""

    def compute(cap: float) -> tuple[torch.Tensor, dict[str, float]]:
        learn = config.learn.model_copy(update={"algorithm": "cispo", "importance_cap": cap})
        learner = Learner(policy, learn, max_tokens=config.generate.max_tokens, steps=1)
        size = StepSize(len(samples), sum(len(s.tokens) for s in samples))
        trained = [s for s in samples if s.tokens and s.advantage]
        gradients = learner.compute_gradients(trained, size)
        found = [g.flatten() for g in gradients.values if g is not None]
        return torch.cat(found), gradients.metric_sums

    def measure() -> dict[str, float]:
        unweighted, _ = compute(0.0)  # 0: every weight is 1
        truncated, sums = compute(IMPORTANCE_CAP)
        whole, _ = compute(1e30)
        norm = unweighted.norm().item()
        return {
            "norm": norm,
            "mean_ratio": sums["ratio"] / sums["tokens"],
            "truncated_share": sums["clip_high"] / sums["tokens"],
            "change_by_truncated_weights": (truncated - unweighted).norm().item() / norm,
            "change_by_whole_weights": (whole - unweighted).norm().item() / norm,
        }

    found: dict[str, Any] = {"cap": IMPORTANCE_CAP, "same_policy": measure()}
    perturb(policy, seed=1, scale=0.05)
    found["moved_policy"] = measure()
    assert found["same_policy"]["truncated_share"] == 0, found
    assert found["same_policy"]["change_by_truncated_weights"] < MAX_LOGPROB_DIFF, found
    assert found["moved_policy"]["truncated_share"] > 0, found
    return found


def check_adapters(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    """Three steps with adapters; from the second on, vLLM generates with adapters that are not zero."""
    out = work / "adapters"
    overrides = configure(
        arguments, out, "steps=3", "generate.engine=vllm", "learn.lora_rank=4", "learn.learning_rate=1e-3",
        "reward.terms={exact: 1, closeness: 1}", *MONARCH,
    )  # fmt: skip
    run = TrainingRun(load_config([], overrides))
    adapters: int = run.backend.weights.numel  # type: ignore[attr-defined]
    run.train()
    rows = load_metrics(out)
    worst = max(row["logprob_diff_max"] for row in rows)
    assert rows[-1]["kl"] > 0, "the adapters were not trained"
    assert worst < MAX_LOGPROB_DIFF, f"vLLM generated with other adapters: {worst:.2g}"
    total = policy.model.num_parameters()
    assert adapters < total / 2
    return {
        "numbers_sent": adapters,
        "numbers_of_the_model": total,
        "kl": rows[-1]["kl"],
        "logprob_diff_max": worst,
    }


class KillOneServer:
    """Kills the first generator process while the second step generates."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.killed = backend, list[int]()
        self.thread = threading.Thread(target=self._kill, daemon=True)
        self.thread.start()

    def _kill(self) -> None:
        wait_until(
            lambda: self.backend.version >= 1 and self.backend.queue.pending[-1].is_open,
            timeout=1200,
        )
        time.sleep(0.2)
        self.killed = list(self.backend.supervisors[0].pids)
        for pid in self.killed:
            os.kill(pid, signal.SIGKILL)


def check_server(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    out = work / "server"
    overrides = configure(arguments, out, "steps=4", "generate.engine=vllm", *MONARCH)
    run = TrainingRun(load_config([], overrides))
    killer = KillOneServer(run.backend)
    started = time.monotonic()
    summary = run.train()
    killer.thread.join()
    assert killer.killed
    assert load_events(out, "fault"), "the kill was not detected"
    respawns = load_events(out, "respawn")
    assert respawns, "the server was not respawned"
    assert summary["steps_done"] == 4
    rows = load_metrics(out)
    worst = max(row["logprob_diff_max"] for row in rows)
    assert worst < MAX_LOGPROB_DIFF, f"a respawned server generated with other weights: {worst:.2g}"
    assert wait_for_exit(killer.killed)
    return {
        "killed": len(killer.killed),
        "respawn_seconds": [event["seconds"] for event in respawns],
        "logprob_diff_max": worst,
        "run_seconds": round(time.monotonic() - started, 1),
    }


def check_curves(policy: Policy, arguments: Any, work: Path) -> dict[str, Any]:
    """Training accuracy per seed and engine. The engines share seeds, so that their curves are paired. One token that
    differs changes all that a run does afterwards, so the torch engine is also compared with itself with other
    batches, which are rounded differently."""
    contenders = {
        "torch": ["generate.engine=torch"],
        "vllm": ["generate.engine=vllm"],
        "torch, other batches": ["generate.engine=torch", "generate.chunk_size=2"],
    }
    curves: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for seed in range(arguments.seeds):
        for name, options in contenders.items():
            out = work / f"curve-{name}-{seed}"
            overrides = configure(
                arguments, out, f"seed={seed}", f"steps={arguments.curve_steps}",
                "data.groups_per_step=6", "generate.group_size=8", *options,
                f"learn.learning_rate={'3e-4' if arguments.model == 'pocket' else '3e-5'}",
            )  # fmt: skip
            TrainingRun(load_config([], overrides)).train()
            curves[name].append([round(row["accuracy"], 4) for row in load_metrics(out)])
            print(f"curves: {name}, seed {seed}: {curves[name][-1]}", flush=True)
    half = arguments.curve_steps // 2
    ends = {name: [statistics.fmean(c[half:]) for c in found] for name, found in curves.items()}
    intervals = {
        name: mean_interval([a - b for a, b in zip(ends[name], ends["torch"], strict=True)])
        for name in contenders
        if name != "torch"
    }
    _, low, high = intervals["vllm"]
    assert low <= 0 <= high, (ends, intervals)
    return {"second_half": ends, "difference_from_torch": intervals, "curves": curves}


CHECKS: dict[str, Callable[[Policy, Any, Path], dict[str, Any]]] = {
    "tokens": check_tokens,
    "weights": check_weights,
    "training": check_training,
    "adapters": check_adapters,
    "server": check_server,
    "curves": check_curves,
}


if __name__ == "__main__":
    sys.exit(main())
