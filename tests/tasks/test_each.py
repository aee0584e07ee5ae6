"""Each task by its own examples, and its working line by line."""

import itertools
import math
import random
import re
from fractions import Fraction

import pytest

from glasshouse import randomness
from glasshouse.tasks import make
from glasshouse.tasks.enumeration import mixed_radix, multiset_at, multiset_count
from glasshouse.types import AnswerKind, Style


def lines(task, problem, mode, seed=0):
    *working, last = task.demonstrate(problem, mode, random.Random(seed)).split("\n")
    return working, last.removeprefix("[ANSWER] ")


def drawn(task, count=150):
    return [task.draw(randomness.stream("each", task.name, i)) for i in range(count)]


def value(expression):
    """A sum, difference, product or quotient of integers, from left to right; an own reading."""
    first, *rest = re.findall(r"(?:^-?|[-+*/])\d+", expression)
    assert first + "".join(rest) == expression
    total = Fraction(int(first))
    for link in rest:
        operand = int(link[1:])
        total = {
            "+": lambda a, b: a + b,
            "-": lambda a, b: a - b,
            "*": lambda a, b: a * b,
            "/": lambda a, b: a / b,
        }[link[0]](total, operand)
    return total


def is_true(statement, decimals=0):
    left, right = statement.split("=")
    return abs(value(left) - Fraction(right)) * 2 <= Fraction(decimals > 0, 10**decimals)


# --- sum_digits ----------------------------------------------------------------------------


def test_the_digit_sum_of_123_45_67_is_28():
    problem = make("sum_digits").ask((123, 45, 67))
    assert problem.answer == "28"
    assert re.fullmatch(r"What is the total digit sum of \[\d+, \d+, \d+\]\?", problem.question)
    assert sorted(map(int, re.findall(r"\d+", problem.question))) == [45, 67, 123]


def test_the_order_of_the_numbers_is_no_part_of_the_problem():
    task = make("sum_digits")
    first, *others = [task.ask(order) for order in itertools.permutations((123, 45, 67))]
    assert all(other == first for other in others)


def test_orders_are_not_always_rising():
    shown = [p.meta["numbers"] for p in drawn(make("sum_digits"))]
    assert any(s != sorted(s) for s in shown)
    assert any(s != sorted(s, reverse=True) for s in shown)


def test_sum_digits_has_two_to_four_numbers_of_10_to_999():
    assert make("sum_digits").size() == sum(math.comb(990 + k - 1, k) for k in (2, 3, 4))
    for problem in drawn(make("sum_digits")):
        numbers = problem.meta["numbers"]
        assert 2 <= len(numbers) <= 4
        assert all(10 <= n <= 999 for n in numbers)


# --- reverse_digits ------------------------------------------------------------------------


def test_123456_reversed_is_654321():
    assert make("reverse_digits").ask(123456).answer == "654321"


def test_zeros_that_come_to_stand_in_front_are_dropped():
    task = make("reverse_digits", {"low": 10})
    problem = task.at("4 digits", 200)
    assert (problem.key, problem.answer) == ("1200", "21")
    assert lines(task, problem, "steps") == (["1 2 0 0", "0 0 2 1"], "21")


def test_reverse_digits_goes_from_100000_to_9999999():
    task = make("reverse_digits")
    assert task.size() == 9_999_999 - 100_000 + 1
    assert (task.at("6 digits", 0).key, task.at("7 digits", 8_999_999).key) == ("100000", "9999999")


def test_a_reversal_slips_in_one_line_only():
    task = make("reverse_digits")
    for seed, problem in enumerate(drawn(task)):
        [read, turned], answer = lines(task, problem, "slip", seed)
        misread = "".join(read.split()) != problem.key
        mistaken = turned.split() != read.split()[::-1]
        assert misread != mistaken
        assert answer == str(int("".join(turned.split())))


# --- multiplication ------------------------------------------------------------------------


def test_multiplication_has_81000_problems():
    assert make("multiplication").size() == 900 * 90 == 81_000


def test_commuted_factors_share_a_key():
    task = make("multiplication")
    assert task.ask(345, 12).key == task.ask(12, 345).key == "12*345"
    assert task.ask(345, 12).question == "What is 345 * 12?"
    assert task.ask(345, 12).answer == "4140"


def test_commuted_factors_of_one_length_are_counted_once():
    pairs = itertools.combinations_with_replacement(range(10, 100), 2)
    task = make("multiplication", {"left_digits": 2})
    assert {task.at("2x2", i).key for i in range(task.size())} == {f"{a}*{b}" for a, b in pairs}


def restated(statements):
    """Pairs of (line, is it true given the lines before it): products restate their columns."""
    columns, verdicts = [], []
    for line in statements:
        left, right = line.split("=")
        if re.fullmatch(r"\d\*\d(\+\d+)?", left) and not (columns and "+" not in left):
            columns.append(int(right))
            verdicts.append(is_true(line))
        elif "*" in left:
            figures = [c % 10 for c in columns[:-1]] + [columns[-1]]
            zeros = len(left.split("*")[1]) - 1
            product = sum(f * 10**i for i, f in enumerate(figures)) * 10**zeros
            verdicts.append(int(right) == product)
            columns = []
        else:
            verdicts.append(is_true(line))
    return verdicts


@pytest.mark.parametrize(("left", "right"), [(3, 2), (2, 2), (2, 1), (1, 1)])
def test_every_line_of_a_multiplication_is_true_and_in_a_slip_one_is_not(left, right):
    task = make("multiplication", {"left_digits": left, "right_digits": right})
    for seed, problem in enumerate(drawn(task)):
        working, answer = lines(task, problem, "steps")
        assert all(map(is_true, working))
        assert all(restated(working))
        assert answer == str(problem.meta["left"] * problem.meta["right"])
        working, answer = lines(task, problem, "slip", seed)
        assert restated(working).count(False) == 1, working
        assert working[-1].split("=")[1] == answer


# --- arithmetic ----------------------------------------------------------------------------


def test_parentheses_stand_only_where_they_are_needed():
    task = make("arithmetic")
    assert "(7 - 5) * 3 - 4?" in task.ask([("", 7), ("-", 5), ("*", 3), ("-", 4)]).question
    assert "6 / 3 / 2 + 4?" in task.ask([("", 6), ("/", 3), ("/", 2), ("+", 4)]).question


def test_what_is_written_is_what_is_meant():
    """Python's own precedence, on the text of the question, gives the gold answer."""
    for options in ({}, {"decimals": 2}):
        for problem in drawn(make("arithmetic", options), 120):
            text = re.search(r"What is (.*)\?", problem.question)[1]
            exact = eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction})
            error = abs(exact - Fraction(problem.answer))
            assert error == 0 if not options else error < Fraction(1, 200), problem


def chains(steps, high, most, decimals):
    """Every chain that obeys the rules, in any order: brute force."""
    found = set()
    for operations in itertools.product("+-*/", repeat=steps):
        for operands in itertools.product(range(1, high + 1), repeat=steps + 1):
            if any(o in "*/" and n < 2 for o, n in zip(operations, operands[1:], strict=True)):
                continue
            total, fine = Fraction(operands[0]), True
            for i, (o, n) in enumerate(zip(operations, operands[1:], strict=True), 1):
                fine &= not (total == 0 and o in "*/")
                total = eval(f"a{o}b", {"a": total, "b": Fraction(n)})
                inexact = total.denominator > 1
                fine &= not inexact or (i == steps and decimals > 0)
                fine &= (total * 10**decimals).denominator != 2
                fine &= 0 <= total <= most
            if fine:
                found.add((operations, operands))
    return found


def class_of(operations, operands):
    """Which operands each run of one operation holds, in any order."""
    first = operations[0] if operations[0] in "+*" else "start"
    links = list(zip((first, *operations), operands, strict=True))
    runs = itertools.groupby(links, key=lambda link: link[0])
    return tuple((o, tuple(sorted(n for _, n in run))) for o, run in runs)


@pytest.mark.parametrize(("steps", "high", "most"), [(1, 9, 99), (2, 6, 30), (3, 4, 9)])
def test_arithmetic_counts_each_class_of_commuted_chains_once(steps, high, most):
    classes = {class_of(*chain) for chain in chains(steps, high, most, 0)}
    options = {"steps": (steps, steps), "operand_high": high, "value_high": most}
    task = make("arithmetic", options)
    assert task.size() == len(classes)
    ours = set()
    for i in range(task.size()):
        (_, first), *links = task.at(f"{steps} steps", i).meta["chain"]
        ours.add(class_of(tuple(o for o, _ in links), (first, *(n for _, n in links))))
    assert ours == classes


def test_with_decimals_the_last_division_may_be_inexact_but_never_a_tie():
    classes = {class_of(*c) for c in chains(2, 8, 50, 1) if rising(*c)}
    task = make("arithmetic", {"steps": (2, 2), "operand_high": 8, "value_high": 50, "decimals": 1})
    assert task.size() == len(classes)
    keys = {task.at("2 steps", i).key for i in range(task.size())}
    assert "2+3/3" in keys  # 5 / 3
    assert "2+3/4" not in keys  # 1.25 rounds to 1.2 or to 1.3


def rising(operations, operands):
    """Divisions in a row in rising order: of 8/4/3 and 8/3/4 only the second one counts."""
    return operations != ("/", "/") or operands[1] <= operands[2]


def test_commuted_chains_share_a_key():
    task = make("arithmetic")
    assert task.ask([("", 7), ("+", 5)]).key == task.ask([("", 5), ("+", 7)]).key == "5+7"
    assert task.ask([("", 9), ("-", 3), ("-", 2)]).key == "9-2-3"
    assert task.ask([("", 9), ("-", 3), ("+", 2)]).key == "9-3+2"


@pytest.mark.parametrize("decimals", [0, 2])
def test_every_line_of_a_chain_is_true_and_in_a_slip_one_is_not(decimals):
    task = make("arithmetic", {"decimals": decimals})
    for seed, problem in enumerate(drawn(task, 300)):
        working, _ = lines(task, problem, "steps")
        assert all(is_true(line, decimals) for line in working)
        assert len(working) == len(problem.meta["chain"]) - 1
        working, answer = lines(task, problem, "slip", seed)
        assert [is_true(line, decimals) for line in working].count(False) == 1, working
        assert len(working) == len(problem.meta["chain"]) - 1
        assert Fraction(working[-1].split("=")[1]) == Fraction(answer)


def test_decimals_are_stated_in_both_styles_and_given_in_the_answer():
    task = make("arithmetic", {"decimals": 2})
    for problem in drawn(task, 20):
        assert problem.decimals == 2
        assert re.fullmatch(r"\d+\.\d\d", problem.answer)
        for style in Style:
            system, user = task.messages(problem, style)
            assert "Round the answer to 2 decimals." in system["content"]
            assert "Round the answer to 2 decimals." in user["content"]


def test_whole_answers_are_not_asked_for_with_decimals():
    task = make("arithmetic")
    for style in Style:
        assert "decimal" not in str(task.messages(task.example(), style))


def test_every_line_of_a_digit_sum_is_true_and_in_a_slip_one_is_not():
    task = make("sum_digits")
    for seed, problem in enumerate(drawn(task)):
        working, _ = lines(task, problem, "steps")
        assert all(map(is_true, working))
        working, answer = lines(task, problem, "slip", seed)
        assert list(map(is_true, working)).count(False) == 1
        assert working[-1].split("=")[1] == answer


# --- interleave ----------------------------------------------------------------------------


def test_sequences_are_merged_in_turn_and_the_rest_follows():
    problem = make("interleave").ask((1, 2, 3), (9,))
    assert problem.answer == "1, 9, 2, 3"
    assert problem.kind is AnswerKind.SEQUENCE
    assert problem.question == "Interleave [1, 2, 3] and [9]."
    assert make("interleave").ask((9,), (1, 2, 3)).answer == "9, 1, 2, 3"


def test_interleave_asks_unequal_lengths_both_ways_round():
    levels = make("interleave").levels()
    assert levels["2+5"] == levels["5+2"] == 10**7
    assert len(levels) == 16


def test_an_interleaving_slips_in_one_line_only():
    task = make("interleave")
    for seed, problem in enumerate(drawn(task)):
        right, _ = lines(task, problem, "steps")
        slip, answer = lines(task, problem, "slip", seed)
        assert sum(a != b for a, b in zip(right, slip, strict=True)) == 1
        assert " ".join(slip).split() == answer.split(", ")


# --- counting ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 4), (5, 1), (4, 3), (7, 2), (3, 5)])
def test_multisets_are_numbered_without_gaps(n, k):
    expected = set(itertools.combinations_with_replacement(range(n), k))
    assert multiset_count(n, k) == len(expected)
    assert {multiset_at(n, k, i) for i in range(len(expected))} == expected


def test_mixed_radix_counts_like_a_clock():
    expected = list(itertools.product(range(2), range(5), range(3)))
    assert [mixed_radix(i, (2, 5, 3)) for i in range(30)] == expected
