"""Shows the quality of the queues: newest verdict, checks over the last runs, trend of faults, expiry, worst queues."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from queuekeeper.airflow.plugin.overview import quality_reports
from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.model import TURNS
from queuekeeper.quality.report.model import ExpiryTimeline, HeatMap
from queuekeeper.quality.report.page import STATES, VERDICTS, cell_words, expiry_charts, held_charts
from queuekeeper.report.charts import WIDE_PX, axis, field, marks, pictures, told
from queuekeeper.report.figures import instant
from queuekeeper.sessions.pages import STORES
from queuekeeper.wording import number_of

_FAILED = ("critical", "warning", "info", "broken", "known")


def routes(site: Site, stores: Stores) -> APIRouter:
    """Return the routes of the quality of queues."""
    router = APIRouter()

    @router.get("/quality")
    def quality() -> Response:
        latest = stores.from_postgres(lambda connection: quality_reports(connection, now_ms=site.clock()))
        report, held = latest.value or (None, None)
        return site.page(
            "quality.html.j2",
            section="quality",
            latest=latest,
            verdict=None if report is None else VERDICTS[Verdict(report.verdict)],
            report=report,
            held=held,
            parts=TURNS,
            states=STATES,
            stores=STORES,
            cell_words=cell_words,
            trend=None if report is None else trend_charts(report.heat),
            expiry=[] if held is None else [(each, *_expiry_charts(each)) for each in held.expiry],
        )

    return router


@lru_cache(maxsize=16)
def _expiry_charts(timeline: ExpiryTimeline) -> tuple[list[tuple[Markup, Markup]], tuple[Markup, Markup] | None]:
    return expiry_charts(timeline), held_charts(timeline)


@lru_cache(maxsize=16)
def trend_charts(heat: HeatMap) -> tuple[Markup, Markup] | None:
    """Return the chart of failed checks by run and severity, wide and narrow; ``None`` for fewer than two runs."""
    if len(heat.runs) < 2:
        return None
    values: list[dict[str, Any]] = [
        {
            "run": number,
            "state": STATES[state][1],
            "order": _FAILED.index(state),
            "checks": count,
            "told": told(at=instant(run.at_ms), value=f"{count} {STATES[state][1]}"),
        }
        for number, run in enumerate(heat.runs, start=1)
        for state in _FAILED
        if (count := sum(row.cells[number - 1].state == state for row in heat.rows))
    ]
    names = [STATES[state][1] for state in _FAILED]
    most = max(sum(row.cells[at].state in _FAILED for row in heat.rows) for at in range(len(heat.runs)))
    # No axis counts half a check.
    counted = list(range(0, most + 1, max(1, -(-most // 4))))
    colours = ["var(--bad)", "var(--wait)", "var(--accent-soft)", "var(--muted)", "var(--strong-line)"]

    def chart(width: int) -> dict[str, Any]:
        runs = list(range(1, len(heat.runs) + 1))
        numbered = axis(width, grid=False, names=[str(run) for run in runs])
        # The page's font is wider than the one that columns are measured with.
        legend = {"title": None, "orient": "top", "labelColor": "var(--ink)", "columnPadding": 48}
        legend["columns"] = 3 if width == WIDE_PX else 2
        encoding = {
            "x": field("run:O", title="run, the latest on the right", axis=numbered, scale={"domain": runs}),
            "y": field("checks:Q", title="checks that did not pass", axis=axis(width, values=counted)),
            "color": field("state:N", scale={"domain": names, "range": colours}, legend=legend),
            "order": "order:Q",
            "description": "told:N",
        }
        return marks(values, "bar", encoding=encoding, stroke="var(--paper)", strokeWidth=1) | {"height": 160}

    last = sum(row.cells[-1].state in _FAILED for row in heat.rows)
    return pictures(
        chart, label=f"Checks that did not pass over the last {number_of(len(heat.runs), 'run')}; {last} in the latest"
    )
