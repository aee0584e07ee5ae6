"""The prediction as an SVG file: what RL does over its steps, and what each mode earns by the weight of the penalty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from glasshouse.before_training.predict import SCOPE, Prediction

WIDTH, HEIGHT, TOP, BOTTOM, PANEL = 760, 330, 50, 270, 280
COLOURS = {"honest": "#2e7d6b", "disclosed": "#d08a1d", "reliance": "#555555"}
RED = "#c0392b"  # what nobody sees: silent rollouts, undetected use
Curve = Sequence[tuple[float, float]]


def draw_prediction(prediction: Prediction) -> str:
    """Two panels: undetected use and reliance with their bands; the rewards of the modes by λ."""
    outcome = prediction.outcome
    title = f"{prediction.source}, λ = {outcome.weight:g}: {outcome.verdict}"
    paths = {
        name.replace("_", " "): [
            [(step, values[which]) for step, values in zip(outcome.steps, curve, strict=True)]
            for which in range(3)
        ]
        for name, curve in outcome.curves.items()
        if name != "disclosure"
    }
    most = max(1.0, *(own.weight for own in prediction.outcomes))
    lines = {
        f"reward, {mode}": [[(0.0, start), (most, start + most * slope)]]
        for mode, (start, slope) in prediction.reward_lines.items()
    }
    parts = [
        _text(20, 24, title, size=16),
        _text(20, HEIGHT - 10, SCOPE, size=11),
        *_draw_panel(60, "step", paths, (0, 1)),
        *_draw_panel(430, f"λ of {prediction.penalty}", lines),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _draw_panel(
    left: int,
    label: str,
    curves: Mapping[str, Sequence[Curve]],
    up: tuple[float, float] | None = None,
) -> Iterator[str]:
    """Curves by name, each alone or with the two edges of its band."""
    points = [point for own in curves.values() for curve in own for point in curve]
    right = max(x for x, _ in points) or 1.0
    low, high = up or (min(y for _, y in points), max(y for _, y in points) + 1e-9)

    def place(curve: Curve) -> str:
        scaled = ((x / right * PANEL, (y - low) / (high - low) * (BOTTOM - TOP)) for x, y in curve)
        return " ".join(f"{left + x:.1f},{BOTTOM - y:.1f}" for x, y in scaled)

    yield f'<path d="M{left} {TOP}V{BOTTOM}h{PANEL}" fill="none" stroke="#999"/>\n'
    yield _text(left - 6, BOTTOM, f"{low:.2g}", anchor="end")
    yield _text(left - 6, TOP + 8, f"{high:.2g}", anchor="end")
    yield _text(left, BOTTOM + 18, "0")
    yield _text(left + PANEL, BOTTOM + 18, f"{right:g}", anchor="end")
    yield _text(left + PANEL / 2, BOTTOM + 18, label, anchor="middle")
    for number, (name, own) in enumerate(curves.items()):
        colour = COLOURS.get(name.split()[-1], RED)
        if len(own) == 3:
            band = place([*own[1], *reversed(own[2])])
            yield f'<polygon points="{band}" fill="{colour}" opacity="0.2"/>\n'
        yield f'<polyline points="{place(own[0])}" fill="none" stroke="{colour}" stroke-width="2"/>\n'
        top = BOTTOM - 30 if up else TOP + 8
        yield _text(left + PANEL, top + 14 * number, name, fill=colour, anchor="end")


def _text(
    x: float, y: float, text: str, *, size: int = 12, fill: str = "#222", anchor: str = "start"
) -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>\n"
