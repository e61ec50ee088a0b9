"""Shows the audit: who approved, changed and saw what, whether the chain is intact, and all entries as a file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi.responses import Response, StreamingResponse

from queuekeeper import audit
from queuekeeper.airflow.plugin.security import Guards
from queuekeeper.airflow.plugin.site import PLAIN_HEADERS, Site
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.postgres import Connection

_PAGE = 200
_LAST = 2**63 - 1
"""Greatest number that an entry can have."""


def routes(site: Site, stores: Stores, guards: Guards) -> APIRouter:
    """Return the routes of the audit."""
    router = APIRouter(dependencies=[Depends(guards.audit)])

    @router.get("/audit")
    def entries(
        actor: str = "",
        action: str = "",
        subject: str = "",
        since: str = "",
        until: str = "",
        before: Annotated[int | None, Query(ge=1, le=_LAST)] = None,
        verify: bool = False,
    ) -> Response:
        wanted = audit.AuditFilter(
            actor=actor or None,
            action=action or None,
            subject=subject or None,
            since=_day(since, "since"),
            until=_day(until, "until", later=timedelta(days=1)),
        )
        found = stores.from_postgres(
            lambda connection: audit.latest(connection, wanted=wanted, before_seq=before, limit=_PAGE)
        )
        chain = stores.from_postgres(_verified) if verify else None
        asked = {"actor": actor, "action": action, "subject": subject, "since": since, "until": until}
        shown = found.value or []
        return site.page(
            "audit.html.j2",
            section="audit",
            found=found,
            entries=[(entry, entry.effect_words) for entry in shown],
            chain=chain,
            asked=asked,
            filtered=any(asked.values()),
            actions=[str(each) for each in audit.Action],
            next_before=shown[-1].seq if len(shown) == _PAGE else None,
        )

    @router.get("/audit/export")
    def export() -> Response:
        def lines() -> Iterator[str]:
            with stores.postgres() as connection:
                yield from audit.export(connection)

        # Opened here, so that a database that is down gives a clear answer and not half a file.
        stream = lines()
        first = next(stream, "")

        def body() -> Iterator[str]:
            yield first
            yield from stream

        headers = PLAIN_HEADERS | {"Content-Disposition": 'attachment; filename="queuekeeper-audit.jsonl"'}
        return StreamingResponse(body(), media_type="application/jsonl", headers=headers)

    return router


def _verified(connection: Connection) -> audit.ChainReport:
    return audit.verify_chain(audit.read_chain(connection))


def _day(text: str, name: str, *, later: timedelta = timedelta()) -> datetime | None:
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=UTC) + later
    except (ValueError, OverflowError):
        raise HTTPException(422, f"{name} is not a day: write it as 2026-01-31.") from None
