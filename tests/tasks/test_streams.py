"""Problem streams: no repeats, no mixing of splits, equal continuation after any resume."""

import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.checksums import find_seen_problem_damage
from glasshouse.errors import RunError
from glasshouse.tasks import streams as streams_module
from glasshouse.tasks.catalogue import list_tasks, make_task
from glasshouse.tasks.splits import Split, assign_split
from glasshouse.tasks.streams import FixedProblems, FreshProblems, ProblemsExhausted
from glasshouse.types import Problem

TASKS = list_tasks(organisms=False)

SMALL = {
    "sum_digits": {"count": (1, 2), "low": 0, "high": 20},
    "reverse_digits": {"low": 10, "high": 300},
    "arithmetic": {"steps": (1, 2), "operand_high": 4},
    "multiplication": {"left_digits": 1, "right_digits": 2},
    "interleave": {"length": (1, 2), "high": 4},
}


def all_keys(task, split):
    """Every problem of a split, by brute force."""
    problems = (task.problem_at(n, i) for n, size in task.levels().items() for i in range(size))
    return {p.key for p in problems if assign_split(p) is split}


def keys(problems):
    return [p.key for p in problems]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", Split)
def test_no_problem_repeats_until_all_are_exhausted_then_the_stream_restarts(name, split):
    task = make_task(name, SMALL[name])
    total = all_keys(task, split)
    stream = FreshProblems(task, split, seed=3)
    first = keys(stream.take(len(total)))
    assert sorted(first) == sorted(total)
    assert stream.epochs == 0
    second = keys(stream.take(len(total)))
    assert sorted(second) == sorted(total)
    assert stream.epochs == 1
    stream.take(1)
    assert stream.epochs == 2


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    name=st.sampled_from(sorted(TASKS)),
    before=st.integers(0, 400),
    small=st.booleans(),
)
def test_fresh_stream_resumes_equally_from_any_point(seed, name, before, small):
    task = make_task(name, SMALL[name] if small else {})
    stream = FreshProblems(task, Split.TRAIN, seed)
    stream.take(before)
    state = stream.state()
    text = json.dumps(state)
    after = stream.take(50)
    assert json.dumps(state) == text, "a returned state must not change afterwards"
    for saved in (state, json.loads(text)):
        resumed = FreshProblems(make_task(name, SMALL[name] if small else {}), Split.TRAIN, seed)
        resumed.restore(saved)
        assert resumed.take(50) == after
        assert resumed.state() == stream.state()
    assert {assign_split(p) for p in after} == {Split.TRAIN}


def test_batch_size_does_not_change_the_problems():
    one, other = (FreshProblems(make_task("arithmetic"), Split.TRAIN, seed=1) for _ in range(2))
    assert one.take(30) == [p for count in (1, 0, 9, 20) for p in other.take(count)]


def test_different_seeds_give_different_orders():
    first, second = (
        FreshProblems(make_task("multiplication"), Split.TRAIN, s).take(200) for s in (0, 1)
    )
    assert len(set(keys(first)) & set(keys(second))) < 20


def test_levels_are_drawn_uniformly():
    problems = FreshProblems(make_task("sum_digits"), Split.TRAIN, seed=0).take(600)
    for level in make_task("sum_digits").levels():
        assert 150 < sum(p.level == level for p in problems) < 250


def test_first_problems_of_a_run_never_change():
    """Hard-coded: with a changed stream, old runs could not be reproduced."""
    products = FreshProblems(make_task("multiplication"), Split.TRAIN, seed=0)
    products.set_step(30)  # without a schedule a step has no effect
    assert keys(products.take(3)) == ["22*579", "82*177", "31*676"]
    assert products.seen is None
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


class NotEnumerable(type(make_task("sum_digits"))):
    """Thirty problems in a level that cannot be enumerated."""

    def levels(self):
        return {"any": None}

    def problem_at(self, level, index):
        return self.make_problem((index % 30,))


TOTAL = sum(assign_split(NotEnumerable().make_problem((n,))) is Split.TRAIN for n in range(30))


def test_not_enumerable_problems_do_not_repeat_until_exhausted(monkeypatch):
    monkeypatch.setattr(streams_module, "MAX_TRIES", 500)
    stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=0)
    for epoch in range(3):
        assert len(set(keys(stream.take(TOTAL)))) == TOTAL
        assert stream.epochs == epoch


@pytest.mark.parametrize(
    "task", [make_task("multiplication", SMALL["multiplication"]), NotEnumerable()]
)
def test_on_exhausted_stop_gives_each_problem_once_then_raises(task, monkeypatch):
    monkeypatch.setattr(streams_module, "MAX_TRIES", 500)
    total = TOTAL if isinstance(task, NotEnumerable) else len(all_keys(task, Split.TRAIN))
    stream = FreshProblems(task, Split.TRAIN, seed=0, on_exhausted="stop")
    assert len(set(keys(stream.take(total)))) == total
    with pytest.raises(ProblemsExhausted, match=f"{total:,} draws.*on_exhausted"):
        stream.take(1)


@settings(max_examples=25, deadline=None)
@given(
    before=st.integers(0, 60),
    later=st.integers(0, 30),
    file=st.sampled_from(["none", "kept", "lost"]),
)
def test_not_enumerable_stream_resumes_equally_from_any_point(
    before, later, file, tmp_path_factory
):
    """From the state alone, from the database of a run that continued after the state was saved, and after
    the database was lost."""
    folder = tmp_path_factory.mktemp("seen")
    tries, streams_module.MAX_TRIES = streams_module.MAX_TRIES, 400
    try:
        stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
        if file != "none":
            stream.set_state_dir(folder)
        stream.take(before)
        state = json.loads(json.dumps(stream.state()))
        after = stream.take(later)
        stream.set_state_dir(folder)  # closes the database
        if file == "lost":
            (folder / "seen_problems.sqlite").unlink(missing_ok=True)
        resumed = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
        if file != "none":
            resumed.set_state_dir(folder)
        resumed.restore(state)
        assert resumed.take(later) == after
        assert resumed.state() == stream.state()
    finally:
        streams_module.MAX_TRIES = tries


@pytest.mark.parametrize("damage", ["key", "draw", "row", "header", "page"])
def test_damaged_database_is_detected_and_made_again(damage, tmp_path):
    """A changed key would let a problem be drawn twice, or leave one out."""
    file = tmp_path / "seen_problems.sqlite"
    stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
    stream.set_state_dir(tmp_path)
    stream.take(8)
    state = stream.state()
    after = stream.take(4)
    stream.set_state_dir(tmp_path)
    assert find_seen_problem_damage(file) == ""
    if damage in ("header", "page"):
        data = bytearray(file.read_bytes())
        data[3 if damage == "header" else -40] ^= 1
        file.write_bytes(data)
    else:
        database = sqlite3.connect(file)
        database.execute(
            {
                "key": "UPDATE seen SET key = key + 1 WHERE draw = 3",
                "draw": "UPDATE seen SET draw = 9 WHERE draw = 3",
                "row": "DELETE FROM seen WHERE draw = 3",
            }[damage]
        )
        database.commit()
        database.close()
    assert bool(find_seen_problem_damage(file)) == (damage != "row")  # a lost row changes the count
    resumed = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
    resumed.set_state_dir(tmp_path)
    resumed.restore(state)
    assert resumed.take(4) == after
    resumed.set_state_dir(tmp_path)
    assert find_seen_problem_damage(file) == ""


def test_existing_database_is_rewound_without_repeating_draws(tmp_path, monkeypatch):
    stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
    stream.set_state_dir(tmp_path)
    stream.take(8)
    state = stream.state()
    after = stream.take(4)
    stream.set_state_dir(tmp_path)
    resumed = FreshProblems(NotEnumerable(), Split.TRAIN, seed=1)
    resumed.set_state_dir(tmp_path)
    resumed.restore(state)
    monkeypatch.setattr(FreshProblems, "_reset", lambda stream: pytest.fail("draws were repeated"))
    assert resumed.take(4) == after


def test_resume_after_the_task_changed_is_a_run_error():
    stream = FreshProblems(NotEnumerable(), Split.TRAIN, seed=0)
    stream.take(10)
    state = stream.state() | {"counters": {"any": 3}}
    changed = FreshProblems(NotEnumerable(), Split.TRAIN, seed=0)
    changed.restore(state)
    with pytest.raises(RunError, match="cannot be resumed"):
        changed.take(1)


# --- curricula -----------------------------------------------------------------------------

EASY, HARD = {"left_digits": 1, "right_digits": 2}, {"left_digits": 2, "right_digits": 2}


def curriculum(seed=0, **more):
    easy, hard = make_task("multiplication", EASY), make_task("multiplication", HARD)
    return FreshProblems(easy, Split.TRAIN, seed, schedule={3: hard, 5: easy}, **more)


def take_steps(stream, first, last):
    problems = []
    for step in range(first, last + 1):
        stream.set_step(step)
        problems.append(stream.take(4))
    return problems


def test_curriculum_changes_difficulty_at_its_steps_and_labels_problems():
    drawn = take_steps(curriculum(), 1, 6)
    levels = [{p.level for p in step} for step in drawn]
    assert levels == [{"1x2, stage 1"}] * 2 + [{"2x2, stage 2"}] * 2 + [{"1x2, stage 3"}] * 2
    assert [{p.meta["stage"] for p in step} for step in drawn[::2]] == [{1}, {2}, {3}]


def test_curriculum_with_overlapping_stages_does_not_repeat():
    task = make_task("multiplication", EASY)
    total = len(all_keys(task, Split.TRAIN))
    stream = FreshProblems(task, Split.TRAIN, 0, schedule={2: task})
    stream.set_step(1)
    first = keys(stream.take(total // 2))
    stream.set_step(2)
    second = keys(stream.take(total - total // 2))
    assert sorted(first + second) == sorted(all_keys(task, Split.TRAIN))
    assert stream.epochs == 0
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


# --- fixed ---------------------------------------------------------------------------------


def make_problems(count):
    return [Problem(task="t", key=str(i), question="?", gold_answer="1") for i in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100])
def test_each_epoch_of_a_fixed_set_has_every_problem_once(size):
    stream = FixedProblems(make_problems(size), seed=0)
    for _ in range(4):
        assert sorted(keys(stream.take(size))) == sorted(keys(make_problems(size)))


def test_each_epoch_and_seed_has_another_order():
    stream = FixedProblems(make_problems(30), seed=0)
    orders = [keys(stream.take(30)) for _ in range(5)]
    orders += [keys(make_problems(30)), keys(FixedProblems(make_problems(30), 1).take(30))]
    assert len(set(map(tuple, orders))) == 7


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**63))
def test_fixed_stream_resumes_equally_from_any_point(size, before, seed):
    stream = FixedProblems(make_problems(size), seed)
    stream.take(before)
    state = json.loads(json.dumps(stream.state()))
    after = stream.take(25)
    resumed = FixedProblems(make_problems(size), seed)
    resumed.restore(state)
    assert resumed.take(25) == after
