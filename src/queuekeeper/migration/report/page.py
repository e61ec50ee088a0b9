"""Turns a migration report into one self-contained HTML page with charts as inline SVG."""

from __future__ import annotations

import itertools
from typing import Any

from markupsafe import Markup

from queuekeeper.migration.ledger.model import STEP_NOUNS
from queuekeeper.migration.report.model import MigrationReport, StepThroughput, Verdict
from queuekeeper.report.charts import WIDE_PX, axis, field, marks, pictures, told
from queuekeeper.report.figures import duration, number, size
from queuekeeper.report.page import render_page
from queuekeeper.wording import number_of

FATES = ("copied", "expired", "trimmed", "superseded", "quarantined", "unaccounted")

FATE_MEANINGS = {
    "copied": "in Redis, equal in every respect",
    "expired": "expired before the plan; not copied",
    "trimmed": "live, but beyond the limit per session",
    "superseded": "the session was used in Redis since; left alone",
    "quarantined": "cannot be copied as they are; kept in quarantine",
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


def render(report: MigrationReport, *, json_name: str, json_sha256: str) -> str:
    """Return the page.

    :param json_name: file name of the JSON report beside the page.
    :param json_sha256: hash of that file, which the page states.
    """
    title, tone, mark = VERDICTS[report.verdict]
    return render_page(
        "queuekeeper.migration.report",
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
        text = f"{state}, slots {line.slot_first:,} to {line.slot_last:,}, {number_of(line.messages, 'message')}"
        if line.ledger is not None:
            text += f", {line.ledger.unaccounted:,} unaccounted, {number_of(line.ledger.differences, 'difference')}"
        cells.append((line.cohort, state.replace(" ", "-"), STATE_MARKS.get(state, "?"), text))
    return cells


def throughput_charts(step: StepThroughput) -> tuple[Markup, Markup]:
    """Return the chart of a step's speed, wide and narrow."""
    # A line needs a point at the start of each run.
    values: list[dict[str, Any]] = []
    run, before_s = 0, 0.0
    for point in step.points:
        if point.run != run:
            values.append({"s": before_s, "rate": point.messages_per_s, "run": point.run})
        values.append({"s": point.elapsed_s, "rate": point.messages_per_s, "run": point.run})
        run, before_s = point.run, point.elapsed_s
    spoken = [
        {
            "s": point.elapsed_s,
            "rate": point.messages_per_s,
            "told": told(
                at=f"{duration(point.elapsed_s)} at work", value=f"{number(point.messages_per_s)} messages per second"
            ),
        }
        for point in step.points
    ]
    starts = [{"s": value["s"]} for before, value in itertools.pairwise(values) if before["run"] != value["run"]]

    def chart(width: int) -> dict[str, Any]:
        time = field("s:Q", title="seconds at work", axis=axis(width, count=5), scale={"nice": False})
        rate = field("rate:Q", title="messages per second", axis=axis(width, count=4), scale={"zero": True}, stack=None)
        area = marks(
            values,
            "area",
            encoding={"x": time, "y": rate, "detail": "run:N"},
            color="var(--accent-soft)",
            line={"color": "var(--accent)", "strokeWidth": 1.5},
            interpolate="step-before",  # a point is the mean of the span that it ends
        )
        resumed = marks(starts, "rule", encoding={"x": "s:Q"}, color="var(--muted)", strokeDash=[3, 3])
        # Seen only where a pointer is.
        points = marks(
            spoken,
            "point",
            encoding={"x": "s:Q", "y": "rate:Q", "description": "told:N"},
            color="var(--accent)", filled=True, size=60, opacity=0,
        )  # fmt: skip
        return {"layer": [area, resumed, points], "height": 180 if width == WIDE_PX else 150}

    label = (
        f"Speed of the {STEP_NOUNS[step.step]} over time: {number(step.messages)} messages "
        f"in {duration(step.seconds)}, {number(step.messages_per_s)} per second on average"
    )
    return pictures(chart, label=label)


def memory_charts(report: MigrationReport) -> tuple[Markup, Markup] | None:
    """Return the chart of forecast and measured memory, wide and narrow; none when there is nothing to compare."""
    estimate = report.memory.estimate
    if estimate is None:
        return None
    mebibyte = 1_048_576
    bars = [
        {"what": "forecast", "amount": report.memory.forecast_bytes / mebibyte, "colour": "var(--accent-soft)"},
        {"what": "measured", "amount": estimate.bytes / mebibyte, "colour": "var(--accent)"},
    ]
    interval = [{"what": "measured", "low": estimate.low_bytes / mebibyte, "high": estimate.high_bytes / mebibyte}]

    def chart(width: int) -> dict[str, Any]:
        x = field("amount:Q", title="MiB", axis=axis(width, count=5), scale={"zero": True})
        y = field("what:N", title=None, sort=None, axis=axis(width, grid=False))
        colour = field("colour:N", scale=None)
        drawn = marks(
            bars, "bar", encoding={"x": x, "y": y, "color": colour}, height=22, stroke="var(--accent)", strokeWidth=1
        )
        margin = marks(
            interval, "rule", encoding={"x": "low:Q", "x2": "high", "y": y}, color="var(--ink)", strokeWidth=1.5
        )
        return {"layer": [drawn, margin], "height": 80}

    label = f"Memory: {size(report.memory.forecast_bytes)} forecast, {size(estimate.bytes)} measured"
    return pictures(chart, label=label)
