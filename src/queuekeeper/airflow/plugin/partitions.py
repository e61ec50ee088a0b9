"""Shows the coverage of partitioned tables as bars: premade, live, retired, missing, with marks such as the present."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Panel, Stores, panel
from queuekeeper.airflow.run_index import forms_url
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.model import Coverage
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.timeline import Bar, BarState, Timeline, table_timeline
from queuekeeper.postgres import Connection
from queuekeeper.report.charts import WIDE_PX, axis, chart_of, pictures, told
from queuekeeper.report.figures import size
from queuekeeper.wording import number_of

ROWS = [str(state) for state in (BarState.RETIRED, BarState.LIVE, BarState.PREMADE, BarState.GAP)]
_COLOURS = ["var(--muted)", "var(--accent)", "var(--accent-soft)", "var(--bad)"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table on the page.

    :param charts: wide and narrow chart; ``None`` if there is nothing to draw.
    """

    policy: PartitionPolicy
    timeline: Timeline
    coverage: Coverage
    charts: tuple[Markup, Markup] | None


def routes(site: Site, stores: Stores) -> APIRouter:
    """Return the routes of partitions."""
    router = APIRouter()

    @router.get("/partitions")
    def partitions() -> Response:
        def load(connection: Connection) -> list[tuple[str, Panel[Table]]]:
            return [
                (policy.table, panel(lambda policy=policy: _table(connection, policy, site.clock())))  # type: ignore[misc]
                for policy in load_policies(connection)
            ]

        return site.page("partitions.html.j2", section="partitions", tables=stores.from_postgres(load))

    return router


def _table(connection: Connection, policy: PartitionPolicy, now_ms: int) -> Table:
    timeline = table_timeline(connection, policy=policy, now_ms=now_ms, only_read=True)
    return Table(
        policy=policy,
        timeline=timeline,
        coverage=coverage(connection, policy=policy, now_ms=now_ms, only_read=True).with_forms({}, forms_url()),
        charts=coverage_charts(timeline),
    )


@lru_cache(maxsize=64)
def coverage_charts(timeline: Timeline) -> tuple[Markup, Markup] | None:
    """Return the bars of one table, wide and narrow; each state has its own row, so that colour only repeats it."""
    import altair as alt  # noqa: PLC0415 - importing it takes seconds

    if not timeline.bars:
        return None
    scale = 1.0 if timeline.seconds_per_position is None else timeline.seconds_per_position * 1_000
    kind = "Q" if timeline.seconds_per_position is None else "T"
    bars: list[dict[str, Any]] = [
        {
            "from": bar.lower * scale,
            "to": bar.upper * scale,
            "state": str(bar.state),
            "told": told(at=f"{bar.lower_text} to {bar.upper_text}", value=_words(bar)),
        }
        for bar in sorted(timeline.bars, key=lambda bar: bar.lower)
    ]
    middle = (min(bar["from"] for bar in bars) + max(bar["to"] for bar in bars)) / 2
    marks = [
        {
            "at": mark.position * scale,
            "mark": str(mark.kind),
            "row": at % 3,
            # A name beside the last marks would be cut off at the edge.
            "side": "left" if mark.position * scale < middle else "right",
        }
        for at, mark in enumerate(timeline.marks)
    ]

    def chart(width: int) -> Any:
        shared = axis(width, count=8)
        if kind == "T":
            # The bounds are stored and shown in UTC.
            shared = alt.Axis(
                grid=True,
                ticks=False,
                domain=False,
                labelPadding=8,
                tickCount=8 if width == WIDE_PX else 3,
                # A name that would be cut off at the edge is left out.
                labelBound=True,
            )
        x_scale = alt.Scale(type="utc", nice=False) if kind == "T" else alt.Scale(nice=False, zero=False)
        title = f"{timeline.key_column}{', UTC' if kind == 'T' else ''}"
        y = alt.Y("state:N", title=None, sort=ROWS, scale=alt.Scale(domain=ROWS), axis=axis(width, grid=False))
        drawn = (
            chart_of(bars)
            .mark_bar(height=18, stroke="var(--paper)", strokeWidth=1)
            .encode(
                x=alt.X(f"from:{kind}", title=title, axis=shared, scale=x_scale),
                x2="to",
                y=y,
                color=alt.Color("state:N", legend=None, scale=alt.Scale(domain=ROWS, range=_COLOURS)),
                description="told:N",
            )
        )
        rules = chart_of(marks).mark_rule(color="var(--ink)", strokeDash=[4, 3]).encode(x=f"at:{kind}")
        layers = [drawn, rules]
        for row in range(3):
            for side, dx in (("left", 3), ("right", -3)):
                texts = [each for each in marks if each["row"] == row and each["side"] == side]
                layers.append(
                    chart_of(texts)
                    .mark_text(align=side, dx=dx, y=-6 - 13 * row, fontSize=11, color="var(--ink)")
                    .encode(x=f"at:{kind}", text="mark:N")
                )
        return alt.layer(*layers).properties(width=width, height=120)

    counts = {state: sum(bar.partitions or 1 for bar in timeline.bars if str(bar.state) == state) for state in ROWS}
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return pictures(chart, label=f"Partitions of {timeline.table}: {words}")


def _words(bar: Bar) -> str:
    if bar.state is BarState.GAP:
        return "gap"
    return f"{number_of(bar.partitions, f'{bar.state} partition')}, {size(bar.bytes)}"
