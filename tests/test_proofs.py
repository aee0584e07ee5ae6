"""Every proof that `make proofs` names can be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.__main__ import PROOFS, main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", PROOFS)
def test_the_file_of_a_proof_exists(name: str) -> None:
    for command in PROOFS[name].commands:
        first, module, *_ = [*command.split(), ""]
        file = first if first != "-m" else f"{module.replace('.', '/')}.py"
        assert module in ("pip", "pytest", "glasshouse") or (ROOT / file).is_file()


def test_an_unknown_proof_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resumes"]) == 2
    assert "resumes" in capsys.readouterr().err
