"""Damages run directories at random and checks that no command gives a wrong result in silence.

    python -m proofs.bit_flips --flips 1000 --truncations 300
    python -m proofs.bit_flips --part 2/8 --slow-every 10  the second of eight parts of the same cases

Each case copies a finished or an unfinished run, flips one bit or cuts one file short, and runs every
command that reads a run (proofs/run_commands.py), in this process. The outcome of each command must be
one of

- the same as that of the intact run;
- different, and the damage is named on the screen (or, for `rollouts` and `check`, exit code 1);
- an error message with exit code 2, without a traceback.

A kill can cut the last line of `metrics.jsonl` and `events.jsonl` short, so a cut there is no damage: the outcome
must be that of the same run without this line.

A command that takes more than `CPU_LIMIT` seconds of CPU time, or `WALL_LIMIT` seconds in all, counts as a
hang. `make proofs ONLY=damage` runs it; tests/training/test_bit_flips.py runs a small part.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from proofs.resume import KillAtStep, run_child, train
from proofs.run_commands import (
    COMMANDS,
    HANG,
    SLOW_COMMANDS,
    TRACEBACK,
    Outcome,
    call,
    run_commands,
)

OVERRIDES = ("steps=4", "checkpoints.every=2", "evaluate.every=2", "checkpoints.save_best=false")
IGNORED = {".lock", "report.html", "id"}
"""Files that no command reads results from."""
LOGS = ("metrics.jsonl", "events.jsonl")
"""Files to which an unfinished run was about to add a line."""
NAMED = re.compile(
    r"damage|checksum|cannot be|is not valid|error:|not a run|starts over|differs|has lost|incomplete"
)


def find_fault(name: str, outcome: Outcome, expected: Outcome) -> str:
    """Describe what is wrong with the outcome of a command on a damaged run; empty if nothing."""
    if outcome.code == HANG:
        return "hang"
    if outcome.code == TRACEBACK:
        return "traceback"
    if (outcome.code, outcome.output) == (expected.code, expected.output):
        return ""
    if NAMED.search(outcome.output if name == "check" else outcome.errors):
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


def remove_last_line(file: Path) -> None:
    *lines, _ = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines))


def is_cut_in_last_line(file: Path, intact: Path) -> bool:
    """Whether the file has lost a part of its last line, or all of it, and nothing else."""
    data, whole = file.read_bytes(), intact.read_bytes()
    return whole.startswith(data) and whole.count(b"\n") - data.count(b"\n") == 1


def make_runs(scratch: Path) -> dict[str, Path]:
    """Train a finished run with monitor results, and an unfinished one, killed after step 3."""
    finished, unfinished = scratch / "finished", scratch / "unfinished"
    train(finished, None, OVERRIDES)
    assert run_child(train, unfinished, KillAtStep(3), OVERRIDES) == -signal.SIGKILL
    assert call("monitor", str(finished), "--first-and-last", "--problems", "4")[0] == 0
    return {"finished": finished, "unfinished": unfinished}


def check_damage(
    scratch: Path,
    flips: int,
    cases: Collection[int],
    *,
    seed: int,
    names: Collection[str],
    slow_every: int,
) -> list[str]:
    """Damage a copy of a run for each case and run the commands; returns the faults. Cases from
    `flips` on are truncations. Slow commands run after every `slow_every`-th case."""
    runs = make_runs(scratch)
    faults, counts = list[str](), Counter[str]()
    work = scratch / "work" / "run"  # always at this path, so that outputs can be compared
    expected: dict[tuple[str, str], dict[str, Outcome]] = {}
    """By run, and the log that lacks its last line."""
    for kind, log in [*((kind, "") for kind in runs), *(("unfinished", log) for log in LOGS)]:
        shutil.copytree(runs[kind], work)
        if log:
            remove_last_line(work / "results" / log)
        outcomes = expected[kind, log] = run_commands(work, names)
        shutil.rmtree(work)
        bad = {name: o.code for name, o in outcomes.items() if o.code != 0}
        assert not bad, (kind, log, bad, [outcomes[name].errors for name in bad])
    for done, number in enumerate(cases, 1):
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choice(sorted(runs))
        shutil.copytree(runs[kind], work)
        file = rng.choice(list_files(work))
        damage = (flip_bit if number < flips else cut_short)(file, rng)
        case = f"{kind} {file.relative_to(work)} {damage}"
        cut_log = (
            kind == "unfinished"
            and file.name in LOGS
            and is_cut_in_last_line(file, runs[kind] / file.relative_to(work))
        )
        intact = expected[kind, file.name if cut_log else ""]
        selected = [n for n in names if n not in SLOW_COMMANDS or number % slow_every == 0]
        for name, outcome in run_commands(work, selected).items():
            fault = find_fault(name, outcome, intact[name])
            if fault:
                faults.append(f"{fault}: {name} after {case}: {outcome.errors[-600:]}")
                print(faults[-1], flush=True)
            is_same = outcome.output == intact[name].output
            counts["faults" if fault else "same" if is_same else "named"] += 1
        shutil.rmtree(work)
        if done % 20 == 0 or done == len(cases):
            print(
                f"{done} cases, {counts.total()} commands: {counts['same']} with the intact result, "
                f"{counts['named']} that named the damage, {len(faults)} faults",
                flush=True,
            )
    return faults


def parse_part(text: str) -> tuple[int, int]:
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise argparse.ArgumentTypeError("write it as in 2/8")
    return int(number), int(total)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.bit_flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--truncations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="K/N")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument(
        "--slow-every", type=int, default=1, metavar="N", help=", ".join(SLOW_COMMANDS)
    )
    args = parser.parse_args(arguments)
    number, total = args.part
    cases = range(number - 1, args.flips + args.truncations, total)
    flips = sum(case < args.flips for case in cases)
    print(f"part {number} of {total}: {flips} bit flips and {len(cases) - flips} truncations")
    with tempfile.TemporaryDirectory() as scratch:
        faults = check_damage(
            Path(scratch), args.flips, cases, seed=args.seed, names=args.only,
            slow_every=args.slow_every,
        )  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
