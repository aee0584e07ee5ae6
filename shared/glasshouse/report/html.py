"""What pages are made of. Everything that a model or a person wrote is escaped, once, in `text`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from glasshouse.report.rollout_text import printable
from glasshouse.report.style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the page may load: nothing."""


def text(raw: str) -> str:
    """A text as the page shows it, whatever it holds: control characters spelt out, then escaped."""
    return escape(printable(raw), quote=True)


def section(title: str, inner: str) -> str:
    return f"<section><h2>{text(title)}</h2>{inner}</section>"


def gallery(svgs: Sequence[str]) -> str:
    return f'<div class="figures">{"".join(f"<figure style=margin:0>{svg}</figure>" for svg in svgs)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{text(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(c)}</td>' for c in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def document(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{CSS}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
