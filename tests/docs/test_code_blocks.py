"""Every code block of the README and the docs is executed, parsed or listed with the reason why not.

docs/architecture.md says which blocks are executed and which are only parsed. Nothing is trained here.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from tests.docs.tables import ROOT

from glasshouse.cli.app import make_parser
from glasshouse.config.loading import describe_keys, load_config
from glasshouse.study.spec import load_study
from glasshouse.training.recipes import load_recipe

EXECUTED = {
    "docs/python.md": "tests/api/test_extend.py",
    "docs/before.md": "tests/before_training/test_predict.py",
    "docs/monitorability.md": "tests/measurement/test_measure.py",
}
"""Page: the test that executes its Python blocks."""
IMPORTS_ONLY = {
    "docs/tasks.md": "needs the rollout log of a run on an organism",
    "docs/runs.md": "needs the rollout log of a run",
}
"""Page: why its Python blocks are compiled and their imports executed, but no more."""
NOT_RUN = {
    ".": "activates an environment in the reader's shell",
    "cp": "creates a file with credentials to be filled in",
    "curl": "calls a service that needs an account",
    "docker": "needs a daemon; make proofs ONLY=image builds and runs an image with buildah",
    "pip": "installs; make proofs ONLY=wheel installs the wheel",
    "python": "starts a training or a server; tests/test_experiments.py runs every train.py",
    "sbatch": "needs a Slurm cluster",
    "scp": "copies to another machine",
}
"""Program: why the commands that start with it are not run."""
BLOCK = re.compile(r"(?m)^ *```(\w*)\n(.*?)^ *```", re.DOTALL)


PLUGIN_GROUPS = {"tasks", "organisms", "rewards", "penalties", "monitors", "trackers", "engines"}


def list_pages() -> list[str]:
    listed = ["README.md", "SECURITY.md", "docs/*.md", "docs/*.ipynb", "training/README.md"]
    command = ["git", "ls-files", *listed, "CONTRIBUTING.md"]
    return subprocess.check_output(command, cwd=ROOT, text=True).split()


def read_page(page: str) -> str:
    """The text of a page; of a notebook, its text cells. tests/docs/test_tutorial.py runs the others."""
    text = (ROOT / page).read_text()
    if not page.endswith(".ipynb"):
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "markdown")


def find_blocks(text: str) -> list[tuple[str, str]]:
    """Kind and text of every block, also of those in lists."""
    return [(kind, textwrap.dedent(block)) for kind, block in BLOCK.findall(text)]


def find_commands(text: str) -> Iterator[list[str]]:
    """The commands of the shell blocks, and those whose output a block shows, as words; a pipeline is several
    commands."""
    for kind, block in find_blocks(text):
        lines: list[str] = []
        if kind in ("sh", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
        elif kind == "" and block.startswith("$ "):
            shown = re.match(r"\$ ((?:[^\"\n]|\"[^\"]*\")*)\n", block)
            lines = [shown[1]] if shown else []
        for line in lines:
            words = shlex.split(line, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            while words:
                end = words.index("|") if "|" in words else len(words)
                yield words[:end]
                words = words[end + 1 :]


def check_command(words: list[str]) -> None:
    program, *arguments = words
    if PurePath(program).name == "glasshouse":  # also that of another environment
        try:
            parsed = make_parser().parse_args(arguments)
        except SystemExit:
            raise AssertionError(f"the command line refuses: {shlex.join(words)}") from None
        known = {key for key, *_ in describe_keys()}
        for override in getattr(parsed, "overrides", None) or []:
            parts = override.partition("=")[0].split(".")  # of a key or of the mapping it holds
            begins = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
            assert begins & known, (shlex.join(words), override)
    elif program == "make":
        targets = {word for word in arguments if "=" not in word and not word.startswith("-")}
        known = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
        assert targets <= known, shlex.join(words)
    else:
        assert program in NOT_RUN, f"neither parsed nor listed with a reason: {shlex.join(words)}"


@pytest.mark.parametrize("page", list_pages())
def test_commands_are_accepted(page: str) -> None:
    for words in find_commands(read_page(page)):
        check_command(words)


@pytest.mark.parametrize("page", list_pages())
def test_python_blocks_are_executed_or_say_why_not(page: str) -> None:
    programs = [block for kind, block in find_blocks(read_page(page)) if kind == "python"]
    assert bool(programs) == (page in EXECUTED or page in IMPORTS_ONLY)
    for program in programs:
        tree = ast.parse(program, page)
        if page in IMPORTS_ONLY:
            imports = [x for x in tree.body if isinstance(x, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), page, "exec"), {})
        else:
            test = (ROOT / EXECUTED[page]).read_text()
            assert page.rpartition("/")[2] in test, f"{EXECUTED[page]} does not read {page}"
            assert "exec(" in test or "subprocess" in test or "write_text" in test


@pytest.mark.parametrize("page", list_pages())
def test_settings_are_accepted(page: str, tmp_path: Path) -> None:
    """Blocks of YAML, TOML and JSON: configurations, studies, recipes, entry points, lines of a log."""
    for kind, block in find_blocks(read_page(page)):
        if kind == "yaml":
            check_settings(block, tmp_path / "block.yaml")
        elif kind == "toml":
            groups = tomllib.loads(block)["project"]["entry-points"]
            assert all(group.removeprefix("glasshouse.") in PLUGIN_GROUPS for group in groups)
        elif kind == "json":
            json.loads(block)
        else:
            assert kind in ("sh", "bash", "python", "text", ""), (page, kind)
            if kind in ("text", ""):  # output or a drawing
                assert not re.search(r"(?m)^(glasshouse|make|pip|python) ", block), (page, block)


def check_settings(block: str, file: Path) -> None:
    file.write_text(block)
    if "arms:" in block:
        assert load_study(file).arms
    elif "mixture:" in block:
        assert load_recipe(str(file))
    else:
        alternatives = block.splitlines() if block.count("\ndata:") else [block]
        for text in alternatives:
            file.write_text(text)
            load_config([file])
