"""The command `glasshouse`, also `python -m glasshouse`. The command line is imported inside `main`, so that Ctrl-C
during the import ends the command without a traceback."""

from __future__ import annotations

import atexit
import gc
import sys


def main() -> int:
    """Runs one command and returns its exit code."""
    gc.set_threshold(20_000)  # the imports create 100,000 objects that stay: search them less often
    atexit.register(keep_objects_at_exit)
    try:
        from glasshouse.cli.app import main as run_cli
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run_cli()


def keep_objects_at_exit() -> None:
    """Do not search them again at the end, except with torch: triton prints what is not freed."""
    if "torch" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    raise SystemExit(main())
