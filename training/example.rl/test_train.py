from pathlib import Path

import pytest
from tests.mock_training import train_one_step


def test_one_step_is_grpo_on_digit_sums(tmp_path: Path) -> None:
    summary, rows = train_one_step(Path(__file__).parent, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"sum_digits"}
    assert all(row["reward"] == (1 if row["correct"] else -1) for row in rows)
    for group in {row["group"] for row in rows}:  # the mean of each group is subtracted
        assert sum(row["advantage"] for row in rows if row["group"] == group) == pytest.approx(0)
