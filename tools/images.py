"""Experiments as container images: `make build`, `make push`, `make runpod-template`.

    python tools/images.py build example.rl [-- arguments for the engine]
    python tools/images.py push example.rl
    python tools/images.py template example.rl [-- overrides of the run]

Settings come from the environment (`make push EXP=… REGISTRY=ghcr.io`), then from .env. Nothing but
Python is needed, and one of docker, podman and buildah.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "shared"))

from glasshouse.errors import GlasshouseError, nearest  # noqa: E402  # stdlib only

ENGINES = ("docker", "podman", "buildah")
BUILD = {
    "docker": ["build"],
    "podman": ["build"],
    "buildah": ["build", "--layers"],
}
INSPECT = {
    "docker": ["image", "inspect"],
    "podman": ["image", "inspect"],
    "buildah": ["inspect", "--type", "image"],
}
CUDA_INDEX = "https://pypi.org/simple"
"""PyPI's wheel of torch for Linux is the CUDA build."""


class ImageError(GlasshouseError, RuntimeError):
    """An image cannot be built, named or pushed."""


@dataclass(frozen=True)
class Revision:
    """What of the repository goes in. `dirty`: there is something that is in no commit."""

    commit: str
    created: str
    dirty: bool

    def __str__(self) -> str:
        return self.commit + "-dirty" * self.dirty


@dataclass(frozen=True)
class Image:
    """One experiment at one revision, in one variant."""

    experiment: str
    revision: Revision
    cuda: bool = False
    runpod: bool = False

    @property
    def name(self) -> str:
        """Example: `glasshouse-example.rl:350c5d1d4f0a-cuda`"""
        tag = self.revision.commit[:12] + "-dirty" * self.revision.dirty
        return f"glasshouse-{self.experiment}:{tag}{'-cuda' * self.cuda}{'-runpod' * self.runpod}"

    @property
    def build_arguments(self) -> dict[str, str]:
        given = {"REVISION": str(self.revision), "CREATED": self.revision.created}
        if self.cuda:
            given["TORCH_INDEX"] = CUDA_INDEX
        if self.runpod:
            given["START_AS"] = "0:0"
        return given


def main(argv: Sequence[str], root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> int:
    """Do one action; a mistake is a sentence and exit code 2."""
    given, rest = list(argv), list[str]()
    if "--" in given:
        given, rest = given[: given.index("--")], given[given.index("--") + 1 :]
    try:
        if len(given) != 2 or given[0] not in ("build", "push", "template"):
            raise ImageError("Write: tools/images.py build|push|template EXPERIMENT.")
        settings = {**dotenv(root / ".env"), **{k: v for k, v in environ.items() if v}}
        image = Image(
            experiment(given[1], root), revision(root), cuda=on(settings, "CUDA"),
            runpod=on(settings, "RUNPOD") or given[0] == "template",
        )  # fmt: skip
        if given[0] == "template":
            print(json.dumps(template(image, remote(image, settings), settings, rest), indent=2))
        elif given[0] == "build":
            build(image, engine(settings), root, rest)
        else:
            push(image, engine(settings), settings)
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def build(image: Image, engine: str, root: Path, rest: Sequence[str]) -> None:
    """The context is the repository's root; .dockerignore says what of it may be seen."""
    command = [engine, *BUILD[engine], "--file", f"training/{image.experiment}/Dockerfile"]
    for name, value in image.build_arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    run([*command, "--tag", image.name, *rest, "."], root, (
        f"{engine} could not build training/{image.experiment}/Dockerfile: its own words are above. If "
        f"the registry refused to send the base image, log in once: {engine} login docker.io"
    ))  # fmt: skip
    print(f"\nbuilt   {image.name}")
    print(f"train   {'podman' if engine == 'buildah' else engine} run -v runs:/runs {image.name}")
    print(f"push    make push EXP={image.experiment}{variables(image)}")


def push(image: Image, engine: str, settings: Mapping[str, str]) -> None:
    """Under its revision, never over another one."""
    target = remote(image, settings)
    if image.revision.dirty and not on(settings, "DIRTY"):
        raise ImageError(
            "The tree has changes that are in no commit, so nobody could find out what this image holds. "
            f"Commit them and build again, or push as it is: make push EXP={image.experiment}"
            f"{variables(image)} DIRTY=1"
        )
    if not answers([engine, *INSPECT[engine], image.name]):
        raise ImageError(
            f"There is no image {image.name} yet; build it: make build EXP={image.experiment}{variables(image)}"
        )
    registry = target.split("/")[0]
    run([engine, "tag", image.name, target], None, f"{engine} could not tag {image.name}.")
    run([engine, "push", target], None, (
        f"{engine} could not push {target}: its own words are above. If you have not logged in: "
        + login(engine, registry)
    ))  # fmt: skip
    print(f"pushed  {target}")


def template(
    image: Image, target: str, settings: Mapping[str, str], overrides: Sequence[str]
) -> dict[str, object]:
    """The body of `POST https://rest.runpod.io/v1/templates`; see docs/runpod.md."""
    secrets = settings.get("SECRETS", "").replace(",", " ").split()
    return {
        "name": image.name.replace(":", "-"),
        "imageName": target,
        "category": "NVIDIA" if image.cuda else "CPU",
        "containerDiskInGb": 20 if image.cuda else 10,
        "volumeInGb": 20,
        "volumeMountPath": "/runs",
        "dockerEntrypoint": [],
        "dockerStartCmd": list(overrides),
        "env": {name: f"{{{{ RUNPOD_SECRET_{name} }}}}" for name in secrets},
        "ports": [],
        "isPublic": False,
        "isServerless": False,
    }


def experiment(name: str, root: Path) -> str:
    """The name, if there is such an experiment and an image can be called so."""
    names = sorted(p.parent.name for p in (root / "training").glob("*/train.py"))
    if name not in names:
        given = f'There is no experiment "{name}".' if name else "Name an experiment with EXP=…."
        raise ImageError(given + nearest(name, names))
    if not (root / "training" / name / "Dockerfile").is_file():
        raise ImageError(
            f"training/{name} has no Dockerfile: copy that of training/example.rl and put {name} in the "
            "place of example.rl."
        )
    if not re.fullmatch(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", name):
        raise ImageError(
            f'No image can be called "{name}": lower-case letters and digits, with single . _ or - between.'
        )
    return name


def revision(root: Path) -> Revision:
    """The commit that is checked out."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if not commit:  # not a clone: an archive of the files, say
        return Revision("unversioned", "unknown", dirty=True)
    created = git("show", "--no-patch", "--format=%cI", "HEAD")
    return Revision(commit, created, dirty=bool(git("status", "--porcelain")))


def engine(settings: Mapping[str, str]) -> str:
    """The one that is asked for, or the first that is there and answers."""
    if wanted := settings.get("ENGINE"):
        if wanted not in ENGINES:
            raise ImageError(f'ENGINE is "{wanted}".{nearest(wanted, ENGINES)}')
        candidates: tuple[str, ...] = (wanted,)
    else:
        candidates = ENGINES
    found = [name for name in candidates if shutil.which(name)]
    for name in found:
        if answers([name, "version"]):  # docker's client alone is no engine: this asks its daemon
            return name
    if found:
        raise ImageError(
            f"{found[0]} is installed but does not answer ({found[0]} version says why): is its daemon "
            "running, and may you use it?"
        )
    raise ImageError(
        f"There is no {' or '.join(candidates)} on this machine: install one of docker "
        "(docs.docker.com/get-docker), podman (podman.io) and buildah (buildah.io)."
    )


def remote(image: Image, settings: Mapping[str, str]) -> str:
    """Where the registry has it. Example: `ghcr.io/me/glasshouse-example.rl:350c5d1d4f0a`"""
    user = settings.get("REGISTRY_USER")
    if not user:
        raise ImageError(
            "REGISTRY_USER is not set: cp .env.example .env, write your name at the registry into it, and "
            "log in once with docker login (Docker Hub) or docker login ghcr.io (GitHub)."
        )
    return f"{settings.get('REGISTRY', 'docker.io').rstrip('/')}/{user.lower()}/{image.name}"


def login(engine: str, registry: str) -> str:
    """How to, at this registry."""
    if registry == "docker.io":
        return f"{engine} login" + " docker.io" * (engine != "docker")
    token = " (password: a personal access token with the scope write:packages)"
    return f"{engine} login {registry}" + token * (registry == "ghcr.io")


def variables(image: Image) -> str:
    """The variant, as it is written behind make."""
    return " CUDA=1" * image.cuda + " RUNPOD=1" * image.runpod


def dotenv(file: Path) -> dict[str, str]:
    """KEY=value lines; # comments, `export` and quotes as a shell has them."""
    found = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        match = re.fullmatch(
            r"""\s*(?:export\s+)?(\w+)\s*=\s*("[^"]*"|'[^']*'|[^#]*?)\s*(?:#.*)?""", line
        )
        if match:
            found[match[1]] = match[2].strip("\"'")
    return {key: value for key, value in found.items() if value}


def on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in ("1", "yes", "true")


def answers(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], cwd: Path | None, failed: str) -> None:
    print("+", *command, flush=True)
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}  # for cache mounts with an older docker
    if subprocess.run(command, cwd=cwd, env=environment, check=False).returncode:
        raise ImageError(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
