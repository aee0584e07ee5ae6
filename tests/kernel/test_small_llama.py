"""The kernel for small models: the values and gradients of torch, the same bits however it is called, and what happens
without it."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from proofs.kernel_bits import hash_run

from glasshouse import randomness
from glasshouse.config.loading import load_config
from glasshouse.config.schema import LearnConfig
from glasshouse.errors import RunError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.kernel import build
from glasshouse.kernel.small_llama import Group, Part, SmallLlama, divide_prompts
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models import llama
from glasshouse.models.adapters import add_adapters
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy
from glasshouse.training.train import resume, train
from glasshouse.types import Request, SamplingParams

Tiny = Callable[..., Policy]
MODELS: dict[str, dict[str, Any]] = {  # widths are multiples of 16
    "llama": {"head_dim": 16},
    "llama grouped untied": {"head_dim": 32, "vocab_size": 293},
    "qwen2": {"head_dim": 16, "hidden_size": 48},
    "qwen3": {},
}
VARIANTS = {
    "AVX512": ["avx512", "avx2", "baseline"],
    "AVX2": ["avx2", "baseline"],
}.get(torch.backends.cpu.get_cpu_capability(), ["baseline"])
QUESTIONS = [f"What is the sum of the digits of {n}?" for n in (4, 58, 1234567, 90210)]


@pytest.fixture(scope="module")
def libraries() -> dict[str, ctypes.CDLL]:
    return {name: ctypes.CDLL(str(build.build_kernel(name))) for name in VARIANTS}


def make_groups(vocabulary: int, groups: int = 4) -> list[Group]:
    """Prompts of 3 to 39 tokens, with samples of 1 to 40."""
    draw = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.integers(1, vocabulary, count).tolist())

    return [
        (tokens(3 + 12 * n), [tokens(int(length)) for length in draw.integers(1, 41, 3)])
        for n in range(groups)
    ]


def sum_gradients(model: SmallLlama, groups: list[Group], temperature: float = 1.0) -> np.ndarray:
    """Of the log-probabilities, weighted by 1, 2, 3, …"""
    tape = model.logprobs(groups, temperature)
    ends = np.cumsum([len(numbers) for numbers in tape.logprobs])
    weights = np.split(np.arange(ends[-1], dtype=np.float32), ends[:-1])
    total = np.zeros(model.count, np.float32)
    for gradients in model.gradients(tape, weights):
        total += gradients
    return total


@pytest.mark.parametrize("name", [*MODELS, "pocket"])
def test_values_and_gradients_are_those_of_torch(tiny: Tiny, pocket: Policy, name: str) -> None:
    policy = pocket if name == "pocket" else tiny(name, **MODELS[name])
    assert llama.find_kernel_obstacle(policy.model, policy.dtype) == ""
    model, temperature = policy.model, 0.7
    kernel = llama.open_kernel(model)
    assert kernel is not None
    groups = make_groups(model.config.vocab_size)
    pairs = [(prompt, tokens) for prompt, samples in groups for tokens in samples]
    reference = copy.deepcopy(model).double()  # transformers' forward in double
    batch = CompletionBatch.from_pairs(pairs)
    table, _ = compute_logprobs(reference, batch, temperature, transformers_forward=True)
    expected = table[batch.mask]
    found = np.concatenate(kernel.logprobs(groups, temperature).logprobs)
    assert np.abs(found - expected.detach().numpy()).max() < 5e-5
    weights = torch.arange(len(expected), dtype=torch.float64)
    gradients = torch.autograd.grad((expected * weights).sum(), list(reference.parameters()))
    flat = torch.from_numpy(sum_gradients(kernel, groups, temperature))
    for own, gradient in zip(kernel.split(flat, model.parameters()), gradients, strict=True):
        assert own is not None
        assert (own - gradient).abs().max() / gradient.abs().max() < 2e-5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*MODELS, "pocket"])
def test_bits_do_not_depend_on_registers_threads_or_the_batch(
    tiny: Tiny, pocket: Policy, name: str, libraries: dict[str, ctypes.CDLL]
) -> None:
    """And the sampler's log-probabilities are the learner's."""
    policy = pocket if name == "pocket" else tiny(name, **MODELS[name])
    vocabulary = policy.model.config.vocab_size
    start = (5, 6, 7)
    prompts = [(*start, *prompt) for prompt, _ in make_groups(vocabulary)]
    keys = np.arange(24, dtype=np.uint64)
    noise = randomness.uniforms(keys, 0, 30)

    def compute(library: ctypes.CDLL, threads: int) -> dict[str, str]:
        model = SmallLlama(library, policy.model, threads)
        options: dict[str, Any] = {"temperature": 0.9, "end_tokens": range(4, 12)}
        counts = [6] * 4
        outputs = model.generate(prompts, counts, noise, **options)
        tokens, logprobs, lengths = outputs
        for row in (0, 7, 23):  # alone
            alone = model.generate([prompts[row // 6]], [1], noise[row : row + 1], **options)
            assert all(np.array_equal(a[0], b[row]) for a, b in zip(alone, outputs, strict=True))
        groups: list[Group] = [
            (prompt, [tokens[row, : lengths[row]].tolist() for row in range(6 * n, 6 * n + 6)])
            for n, prompt in enumerate(prompts)
        ]
        learned = model.logprobs(groups, 0.9).logprobs
        sampled = [logprobs[row, : lengths[row]] for row in range(24)]
        assert np.array_equal(np.concatenate(learned), np.concatenate(sampled))
        gradients = sum_gradients(model, groups)
        arrays = {"tokens": tokens, "logprobs": logprobs, "gradients": gradients}
        return {key: hashlib.sha256(a.tobytes()).hexdigest() for key, a in arrays.items()}

    results = [compute(library, threads) for library in libraries.values() for threads in (1, 2, 4)]
    assert all(result == results[0] for result in results)


def test_prompts_that_begin_alike_are_computed_once_if_that_pays(pocket: Policy) -> None:
    starts = (tuple(range(20, 60)), tuple(range(100, 140)))
    prompts = [(*start, *start[:n], 9) for n in range(1, 6) for start in starts]

    def count_rows(parts: Sequence[Part]) -> int:
        assert sorted(g for part in parts for g in part.prompts) == list(range(len(prompts)))
        return sum(p.common + sum(len(prompts[g]) - p.common for g in p.prompts) for p in parts)

    alike, together = (list(divide_prompts(prompts, 1, limit)) for limit in (8, 1000))
    assert count_rows(alike) < 0.3 * sum(map(len, prompts)) < count_rows(together)
    assert [len(list(divide_prompts(prompts, n, 1000))) for n in (1, 2)] == [1, 2]
    kernel = llama.open_kernel(pocket.model)
    assert kernel is not None
    noise = np.full((len(prompts), 8), 0.5)
    options: dict[str, Any] = {"temperature": 0.0, "end_tokens": ()}
    found = kernel.generate(prompts, [1] * len(prompts), noise, **options)
    for n, prompt in enumerate(prompts):
        alone = kernel.generate([prompt], [1], noise[:1], **options)
        assert all(np.array_equal(a[0], b[n]) for a, b in zip(alone, found, strict=True))


# ── the default, and the options that take the general path ──────────────────────────────────────


def question_requests(policy: Policy) -> list[Request]:
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    return [Request(prompt=policy.encode_prompt(c)[1], noise_keys=(1, 2, 3, 4)) for c in chats]


PLAIN = SamplingParams(max_tokens=40)


@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        replace(PLAIN, temperature=0.0),
        replace(PLAIN, temperature=0.6),
        replace(PLAIN, top_k=10_000),
        replace(PLAIN, top_p=1 - 1e-9),
        replace(PLAIN, min_p=1e-30),
        replace(PLAIN, stop=("never",)),
    ],
    ids=str,
)
def test_generation_by_the_kernel_and_by_torch_agree(
    pocket: Policy, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that the kernel does not have take the general path; set so that they change nothing."""
    plain = replace(PLAIN, temperature=sampling.temperature)
    generator = TorchGenerator(pocket)
    expected = generator.generate(question_requests(pocket), plain)
    assert generator._kernel is not None
    assert generator._decoder is None
    if sampling == plain:
        monkeypatch.setattr(llama, "open_kernel", lambda *_: None)
    general = TorchGenerator(pocket)
    found = general.generate(question_requests(pocket), sampling)
    assert general._decoder is not None
    rows = [
        (a, b)
        for one, two in zip(expected, found, strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    assert sum(a.tokens == b.tokens for a, b in rows) >= len(rows) - 1
    for a, b in rows:
        if a.tokens == b.tokens:
            assert a.finish_reason == b.finish_reason
            assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)


def training_samples(policy: Policy) -> list[TrainingSample]:
    requests = question_requests(policy)
    groups = TorchGenerator(policy).generate(requests, PLAIN)
    return [
        TrainingSample(
            prompt=r.prompt, tokens=c.tokens, sampler_logprobs=c.logprobs, advantage=1.0 - n
        )
        for r, group in zip(requests, groups, strict=True)
        for n, c in enumerate(group)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kl_coef": 0.1, "kl_tokens": "cot", "epochs_per_batch": 2},
        {"algorithm": "gspo"},
        {"entropy_coef": 1e-12},
        {"sharding": "fsdp"},
        {"lora_rank": 2},
    ],
    ids=str,
)
def test_an_update_by_the_kernel_and_by_torch_agree(
    pocket: Policy, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, weights, reports = training_samples(pocket), [], []
    for path in ("kernel", "torch"):
        policy = replace(pocket, model=copy.deepcopy(pocket.model))
        if "lora_rank" in options:
            policy = add_adapters(policy, rank=2, seed=0)
        if path == "torch":
            monkeypatch.setattr(llama, "open_kernel", lambda *_: None)
        learner = Learner(policy, LearnConfig(**options), max_tokens=40, steps=5)
        takes_general = options.keys() & {"entropy_coef", "sharding", "lora_rank"}
        assert (learner.kernel is None) == (path == "torch" or bool(takes_general))
        reports.append([learner.update(samples) for _ in range(2)])
        weights.append(policy.weights())
        if learner.kernel and "epochs_per_batch" not in options:
            assert reports[0][0]["logprob_diff_max"] == 0
    for one, two in zip(*reports, strict=True):
        for name, value in one.items():
            assert value == pytest.approx(two[name], rel=2e-3, abs=1e-4), name
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 1e-3, name


RUN: dict[str, Any] = {
    "steps": 2, "data.groups_per_step": 4, "generate.group_size": 4, "evaluate.problems": 4,
    "generate.max_tokens": 40, "diagnostics.kl_every": 1,
}  # fmt: skip


@pytest.mark.timeout(900)  # it imports torch in a second process, on a machine that may be busy
def test_a_run_has_the_same_bits_for_any_registers_threads_and_chunks(tmp_path: Path) -> None:
    """The second run is that of a CPU without AVX: torch's operations and the kernel's are both built for SSE2."""
    result = train(load_config(overrides={**RUN, "out": str(tmp_path / "one")}), progress=False)
    changed = {**RUN, "threads": 3, "generate.chunk_size": 1, "learn.microbatch_tokens": 64}
    script = (
        "import sys, json; from glasshouse import train, load_config;"
        "train(load_config(overrides=json.loads(sys.argv[1])), progress=False)"
    )
    arguments = str({**changed, "out": str(tmp_path / "two")}).replace("'", '"')
    environment = {"ATEN_CPU_CAPABILITY": "default", build.SWITCH: "baseline"}
    subprocess.run(
        [sys.executable, "-c", script, arguments], check=True, env={**os.environ, **environment}
    )
    assert hash_run(result.path) == hash_run(tmp_path / "two")


def test_a_run_says_that_the_kernel_computed_it_and_another_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In CI: without the kernel this fails."""
    result = train(load_config(overrides={**RUN, "steps": 1, "out": str(tmp_path / "run")}))
    assert "computed by kernel (" in capsys.readouterr().out
    monkeypatch.setattr(llama, "load_kernel", lambda: build.Kernel(None, "torch (a test)"))
    with pytest.raises(RunError, match="kernel for small models → torch, Llama in torch"):
        resume(result.path, {"steps": 2}, progress=False)


# ── building ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", ["damaged", "foreign", "garbage", "another library"])
def test_a_damaged_or_foreign_file_is_built_again(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tmp_path / "short.c", tmp_path / "cache"  # compiled in no time
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in build.FUNCTIONS))
    monkeypatch.setattr(build, "SOURCE", source)
    first = build.build_kernel("baseline", folder)
    assert build.build_kernel("baseline", folder) == first
    content = first.read_bytes()
    if case != "foreign":
        first.unlink()  # this process has loaded it
    if case == "damaged":
        first.write_bytes(content[:-1] + b"x")
    elif case != "foreign":  # its name has the right hash of its content
        key = first.name.partition("-")[0]
        if case == "garbage":
            first.write_bytes(b"x" * 4096)
        else:
            other = tmp_path / "other.c"
            other.write_text("int adamw(void) { return 2; }\n")
            compiler = [*build.find_compiler(), *build.FLAGS, str(other), "-o", str(first)]
            subprocess.run(compiler, check=True)
        first.rename(folder / build.name_file(key, first))
    elif os.getuid() == 0:  # it belongs to another user, who could have written anything
        os.chown(first, 65534, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 1 << 20)
    again = build.build_kernel("baseline", folder)
    assert "damaged" in capsys.readouterr().err
    assert ctypes.CDLL(str(again)).adamw() == 1
    assert [file.suffix for file in folder.iterdir()] == [".so"]  # nothing is left of the work


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama", {"hidden_size": 40, "head_dim": 16}, "multiple of 16"),
        ("llama biased", {"head_dim": 16}, "biases"),
        ("gpt2", {}, 'type "gpt2"'),
        ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "settings"),
    ],
)  # fmt: skip
def test_a_model_that_the_kernel_cannot_compute_takes_the_general_path(
    tiny: Tiny, name: str, changes: dict[str, Any], reason: str
) -> None:
    policy = tiny(name, **changes)
    assert llama.open_kernel(policy.model) is None
    path = llama.describe_path(policy.model)
    assert path.startswith("torch (")
    assert reason in path


@pytest.mark.parametrize("case", ["no compiler", "unwritable", "killed", "off"])
def test_without_a_kernel_there_is_one_line_and_the_general_path(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pocket: Policy
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if case == "no compiler":
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)
    elif case == "unwritable":
        (tmp_path / "cache").write_text("a file")
    elif case == "killed":
        compiler = tmp_path / "cc"
        compiler.write_text("#!/bin/sh\nkill -9 $$\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv(build.SWITCH, "off")
    build.load_kernel.cache_clear()
    try:
        kernel = build.load_kernel()
        assert kernel.library is None
        assert kernel.description.startswith("torch (")
        assert "\n" not in kernel.description
        assert llama.describe_path(pocket.model) == kernel.description
        generator = TorchGenerator(pocket)
        assert generator.generate(question_requests(pocket), PLAIN)
        assert generator._kernel is None
    finally:
        monkeypatch.undo()
        build.load_kernel.cache_clear()
