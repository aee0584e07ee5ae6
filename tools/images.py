"""Builds and pushes container images of experiments: `make build`, `make push`, `make runpod-template`.

    python tools/images.py build example.rl [-- arguments for the engine]
    python tools/images.py push example.rl
    python tools/images.py template example.rl [-- overrides of the configuration]

Settings come from the environment (`make push EXP=… REGISTRY=ghcr.io`), then from .env. It needs only
Python and one of docker, podman and buildah.
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

from glasshouse.errors import GlasshouseError, did_you_mean  # noqa: E402  # stdlib only

ENGINES = ("docker", "podman", "buildah")
BUILD = {"docker": ["build"], "podman": ["build"], "buildah": ["build", "--layers"]}
INSPECT = {
    "docker": ["image", "inspect"],
    "podman": ["image", "inspect"],
    "buildah": ["inspect", "--type", "image"],
}
CUDA_INDEX = "https://pypi.org/simple"
"""On Linux, the torch wheel of PyPI is the CUDA build."""
PYTHON = "3.11"
BASE_DOCKERFILE = "training/Dockerfile.base"


class ImageError(GlasshouseError, RuntimeError):
    """An image cannot be built, named or pushed."""


@dataclass(frozen=True)
class Revision:
    """The commit that an image is built from. `dirty`: the work tree has uncommitted changes."""

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
    python: str = PYTHON

    @property
    def name(self) -> str:
        """Example: `glasshouse-example.rl:350c5d1d4f0a-cuda`"""
        tag = self.revision.commit[:12] + "-dirty" * self.revision.dirty
        tag += f"-py{self.python}" * (self.python != PYTHON)
        return f"glasshouse-{self.experiment}:{tag}{'-cuda' * self.cuda}{'-runpod' * self.runpod}"

    @property
    def base_name(self) -> str:
        """The image that experiments share. It contains no code, so its tag has no revision."""
        return f"glasshouse-base:{'cuda' if self.cuda else 'cpu'}-py{self.python}"

    @property
    def dockerfile(self) -> str:
        return f"training/{self.experiment}/Dockerfile"

    @property
    def base_arguments(self) -> dict[str, str]:
        """The build arguments of `BASE_DOCKERFILE`."""
        arguments = {"PYTHON": self.python}
        if self.cuda:
            arguments["TORCH_INDEX"] = CUDA_INDEX
        return arguments

    @property
    def build_arguments(self) -> dict[str, str]:
        """The build arguments of `dockerfile`."""
        arguments = {
            "BASE": self.base_name,
            "EXPERIMENT": self.experiment,
            "REVISION": str(self.revision),
            "CREATED": self.revision.created,
        }
        if self.runpod:
            arguments["START_AS"] = "0:0"
        return arguments


def main(argv: Sequence[str], root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> int:
    """Run one action and return the exit code: 2 for a user error, with a message on stderr."""
    arguments, extra = list(argv), list[str]()
    if "--" in arguments:
        separator = arguments.index("--")
        arguments, extra = arguments[:separator], arguments[separator + 1 :]
    try:
        if len(arguments) != 2 or arguments[0] not in ("build", "push", "template"):
            raise ImageError("Usage: tools/images.py build|push|template EXPERIMENT")
        action, name = arguments
        settings = {**read_env_file(root / ".env"), **{k: v for k, v in environ.items() if v}}
        validate_experiment(name, root)
        image = Image(
            name, read_revision(root), cuda=is_on(settings, "CUDA"),
            runpod=is_on(settings, "RUNPOD") or action == "template",
            python=settings.get("PYTHON_VERSION", PYTHON),
        )  # fmt: skip
        if action == "template":
            print(json.dumps(runpod_template(image, settings, extra), indent=2))
        elif action == "build":
            build_image(image, select_engine(settings), root, extra)
        else:
            target = remote_name(image, settings)  # a missing user is named before a missing engine
            push_image(image, select_engine(settings), target, settings)
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def build_image(image: Image, engine: str, root: Path, extra: Sequence[str]) -> None:
    """Build the base image, then the experiment's.

    The context is the root of the repository; .dockerignore lists what is included.
    """
    for dockerfile, name, arguments in (
        (BASE_DOCKERFILE, image.base_name, image.base_arguments),
        (image.dockerfile, image.name, image.build_arguments),
    ):
        command = [engine, *BUILD[engine], "--file", dockerfile]
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        run_engine([*command, "--tag", name, *extra, "."], root, (
            f"{engine} could not build {dockerfile}; see its output above. If the registry refused to "
            f"send the Python image, log in once: {engine} login docker.io"
        ))  # fmt: skip
    print(f"\nbuilt   {image.name}")
    print(f"train   {'podman' if engine == 'buildah' else engine} run -v runs:/runs {image.name}")
    print(f"push    make push EXP={image.experiment}{make_variables(image)}")


def push_image(image: Image, engine: str, target: str, settings: Mapping[str, str]) -> None:
    """Push under a tag with the revision, so that no other image is overwritten.

    The layers of the base image are part of the experiment's image, so the base is not pushed.
    """
    make_arguments = f"EXP={image.experiment}{make_variables(image)}"
    if image.revision.dirty and not is_on(settings, "DIRTY"):
        raise ImageError(
            "The work tree has uncommitted changes, so the tag would not identify the content of the "
            f"image. Commit them and build again, or push anyway: make push {make_arguments} DIRTY=1"
        )
    if not succeeds([engine, *INSPECT[engine], image.name]):
        raise ImageError(f"There is no image {image.name}; build it: make build {make_arguments}")
    registry = target.split("/")[0]
    run_engine([engine, "tag", image.name, target], None, f"{engine} could not tag {image.name}.")
    run_engine([engine, "push", target], None, (
        f"{engine} could not push {target}; see its output above. If you have not logged in: "
        + login_command(engine, registry)
    ))  # fmt: skip
    print(f"pushed  {target}")


def runpod_template(
    image: Image, settings: Mapping[str, str], overrides: Sequence[str]
) -> dict[str, object]:
    """The body of `POST https://rest.runpod.io/v1/templates`; see docs/images.md."""
    secrets = settings.get("SECRETS", "").replace(",", " ").split()
    return {
        "name": image.name.replace(":", "-"),
        "imageName": remote_name(image, settings),
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


def validate_experiment(name: str, root: Path) -> None:
    """Raise unless the experiment exists, has a Dockerfile, and its name is valid in an image name."""
    names = sorted(p.parent.name for p in (root / "training").glob("*/train.py"))
    if name not in names:
        problem = f'There is no experiment "{name}".' if name else "Set EXP to an experiment."
        raise ImageError(problem + did_you_mean(name, names))
    if not (root / "training" / name / "Dockerfile").is_file():
        raise ImageError(f"training/{name} has no Dockerfile: copy training/example.rl/Dockerfile.")
    if not re.fullmatch(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", name):
        raise ImageError(
            f'"{name}" is not valid in the name of an image: use lower-case letters and digits, with '
            "single . _ or - between them."
        )


def read_revision(root: Path) -> Revision:
    """The commit that is checked out."""

    def git(*arguments: str) -> str:
        process = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
        return process.stdout.strip() if process.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if not commit:  # not a clone, for example an unpacked archive
        return Revision("unversioned", "unknown", dirty=True)
    created = git("show", "--no-patch", "--format=%cI", "HEAD")
    return Revision(commit, created, dirty=bool(git("status", "--porcelain")))


def select_engine(settings: Mapping[str, str]) -> str:
    """The engine that ENGINE names, or the first that is installed and works."""
    engine = settings.get("ENGINE")
    if engine and engine not in ENGINES:
        raise ImageError(f'ENGINE is "{engine}".{did_you_mean(engine, ENGINES)}')
    candidates = (engine,) if engine else ENGINES
    installed = [name for name in candidates if shutil.which(name)]
    for name in installed:
        if succeeds([name, "version"]):  # docker: also contacts its daemon
            return name
    if installed:
        raise ImageError(
            f"{installed[0]} is installed but does not work ({installed[0]} version prints the reason): "
            "check that its daemon is running and that you may use it."
        )
    raise ImageError(
        f"Found no {' or '.join(candidates)} on this machine: install one of docker "
        "(docs.docker.com/get-docker), podman (podman.io) and buildah (buildah.io)."
    )


def remote_name(image: Image, settings: Mapping[str, str]) -> str:
    """The name in the registry. Example: `ghcr.io/me/glasshouse-example.rl:350c5d1d4f0a`"""
    user = settings.get("REGISTRY_USER")
    if not user:
        raise ImageError(
            "REGISTRY_USER is not set: cp .env.example .env, set it there to your user name at the registry, "
            "and log in once with docker login (Docker Hub) or docker login ghcr.io (GitHub)."
        )
    return f"{settings.get('REGISTRY', 'docker.io').rstrip('/')}/{user.lower()}/{image.name}"


def login_command(engine: str, registry: str) -> str:
    if registry == "docker.io":
        return f"{engine} login" + " docker.io" * (engine != "docker")
    token = " (password: a personal access token with the scope write:packages)"
    return f"{engine} login {registry}" + token * (registry == "ghcr.io")


def make_variables(image: Image) -> str:
    """The arguments of make that select this variant."""
    python = f" PYTHON_VERSION={image.python}" * (image.python != PYTHON)
    return " CUDA=1" * image.cuda + " RUNPOD=1" * image.runpod + python


def read_env_file(file: Path) -> dict[str, str]:
    """The non-empty KEY=value lines; comments, `export` and quotes as in a shell."""
    values = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        match = re.fullmatch(
            r"""\s*(?:export\s+)?(\w+)\s*=\s*("[^"]*"|'[^']*'|[^#]*?)\s*(?:#.*)?""", line
        )
        if match:
            values[match[1]] = match[2].strip("\"'")
    return {key: value for key, value in values.items() if value}


def is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in ("1", "yes", "true")


def succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_engine(command: Sequence[str], cwd: Path | None, error: str) -> None:
    print("+", *command, flush=True)
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}  # older versions need it for cache mounts
    if subprocess.run(command, cwd=cwd, env=environment, check=False).returncode:
        raise ImageError(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
