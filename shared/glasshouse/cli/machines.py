"""`glasshouse plan` and `hosts`: what a run needs, and several machines."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.parser import CONFIG, command, command_group, print_safe

if TYPE_CHECKING:
    from glasshouse.training.layout import Plan


@command(
    "plan",
    "estimate the memory of a run, and suggest a layout that fits",
    {
        "key=value": "as for glasshouse train",
        **CONFIG,
        "--gpu NxGB": "GPUs, as in 1x24GB or 8x80GB (default: the CPU of this machine)",
        "--prompt-tokens N": "length of a prompt (default: of the task's prompts; 256 without a tokenizer)",
    },
    "Reads the model's configuration and tokenizer, not its weights, so that a model of any size can be "
    "planned on any machine. A folder with only a config.json is enough. docs/scale.md explains the figures.",
    examples=[
        "glasshouse plan --config training/example.rl/config.yaml",
        'glasshouse plan model=Qwen/Qwen3-4B --gpu "1x80GB"',
    ],
)
def _plan(args: argparse.Namespace) -> None:
    from glasshouse.config.loading import load_config
    from glasshouse.terminal import make_console

    config = load_config(args.config, args.overrides)
    from glasshouse.training.layout import plan_run  # imports torch

    with make_console(stderr=True).status("Estimating memory and looking for a layout …"):
        result = plan_run(config, gpu=args.gpu, prompt_tokens=args.prompt_tokens)
    print_safe(*_describe_plan(result, config.generate.engine))
    if result.layout.fits:
        print(f"\n# suggested layout; paste into the config file\n{result.layout.lines()}", end="")


def _describe_plan(result: Plan, engine: str) -> Iterator[str]:
    device, largest = result.device, max(result.processes, key=lambda process: process.peak)
    yield (
        f"{result.model}: {result.parameters / 1e6:,.1f} million parameters; prompts of {result.prompt_tokens} tokens; "
        f"{device.count} × {device.name}, {device.usable_bytes / 1e9:.1f} GB usable"
    )
    yield "peak memory of the configuration as it is, in GB:"
    for process in result.processes:
        name = process.role if process.count == 1 else f"{process.role} (each of {process.count})"
        yield from (f"  {name}: {process.describe(phase)}" for phase in process.phases)
    verdict = "It fits" if result.fits else "It does not fit"
    yield f"{verdict}: the {largest.role} needs {largest.peak / 1e9:.3g} GB in the phase {largest.peak_phase}."
    if not result.layout.fits:
        last = max(result.layout.processes, key=lambda process: process.peak)
        is_heavy_generator = last.role == "generator" and engine == "torch"
        yield (
            f"No layout fits: the last that was tried needs {last.peak / 1e9:.1f} GB for the {last.role}. Use "
            f"a device with more memory, {'generate.engine=vllm, ' if is_heavy_generator else ''}a smaller model, "
            "or a smaller generate.max_tokens."
        )


command_group(
    "hosts",
    "train on several machines (not run on hardware)",
    "docs/scale.md explains the set-up. It ran on machines in network namespaces, not yet on several "
    "real ones.",
    examples=["glasshouse hosts check --config hosts.yaml", "glasshouse hosts worker --help"],
)


@command(
    "hosts certificates",
    "create a TLS certificate for every host",
    {
        "--out DIR!": "the folder to write",
        "--host NAME/IP...": "a participating machine, as the others address it; repeat it, include this machine",
        "--days N = 365": "validity",
    },
    "Creates a certificate authority and one folder per host (ca.pem, host.pem, host.key) for mutual "
    "TLS. If the folder already holds an authority, it signs the new hosts. Never overwrites a file.",
    examples=["glasshouse hosts certificates --out certs --host node1 --host 10.0.0.7"],
)
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


@command(
    "hosts worker",
    "offer this machine as a host for runs",
    {
        "--address tls://HOST:FIRST-LAST!": "the address to listen on, as the other machines reach it",
        "--certificates DIR!": "the certificate folder of this host",
    },
    "Listens until it is stopped with Ctrl-C or SIGTERM, and then leaves nothing behind. Each start "
    "takes the next port of the range, and a run reconnects to it.",
    examples=[
        "glasshouse hosts worker --address tls://node1:26600-26609 --certificates certs/node1"
    ],
)
def _worker(args: argparse.Namespace) -> int:
    from glasshouse.distributed.hosts.discovery import Address
    from glasshouse.distributed.hosts.worker import run_worker

    address = Address.parse(args.address)
    return run_worker(address, Path(args.certificates), lambda text: print(text, flush=True))


@command(
    "hosts check",
    "connect to the hosts and measure latency and bandwidth",
    {"key=value": "as for glasshouse train", **CONFIG},
    "Connects to every host of the configuration, starts a process there, measures, and leaves nothing behind.",
    examples=["glasshouse hosts check --config hosts.yaml"],
)
def _check_hosts(args: argparse.Namespace) -> None:
    from glasshouse.config.loading import load_config
    from glasshouse.distributed.hosts.host_pool import HostPool

    with contextlib.closing(HostPool(load_config(args.config, args.overrides).hosts)) as hosts:
        from glasshouse.distributed.hosts.host_check import check_hosts  # imports Monarch

        for sentence in check_hosts(hosts):
            print(sentence)
