"""Charts as plain SVG: strips of colour over time, lines, bars; no script, nothing fetched."""

from collections.abc import Sequence
from html import escape

WIDTH, LABELS, RIGHT = 860, 150, 60
STRIP, GAP = 18, 4
EMPTY = "var(--empty)"
COLOURS = ("#2563eb", "#ea580c", "#16a34a")

Values = Sequence[float | None]


def strips(names: Sequence[str], rows: Sequence[Values], step_seconds: float, *, title: str) -> str:
    """A row of cells for each name, darker for more (0 to 1); what was not measured is hatched out."""
    height = len(rows) * (STRIP + GAP) + 24
    parts = []
    for number, (name, values) in enumerate(zip(names, rows, strict=True)):
        y = number * (STRIP + GAP)
        parts.append(_text(LABELS - 8, y + STRIP - 5, name, anchor="end"))
        cell = (WIDTH - LABELS - RIGHT) / max(1, len(values))
        for place, value in enumerate(values):
            colour = EMPTY if value is None else "var(--ink)"
            opacity = 1 if value is None else round(0.06 + 0.94 * min(1.0, max(0.0, value)), 3)
            parts.append(
                f'<rect x="{LABELS + place * cell:.2f}" y="{y}" width="{cell + 0.3:.2f}" height="{STRIP}" '
                f'fill="{colour}" fill-opacity="{opacity}"><title>{_told(name, place * step_seconds, value)}</title></rect>'
            )
        known = [value for value in values if value is not None]
        mean = f"{sum(known) / len(known):.0%}" if known else "-"
        parts.append(_text(WIDTH - RIGHT + 8, y + STRIP - 5, mean))
    parts.append(_axis(height - 8, max((len(row) for row in rows), default=0) * step_seconds))
    return _svg(height, title, parts)


def lines(names: Sequence[str], rows: Sequence[Values], step_seconds: float, *, title: str) -> str:
    """Up to three lines on one scale from zero."""
    height, top = 140, 12
    most = max((value for row in rows for value in row if value is not None), default=0.0) or 1.0
    parts = [
        _text(LABELS - 8, top + 4, f"{most:.4g}", anchor="end"),
        _text(LABELS - 8, 110, "0", anchor="end"),
    ]
    parts.append(f'<line x1="{LABELS}" y1="110" x2="{WIDTH - RIGHT}" y2="110" class="axis"/>')
    for number, (name, values) in enumerate(zip(names, rows, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        for piece in _pieces(values):
            points = " ".join(
                f"{LABELS + place * (WIDTH - LABELS - RIGHT) / max(1, len(values) - 1):.1f},"
                f"{110 - (110 - top) * value / most:.1f}"
                for place, value in piece
            )
            if len(piece) == 1:
                x, y = points.split(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="1.5" fill="{colour}"/>')
            else:
                parts.append(
                    f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
                )
        parts.append(_text(8, top + 14 + 16 * number, name, colour=colour))
    parts.append(_axis(height - 8, max((len(row) for row in rows), default=0) * step_seconds))
    return _svg(height, title, parts)


def spans(rows: Sequence[tuple[str, float, float]], *, title: str) -> str:
    """Bars from begin to end on one time axis: name, begin, length in seconds."""
    total = max((begin + length for _, begin, length in rows), default=1.0) or 1.0
    scale, height = (WIDTH - LABELS - RIGHT) / total, len(rows) * (STRIP + GAP) + 24
    parts = []
    for number, (name, begin, length) in enumerate(rows):
        y = number * (STRIP + GAP)
        parts.append(_text(LABELS - 8, y + STRIP - 5, name, anchor="end"))
        parts.append(
            f'<rect x="{LABELS + begin * scale:.1f}" y="{y}" width="{max(1.0, length * scale):.1f}" '
            f'height="{STRIP}" fill="var(--ink)" fill-opacity="0.75"><title>{escape(name)}: {length:.1f} s</title></rect>'
        )
        parts.append(_text(WIDTH - RIGHT + 8, y + STRIP - 5, f"{length:.1f} s"))
    parts.append(_axis(height - 8, total))
    return _svg(height, title, parts)


def _pieces(values: Values) -> list[list[tuple[int, float]]]:
    """Runs without a hole: a gap is shown as a gap."""
    found: list[list[tuple[int, float]]] = []
    whole = False
    for place, value in enumerate(values):
        if value is None:
            whole = False
            continue
        if not whole:
            found.append([])
        found[-1].append((place, value))
        whole = True
    return found


def _told(name: str, at: float, value: float | None) -> str:
    shown = "not measured" if value is None else f"{value:.0%}"
    return escape(f"{name}, {at:.0f} s: {shown}")


def _axis(y: float, seconds: float) -> str:
    return _text(LABELS, y, "0 s") + _text(WIDTH - RIGHT, y, f"{seconds:.0f} s", anchor="end")


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "var(--text)") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )
