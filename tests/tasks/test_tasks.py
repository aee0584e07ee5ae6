"""Every task: an enumerable space of problems, two prompt styles, demonstrations in every mode."""

import random

import pytest

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.tasks.base import NO_STEPS, list_tasks, make_task
from glasshouse.types import Style

TASKS = list_tasks(organisms=False)

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


def draw_problems(name, count, **options):
    task = make_task(name, options)
    return task, [task.draw(randomness.stream("test", name, i)) for i in range(count)]


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_problem_at_is_a_bijection(name, options):
    task = make_task(name, options)
    problems = [
        task.problem_at(level, i) for level, size in task.levels().items() for i in range(size)
    ]
    assert len({p.key for p in problems}) == len(problems) == task.size()
    for level, size in task.levels().items():
        assert sum(p.level == level for p in problems) == size


@pytest.mark.parametrize("name", TASKS)
def test_levels_are_drawn_uniformly_whatever_their_size(name):
    task, problems = draw_problems(name, 400)
    expected = 400 / len(task.levels())
    for level in task.levels():
        assert abs(sum(p.level == level for p in problems) - expected) < 5 * expected**0.5


@pytest.mark.parametrize("name", TASKS)
def test_cot_prompts_have_a_worked_example_and_direct_prompts_forbid_steps(name):
    task, problems = draw_problems(name, 10)
    example = task.example()
    demonstration = task.demonstrate(example, "steps", random.Random(0))
    *steps, _ = demonstration.split("\n")
    assert steps
    for problem in problems:
        system, user = task.messages(problem, Style.COT)
        assert (system["role"], user["role"]) == ("system", "user")
        assert user["content"] == problem.question
        tag = f"[ANSWER] {task.answer_format}"
        for text in (f"{example.question}\n{demonstration}", "step by step", tag):
            assert text in system["content"]
        system, user = task.messages(problem, Style.DIRECT)
        assert "Do not show steps" in system["content"]
        assert user["content"].endswith(NO_STEPS)
        assert not any(line in system["content"] for line in [example.question, *steps])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sum_digit", {}, '"sum_digit".*"sum_digits"'),
        ("sum_digits", {"cuont": (1, 2)}, '"cuont".*"count"'),
        ("sum_digits", {"count": "many"}, "count.*'many'"),
        ("sum_digits", {"count": (4, 2)}, "minimum <= maximum"),
        ("interleave", {"length": (0, 2)}, "1 <= minimum"),
        ("sum_digits", {"low": 9, "high": 3}, r"low \(9\) is above high \(3\)"),
        ("reverse_digits", {"low": 999, "high": 100}, "above high"),
        ("arithmetic", {"operations": "+%"}, "operations"),
        ("arithmetic", {"decimals": 9}, "decimals"),
        ("multiplication", {"left_digits": 0}, "left_digits.*got 0"),
        ("sum_digits", {"count": (1, 10**9)}, "count"),
        ("arithmetic", {"steps": (1, 10**9)}, "steps"),
        ("interleave", {"length": (1, 10**9)}, "length"),
    ],
)
def test_invalid_option_value_is_a_task_error(name, options, message):
    with pytest.raises(TaskError, match=message):
        make_task(name, options)


def test_a_task_without_problems_and_an_unknown_mode_are_task_errors():
    task = make_task("arithmetic", {"operations": "/", "operand_high": 2, "steps": (4, 4)})
    assert task.size() == 0
    with pytest.raises(TaskError, match=r'"step".*"steps"'):
        task.demonstrate(task.example(), "step", random.Random(0))
    with pytest.raises(TaskError, match=r"task\.options"):
        task.draw(random.Random(0))
