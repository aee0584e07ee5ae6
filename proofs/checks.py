"""Runs the checks of a proof one after another and reports what they measured."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Check = Callable[[Path], Mapping[str, Any]]
"""Gets an empty folder, returns measurements, and raises if what it checks does not hold."""


def run_checks(
    checks: Mapping[str, Check], names: Sequence[str] = (), report: Path | None = None, **facts: Any
) -> int:
    """Run the named checks, or all; one that fails does not stop the others. Returns the exit code.

    Example: `run_checks({"equality": compare, "killed": kill}, sys.argv[1:])`
    """
    if unknown := set(names) - checks.keys():
        print(f"error: there is no check {min(unknown)}; {', '.join(checks)}", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    for name in names or checks:
        started = time.monotonic()
        print(f"{name} … ", end="", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="glasshouse-proof-") as folder:
                result = {"name": name, "passed": True, **checks[name](Path(folder))}
        except Exception as error:
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            result = {"name": name, "passed": False, "error": f"{type(error).__name__}: {error}"}
        result["seconds"] = round(time.monotonic() - started, 1)
        print("passed" if result["passed"] else "FAILED", json.dumps(result), flush=True)
        results.append(result)
        if report:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(json.dumps({**facts, "checks": results}, indent=2) + "\n")
    passed = sum(result["passed"] for result in results)
    print(f"{passed} of {len(results)} checks passed" + (f"; {report}" if report else ""))
    return 0 if passed == len(results) else 1
