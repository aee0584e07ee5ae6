"""Damages run directories at random and checks that no command gives a wrong result in silence.

    python -m proofs.bit_flips --flips 1000 --truncations 300

Each case copies a finished or an unfinished run, flips one bit or cuts one file short, and runs every
command that reads a run, in this process. The output of each command must be one of

- the same as that of the intact run;
- different, and the damage is named on the screen (or, for `rollouts` and `check`, exit code 1);
- an error message with exit code 2, without a traceback.

A command that takes more than `CPU_LIMIT` seconds of CPU time, or `WALL_LIMIT` seconds in all, counts as a
hang. `make bit-flip-proof` runs it; tests/training/test_bit_flips.py runs a small part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glasshouse.cli import main as run_cli
from glasshouse.errors import RunDataError
from glasshouse.store.run_directory import load_summary
from proofs.resume import KillAtStep, load_result, run_child, train

OVERRIDES = ("steps=4", "checkpoints.every=2", "evaluate.every=2", "checkpoints.save_best=false")
CPU_LIMIT = 60
WALL_LIMIT = 900
"""Long, so that other processes on the machine do not make a command look as if it hung."""
IGNORED = {".lock", "report.html", "id"}
"""Files that no command reads results from."""
NAMED = re.compile(r"damage|checksum|cannot be|is not valid|error:|not a run|starts over|differs")


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    """What the command printed on stdout, and the results that it wrote."""
    errors: str


class Hang(Exception):
    """A command exceeded a time limit."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def raise_hang(*_: object) -> None:
        raise Hang

    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, CPU_LIMIT),
        (signal.SIGALRM, signal.ITIMER_REAL, WALL_LIMIT),
    )
    previous = [signal.signal(number, raise_hang) for number, _, _ in limits]
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def call(*arguments: str) -> tuple[int, str, str]:
    """Run one command; a traceback has exit code -1, a hang -2."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            with time_limit():
                code = run_cli(list(arguments))
        except Hang:
            code = -2
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            code = -1
    return code, out.getvalue(), errors.getvalue()


def run_commands(run: Path, with_monitor: bool = False) -> dict[str, Outcome]:
    """Run every command on copies of a run; `resume` is last, since it changes the run."""
    outcomes = {}
    last = max((run / "checkpoints").glob("step-*"), key=lambda path: path.name)
    commands = {
        "check": ["check", str(run)],
        "checkpoints": ["checkpoints", str(run), "--json"],
        "rollouts": ["rollouts", str(run), "--json"],
        "eval": ["eval", str(last), "evaluate.problems=4", "--json"],
        "report": ["report", str(run)],
    }
    if with_monitor:
        commands["monitor"] = ["monitor", str(run), "--ends", "--problems", "4", "--json"]
    for name, command in commands.items():
        code, output, errors = call(*command)
        if name == "report":
            page = run / "results" / "report.html"
            output = strip_images(page.read_text()) if code == 0 and page.exists() else ""
            page.unlink(missing_ok=True)
        outcomes[name] = Outcome(code, output, errors)
    code, output, errors = call("resume", str(run))
    outcomes["resume"] = Outcome(code, describe_result(run) if code == 0 else "", output + errors)
    return outcomes


def strip_images(page: str) -> str:
    """A page without its figures, whose ids differ between processes."""
    return re.sub(r"<svg.*?</svg>|data:image[^\"]*", "", page, flags=re.DOTALL)


def describe_result(run: Path) -> str:
    """Weights, metrics and rollouts as one text, without times."""
    try:
        result = load_result(run)
    except RunDataError as error:  # damage in the log stays; resume must have named it
        return str(error)
    summary = load_summary(run) or {}
    values = {key: summary.get(key) for key in ("before", "after", "steps_done")}
    return json.dumps({name: repr(value) for name, value in result.items()} | {"summary": values})


def find_fault(name: str, outcome: Outcome, expected: Outcome) -> str:
    """Describe what is wrong with the outcome of a command on a damaged run; empty if nothing."""
    if outcome.code == -2:
        return "hang"
    if outcome.code == -1:
        return "traceback"
    if (outcome.code, outcome.output) == (expected.code, expected.output):
        return ""
    if NAMED.search(outcome.errors) or (name == "check" and "damage" in outcome.output):
        return ""
    if name == "checkpoints" and outcome.code == 1:
        return ""
    return "silent"


def list_files(run: Path) -> list[Path]:
    return sorted(
        path
        for path in run.rglob("*")
        if path.is_file() and path.name not in IGNORED and path.stat().st_size
    )


def flip_bit(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return f"bit {bit}"


def cut_short(file: Path, rng: random.Random) -> str:
    size = rng.randrange(file.stat().st_size)
    os.truncate(file, size)
    return f"cut to {size} bytes"


def make_runs(scratch: Path) -> dict[str, Path]:
    """Train a finished run with monitor results, and an unfinished one, killed after step 3."""
    finished, unfinished = scratch / "finished", scratch / "unfinished"
    train(finished, None, OVERRIDES)
    assert run_child(train, unfinished, KillAtStep(3), OVERRIDES) == -signal.SIGKILL
    assert call("monitor", str(finished), "--ends", "--problems", "4")[0] == 0
    return {"finished": finished, "unfinished": unfinished}


def check_damage(
    scratch: Path, flips: int, truncations: int, seed: int = 0, monitor_every: int = 25
) -> list[str]:
    """Damage copies of the runs and run every command; returns the faults."""
    runs = make_runs(scratch)
    rng, faults, counts = random.Random(seed), list[str](), Counter[str]()
    work = scratch / "work" / "run"  # always at this path, so that outputs can be compared
    expected = {}
    for kind, source in runs.items():
        shutil.copytree(source, work)
        expected[kind] = run_commands(work, with_monitor=True)
        shutil.rmtree(work)
        bad = {name: o.code for name, o in expected[kind].items() if o.code != 0}
        assert not bad, (kind, bad, [expected[kind][name].errors for name in bad])
    for number in range(flips + truncations):
        kind = rng.choice(sorted(runs))
        shutil.copytree(runs[kind], work)
        file = rng.choice(list_files(work))
        damage = (flip_bit if number < flips else cut_short)(file, rng)
        case = f"{kind} {file.relative_to(work)} {damage}"
        for name, outcome in run_commands(work, number % monitor_every == 0).items():
            counts["commands"] += 1
            fault = find_fault(name, outcome, expected[kind][name])
            if fault:
                faults.append(f"{fault}: {name} after {case}: {outcome.errors[-600:]}")
                print(faults[-1], flush=True)
            counts[
                "same" if outcome.output == expected[kind][name].output else "named"
            ] += not fault
        shutil.rmtree(work)
        if number % 50 == 49:
            print(f"{number + 1} cases, {dict(counts)}, {len(faults)} faults", flush=True)
    print(
        f"{flips} bit flips and {truncations} truncations, {counts['commands']} commands: "
        f"{counts['same']} with the intact result, {counts['named']} that named the damage, "
        f"{len(faults)} faults"
    )
    return faults


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.bit_flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--truncations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        return 1 if check_damage(Path(scratch), args.flips, args.truncations, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
