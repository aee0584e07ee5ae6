"""Images: which engine, which name, which arguments; and the line by which a run in one begins.

The engines here are scripts that write down what they are asked; `make image-proof` uses a real one.
"""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from glasshouse import config
from glasshouse.train import Run
from glasshouse.train.display import Terminal
from glasshouse.train.startup_banner import health

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "training" / "example.rl"


def script(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


images = script(ROOT / "tools" / "images.py")


class Desk:
    """A small repository, a PATH of its own, and what was asked of the engines on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.bin, self.asked_file = folder / "repo", folder / "bin", folder / "asked"
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
        """An engine that refuses the action `fails`."""
        file = self.bin / engine
        file.write_text(
            f'#!/bin/sh\necho {engine} "$@" >> {self.asked_file}\n[ "$1" = "{fails}" ] && exit 1\nexit 0\n'
        )
        file.chmod(0o755)

    def asked(self, *actions: str) -> list[str]:
        lines = self.asked_file.read_text().splitlines() if self.asked_file.exists() else []
        return [line for line in lines if line.split()[1] in actions]

    def __call__(self, *arguments: str, **settings: str) -> int:
        return images.main(arguments, self.root, settings)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_build_names_the_commit_and_sees_the_repositorys_root(desk: Desk) -> None:
    desk.install("docker")
    assert desk("build", "example.rl", "--", "--no-cache") == 0
    created = desk.git("show", "--no-patch", "--format=%cI").strip()
    assert desk.asked("build") == [
        f"docker build --file training/example.rl/Dockerfile --build-arg REVISION={desk.commit} "
        f"--build-arg CREATED={created} --tag {desk.name} --no-cache ."
    ]


def test_the_seeds_slip_of_the_pen_is_answered_with_the_nearest_name(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk("build", "example.t-rl") == 2
    assert 'no experiment "example.t-rl". Did you mean "example.rl"?' in capsys.readouterr().err
    assert desk("push", "") == 2
    assert "EXP=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engines", "chosen"),
    [
        ({"docker": "", "podman": "", "buildah": ""}, "docker build"),
        ({"docker": "version", "podman": ""}, "podman build"),
        ({"docker": "version", "buildah": ""}, "buildah build --layers"),
    ],
)
def test_the_first_engine_that_answers_builds(
    desk: Desk, engines: dict[str, str], chosen: str
) -> None:
    for engine, fails in engines.items():
        desk.install(engine, fails=fails)
    assert desk("build", "example.rl") == 0
    assert [line.startswith(chosen) for line in desk.asked("build")] == [True]


def test_an_engine_may_be_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.install("docker")
    desk.install("podman")
    assert desk("build", "example.rl", ENGINE="podman") == 0
    assert desk.asked("build")[0].startswith("podman")
    assert desk("build", "example.rl", ENGINE="dokcer") == 2
    assert 'Did you mean "docker"?' in capsys.readouterr().err


def test_no_engine_and_a_sleeping_one_are_sentences(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk("build", "example.rl") == 2
    assert "no docker or podman or buildah" in capsys.readouterr().err
    desk.install("docker", fails="version")
    assert desk("build", "example.rl") == 2
    assert "does not answer" in capsys.readouterr().err


def test_cuda_and_runpod_are_build_arguments_and_part_of_the_tag(desk: Desk) -> None:
    desk.install("docker")
    assert desk("build", "example.rl", CUDA="1", RUNPOD="1") == 0
    (asked,) = desk.asked("build")
    assert "TORCH_INDEX=https://pypi.org/simple" in asked
    assert "START_AS=0:0" in asked
    assert f"--tag {desk.name}-cuda-runpod " in asked
    text = (TEMPLATE / "Dockerfile").read_text()
    for argument in ("TORCH_INDEX", "START_AS", "REVISION", "CREATED"):
        assert f"ARG {argument}=" in text


def test_a_push_goes_to_the_registry_of_the_settings(desk: Desk) -> None:
    desk.install("docker")
    (desk.root / ".env").write_text(
        "# mine\nexport REGISTRY_USER='Me'  # at the registry\nREGISTRY=\n"
    )
    assert desk("push", "example.rl") == 0
    assert desk("push", "example.rl", REGISTRY="ghcr.io") == 0
    assert desk.asked("tag", "push") == [
        f"docker tag {desk.name} docker.io/me/{desk.name}",
        f"docker push docker.io/me/{desk.name}",
        f"docker tag {desk.name} ghcr.io/me/{desk.name}",
        f"docker push ghcr.io/me/{desk.name}",
    ]


def test_a_dirty_tree_is_pushed_only_if_told(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.install("podman")
    (desk.root / "training" / "note.txt").write_text("in no commit")
    assert desk("push", "example.rl", REGISTRY_USER="me") == 2
    assert "DIRTY=1" in capsys.readouterr().err
    assert desk.asked("push") == []
    assert desk("push", "example.rl", REGISTRY_USER="me", DIRTY="1") == 0
    assert desk.asked("push") == [f"podman push docker.io/me/{desk.name}-dirty"]


@pytest.mark.parametrize(
    ("fails", "settings", "word"),
    [
        ("", {}, "cp .env.example .env"),
        ("image", {"REGISTRY_USER": "me"}, "make build EXP=example.rl"),
        ("push", {"REGISTRY_USER": "me"}, "logged in: docker login\n"),
        ("push", {"REGISTRY_USER": "me", "REGISTRY": "ghcr.io"}, "docker login ghcr.io (password"),
    ],
)
def test_what_keeps_a_push_from_going_through_is_a_sentence(
    desk: Desk, capsys: pytest.CaptureFixture[str], fails: str, settings: dict[str, str], word: str
) -> None:
    desk.install("docker", fails=fails)
    assert desk("push", "example.rl", **settings) == 2
    assert word in capsys.readouterr().err


def test_a_runpod_template_holds_names_of_secrets_and_no_secret(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"REGISTRY_USER": "me", "SECRETS": "HF_TOKEN", "HF_TOKEN": "hf_private"}
    assert desk("template", "example.rl", "--", "seed=1", **settings) == 0
    printed = capsys.readouterr().out
    made = json.loads(printed)
    assert made["imageName"] == f"docker.io/me/{desk.name}-runpod"
    assert made["env"] == {"HF_TOKEN": "{{ RUNPOD_SECRET_HF_TOKEN }}"}
    assert made["volumeMountPath"] == "/runs"
    assert made["dockerStartCmd"] == ["seed=1"]
    assert made["category"] == "CPU"
    assert "hf_private" not in printed


def test_a_new_experiment_has_the_dockerfile_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = script(ROOT / "tools" / "new_experiment.py")
    (tmp_path / "example.rl").symlink_to(TEMPLATE)
    monkeypatch.setattr(new, "TRAINING", tmp_path)
    assert new.main(["my.rl"]) == 0
    made = (tmp_path / "my.rl" / "Dockerfile").read_text()
    assert made == (TEMPLATE / "Dockerfile").read_text().replace("example.rl", "my.rl")
    assert '"training/my.rl/train.py", "out=/runs/my.rl"' in made


def test_the_health_line_says_what_where_and_from_which_step(
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
        Run(config.load([], [*small, f"steps={steps}"]), Terminal(console)).train()
        lines += [s for s in console.file.getvalue().splitlines() if s.startswith("ready:")]
    begins = f"ready: example.rl at 0123456789ab, cpu (1 thread), {tmp_path / 'run'} ("
    assert [line.startswith(begins) for line in lines] == [True, True]
    assert [line.split("), ")[-1] for line in lines] == [
        "starting at step 0 of 1",
        "going on after step 1 of 2",
    ]


def test_what_is_not_on_a_volume_is_said_to_go_with_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = {"GLASSHOUSE_EXPERIMENT": "example.rl"}
    for mount, words in (("/runs", "(a mounted volume)"), ("/", "(NOT on a volume: ")):
        monkeypatch.setattr("os.path.ismount", lambda path, mount=mount: str(path) == mount)
        assert words in health(Path("/runs/example.rl"), 0, 1, "cpu", 1, image)


def test_outside_of_an_image_there_is_no_health_line(tmp_path: Path) -> None:
    assert health(tmp_path, 0, 1, "cpu", 1, {}) == ""


def test_every_experiments_dockerfile_is_the_templates_under_its_own_name() -> None:
    """What the proof shows of one image holds for all of them."""
    template = (ROOT / "training" / "example.rl" / "Dockerfile").read_text()
    files = sorted((ROOT / "training").glob("*/Dockerfile"))
    assert len(files) >= 4
    for file in files:
        assert file.read_text() == template.replace("example.rl", file.parent.name), file
