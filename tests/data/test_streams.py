"""Fresh problems and fixed sets: no repeats, no leaks, the same continuation after any resume."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.data import Fixed, Fresh, Split, UsedUp, split_of
from glasshouse.data import streams as streams_module
from glasshouse.errors import RunError
from glasshouse.tasks import TASKS, make
from glasshouse.types import Problem

SMALL = {
    "sum_digits": {"count": (1, 2), "low": 0, "high": 20},
    "reverse_digits": {"low": 10, "high": 300},
    "arithmetic": {"steps": (1, 2), "operand_high": 4},
    "multiplication": {"left_digits": 1, "right_digits": 2},
    "interleave": {"length": (1, 2), "high": 4},
}


def space(task, split):
    """Every problem of a split, by brute force."""
    everything = (task.at(n, i) for n, size in task.levels().items() for i in range(size))
    return {p.key for p in everything if split_of(p) is split}


def keys(problems):
    return [p.key for p in problems]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", Split)
def test_no_problem_comes_twice_until_the_space_is_used_up_then_it_starts_over(name, split):
    task = make(name, SMALL[name])
    whole = space(task, split)
    stream = Fresh(task, split, seed=3)
    first = keys(stream.take(len(whole)))
    assert sorted(first) == sorted(whole)
    assert stream.laps == 0
    second = keys(stream.take(len(whole)))
    assert sorted(second) == sorted(whole)
    assert stream.laps == 1
    stream.take(1)
    assert stream.laps == 2


def test_a_used_up_level_is_left_alone_while_others_last():
    """Levels are drawn alike, so the small ones run out early: they may not start over alone."""
    task = make("interleave", {"length": (1, 4), "high": 2})
    assert min(task.levels().values()) == 9
    whole = len(space(task, Split.TRAIN))
    drawn = keys(Fresh(task, Split.TRAIN, seed=0).take(whole))
    assert len(set(drawn)) == whole


@pytest.mark.parametrize("name", TASKS)
def test_thousands_of_fresh_problems_do_not_repeat_and_stay_in_their_split(name):
    problems = Fresh(make(name), Split.TRAIN, seed=0).take(2000)
    assert len(set(keys(problems))) == 2000
    assert {split_of(p) for p in problems} == {Split.TRAIN}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    name=st.sampled_from(sorted(TASKS)),
    steps=st.integers(1, 6),
    resume=st.integers(0, 6),
    small=st.booleans(),
    size=st.integers(1, 40),
)
def test_no_seed_task_step_or_resume_point_ever_mixes_splits(
    seed, name, steps, resume, small, size
):
    task = make(name, SMALL[name] if small else {})
    met = {}
    for split in Split:
        stream = Fresh(task, split, seed)
        for step in range(steps):
            if step == resume:
                state = json.loads(json.dumps(stream.state()))
                stream = Fresh(task, split, seed)
                stream.restore(state)
            problems = stream.take(size)
            assert {split_of(p) for p in problems} == {split}
            met.setdefault(split, set()).update(keys(problems))
    assert sum(map(len, met.values())) == len(set.union(*met.values()))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    name=st.sampled_from(sorted(TASKS)),
    before=st.integers(0, 400),
    small=st.booleans(),
)
def test_a_fresh_stream_goes_on_the_same_from_any_point(seed, name, before, small):
    task = make(name, SMALL[name] if small else {})
    stream = Fresh(task, Split.TRAIN, seed)
    stream.take(before)
    state = stream.state()
    text = json.dumps(state)
    after = stream.take(50)
    assert json.dumps(state) == text, "a state that was handed out may not change afterwards"
    for again in (state, json.loads(text)):
        resumed = Fresh(make(name, SMALL[name] if small else {}), Split.TRAIN, seed)
        resumed.restore(again)
        assert resumed.take(50) == after
        assert resumed.state() == stream.state()


def test_how_many_are_taken_at_once_changes_nothing():
    one, other = (Fresh(make("arithmetic"), Split.TRAIN, seed=1) for _ in range(2))
    assert one.take(30) == [p for count in (1, 0, 9, 20) for p in other.take(count)]


def test_seeds_give_other_orders():
    first, second = (Fresh(make("multiplication"), Split.TRAIN, s).take(200) for s in (0, 1))
    assert len(set(keys(first)) & set(keys(second))) < 20


def test_levels_come_alike():
    problems = Fresh(make("sum_digits"), Split.TRAIN, seed=0).take(600)
    for level in make("sum_digits").levels():
        assert 150 < sum(p.level == level for p in problems) < 250


def test_the_first_problems_of_a_run_never_change():
    """Hard-coded: a changed stream would make old runs impossible to repeat."""
    assert keys(Fresh(make("multiplication"), Split.TRAIN, seed=0).take(3)) == [
        "22*579",
        "82*177",
        "31*676",
    ]
    assert keys(Fresh(make("sum_digits"), Split.VALIDATION, seed=7).take(3)) == [
        "224+359+698+802",
        "429+566",
        "22+128+932",
    ]


def test_a_split_without_problems_is_a_sentence():
    task = make("sum_digits", {"count": (1, 1), "low": 0, "high": 0})
    empty = next(s for s in Split if not space(task, s))
    with pytest.raises(RunError, match=f"no problem in the {empty} split"):
        Fresh(task, empty, seed=0).take(1)
    nothing = make("arithmetic", {"operations": "/", "operand_high": 2, "steps": (4, 4)})
    with pytest.raises(RunError, match="no problem"):
        Fresh(nothing, Split.TRAIN, seed=0).take(1)


class Few(type(make("sum_digits"))):
    """Thirty problems that are drawn, not numbered."""

    def levels(self):
        return {"any": None}

    def at(self, level, index):
        return self.ask((index % 30,))


WHOLE = sum(split_of(Few().ask((n,))) is Split.TRAIN for n in range(30))


def test_a_space_without_numbers_holds_no_repeat_until_it_is_used_up_then_it_starts_over(
    monkeypatch,
):
    monkeypatch.setattr(streams_module, "TRIES", 500)
    stream = Fresh(Few(), Split.TRAIN, seed=0)
    for lap in range(3):
        assert len(set(keys(stream.take(WHOLE)))) == WHOLE
        assert stream.laps == lap


@pytest.mark.parametrize("task", [make("multiplication", SMALL["multiplication"]), Few()])
def test_a_stream_told_to_stop_gives_everything_once_and_then_a_sentence(task, monkeypatch):
    monkeypatch.setattr(streams_module, "TRIES", 500)
    whole = WHOLE if isinstance(task, Few) else len(space(task, Split.TRAIN))
    stream = Fresh(task, Split.TRAIN, seed=0, when_used_up="stop")
    assert len(set(keys(stream.take(whole)))) == whole
    with pytest.raises(UsedUp, match=f"used up: after {whole:,} draws.*when_used_up=restart"):
        stream.take(1)


@settings(max_examples=25, deadline=None)
@given(
    before=st.integers(0, 60),
    later=st.integers(0, 30),
    where=st.sampled_from(["none", "kept", "lost"]),
)
def test_where_problems_have_no_numbers_a_stream_goes_on_the_same_from_any_point(
    before, later, where, tmp_path_factory
):
    """From the state alone, from the ledger of a run that went on after the state was saved, and
    from a ledger that was lost."""
    folder = tmp_path_factory.mktemp("ledger")
    tries, streams_module.TRIES = streams_module.TRIES, 400
    try:
        stream = Fresh(Few(), Split.TRAIN, seed=1)
        if where != "none":
            stream.keep(folder)
        stream.take(before)
        state = json.loads(json.dumps(stream.state()))
        after = stream.take(later)
        stream.keep(folder)  # closes its files
        if where == "lost":
            (folder / "drawn.sqlite").unlink(missing_ok=True)
        resumed = Fresh(Few(), Split.TRAIN, seed=1)
        if where != "none":
            resumed.keep(folder)
        resumed.restore(state)
        assert resumed.take(later) == after
        assert resumed.state() == stream.state()
    finally:
        streams_module.TRIES = tries


def test_a_ledger_that_is_there_is_wound_back_and_nothing_is_drawn_again(tmp_path, monkeypatch):
    stream = Fresh(Few(), Split.TRAIN, seed=1)
    stream.keep(tmp_path)
    stream.take(8)
    state = stream.state()
    after = stream.take(4)
    stream.keep(tmp_path)
    resumed = Fresh(Few(), Split.TRAIN, seed=1)
    resumed.keep(tmp_path)
    resumed.restore(state)
    monkeypatch.setattr(Fresh, "_begin", lambda stream: pytest.fail("it starts from the beginning"))
    assert resumed.take(4) == after


def test_a_state_does_not_grow_with_what_was_drawn():
    stream = Fresh(Few(), Split.TRAIN, seed=0)
    stream.take(1)
    small = len(json.dumps(stream.state()))
    stream.take(WHOLE - 1)
    assert len(json.dumps(stream.state())) < small + 20


def test_a_stream_whose_task_changed_says_so_instead_of_going_on():
    stream = Fresh(Few(), Split.TRAIN, seed=0)
    stream.take(10)
    state = stream.state() | {"counters": {"any": 3}}
    changed = Fresh(Few(), Split.TRAIN, seed=0)
    changed.restore(state)
    with pytest.raises(RunError, match="cannot go on where it stopped"):
        changed.take(1)


# --- curricula -----------------------------------------------------------------------------

EASY, HARD = {"left_digits": 1, "right_digits": 2}, {"left_digits": 2, "right_digits": 2}


def two_stages(seed=0, **more):
    easy, hard = make("multiplication", EASY), make("multiplication", HARD)
    return Fresh(easy, Split.TRAIN, seed, later={3: hard, 5: easy}, **more)


def steps(stream, first, last):
    problems = []
    for step in range(first, last + 1):
        stream.reach(step)
        problems.append(stream.take(4))
    return problems


def test_a_curriculum_changes_its_difficulty_at_its_steps_and_records_it():
    drawn = steps(two_stages(), 1, 6)
    levels = [{p.level for p in step} for step in drawn]
    assert levels == [{"1x2, stage 1"}] * 2 + [{"2x2, stage 2"}] * 2 + [{"1x2, stage 3"}] * 2
    assert [{p.meta["stage"] for p in step} for step in drawn[::2]] == [{1}, {2}, {3}]


def test_a_curriculum_repeats_nothing_even_where_its_stages_overlap():
    task = make("multiplication", EASY)
    whole = len(space(task, Split.TRAIN))
    stream = Fresh(task, Split.TRAIN, 0, later={2: task})
    stream.reach(1)
    first = keys(stream.take(whole // 2))
    stream.reach(2)
    second = keys(stream.take(whole - whole // 2))
    assert sorted(first + second) == sorted(space(task, Split.TRAIN))
    assert stream.laps == 0
    stream.take(1)
    assert stream.laps == 1


@settings(max_examples=25, deadline=None)
@given(resume=st.integers(0, 7), seed=st.integers(0, 2**63))
def test_a_curriculum_goes_on_the_same_after_a_resume_at_any_step(resume, seed):
    whole = steps(two_stages(seed), 1, 7)
    stream = two_stages(seed)
    before = steps(stream, 1, resume)
    resumed = two_stages(seed)
    resumed.restore(json.loads(json.dumps(stream.state())))
    assert before + steps(resumed, resume + 1, 7) == whole
    assert {split_of(p) for step in whole for p in step} == {Split.TRAIN}


def test_one_stage_is_no_curriculum():
    """Without a schedule the stream is bit for bit what it always was."""
    stream = Fresh(make("multiplication"), Split.TRAIN, seed=0)
    for step in (1, 30, 100):
        stream.reach(step)
    assert keys(stream.take(3)) == ["22*579", "82*177", "31*676"]
    assert stream.ledger is None


# --- fixed ---------------------------------------------------------------------------------


def some(count):
    return [Problem(task="t", key=str(i), question="?", answer="1") for i in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100])
def test_each_epoch_of_a_fixed_set_holds_every_problem_once(size):
    stream = Fixed(some(size), seed=0)
    for _ in range(4):
        assert sorted(keys(stream.take(size))) == sorted(keys(some(size)))


def test_each_epoch_is_shuffled_anew_and_each_seed_otherwise():
    stream = Fixed(some(30), seed=0)
    epochs = [tuple(keys(stream.take(30))) for _ in range(5)]
    assert len({*epochs, tuple(keys(some(30))), tuple(keys(Fixed(some(30), 1).take(30)))}) == 7


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**63))
def test_a_fixed_stream_goes_on_the_same_from_any_point(size, before, seed):
    stream = Fixed(some(size), seed)
    stream.take(before)
    state = json.loads(json.dumps(stream.state()))
    after = stream.take(25)
    resumed = Fixed(some(size), seed)
    resumed.restore(state)
    assert resumed.take(25) == after
