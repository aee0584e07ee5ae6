"""The model of the pipeline: cases worked out by hand, and what must hold for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.cli import main
from glasshouse.errors import RunError
from glasshouse.plan.forecast import measure_run
from glasshouse.plan.pipeline import Pipeline, PhaseTimes, forecast_pipeline, hosts_for, seconds_per_step

EVERYTHING = PhaseTimes(
    chunk=2.0, learn=3.0, sync=0.5, send=0.25, load=0.125, draw=0.1, grade=0.2, record=0.3
)


@pytest.mark.parametrize(
    ("times", "spread", "seconds"),
    [
        # one after the other: 8 chunks, then learning
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=1), 8.5),
        # two rounds of four, then learning
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4), 2.5),
        # five chunks on four: two rounds, three generators idle in the second
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=5, generators=4), 2.5),
        # more generators than chunks change nothing
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=99), 1.5),
        # learning is hidden behind generating, and the other way round
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4, max_offpolicy_steps=1), 2.0),
        (PhaseTimes(chunk=1.0, learn=3.0), Pipeline(chunks=8, generators=4, max_offpolicy_steps=1), 3.0),
        # two learners take half as long
        (
            PhaseTimes(chunk=1.0, learn=3.0),
            Pipeline(chunks=8, generators=4, max_offpolicy_steps=1, learners=2),
            2.0,
        ),
        # four generators on two cores are as fast as two
        (PhaseTimes(chunk=1.0, learn=1.0), Pipeline(chunks=8, generators=4, cores=2), 5.0),
        # one core for everything: a lag hides nothing, 4 + 2 seconds of work are 6
        (
            PhaseTimes(chunk=1.0, learn=2.0),
            Pipeline(chunks=4, generators=4, cores=1, max_offpolicy_steps=1),
            6.0,
        ),
        # 0.1 + (0.125 + 2 + 2) + 0.2 + 3 + (0.5 + 2 × 0.25) + 0.3
        (EVERYTHING, Pipeline(chunks=4, generators=2, hosts=3), 8.725),
        # grade 0.2, draw 0.1, then the longer of 4.125 and 3 + 1 + 0.3
        (EVERYTHING, Pipeline(chunks=4, generators=2, hosts=3, max_offpolicy_steps=1), 4.6),
    ],
)
def test_cases_worked_out_by_hand(times: PhaseTimes, spread: Pipeline, seconds: float) -> None:
    assert seconds_per_step(times, spread) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("times", "spread", "limit"),
    [
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4), "generators"),
        (PhaseTimes(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=8), "chunks"),
        (PhaseTimes(chunk=1.0, learn=5.0), Pipeline(chunks=8, generators=4), "learner"),
        (
            PhaseTimes(chunk=1.0, learn=3.0),
            Pipeline(chunks=8, generators=4, max_offpolicy_steps=1),
            "learner",
        ),
        (
            PhaseTimes(chunk=1.0, learn=1.5),
            Pipeline(chunks=8, generators=4, max_offpolicy_steps=1),
            "generators",
        ),
        (PhaseTimes(chunk=1.0, send=0.1), Pipeline(chunks=8, generators=8, hosts=31), "sync"),
        (PhaseTimes(chunk=1.0, grade=9.0), Pipeline(chunks=8, generators=8), "controller"),
    ],
)
def test_the_limit_is_what_would_help_most(times: PhaseTimes, spread: Pipeline, limit: str) -> None:
    assert forecast_pipeline(times, spread).limit == limit


seconds = st.floats(0, 10, allow_subnormal=False)
a_time = st.builds(
    PhaseTimes, chunk=st.floats(0.01, 10), learn=seconds, sync=seconds, send=seconds, load=seconds,
    draw=seconds, grade=seconds, record=seconds,
)  # fmt: skip
few = st.integers(1, 12)


@settings(deadline=None, max_examples=60)
@given(times=a_time, chunks=few, generators=few, cores=st.integers(0, 4), lag=st.integers(0, 1))
def test_what_holds_for_every_pipeline(
    times: PhaseTimes, chunks: int, generators: int, cores: int, lag: int
) -> None:
    def step(**changes: int) -> float:
        given = {"chunks": chunks, "generators": generators, "cores": cores, "lag": lag, **changes}
        return seconds_per_step(times, Pipeline(**given))

    found = step()
    work = chunks * times.chunk
    alone = times.draw + times.grade + times.learn + times.sync + times.record
    waits = times.load + times.chunk if generators >= chunks else 0.0
    at_least = max(work / generators, times.grade + times.draw + waits)
    assert found >= at_least * (1 - 1e-9), "nobody is faster than the work allows"
    loads = times.load * min(generators, chunks)
    assert found <= (alone + work + loads) * (1 + 1e-9), "never slower than one after the other"
    if cores:
        assert found >= (alone + work + loads) / cores * (1 - 1e-9), "cores are not multiplied"
    assert step(max_offpolicy_steps=1) <= step(max_offpolicy_steps=0) * (1 + 1e-9), (
        "overlapping never costs"
    )
    if not cores:  # with fewer cores than work, more generators only read the weights more often
        assert step(generators=generators + 1) <= found * (1 + 1e-9), "one more never slows it"
    assert step(hosts=2) >= found * (1 - 1e-9), "a further host must be brought the weights"


def test_hosts_for() -> None:
    assert [hosts_for(n, 4) for n in (1, 4, 5, 1000)] == [1, 1, 2, 250]
    assert hosts_for(1000, 0) == 1


@pytest.mark.parametrize("wrong", [{"chunks": 0}, {"generators": 0}, {"lag": 2}, {"cores": -1}])
def test_a_pipeline_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least one|lag"):
        Pipeline(**{"chunks": 1, "generators": 1, **wrong})


def run_directory(path: Path, generate: float = 8.0, steps: int = 3) -> Path:
    (path / "results").mkdir(parents=True)
    config = "data: {groups_per_step: 32}\ngenerate: {samples: 8, chunk: 4}\n"
    (path / "config.yaml").write_text(config)
    rows = [
        {"step": s, "timing": {"generate": generate * (9 if s == 1 else 1), "learn": 1.0,
         "draw": 0.0, "grade": 0.0, "record": 0.0}}
        for s in range(1, steps + 1)
    ]  # fmt: skip
    (path / "results" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_a_run_is_measured_without_its_first_step(tmp_path: Path) -> None:
    measured = measure_run(run_directory(tmp_path / "run"))
    assert (measured.chunks, measured.times.chunk, measured.times.learn) == (8, 1.0, 1.0)
    larger = measured.with_groups_per_step(64)
    assert (larger.chunks, larger.times.chunk, larger.times.learn) == (16, 1.0, 2.0)


def test_the_time_to_send_comes_from_the_run_or_from_the_bandwidth(tmp_path: Path) -> None:
    one = run_directory(tmp_path / "one")
    (one / "checkpoints" / "step-000003").mkdir(parents=True)
    (one / "checkpoints" / "step-000003" / "model.safetensors").write_bytes(bytes(500_000))
    assert measure_run(one, bandwidth=50).times.send == pytest.approx(0.01)
    two = run_directory(tmp_path / "two")
    rows = [json.loads(row) for row in (two / "results" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["timing"]["sync"] = 0.4
    (two / "results" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    addresses = "hosts: {kind: addresses, addresses: [tls://a:1, tls://b:1], count: 2}\n"
    (two / "config.yaml").write_text((two / "config.yaml").read_text() + addresses)
    times = measure_run(two).times
    assert (times.send, times.sync, times.learn) == pytest.approx((0.2, 0.0, 0.6))


def test_a_run_without_steps_has_no_forecast(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no step yet"):
        measure_run(run_directory(tmp_path / "run", steps=0))


def test_the_command_prints_a_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(run_directory(tmp_path / "run"))
    picture = tmp_path / "curve.png"
    assert main(["hosts", "forecast", run, "--per-host", "0", "--out", str(picture)]) == 0
    assert "From 8 generators on a step has no more chunks" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["hosts", "forecast", run, "--json", "--max-offpolicy-steps", "1", "--per-host", "0"]) == 0
    points = json.loads(capsys.readouterr().out)["forecast"]
    assert {p["generators"]: p["seconds"] for p in points}[4] == pytest.approx(2.0)
    assert main(["hosts", "forecast", run, "--learners", "0"]) == 2
    assert main(["hosts", "forecast", str(tmp_path)]) == 2
