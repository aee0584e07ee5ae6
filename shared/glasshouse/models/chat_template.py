"""Renders a chat as the prompt of a model, and says which of its messages the model sees.

A chat template is a program of the model's authors. Some, such as that of the pocket models, leave system
messages out, some reject them, and some insert today's date. Base models have no template: their messages
become paragraphs after the `<bos>` token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from glasshouse.config.schema import ChatConfig
from glasshouse.errors import ConfigError, ModelError
from glasshouse.types import Message

MAX_PROMPT_CHARACTERS = 1_000_000

TEMPLATE_DATE = datetime(2024, 7, 26)
"""What templates that insert today's date get instead, so that a run does not depend on the day."""
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")

DEFAULT_CHAT = ChatConfig()
PROBE: list[Message] = [
    {"role": "system", "content": "first"},
    {"role": "user", "content": "question"},
]


def check_template_options(tokenizer: Any, name: str, chat: ChatConfig) -> None:
    """Raises if the template does not know an option: it would be ignored."""
    template = str(tokenizer.chat_template or "")
    for option in chat.template_options:
        if option not in template:
            reason = "does not mention it" if template else "does not exist"
            raise ConfigError(
                f'chat.template_options: "{option}" has no effect on "{name}", because its chat '
                f"template {reason}. Remove it."
            )


def render_prompt(
    tokenizer: Any, messages: Sequence[Message], name: str, chat: ChatConfig = DEFAULT_CHAT
) -> str:
    """The text of the prompt, which ends where the model's turn begins. `name` is the model's, for errors."""
    if tokenizer.chat_template:
        text = _apply_template(tokenizer, messages, name, chat)
    else:  # a base model: turns become paragraphs
        text = "\n\n".join(m["content"] for m in messages) + "\n\n"
        if uses_bos(tokenizer):
            text = tokenizer.bos_token + text
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ModelError(
            f'The chat template of "{name}" made a prompt of {len(text):,} characters, more than '
            f"{MAX_PROMPT_CHARACTERS:,}."
        )
    return str(text)


def _apply_template(
    tokenizer: Any, messages: Sequence[Message], name: str, chat: ChatConfig
) -> str:
    attempts = [messages, merge_system_message(messages)]
    if chat.system_role == "merge":
        attempts.pop(0)
    while True:
        try:
            return render_chat(tokenizer, attempts.pop(0), chat)
        except Exception as error:  # a template is a program and may raise anything
            if not attempts or not _is_about_roles(error):
                raise ModelError(
                    f'The chat template of "{name}" failed: {type(error).__name__}: {error}. It must '
                    f"accept messages of the roles {', '.join(m['role'] for m in messages)}."
                ) from None


def render_chat(
    tokenizer: Any, messages: Sequence[Message], chat: ChatConfig, *, prompt: bool = True
) -> str:
    """Render as transformers does, except that today is `TEMPLATE_DATE`."""
    template = tokenizer.chat_template
    options: dict[str, Any] = {"add_generation_prompt": prompt, **chat.template_options}
    if isinstance(template, str) and "strftime_now" in template:
        fixed = _TODAY.sub(lambda call: repr(TEMPLATE_DATE.strftime(call[2])), template)
        if "strftime_now(" in fixed:
            raise ValueError("it computes the format of today's date, so it cannot be fixed")
        options["chat_template"] = fixed
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


def _is_about_roles(error: Exception) -> bool:
    """Did the template itself raise this, by `raise_exception`, about a role?"""
    has_words = re.search("role|system", str(error), re.IGNORECASE) is not None
    return type(error) is TemplateError and has_words


def merge_system_message(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system message in front of the first user message."""
    system = [m["content"] for m in messages if m["role"] == "system"]
    merged: list[Message] = []
    for message in messages:
        if message["role"] == "user" and system:
            merged.append({"role": "user", "content": "\n\n".join([*system, message["content"]])})
            system = []
        elif message["role"] != "system":
            merged.append(message)
    return merged


def uses_bos(tokenizer: Any) -> bool:
    """Does a text for this tokenizer's model start with its `<bos>` token? GPT-2 and its relatives, whose
    token for it is the one that ends texts, were trained without; the others need it even if their
    tokenizer does not add it (Gemma from a GGUF file: 6.8 nats per token without it, 3.6 with it)."""
    if tokenizer.bos_token is None:
        return False
    is_added = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return is_added or tokenizer.bos_token_id != tokenizer.eos_token_id


def find_turn_end(tokenizer: Any) -> int | None:
    """The special token that the chat template writes after an assistant's message, None without one."""
    marker = "glasshouse-answer"
    chat: list[Message] = [PROBE[1], {"role": "assistant", "content": marker}]
    try:
        text = render_chat(tokenizer, chat, DEFAULT_CHAT, prompt=False)
    except Exception:  # no template, or one that does not render assistants
        return None
    _, found, rest = text.rpartition(marker)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for token in tokenizer(rest, add_special_tokens=False)["input_ids"] if found else ():
        if token in special:
            return int(token)
        if tokenizer.decode([token]).strip():
            return None
    return None


def drops_system_messages(tokenizer: Any, chat: ChatConfig = DEFAULT_CHAT) -> bool:
    """Is the prompt the same whatever the system message says?"""
    other: list[Message] = [{"role": "system", "content": "second"}, PROBE[1]]
    prompts = {render_prompt(tokenizer, chat_, "model", chat) for chat_ in (PROBE, other)}
    return len(prompts) == 1


def describe_system_message(tokenizer: Any, chat: ChatConfig = DEFAULT_CHAT) -> str:
    """Say what the chat template does with system messages, if it does not simply render them."""
    merged = render_prompt(tokenizer, merge_system_message(PROBE), "model", chat)
    if tokenizer.chat_template and render_prompt(tokenizer, PROBE, "model", chat) == merged:
        return "has no turn for the system message, which stands in front of the question"
    if drops_system_messages(tokenizer, chat):
        return "drops the system message; the model sees the question only"
    return ""
