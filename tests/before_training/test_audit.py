"""`glasshouse audit-reward`: which terms read the chain of thought."""

import json
import random

import pytest

from glasshouse.before_training.audit import audit_reward
from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import RewardError
from glasshouse.runs.run import open_run
from glasshouse.training.train import train

REWARDS = """
import random, socket

seen = set()

def exact(prompts, completions, gold, **columns):
    return [float(c.split("[ANSWER]")[-1].strip() == g) for c, g in zip(completions, gold)]

def reads(completions, **columns):
    return [-1.0 if "because" in c else None if "nothing" in c else 0.0 for c in completions]

def mentions(completions, gold, **columns):
    return [float(g in c) for c, g in zip(completions, gold)]

def short(completion_ids, **columns):
    return [-len(ids) / 100 for ids in completion_ids]

def noisy(completions, **columns):
    return [random.random() for _ in completions]

def novel(completions, **columns):
    values = [float(c not in seen) for c in completions]
    seen.update(completions)
    return values

def ranked(completions, **columns):
    return [float(n) for n, _ in enumerate(completions)]

def chat(completions, gold, **columns):
    return [float(c[0]["content"].split("</think>")[-1].strip() == g) for c, g in zip(completions, gold)]

def raises(completions, **columns):
    return [1 / 0 for _ in completions]

def online(completions, **columns):
    try:
        socket.create_connection(("judge.example", 443))
    except OSError:
        pass
    return [0.0 for _ in completions]

def scaled(factor):
    return lambda completions, **columns: [factor * len(c) for c in completions]
"""
DOES_NOT_READ = ["exact", "chat"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "rewards.py").write_text(REWARDS)
    rng = random.Random(0)
    rows = []
    for n in range(60):
        left, right = rng.randrange(10, 99), rng.randrange(10, 99)
        answer = left + right if n % 3 else left * 2
        cot = f"I add {left} and {right} because it asks for the sum.\n{left}+{right}={answer}"
        text = f"{cot}\n[ANSWER] {answer}"
        rows.append(
            {"prompt": f"{left} and {right}", "completion": text, "gold": str(left + right)}
        )
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    thinking = []
    for row in rows:
        cot, _, answer = row["completion"].partition("\n[ANSWER]")
        thinking.append({**row, "completion": f"<think>{cot}</think>{answer}"})
    (tmp_path / "thinking.jsonl").write_text("\n".join(map(json.dumps, thinking)))
    return tmp_path


def audit(files, *names, source="rollouts.jsonl", **options):
    rewards = [f"{files / 'rewards.py'}:{name}" for name in names]
    return audit_reward(files / source, rewards=rewards, **options).terms


def test_a_function_of_the_answer_does_not_move_with_the_cot_and_does_with_the_answer(files):
    terms = audit(files, "exact") | audit(files, "chat", source="thinking.jsonl")
    for name in DOES_NOT_READ:
        assert not terms[name].reads_cot
        assert terms[name].is_stable
        assert terms[name].effects["other_answer"].moved == 60


def test_a_term_that_searches_the_cot_is_found_with_its_size_and_examples(files):
    term = audit(files, "reads")["reads"]
    assert term.reads_cot
    assert term.effects["delete"].mean.value == 1
    assert len(term.examples) == 2
    assert "because" in term.examples[0]["completion"]
    hides = audit(files, "reads", sentence="I say so because of the hint.")["reads"]
    assert hides.effects["disclose"].moved == 0  # every CoT says "because" already
    hides = audit(files, "reads", source="thinking.jsonl", sentence="nothing")["reads"]
    assert hides.effects["disclose"].moved == 0


def test_a_term_that_searches_the_whole_text_for_the_gold_answer_is_found(files):
    effects = audit(files, "mentions")["mentions"].effects
    assert effects["delete"].moved == effects["reword"].moved == 0
    assert effects["rival_answer"].moved == 20  # the wrong ones


def test_what_pays_is_told_apart_from_length(files):
    length = audit(files, "short")["short"]
    assert length.effects["disclose"].moved == 0  # compared with a sentence of equal length
    assert length.verdict.endswith("writing less pays")
    config = load_config(
        overrides={"reward.penalties": {"monitor": {"weight": 0.5, "keywords": ["hint"]}}}
    )
    audited = audit_reward(files / "rollouts.jsonl", config, sentence="The hint says {answer}.")
    assert audited.terms["monitor"].verdict.endswith("hiding pays")
    assert audited.terms["monitor"].effects["disclose"].mean.value == -0.5
    assert not audited.terms["exact"].reads_cot
    assert audited.terms["reward"].reads_cot


@pytest.mark.parametrize("name", ["noisy", "novel", "ranked"])
def test_a_term_that_is_random_or_keeps_state_or_reads_the_batch_is_found(files, name):
    assert not audit(files, name)[name].is_stable


def test_the_exit_code_is_1_if_an_outcome_only_term_reads_the_cot(files, capsys):
    given = [str(files / "rollouts.jsonl"), "--json"]
    for name, code in {"exact": 0, "reads": 1, "noisy": 1}.items():
        reward = ["--reward", f"{files / 'rewards.py'}:{name}", "--outcome-only", name]
        assert main(["audit-reward", *given, *reward]) == code
        assert json.loads(capsys.readouterr().out)["violations"] == [name] * code
    key = 'reward.outcome_only=["length"]'
    assert main(["audit-reward", *given, "reward.penalties.length.weight=1", key]) == 1


@pytest.mark.parametrize("name", ["raises", "online", "missing", "scaled(1, 2)"])
def test_a_reward_that_cannot_be_audited_is_one_sentence(files, name):
    with pytest.raises(RewardError, match=r"\.$"):
        audit(files, name)


def test_a_reward_that_raises_is_located(files):
    with pytest.raises(RewardError, match=r"\.py, line \d+, in"):
        audit(files, "raises")


def test_a_factory_is_called_with_its_arguments(files):
    assert audit(files, "scaled(0)")["scaled(0)"].reads_cot is False


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {**row, "completion": row["completion"].splitlines()[-1]},  # no CoT
        lambda row: {k: v for k, v in row.items() if k != "gold"},
    ],
)
def test_rollouts_that_cannot_be_audited_exit_with_code_2(files, capsys, change):
    rows = [json.loads(line) for line in (files / "rollouts.jsonl").read_text().splitlines()]
    (files / "changed.jsonl").write_text("\n".join(json.dumps(change(row)) for row in rows))
    assert main(["audit-reward", str(files / "changed.jsonl"), "reward.terms.exact=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_config_without_reward_terms_exits_with_code_2(files, capsys):
    assert main(["audit-reward", str(files / "rollouts.jsonl"), "reward.terms.exact=0"]) == 2
    assert "reward.terms" in capsys.readouterr().err


TINY = [
    "model=models/mock", "task.name=sum_digits", "steps=1", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=0", "reward.penalties.length.weight=0.1",
]  # fmt: skip


def test_training_names_the_terms_that_read_the_cot_and_stops_at_an_outcome_only_one(tmp_path):
    run = train(load_config(overrides=[*TINY, f"out={tmp_path / 'try'}"]), progress=False).open()
    (line,) = [event["text"] for event in run.events() if event["event"] == "reward_audit"]
    assert "length (a penalty: intended)" in line
    assert "not by exact" in line
    declared = [*TINY, f"out={tmp_path / 'declared'}", 'reward.outcome_only=["length"]']
    with pytest.raises(RewardError, match="length"):
        train(load_config(overrides=declared), progress=False)
    assert not list(open_run(tmp_path / "declared").metrics())
