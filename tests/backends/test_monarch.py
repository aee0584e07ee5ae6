"""The Monarch placement with real processes and real kills: the bits are those of one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from tests.train.test_loop import metrics, rows

from glasshouse import config, models, randomness
from glasshouse.backends.base import Chunk, Inline
from glasshouse.backends.monarch import Monarch, Place
from glasshouse.backends.monarch.runtime import gone, this_place
from glasshouse.backends.monarch.shared_weights import trained
from glasshouse.errors import ConfigError, RunError
from glasshouse.generate import Sampling
from glasshouse.learn import LearnerState, Sample
from glasshouse.train import Run
from glasshouse.train.display import Display
from glasshouse.types import Completion, Request

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    f"model={ROOT / 'models' / 'mock'}",
    "steps=3",
    "data.groups_per_step=8",
    "generate.group_size=4",
    "generate.max_tokens=32",
    "generate.chunk_size=2",
    "reward.terms={closeness: 1}",
    "learn.microbatch_tokens=64",
    "evaluate.problems=4",
    "evaluate.samples=2",
]
SAMPLING = Sampling(max_tokens=64)


def resolved(*overrides: str) -> config.Config:
    return config.load([], [*SMALL, *overrides])


def run(out: Path, *overrides: str) -> bytes:
    Run(resolved(f"out={out}", *overrides)).train()
    return (out / "checkpoints/step-000003/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    out = tmp_path_factory.mktemp("inline") / "run"
    return out, run(out)


@pytest.mark.parametrize(("generators", "learners"), [(1, 2), (2, 1), (4, 1)])
def test_any_number_of_processes_gives_the_bits_of_one(
    tmp_path: Path, inline: tuple[Path, bytes], generators: int, learners: int
) -> None:
    out, (alone, weights) = tmp_path / "a", inline
    places = ["backend=monarch", f"monarch.generators={generators}"]
    assert run(out, *places, f"monarch.learners={learners}", "monarch.verify_every=1") == weights
    assert metrics(out) == metrics(alone)
    assert any(row["grad_norm"] > 0 for row in metrics(out))
    for kind in ("train", "validation"):
        assert rows(out, kind) == rows(alone, kind)
    assert "fault" not in (out / "results" / "events.jsonl").read_text()


class KillsTheLearner(Display):
    """When the second step is done and the third is being generated."""

    run: Run

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        if row["step"] == 2:
            os.kill(self.run.placement.pids[-1], signal.SIGKILL)


def test_a_run_whose_learner_died_goes_on_with_a_lag_too(tmp_path: Path) -> None:
    """The lag's order of generating and learning is the same in one process and in several."""
    alone = run(tmp_path / "alone", "max_offpolicy_steps=1")
    out, display = tmp_path / "a", KillsTheLearner()
    settings = resolved(
        f"out={out}", "max_offpolicy_steps=1", "backend=monarch", "checkpoints.every=1"
    )
    display.run = Run(settings, display)
    with pytest.raises(RunError, match="same command again"):
        display.run.train()
    Run(settings).train()
    assert (out / "checkpoints/step-000003/model.safetensors").read_bytes() == alone
    for kind in ("train", "validation"):
        assert rows(out, kind) == rows(tmp_path / "alone", kind)


class Events:
    """What a placement told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, **what: Any) -> None:
        self.told.append((kind, what))

    def faults(self) -> list[str]:
        return [what["text"] for kind, what in self.told if kind == "fault"]


def chunks(number: int, salt: int) -> list[Chunk]:
    """Work of about a tenth of a second a chunk."""
    return [
        [
            Request(
                prompt=tuple(range(5, 25)),
                keys=tuple(randomness.key("test", salt, n, row, k) for k in range(64)),
            )
            for row in range(4)
        ]
        for n in range(number)
    ]


def samples(made: list[list[list[Completion]]]) -> list[Sample]:
    flat = [c for chunk in made for group in chunk for c in group]
    return [
        Sample(prompt=(5, 6), tokens=c.tokens, logprobs=c.logprobs, advantage=(-1.0) ** n)
        for n, c in enumerate(flat[:16])
    ]


@pytest.fixture(scope="module")
def settings() -> config.Config:
    return resolved("backend=monarch", "monarch.chunk_timeout=2", "monarch.max_failures=5")


@pytest.fixture(scope="module")
def shared(settings: config.Config) -> Iterator[tuple[Monarch, Events]]:
    events = Events()
    placement = Monarch(models.load(settings.model), settings, events)
    placement.generate(chunks(2, 99), SAMPLING, lambda: None)
    yield placement, events
    placement.close()


@pytest.fixture
def alone(settings: config.Config) -> Inline:
    return Inline(models.load(settings.model), settings)


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_there(placement: Monarch) -> bool:
    """Every generator has loaded its model."""
    return all(seat.processes and seat.ready for seat in placement.seats)


def begin(placement: Monarch, alone: Inline) -> None:
    """Both as if nothing had been learned."""
    for mine, theirs in zip(trained(placement.policy), trained(alone.policy), strict=True):
        mine.data.copy_(theirs)
    placement.restore(LearnerState(0, {}))


def test_a_killed_generators_chunk_is_done_by_another(
    shared: tuple[Monarch, Events], alone: Inline
) -> None:
    placement, events = shared
    wait_for(lambda: all_there(placement))
    pid, before = placement.seats[0].pids[0], len(events.faults())
    alone.generator.version = placement.version
    work = chunks(8, 1)
    pending = placement.start(work, SAMPLING, lambda: None)
    time.sleep(0.05)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: placement.events or len(events.faults()) > before)
    assert time.monotonic() - started < 1
    assert pending.result() == alone.generate(work, SAMPLING, lambda: None)
    assert "Generator 0: its process ended." in events.faults()[before:]
    wait_for(lambda: all_there(placement))
    assert placement.seats[0].pids != [pid]


def test_a_stopped_generator_counts_as_hung(shared: tuple[Monarch, Events], alone: Inline) -> None:
    placement, events = shared
    wait_for(lambda: all_there(placement))
    pid = placement.seats[1].pids[0]
    alone.generator.version = placement.version
    os.kill(pid, signal.SIGSTOP)
    work = chunks(4, 2)
    assert placement.generate(work, SAMPLING, lambda: None) == alone.generate(
        work, SAMPLING, lambda: None
    )
    assert any("did not answer within 2 s" in text for text in events.faults())
    assert gone([pid], within=5)


def test_weights_that_are_not_the_learners_are_found_out(
    shared: tuple[Monarch, Events], alone: Inline
) -> None:
    placement, events = shared
    wait_for(lambda: all_there(placement))
    begin(placement, alone)
    first = placement.generate(chunks(1, 4), SAMPLING, lambda: None)
    placement.update(samples(first))
    alone.update(samples(first))
    flat = placement.weights._flat(placement.version)
    right = flat[7].item()
    flat[7] += 1
    for seat in placement.seats:
        seat.checked = None  # as if the next check were due
    work = chunks(2, 3)
    pending = placement.start(work, SAMPLING, lambda: None)
    wait_for(lambda: any("its weights are not" in what["text"] for _, what in placement.events))
    flat[7] = right
    assert pending.result() == alone.generate(work, SAMPLING, lambda: None)
    assert any("its weights are not version" in text for text in events.faults())


def test_generating_goes_on_with_the_old_weights_while_the_learner_learns(
    shared: tuple[Monarch, Events], alone: Inline
) -> None:
    placement, _ = shared
    begin(placement, alone)
    first = placement.generate(chunks(1, 4), SAMPLING, lambda: None)
    work = chunks(6, 5)
    pending = placement.start(work, SAMPLING, lambda: None)
    old = alone.start(work, SAMPLING, lambda: None)
    learned = placement.update(samples(first))
    assert learned == alone.update(samples(first))
    assert pending.result() == old.result()
    assert {c.version for chunk in old.result() for g in chunk for c in g} == {0}
    assert placement.version == alone.learner.version == 1
    for mine, theirs in zip(trained(placement.policy), trained(alone.policy), strict=True):
        assert mine.equal(theirs)
    new = placement.generate(work, SAMPLING, lambda: None)
    assert new == alone.generate(work, SAMPLING, lambda: None) != old.result()
    assert placement.timing()["sync_bytes"] == 4 * sum(p.numel() for p in trained(alone.policy))

    state = placement.state()
    assert state.version == 1
    assert all(state.tensors[name].equal(value) for name, value in alone.state().tensors.items())
    placement.update(samples(first))
    for mine, theirs in zip(trained(placement.policy), trained(alone.policy), strict=True):
        mine.data.copy_(theirs)
    placement.restore(state)  # back to version 1
    assert placement.update(samples(first)) == alone.update(samples(first))
    for mine, theirs in zip(trained(placement.policy), trained(alone.policy), strict=True):
        assert mine.equal(theirs)


def test_a_run_that_stops_does_not_wait_for_its_chunks(shared: tuple[Monarch, Events]) -> None:
    placement, _ = shared

    def stop() -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        placement.generate(chunks(100, 6), SAMPLING, stop)
    assert time.monotonic() - started < 1
    assert not placement.pool.jobs


def test_a_users_mistake_in_another_process_is_the_same_sentence(
    shared: tuple[Monarch, Events], alone: Inline
) -> None:
    placement, _ = shared
    long = [[Request(prompt=(5,) * 5000, keys=(1,))]]
    with pytest.raises(ConfigError) as here:
        alone.generate(long, SAMPLING, lambda: None)
    with pytest.raises(ConfigError) as there:
        placement.generate(long, SAMPLING, lambda: None)
    assert str(here.value) == str(there.value)


def test_a_host_without_shared_memory_gets_one_message_a_version(settings: config.Config) -> None:
    """This host plays the other one. In the end the learner dies."""
    here = this_place()
    short = settings.monarch.model_copy(update={"generators": 1, "deaths": 2, "backoff": 0.0})
    settings = settings.model_copy(update={"monarch": short})
    placement = Monarch(
        models.load(settings.model), settings, places=lambda n: Place(here.host, "there", False)
    )
    try:
        alone = Inline(models.load(settings.model), settings)
        first = placement.generate(chunks(1, 7), SAMPLING, lambda: None)
        assert first == alone.generate(chunks(1, 7), SAMPLING, lambda: None)
        placement.update(samples(first))
        alone.update(samples(first))
        assert placement.timing()["sync_bytes"] == 2 * placement.weights.volume
        second = placement.generate(chunks(1, 8), SAMPLING, lambda: None)
        assert second == alone.generate(chunks(1, 8), SAMPLING, lambda: None)

        os.kill(placement.learners.processes.pids[0], signal.SIGSEGV)
        with pytest.raises(RunError, match=r"same command again(.|\n)*Segmentation fault"):
            placement.update(samples(first))
    finally:
        placement.close()


def test_a_generator_that_keeps_dying_ends_the_run_with_its_last_words(
    settings: config.Config,
) -> None:
    short = settings.monarch.model_copy(update={"generators": 1, "deaths": 2, "backoff": 0.1})
    settings = settings.model_copy(update={"monarch": short})
    events = Events()
    placement = Monarch(models.load(settings.model), settings, events)
    killed: list[int] = []

    def kill_it() -> None:
        while not placement.pool.closed:
            for pid in placement.seats[0].pids:
                if pid not in killed:
                    killed.append(pid)
                    os.kill(pid, signal.SIGSEGV)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_it)
    killer.start()
    try:
        with pytest.raises(RunError, match=r"failed 2 times(.|\n)*words(.|\n)*Segmentation fault"):
            placement.generate(chunks(1, 9), SAMPLING, lambda: None)
    finally:
        placement.close()
        killer.join()
    assert len(killed) == 2
    assert gone(killed, within=5)
