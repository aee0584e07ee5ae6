"""Write the page's type of a rollout from the dataclasses; `make view-assets` runs this.

python -m tools.rollout_type
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.runs.rows import row_types
from glasshouse.types import Message

FILE = Path(__file__).parent.parent / "shared" / "view_frontend" / "src" / "rollout.ts"
TYPES: dict[Any, str] = {
    int: "number",
    float: "number",
    bool: "boolean",
    tuple[int, ...]: "number[]",
    tuple[int, int]: "[number, number]",
    tuple[float, ...]: "number[]",
    Mapping[str, float]: "Record<string, number>",
    Mapping[str, Any]: "Record<string, unknown>",
    Sequence[Message]: "{ role: string; content: string }[]",
}


def rollout_type() -> str:
    lines = [
        "// A row of the rollout log, written by tools/rollout_type.py from shared/glasshouse/types.py.",
        "",
        "export interface Rollout {",
    ]
    for name, (kind, optional) in row_types().items():
        # a NaN, the unknown reward, is null in JSON
        null = " | null" if optional or name == "reward" else ""
        lines.append(f"  {name}: {TYPES.get(kind, 'string')}{null};")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    FILE.write_text(rollout_type())
