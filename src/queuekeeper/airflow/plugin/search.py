"""Finds a client, a queue, a run or a table by what a person has at hand, and leads to its page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from queuekeeper.airflow.plugin.forms import read_body
from queuekeeper.airflow.plugin.queue import HASH, client_of, read_both
from queuekeeper.airflow.plugin.security import check_origin
from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Panel, Stores, panel, together
from queuekeeper.jobs.store import Runs
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.postgres import Connection, rows_of
from queuekeeper.quality.explain import QueueReading
from queuekeeper.report.figures import number
from queuekeeper.wording import number_of

_MOST_RUNS = 20


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One thing that was found.

    :param path: address of its page, below that of the site; empty for a client, whose page is asked for by a form.
    """

    what: str
    name: str
    words: str
    path: str = ""


def routes(site: Site, stores: Stores, key_prefix: str) -> APIRouter:
    """Return the routes of the search; they need the right to read pages, as all routes do.

    :param key_prefix: prefix of every Redis key.
    """
    router = APIRouter()

    def page(text: str = "", *, problems: dict[str, str] | None = None, hits: list[Hit] | None = None) -> Response:
        return site.page("search.html.j2", section="search", searched=text, problems=problems or {}, hits=hits)

    def found(text: str) -> Response:
        recorded, client = together(
            lambda: stores.from_postgres(lambda connection: _recorded(connection, text.strip())),
            lambda: panel(lambda: read_both(stores, text, key_prefix=key_prefix, limit=1)),
        )
        read = {} if client.value is None else client.value.problems
        problems = {f"sessions in {store}": why for store, why in read.items()}
        problems |= {"sessions": client.problem} if client.problem else {}
        problems |= {"records of queues, runs and tables": recorded.problem} if recorded.problem else {}
        return page(text, problems=problems, hits=_clients(text, client) + (recorded.value or []))

    @router.get("/search")
    def form() -> Response:
        return page()

    # Servers log addresses, so what may be a client id is sent as a form.
    @router.post("/search")
    async def search(request: Request) -> Response:
        check_origin(request)
        text = (await read_body(request)).get("text", "")
        return await asyncio.to_thread(found, text) if text.strip() else page()

    return router


def _clients(client_id: str, read: Panel[QueueReading]) -> list[Hit]:
    if read.value is None:
        return []
    views = [(name, view) for name, view in (("PostgreSQL", read.value.source), ("Redis", read.value.target)) if view]
    words = [f"{number_of(view.messages, 'message')} in {name}" for name, view in views if view.exists]
    words += [f"{number(len(read.value.aside))} in quarantine"] if read.value.aside else []
    return [Hit(what="Client", name=client_id, words=", ".join(words))] if words else []


def _recorded(connection: Connection, text: str) -> list[Hit]:
    hits = []
    if HASH.fullmatch(text) and client_of(connection, text) is not None:
        hits.append(Hit(what="Queue", name=text, words="a client's, by its hash", path=f"queue/{text}"))
    hits += [
        Hit(
            what="Queue",
            name=text,
            words=f"{kind}; {number_of(messages, 'message')} waited at the newest run of queue_quality",
            path="quality",
        )
        for kind, messages in rows_of(connection, "quality/find_queues", {"text": text})
    ]
    hits += [
        Hit(
            what="Run",
            name=run.maintenance_run_id,
            words=f"{run.kind}, {run.state.value}{', paused' if run.paused else ''}",
            # It leads on to the page of a plan.
            path=f"runs/{run.kind}/{run.maintenance_run_id}",
        )
        for run in Runs(connection).find(text, limit=_MOST_RUNS)
    ]
    hits += [
        Hit(
            what="Table",
            name=policy.table,
            words=f"partitions of {policy.step}",
            path=f"partitions?{urlencode({'table': policy.table})}",
        )
        for policy in load_policies(connection)
        if text.lower() in policy.table.lower()
    ]
    return hits
