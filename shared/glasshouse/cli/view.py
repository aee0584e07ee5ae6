"""`glasshouse view`: the live page of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_command


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "view",
        _view,
        "show runs in the browser, live while they train",
        "Serves run directories, a folder of them or a study: curves, rollouts with filters and search, one "
        "problem across checkpoints, suspicious rollouts, comparisons, and how a run spends its time. Reads "
        "only; makes no request to other machines. Listens on this machine only unless --host says "
        "otherwise, and then requires a token. Needs the extra `view`.",
        [
            "glasshouse view",
            "glasshouse view runs/sum_digits-grpo-1 --open",
            "glasshouse view runs/studies/leaked_hint --port 0",
        ],
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", default=["runs"],
        help="run directories, folders of them, or studies (default: runs)",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8420, help="the port (default 8420, or a free one; 0: any)"
    )
    parser.add_argument(
        "--token",
        default="",
        help="require this token (default: a random one if --host is not loopback)",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="answer requests for this host name as well, as behind a proxy; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--cache", help="the folder for indexes of rollouts (default ~/.cache/glasshouse/view)"
    )


def _view(args: argparse.Namespace) -> None:
    from glasshouse.cli.applications import view_runs

    view_runs(
        [Path(run) for run in args.runs],
        host=args.host,
        port=args.port,
        token=args.token,
        allow_hosts=args.allow_host,
        cache=Path(args.cache) if args.cache else None,
        open_browser=args.open,
    )
