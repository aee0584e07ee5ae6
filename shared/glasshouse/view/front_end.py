"""The built files of the front end (sources: shared/view_frontend, built by `make view-assets`)."""

from __future__ import annotations

from importlib import resources


def read_asset(name: str) -> bytes:
    """Example: `read_asset("app.js")`"""
    return resources.files("glasshouse.view").joinpath("assets", name).read_bytes()
