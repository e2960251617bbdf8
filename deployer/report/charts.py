"""Charts as Vega-Lite specifications: data and what to show of it; Vega draws them in the browser.

Colours are CSS variables of the page, so that a chart follows dark mode and print.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Spec = dict[str, Any]
Values = Sequence[float | None]

SHORTEST_GAP: Final = 5.0
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
COLOURS: Final = tuple(f"var(--c{number})" for number in range(8))
CONFIG: Final[Spec] = {
    "background": "transparent",
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 140,
    },
    "legend": {
        "labelColor": "var(--text)",
        "titleColor": "var(--soft)",
        "labelFontSize": 12,
        "orient": "top",
        "title": None,
        "columns": 4,
        "symbolOpacity": 1,
    },
}


def spec(body: Spec, values: Iterable[Mapping[str, Any]], *, height: int) -> Spec:
    """A whole specification as wide as its place on the page."""
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "data": {"values": list(values)},
        **body,
    }


def colour(names: Sequence[str], *, legend: bool | None = None) -> Spec:
    """One colour a name, the same in every chart of a page."""
    shown = len(names) > 1 if legend is None else legend
    known = list(dict.fromkeys(names))
    scale = {"domain": known, "range": [COLOURS[n % len(COLOURS)] for n in range(len(known))]}
    return {"field": "name", "type": "nominal", "scale": scale, **({} if shown else {"legend": None})}


def number(field: str, title: str, *, zero: bool = True, log: bool = False, **axis: Any) -> Spec:
    """A quantitative axis."""
    scale = {"type": "log"} if log else {"zero": zero, "nice": True}
    return {
        "field": field,
        "type": "quantitative",
        "scale": scale,
        "axis": {"title": title, "tickCount": 5, **axis},
    }


def loads(values: Sequence[float], title: str) -> Spec:
    """The axis of loads: doublings are equally far apart, and every measured one is named."""
    several = len(set(values)) > 1
    scale: Spec = {"type": "log", "base": 2, "nice": False, "padding": 14} if several else {}
    axis = {"title": title, "values": sorted(set(values)), "format": "~g", "grid": False}
    return {"field": "load", "type": "quantitative" if several else "ordinal", "scale": scale, "axis": axis}


def curves(
    values: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    x_title: str,
    y_title: str,
    height: int = 300,
    log: bool = False,
    legend: bool | None = None,
) -> Spec:
    """Lines with intervals over the load: rows of name, load, value, low, high and remark."""
    x = loads([row["load"] for row in values], x_title)
    dashes = {"field": "figure", "type": "nominal", "legend": None, "scale": {"range": [[], [5, 4]]}}
    drawn = {"y": number("value", y_title, log=log), "color": colour(names, legend=legend)}
    figured = any("figure" in row for row in values)
    told = [
        {"field": "name", "title": " "},
        {"field": "load", "title": x_title},
        {"field": "value", "title": y_title, "format": ",.4~r"},
        {"field": "span", "title": "95 % interval"},
        *([{"field": "figure", "title": "figure"}] if any("figure" in row for row in values) else []),
        {"field": "remark", "title": "remark"},
    ]
    layer = [
        {
            "mark": {"type": "errorbar", "ticks": True, "thickness": 1.5},
            "encoding": {**drawn, "y": number("low", y_title, log=log), "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "line", "strokeWidth": 2.5},
            "encoding": {**drawn, **({"strokeDash": dashes} if figured else {})},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {**drawn, "tooltip": told},
        },
    ]
    if not any(row.get("low") is not None for row in values):
        del layer[0]
    return spec({"encoding": {"x": x}, "layer": layer}, values, height=height)


def distributions(
    values: Sequence[Mapping[str, Any]], names: Sequence[str], *, x_title: str, height: int = 170
) -> Spec:
    """The share of requests that took at most so long: rows of name, value, share."""
    told = [
        {"field": "name", "title": " "},
        {"field": "value", "title": x_title, "format": ",.4~r"},
        {"field": "share", "title": "share of requests", "format": ".0%"},
    ]
    return spec(
        {
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
            "encoding": {
                "x": number("value", x_title, zero=False),
                "y": number("share", "requests", format=".0%", values=[0, 0.5, 0.9]),
                "color": colour(names, legend=False),
                "tooltip": told,
            },
        },
        values,
        height=height,
    )


def intervals(values: Sequence[Mapping[str, Any]], *, x_title: str, marks: Mapping[str, float]) -> Spec:
    """Ratios with their intervals, a row each: rows of label, value, low, high, name; and named marks on the scale."""
    y = {"field": "label", "type": "nominal", "sort": None, "axis": {"title": None}}
    verdict = {
        "field": "name",
        "type": "nominal",
        "scale": {
            "domain": ["PASS", "FAIL", "INCONCLUSIVE"],
            "range": ["var(--good)", "var(--bad)", "var(--doubt)"],
        },
    }
    rules = {"values": [{"at": at, "mark": name} for name, at in marks.items()]}
    place = {"field": "at", "type": "quantitative"}
    layer = [
        {
            "data": rules,
            "mark": {"type": "rule", "strokeDash": [4, 4], "color": "var(--soft)"},
            "encoding": {"x": place},
        },
        {
            "data": rules,
            "mark": {"type": "text", "align": "left", "dx": 4, "y": -6, "color": "var(--soft)"},
            "encoding": {"x": place, "text": {"field": "mark"}},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 5, "strokeCap": "round", "opacity": 0.55},
            "encoding": {
                "y": y,
                "x": number("low", x_title, zero=False),
                "x2": {"field": "high"},
                "color": verdict,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "y": y,
                "x": number("value", x_title, zero=False),
                "color": verdict,
                "tooltip": [
                    {"field": "label", "title": "load"},
                    {"field": "value", "title": "ratio", "format": ".3f"},
                    {"field": "span", "title": "interval"},
                    {"field": "name", "title": "verdict"},
                ],
            },
        },
    ]
    return spec({"layer": layer}, values, height=60 + 34 * len(values))


def stacks(
    values: Sequence[Mapping[str, Any]],
    parts: Mapping[str, str],
    *,
    x_title: str,
    y_title: str,
    limit: float,
) -> Spec:
    """Stacked bars: rows of label, part, order and value; a line at the limit."""
    bars = {
        "mark": {"type": "bar", "cornerRadius": 2},
        "encoding": {
            "x": {
                "field": "label",
                "type": "nominal",
                "sort": None,
                "axis": {"title": None, "labelAngle": 0},
            },
            "y": number("value", y_title),
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": list(parts), "range": list(parts.values())},
                "legend": None,
            },
            "order": {"field": "order", "sort": "ascending"},
            "tooltip": [
                {"field": "label", "title": x_title},
                {"field": "part", "title": "part"},
                {"field": "value", "title": y_title, "format": ".2f"},
            ],
        },
    }
    line = {
        "mark": {"type": "rule", "strokeDash": [4, 4], "color": "var(--bad)"},
        "encoding": {"y": {"datum": limit}},
    }
    return spec({"layer": [bars, line]}, values, height=200)


def spans(
    values: Sequence[Mapping[str, Any]],
    phases: Mapping[str, str],
    *,
    x_title: str,
    rows: Sequence[str],
) -> Spec:
    """Bars from begin to end, a line for each row: rows of row, phase, begin, end and detail."""
    return spec(
        {
            "mark": {"type": "bar", "height": {"band": 0.72}, "cornerRadius": 2},
            "encoding": {
                "y": {"field": "row", "type": "nominal", "sort": list(rows), "axis": {"title": None}},
                "x": number("begin", x_title),
                "x2": {"field": "end"},
                "color": {
                    "field": "phase",
                    "type": "nominal",
                    "scale": {"domain": list(phases), "range": list(phases.values())},
                    "legend": None,
                },
                "tooltip": [
                    {"field": "row", "title": " "},
                    {"field": "phase", "title": "phase"},
                    {"field": "detail", "title": "what"},
                ],
            },
        },
        values,
        height=50 + 30 * len(rows),
    )


def strips(names: Sequence[str], rows: Sequence[Values], step_seconds: float) -> Spec:
    """A row of cells for each name, darker for more (0 to 1); what was not measured stays empty."""
    values = [
        {"row": name, "begin": at * step_seconds, "end": (at + 1) * step_seconds, "value": round(value, 3)}
        for name, row in zip(names, rows, strict=True)
        for at, value in enumerate(row)
        if value is not None
    ]
    return spec(
        {
            "mark": {"type": "rect", "color": "var(--c0)"},
            "encoding": {
                "y": {"field": "row", "type": "nominal", "sort": list(names), "axis": {"title": None}},
                "x": number("begin", "seconds", grid=False),
                "x2": {"field": "end"},
                "opacity": {
                    "field": "value",
                    "type": "quantitative",
                    "scale": {"domain": [0, 1], "range": [0.06, 1]},
                    "legend": None,
                },
                "tooltip": [
                    {"field": "row", "title": " "},
                    {"field": "begin", "title": "second", "format": ".0f"},
                    {"field": "value", "title": "share", "format": ".0%"},
                ],
            },
        },
        values,
        height=40 + 24 * len(names),
    )


def series(names: Sequence[str], rows: Sequence[Values], step_seconds: float, *, y_title: str) -> Spec:
    """Lines over time; a gap is shown as a gap, but for what only comes every few seconds."""
    reach = int(SHORTEST_GAP / step_seconds)
    values = [
        {"name": name, "at": at * step_seconds, "value": value}
        for name, row in zip(names, rows, strict=True)
        for at, value in enumerate(row)
        if value is not None or not any(each is not None for each in row[max(0, at - reach) : at + reach + 1])
    ]
    return spec(
        {
            "mark": {"type": "line", "strokeWidth": 1.8, "invalid": "break-paths-filter-domains"},
            "encoding": {
                "x": number("at", "seconds", grid=False),
                "y": number("value", y_title),
                "color": colour(names),
                "tooltip": [
                    {"field": "name", "title": " "},
                    {"field": "at", "title": "second", "format": ".0f"},
                    {"field": "value", "title": y_title, "format": ",.4~r"},
                ],
            },
        },
        values,
        height=150,
    )
