"""Checks of a model folder that transformers does not make: its JSON files, size and weights; and a trial of the rest
in a limited process before it is used in this one.

A chat template and a tokenizer are programs of the model's authors, and a configuration can ask for a million
layers: a few bytes can loop for hours, allocate all memory, or crash a library, and nothing in this process could
stop that. A forked child needs no imports, and can be killed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import resource
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from glasshouse.errors import ModelError
from glasshouse.models.chat_template import DEFAULT_CHAT, MAX_PROMPT_CHARACTERS, render_chat
from glasshouse.models.devices import WEIGHT_DTYPE
from glasshouse.types import Message

MAX_ARCHITECTURE = {
    "num_hidden_layers": 1_000,
    "hidden_size": 10_000_000,
    "intermediate_size": 10_000_000,
    "head_dim": 10_000_000,
    "num_attention_heads": 100_000,
    "num_experts": 100_000,
    "num_local_experts": 100_000,
    "vocab_size": 100_000_000,
}


def build_empty_model(config: Any, source: str) -> Any:
    """The model of transformers' configuration as it is loaded for training, without memory for its weights."""
    check_architecture(config, source)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=WEIGHT_DTYPE).eval()


def check_architecture(config: Any, source: str) -> None:
    """Raises if a model's configuration asks for more than any model has: building it would take hours."""
    text = config.get_text_config()
    for name, most in MAX_ARCHITECTURE.items():
        value = getattr(text, name, None)
        if isinstance(value, int) and value > most:
            raise ModelError(
                f'"{source}" has {name} {value:,} in its config.json; at most {most:,}.'
            )


def check_cache_support(model: Any, source: str) -> None:
    """Raises for architectures without an attention cache, such as Mamba: the engine could not generate."""
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise ModelError(
            f'"{source}" is a model of type "{model.config.model_type}", which has no attention cache '
            "(past_key_values). Generation needs one: set `model` to a transformer or a hybrid model."
        )


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Raises if a weight is NaN or infinite: such a model gives no answer and learns nothing."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            count = int((~torch.isfinite(parameter)).sum())
            raise ModelError(
                f'The weights of "{source}" are not finite: {count:,} of {parameter.numel():,} values of '
                f"{name} are NaN or infinite. Copy the model again, or choose an earlier checkpoint."
            )


# --- the trial in a limited process --------------------------------------------------------------

MAX_CPU_SECONDS = 3
MAX_SECONDS = 30
"""More than the limit of CPU time, since other processes may have the cores."""
MAX_MEMORY = 1 << 30
"""Bytes that the child may take in addition to those that it shares with this process."""
SAMPLE = " ".join(map(chr, range(32, 127))) + " What is 12 + 345?\n\n\t[ANSWER] 357 é 你好 😀"
ROLES = (
    ["user"],
    ["system", "user"],
    ["user", "assistant"],
    ["system", "user", "assistant", "user"],
)
PROBED_FILES = (".json", ".jinja", ".txt", ".model")
PASSED = "GLASSHOUSE_PROBED_MODELS"
"""Environment variable: digests of the folders that passed, also for the processes that this one starts."""


def probe_folder(folder: Path) -> None:
    """Try the model of a folder, unless the same files have passed before."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.suffix in PROBED_FILES and file.is_file():
            digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    passed = os.environ.get(PASSED, "").split()
    if digest.hexdigest() not in passed:
        probe_model(str(folder))
        os.environ[PASSED] = " ".join([*passed, digest.hexdigest()])


def probe_model(source: str) -> None:
    """Raise a `ModelError` that names the part of the model that exceeds a limit or does not fit the others. Other
    errors are not reported: they will be raised here too."""
    importlib.import_module(
        "transformers.models.llama.modeling_llama"
    )  # takes seconds: not in the child
    report, write = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(source, write)
    os.close(write)
    lines, deadline = b"", time.monotonic() + MAX_SECONDS
    try:
        while select.select([report], [], [], max(0, deadline - time.monotonic()))[0]:
            piece = os.read(report, 1 << 16)
            if not piece:
                break
            lines += piece
    finally:
        os.close(report)
        os.kill(child, signal.SIGKILL)  # it may have ended
        os.waitpid(child, 0)
    *_, part, outcome = lines.decode().split("\n")
    if outcome != "passed":
        raise ModelError(
            outcome
            or f'The {part} of "{source}" needs more than {MAX_CPU_SECONDS} s or {MAX_MEMORY >> 20} MB for a short '
            "chat, or crashes. Copy the files of the original model again."
        )


def _run_child(source: str, write: int) -> None:
    """Write the name of each part before it is tried, and the outcome."""
    outcome = b"passed"
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries print when they crash
        shared = 0
        with suppress(OSError, ValueError):
            shared = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for kind, limit in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
            (resource.RLIMIT_AS, shared + MAX_MEMORY),
        ):
            with suppress(ValueError, OSError):  # not supported on every system
                resource.setrlimit(kind, (limit, limit))
        _try_parts(source, write)
    except MemoryError:
        outcome = b""
    except ModelError as error:
        outcome = " ".join(str(error).split()).encode()
    except BaseException:
        pass  # this process will meet it too
    finally:
        os.write(write, outcome)
        os._exit(0)


def _try_parts(source: str, write: int) -> None:
    os.write(write, b"config.json\n")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    size = build_empty_model(config, source).get_input_embeddings().num_embeddings
    os.write(write, b"tokenizer\n")
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    tokens = list(tokenizer(SAMPLE)["input_ids"])
    os.write(write, b"chat template\n")
    for roles in ROLES:
        chat = [Message(role=role, content="1 + 1?") for role in roles]
        for prompt in (True, False):
            text = _render_within_limit(tokenizer, chat, source, prompt)
            tokens += tokenizer(text, add_special_tokens=False)["input_ids"]
    if max(tokens) >= size:
        raise ModelError(
            f'The tokenizer of "{source}" encodes a short text as token {max(tokens):,}, but the model has only '
            f"{size:,} tokens: they belong to different models. Copy the files of one model."
        )


def _render_within_limit(tokenizer: Any, chat: list[Message], source: str, prompt: bool) -> str:
    try:
        text = render_chat(tokenizer, chat, DEFAULT_CHAT, prompt=prompt)
    except (MemoryError, OverflowError):
        raise MemoryError from None
    except Exception:  # a template may refuse a role
        return ""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ModelError(
            f'The chat template of "{source}" makes a prompt of {len(text):,} characters from a short chat, more '
            f"than {MAX_PROMPT_CHARACTERS:,}. Replace it by the template of the original model."
        )
    return text
