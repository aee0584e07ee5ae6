"""Proves that other versions of transformers work: the tests of models, templates and generation with each.

    make proofs ONLY=versions                                the ends of the range in shared/pyproject.toml
    make proofs ONLY=versions ARGS="5.19.0 5.21.1"           others

A version and its dependencies are installed into build/versions and come before those of the environment. PyTorch is
that of the environment: its other versions are gigabytes on Linux, since the public index has the CUDA build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
ENDS = ("5.17.0", "5.23.0")
TESTS = (
    "tests/models/test_policy.py", "tests/models/test_chat_template.py", "tests/models/test_tokenizer.py",
    "tests/models/test_architectures.py", "tests/generate/test_engine.py",
)  # fmt: skip
SHOW = "import torch, transformers as t; print('transformers', t.__version__, t.__file__, 'torch', torch.__version__)"


def main(versions: list[str]) -> int:
    failed = []
    for version in versions or ENDS:
        target = FOLDER / f"transformers-{version}"
        install = [
            Path(sys.executable).with_name("uv"),
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
        ]
        subprocess.run([*install, "--target", target, f"transformers=={version}"], check=True)
        environment = {**os.environ, "PYTHONPATH": str(target)}
        print(
            subprocess.check_output(
                [sys.executable, "-c", SHOW], env=environment, text=True
            ).strip(),
            flush=True,
        )
        tests = [sys.executable, "-m", "pytest", "-q", *TESTS]
        if subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "all versions passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
