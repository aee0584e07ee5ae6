"""Runs the slow proofs one after another and prints a summary: `make proofs [ONLY="resume hosts"]`.

Each proof is a make target and runs in its own process, with its output in build/proofs/NAME.log.
A failed proof does not stop the others. Exit code 0 if all pass, 1 if one fails, 2 for an unknown name.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "proofs"
PROOFS = {
    "losses": ("compare-trl", 1),
    "coverage": ("coverage-proof", 1),
    "discovery": ("discovery-proof", 1),
    "generators": ("monarch-kills", 5),
    "monarch": ("monarch-proof", 5),
    "fsdp": ("fsdp-proof", 10),
    "plan": ("plan-proof", 1),
    "trackers": ("track-proof", 5),
    "hosts": ("hosts-proof", 5),
    "view": ("view-proof", 10),
    "data": ("data-million", 10),
    "measure": ("measure-million", 5),
    "models": ("packaged-models-proof", 5),
    "wheel": ("wheel-proof", 10),
    "parser": ("parser-proof", 15),
    "example": ("example-seeds", 10),
    "image": ("image-proof", 10),
    "resume": ("resume-proof", 15),
    "damage": ("bit-flip-proof", 60),
    "control": ("control", 15),
    "learning": ("learn-all", 30),
}
"""Name: make target, and minutes on two quiet cores."""


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PROOFS]
    if unknown:
        print(
            f"error: There is no proof {unknown[0]!r}; ONLY takes: {' '.join(PROOFS)}.",
            file=sys.stderr,
        )
        return 2
    selected = names or list(PROOFS)
    LOGS.mkdir(parents=True, exist_ok=True)
    minutes = sum(PROOFS[name][1] for name in selected)
    print(f"{len(selected)} proofs, about {minutes} minutes on two quiet cores; logs in {LOGS}")
    results = list[tuple[str, bool, float]]()
    for number, name in enumerate(selected, 1):
        target, minutes = PROOFS[name]
        label = f"[{number}/{len(selected)}] {name} (make {target}, about {minutes} min) … "
        print(label, end="", flush=True)
        passed, seconds = run_proof(name, target)
        print(f"{'passed' if passed else 'FAILED'} after {format_time(seconds)}", flush=True)
        if not passed:
            print("\n".join(f"    {line}" for line in read_tail(name)))
        results.append((name, passed, seconds))
    print(f"\n{'proof':<12} {'result':<8} {'time':>8}")
    for name, passed, seconds in results:
        print(f"{name:<12} {'passed' if passed else 'FAILED':<8} {format_time(seconds):>8}")
    return 0 if all(passed for _, passed, _ in results) else 1


def run_proof(name: str, target: str) -> tuple[bool, float]:
    """Run the make target; returns whether it passed and its seconds."""
    started = time.monotonic()
    with open(LOGS / f"{name}.log", "w") as log:
        process = subprocess.run(
            ["make", "--no-print-directory", target], cwd=ROOT, stdout=log, stderr=log, check=False
        )
    return process.returncode == 0, time.monotonic() - started


def read_tail(name: str) -> list[str]:
    """The last lines of the log of a proof."""
    return (LOGS / f"{name}.log").read_text(errors="replace").splitlines()[-5:]


def format_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
