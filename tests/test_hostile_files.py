"""One variation of each kind of hostile file that is fast, in this process; proofs/hostile_files.py runs all."""

from __future__ import annotations

import pytest
from proofs.hostile_files import KINDS, Outcome, find_fault
from proofs.run_commands import call

SLOW = {"expression_without_end", "line_without_end", "zip_bomb", "dictionary_bomb"}


@pytest.mark.parametrize("name", sorted(KINDS.keys() - SLOW))
def test_a_hostile_file_gets_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = Outcome(*call(*KINDS[name](tmp_path, 3)))
    assert not find_fault(name, outcome), outcome


@pytest.mark.parametrize(
    ("name", "variation", "words"),
    [
        ("expression_without_end", 0, "(a+)+$"),
        ("unusable_value", 0, 'column "seed"'),
        ("reward_that_is_not_finite", 3, "1e+100"),
        ("duplicated_column", 5, "same name"),
        ("duplicated_column", 1, "column twice"),
        ("dictionary_bomb", 1, "100 times its size"),
    ],
)
def test_the_sentence_names_the_cause(name, variation, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = call(*KINDS[name](tmp_path, variation))
    assert code == 2
    assert words in errors
