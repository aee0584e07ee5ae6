"""A run on several hosts while one of them is cut off, comes back, is killed and joins again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proofs.hosts_scene import CONTROLLER, Scene
from proofs.network import stop

NOTICED_WITHIN = 5.0
Measured = dict[str, Any]

STEPS = 60
SMALL = [
    f"steps={STEPS}", "data.groups_per_step=16", "generate.group_size=8", "generate.chunk_size=2",
    "generate.max_tokens=64",
    "evaluate.problems=0", "monarch.verify_every=5",
]  # fmt: skip


def train(scene: Scene, disturbed: bool = True, options: tuple[str, ...] = ()) -> Measured:
    """A run on two hosts, one of which is cut off, comes back, is killed and joins again: its
    weights are those of the undisturbed run in one process, bit for bit."""
    inline, spread = scene.folder / f"inline{disturbed}", scene.folder / f"spread{disturbed}"
    scene.glasshouse("train", "--quiet", *SMALL, *options, f"out={inline}")
    run = scene.network.start(
        CONTROLLER,
        [scene.python, "-m", "glasshouse", "train", "--quiet", *SMALL, *options, *scene.overrides,
         "backend=monarch", "monarch.generators=4", f"out={spread}"],
        env=scene.environment,
    )  # fmt: skip
    found: Measured = {}
    try:
        story = Story(spread, run)
        if disturbed:
            story.until_step(3)
            found["cut noticed"] = story.disturb(lambda: scene.network.cut(3))
            found["cut mended"] = story.mend(lambda: scene.network.mend(3))
            found["kill noticed"] = story.disturb(lambda: scene.kill_worker(3))
            found["kill mended"] = story.mend(lambda: scene.start_worker(3) and None)
            found["steps to go"] = STEPS - story.step()
        assert run.wait(600) == 0
    finally:
        scene.network.mend(3)
        stop(run)
    found["events"] = {
        k: n for k, n in story.counted().items() if k in ("host", "fault", "respawn")
    }
    ours, theirs = (
        (out / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
        for out in (spread, inline)
    )
    assert ours == theirs, "the weights differ"
    return found


class Story:
    """What a run's directory tells while it goes on."""

    def __init__(self, out: Path, run: subprocess.Popen[str]) -> None:
        self.out, self.run = out, run
        self.hosts = 0

    def lines(self, name: str) -> list[Any]:
        file = self.out / "results" / name
        listed = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in listed if line.endswith("\n")]

    def step(self) -> int:
        return len(self.lines("metrics.jsonl"))

    def counted(self) -> dict[str, int]:
        kinds = [event["event"] for event in self.lines("events.jsonl")]
        return {kind: kinds.count(kind) for kind in kinds}

    def until_step(self, step: int) -> None:
        self._until(lambda: self.step() >= step, f"step {step}")

    def disturb(self, how: Callable[[], None]) -> float:
        """Seconds until the run says that a host is lost; it goes on without it."""
        seconds = self._heard(how, "lost")
        assert seconds < NOTICED_WITHIN, f"the run noticed after {seconds} s"
        self.until_step(self.step() + 2)
        return seconds

    def mend(self, how: Callable[[], None]) -> float:
        """Seconds until the run says that it is back."""
        seconds = self._heard(how, "back")
        self.until_step(self.step() + 2)
        return seconds

    def _heard(self, how: Callable[[], None], what: str) -> float:
        begun = time.monotonic()
        how()
        self._until(lambda: len(self._of(what)) > self.hosts // 2, what)
        self.hosts += 1
        return round(time.monotonic() - begun, 1)

    def _of(self, what: str) -> list[Any]:
        return [e for e in self.lines("events.jsonl") if e["event"] == "host" and e["how"] == what]

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + 120
        while not holds():
            assert self.run.poll() is None, f"the run ended before: {what}"
            assert time.monotonic() < until, f"not within 120 s: {what}"
            time.sleep(0.1)
