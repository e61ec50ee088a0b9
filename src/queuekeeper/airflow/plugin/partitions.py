"""Shows the coverage of partitioned tables as bars: premade, live, retired, missing, with marks such as the present."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, HTTPException
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
from queuekeeper.report.charts import axis, field, marks, pictures, told
from queuekeeper.report.figures import size
from queuekeeper.wording import number_of

_TABLES = 20
"""Tables on one page: each takes some 50 ms to look at, and 18 kB to draw."""

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


@dataclass(frozen=True, kw_only=True)
class Part:
    """The tables that one page shows.

    :param names: names of all tables, by which a page is asked for.
    :param first: index of the first table of the page.
    """

    names: list[str]
    first: int
    tables: list[tuple[str, Panel[Table]]]


def routes(site: Site, stores: Stores) -> APIRouter:
    """Return the routes of partitions."""
    router = APIRouter()

    @router.get("/partitions")
    def partitions(table: str = "") -> Response:
        def load(connection: Connection) -> Part:
            policies = load_policies(connection)
            names = [policy.table for policy in policies]
            first = names.index(table) if table in names else 0
            if table and table not in names:
                raise HTTPException(404, f"No table {table} has a policy.")
            shown = [
                (policy.table, panel(lambda policy=policy: _table(connection, policy, site.clock())))  # type: ignore[misc]
                for policy in policies[first : first + _TABLES]
            ]
            return Part(names=names, first=first, tables=shown)

        return site.page("partitions.html.j2", section="partitions", part=stores.from_postgres(load))

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
    marked = [
        {
            "at": mark.position * scale,
            "mark": str(mark.kind),
            "row": at % 3,
            # A name beside the last marks would be cut off at the edge.
            "side": "left" if mark.position * scale < middle else "right",
        }
        for at, mark in enumerate(timeline.marks)
    ]

    def chart(width: int) -> dict[str, Any]:
        shared = axis(width, count=8)
        if kind == "T":
            # The bounds are stored and shown in UTC. A name that would be cut off at the edge is left out.
            shared = {name: shared[name] for name in ("grid", "ticks", "domain", "labelPadding", "tickCount")}
            shared["labelBound"] = True
        x_scale = {"type": "utc", "nice": False} if kind == "T" else {"nice": False, "zero": False}
        title = f"{timeline.key_column}{', UTC' if kind == 'T' else ''}"
        ranges = {
            "x": field(f"from:{kind}", title=title, axis=shared, scale=x_scale),
            "x2": "to",
            "y": field("state:N", title=None, sort=ROWS, scale={"domain": ROWS}, axis=axis(width, grid=False)),
            "color": field("state:N", legend=None, scale={"domain": ROWS, "range": _COLOURS}),
            "description": "told:N",
        }
        place = f"at:{kind}"
        layers = [
            marks(bars, "bar", encoding=ranges, height=18, stroke="var(--paper)", strokeWidth=1),
            marks(marked, "rule", encoding={"x": place}, color="var(--ink)", strokeDash=[4, 3]),
        ]
        for row in range(3):
            for side, dx in (("left", 3), ("right", -3)):
                texts = [each for each in marked if each["row"] == row and each["side"] == side]
                named = {"x": place, "text": "mark:N"}
                style: dict[str, Any] = {"align": side, "dx": dx, "y": -6 - 13 * row, "fontSize": 11}
                layers.append(marks(texts, "text", encoding=named, color="var(--ink)", **style))
        return {"layer": layers, "height": 120}

    counts = {state: sum(bar.partitions or 1 for bar in timeline.bars if str(bar.state) == state) for state in ROWS}
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return pictures(chart, label=f"Partitions of {timeline.table}: {words}")


def _words(bar: Bar) -> str:
    if bar.state is BarState.GAP:
        return "gap"
    return f"{number_of(bar.partitions, f'{bar.state} partition')}, {size(bar.bytes)}"
