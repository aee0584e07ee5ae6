"""Every task: an enumerable space of problems, two prompt styles, demonstrations in every mode."""

import random

import pytest

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.tasks.base import MODES, NO_STEPS
from glasshouse.tasks.catalogue import list_tasks, make_task
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
def test_drawn_problem_depends_only_on_its_stream(name):
    task, first = draw_problems(name, 20)
    assert first == draw_problems(name, 20)[1]
    assert len({p.key for p in first}) > 1
    assert all(p.task == name and p.level in task.levels() for p in first)


@pytest.mark.parametrize("name", TASKS)
def test_levels_are_drawn_uniformly_whatever_their_size(name):
    task, problems = draw_problems(name, 400)
    expected = 400 / len(task.levels())
    for level in task.levels():
        assert abs(sum(p.level == level for p in problems) - expected) < 5 * expected**0.5


@pytest.mark.parametrize("name", TASKS)
def test_cot_system_prompt_has_a_worked_example_and_asks_for_the_tag(name):
    task, [problem] = draw_problems(name, 1)
    system, user = task.messages(problem, Style.COT)
    example = task.example()
    steps = task.demonstrate(example, "steps", random.Random(0))
    assert steps.count("\n") >= 1
    assert f"{example.question}\n{steps}" in system["content"]
    assert "step by step" in system["content"]
    assert f"[ANSWER] {task.answer_format}" in system["content"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == problem.question


@pytest.mark.parametrize("name", TASKS)
def test_direct_prompts_forbid_steps_and_contain_none(name):
    task, problems = draw_problems(name, 10)
    example = task.example()
    *steps, _ = task.demonstrate(example, "steps", random.Random(0)).split("\n")
    for problem in problems:
        system, user = task.messages(problem, Style.DIRECT)
        assert "Do not show steps" in system["content"]
        assert user["content"].endswith(NO_STEPS)
        assert example.question not in system["content"]
        assert not any(line in system["content"] for line in steps)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("mode", ["injected_error", "guess"])
def test_wrong_modes_always_give_a_wrong_answer(name, mode):
    task, problems = draw_problems(name, 150)
    for i, problem in enumerate(problems):
        text = task.demonstrate(problem, mode, random.Random(i))
        assert text.split("\n")[-1] != f"[ANSWER] {problem.gold_answer}"


@pytest.mark.parametrize("name", TASKS)
def test_only_modes_with_steps_write_steps(name):
    task, problems = draw_problems(name, 30)
    for problem in problems:
        for name, mode in MODES.items():
            text = task.demonstrate(problem, name, random.Random(1))
            assert ("\n" in text) == mode.has_steps
            assert text.count("[ANSWER]") == 1


@pytest.mark.parametrize("name", TASKS)
def test_injected_error_changes_the_steps_but_not_their_number(name):
    task, problems = draw_problems(name, 60)
    for i, problem in enumerate(problems):
        correct = task.demonstrate(problem, "steps", random.Random(i)).split("\n")[:-1]
        flawed = task.demonstrate(problem, "injected_error", random.Random(i)).split("\n")[:-1]
        assert correct != flawed
        assert len(correct) == len(flawed)


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(TaskError, match=r'"sum_digit".*"sum_digits"'):
        make_task("sum_digit")


def test_unknown_option_suggests_the_nearest():
    with pytest.raises(TaskError, match=r'"cuont".*"count"'):
        make_task("sum_digits", {"cuont": (1, 2)})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sum_digits", {"count": "many"}, "count.*'many'"),
        ("sum_digits", {"count": (4, 2)}, "minimum <= maximum"),
        ("sum_digits", {"count": (0, 2)}, "1 <= minimum"),
        ("sum_digits", {"low": 9, "high": 3}, r"low \(9\) is above high \(3\)"),
        ("reverse_digits", {"low": 999, "high": 100}, "above high"),
        ("arithmetic", {"steps": (0, 2)}, "1 <= minimum"),
        ("arithmetic", {"operations": "+%"}, "operations"),
        ("arithmetic", {"decimals": 9}, "decimals"),
        ("interleave", {"length": (0, 2)}, "1 <= minimum"),
        ("multiplication", {"left_digits": 0}, "left_digits.*got 0"),
    ],
)
def test_invalid_option_value_is_a_task_error(name, options, message):
    with pytest.raises(TaskError, match=message):
        make_task(name, options)


def test_unknown_mode_suggests_the_nearest():
    task = make_task("sum_digits")
    with pytest.raises(TaskError, match=r'"step".*"steps"'):
        task.demonstrate(task.example(), "step", random.Random(0))


def test_drawing_from_a_task_without_problems_is_a_task_error():
    task = make_task("arithmetic", {"operations": "/", "operand_high": 2, "steps": (4, 4)})
    assert task.size() == 0
    with pytest.raises(TaskError, match=r"task\.options"):
        task.draw(random.Random(0))


def test_describe_has_options_and_size():
    assert make_task("multiplication").describe() == {
        "task": "multiplication",
        "options": {"left_digits": 3, "right_digits": 2},
        "size": 81_000,
    }
