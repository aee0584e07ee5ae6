import json
from pathlib import Path

from tests.mock_training import train_one_step

EXPERIMENT = Path(__file__).parent


def test_one_step_asks_the_problems_of_the_file(tmp_path: Path) -> None:
    file = EXPERIMENT / "problems.jsonl"
    problems = [json.loads(line) for line in file.read_text().splitlines()]
    answers = {problem["question"]: problem["answer"] for problem in problems}
    _, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert len(answers) == 200
    assert all(row["gold_answer"] == answers[row["question"]] for row in rows)
