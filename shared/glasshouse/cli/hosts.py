"""`glasshouse hosts`: train on several machines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_actions, add_command, add_config_files


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "hosts",
        None,
        "train on several machines (not run on hardware)",
        "docs/scale.md explains the set-up. It ran on machines in network namespaces, not yet on several "
        "real ones.",
        ["glasshouse hosts check --config hosts.yaml", "glasshouse hosts worker --help"],
    )
    actions = add_actions(parser)
    _add_certificates(actions)
    _add_worker(actions)
    _add_check(actions)


def _add_certificates(actions: Any) -> None:
    parser = add_command(
        actions,
        "certificates",
        _certificates,
        "create a TLS certificate for every host",
        "Creates a certificate authority and one folder per host (ca.pem, host.pem, host.key) for mutual "
        "TLS. If the folder already holds an authority, it signs the new hosts. Never overwrites a file.",
        ["glasshouse hosts certificates --out certs --host node1 --host 10.0.0.7"],
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME/IP",
        help="a participating machine, as the others address it; repeat it, include this machine",
    )  # fmt: skip
    parser.add_argument("--days", type=int, default=365, help="validity (default 365)")


def _add_worker(actions: Any) -> None:
    parser = add_command(
        actions,
        "worker",
        _worker,
        "offer this machine as a host for runs",
        "Listens until it is stopped with Ctrl-C or SIGTERM, and then leaves nothing behind. With a range "
        "of ports, each start takes the next port of the range, and a run reconnects to it.",
        ["glasshouse hosts worker --address tls://node1:26600-26609 --certificates certs/node1"],
    )
    parser.add_argument(
        "--address", required=True, metavar="tls://HOST:PORT[-LAST]",
        help="the address to listen on, as the other machines reach it",
    )  # fmt: skip
    parser.add_argument(
        "--certificates", required=True, metavar="DIR", help="the certificate folder of this host"
    )
    parser.add_argument(
        "--listen-any", action="store_true",
        help="allow an address that the certificate does not name, or 0.0.0.0 for all networks",
    )  # fmt: skip


def _add_check(actions: Any) -> None:
    parser = add_command(
        actions,
        "check",
        _check,
        "connect to the hosts and measure latency and bandwidth",
        "Connects to every host of the configuration, starts a process there, measures, and leaves nothing "
        "behind.",
        ["glasshouse hosts check --config hosts.yaml"],
    )
    parser.add_overrides("as for glasshouse train")
    add_config_files(parser)


def _certificates(args: argparse.Namespace) -> None:
    from glasshouse.distributed.hosts.certificates import CA_KEY, create_certificates

    out = Path(args.out)
    folders = create_certificates(out, args.host, args.days)
    print(f"{len(folders)} certificates, valid for {args.days} days:")
    for host, folder in zip(dict.fromkeys(args.host), folders, strict=True):
        print(f"  {host}: copy {folder} there, readable only by you (scp -pr)")
    print(
        "on each host: glasshouse hosts worker --address tls://HOST:26600-26609 --certificates DIR"
    )
    print("on this host: hosts.certificates=DIR, the folder of this machine")
    print(f"{out / CA_KEY} signs further hosts; do not copy it to any of them.")


def _worker(args: argparse.Namespace) -> int:
    from glasshouse.distributed.hosts.address import Address
    from glasshouse.distributed.hosts.worker import run_worker

    return run_worker(
        Address.parse(args.address),
        Path(args.certificates),
        lambda text: print(text, flush=True),
        listen_any=args.listen_any,
    )


def _check(args: argparse.Namespace) -> None:
    from glasshouse.config.loading import load_config
    from glasshouse.distributed.hosts.host_pool import HostPool

    with HostPool(load_config(args.config, args.overrides).hosts) as hosts:
        from glasshouse.distributed.hosts.host_check import check_hosts  # imports Monarch

        for sentence in check_hosts(hosts):
            print(sentence)
