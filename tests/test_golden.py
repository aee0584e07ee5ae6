"""`make golden` compares two trees: the comparison finds what differs."""

import math

import pytest
from tools.golden import Comparison, compare, hash_tensors

REFERENCE = {"a": [1, 2.5, {"b": "text", "c": math.nan}], "d": None}


def find_differences(now: object, path: str = "study") -> list[tuple[str, object, object]]:
    return compare(REFERENCE, now, path, Comparison()).differences


def test_equal_values_are_counted_and_additions_are_no_differences():
    now = {"a": [1, 2.5, {"b": "text", "c": math.nan, "new": 1}], "d": None, "e": 0}
    found = compare(REFERENCE, now, "study", Comparison())
    assert (found.equal, found.new, found.differences) == (5, 2, [])


@pytest.mark.parametrize(
    ("now", "path"),
    [
        ({"a": [1, 2.5000000000000004, {"b": "text", "c": math.nan}], "d": None}, "study/a/1"),
        ({"a": [1, 2.5, {"b": "text ", "c": math.nan}], "d": None}, "study/a/2/b"),
        ({"a": [1, 2.5, {"b": "text"}], "d": None}, "study/a/2/c"),
        ({"a": [1, 2.5, {"b": "text", "c": math.nan}, 4], "d": None}, "study/a"),
        ({"a": [1, 2.5, {"b": "text", "c": math.nan}]}, "study/d"),
        ({"a": {}, "d": None}, "study/a"),
    ],
)
def test_a_difference_is_found(now, path):
    assert [found[0] for found in find_differences(now)] == [path]


def test_ignored_paths_are_not_compared():
    found = compare([{"timing": 1, "kl": 1}], [{"timing": 2, "kl": 2}], "metrics", Comparison())
    assert found.differences == [("metrics/0/kl", 1, 2)]


def test_one_bit_of_a_tensor_changes_its_hash(tmp_path):
    np = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    values = np.zeros(3, dtype=np.float32)
    hashes = []
    for name in ("first", "again", "negative_zero"):
        values[1] = -0.0 if name == "negative_zero" else 0.0
        save_file({"w": values}, tmp_path / name)
        hashes.append(hash_tensors(tmp_path / name))
    assert hashes[0] == hashes[1] != hashes[2]
