"""Shows the first page: what waits for a person, health of the stores, queue lengths, lag, forecast of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fastapi import APIRouter
from fastapi.responses import Response

from queuekeeper.airflow.plugin.glance import comparable_runs, glances
from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Stores, together
from queuekeeper.airflow.run_index import forms_url
from queuekeeper.attention import find_matters
from queuekeeper.migration.ledger.status import PlanLine, list_plans
from queuekeeper.postgres import Connection, address, rows_of, translated_errors
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import TURNS
from queuekeeper.quality.report.gather import build_report
from queuekeeper.quality.report.model import PublishedReport
from queuekeeper.quality.report.page import VERDICTS, depth_charts, memory_charts
from queuekeeper.redis_client import RedisClient, ServerFacts, facts
from queuekeeper.sessions.pages import STORES
from queuekeeper.sql_statements import statement

# Drawing a chart takes a tenth of a second, and the newest run is the same for every reader.
_depth_charts = lru_cache(maxsize=16)(depth_charts)
_memory_charts = lru_cache(maxsize=16)(memory_charts)


@dataclass(frozen=True, kw_only=True)
class PostgresFacts:
    """State of the PostgreSQL server."""

    address: str
    version: str
    size_bytes: int  # of the database


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Messages that wait in the queues of one kind.

    :param age_words: words for what the age measures.
    :param age_s: age in seconds; ``None`` when nothing waits.
    """

    kind: str
    queues: int  # in which messages wait
    messages: int
    age_words: str
    age_s: float | None


def routes(site: Site, stores: Stores) -> APIRouter:
    """Return the routes of the overview."""
    router = APIRouter()

    @router.get("/")
    def overview() -> Response:
        # Wait once for a store that hangs, not once for each part of the page.
        latest, matters, waiting, postgres, redis, plans, runs = together(
            lambda: stores.from_postgres(lambda connection: quality_reports(connection, now_ms=site.clock())),
            lambda: stores.from_postgres(lambda connection: find_matters(connection, now_ms=site.clock())),
            lambda: stores.from_postgres(_waiting),
            lambda: stores.from_postgres(_postgres_facts),
            lambda: stores.from_redis(_redis_facts),
            lambda: stores.from_postgres(_plans),
            lambda: stores.from_postgres(comparable_runs),
        )
        report, held = latest.value or (None, None)
        return site.page(
            "overview.html.j2",
            section="",
            postgres=postgres,
            redis=redis,
            latest=latest,
            matters=matters,
            glances=[] if held is None else glances(held, runs.value or ()),
            report=report,
            held=held,
            parts=TURNS,
            names=STORES,
            verdict=None if report is None else VERDICTS[Verdict(report.verdict)],
            depths=[] if held is None else [(STORES[each.store], _depth_charts(each)) for each in held.depths],
            memory=None if held is None else _memory_charts(held.memory),
            waiting=waiting,
            plans=plans,
        )

    return router


def quality_reports(connection: Connection, *, now_ms: int) -> tuple[PublishedReport, PublishedReport] | None:
    """Return the reports of the newest quality run and of the last that read all queues, which may be the same one.

    :returns: ``None`` when no run has finished yet.
    """
    store = QualityStore(connection)
    ids = [run.quality_run_id for run in (*store.runs(limit=1, finished=True), *store.whole_runs())]
    if not ids:
        return None
    found = {each: build_report(connection, quality_run_id=each, now_ms=now_ms, forms_url=forms_url()) for each in ids}
    return found[ids[0]], found[ids[-1]]


def _postgres_facts(connection: Connection) -> PostgresFacts:
    with translated_errors(connection):
        row = connection.execute(statement("queuekeeper/queries/server_facts")).fetchone()
    version, size_bytes = row or ("", 0)
    return PostgresFacts(address=address(connection), version=version, size_bytes=size_bytes)


def _redis_facts(client: RedisClient) -> list[ServerFacts]:
    return facts(client)


def _waiting(connection: Connection) -> list[Waiting]:
    wanted = [{"quality_run_id": whole.quality_run_id} for whole in QualityStore(connection).whole_runs()]
    rows = [row for each in wanted for row in rows_of(connection, "quality/waiting_queues", each)]
    names = ("kind", "queues", "messages", "age_words", "age_s")
    return [Waiting(**dict(zip(names, row, strict=True))) for row in rows if row[1]]


def _plans(connection: Connection) -> list[PlanLine]:
    return list_plans(connection, limit=3)
