"""What `make docs` generates; that mkdocs accepts it, links included, is checked by `make docs` itself."""

from __future__ import annotations

import re
from pathlib import Path

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
    page = Path("docs/x.md")
    assert link_folders("[a](../studies#b)", page) == "[a](../studies/README.md#b)"
    assert link_folders("[a](figures)", page) == "a"
    assert link_folders("[a](install.md)", page) == "[a](install.md)"
    assert link_folders("[a](tutorial.ipynb#b)", page) == "[a](tutorial.md#b)"
    assert link_folders("[a](https://example.org/docs)", page) == "[a](https://example.org/docs)"


def test_every_page_of_the_docs_folder_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in list_pages():
        if page.parent == Path("docs"):
            assert f" {page}\n" in navigation, page
