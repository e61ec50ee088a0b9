"""Turns a quality report into one self-contained HTML page with charts as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from markupsafe import Markup

from queuekeeper.clock import DAY_MS, HOUR_MS
from queuekeeper.jobs.findings import Status
from queuekeeper.quality.judge.store import DepthBucket, Verdict
from queuekeeper.quality.report.model import (
    CohortLine,
    Depths,
    ExpiryTimeline,
    HeatCell,
    MemoryForecast,
    PublishedReport,
)
from queuekeeper.report.charts import WIDE_PX, axis, field, marks, pictures, told
from queuekeeper.report.figures import harmless, instant, number, size, unit_of
from queuekeeper.report.page import render_page
from queuekeeper.sessions.pages import STORES
from queuekeeper.wording import number_of

VERDICTS = {
    Verdict.PASSED: ("Passed", "good", "✓"),
    Verdict.WARNED: ("Passed with warnings", "wait", "!"),
    Verdict.FAILED: ("Failed", "bad", "✗"),
    Verdict.RUNNING: ("Not finished", "wait", "…"),
}

STATES = {
    "passed": ("✓", "passed"),
    "info": ("i", "failed, for information"),
    "warning": ("!", "failed, warning"),
    "critical": ("✗", "failed, critical"),
    "known": ("k", "failed, known issue"),
    "broken": ("?", "could not be made"),
    "not run": ("·", "not run"),
}
"""State of a check in a run -> mark and words. Colour only repeats them."""

MEBIBYTE = 1_048_576


def render(report: PublishedReport, *, json_name: str, json_sha256: str) -> str:
    """Return the page.

    :param json_name: file name of the JSON report beside the page.
    :param json_sha256: hash of that file, which the page states.
    """
    title, tone, mark = VERDICTS[report.verdict]
    return render_page(
        "queuekeeper.quality.report",
        report=report,
        verdict_title=title,
        verdict_tone=tone,
        verdict_mark=mark,
        stores=STORES,
        store_words=" and ".join(STORES[profile.store] for profile in report.profiles) or "no store",
        states=STATES,
        passed=sum(line.status is Status.PASSED for line in report.results),
        value=value_words,
        cell_words=cell_words,
        bucket_words=bucket_words,
        depths=[(depths, depth_charts(depths)) for depths in report.depths],
        expiry=[(timeline, expiry_charts(timeline), held_charts(timeline)) for timeline in report.expiry],
        memory_charts=memory_charts(report.memory),
        cohorts=[(line, *cohort_words(line)) for line in report.cohorts],
        json_name=json_name,
        json_sha256=json_sha256,
    )


def value_words(value: object) -> str:
    """Return a value of an example: numbers as formatted numbers, anything else as escaped text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return number(value).replace("-", "−")
    return harmless(value)


def cell_words(cell: HeatCell) -> str:
    """Return the words of a cell of the heat map."""
    words = STATES[cell.state][1]
    return f"{words}, {number_of(cell.unexpected, 'queue')}" if cell.unexpected > 0 else words


def bucket_words(bucket: DepthBucket) -> str:
    """Return the span of a bucket."""
    if bucket.high is None:
        return f"{bucket.low:,} and more"
    return f"{bucket.low:,}" if bucket.high == bucket.low else f"{bucket.low:,}–{bucket.high:,}"


def cohort_words(line: CohortLine) -> tuple[str, str, str]:
    """Return state, mark and words of a cohort on the board."""
    text = f"{number_of(line.queues, 'queue')}, {number_of(line.messages, 'message')}, {line.faulty_queues:,} faulty"
    if not line.faulty_queues:
        return "healthy", "✓", text
    # From one faulty queue in a hundred on, a person looks at the cohort rather than at single queues.
    return ("many", "✗", text) if line.faulty_queues * 100 >= line.queues else ("few", "!", text)


def depth_charts(depths: Depths) -> tuple[Markup, Markup] | None:
    """Return the histogram of queue lengths, wide and narrow; ``None`` when there are no queues."""
    values: list[dict[str, Any]] = [
        {
            "depth": words,
            "queues": bucket.queues or None,
            "told": told(
                at=number_of(1, "message") if bucket.low == bucket.high == 1 else f"{words} messages",
                value=number_of(bucket.queues, "queue"),
            ),
        }
        for bucket in depths.buckets
        for words in [bucket_words(bucket)]
    ]
    if not values:
        return None
    most = max(bucket.queues for bucket in depths.buckets)
    decades = [10**power for power in range(len(str(most)) + 1)]

    def chart(width: int) -> dict[str, Any]:
        names = axis(width, grid=False, names=[each["depth"] for each in values])
        # A bucket of one queue has to be seen, so the scale begins below one.
        scale = {"type": "log", "domain": [0.5, max(10, most)]}
        encoding = {
            "x": field("depth:N", title="messages in the queue", sort=None, axis=names),
            "y": field("queues:Q", title="queues", axis=axis(width, values=decades), scale=scale),
            "y2": {"datum": 0.5},
            "description": "told:N",
        }
        bars = marks(
            values, "bar", encoding=encoding, color="var(--accent-soft)", stroke="var(--accent)", strokeWidth=1
        )
        return bars | {"height": 180 if width == WIDE_PX else 150}

    queues = sum(bucket.queues for bucket in depths.buckets)
    return pictures(chart, label=f"Lengths of {number_of(queues, 'queue')}; both scales are logarithmic")


def expiry_charts(timeline: ExpiryTimeline) -> list[tuple[Markup, Markup]]:
    """Return charts of what expires over time, in bytes and in messages, each wide and narrow; may be empty."""
    if not timeline.points:
        return []
    start, hours = timeline.points[0].at_ms, timeline.span_ms / HOUR_MS
    ahead = _Ahead.of(timeline)
    unit_bytes, unit = unit_of(max(point.payload_bytes for point in timeline.points) / hours)
    values = [
        {
            "ahead": (point.at_ms - start) / ahead.unit_ms,
            "end": (point.at_ms - start + timeline.span_ms) / ahead.unit_ms,
            "bytes": point.payload_bytes / unit_bytes / hours,
            "messages": point.messages / hours,
            "told bytes": told(at=instant(point.at_ms), value=f"{size(point.payload_bytes / hours)} per hour"),
            "told messages": told(at=instant(point.at_ms), value=f"{number(point.messages / hours)} messages per hour"),
        }
        for point in timeline.points
    ]

    def chart(name: str, title: str, width: int) -> dict[str, Any]:
        encoding = {
            "x": ahead.field(width),
            "x2": "end",
            "y": field(f"{name}:Q", title=title, axis=axis(width, count=3), scale={"zero": True}),
            "y2": {"datum": 0},
            "description": f"told {name}:N",
        }
        return marks(values, "bar", encoding=encoding, color="var(--accent)") | {"height": 120}

    messages = sum(point.messages for point in timeline.points)
    payload_bytes = sum(point.payload_bytes for point in timeline.points)
    return [
        pictures(partial(chart, "bytes", f"{unit} per hour"), label=f"{size(payload_bytes)} expire over time"),
        pictures(
            partial(chart, "messages", "messages per hour"), label=f"{number(messages)} messages expire over time"
        ),
    ]


@dataclass(frozen=True)
class _Ahead:
    """How the time from a reading on is shown."""

    unit_ms: int
    unit: str

    @classmethod
    def of(cls, timeline: ExpiryTimeline) -> Self:
        """Return hours for a timeline that is shorter than two days, else days."""
        is_short = len(timeline.points) * timeline.span_ms < 2 * DAY_MS
        return cls(HOUR_MS, "hours") if is_short else cls(DAY_MS, "days")

    def field(self, width: int) -> dict[str, Any]:
        title = f"{self.unit} from the reading"
        return field("ahead:Q", title=title, axis=axis(width, count=7), scale={"nice": False})


def held_charts(timeline: ExpiryTimeline) -> tuple[Markup, Markup] | None:
    """Return the chart of what is stored over time with and without cleanup, wide and narrow."""
    if not timeline.points:
        return None
    start, ahead = timeline.points[0].at_ms, _Ahead.of(timeline)
    unit_bytes, unit = unit_of(max(point.held_bytes for point in timeline.points))
    values = [
        {
            "ahead": (point.at_ms - start + timeline.span_ms) / ahead.unit_ms,
            "held": held / unit_bytes,
            "who": who,
            "line": told(series=who),
            "told": told(at=instant(point.at_ms + timeline.span_ms), value=f"{size(held)} {who}", series=who),
        }
        for point in timeline.points
        for who, held in (
            ("without cleanup", point.held_bytes),
            ("with cleanup", point.held_after_cleanup_bytes),
        )
    ]
    first, last = timeline.held_bytes, timeline.points[-1]
    # Where the falling lines are apart, their names are above the upper and below the lower line.
    middle = len(timeline.points) // 2 * 2
    upper, lower = [values[middle]], [values[middle + 1]]

    def told_apart(width: int) -> dict[str, Any]:
        scale = {"domain": ["without cleanup", "with cleanup"], "range": ["var(--bad)", "var(--good)"]}
        return {
            "x": ahead.field(width),
            "y": field("held:Q", title=f"{unit} held", axis=axis(width, count=4), scale={"zero": True}),
            "color": field("who:N", legend=None, scale=scale),
        }

    def chart(width: int) -> dict[str, Any]:
        shared = told_apart(width)
        # The lines differ by their dashes, too, and are labelled.
        scale = {"domain": ["without cleanup", "with cleanup"], "range": [[6, 3], [1, 0]]}
        dashed = shared | {"strokeDash": field("who:N", legend=None, scale=scale), "description": "line:N"}
        named = shared | {"text": "who:N", "description": "line:N"}
        layers = [
            marks(values, "line", encoding=dashed, interpolate="step-before", strokeWidth=2),
            marks(upper, "text", encoding=named, align="left", dy=-10, fontSize=12),
            marks(lower, "text", encoding=named, align="right", dy=16, fontSize=12),
            # Seen only where a pointer is.
            marks(values, "point", encoding=shared | {"description": "told:N"}, filled=True, size=60, opacity=0),
        ]
        return {"layer": layers, "height": 160}

    return pictures(
        chart,
        label=f"{size(first)} are held now; at the end {size(last.held_bytes)} without cleanup, "
        f"{size(last.held_after_cleanup_bytes)} with cleanup",
    )


def memory_charts(memory: MemoryForecast) -> tuple[Markup, Markup] | None:
    """Return the chart of memory in use, its forecast and the limit, wide and narrow; ``None`` without a forecast."""
    if memory.bytes_per_day is None or memory.low_per_day is None or memory.high_per_day is None:
        return None
    now = memory.measured[-1]
    used = [
        {
            "day": (point.at_ms - now.at_ms) / DAY_MS,
            "used": point.used_bytes / MEBIBYTE,
            "told": told(at=instant(point.at_ms), value=f"{size(point.used_bytes)} in use"),
        }
        for point in memory.measured
    ]
    ahead = [
        {
            "day": day,
            "used": max(0.0, now.used_bytes + memory.bytes_per_day * day) / MEBIBYTE,
            "low": max(0.0, now.used_bytes + memory.low_per_day * day) / MEBIBYTE,
            "high": max(0.0, now.used_bytes + memory.high_per_day * day) / MEBIBYTE,
        }
        for day in (0.0, memory.horizon_days)
    ]
    limit = [{"limit": memory.limit_bytes / MEBIBYTE, "name": "maxmemory"}] if memory.limit_bytes else []

    def chart(width: int) -> dict[str, Any]:
        x = field("day:Q", title="days from this run", axis=axis(width, count=7), scale={"nice": False})
        y = field("used:Q", title="MiB in use", axis=axis(width, count=4), scale={"zero": True})
        band, place = {"x": x, "y": "low:Q", "y2": "high"}, {"x": x, "y": y}
        layers = [
            marks(ahead, "area", encoding=band, color="var(--accent-soft)", opacity=0.7),
            marks(ahead, "line", encoding=place, color="var(--accent)", strokeDash=[5, 3]),
            marks(used, "line", encoding=place, color="var(--accent)"),
            marks(
                used, "point", encoding=place | {"description": "told:N"}, color="var(--accent)", filled=True, size=24
            ),
        ]
        if limit:
            named = {"y": "limit:Q", "text": "name:N"}
            layers += [
                marks(limit, "rule", encoding={"y": "limit:Q"}, color="var(--bad)", strokeWidth=1.5),
                marks(limit, "text", encoding=named, align="left", x=4, dy=12, fontSize=12, color="var(--bad)"),
            ]
        return {"layer": layers, "height": 200}

    return pictures(
        chart,
        label=f"Memory: {size(now.used_bytes)} in use, changing by {size(memory.bytes_per_day)} a day"
        + (f", limit {size(memory.limit_bytes)}" if memory.limit_bytes else ", no limit"),
    )
