"""These packages import torch and transformers only where a model is used."""

from __future__ import annotations

import json
import subprocess
import sys

PACKAGES = (
    "types", "randomness", "registry", "errors", "files", "terminal", "values", "config", "tasks",
    "monitors", "runs", "rollout", "track", "measurement", "view", "study", "cli",
)  # fmt: skip
IMPORT_ALL = """
import importlib, json, pkgutil, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, NotInstalled())
failed = []
for package in sys.argv[1:]:
    found = importlib.import_module(f"glasshouse.{package}")
    inside = pkgutil.walk_packages(getattr(found, "__path__", []), f"glasshouse.{package}.")
    for name in [module.name for module in inside]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            failed.append(name)
print(json.dumps(failed))
"""


def test_every_module_is_imported_without_torch() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, *PACKAGES]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(result.stdout) == []
