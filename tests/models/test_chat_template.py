"""What a model is asked: the token ids of its prompt, `glasshouse tasks`, the log and the note agree."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers.utils import chat_template_utils

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import ModelError
from glasshouse.generate.engines import LocalGeneration
from glasshouse.models.chat_template import (
    TEMPLATE_DATE,
    describe_system_message,
    drops_system_messages,
    render_prompt,
)
from glasshouse.models.folders import BASES_FOLDER, read_card
from glasshouse.models.packaged import CARD_FILE
from glasshouse.models.policy import Policy, load_policy, load_tokenizer
from glasshouse.models.tokenizer import DROPPING_TEMPLATE
from glasshouse.rollout.collector import RolloutCollector
from glasshouse.tasks.base import make_task
from glasshouse.training.display import TerminalDisplay
from glasshouse.types import Message, Style

MOCK = str(Path(__file__).resolve().parents[2] / "models" / "mock")
BASES = sorted(folder.name for folder in BASES_FOLDER.iterdir() if (folder / CARD_FILE).exists())
WITH_SYSTEM = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TASK = make_task("sum_digits", {})
CHAT = TASK.messages(TASK.example(), Style.COT)


def encode(tokenizer: Any) -> str:
    """The text of the token ids that the model gets for the example problem."""
    ids = tokenizer(render_prompt(tokenizer, CHAT, "model"), add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids))


@pytest.fixture
def seeing(pocket: Policy, small_tokenizer: Any) -> Policy:
    """The pocket model with a chat template that renders system messages."""
    tokenizer = load_tokenizer("pocket")
    tokenizer.chat_template = WITH_SYSTEM
    return replace(pocket, tokenizer=tokenizer)


@pytest.mark.parametrize("name", ["pocket", MOCK, *BASES])
def test_shipped_model_sees_the_question_alone_unless_its_template_renders_more(name: str) -> None:
    tokenizer, card = load_tokenizer(name), read_card(name)
    prompt = encode(tokenizer)
    assert drops_system_messages(tokenizer) == (CHAT[0]["content"] not in prompt)
    if drops_system_messages(tokenizer):
        assert prompt == f"<|user|>{TASK.example().question}<|assistant|>"
    assert card["mixture"]


def test_model_that_sees_system_messages_gets_the_worked_example_and_step_by_step(
    seeing: Policy,
) -> None:
    _, ids = seeing.encode_prompt(CHAT)
    prompt = seeing.tokenizer.decode(ids)
    assert not drops_system_messages(seeing.tokenizer)
    assert "step by step" in prompt
    assert TASK.demonstrate(TASK.example(), "steps", None) in prompt  # type: ignore[arg-type]
    assert prompt.endswith(f"<|user|>{CHAT[1]['content']}<|end|><|assistant|>")


@pytest.mark.parametrize(
    ("template", "roles"), [(DROPPING_TEMPLATE, ["user"]), ("", ["system", "user"])]
)
def test_logged_messages_are_those_in_the_prompt(
    pocket: Policy, template: str, roles: list[str]
) -> None:
    tokenizer = load_tokenizer("pocket")
    tokenizer.chat_template = template or tokenizer.chat_template
    policy = replace(pocket, tokenizer=tokenizer)
    config = load_config([], ["generate.max_tokens=2"])
    backend = LocalGeneration(policy, config.generate)
    collector = RolloutCollector(policy, TASK, backend, config)
    [[rollout]] = collector.collect(
        [TASK.example()], step=1, split="train", samples=1,
        sampling=config.generate.sampling(),
    )  # fmt: skip
    assert [message["role"] for message in rollout.messages] == roles
    assert all(message["content"] in rollout.prompt for message in rollout.messages)
    assert policy.decode(rollout.prompt_tokens).count(TASK.role) == roles.count("system")


def test_tasks_shows_the_prompt_of_the_default_model_and_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tasks", "sum_digits"]) == 0
    shown = capsys.readouterr().out.split("prompt of the model pocket")[1]
    assert "drops the system message" not in shown
    assert f"{CHAT[0]['content']}<|user|>What is" in shown

    assert main(["tasks", "sum_digits", "--model", MOCK]) == 0
    shown = capsys.readouterr().out.split("prompt of the model")[1]
    assert "drops the system message" in shown
    assert CHAT[0]["content"] not in shown

    assert main(["tasks", "sum_digits", "--model", "pokcet"]) == 2
    assert '"pocket"' in capsys.readouterr().err


def test_run_says_at_its_start_that_the_template_drops_the_system_message(pocket: Policy) -> None:
    for policy, expected in ((load_policy(MOCK), 1), (pocket, 0)):
        out = io.StringIO()
        TerminalDisplay(Console(file=out)).start(load_config([], []), Path("run"), policy, TASK)
        assert out.getvalue().count("drops the system message") == expected


TEMPLATES = Path(__file__).with_name("templates")
QUESTION = CHAT[1:]


def load_with_template(name: str) -> Any:
    tokenizer = load_tokenizer("pocket")
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    tokenizer.bos_token = "<|user|>"
    return tokenizer


class FixedDay(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return TEMPLATE_DATE


@pytest.mark.parametrize("name", sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
@pytest.mark.parametrize("messages", [CHAT, QUESTION], ids=["system", "question"])
def test_prompt_is_what_transformers_renders(
    name: str, messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_with_template(name)
    prompt = render_prompt(tokenizer, messages, "model")
    monkeypatch.setattr(chat_template_utils, "datetime", FixedDay)
    expected = messages
    if name == "gemma-2" and messages is CHAT:  # rejects system messages
        expected = [{"role": "user", "content": "\n\n".join(m["content"] for m in CHAT)}]
    # another text than before, since transformers compiles each template once, with its own clock
    template = tokenizer.chat_template + "{# another #}"
    assert prompt == tokenizer.apply_chat_template(
        expected, tokenize=False, add_generation_prompt=True, chat_template=template
    )
    assert CHAT[1]["content"] in prompt
    assert ("26 Jul" in prompt) == ("strftime_now" in template)


def test_only_an_error_about_roles_merges_the_system_message_and_it_is_said() -> None:
    effects = {
        file.stem: describe_system_message(load_with_template(file.stem))
        for file in TEMPLATES.glob("*.jinja")
    }
    merging = {name for name, effect in effects.items() if "in front of the question" in effect}
    assert merging == {"gemma-2", "gemma-3", "mistral"} == {n for n in effects if effects[n]}
    tokenizer = load_tokenizer("pocket")
    for fault in ("{{ messages[0].nothing.at_all }}", "{{ raise_exception('bad content') }}"):
        tokenizer.chat_template = fault
        with pytest.raises(ModelError, match="failed"):
            render_prompt(tokenizer, CHAT, "model")
    tokenizer.chat_template = "{{ strftime_now(messages[0].content) }}"
    with pytest.raises(ModelError, match="date"):
        render_prompt(tokenizer, CHAT, "model")
