from pathlib import Path

from tests.mock_training import train_one_step

from glasshouse.config.loading import diff_configs, load_config

EXPERIMENT = Path(__file__).parent


def test_the_configuration_is_the_positive_controls_except_for_the_task() -> None:
    """So what was validated there is what runs here."""
    folder = EXPERIMENT.parent / "positive_control.grpo"
    control = load_config([folder / "config.yaml", folder / "arithmetic.yaml"])
    assert list(diff_configs(control, load_config([EXPERIMENT / "config.yaml"]))) == ["task.name"]


def test_one_step_asks_for_interleaved_lists(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"interleave"}
