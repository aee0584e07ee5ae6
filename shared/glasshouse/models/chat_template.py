"""Renders a chat as the prompt of a model, and says which of its messages the model sees.

A chat template is a program of the model's authors. Some, such as that of the pocket models, leave system
messages out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glasshouse.errors import ModelError
from glasshouse.models.validation import MAX_PROMPT_CHARACTERS
from glasshouse.types import Message


def render_prompt(tokenizer: Any, messages: Sequence[Message], name: str) -> str:
    """The text of the prompt, which ends where the model's turn begins. `name` is the model's, for errors."""
    if tokenizer.chat_template:
        try:
            text = tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program and may raise anything
            raise ModelError(
                f'The chat template of "{name}" failed: {type(error).__name__}: {error}. It must '
                f"accept messages of the roles {', '.join(m['role'] for m in messages)}."
            ) from None
    else:  # a base model without a chat template: turns become paragraphs
        text = "\n\n".join(m["content"] for m in messages) + "\n\n"
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ModelError(
            f'The chat template of "{name}" made a prompt of {len(text):,} characters, more than '
            f"{MAX_PROMPT_CHARACTERS:,}."
        )
    return str(text)


def drops_system_messages(tokenizer: Any) -> bool:
    """Is the prompt the same whatever the system message says?"""
    prompts = {
        render_prompt(
            tokenizer,
            [{"role": "system", "content": text}, {"role": "user", "content": "question"}],
            "model",
        )
        for text in ("first", "second")
    }
    return len(prompts) == 1
