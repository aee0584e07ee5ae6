"""A hook of mkdocs: the search index as a script, which a page that is opened as a file can load.

tools/docs_theme/search/main.js uses it instead of the JSON file of mkdocs' search plugin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_post_build(config: Any) -> None:
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var searchIndex = {index};\n", encoding="utf-8")
    for unused in ("search_index.json", "worker.js"):
        (folder / unused).unlink()
