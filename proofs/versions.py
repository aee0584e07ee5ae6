"""Proves that other versions of PyTorch and transformers work: the tests of models, templates and generation with each.

    make proofs ONLY=versions                                the ends of the ranges in shared/pyproject.toml
    make proofs ONLY=versions ARGS="transformers==5.19.0"    others

A version and its dependencies are installed into build/versions and come before those of the environment. On Linux the
public index has the CUDA build of PyTorch: 4.5 GB on disk for each version.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
ENDS = ("transformers==5.17.0", "transformers==5.23.0", "torch==2.12.1", "torch==2.15.0")
TESTS = (
    "tests/models/test_policy.py", "tests/models/test_chat_template.py", "tests/models/test_tokenizer.py",
    "tests/models/test_architectures.py", "tests/generate/test_engine.py", "tests/learn/test_learner.py",
)  # fmt: skip
SHOW = "import torch, transformers as t; print('transformers', t.__version__, 'torch', torch.__version__)"


def main(versions: list[str]) -> int:
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target"]
    tests = [sys.executable, "-m", "pytest", "-q", *TESTS]
    failed = []
    for version in versions or ENDS:
        target = FOLDER / version.replace("==", "-")
        subprocess.run([*install, target, version], check=True)
        environment = {**os.environ, "PYTHONPATH": str(target)}
        shown = subprocess.check_output([sys.executable, "-c", SHOW], env=environment, text=True)
        print(shown.strip(), flush=True)
        if subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "all versions passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
