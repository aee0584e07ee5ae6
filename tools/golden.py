"""Shows that this tree computes the numbers of an earlier commit, bit for bit. Both run on this machine.

    python tools/golden.py                     # all jobs, compared with BASE
    python tools/golden.py --base COMMIT study library

A job is a process that runs commands of `glasshouse`, or functions of the library, with the code of one tree:
tools/golden.yaml lists the commands, tools/golden_probes.py runs them. Jobs write below build/golden; what those of
the commit wrote is kept. Then the outputs of both trees are read and compared. What the commit has must be there and
equal, also the length of a list; what only this tree has is counted. Exit code 1 if something differs.

After an intended change of a name or a format, add it to tools/golden.yaml, or teach a reader both.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

BASE = "a7ff5a9"
"""A commit whose forward pass in torch has the operations of torch: LoRA, top-k and entropy round as now."""
ROOT = Path(__file__).resolve().parent.parent
SETTINGS = yaml.safe_load((ROOT / "tools/golden.yaml").read_text())
PROBES = ROOT / "tools/golden_probes.py"
SHOWN = 8
"""Differences printed per section, one of each last key."""
TIMEOUT = 1200
"""Seconds per job."""


# --- reading what the jobs wrote -----------------------------------------------------------------------


def read_outputs(out: Path, jobs: list[str]) -> dict[str, dict[str, Any]]:
    """Section → file → its values, in a form that both trees share."""
    sections: dict[str, dict[str, Any]] = {}
    for file in sorted(file for job in jobs for file in (out / job).rglob("*") if file.is_file()):
        in_study = file.is_relative_to(out / "study")
        if file.suffix == ".safetensors":
            section = "optimizer" if file.name.startswith("learner") else "weights"
            value: Any = hash_tensors(file)
        elif file.suffix == ".rows":
            section, value = "rollouts", read_rollouts(file)
        elif file.name == "metrics.jsonl" and not in_study:
            section, value = "metrics", read_lines(file)
        elif file.name == "events.jsonl" and not in_study:
            events = read_lines(file)
            section, value = "evaluations", [e for e in events if e["event"] == "evaluation"]
        elif file.name == "eval.out":
            section, value = "evaluations", json.loads(file.read_text())
        elif file.name == "monitor.json" and not in_study:
            section, value = "monitor", read_monitor(json.loads(file.read_text()))
        elif file.suffix == ".out" and (file.parent.name == "measure" or file.stem == "measured"):
            section, value = "measure", read_measure(json.loads(file.read_text()))
        elif file.name == "table.jsonl":
            section, value = "study", read_lines(file)
        elif file.name == "study.json":
            section, value = "study", json.loads(file.read_text())
        elif file.parent == out / "library" and file.suffix == ".json":
            sections[file.stem] = json.loads(file.read_text())
            continue
        else:
            continue
        sections.setdefault(section, {})[str(file.relative_to(out))] = value
    return sections


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def hash_tensors(file: Path) -> dict[str, str]:
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    hashes = {}
    for name, tensor in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = tensor["data_offsets"]
            digest = hashlib.sha256(data[start + first : start + end]).hexdigest()[:16]
            hashes[name] = f"{tensor['dtype']} {tensor['shape']} {digest}"
    return hashes


def read_rollouts(file: Path) -> list[dict[str, Any]]:
    names = SETTINGS["renamed"]["rollout"]
    rows = [{names.get(k, k): value for k, value in row.items()} for row in read_lines(file)]
    for row in rows:
        if row.pop("kind", "") == "discarded":  # now the split itself
            row["split"] = "discarded"
    order = ("step", "split", "group", "sample", "text")
    return sorted(rows, key=lambda row: [row[key] for key in order])


def read_monitor(results: dict[str, Any]) -> dict[str, Any]:
    """Values with intervals and tests of `glasshouse monitor`, by checkpoint."""
    checkpoints = results["checkpoints" if "checkpoints" in results else "subjects"]
    values = {c["name"]: dict(list_measures(c["measures"])) for c in checkpoints}
    return values | {"change": dict(list_measures(results["change"]["measures"]))}


def read_measure(results: dict[str, Any]) -> dict[str, Any]:
    """Values of `glasshouse measure`; its intervals and tests are not compared, nor counts of undefined ones."""
    return {
        f"checkpoint {cell['checkpoint']}, seed {cell['seed']}": {
            name: [
                measure[key] for key in ("value", "n", "left_out") if measure["value"] is not None
            ]
            for name, measure in list_measures(cell["measures"])
        }
        for cell in results["cells"]
    }


def list_measures(entries: dict[str, Any], group: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, values) of measures that may be in groups."""
    for name, entry in entries.items():
        names = ("value", "n", "left_out", "low", "high", "units")
        if "measure" in entry:  # the form of earlier commits
            values = {**entry["measure"], **(entry["interval"] or {})}
            null = entry["null"] or {}
            numbers = {key: values.get(key) for key in names} | {"null": null.get("mean")}
            yield group + name, {**numbers, "p": null.get("p"), "ceiling": entry["ceiling"]}
        elif "value" in entry:
            yield group + name, {key: entry[key] for key in (*names, "null", "p", "ceiling")}
        else:
            yield from list_measures(entry, f"{group}{name}.")


# --- comparing -----------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """What `compare` found; a difference is (path, reference, now)."""

    equal: int = 0
    new: int = 0
    differences: list[tuple[str, Any, Any]] = field(default_factory=list)


def compare(reference: Any, now: Any, path: str, found: Comparison) -> Comparison:
    """Compare nested values. A key that only `now` has is new, not a difference."""
    if any(fnmatch(path, pattern) for pattern in SETTINGS["ignored"]):
        return found
    if isinstance(reference, dict) and isinstance(now, dict):
        found.new += len(now.keys() - reference.keys())
        for key, value in reference.items():
            compare(value, now.get(key, "(missing)"), f"{path}/{key}", found)
    elif isinstance(reference, list) and isinstance(now, list) and len(reference) == len(now):
        for number, (old, new) in enumerate(zip(reference, now, strict=True)):
            compare(old, new, f"{path}/{number}", found)
    elif reference == now or (reference != reference and now != now):
        found.equal += 1
    else:
        found.differences.append((path, reference, now))
    return found


def report(reference: dict[str, Any], now: dict[str, Any]) -> int:
    """Print one line per section, and return the number of differences."""
    total = 0
    for section, values in reference.items():
        found = compare(values, now.get(section, {}), section, Comparison())
        total += len(found.differences)
        verdict = f"{len(found.differences):,} DIFFER" if found.differences else "equal"
        added = f"; {found.new:,} new" * (found.new > 0)
        print(f"{section:<12} {found.equal:>9,} values  {verdict}{added}")
        by_key: dict[str, list[tuple[str, Any, Any]]] = {}
        for difference in found.differences:
            by_key.setdefault(difference[0].rstrip("/0123456789").split("/")[-1], []).append(
                difference
            )
        for alike in list(by_key.values())[:SHOWN]:
            path, old, new = alike[0]
            print(f"    {path}{f' and {len(alike) - 1:,} more' * (len(alike) > 1)}")
            print(f"      reference {shorten(old)}\n      now       {shorten(new)}")
    return total


def shorten(value: Any) -> str:
    text = f"a list of {len(value)}" if isinstance(value, list) else json.dumps(value)
    return text if len(text) < 100 else text[:97] + "…"


# --- running -------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = list(SETTINGS["jobs"])
    parser.add_argument("jobs", nargs="*", help=f"only these: {', '.join(known)}")
    parser.add_argument("--base", default=BASE, help="the commit (default: %(default)s)")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build/golden", help="where its outputs are kept"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.jobs) - set(known):
        parser.error(f"there is no job {min(unknown)}; jobs: {', '.join(known)}")
    jobs = [job for job in known if job in arguments.jobs or not arguments.jobs]
    revision = ["git", "rev-parse", "--verify", "--short=12", f"{arguments.base}^{{commit}}"]
    commit = subprocess.check_output(revision, cwd=ROOT, text=True).strip()
    ref = arguments.cache.resolve() / commit / "tree"
    extract_tree(commit, ref)

    started = time.monotonic()
    reference, current = ref.with_name(f"out-{hash_scenario()}"), ROOT / "build/golden/now"
    work = [(job, ref, reference) for job in jobs if not (reference / f"{job}.done").exists()]
    work += [(job, ROOT, current) for job in jobs]
    work.sort(key=lambda item: jobs.index(item[0]))
    print(f"{len(work)} jobs, two at a time", flush=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        failures = sum(pool.map(lambda item: run_job(*item, ref), work))
    differences = report(read_outputs(reference, jobs), read_outputs(current, jobs))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, cpu = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    print(
        f"{differences:,} differences from {commit}, {failures} jobs failed; {seconds:.0f} s, CPU {cpu:.0f} s"
    )
    return int(bool(differences or failures))


def hash_scenario() -> str:
    """Changes with everything that decides what a job writes."""
    names = {kind: names for kind, names in SETTINGS["renamed"].items() if kind != "rollout"}
    settings = {**SETTINGS, "renamed": names, "ignored": []}
    return hashlib.sha256(PROBES.read_bytes() + repr(settings).encode()).hexdigest()[:8]


def extract_tree(commit: str, folder: Path) -> None:
    if folder.exists():
        return
    partial = folder.with_name(f"tree.{os.getpid()}")
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(partial, filter="data")
    partial.rename(folder)


def run_job(job: str, tree: Path, out: Path, ref: Path) -> bool:
    """Run a job in a process of its own; returns whether it failed."""
    folder, done, log = (out / f"{job}{suffix}" for suffix in ("", ".done", ".log"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tree / "shared"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, PROBES, job, tree, ref, folder]
    started = time.monotonic()
    with open(log, "w") as file:
        code = subprocess.run(
            command, cwd=tree, env=environment, stdout=file, stderr=file, timeout=TIMEOUT
        ).returncode
    which = "now" if tree == ROOT else "reference"
    state = "FAILED" if code else "done"
    print(f"{which:<10}{job:<12}{state} in {time.monotonic() - started:.0f} s", flush=True)
    if code:
        print("\n".join(f"    {line}" for line in [*log.read_text().splitlines()[-6:], log]))
    else:
        done.touch()
    return bool(code)


if __name__ == "__main__":
    sys.exit(main())
