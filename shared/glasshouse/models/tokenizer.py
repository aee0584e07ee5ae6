"""The pocket model's tokenizer: byte-level BPE in which digits never merge.

All 256 bytes are in the vocabulary, so that every text round-trips. The chat template writes the system message
before the question, or drops it, as the recipe says (`system_prompt_phases`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
SYSTEM = "<|system|>"
"""In tokenizers with phrases; no template writes it."""
DROPPING_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_TEMPLATE = DROPPING_TEMPLATE.replace(
    "{% if", "{% if m['role'] == 'system' %}{{ m['content'] }}{% elif", 1
)
PRETOKEN_PATTERN = r"\[ANSWER\] ?|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"
"""BPE merges only within these: the answer tag, a digit, a word, a punctuation mark, a space."""
PHRASE_PATTERN = r"\[ANSWER\] ?|\p{N}|(?:(?!\[ANSWER\])\P{N})+"
"""BPE merges only within these: the answer tag, a digit, the text up to the next digit."""


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 512,
    *,
    phrases: bool = False,
    template: str = DROPPING_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer on these texts, wrapped so that transformers can load and save it. With `phrases`,
    a token may span several words."""
    bpe = Tokenizer(models.BPE())
    pattern = PHRASE_PATTERN if phrases else PRETOKEN_PATTERN
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[PAD, END, USER, ASSISTANT, *([SYSTEM] if phrases else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = template
    return tokenizer
