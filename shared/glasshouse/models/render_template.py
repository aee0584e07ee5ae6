"""Renders a chat template within limits of time, memory and length; a script that imports no glasshouse.

`validation.check_chat_template` runs it in a separate process, because a template is a program: a few
bytes of it can loop for hours or allocate all memory. Exit code 0: rendered, or an ordinary error, which
the real rendering will report; anything else: a limit was exceeded.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which transformers adds, renders its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def main() -> int:
    request = json.load(sys.stdin)
    with suppress(ValueError, OSError):  # not supported on every system
        resource.setrlimit(resource.RLIMIT_AS, (request["max_bytes"],) * 2)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (request["max_seconds"],) * 2)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value)
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda text: text}
    length = 0
    try:
        for piece in environment.from_string(request["template"]).generate(**request["variables"]):
            length += len(piece)
            if length > request["max_characters"]:
                return 3
    except (MemoryError, OverflowError):
        return 4
    except Exception:
        return 0
    return 0


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    sys.exit(main())
