"""`glasshouse hosts`: train on several machines."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import (
    add_actions,
    add_command,
    add_config_files,
    add_json,
    add_run_directory,
    print_damage,
)

if TYPE_CHECKING:
    from rich.table import Table

    from glasshouse.api.hosts import RunForecast


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "hosts",
        None,
        "train on several machines",
        "docs/hosts.md explains the set-up.",
        ["glasshouse hosts check --config hosts.yaml", "glasshouse hosts worker --help"],
    )
    actions = add_actions(parser)
    _add_certificates(actions)
    _add_worker(actions)
    _add_check(actions)
    _add_forecast(actions)


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
    parser.add_argument("--certificates", metavar="DIR", help="the certificate folder of this host")
    parser.add_argument(
        "--plain", action="store_true",
        help="allow a tcp:// address: unencrypted, and anyone who reaches the port can run code",
    )  # fmt: skip
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
    parser.add_argument(
        "--megabytes", type=int, default=32, help="data to send in each direction (default 32)"
    )


def _add_forecast(actions: Any) -> None:
    parser = add_command(
        actions,
        "forecast",
        _forecast,
        "predict how many generators a run would benefit from",
        "Simulates the pipeline with the times that a run measured: seconds per step for 1 to 1,000 "
        "generators, and what limits them.",
        ["glasshouse hosts forecast runs/try --out forecast.png"],
    )
    add_run_directory(parser)
    parser.add_argument(
        "--max-offpolicy-steps", type=int, choices=range(5), help="default: as in the run"
    )
    parser.add_argument(
        "--chunk-spread", type=float, default=0.0, metavar="SD",
        help="standard deviation of the logarithm of a chunk's time, about 0.5 to 1 where lengths of "
        "completions have a long tail (default 0: all chunks take the same time)",
    )  # fmt: skip
    parser.add_argument("--learners", type=int, default=1, help="learner processes (default 1)")
    parser.add_argument(
        "--groups-per-step", type=int,
        help="groups per step, in chunks of the run's size (default: as in the run)",
    )  # fmt: skip
    parser.add_argument(
        "--per-host", type=int, metavar="N",
        help="generators per host (default: the cores of this machine; 0: all on one host)",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", type=float, default=200.0, metavar="MB/S",
        help="to another host, as printed by `glasshouse hosts check` (default 200)",
    )  # fmt: skip
    parser.add_argument("--out", help="also plot the curve into this image, .png or .svg")
    add_json(parser)


def _certificates(args: argparse.Namespace) -> None:
    from glasshouse.api.hosts import authority_key, create_certificates

    out = Path(args.out)
    folders = create_certificates(out, args.host, args.days)
    print(f"{len(folders)} certificates, valid for {args.days} days:")
    for host, folder in zip(dict.fromkeys(args.host), folders, strict=True):
        print(f"  {host}: copy {folder} there, readable only by you (scp -pr)")
    print(
        "on each host: glasshouse hosts worker --address tls://HOST:26600-26609 --certificates DIR"
    )
    print("on this host: hosts.certificates=DIR, the folder of this machine")
    print(f"{authority_key(out)} signs further hosts; do not copy it to any of them.")


def _worker(args: argparse.Namespace) -> int:
    from glasshouse.api.hosts import run_worker

    return run_worker(
        args.address,
        Path(args.certificates) if args.certificates else None,
        lambda text: print(text, flush=True),
        allow_plain=args.plain,
        listen_any=args.listen_any,
    )


def _check(args: argparse.Namespace) -> None:
    from glasshouse.api.hosts import check_hosts
    from glasshouse.config import load_config
    from glasshouse.console import make_console

    table, differences = check_hosts(load_config(args.config, args.overrides), args.megabytes)
    make_console().print(table)
    for sentence in differences:
        print(sentence, file=sys.stderr)


def _forecast(args: argparse.Namespace) -> None:
    from glasshouse.api.hosts import draw_forecast, forecast_run
    from glasshouse.console import make_console

    result = forecast_run(
        Path(args.run_directory), warn=print_damage, max_offpolicy_steps=args.max_offpolicy_steps,
        groups_per_step=args.groups_per_step, learners=args.learners, per_host=args.per_host,
        bandwidth=args.bandwidth, chunk_spread=args.chunk_spread,
    )  # fmt: skip
    if args.json:
        points = [{"generators": n, **asdict(point)} for n, point in result.points.items()]
        print(json.dumps({"measured": asdict(result.measured), "pipeline": asdict(result.pipeline),
                          "per_host": result.per_host, "forecast": points}, indent=2))  # fmt: skip
    else:
        console = make_console()
        console.print(_forecast_table(result))
        for sentence in filter(None, [*result.bottlenecks(), result.describe_sync()]):
            console.print(sentence)
    if args.out:
        draw_forecast(result, Path(args.out))


def _forecast_table(result: RunForecast) -> Table:
    from rich.table import Table

    measured, times = result.measured, result.measured.times
    rollouts = measured.groups_per_step * measured.group_size
    per_host = f"{result.per_host} generators per host" if result.per_host else "one host"
    table = Table(
        title=f"{measured.groups_per_step:,} groups of {measured.group_size} in {measured.chunks:,} "
        f"chunks per step, max_offpolicy_steps={result.pipeline.max_offpolicy_steps}, {per_host}\n"
        f"measured: chunk {times.chunk:.3f} s, learn {times.learn:.3f} s, "
        f"sync {times.sync:.4f} s, send {times.send:.4f} s per host",
        title_justify="left",
    )
    for column in ("generators", "s/step", "rollouts/s", "speed-up", "utilization", "bottleneck"):
        table.add_column(column, justify="left" if column == "bottleneck" else "right")
    first = next(iter(result.points.values())).seconds
    for n, point in result.points.items():
        table.add_row(
            f"{n:,}", f"{point.seconds:.3f}", f"{rollouts / point.seconds:,.0f}",
            f"{first / point.seconds:.2f}×", f"{point.generator_utilization:.0%}", point.limit,
        )  # fmt: skip
    return table
