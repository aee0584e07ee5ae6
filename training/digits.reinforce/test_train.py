from pathlib import Path

from tests.mock_training import train_one_step


def test_one_step_is_reinforce_with_raw_rewards(tmp_path: Path) -> None:
    summary, rows = train_one_step(Path(__file__).parent, tmp_path / "run")
    assert summary["algorithm"] == "reinforce"
    assert {row["task"] for row in rows} == {"sum_digits"}
    assert all(row["reward"] == (1 if row["correct"] else -1) for row in rows)
    assert all(row["advantage"] == row["reward"] for row in rows)  # no baseline
