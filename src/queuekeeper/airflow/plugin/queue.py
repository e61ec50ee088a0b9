"""Explains one queue, serial by serial, and shows a payload to users with the right, for a recorded reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response

from queuekeeper.airflow.plugin.forms import read_body, read_whole_number
from queuekeeper.airflow.plugin.security import Guards, check_origin
from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Stores, panel
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.identity import HASH_DIGITS
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.quality.explain import Explanation, Fate, QueueReading, explain, read_queue, reveal_message
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.pages import DEFAULT_EXPLAINED
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sql_statements import statement

T = TypeVar("T")

HASH = re.compile(f"[0-9a-f]{{{HASH_DIGITS}}}")
_LINES = 500
_MARKS = {
    Fate.WAITING: "·", Fate.SENT: "→", Fate.RELEASED: "⇄", Fate.NOT_COPIED: "…", Fate.ACKED: "✓", Fate.EXPIRED: "⌛",
    Fate.TRIMMED: "✂", Fate.QUARANTINED: "!", Fate.UNDELIVERABLE: "⚠", Fate.UNKNOWN: "✗",
}  # fmt: skip
_PAYLOAD_SHOWN = 4_096


def routes(site: Site, stores: Stores, guards: Guards, hash_key: Callable[[], bytes], key_prefix: str) -> APIRouter:
    """Return the routes of one queue.

    :param hash_key: returns the key of client hashes.
    :param key_prefix: prefix of every Redis key.
    """
    router = APIRouter()

    def page(status: int = 200, **values: object) -> Response:
        given = {"client_id": "", "explanation": None, "lines": (), "problem": "", "message": None, "asked": None}
        return site.page(
            "queue.html.j2", section="queue", http_status=status, marks=_MARKS, most=_LINES, **given | values
        )

    def explained(client_id: str, *, only_gaps: bool) -> Response:
        try:
            found = _explain(stores, client_id, hash_key=hash_key(), key_prefix=key_prefix, now_ms=site.clock())
        except UsageError as error:
            return page(422, client_id=client_id, problem=str(error))
        lines = [line for line in found.lines if line.fate.is_gap] if only_gaps else list(found.lines)
        return page(client_id=client_id, explanation=found, lines=lines[:_LINES], asked=only_gaps, total=len(lines))

    @router.get("/queue")
    def form() -> Response:
        return page(total=0)

    # Servers log addresses, so the client id is sent as a form.
    @router.post("/queue")
    async def show(request: Request) -> Response:
        check_origin(request)
        sent = await read_body(request)
        return await asyncio.to_thread(explained, sent.get("client_id", ""), only_gaps="gaps" in sent)

    @router.get("/queue/{name}")
    def by_hash(name: str) -> Response:
        if not HASH.fullmatch(name):
            raise HTTPException(404, f"A queue's name in an address is its hash, {HASH_DIGITS} digits from 0 to f.")
        with stores.postgres() as connection:
            client_id = client_of(connection, name)
        if client_id is None:
            raise HTTPException(
                404,
                "No recorded profile has a client of this hash: its rows were dropped, or another key made the hash. "
                "Run queue_quality again, or look for the queue by its client id.",
            )
        return explained(client_id, only_gaps=False)

    @router.post("/queue/reveal", dependencies=[Depends(guards.reveal)])
    async def reveal(request: Request, actor: str = Depends(guards.user)) -> Response:
        check_origin(request)
        sent = await read_body(request)
        client_id, store = sent.get("client_id", ""), sent.get("store", "")
        problem = "Give the store, redis or postgres, and the packet id, a whole number."
        packet_id = read_whole_number(sent.get("packet_id", "").strip(), problem=problem)
        if store not in ("redis", "postgres"):
            raise HTTPException(422, problem)

        def load() -> PendingMessage | None:
            with ExitStack() as opened:
                connection = opened.enter_context(stores.postgres())
                client = opened.enter_context(stores.redis()) if store == "redis" else None
                return reveal_message(
                    client_id,
                    packet_id=packet_id,
                    store="redis" if store == "redis" else "postgres",
                    actor=actor,
                    reason=sent.get("reason", ""),
                    connection=connection,
                    client=client,
                    hash_key=hash_key(),
                    key_prefix=key_prefix,
                )

        try:
            message = await asyncio.to_thread(load)
        except UsageError as error:
            return page(422, client_id=client_id, problem=str(error), total=0)
        except RefusedError as error:
            return page(409, client_id=client_id, problem=str(error), total=0)
        if message is None:
            return page(404, client_id=client_id, problem="No message has this packet id any more.", total=0)
        return page(client_id=client_id, message=message, payload=payload_text(message.payload), total=0)

    return router


def payload_text(payload: bytes) -> tuple[str, str]:
    """Return a payload as text, or as hexadecimal digits if it is not text, and the name of that form."""
    shown = payload[:_PAYLOAD_SHOWN]
    cut = f", the first {_PAYLOAD_SHOWN:,} bytes" if len(payload) > len(shown) else ""
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        return shown.hex(" "), f"hexadecimal{cut}"
    return text, f"UTF-8{cut}"


def _explain(stores: Stores, client_id: str, *, hash_key: bytes, key_prefix: str, now_ms: int) -> Explanation:
    reading = read_both(stores, client_id, key_prefix=key_prefix)
    return explain(client_id, reading=reading, hash_key=hash_key, now_ms=now_ms)


def read_both(stores: Stores, client_id: str, *, key_prefix: str, limit: int = DEFAULT_EXPLAINED) -> QueueReading:
    """Return what the stores hold of a client's queue; a store that does not answer is named in the result.

    :param limit: number of messages to read from each store.
    :raises UsageError: when the client id is empty or too long.
    """
    problems: dict[str, str] = {}
    with ExitStack() as opened:

        def attempt(name: str, enter: Callable[[], T]) -> T | None:
            found = panel(enter)
            if found.problem:
                problems[name] = found.problem
            return found.value

        connection: Connection | None = attempt("PostgreSQL", lambda: opened.enter_context(stores.postgres()))
        client: RedisClient | None = attempt("Redis", lambda: opened.enter_context(stores.redis()))
        return read_queue(
            client_id, connection=connection, client=client, key_prefix=key_prefix, limit=limit, problems=problems
        )


def client_of(connection: Connection, name: str) -> str | None:
    """Return the client whose queue the newest profiles name by a hash; none when they have no such hash."""
    with translated_errors(connection):
        row = connection.execute(statement("quality/client_of_hash"), {"client_hash": name}).fetchone()
    return None if row is None else str(row[0])
