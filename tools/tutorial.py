"""Executes docs/tutorial.ipynb and writes it as a page of the site, with its outputs: `make docs` runs this file.

    .venv-docs/bin/python tools/tutorial.py .venv/bin/python

The argument is the Python whose kernel executes the cells: the environment of Glasshouse, with the extra `notebook`.
nbclient and nbconvert are in the environment of the site. A cell that raises, progress bars that are not drawn as
widgets, and a figure that is not drawn at all fail the build.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter
from nbconvert.filters import strip_ansi

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
PAGE = ROOT / "build" / "docs-source" / "docs" / "tutorial.md"
WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 1800
"""For a busy machine; the notebook needs about two minutes of CPU time."""


def main(python: str) -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    started = time.monotonic()
    try:
        execute(notebook, python)
    except CellExecutionError as error:
        print(f"error: {NOTEBOOK.relative_to(ROOT)}: {error}", file=sys.stderr)
        return 1
    if not remove_widgets(notebook):
        print("error: the progress bars of the tutorial are not widgets.", file=sys.stderr)
        return 1
    if not count_pictures(notebook):
        print("error: the tutorial shows no figure.", file=sys.stderr)
        return 1
    join_lines(notebook)
    write_page(notebook)
    print(f"{NOTEBOOK.relative_to(ROOT)}: executed in {time.monotonic() - started:.0f} s")
    return 0


def execute(notebook: Any, python: str) -> None:
    """Run all cells, with an empty folder as the working directory."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder) / "kernels" / "glasshouse"
        kernel.mkdir(parents=True)
        command = [os.path.abspath(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        command.append("--IPKernelApp.log_level=ERROR")
        spec = {"argv": command, "display_name": "Glasshouse", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(spec))
        specs = KernelSpecManager(kernel_dirs=[str(kernel.parent)])
        manager = AsyncKernelManager(kernel_name="glasshouse", kernel_spec_manager=specs)
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, km=manager, timeout=CELL_SECONDS, resources=resources).execute()


def remove_widgets(notebook: Any) -> int:
    """Remove the progress bars, which a page without a kernel cannot show; returns how many there were."""
    removed = 0
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        kept = [output for output in outputs if WIDGET not in output.get("data", {})]
        removed += len(outputs) - len(kept)
        if cell.cell_type == "code":
            cell.outputs = kept
    return removed


def count_pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def join_lines(notebook: Any) -> None:
    """Make one block of the lines that rich printed, each of which is a separate output."""
    for cell in notebook.cells:
        joined: list[Any] = []
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if not data.get("text/html", "").startswith("<pre"):
                joined.append(output)
                continue
            if not joined or joined[-1].output_type != "stream":
                joined.append(nbformat.v4.new_output("stream", name="stdout", text=""))
            joined[-1].text += strip_ansi(data["text/plain"])
        if cell.cell_type == "code":
            cell.outputs = joined


def write_page(notebook: Any) -> None:
    files = f"{PAGE.stem}_files"
    body, resources = MarkdownExporter().from_notebook_node(
        notebook, resources={"unique_key": PAGE.stem, "output_files_dir": files}
    )
    (PAGE.parent / files).mkdir(parents=True, exist_ok=True)
    PAGE.write_text(body)
    for name, data in resources["outputs"].items():
        (PAGE.parent / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
