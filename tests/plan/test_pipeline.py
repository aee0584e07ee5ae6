"""The pipeline simulation: cases computed by hand, and properties of every pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.checksums import add_check
from glasshouse.cli import main
from glasshouse.config import resolve_layers
from glasshouse.errors import RunError
from glasshouse.plan.forecast import read_step_times
from glasshouse.plan.pipeline import (
    MEASURED,
    PhaseTimes,
    Pipeline,
    count_hosts,
    forecast_pipeline,
    seconds_per_step,
)
from glasshouse.store.run_directory import config_text

ALL_PHASES = PhaseTimes(
    chunk=2.0, learn=3.0, sync=0.5, send=0.25, load=0.125, sample=0.1, reward=0.2, log=0.3
)


def overlapped(offpolicy_steps: int = 1, **options: int) -> Pipeline:
    return Pipeline(max_offpolicy_steps=offpolicy_steps, **options)


@pytest.mark.parametrize(
    ("times", "pipeline", "seconds"),
    [
        # in sequence: 8 chunks, then learning
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=1), 8.5),
        # two rounds of four chunks, then learning
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4), 2.5),
        # five chunks on four generators: two rounds, three generators idle in the second
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=5, generators=4), 2.5),
        # more generators than chunks change nothing
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=99), 1.5),
        # learning is hidden behind generation, and generation behind learning
        (PhaseTimes(chunk=1.0, learn=0.5), overlapped(chunks=8, generators=4), 2.0),
        (PhaseTimes(chunk=1.0, learn=3.0), overlapped(chunks=8, generators=4), 3.0),
        # two steps ahead: the same, if all chunks take the same time
        (PhaseTimes(chunk=1.0, learn=0.5), overlapped(2, chunks=8, generators=4), 2.0),
        # five chunks on four generators: the three that were idle take chunks of the next step
        (PhaseTimes(chunk=1.0, learn=0.5), overlapped(2, chunks=5, generators=4), 1.25),
        # two learners need half the time
        (PhaseTimes(chunk=1.0, learn=3.0), overlapped(chunks=8, generators=4, learners=2), 2.0),
        # four generators on two cores are as fast as two
        (PhaseTimes(chunk=1.0, learn=1.0), Pipeline(chunks=8, generators=4, cores=2), 5.0),
        # one core for everything: overlap hides nothing, 4 + 2 seconds of work take 6
        (PhaseTimes(chunk=1.0, learn=2.0), overlapped(chunks=4, generators=4, cores=1), 6.0),
        # 0.1 + (0.125 + 2 + 2) + 0.2 + 3 + (0.5 + 2 × 0.25) + 0.3
        (ALL_PHASES, Pipeline(chunks=4, generators=2, hosts=3), 8.725),
        # reward 0.2, sample 0.1, then the longer of 4.125 and 3 + 1 + 0.3
        (ALL_PHASES, overlapped(chunks=4, generators=2, hosts=3), 4.6),
    ],
)
def test_seconds_per_step_equal_the_cases_computed_by_hand(
    times: PhaseTimes, pipeline: Pipeline, seconds: float
) -> None:
    assert seconds_per_step(times, pipeline) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("times", "pipeline", "limit"),
    [
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4), "generators"),
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=8), "chunks"),
        (PhaseTimes(chunk=1.0, learn=5.0), Pipeline(chunks=8, generators=4), "learner"),
        (PhaseTimes(chunk=1.0, learn=3.0), overlapped(chunks=8, generators=4), "learner"),
        (PhaseTimes(chunk=1.0, learn=1.5), overlapped(chunks=8, generators=4), "generators"),
        (PhaseTimes(chunk=1.0, send=0.3), Pipeline(chunks=8, generators=8, hosts=31), "sync"),
        (PhaseTimes(chunk=1.0, reward=9.0), Pipeline(chunks=8, generators=8), "controller"),
    ],
)
def test_the_bottleneck_is_the_phase_whose_removal_saves_most(
    times: PhaseTimes, pipeline: Pipeline, limit: str
) -> None:
    assert forecast_pipeline(times, pipeline).limit == limit


phase = st.floats(0, 10, allow_subnormal=False)
phase_times = st.builds(
    PhaseTimes, chunk=st.floats(0.01, 10), learn=phase, sync=phase, send=phase, load=phase,
    sample=phase, reward=phase, log=phase,
)  # fmt: skip
small = st.integers(1, 12)


@settings(deadline=None, max_examples=60)
@given(
    times=phase_times, chunks=small, generators=small, cores=st.integers(0, 4),
    max_offpolicy_steps=st.integers(0, 4),
)  # fmt: skip
def test_properties_of_every_pipeline(
    times: PhaseTimes, chunks: int, generators: int, cores: int, max_offpolicy_steps: int
) -> None:
    def simulate(**changes: int) -> float:
        options = {
            "chunks": chunks, "generators": generators, "cores": cores,
            "max_offpolicy_steps": max_offpolicy_steps, **changes,
        }  # fmt: skip
        return seconds_per_step(times, Pipeline(**options))

    seconds = simulate()
    generation = chunks * times.chunk
    other = times.sample + times.reward + times.learn + times.sync + times.log
    # a step waits for its own chunks, unless those of several steps are generated at the same time
    waits = generators >= chunks and max_offpolicy_steps <= 1
    last_chunk = times.load + times.chunk if waits else 0.0
    lower_bound = max(generation / generators, times.reward + times.sample + last_chunk)
    loads = times.load * min(generators, chunks)
    total = other + generation + loads
    # steps end at irregular times if several overlap: the mean of 8 steps is off by part of one of them
    slack = 1e-9 * total + (total / MEASURED if max_offpolicy_steps > 1 else 0.0)
    assert seconds >= lower_bound - slack, "never faster than the work allows"
    assert seconds <= total + slack, "never slower than in sequence"
    if cores:
        assert seconds >= total / cores - slack, "never more work than the cores can do"
    overlap, sequence = simulate(max_offpolicy_steps=1), simulate(max_offpolicy_steps=0)
    assert overlap <= sequence * (1 + 1e-9), "overlap never costs time"
    if not cores:  # with too few cores, more generators only load the weights more often
        assert simulate(generators=generators + 1) <= seconds + slack, (
            "one more generator never costs time"
        )
    assert simulate(hosts=2) >= seconds - slack, "one more host must be sent the weights"


def test_more_offpolicy_steps_hide_a_long_tail_of_lengths() -> None:
    times = PhaseTimes(chunk=1.0, learn=1.0, chunk_spread=1.0)
    pipelines = [overlapped(steps, chunks=8, generators=4) for steps in range(4)]
    seconds = [seconds_per_step(times, pipeline) for pipeline in pipelines]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[2] < 0.9 * seconds[1] < 0.9 * 0.9 * seconds[0]
    mean = 100 * 8 / 4 / 100
    assert seconds[3] == pytest.approx(mean, rel=0.3), "the generators are nearly always busy"


def test_count_hosts() -> None:
    assert [count_hosts(n, 4) for n in (1, 4, 5, 1000)] == [1, 1, 2, 250]
    assert count_hosts(1000, 0) == 1


@pytest.mark.parametrize(
    ("invalid", "name"),
    [
        ({"chunks": 0}, "chunks"),
        ({"generators": 0}, "generators"),
        ({"max_offpolicy_steps": 5}, "max_offpolicy_steps"),
        ({"cores": -1}, "at least 1"),
    ],
)
def test_an_impossible_pipeline_is_refused(invalid: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Pipeline(**{"chunks": 1, "generators": 1, **invalid})


def write_run(path: Path, steps: int = 3, config: str = "", **timing: float) -> Path:
    """A run directory of 32 groups in chunks of 4; its first step is nine times slower."""
    (path / "results").mkdir(parents=True)
    base = "data: {groups_per_step: 32}\ngenerate: {group_size: 8, chunk_size: 4}\n"
    resolved = resolve_layers([("a test", yaml.safe_load(base + config))])
    (path / "config.yaml").write_text(config_text(resolved))
    phases = {"generate": 8.0, "learn": 1.0, "sample": 0.0, "reward": 0.0, "log": 0.0, **timing}
    rows = [
        {"step": step, "timing": {**phases, "generate": 8.0 * (9 if step == 1 else 1)}}
        for step in range(1, steps + 1)
    ]
    lines = (json.dumps(add_check(row)) + "\n" for row in rows)
    (path / "results" / "metrics.jsonl").write_text("".join(lines))
    return path


def test_a_run_is_measured_without_its_first_step(tmp_path: Path) -> None:
    measured = read_step_times(write_run(tmp_path / "run"))
    assert (measured.chunks, measured.times.chunk, measured.times.learn) == (8, 1.0, 1.0)
    larger = measured.with_groups_per_step(64)
    assert (larger.chunks, larger.times.chunk, larger.times.learn) == (16, 1.0, 2.0)


def test_the_send_time_comes_from_the_run_or_from_the_bandwidth(tmp_path: Path) -> None:
    one_host = write_run(tmp_path / "one")
    (one_host / "checkpoints" / "step-000003").mkdir(parents=True)
    (one_host / "checkpoints" / "step-000003" / "model.safetensors").write_bytes(bytes(500_000))
    assert read_step_times(one_host, bandwidth=50).times.send == pytest.approx(0.01)
    hosts = "hosts: {kind: addresses, addresses: [tls://a:1, tls://b:1], count: 2}\n"
    times = read_step_times(write_run(tmp_path / "two", config=hosts, sync=0.4)).times
    assert (times.send, times.sync, times.learn) == pytest.approx((0.2, 0.0, 0.6))


def test_a_run_without_steps_has_no_forecast(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished step"):
        read_step_times(write_run(tmp_path / "run", steps=0))


def test_the_command_prints_a_table_or_json_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(write_run(tmp_path / "run"))
    image = tmp_path / "curve.png"
    assert main(["hosts", "forecast", run, "--per-host", "0", "--out", str(image)]) == 0
    assert "From 8 generators on, a step has too few chunks" in capsys.readouterr().out
    assert main(["hosts", "forecast", run, "--per-host", "100"]) == 0
    assert "9 other hosts" in capsys.readouterr().out
    assert image.read_bytes().startswith(b"\x89PNG")
    options = ["--json", "--max-offpolicy-steps", "1", "--per-host", "0"]
    assert main(["hosts", "forecast", run, *options]) == 0
    points = json.loads(capsys.readouterr().out)["forecast"]
    assert {p["generators"]: p["seconds"] for p in points}[4] == pytest.approx(2.0)
    assert main(["hosts", "forecast", run, "--learners", "0"]) == 2
    assert main(["hosts", "forecast", str(tmp_path)]) == 2
