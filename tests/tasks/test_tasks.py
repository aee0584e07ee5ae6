"""What holds for every task: a numbered space, two ways to ask, honest demonstrations."""

import random

import pytest

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.tasks import MODES, TASKS, make
from glasshouse.tasks.base import NO_STEPS
from glasshouse.types import Style

SMALL = [
    ("sum_digits", {"count": (1, 3), "low": 0, "high": 12}),
    ("sum_digits", {"count": (2, 2), "low": 95, "high": 105}),
    ("reverse_digits", {"low": 95, "high": 1203}),
    ("arithmetic", {"steps": (1, 3), "operand_high": 4, "value_high": 20}),
    ("arithmetic", {"steps": (1, 2), "operand_high": 9, "decimals": 1}),
    ("multiplication", {"left_digits": 1, "right_digits": 1}),
    ("multiplication", {"left_digits": 2, "right_digits": 1}),
    ("multiplication", {"left_digits": 1, "right_digits": 2}),
    ("multiplication", {"left_digits": 2, "right_digits": 2}),
    ("interleave", {"length": (1, 3), "high": 2}),
]


def drawn(name, count, **options):
    task = make(name, options)
    return task, [task.draw(randomness.stream("test", name, i)) for i in range(count)]


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_numbers_and_problems_of_a_space_correspond_one_to_one(name, options):
    task = make(name, options)
    problems = [task.at(level, i) for level, size in task.levels().items() for i in range(size)]
    assert len({p.key for p in problems}) == len(problems) == task.size()
    for level, size in task.levels().items():
        assert sum(p.level == level for p in problems) == size


@pytest.mark.parametrize("name", TASKS)
def test_a_drawn_problem_depends_on_its_stream_only(name):
    task, first = drawn(name, 20)
    assert first == drawn(name, 20)[1]
    assert len({p.key for p in first}) > 1
    assert all(p.task == name and p.level in task.levels() for p in first)


@pytest.mark.parametrize("name", TASKS)
def test_levels_are_drawn_alike_however_many_problems_they_hold(name):
    task, problems = drawn(name, 400)
    expected = 400 / len(task.levels())
    for level in task.levels():
        assert abs(sum(p.level == level for p in problems) - expected) < 5 * expected**0.5


@pytest.mark.parametrize("name", TASKS)
def test_the_cot_system_prompt_holds_a_worked_example_and_asks_for_the_tag(name):
    task, [problem] = drawn(name, 1)
    system, user = task.messages(problem, Style.COT)
    example = task.example()
    working = task.demonstrate(example, "steps", random.Random(0))
    assert working.count("\n") >= 1
    assert f"{example.question}\n{working}" in system["content"]
    assert "step by step" in system["content"]
    assert f"[ANSWER] {task.form}" in system["content"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == problem.question


@pytest.mark.parametrize("name", TASKS)
def test_direct_prompts_forbid_steps_and_show_none(name):
    task, problems = drawn(name, 10)
    example = task.example()
    *working, _ = task.demonstrate(example, "steps", random.Random(0)).split("\n")
    for problem in problems:
        system, user = task.messages(problem, Style.DIRECT)
        assert "Do not show steps" in system["content"]
        assert user["content"].endswith(NO_STEPS)
        assert example.question not in system["content"]
        assert not any(line in system["content"] for line in working)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("mode", ["slip", "hasty"])
def test_flawed_modes_are_always_wrong(name, mode):
    task, problems = drawn(name, 150)
    for i, problem in enumerate(problems):
        text = task.demonstrate(problem, mode, random.Random(i))
        assert text.split("\n")[-1] != f"[ANSWER] {problem.answer}"


@pytest.mark.parametrize("name", TASKS)
def test_stepwise_modes_show_working_and_the_others_none(name):
    task, problems = drawn(name, 30)
    for problem in problems:
        for mode, about in MODES.items():
            text = task.demonstrate(problem, mode, random.Random(1))
            assert ("\n" in text) == about.stepwise
            assert text.count("[ANSWER]") == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_slip_differs_from_the_right_working(name):
    task, problems = drawn(name, 60)
    for i, problem in enumerate(problems):
        right = task.demonstrate(problem, "steps", random.Random(i)).split("\n")[:-1]
        slip = task.demonstrate(problem, "slip", random.Random(i)).split("\n")[:-1]
        assert right != slip
        assert len(right) == len(slip)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(TaskError, match=r'no task "sum_digit".*Did you mean "sum_digits"'):
        make("sum_digit")


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(TaskError, match=r'sum_digits has no option "cuont".*Did you mean "count"'):
        make("sum_digits", {"cuont": (1, 2)})


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sum_digits", {"count": "many"}, "count.*'many'"),
        ("sum_digits", {"count": (4, 2)}, "fewest first"),
        ("sum_digits", {"count": (0, 2)}, "1 or more"),
        ("sum_digits", {"low": 9, "high": 3}, r"low \(9\) is above high \(3\)"),
        ("reverse_digits", {"low": 999, "high": 100}, "above high"),
        ("arithmetic", {"steps": (0, 2)}, "1 or more"),
        ("arithmetic", {"operations": "+%"}, "operations"),
        ("arithmetic", {"decimals": 9}, "decimals"),
        ("interleave", {"length": (0, 2)}, "1 or more"),
        ("multiplication", {"left_digits": 0}, "left_digits.*got 0"),
    ],
)
def test_an_impossible_option_is_a_sentence(name, options, says):
    with pytest.raises(TaskError, match=says):
        make(name, options)


def test_an_unknown_mode_names_the_nearest():
    task = make("sum_digits")
    with pytest.raises(TaskError, match=r'no mode "step".*Did you mean "steps"'):
        task.demonstrate(task.example(), "step", random.Random(0))


def test_a_space_without_problems_is_a_sentence():
    task = make("arithmetic", {"operations": "/", "operand_high": 2, "steps": (4, 4)})
    assert task.size() == 0
    with pytest.raises(TaskError, match="no problem at these options"):
        task.draw(random.Random(0))


def test_provenance_tells_options_and_size():
    assert make("multiplication").describe() == {
        "task": "multiplication",
        "options": {"left_digits": 3, "right_digits": 2},
        "size": 81_000,
    }
