"""Prepares the documentation site: `make docs` runs this file, then mkdocs.

Copies the pages into build/docs-source in the layout of the repository, so that their relative links keep working,
together with every file that they link to. Adds the generated pages of reference/: one with all config keys, from the
schema, and one with the Python API, which mkdocstrings fills in from the docstrings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import glasshouse
from glasshouse.config.loading import describe_keys

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "docs-source"
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def main() -> int:
    if SOURCE.exists():
        shutil.rmtree(SOURCE)
    pages = list_pages()
    for page in pages:
        text = (ROOT / page).read_text()
        write(page, link_folders(text, page))
        for target in linked_files(text, page):
            copy(target)
    write(Path("reference/config.md"), format_config_page(describe_keys()))
    write(Path("reference/api.md"), format_api_page(glasshouse.__all__))
    print(f"{SOURCE.relative_to(ROOT)}: {len(pages)} pages and 2 generated ones")
    return 0


def list_pages() -> list[Path]:
    """The Markdown files of the repository that git knows, except those for coding assistants and the front end."""
    command = ["git", "ls-files", "*.md"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    skipped = ("AGENTS.md", "shared/README.md", "shared/view_frontend/")
    return [Path(line) for line in files.splitlines() if not line.startswith(skipped)]


def linked_files(text: str, page: Path) -> Iterator[Path]:
    """The files, except Markdown, that a page links to or shows, relative to the root."""
    for match in LINK.finditer(text):
        path = resolve(match["target"], page)
        if path is not None and path.is_file() and path.suffix not in (".md", ".ipynb"):
            yield path.relative_to(ROOT)


def link_folders(text: str, page: Path) -> str:
    """The text with links to a folder replaced by links to its README.md, or by their text if it has none: a site
    has no folder listings. A link to a notebook leads to its page, which tools/tutorial.py writes."""

    def replace(match: re.Match[str]) -> str:
        path = resolve(match["target"], page)
        if path is not None and path.suffix == ".ipynb":
            return match[0].replace(".ipynb", ".md")
        if path is None or not path.is_dir():
            return match[0]
        if not (path / "README.md").is_file():
            return match["text"]
        target = f"{match['target'].rstrip('/')}/README.md{match['anchor'] or ''}"
        return f"[{match['text']}]({target})"

    return LINK.sub(replace, text)


def resolve(target: str, page: Path) -> Path | None:
    """The file or folder of a link, or None if it leads out of the repository."""
    if re.match(r"[a-z]+:", target):
        return None
    path = (ROOT / page.parent / target).resolve()
    return path if path.is_relative_to(ROOT) else None


def format_config_page(keys: list[tuple[str, str, str, str]]) -> str:
    """A table of keys for each section of the configuration."""
    sections: dict[str, list[str]] = {}
    for key, kind, default, description in keys:
        section = key.partition(".")[0] if "." in key else ""
        cells = (
            f"`{key}`",
            f"`{kind}`",
            f"`{default}`" if default else "",
            escape_text(description),
        )
        row = "| " + " | ".join(cells) + " |"
        sections.setdefault(section, []).append(row)
    parts = [
        "# Configuration keys",
        "Every key, as `glasshouse config` prints them; generated from the schema. Set a key in a YAML file or as "
        "`key=value` on the command line.",
    ]
    for section, rows in sections.items():
        title = f"## `{section}`" if section else "## Keys without a section"
        table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
        parts += [title, "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def escape_text(text: str) -> str:
    """The text of a table cell: `<`, and `|`, have a meaning in Markdown outside of backticks."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("|", "&#124;") for part in parts[::2]]
    return "`".join(parts)


def format_api_page(names: list[str]) -> str:
    """A heading for each public name; mkdocstrings replaces `:::` lines by signature and docstring."""
    parts = [
        "# Python API",
        "The names of `glasshouse.__all__`. [Examples](../docs/python.md#python-api).",
    ]
    for name in names:
        module = glasshouse._MODULE_OF[name]
        parts.append(f"::: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def write(path: Path, text: str) -> None:
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / path).write_text(text)


def copy(path: Path) -> None:
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / path, SOURCE / path)


if __name__ == "__main__":
    sys.exit(main())
