"""The site's reference, and the Python on its pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.tables import ROOT
from tools.docs_site import format_api_page, format_config_page, link_folders, list_pages

import glasshouse
from glasshouse.config.loading import describe_keys


def test_every_config_key_and_every_public_name_is_in_the_reference() -> None:
    page = format_config_page(describe_keys())
    for key, *_ in describe_keys():
        assert f"\n| `{key}` |" in page
    api = format_api_page(glasshouse.__all__)
    assert len(re.findall(r"(?m)^::: ", api)) == len(glasshouse.__all__)


def test_links_to_folders_lead_to_their_pages() -> None:
    for link, expected in (
        ("[a](../studies#b)", "[a](../studies/README.md#b)"),
        ("[a](figures)", "a"),
        ("[a](install.md)", "[a](install.md)"),
        ("[a](tutorial.ipynb#b)", "[a](tutorial.md#b)"),
        ("[a](https://example.org/docs)", "[a](https://example.org/docs)"),
    ):
        assert link_folders(link, Path("docs/x.md")) == expected


def test_every_page_of_the_docs_folder_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in list_pages():
        if page.parent == Path("docs"):
            assert f" {page}\n" in navigation, page


def test_every_package_and_every_extra_has_one_row() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    *layers, _modules = contract["contracts"][0]["layers"]
    packages = [name for layer in layers for name in layer.split(" | ")]
    table = page.partition("| package | what it does |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(packages)
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    install = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2]
    for rows in (
        re.findall(r"^\| \*extras?\* ([^|:]*)", page, re.MULTILINE),
        re.findall(r"^\| (`[^|]*`) \| [^|]+ \| [^|]*\d MB[^|]* \|$", install, re.MULTILINE),
    ):
        names = re.findall(r"`(\w+)`", " ".join(rows))
        assert sorted(names) == sorted(project["optional-dependencies"])


SMALLER = '"steps": 2, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4'
PAGE = (ROOT / "docs" / "python.md").read_text()
CALLS, _PARTS = PAGE.split("## Your own parts")


def test_ten_lines_train_the_pocket_model_and_leave_only_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", CALLS, re.DOTALL)
    assert len(first.splitlines()) <= 10
    code = first.replace('"steps": 40', SMALLER)
    assert SMALLER in code
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "page", "exec"), names)
    printed = capsys.readouterr().out
    assert len(re.findall(r"\b[01]\.\d+", printed)) >= 2  # before and after
    assert printed.count("What is the total digit sum") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    for code in others:
        exec(compile(code, "page", "exec"), names)
        assert names["metrics"]["step"].tolist() == [1, 2]


def test_every_public_function_is_on_the_python_page() -> None:
    types = {name for name in glasshouse.__all__ if name[0].isupper()}
    for name in set(glasshouse.__all__) - types:
        assert f"`{name}" in PAGE or f"glasshouse.{name}" in PAGE, name
