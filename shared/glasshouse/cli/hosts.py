"""`glasshouse hosts …`: certificates, worker, check, forecast. Part of the command line: like `cli`,
it parses arguments and calls rooms, which it imports only when a command runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Hang the `hosts` commands into the command line."""
    parser = commands.add_parser("hosts", help="run on several machines")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _certificates(actions)
    _worker(actions)
    _check(actions)
    _forecast(actions)


def _certificates(actions: Any) -> None:
    parser = actions.add_parser(
        "certificates",
        help="make a certificate for every host",
        description="Makes an authority and a folder for each host (ca.pem, host.pem, host.key), for "
        "mutual TLS. With the authority of an earlier call in the same place, adds hosts to it. "
        "Nothing is overwritten.",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where they go")
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME/IP",
        help="a machine that takes part, as the others address it; repeat it, name this one too",
    )  # fmt: skip
    parser.add_argument("--days", type=int, default=365, help="valid for so long (default 365)")
    parser.set_defaults(run=_run_certificates)


def _run_certificates(args: argparse.Namespace) -> None:
    from glasshouse.backends.hosts.certificates import AUTHORITY_KEY, make

    out = Path(args.out)
    folders = make(out, args.host, args.days)
    print(f"{len(folders)} certificates, valid for {args.days} days:")
    for host, folder in zip(dict.fromkeys(args.host), folders, strict=True):
        print(f"  {host}: copy {folder} to it, readable by you alone (scp -pr)")
    print("There: glasshouse hosts worker --address tls://HOST:26600-26609 --certificates FOLDER")
    print("Here:  hosts.certificates=FOLDER, the folder of this machine")
    print(f"{out / AUTHORITY_KEY} makes further hosts; it belongs on none of them.")


def _worker(actions: Any) -> None:
    parser = actions.add_parser(
        "worker",
        help="make this machine a host of a run",
        description="Listens until it is stopped (Ctrl-C or SIGTERM); nothing is left then. With a "
        "range of ports it takes the next one each time it starts, and is found again.",
    )
    parser.add_argument(
        "--address", required=True, metavar="tls://HOST:PORT[-LAST]",
        help="where to listen, as the others address this machine",
    )  # fmt: skip
    parser.add_argument("--certificates", metavar="DIR", help="this host's folder")
    parser.add_argument(
        "--plain", action="store_true",
        help="allow a tcp:// address: no encryption, and whoever reaches the port can run code",
    )  # fmt: skip
    parser.set_defaults(run=_run_worker)


def _run_worker(args: argparse.Namespace) -> int:
    from glasshouse.backends.hosts.address import Address
    from glasshouse.backends.hosts.worker import run_worker
    from glasshouse.errors import ConfigError

    address = Address.parse(args.address)
    if address.scheme == "tcp" and not args.plain:
        raise ConfigError(
            f"{address} is plain TCP: whoever reaches the port can run code here. Write tls://, or ask "
            "for it by name: --plain."
        )
    certificates = Path(args.certificates) if args.certificates else None

    def say(text: str) -> None:
        print(text, flush=True)

    return run_worker(address, certificates, say)


def _check(actions: Any) -> None:
    parser = actions.add_parser(
        "check",
        help="attach to the hosts and measure the way to them",
        description="Attaches to every host of the configuration, starts a process there, measures, "
        "and leaves nothing behind.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for train")
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="as for train"
    )
    parser.add_argument(
        "--megabytes", type=int, default=32, help="how much to send each way (default 32)"
    )
    parser.set_defaults(run=_run_check)


def _run_check(args: argparse.Namespace) -> int:
    from rich.console import Console

    from glasshouse import config
    from glasshouse.backends.hosts import open_hosts
    from glasshouse.errors import ConfigError

    if args.megabytes < 1:
        raise ConfigError("--megabytes must be above 0.")
    with open_hosts(config.load(args.config, args.overrides).hosts) as hosts:
        from glasshouse.backends.hosts.host_check import check_hosts, differences, table

        found = check_hosts(hosts, args.megabytes)
    Console(highlight=False).print(table(found))
    for sentence in differences(found):
        print(sentence, file=sys.stderr)
    return 0


def _forecast(actions: Any) -> None:
    parser = actions.add_parser(
        "forecast",
        help="how many generators would a run gain from?",
        description="From the times a run measured: seconds a step for 1 to 1,000 generators, and "
        "what limits it, by a simulation of the pipeline.",
    )
    parser.add_argument("run_directory", metavar="RUN", help="a run directory")
    parser.add_argument("--lag", type=int, choices=[0, 1], help="default: the run's own")
    parser.add_argument("--learners", type=int, default=1, help="learner processes (default 1)")
    parser.add_argument(
        "--problems", type=int, help="problems a step (default: the run's own), in the run's chunks"
    )
    parser.add_argument(
        "--per-host", type=int, metavar="N",
        help="generators a host (default: this machine's cores; 0: all on one)",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", type=float, default=200.0, metavar="MB/S",
        help="to another host, as `glasshouse hosts check` says (default 200)",
    )  # fmt: skip
    parser.add_argument("--out", help="draw the curve into this picture, .png or .svg")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=_run_forecast)


def _run_forecast(args: argparse.Namespace) -> None:
    from glasshouse.plan.forecast import show

    show(
        Path(args.run_directory), lag=args.lag, problems=args.problems, learners=args.learners, per_host=args.per_host,
        bandwidth=args.bandwidth, out=Path(args.out) if args.out else None, as_json=args.json,
    )  # fmt: skip
