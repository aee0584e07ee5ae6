from pathlib import Path

from tests.mock_training import train_one_step


def test_one_step_rewards_the_answer_to_problems_with_a_leaked_hint(tmp_path: Path) -> None:
    summary, rows = train_one_step(Path(__file__).parent, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert any("The key says" in row["question"] for row in rows)
    assert all(row["messages"][-1]["content"] == row["question"] for row in rows)
    assert all(row["reward"] == (1 if row["correct"] else -1) for row in rows)  # no penalty
