"""Renders a chat template within limits of time, memory and length; a script that imports no glasshouse.

`validation.check_chat_template` runs it in a separate process, because a template is a program: a few
bytes of it can loop for hours or allocate all memory. Exit code 0: rendered, or an ordinary error, which
the real rendering will report; anything else: a limit was exceeded.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from contextlib import suppress

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHAT = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "1 + 1?"}]
GENERATION_TAG = r"{%[-+]?\s*(end)?generation\s*[-+]?%}"
"""A tag that transformers adds; its content is rendered as it is."""


def render(template: str, max_characters: int) -> int:
    """The exit code."""
    template = re.sub(GENERATION_TAG, "", template)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value)
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda text: text}
    length = 0
    try:
        pieces = environment.from_string(template).generate(
            messages=CHAT, add_generation_prompt=True, tools=None
        )
        for piece in pieces:
            length += len(piece)
            if length > max_characters:
                return 3
    except (MemoryError, OverflowError):
        return 4
    except Exception:
        return 0
    return 0


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    seconds, memory, characters = map(int, sys.argv[1:])
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
        with suppress(ValueError, OSError):  # not supported on every system
            resource.setrlimit(kind, (limit, limit))
    sys.exit(render(sys.stdin.read(), characters))
