"""Charts of Vega-Lite as inline SVG in the colours of the page, light or dark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from markupsafe import Markup

WIDE_PX, NARROW_PX = 1_040, 360
"""Charts are drawn twice: text that is scaled down with its picture cannot be read on a telephone."""

_KINDS = {"Q": "quantitative", "N": "nominal", "O": "ordinal", "T": "temporal"}
_STYLE: dict[str, Any] = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.1.0.json",
    "background": "transparent",
    "padding": 2,
    "autosize": {"type": "fit-x", "contains": "padding"},
    "config": {
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
        "axis": {
            "gridColor": "var(--line)",
            "labelColor": "var(--muted)",
            "titleColor": "var(--muted)",
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 10,
        },
        "view": {"stroke": None},
    },
}
"""What Vega-Lite is told of every chart."""

_CHARACTER_PX = 7
"""Width of a character of a label."""


def field(shorthand: str, **options: Any) -> dict[str, Any]:
    """Return an encoding of a column of the rows.

    :param shorthand: its name and the first letter of what it holds: ``rate:Q`` of quantities, ``:N`` of names, ``:O``
        of names in an order, ``:T`` of instants; without a letter for the other end of what another encoding begins.
    :param options: as Vega-Lite calls them; ``None`` switches one off.
    """
    name, _, kind = shorthand.partition(":")
    return {"field": name} | ({"type": _KINDS[kind]} if kind else {}) | options


def marks(values: list[dict[str, Any]], kind: str, *, encoding: Mapping[str, Any], **style: Any) -> dict[str, Any]:
    """Return the marks that a chart has for some rows.

    :param kind: bar, line, area, point, rule or text.
    :param encoding: what the marks say by place, colour or text: each a :func:`field`, or the shorthand of one.
    :param style: what all of them have alike, as Vega-Lite calls it.
    """
    told_by = {name: field(each) if isinstance(each, str) else each for name, each in encoding.items()}
    return {"data": {"values": values}, "mark": {"type": kind} | style, "encoding": told_by}


def axis(
    width: int,
    *,
    count: int | None = None,
    values: list[int] | None = None,
    grid: bool = True,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return an axis in the reports' style.

    :param width: of the chart: a narrow one has fewer labels.
    :param count: about how many labels an axis of numbers has.
    :param values: where its labels stand, in place of a count.
    :param grid: false for an axis of names.
    :param names: labels below a chart; they are written upwards where they do not fit side by side.
    """
    options: dict[str, Any] = {
        "grid": grid,
        "ticks": False,
        "domain": False,
        "labelPadding": 8,
        "minExtent": 0 if grid else 72,
    }
    if names:
        name_px = _CHARACTER_PX * max(map(len, names))
        fits = width >= len(names) * (name_px + _CHARACTER_PX)
        options |= {"labelAngle": 0 if fits else -90, "minExtent": 0 if fits else name_px}
    if count is not None:
        options |= {"tickCount": count if width == WIDE_PX else min(count, 3), "format": ",.3~f"}
    if values is not None:
        options |= {"values": values, "format": ",.3~f"}
    return options


def pictures(draw: Callable[[int], dict[str, Any]], *, label: str) -> tuple[Markup, Markup]:
    """Draw a chart wide and narrow; the page shows the one that fits.

    :param draw: returns the chart in a width: marks, or ``layer`` with several, and a height.
    :param label: what the chart says, for those who cannot see it.
    """
    wide, narrow = ({"width": width} | draw(width) for width in (WIDE_PX, NARROW_PX))
    return picture(wide, label=label, name="wide"), picture(narrow, label=label, name="narrow")


def told(*, at: str = "", value: str = "", series: str = "") -> str:
    """Return what a mark says of itself, for its ``description``: the picture keeps it where a pointer finds it.

    :param at: instant, or whatever the mark is a figure of; none for a line, of which only the series is known.
    :param value: figure with its unit.
    :param series: name of the series that a reader can switch off; none where there is only one.
    """
    return f"{series}|{at}: {value}" if at else f"{series}|"


def sparkline(values: Sequence[float], *, words: Sequence[str], label: str, ceiling: float | None = None) -> Markup:
    """Return a small line without axes.

    :param words: of each value its instant and figure, such as ``2026-11-27 12:00:00 UTC: 300``.
    :param label: what the line says, for those who cannot see it.
    :param ceiling: value of a line at the top, such as a limit; none for the greatest value, without a line.
    """
    width, height, edge = 240, 40, 3
    low, high = (min(values), max(values)) if ceiling is None else (0.0, max(ceiling, *values))
    step, span = (width - 2 * edge) / max(len(values) - 1, 1), (high - low) or 1.0
    # Equal values are a line in the middle.
    heights = [(value - low) / span if high > low else 0.5 for value in values]
    points = [(edge + at * step, height - edge - each * (height - 2 * edge)) for at, each in enumerate(heights)]
    path = Markup(" ").join(Markup("{:.1f},{:.1f}").format(*point) for point in points)
    # The last point is seen; the others wait for a pointer.
    marks = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="var(--accent)"{}><title>{}</title></circle>').format(
            *point, "" if point is points[-1] else Markup(' opacity="0"'), each
        )
        for point, each in zip(points, words, strict=True)
    )
    top = height - edge - ((ceiling or 0) - low) / span * (height - 2 * edge)
    limit = Markup('<line x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="var(--bad)" stroke-dasharray="3 3"/>').format(
        width, top, top
    )
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 0 {} {}">{}'
        '<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5" stroke-linejoin="round"/>{}</svg>'
    ).format(label, width, height, "" if ceiling is None else limit, path, marks)


def picture(chart: dict[str, Any], *, label: str, name: str) -> Markup:
    """Return a chart as part of a page.

    :param name: class of the picture.
    """
    return _inline(_drawn(json.dumps(_STYLE | chart)), label=label, name=name)


@lru_cache(maxsize=32)
def _drawn(chart: str) -> str:
    """Return the drawing of a chart; pages that are looked at again mostly show the same ones."""
    import vl_convert

    return vl_convert.vegalite_to_svg(chart, show_warnings=False)


_OPENING = re.compile(r"<svg\b[^>]*?\bviewBox=\"([\d. -]+)\"[^>]*>")
_ARIA = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')
_TOLD = re.compile(r'<(\w+) aria-label="([^"|]*)\|([^"]*)"([^>]*?)(/?)>')


def _inline(svg: str, *, label: str, name: str) -> Markup:
    """Make a drawing part of the page: no namespaces (which look like addresses), one label in place of many roles.

    What marks say by :func:`told` becomes their titles, which a browser shows where the pointer rests.
    """
    match = _OPENING.search(svg)
    if match is None:
        raise ValueError("the chart is no SVG with a viewBox")
    width, height = match[1].split()[2:]
    opening = Markup('<svg class="{}" role="img" aria-label="{}" width="{}" height="{}" viewBox="{}">').format(
        name, label, width, height, match[1]
    )
    # Text in the drawing is axis titles and figures only; nothing of the source gets there.
    return opening + Markup(_ARIA.sub("", _TOLD.sub(_titled, svg[match.end() :])))  # noqa: S704


def _titled(match: re.Match[str]) -> str:
    tag, series, words, rest, closed = match.groups()
    opening = f"<{tag}" + (f' data-series="{series}"' if series else "") + rest
    return f"{opening}><title>{words}</title></{tag}>" if words else f"{opening}{closed}>"
