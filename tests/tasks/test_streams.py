"""Splits and problem streams: no repeats, no mixing of splits, equal continuation after any resume."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import fresh_problems

from glasshouse import randomness
from glasshouse.errors import RunError
from glasshouse.tasks import streams as streams_module
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.streams import (
    SPLIT_PERCENT,
    FixedProblems,
    FreshProblems,
    Permutation,
    ProblemsExhausted,
    Split,
    assign_split,
)
from glasshouse.types import Problem

TASKS = list_tasks(organisms=False)

SMALL = {
    "sum_digits": {"count": (1, 2), "low": 0, "high": 20},
    "reverse_digits": {"low": 10, "high": 300},
    "arithmetic": {"steps": (1, 2), "operand_high": 4},
    "multiplication": {"left_digits": 1, "right_digits": 2},
    "interleave": {"length": (1, 2), "high": 4},
    "word_problems": {"steps": (1, 2), "operand_high": 4},
}


class NotEnumerable(type(make_task("sum_digits"))):
    """Thirty problems in a level that cannot be enumerated."""

    def levels(self):
        return {"any": None}

    def problem_at(self, level, index):
        return self.make_problem((index % 30,))


def all_keys(task, split):
    """Every problem of a split, by brute force."""
    sizes = task.levels().items()
    problems = (task.problem_at(level, i) for level, size in sizes for i in range(size or 30))
    return {p.key for p in problems if assign_split(p) is split}


def keys(problems):
    return [p.key for p in problems]


def make_problem(task, key, **more):
    return Problem(task=task, key=key, **({"question": "?", "gold_answer": "1"} | more))


def test_splits_and_orders_never_change():
    """Hard-coded: otherwise validation problems of old runs may now be training problems."""
    products = {"12*345": "train", "19*345": "test", "22*345": "validation"}
    sums = {"12+45": "validation", "13+45": "train", "23+45": "test", "29+45": "validation"}
    for task, expected in (("multiplication", products), ("sum_digits", sums)):
        for key, split in expected.items():
            assert assign_split(make_problem(task, key)) is Split(split)
    assert [Permutation(10, 7)(i) for i in range(10)] == [0, 1, 6, 2, 3, 7, 4, 8, 9, 5]
    assert Permutation(81_000, 1)(0) == 35663
    assert Permutation(2**64 + 1, 1)(2**64) == 11330583848205759077
    assert len({Permutation(2**131, 5)(i) for i in range(300)}) == 300


@pytest.mark.parametrize("name", TASKS)
def test_problems_are_split_80_10_10_by_task_and_key_alone(name):
    task = make_task(name)
    keys = {task.draw(randomness.stream("splits", name, i)).key for i in range(1500)}
    splits = [assign_split(make_problem(name, key)) for key in keys]
    chi_square = sum(
        (splits.count(split) - len(keys) * percent / 100) ** 2 / (len(keys) * percent / 100)
        for split, percent in SPLIT_PERCENT.items()
    )
    assert chi_square < 14  # 2 degrees of freedom: p = 0.001
    other = [make_problem(name, key, question="!", level="hard", meta={"a": 1}) for key in keys]
    assert splits == list(map(assign_split, other))


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097])
def test_permutation_visits_every_index_once_in_an_order_of_its_key(size):
    orders = [tuple(map(Permutation(size, key), range(size))) for key in (0, 1, 2**64 - 1)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert len(set(orders)) == 3 or size < 8


@settings(max_examples=60)
@given(st.integers(1, 10**40), st.integers(0, 2**64 - 1), st.data())
def test_permutation_is_injective_and_refuses_other_indices(size, key, data):
    order = Permutation(size, key)
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    assert 0 <= order(first) < size
    assert (order(first) == order(second)) == (first == second)
    for index in (-1, size):
        with pytest.raises(IndexError):
            order(index)


@pytest.mark.parametrize("name", [*TASKS, "not enumerable"])
@pytest.mark.parametrize("split", Split)
def test_no_problem_repeats_until_all_are_exhausted_then_the_stream_restarts(
    name, split, monkeypatch
):
    monkeypatch.setattr(streams_module, "MAX_TRIES", 500)
    task = make_task(name, SMALL[name]) if name in TASKS else NotEnumerable()
    total = sorted(all_keys(task, split))
    stream = FreshProblems(task, split, seed=3)
    for epoch in range(2):
        assert sorted(keys(stream.take(len(total)))) == total
        assert stream.epochs == epoch
    stopping = FreshProblems(task, split, seed=0, on_exhausted="stop")
    assert sorted(keys(stopping.take(len(total)))) == total
    with pytest.raises(ProblemsExhausted, match=f"{len(total):,} draws.*on_exhausted"):
        stopping.take(1)


def make_tasks(name, small):
    return make_task(name, SMALL[name] if small else {}) if name in TASKS else NotEnumerable()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    name=st.sampled_from([*sorted(TASKS), "not enumerable"]),
    before=st.integers(0, 400),
    small=st.booleans(),
)
def test_fresh_stream_resumes_equally_from_any_point(seed, name, before, small):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams_module, "MAX_TRIES", 400)
        stream = FreshProblems(make_tasks(name, small), Split.TRAIN, seed)
        stream.take(before)
        state = stream.state()
        text = json.dumps(state)
        after = stream.take(50)
        assert json.dumps(state) == text, "a returned state must not change afterwards"
        for saved in (state, json.loads(text)):
            resumed = FreshProblems(make_tasks(name, small), Split.TRAIN, seed)
            resumed.restore(saved)
            assert resumed.take(50) == after
            assert resumed.state() == stream.state()
        assert {assign_split(p) for p in after} == {Split.TRAIN}


def test_problems_depend_on_the_seed_not_on_the_batch_size_and_levels_are_uniform():
    task = make_task("sum_digits")
    one, other, third = (FreshProblems(task, Split.TRAIN, seed) for seed in (0, 0, 1))
    problems = one.take(600)
    assert problems == [p for count in (1, 0, 299, 300) for p in other.take(count)]
    assert len(set(keys(problems)) & set(keys(third.take(600)))) < 20
    for level in task.levels():
        assert 150 < sum(p.level == level for p in problems) < 250


def test_first_problems_of_a_run_never_change():
    """Hard-coded: with a changed stream, old runs could not be reproduced."""
    products = FreshProblems(make_task("multiplication"), Split.TRAIN, seed=0)
    products.set_step(30)  # without a schedule a step has no effect
    assert keys(products.take(3)) == ["22*579", "82*177", "31*676"]
    sums = FreshProblems(make_task("sum_digits"), Split.VALIDATION, seed=7)
    assert keys(sums.take(3)) == ["224+359+698+802", "429+566", "22+128+932"]


def test_split_without_problems_is_a_run_error():
    task = make_task("sum_digits", {"count": (1, 1), "low": 0, "high": 0})
    empty = next(s for s in Split if not all_keys(task, s))
    with pytest.raises(RunError, match=f"{empty} split"):
        FreshProblems(task, empty, seed=0).take(1)
    nothing = make_task("arithmetic", {"operations": "/", "operand_high": 2, "steps": (4, 4)})
    with pytest.raises(RunError, match="train split"):
        FreshProblems(nothing, Split.TRAIN, seed=0).take(1)


def test_resume_after_the_task_changed_is_a_run_error():
    stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=0)
    stream.take(10)
    state = stream.state() | {"counters": {"any": 3}}
    changed = FreshProblems(NotEnumerable(), Split.TRAIN, seed=0)
    with pytest.raises(RunError, match="cannot be resumed"):
        changed.restore(state)


EASY, HARD = {"left_digits": 1, "right_digits": 2}, {"left_digits": 2, "right_digits": 2}


def curriculum(seed):
    easy, hard = make_task("multiplication", EASY), make_task("multiplication", HARD)
    return FreshProblems(easy, Split.TRAIN, seed, schedule={3: hard, 5: easy})


def take_steps(stream, first, last):
    problems = []
    for step in range(first, last + 1):
        stream.set_step(step)
        problems.append(stream.take(4))
    return problems


def test_curriculum_with_overlapping_stages_does_not_repeat():
    task = make_task("multiplication", EASY)
    total = sorted(all_keys(task, Split.TRAIN))
    stream = FreshProblems(task, Split.TRAIN, 0, schedule={2: task})
    drawn = []
    for step, count in ((1, len(total) // 2), (2, len(total) - len(total) // 2)):
        stream.set_step(step)
        drawn += keys(stream.take(count))
    assert (sorted(drawn), stream.epochs) == (total, 0)
    stream.take(1)
    assert stream.epochs == 1


@settings(max_examples=25, deadline=None)
@given(resume=st.integers(0, 7), seed=st.integers(0, 2**63))
def test_curriculum_resumes_equally_at_any_step(resume, seed):
    total = take_steps(curriculum(seed), 1, 7)
    stream = curriculum(seed)
    before = take_steps(stream, 1, resume)
    resumed = curriculum(seed)
    resumed.restore(json.loads(json.dumps(stream.state())))
    assert before + take_steps(resumed, resume + 1, 7) == total
    assert {assign_split(p) for step in total for p in step} == {Split.TRAIN}


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100])
def test_each_epoch_of_a_fixed_set_has_every_problem_once_in_another_order(size):
    problems = [make_problem("t", str(i)) for i in range(size)]
    stream, other = FixedProblems(problems, seed=0), FixedProblems(problems, seed=1)
    orders = [keys(stream.take(size)) for _ in range(4)] + [keys(other.take(size)), keys(problems)]
    assert all(sorted(order) == sorted(keys(problems)) for order in orders)
    assert len(set(map(tuple, orders))) == 6 or size < 17


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**63))
def test_fixed_stream_resumes_equally_from_any_point(size, before, seed):
    problems = [make_problem("t", str(i)) for i in range(size)]
    stream, resumed = FixedProblems(problems, seed), FixedProblems(problems, seed)
    stream.take(before)
    resumed.restore(json.loads(json.dumps(stream.state())))
    assert resumed.take(25) == stream.take(25)


@pytest.mark.parametrize("name", TASKS)
def test_10_000_fresh_problems_do_not_repeat_stay_in_their_split_and_use_constant_memory(name):
    """`make proofs ONLY=data` draws a million."""
    assert fresh_problems.check_stream(name, 10_000)["drawn"] == 10_000
