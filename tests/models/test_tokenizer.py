"""The pocket tokenizer: every text round-trips, digits never merge, and the chat template."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from glasshouse.models.policy import Policy
from glasshouse.models.tokenizer import ASSISTANT, END, PAD, USER, train_tokenizer

SPECIAL = [PAD, END, USER, ASSISTANT]
TEXTS = [
    f"Add the digits of {n * n}: {n} + {n * 7}, step by step.\n[ANSWER] {n}" for n in range(300)
]
TEXTS += ["1111 2222 12121212 1111 ٣٣٣٣ １２１２ ²² ½½"] * 50
TOKENIZER = train_tokenizer(TEXTS, 420)
PHRASES = train_tokenizer([*TEXTS, "What is 12 * 7?", "What is 8 * 94?"], 512, phrases=True)


def vocabulary_texts(tokenizer: Any) -> list[str]:
    """Every vocabulary entry as text, without special tokens."""
    ids = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    return [tokenizer.decode([i], skip_special_tokens=False) for i in sorted(ids)]


@given(st.text())
def test_any_text_round_trips(shared_pocket: Policy, text: str) -> None:
    for tokenizer in (TOKENIZER, PHRASES, shared_pocket.tokenizer):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_never_merge(shared_pocket: Policy) -> None:
    assert {" digits", "[ANSWER] "} <= set(vocabulary_texts(TOKENIZER))  # there are merges
    for tokenizer in (TOKENIZER, shared_pocket.tokenizer):
        texts = vocabulary_texts(tokenizer)
        assert [e for e in texts if any(c.isnumeric() for c in e) and len(e) > 1] == []
    assert len(TOKENIZER("90210")["input_ids"]) == 5
    assert TOKENIZER("1 2")["input_ids"][-1] == TOKENIZER("2")["input_ids"][0]


def test_special_tokens_are_single_and_first() -> None:
    assert [TOKENIZER(text)["input_ids"] for text in SPECIAL] == [[0], [1], [2], [3]]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id) == (0, 1, None)
    assert TOKENIZER.decode([2, *TOKENIZER("hi")["input_ids"], 1], skip_special_tokens=True) == "hi"


def test_chat_template_drops_the_system_message() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    prompt = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>1 + 1?<|assistant|>"
    chat += [{"role": "assistant", "content": "2"}, {"role": "user", "content": "Sure?"}]
    conversation = TOKENIZER.apply_chat_template(chat, tokenize=False)
    assert conversation == "<|user|>1 + 1?<|assistant|>2<|end|><|user|>Sure?"


def test_with_phrases_a_token_may_span_words_but_digits_never_merge() -> None:
    texts = [PHRASES.decode([i]) for i in PHRASES("What is 273 * 46?")["input_ids"]]
    assert texts == ["What is ", *"273", " * ", *"46", "?"]
    assert PHRASES.decode(PHRASES("[ANSWER] 12558")["input_ids"][:2]) == "[ANSWER] 1"
