"""An experiment's image, really built and really run, where there is no engine and no registry.

    sudo apt-get install buildah mmdebstrap
    sudo make image-proof [ARGS="--state DIR"]

The base image is bootstrapped from Debian, so nothing is pulled. The image is built from a copy of this
directory in which secrets are planted, and every byte of its layers is searched for them. Then it is run
as an engine would: its entry point is process 1 of a process namespace, as its user, with a volume. It
is stopped, killed, and goes on each time. Only Python's standard library and Linux are needed here.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from images import CUDA_INDEX, Image, revision  # noqa: E402

EXPERIMENT = "example.rl"
BASE = "docker.io/library/python:3.11-slim"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SECRET = b"planted-" + os.urandom(16).hex().encode()
PLANTED = [
    ".env", ".git/config", "runs/a/results/rollouts.jsonl", "checkpoints/step-000001/state.json",
    "build/notes.txt", "models/private/config.json", "datasets/private.jsonl", "tools/token.txt",
    "shared/.env", "shared/glasshouse/server.key", "shared/glasshouse/.netrc", "training/.env",
    f"training/{EXPERIMENT}/.env", f"training/{EXPERIMENT}/.env.local",
    f"training/{EXPERIMENT}/runs/a/config.yaml", f"training/{EXPERIMENT}/results/rollouts.jsonl",
    f"training/{EXPERIMENT}/checkpoints/step-000001/state.json",
]  # fmt: skip
"""Where people keep what nobody else should see."""
RUN = [
    "--config", "tests/test_config.yaml", "steps=60", "checkpoints.every=10", "learn.learning_rate=1e-3",
    "reward.terms={closeness: 1}",
]  # fmt: skip
"""The mock configuration, long enough to be killed twice, with something to learn."""
CONTAINER = """
mount --bind "$2" "$1/runs" && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 9
root=$1 user=$3; shift 3
exec chroot --userspec="$user" --groups= "$root" env -i "$@"
"""
"""What an engine does, less the network: the volume, /proc, /dev, the image's root, user and environment."""


class Store:
    """buildah, with its images in a directory of ours."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.command = [
            "buildah", "--root", str(state / "storage"), "--runroot", str(state / "runroot"),
            "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"),
        ]  # fmt: skip

    def __call__(self, *arguments: str, log: Path | None = None) -> str:
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, check=False
        )
        if log:
            log.write_text(done.stdout + done.stderr)
        if done.returncode:
            sys.exit(f"buildah {arguments[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout.strip()

    def base(self) -> None:
        """Debian with Python, under the name of the image that the Dockerfile begins with."""
        if BASE in self("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        archive = self.state / "base.tar"
        if not archive.exists():
            packages = "--include=python3,python3-venv,ca-certificates"
            made = self.state / "making.tar"
            command = ["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", made]
            subprocess.run(command, check=True)
            made.rename(archive)
        container = self("from", "scratch")
        self("add", container, str(archive), "/")
        self("commit", "--rm", container, BASE)

    def build(self, context: Path, name: str, *arguments: str) -> None:
        self(
            "build", "--isolation", "chroot", "--network", "host", "--pull=never", "--layers",
            "--file", f"{context}/training/{EXPERIMENT}/Dockerfile", "--tag", name,
            *lent(self.state), *arguments, str(context), log=self.state / "build.log",
        )  # fmt: skip

    def about(self, name: str) -> dict[str, Any]:
        return json.loads(self("inspect", "--type", "image", name))["OCIv1"]

    def layers(self, name: str) -> list[Path]:
        """The image as a registry would get it, uncompressed: layers, manifest, configuration."""
        target = self.state / "layers"
        shutil.rmtree(target, ignore_errors=True)
        self("push", "--disable-compression", name, f"dir:{target}")
        return sorted(target.iterdir())

    @contextmanager
    def container(self, name: str) -> Iterator[Path]:
        """A new one, so that nothing but the volume outlives a run."""
        container = self("from", "--pull-never", name)
        try:
            yield Path(self("mount", container))
        finally:
            self("umount", container)
            self("rm", container)


def lent(state: Path) -> list[str]:
    """This machine's pip settings (a mirror, a certificate) for the time of the build, as mounts."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    settings, mounts = configparser.RawConfigParser(), dict[str, str]()
    settings["global"] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        settings["global"][key.split(".")[-1]] = value.strip("'\"")
    for value in settings["global"].values():
        for word in value.split():
            folder = Path(word.removeprefix("file://"))
            folder = folder.parent if folder.name == "simple" else folder
            if folder.is_absolute() and folder.exists():
                mounts[str(folder)] = str(folder)
    with open(state / "pip.conf", "w") as file:
        os.fchmod(file.fileno(), 0o600)  # a mirror's address may hold a password
        settings.write(file)
    authorities = "/etc/ssl/certs/ca-certificates.crt"
    mounts |= {"/etc/pip.conf": str(state / "pip.conf"), authorities: authorities}
    return [f"--volume={here}:{there}:ro" for there, here in mounts.items()]


def copy(target: Path) -> None:
    """What git knows or would take of this directory, and the planted secrets."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for name in PLANTED:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(b"TOKEN=" + SECRET + b"\n")


def holding(files: list[Path], needle: bytes) -> int:
    """How many of the files hold these bytes."""
    found = 0
    for file in files:
        tail = b""
        with open(file, "rb") as stream:
            while block := stream.read(1 << 24):
                if needle in tail + block:
                    found += 1
                    break
                tail = block[-len(needle) :]
    return found


class Container:
    """A running image. `pid` is its process 1, seen from here."""

    def __init__(self, root: Path, about: dict[str, Any], volume: Path, *arguments: str) -> None:
        config = about["config"]
        self.process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", CONTAINER, "sh",
             root, volume, config["User"], f"--chdir={config['WorkingDir']}",
             "HOME=/home/glasshouse", *config["Env"], *config["Entrypoint"], *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.volume = volume

    @property
    def pid(self) -> int:
        return children(self.process.pid)[0]

    @property
    def steps(self) -> int:
        metrics = self.volume / EXPERIMENT / "results" / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def after(self, step: int) -> Container:
        """Wait until so many steps are recorded."""
        deadline = time.monotonic() + 600
        while self.steps < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the container ended or hung before step {step}:\n{self.end()[1]}")
            time.sleep(0.02)
        return self

    def trainer(self) -> dict[str, str]:
        """/proc/…/status of the process that trains."""
        (trainer,) = children(self.pid)
        assert b"train.py" in Path(f"/proc/{trainer}/cmdline").read_bytes()
        lines = Path(f"/proc/{trainer}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def end(self, number: int = 0) -> tuple[int, str]:
        """Signal process 1, if asked to; the exit code and the log."""
        if number:
            os.kill(self.pid, number)
        log, _ = self.process.communicate(timeout=600)
        return self.process.returncode, log


def children(process: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def result(volume: Path) -> dict[str, str]:
    """Digests of the last checkpoint's tensors and of the metrics, less times."""
    run = volume / EXPERIMENT
    last = run / "checkpoints" / "step-000060"
    rows = [json.loads(r) for r in (run / "results" / "metrics.jsonl").read_text().splitlines()]
    kept = [{**row, "timing": None, "record_bytes": None} for row in rows]
    return {
        **{f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in last.glob("*.safetensors")},
        "metrics": hashlib.sha256(json.dumps(kept).encode()).hexdigest(),
    }


def reachable(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def no_secret(store: Store, context: Path, name: str, *arguments: str) -> None:
    files = store.layers(name)
    size = sum(f.stat().st_size for f in files)
    public = (ROOT / "training" / EXPERIMENT / "config.yaml").read_bytes().splitlines()[0]
    assert holding(files, public) == 1, "the search does not find what is surely there"
    assert holding(files, SECRET) == 0, "a planted secret is in the image"
    say(
        f"none of {len(PLANTED)} planted secrets in {len(files)} files, {size / 1e9:.2f} GB of layers"
    )
    (store.state / "nothing").write_text("")
    open_name = f"{name}-open"
    store.build(context, open_name, *arguments, "--ignorefile", str(store.state / "nothing"))
    found = holding(store.layers(open_name), SECRET)
    assert found, "without .dockerignore the secrets should have been found"
    say(f"the same search without .dockerignore: in {found} of them")
    shutil.rmtree(store.state / "layers")


def this_tree(root: Path) -> None:
    """The package and the experiment in the image are these, byte for byte, and not a cache's."""
    (site,) = (root / "opt" / "venv" / "lib").glob("python3*/site-packages")
    compared = 0
    for here, there in ((ROOT / "shared", site), (ROOT, root / "app")):
        folder = here / ("glasshouse" if there == site else f"training/{EXPERIMENT}")
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert file.read_bytes() == (there / file.relative_to(here)).read_bytes(), file
                compared += 1
    say(f"{compared} files of the package and the experiment: as they are here")


def no_root(store: Store, name: str, volume: Path) -> None:
    """Stopped, killed, finished, and once more: always from the volume, never as root."""
    about = store.about(name)
    logs = list[str]()
    for step, number in ((15, signal.SIGTERM), (35, signal.SIGKILL)):
        with store.container(name) as root:
            container = Container(root, about, volume, *RUN).after(step)
            status = container.trainer()
            assert status["Uid"].split() == ["1000"] * 4, status["Uid"]
            assert int(status["CapEff"], 16) == 0, status["CapEff"]
            seen, (ended, log) = container.steps, container.end(number)
        assert ended == 130 or number == signal.SIGKILL, (ended, log)  # which unshare cannot tell
        say(f"uid 1000, no capability; {number.name} to process 1 after step {seen}")
        logs.append(log)
    for _ in range(2):
        with store.container(name) as root:
            ended, log = Container(root, about, volume, *RUN).end()
        assert ended == 0, log
        logs.append(log)
    ready = [line for log in logs for line in log.splitlines() if line.startswith("ready:")]
    for line in ready:
        say(line)
    assert [("going on after step" in line, "a mounted volume" in line) for line in ready] == [
        (False, True), (True, True), (True, True),
    ], ready  # fmt: skip
    assert "has come to its end already" in logs[-1], logs[-1]
    say("finished; started once more it only says so")


def say(sentence: str) -> None:
    print(f"{time.monotonic() - STARTED:5.0f} s  {sentence}", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "image-proof",
                        help="where the base and the layers are kept for the next time")  # fmt: skip
    state = parser.parse_args(argv).state.resolve()
    missing = [c for c in ("buildah", "mmdebstrap", "unshare", "chroot") if not shutil.which(c)]
    if missing or os.geteuid() != 0:
        print("error: This proof needs root, and buildah and mmdebstrap: apt-get install buildah mmdebstrap"
              + (f" (missing: {', '.join(missing)})." if missing else "."), file=sys.stderr)  # fmt: skip
        return 2
    state.mkdir(parents=True, exist_ok=True)
    store, image = Store(state), Image(EXPERIMENT, revision(ROOT))
    name = f"localhost/{image.name}"
    arguments = [f"--build-arg={k}={v}" for k, v in image.build_arguments.items()]
    if not reachable(CPU_INDEX):
        arguments.append(f"--build-arg=TORCH_INDEX={CUDA_INDEX}")
        say(f"{CPU_INDEX} cannot be reached: torch comes from where pip finds it here")
    store.base()
    say(f"base: Debian as {BASE}")
    with tempfile.TemporaryDirectory(prefix="glasshouse-image-") as scratch:
        context, *volumes = (Path(scratch) / n for n in ("context", "volume", "whole", "foreign"))
        for folder, owner in zip([context, *volumes], (0, 1000, 1000, 0), strict=True):
            folder.mkdir()
            os.chown(folder, owner, owner)
        os.chmod(scratch, 0o755)
        copy(context)
        store.build(context, name, *arguments)
        about = store.about(name)
        labels = about["config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == str(image.revision), labels
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0", labels
        say(f"built {name}, {len(about['rootfs']['diff_ids'])} layers, labels in place")
        with store.container(name) as root:
            this_tree(root)
        no_secret(store, context, name, *arguments)
        no_root(store, name, volumes[0])
        with store.container(name) as root:
            ended, log = Container(root, about, volumes[1], *RUN).end()
            assert ended == 0, log
            assert result(volumes[0]) == result(volumes[1]), "not the same bits"
            say("bitwise the run that nobody disturbed")
            ended, log = Container(root, about, volumes[2], *RUN).end()
            assert ended == 2, log
            assert "belongs to another user" in log, log
            say(f"a volume of root: exit 2, {log.splitlines()[-1]!r}")
        rooted = f"{name}-runpod"
        store.build(context, rooted, *arguments, "--build-arg=START_AS=0:0")
        with store.container(rooted) as root:
            container = Container(root, store.about(rooted), volumes[2], *RUN).after(1)
            assert container.trainer()["Uid"].split() == ["1000"] * 4
            ended, _ = container.end(signal.SIGTERM)
            assert ended == 130, ended
            say("the same volume with RUNPOD=1: taken over, trained as uid 1000, stopped with 130")
    print("image-proof: all holds")
    return 0


STARTED = time.monotonic()
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
