"""The tasks: problems, prompts, options, and solutions whose steps are true."""

import itertools
import operator
import random
import re
from fractions import Fraction

import pytest

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.tasks.base import NO_STEPS, list_tasks, make_task
from glasshouse.types import AnswerKind, Style

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
    ("substitution", {"inner_options": {"moves": (2, 3), "furthest": 4}}),
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
        ("leaked_hint", {"inner_task": "sum_digit"}, "sum_digits"),
        ("leaked_hint", {"inner_options": {"counts": [2, 2]}}, "counts"),
        ("substitution", {"inner_options": {"moves": [4, 9]}}, "8"),
        ("substitution", {"inner_task": "sum_digits"}, "ring_walk"),
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


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def solution_lines(task, problem, mode, seed=0):
    *steps, last = task.demonstrate(problem, mode, random.Random(seed)).split("\n")
    return steps, last.removeprefix("[ANSWER] ")


def draw_each(task, count=150):
    return [task.draw(randomness.stream("each", task.name, i)) for i in range(count)]


def evaluate(expression):
    """Evaluates a chain of integers from left to right, independently of the task's code."""
    first, *rest = re.findall(r"(?:^-?|[-+*/])\d+", expression)
    assert first + "".join(rest) == expression
    total = Fraction(int(first))
    for link in rest:
        total = OPERATIONS[link[0]](total, int(link[1:]))
    return total


def is_true(statement, decimals=0):
    left, right = statement.split("=")
    return abs(evaluate(left) - Fraction(right)) * 2 <= Fraction(decimals > 0, 10**decimals)


def test_digit_sum_of_123_45_67_is_28_in_any_order():
    task = make_task("sum_digits")
    problem, *others = [task.make_problem(order) for order in itertools.permutations((123, 45, 67))]
    assert all(other == problem for other in others)
    assert problem.gold_answer == "28"
    assert re.fullmatch(r"What is the total digit sum of \[\d+, \d+, \d+\]\?", problem.question)
    assert sorted(map(int, re.findall(r"\d+", problem.question))) == [45, 67, 123]


def test_leading_zeros_of_a_reversed_number_are_dropped_and_one_line_has_the_error():
    task = make_task("reverse_digits", {"low": 10})
    problem = task.problem_at("4 digits", 200)
    assert (problem.key, problem.gold_answer) == ("1200", "21")
    assert solution_lines(task, problem, "steps") == (["1 2 0 0", "0 0 2 1"], "21")
    for seed, problem in enumerate(draw_each(task)):
        [read, reversed_line], answer = solution_lines(task, problem, "injected_error", seed)
        misread = "".join(read.split()) != problem.key
        misreversed = reversed_line.split() != read.split()[::-1]
        assert misread != misreversed
        assert answer == str(int("".join(reversed_line.split())))


def test_swapped_factors_share_a_key():
    one, other = (
        make_task("multiplication").make_problem(*pair) for pair in ((345, 12), (12, 345))
    )
    assert one.key == other.key == "12*345"
    assert (one.question, one.gold_answer) == ("What is 345 * 12?", "4140")


def check_lines(lines):
    """For each line, whether it follows from the lines before it: a partial product must equal the value
    of the columns above it."""
    columns, checks = [], []
    for line in lines:
        left, right = line.split("=")
        if re.fullmatch(r"\d\*\d(\+\d+)?", left) and not (columns and "+" not in left):
            columns.append(int(right))
            checks.append(is_true(line))
        elif "*" in left:
            digits = [c % 10 for c in columns[:-1]] + [columns[-1]]
            zeros = len(left.split("*")[1]) - 1
            product = sum(d * 10**i for i, d in enumerate(digits)) * 10**zeros
            checks.append(int(right) == product)
            columns = []
        else:
            checks.append(is_true(line))
    return checks


@pytest.mark.parametrize(("left", "right"), [(3, 2), (2, 2), (2, 1), (1, 1)])
def test_multiplication_steps_are_true_except_one_injected_error(left, right):
    task = make_task("multiplication", {"left_digits": left, "right_digits": right})
    for seed, problem in enumerate(draw_each(task)):
        steps, answer = solution_lines(task, problem, "steps")
        assert all(map(is_true, steps))
        assert all(check_lines(steps))
        assert answer == str(problem.meta["left"] * problem.meta["right"])
        steps, answer = solution_lines(task, problem, "injected_error", seed)
        assert check_lines(steps).count(False) == 1, steps
        assert steps[-1].split("=")[1] == answer


def test_expressions_have_only_the_necessary_parentheses():
    task = make_task("arithmetic")
    assert "(7 - 5) * 3 - 4?" in task.make_problem([("", 7), ("-", 5), ("*", 3), ("-", 4)]).question
    assert "6 / 3 / 2 + 4?" in task.make_problem([("", 6), ("/", 3), ("/", 2), ("+", 4)]).question


def test_question_text_evaluates_to_the_gold_answer():
    """By Python's operator precedence."""
    for options in ({}, {"decimals": 2}):
        for problem in draw_each(make_task("arithmetic", options), 120):
            text = re.search(r"What is (.*)\?", problem.question)[1]
            exact = eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction})
            error = abs(exact - Fraction(problem.gold_answer))
            assert error == 0 if not options else error < Fraction(1, 200), problem


def all_chains(steps, high, most):
    """Every valid chain, in any order, by brute force."""
    chains = set()
    for operations in itertools.product("+-*/", repeat=steps):
        for operands in itertools.product(range(1, high + 1), repeat=steps + 1):
            links = list(zip(operations, operands[1:], strict=True))
            is_valid, total = all(o in "+-" or n > 1 for o, n in links), Fraction(operands[0])
            for o, n in links:
                is_valid &= not (total == 0 and o in "*/")
                total = OPERATIONS[o](total, n)
                is_valid &= total.denominator == 1 and 0 <= total <= most
            if is_valid:
                chains.add((operations, operands))
    return chains


def equivalence_class(operations, operands):
    """The operands of each run of one operation, in any order."""
    first = operations[0] if operations[0] in "+*" else "start"
    links = list(zip((first, *operations), operands, strict=True))
    runs = itertools.groupby(links, key=lambda link: link[0])
    return tuple((o, tuple(sorted(n for _, n in run))) for o, run in runs)


@pytest.mark.parametrize(("steps", "high", "most"), [(1, 9, 99), (2, 6, 30), (3, 4, 9)])
def test_arithmetic_enumerates_each_class_of_equivalent_chains_once(steps, high, most):
    classes = {equivalence_class(*chain) for chain in all_chains(steps, high, most)}
    options = {"steps": (steps, steps), "operand_high": high, "value_high": most}
    task = make_task("arithmetic", options)
    assert task.size() == len(classes)
    enumerated = set()
    for i in range(task.size()):
        (_, first), *links = task.problem_at(f"{steps} steps", i).meta["chain"]
        operations, operands = zip(*links, strict=True)
        enumerated.add(equivalence_class(operations, (first, *operands)))
    assert enumerated == classes


def test_with_decimals_the_last_division_may_be_inexact_but_not_a_tie():
    options = {"steps": (2, 2), "operand_high": 8, "value_high": 50, "decimals": 1}
    task = make_task("arithmetic", options)
    keys = {task.problem_at("2 steps", i).key for i in range(task.size())}
    assert "2+3/3" in keys  # 5 / 3
    assert "2+3/4" not in keys  # 1.25 rounds to 1.2 or to 1.3


@pytest.mark.parametrize(
    ("name", "options"), [("sum_digits", {}), ("arithmetic", {}), ("arithmetic", {"decimals": 2})]
)
def test_steps_are_true_except_one_injected_error(name, options):
    task, decimals = make_task(name, options), options.get("decimals", 0)
    for seed, problem in enumerate(draw_each(task)):
        steps, _ = solution_lines(task, problem, "steps")
        assert all(is_true(line, decimals) for line in steps)
        flawed, answer = solution_lines(task, problem, "injected_error", seed)
        assert [is_true(line, decimals) for line in flawed].count(False) == 1, flawed
        assert len(flawed) == len(steps)
        assert Fraction(flawed[-1].split("=")[1]) == Fraction(answer)


def test_sequences_are_interleaved_and_the_rest_follows():
    task = make_task("interleave")
    problem = task.make_problem((1, 2, 3), (9,))
    assert (problem.gold_answer, problem.answer_kind) == ("1, 9, 2, 3", AnswerKind.SEQUENCE)
    assert problem.question == "Interleave [1, 2, 3] and [9]."
    assert task.make_problem((9,), (1, 2, 3)).gold_answer == "9, 1, 2, 3"
    levels = task.levels()
    assert (levels["2+5"], levels["5+2"], len(levels)) == (10**7, 10**7, 16)
    for seed, problem in enumerate(draw_each(task)):
        correct, _ = solution_lines(task, problem, "steps")
        flawed, answer = solution_lines(task, problem, "injected_error", seed)
        assert sum(a != b for a, b in zip(correct, flawed, strict=True)) == 1
        assert " ".join(flawed).split() == answer.split(", ")
