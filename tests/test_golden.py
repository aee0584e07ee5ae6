"""`make golden` compares two trees: the comparison finds what differs."""

import math

import numpy as np
import pytest
from safetensors.numpy import save_file
from tools.golden import Comparison, compare, hash_tensors

REFERENCE = {"a": [1, 2.5, {"b": "text", "c": math.nan}], "d": None}


def test_equal_values_are_counted_and_additions_and_times_are_no_differences():
    now = {"a": [1, 2.5, {"b": "text", "c": math.nan, "new": 1}], "d": None, "e": 0}
    found = compare(REFERENCE, now, "study", Comparison())
    assert (found.equal, found.new, found.differences) == (5, 2, [])
    found = compare([{"timing": 1, "kl": 1}], [{"timing": 2, "kl": 2}], "metrics", Comparison())
    assert found.differences == [("metrics/0/kl", 1, 2)]


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
    assert [found[0] for found in compare(REFERENCE, now, "study", Comparison()).differences] == [
        path
    ]


def test_one_bit_of_a_tensor_changes_its_hash(tmp_path):
    hashes = []
    for zero in (0.0, 0.0, -0.0):
        save_file({"w": np.array([0, zero], dtype=np.float32)}, tmp_path / "file")
        hashes.append(hash_tensors(tmp_path / "file"))
    assert hashes[0] == hashes[1] != hashes[2]
