"""Container images: names, engines and build arguments of tools/images.py, and the Dockerfiles.

The engines are scripts that log their arguments; `make proofs ONLY=image` builds and runs an image with a
real one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tools import images

from glasshouse.config.schema import Config
from glasshouse.training.display import startup_banner

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "training" / "example.rl"

BASE_DOCKERFILE = ROOT / "training" / "Dockerfile.base"


class Repository:
    """A small repository with one experiment, and a PATH on which fake engines log their arguments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.bin, self.log = folder / "repo", folder / "bin", folder / "log"
        self.bin.mkdir()
        for tool in ("git", "sh"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        monkeypatch.setenv("PATH", str(self.bin))
        shutil.copytree(TEMPLATE, self.root / "training" / "example.rl")
        (self.root / ".gitignore").write_text(".env\n")
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
        self.commit = self.git("rev-parse", "HEAD").strip()
        self.name = f"glasshouse-example.rl:{self.commit[:12]}"

    def git(self, *arguments: str) -> str:
        return subprocess.check_output(["git", "-C", str(self.root), *arguments], text=True)

    def install(self, engine: str, *, fails: str = "") -> None:
        """Install an engine whose action `fails` exits with 1."""
        self.script(engine, f'echo {engine} "$@" >> {self.log}\n[ "$1" != "{fails}" ]')

    def script(self, name: str, body: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    def calls(self, *actions: str) -> list[str]:
        """The logged calls of engines with one of these actions."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.split()[1] in actions]

    def run(self, *arguments: str, **settings: str) -> int:
        return images.main(arguments, self.root, settings)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    return Repository(tmp_path, monkeypatch)


def test_build_makes_the_base_image_first_then_the_experiment_from_it(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.install("docker")
    assert repository.run("build", "example.rl", "--", "--no-cache") == 0
    created = repository.git("show", "--no-patch", "--format=%cI").strip()
    assert repository.calls("build") == [
        "docker build --file training/Dockerfile.base --build-arg PYTHON=3.11 "
        "--tag glasshouse-base:cpu-py3.11 --no-cache .",
        "docker build --file training/example.rl/Dockerfile "
        "--build-arg BASE=glasshouse-base:cpu-py3.11 --build-arg EXPERIMENT=example.rl "
        f"--build-arg REVISION={repository.commit} --build-arg CREATED={created} "
        f"--tag {repository.name} --no-cache .",
    ]
    repository.log.unlink()
    repository.install("docker", fails="build")
    assert repository.run("build", "example.rl") == 2
    assert "training/Dockerfile.base" in capsys.readouterr().err
    assert len(repository.calls("build")) == 1


def test_the_entry_point_trains_the_experiment_of_the_image(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.script("id", "echo 1000")
    repository.script("python3", 'echo "$@"')
    monkeypatch.setenv("GLASSHOUSE_EXPERIMENT", "y.rl")
    command = ["sh", str(ROOT / "tools" / "entry.sh"), "seed=1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["training/y.rl/train.py", "out=/runs/y.rl", "seed=1"]


def test_all_dockerfiles_are_equal_so_the_image_proof_of_one_experiment_holds_for_all() -> None:
    template, base = (TEMPLATE / "Dockerfile").read_text(), BASE_DOCKERFILE.read_text()
    assert {file.read_text() for file in (ROOT / "training").glob("*/Dockerfile")} == {template}
    default = images.Image("example.rl", images.Revision("a", "b", dirty=False)).base_name
    assert f"ARG BASE={default}\n" in template
    assert f"ARG PYTHON={images.PYTHON}\n" in base
    installs = re.findall(r".*pip install (?!.*torch==).*", base + template)
    assert ["constraints.txt" in line for line in installs] == [True, True]
    assert "useradd --uid 1000 " in base
    assert template.endswith("\nUSER ${START_AS}\n")
    order = [template.index(t) for t in ("requirements.txt", "COPY shared/glasshouse", "REVISION")]
    assert order == sorted(order)  # a code change installs no dependency again


def test_the_first_working_engine_builds_and_ENGINE_selects_one(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    def builds(**settings: str) -> str:
        if repository.run("build", "example.rl", **settings) == 0:
            return repository.calls("build")[-1]
        return capsys.readouterr().err

    assert "docker or podman or buildah" in builds()
    assert repository.run("push", "example.rl") == 2
    assert "REGISTRY_USER" in capsys.readouterr().err  # named before the missing engine
    repository.install("docker", fails="version")
    assert "docker version" in builds()
    repository.install("buildah")
    assert builds().startswith("buildah build --layers")
    repository.install("podman")
    assert builds().startswith("podman build")
    repository.install("docker")
    assert builds().startswith("docker build")
    assert builds(ENGINE="podman").startswith("podman build")
    assert 'Did you mean "docker"?' in builds(ENGINE="dokcer")
    assert repository.run("build", "example.t-rl") == 2
    assert 'Did you mean "example.rl"?' in capsys.readouterr().err
    assert repository.run("push", "") == 2
    assert "EXP" in capsys.readouterr().err


def test_settings_choose_build_arguments_and_tags(repository: Repository) -> None:
    repository.install("docker")
    settings = {"CUDA": "1", "RUNPOD": "1", "PYTHON_VERSION": "3.12"}
    assert repository.run("build", "example.rl", **settings) == 0
    base, experiment = repository.calls("build")
    assert "--tag glasshouse-base:cuda-py3.12 " in base
    tag = re.findall(r"--tag (\S+)", experiment)[0]
    assert tag.startswith(f"{repository.name}-")
    assert all(part in tag for part in ("-cuda", "-runpod", "-py3.12"))
    of_base, of_experiment = (
        dict(re.findall(r"--build-arg (\w+)=(\S+)", call)) for call in (base, experiment)
    )
    assert of_base.items() >= {"PYTHON": "3.12", "TORCH_INDEX": "https://pypi.org/simple"}.items()
    assert of_experiment["BASE"] == "glasshouse-base:cuda-py3.12"
    assert of_experiment["START_AS"] == "0:0"
    for arguments, file in ((of_base, BASE_DOCKERFILE), (of_experiment, TEMPLATE / "Dockerfile")):
        assert set(arguments) == set(re.findall(r"^ARG (\w+)", file.read_text(), re.MULTILINE))


def test_push_uses_the_registry_of_the_settings_and_uncommitted_changes_need_DIRTY(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.install("docker")
    text = "# mine\nexport REGISTRY_USER='Me'  # at the registry\nREGISTRY=\n"
    (repository.root / ".env").write_text(text)
    assert repository.run("push", "example.rl") == 0
    assert repository.run("push", "example.rl", REGISTRY="ghcr.io") == 0
    (repository.root / "training" / "note.txt").write_text("not committed")
    assert repository.run("push", "example.rl") == 2
    assert "DIRTY=1" in capsys.readouterr().err
    assert repository.run("push", "example.rl", DIRTY="1") == 0
    assert repository.calls("tag", "push") == [
        f"docker tag {repository.name} docker.io/me/{repository.name}",
        f"docker push docker.io/me/{repository.name}",
        f"docker tag {repository.name} ghcr.io/me/{repository.name}",
        f"docker push ghcr.io/me/{repository.name}",
        f"docker tag {repository.name}-dirty docker.io/me/{repository.name}-dirty",
        f"docker push docker.io/me/{repository.name}-dirty",
    ]


@pytest.mark.parametrize(
    ("fails", "settings", "remedy"),
    [
        ("", {}, "cp .env.example .env"),
        ("image", {"REGISTRY_USER": "me"}, "make build EXP=example.rl"),
        ("push", {"REGISTRY_USER": "me"}, "docker login\n"),
        ("push", {"REGISTRY_USER": "me", "REGISTRY": "ghcr.io"}, "docker login ghcr.io (password"),
    ],
)
def test_a_failed_push_names_the_remedy(
    repository: Repository, fails: str, settings: dict, remedy: str, capsys: pytest.CaptureFixture
) -> None:
    repository.install("docker", fails=fails)
    assert repository.run("push", "example.rl", **settings) == 2
    assert remedy in capsys.readouterr().err


def test_a_runpod_template_references_secrets_without_their_values(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"REGISTRY_USER": "me", "SECRETS": "HF_TOKEN", "HF_TOKEN": "hf_private"}
    assert repository.run("template", "example.rl", "--", "seed=1", **settings) == 0
    output = capsys.readouterr().out
    template = json.loads(output)
    assert template["imageName"] == f"docker.io/me/{repository.name}-runpod"
    assert template["env"] == {"HF_TOKEN": "{{ RUNPOD_SECRET_HF_TOKEN }}"}
    assert template["volumeMountPath"] == "/runs"
    assert template["dockerStartCmd"] == ["seed=1"]
    assert template["category"] == "CPU"
    assert "hf_private" not in output


def test_the_startup_line_names_image_run_directory_and_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"GLASSHOUSE_EXPERIMENT": "example.rl", "GLASSHOUSE_REVISION": "0123456789ab"}
    for mount, warns in (("/runs", False), ("/", True)):
        monkeypatch.setattr("os.path.ismount", lambda path, mount=mount: str(path) == mount)
        line = startup_banner(Path("/runs/example.rl"), 1, Config(steps=2), "cpu", environment)
        assert line.startswith(
            "ready: example.rl at 0123456789ab, cpu (1 thread), /runs/example.rl"
        )
        assert ("NOT on a volume" in line) == warns
        assert "after step 1 of 2" in line
    assert startup_banner(Path("/runs/example.rl"), 0, Config(), "cpu", {}) == ""  # no image
