"""Turns a migration report into one self-contained HTML page with charts as inline SVG; it works out no figures."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from queuekeeper.migration.report_model import MigrationReport, StepThroughput, Verdict

TEMPLATE = "report.html.j2"
WIDE_PX, NARROW_PX = 1_040, 360
"""Charts are drawn twice: text that is scaled down with its picture cannot be read on a telephone."""

FATES = ("copied", "expired", "trimmed", "superseded", "quarantined", "unaccounted")

FATE_MEANINGS = {
    "copied": "in Redis, equal in every respect",
    "expired": "life was over; not copied",
    "trimmed": "live, but beyond the limit per session",
    "superseded": "the session was used in Redis since; left alone",
    "quarantined": "cannot be copied as they are; see below",
    "unaccounted": "went nowhere that is known; must be 0",
}

DIFFERENCE_MEANINGS = {
    "missing": "The message is not in Redis.",
    "unexpected": "Redis holds a message that should not be there.",
    "order": "The message is at another place in the queue.",
    "packet_id": "The message has another packet id.",
    "payload": "The payload differs.",
    "properties": "A topic, flag or MQTT 5 property differs.",
    "expiry": "The message ends at another instant.",
    "last_packet_id": "The session's last packet id differs.",
    "unreadable": "What Redis holds cannot be read as a message.",
    "session_missing": "The session is not in Redis.",
}

STATE_MARKS = {"planned": "·", "copying": "…", "copied": "→", "verified": "✓", "failed": "✗", "left out": "–"}

VERDICTS = {
    Verdict.BALANCED: ("Balanced", "good", "✓"),
    Verdict.NOT_BALANCED: ("Not balanced", "bad", "✗"),
    Verdict.INCOMPLETE: ("Not complete", "wait", "…"),
    Verdict.NOT_VERIFIED: ("Not verified yet", "wait", "…"),
}


def number(value: int | float) -> str:
    """Return a count with thousands separators."""
    return f"{round(value):,}"


def size(value: int | float) -> str:
    """Return bytes in the unit that reads best, for example ``62.1 MiB``."""
    amount = float(value)
    if abs(amount) < 1024:
        return f"{amount:,.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if abs(amount) < 1024 or unit == "TiB":
            break
    return f"{amount:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Return a span of time in words, for example ``2 min 05 s``."""
    if seconds < 60:
        return f"{seconds:,.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def instant(at_ms: int) -> str:
    """Return an instant as date and time in UTC."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms:,} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def percent(share: float) -> str:
    """Return a share in per cent; what is there is never shown as nothing, what is missing never as all."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    """Return a deviation in per cent with its sign."""
    return f"{share * 100:+.1f} %".replace("-", "−")


def words(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("queuekeeper.migration", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "number": number,
        "size": size,
        "duration": duration,
        "instant": instant,
        "percent": percent,
        "signed_percent": signed_percent,
        "words": words,
    }
    return environment


def render(report: MigrationReport, *, json_name: str, json_sha256: str) -> str:
    """Return the page.

    :param json_name: file name of the JSON report beside the page.
    :param json_sha256: hash of that file, which the page states.
    """
    title, tone, mark = VERDICTS[report.verdict]
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            report=report,
            plan=report.plan,
            verdict_title=title,
            verdict_tone=tone,
            verdict_mark=mark,
            fates=[(name, getattr(report.totals, name), FATE_MEANINGS[name]) for name in FATES],
            bar=_bar(report),
            board=_board(report),
            difference_meanings=DIFFERENCE_MEANINGS,
            quarantine_most=max((line.open + line.replayed for line in report.quarantine), default=0),
            throughput=[(step, throughput_charts(step)) for step in report.throughput],
            memory_charts=memory_charts(report),
            json_name=json_name,
            json_sha256=json_sha256,
        )
    )


def _bar(report: MigrationReport) -> list[tuple[str, float, float]]:
    """Return the pieces of the ledger's bar as ``(fate, start, width)`` in thousandths; what exists can be seen."""
    values = [(name, abs(getattr(report.totals, name))) for name in FATES]
    total = sum(value for _, value in values)
    if not total:
        return []
    widths = [(name, max(4.0, value * 1_000 / total)) for name, value in values if value]
    scale = 1_000 / sum(width for _, width in widths)
    pieces, start = [], 0.0
    for name, width in widths:
        pieces.append((name, round(start, 1), round(width * scale, 1)))
        start += width * scale
    return pieces


def _board(report: MigrationReport) -> list[tuple[int, str, str, str]]:
    """Return the cells of the cohort board as ``(number, state, mark, words)``."""
    cells = []
    for line in report.cohorts:
        state = line.state if line.chosen else "left out"
        text = f"{state}, slots {line.slot_first:,} to {line.slot_last:,}, {line.messages:,} messages"
        if line.ledger is not None:
            text += f", {line.ledger.unaccounted:,} unaccounted, {line.ledger.differences:,} differences"
        cells.append((line.cohort, state.replace(" ", "-"), STATE_MARKS.get(state, "?"), text))
    return cells


def throughput_charts(step: StepThroughput) -> tuple[Markup, Markup]:
    """Return the chart of a step's speed, wide and narrow."""
    import altair as alt

    # A line needs a point at the start of each run.
    values: list[dict[str, Any]] = []
    run, before_s = 0, 0.0
    for point in step.points:
        if point.run != run:
            values.append({"s": before_s, "rate": point.messages_per_s, "run": point.run})
        values.append({"s": point.elapsed_s, "rate": point.messages_per_s, "run": point.run})
        run, before_s = point.run, point.elapsed_s
    starts = [{"s": value["s"]} for before, value in itertools.pairwise(values) if before["run"] != value["run"]]

    def chart(width: int) -> Any:
        area = (
            _chart(values)
            .mark_area(
                color="var(--accent-soft)",
                line={"color": "var(--accent)", "strokeWidth": 1.5},
                interpolate="step-before",  # a point is the mean of the span that it ends
            )
            .encode(
                x=alt.X("s:Q", title="seconds at work", axis=_axis(width, count=5), scale=alt.Scale(nice=False)),
                y=alt.Y(
                    "rate:Q",
                    title="messages per second",
                    axis=_axis(width, count=4),
                    scale=alt.Scale(zero=True),
                    stack=None,
                ),
                detail="run:N",
            )
        )
        resumed = _chart(starts).mark_rule(color="var(--muted)", strokeDash=[3, 3]).encode(x="s:Q")
        return (area + resumed).properties(width=width, height=180 if width == WIDE_PX else 150)

    label = (
        f"Speed of the {step.step} over time: {number(step.messages)} messages in {duration(step.seconds)}, "
        f"{number(step.messages_per_s)} per second on average"
    )
    return _picture(chart(WIDE_PX), label=label, name="wide"), _picture(chart(NARROW_PX), label=label, name="narrow")


def memory_charts(report: MigrationReport) -> tuple[Markup, Markup] | None:
    """Return the chart of forecast and measured memory, wide and narrow; none when there is nothing to compare."""
    import altair as alt

    estimate = report.memory.estimate
    if estimate is None:
        return None
    mebibyte = 1_048_576
    bars = [
        {"what": "forecast", "amount": report.memory.forecast_bytes / mebibyte, "colour": "var(--accent-soft)"},
        {"what": "measured", "amount": estimate.bytes / mebibyte, "colour": "var(--accent)"},
    ]
    interval = [{"what": "measured", "low": estimate.low_bytes / mebibyte, "high": estimate.high_bytes / mebibyte}]

    def chart(width: int) -> Any:
        y = alt.Y("what:N", title=None, sort=None, axis=_axis(width, grid=False))
        drawn = (
            _chart(bars)
            .mark_bar(height=22, stroke="var(--accent)", strokeWidth=1)
            .encode(
                x=alt.X("amount:Q", title="MiB", axis=_axis(width, count=5), scale=alt.Scale(zero=True)),
                y=y,
                color=alt.Color("colour:N", scale=None),
            )
        )
        margin = _chart(interval).mark_rule(color="var(--ink)", strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y)
        return (drawn + margin).properties(width=width, height=80)

    label = f"Memory: {size(report.memory.forecast_bytes)} forecast, {size(estimate.bytes)} measured"
    return _picture(chart(WIDE_PX), label=label, name="wide"), _picture(chart(NARROW_PX), label=label, name="narrow")


def _chart(values: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.Data(values=values))  # type: ignore[no-untyped-call]


def _axis(width: int, *, count: int | None = None, grid: bool = True) -> Any:
    import altair as alt

    options: dict[str, Any] = {
        "grid": grid,
        "ticks": False,
        "domain": False,
        "labelPadding": 8,
        "minExtent": 0 if grid else 72,
    }
    if count is not None:
        options |= {"tickCount": count if width == WIDE_PX else min(count, 3), "format": ",.3~f"}
    return alt.Axis(**options)


def _picture(chart: Any, *, label: str, name: str) -> Markup:
    import vl_convert

    font = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
    styled = (
        chart.properties(background="transparent", padding=2, autosize={"type": "fit-x", "contains": "padding"})
        .configure(font=font)
        .configure_axis(
            gridColor="var(--line)",
            labelColor="var(--muted)",
            titleColor="var(--muted)",
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=10,
        )
        .configure_view(stroke=None)
    )
    return _inline(vl_convert.vegalite_to_svg(styled.to_json(), show_warnings=False), label=label, name=name)


_OPENING = re.compile(r"<svg\b[^>]*?\bviewBox=\"([\d. -]+)\"[^>]*>")
_ARIA = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')


def _inline(svg: str, *, label: str, name: str) -> Markup:
    """Make a drawing part of the page: no namespaces (which look like addresses), one label in place of many roles."""
    match = _OPENING.search(svg)
    if match is None:
        raise ValueError("the chart is no SVG with a viewBox")
    width, height = match[1].split()[2:]
    opening = Markup('<svg class="{}" role="img" aria-label="{}" width="{}" height="{}" viewBox="{}">').format(
        name, label, width, height, match[1]
    )
    # Text in the drawing is axis titles and figures only; nothing of the source gets there.
    return opening + Markup(_ARIA.sub("", svg[match.end() :]))  # noqa: S704
