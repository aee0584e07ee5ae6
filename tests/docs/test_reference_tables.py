"""Tables of the docs that repeat a list of the code: packages, extras."""

from __future__ import annotations

import re
import tomllib

from tests.docs.tables import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_package_of_the_import_contract_has_one_row() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    *layers, _modules = contract["contracts"][0]["layers"]
    packages = [name for layer in layers for name in layer.split(" | ")]
    table = PAGE.partition("| package | what it does |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(packages)


def test_every_extra_has_one_row() -> None:
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    cells = re.findall(r"^\| \*extras?\* ([^|:]*)", PAGE, re.MULTILINE)
    names = re.findall(r"`(\w+)`", " ".join(cells))
    assert sorted(names) == sorted(project["optional-dependencies"])


def test_the_page_about_installation_says_what_every_extra_is_for_and_its_size() -> None:
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    table = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2]
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]+ \| [^|]*\d MB[^|]* \|$", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(
        project["optional-dependencies"]
    )
