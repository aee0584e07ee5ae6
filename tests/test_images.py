"""Container images: names, engines and build arguments of tools/images.py, and the Dockerfiles.

The engines are scripts that log their arguments; `make proofs ONLY=image` builds and runs an image with a
real one.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from glasshouse.config.loading import load_config
from glasshouse.training.display import TerminalDisplay
from glasshouse.training.run import TrainingRun
from glasshouse.training.startup_banner import startup_banner

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "training" / "example.rl"
DOCKERFILES = sorted((ROOT / "training").glob("*/Dockerfile"))
BASE_DOCKERFILE = ROOT / "training" / "Dockerfile.base"


def import_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


images = import_script(ROOT / "tools" / "images.py")


class Repository:
    """A small repository with one experiment, and a PATH on which fake engines log their arguments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.bin, self.log = folder / "repo", folder / "bin", folder / "log"
        self.bin.mkdir()
        for tool in ("git", "sh"):
            (self.bin / tool).symlink_to(
                subprocess.check_output(["which", tool], text=True).strip()
            )
        monkeypatch.setenv("PATH", str(self.bin))
        experiment = self.root / "training" / "example.rl"
        experiment.mkdir(parents=True)
        for name in ("Dockerfile", "train.py"):
            (experiment / name).write_text((TEMPLATE / name).read_text())
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


def test_experiments_add_to_the_base_image_only_what_differs() -> None:
    """All Dockerfiles are equal, so the image proof of one experiment holds for all."""
    template = (TEMPLATE / "Dockerfile").read_text()
    assert len(DOCKERFILES) >= 4
    for file in DOCKERFILES:
        assert file.read_text() == template, file
    assert re.findall(r"^FROM .*", template, re.MULTILINE) == ["FROM ${BASE}"]
    default = images.Image("example.rl", images.Revision("a", "b", dirty=False)).base_name
    assert f"ARG BASE={default}\n" in template
    assert f"ARG PYTHON={images.PYTHON}\n" in BASE_DOCKERFILE.read_text()


def test_a_code_change_rebuilds_no_dependency() -> None:
    """The base image contains no code; experiments copy code after they install requirements."""
    copied = re.findall(r"^COPY (.*)", BASE_DOCKERFILE.read_text(), re.MULTILINE)
    assert [line for line in copied if line.startswith("shared")] == [
        "shared/pyproject.toml shared/README.md shared/LICENSE shared/"
    ]
    assert not [line for line in copied if line.startswith("training")]
    template = (TEMPLATE / "Dockerfile").read_text()
    order = ["pip install -c constraints.txt -r requirements.txt", "COPY shared/glasshouse", "ARG REVISION",
             "COPY training/${EXPERIMENT} "]  # fmt: skip
    positions = [template.index(text) for text in order]
    assert positions == sorted(positions)


def test_images_have_the_tested_versions_and_run_as_uid_1000_with_one_thread() -> None:
    base, template = BASE_DOCKERFILE.read_text(), (TEMPLATE / "Dockerfile").read_text()
    lines = (base + template).splitlines()
    installs = [line for line in lines if "pip install" in line and "torch==" not in line]
    assert len(installs) == 2
    for line in installs:
        assert re.search(r"pip install (-c|--constraint) constraints.txt ", line), line
    assert "\n!constraints.txt\n" in (ROOT / ".dockerignore").read_text()
    for setting in ("useradd --uid 1000 ", "OMP_NUM_THREADS=1", "HF_HOME=/runs/"):
        assert setting in base
    assert "ARG START_AS=1000:1000\n" in template
    assert template.endswith("\nUSER ${START_AS}\n")
    assert "ENTRYPOINT" not in template  # inherited


def test_the_entry_point_trains_the_experiment_of_the_image(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.script("id", "echo 1000")
    repository.script("python3", 'echo "$@"')
    monkeypatch.setenv("GLASSHOUSE_EXPERIMENT", "y.rl")
    command = ["sh", str(ROOT / "tools" / "entry.sh"), "seed=1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["training/y.rl/train.py", "out=/runs/y.rl", "seed=1"]


def test_an_unknown_experiment_gets_a_suggestion(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.run("build", "example.t-rl") == 2
    assert 'Did you mean "example.rl"?' in capsys.readouterr().err
    assert repository.run("push", "") == 2
    assert "EXP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engines", "command"),
    [
        ({"docker": "", "podman": "", "buildah": ""}, "docker build"),
        ({"docker": "version", "podman": ""}, "podman build"),
        ({"docker": "version", "buildah": ""}, "buildah build --layers"),
    ],
)
def test_the_first_working_engine_builds(
    repository: Repository, engines: dict[str, str], command: str
) -> None:
    for engine, fails in engines.items():
        repository.install(engine, fails=fails)
    assert repository.run("build", "example.rl") == 0
    assert [line.startswith(command) for line in repository.calls("build")] == [True, True]


def test_ENGINE_selects_the_engine_and_a_missing_or_stopped_one_is_a_user_error(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repository.run("build", "example.rl") == 2
    assert "docker or podman or buildah" in capsys.readouterr().err
    repository.install("docker", fails="version")
    assert repository.run("build", "example.rl") == 2
    assert "docker version" in capsys.readouterr().err
    repository.install("podman")
    assert repository.run("build", "example.rl", ENGINE="podman") == 0
    assert repository.calls("build")[0].startswith("podman")
    assert repository.run("build", "example.rl", ENGINE="dokcer") == 2
    assert 'Did you mean "docker"?' in capsys.readouterr().err


def test_settings_choose_build_arguments_and_tags(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.install("docker")
    settings = {"CUDA": "1", "RUNPOD": "1", "PYTHON_VERSION": "3.12"}
    assert repository.run("build", "example.rl", **settings) == 0
    assert "make push EXP=example.rl" in capsys.readouterr().out
    base, experiment = repository.calls("build")
    assert "--build-arg PYTHON=3.12" in base
    assert "--tag glasshouse-base:cuda-py3.12 " in base
    tag = re.search(r"--tag (\S+)", experiment)
    assert tag
    assert tag[1].startswith(f"{repository.name}-")
    assert all(part in tag[1] for part in ("-cuda", "-runpod", "-py3.12"))
    of_base, of_experiment = (
        dict(re.findall(r"--build-arg (\w+)=(\S+)", call)) for call in (base, experiment)
    )
    assert of_base["TORCH_INDEX"] == "https://pypi.org/simple"
    assert of_experiment["BASE"] == "glasshouse-base:cuda-py3.12"
    assert of_experiment["START_AS"] == "0:0"
    for arguments, file in ((of_base, BASE_DOCKERFILE), (of_experiment, TEMPLATE / "Dockerfile")):
        declared = re.findall(r"^ARG (\w+)", file.read_text(), re.MULTILINE)
        assert set(arguments) == set(declared)


def test_push_uses_the_registry_of_the_settings(repository: Repository) -> None:
    repository.install("docker")
    (repository.root / ".env").write_text(
        "# mine\nexport REGISTRY_USER='Me'  # at the registry\nREGISTRY=\n"
    )
    assert repository.run("push", "example.rl") == 0
    assert repository.run("push", "example.rl", REGISTRY="ghcr.io") == 0
    assert repository.calls("tag", "push") == [
        f"docker tag {repository.name} docker.io/me/{repository.name}",
        f"docker push docker.io/me/{repository.name}",
        f"docker tag {repository.name} ghcr.io/me/{repository.name}",
        f"docker push ghcr.io/me/{repository.name}",
    ]


def test_uncommitted_changes_are_pushed_only_with_DIRTY(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.install("podman")
    (repository.root / "training" / "note.txt").write_text("not committed")
    assert repository.run("push", "example.rl", REGISTRY_USER="me") == 2
    assert "DIRTY=1" in capsys.readouterr().err
    assert repository.calls("push") == []
    assert repository.run("push", "example.rl", REGISTRY_USER="me", DIRTY="1") == 0
    assert repository.calls("push") == [f"podman push docker.io/me/{repository.name}-dirty"]


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
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
    fails: str,
    settings: dict[str, str],
    remedy: str,
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSHOUSE_EXPERIMENT", "example.rl")
    monkeypatch.setenv("GLASSHOUSE_REVISION", "0123456789ab")
    small = [f"model={ROOT / 'models' / 'mock'}", "data.groups_per_step=2", "generate.group_size=2",
             "generate.max_tokens=8", "evaluate.problems=2", "evaluate.samples=1",
             f"out={tmp_path / 'run'}"]  # fmt: skip
    lines = []
    for steps in (1, 2):
        console = Console(file=io.StringIO(), width=60)
        resolved = load_config([], [*small, f"steps={steps}"])
        TrainingRun(resolved, TerminalDisplay(console)).train()
        lines += [s for s in console.file.getvalue().splitlines() if s.startswith("ready:")]
    prefix = f"ready: example.rl at 0123456789ab, cpu (1 thread), {tmp_path / 'run'} ("
    assert [line.startswith(prefix) for line in lines] == [True, True]
    assert ["after step 1 of 2" in line for line in lines] == [False, True]


def test_the_startup_line_warns_if_the_run_directory_is_not_on_a_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"GLASSHOUSE_EXPERIMENT": "example.rl"}
    for mount, warns in (("/runs", False), ("/", True)):
        monkeypatch.setattr("os.path.ismount", lambda path, mount=mount: str(path) == mount)
        line = startup_banner(Path("/runs/example.rl"), 0, 1, "cpu", 1, environment)
        assert ("NOT on a volume" in line) == warns
    assert startup_banner(Path("/runs/example.rl"), 0, 1, "cpu", 1, {}) == ""  # not in an image
