"""Takes imported sessions out of Redis again, as long as nobody has used them; the source is never touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from queuekeeper import lua
from queuekeeper.errors import MovedOn
from queuekeeper.keyspace import session_keys
from queuekeeper.redis_client import RedisClient

PAGE = 500


@dataclass(frozen=True, kw_only=True)
class DropReport:
    """What was taken out.

    :param sessions_dropped: sessions whose import is gone.
    :param sessions_moved_on: sessions left alone because somebody has used them.
    :param sessions_absent: sessions that this plan had not imported.
    """

    plan_id: str
    dry_run: bool
    sessions_dropped: int
    messages_dropped: int
    sessions_moved_on: int
    sessions_absent: int


def drop_import(client: RedisClient, client_id: str, *, prefix: str) -> int:
    """Remove one session's untouched import, page by page.

    :returns: how many messages were removed.
    :raises MovedOn: when the session has been used since it was imported.
    """
    keys = session_keys(client_id, prefix=prefix)
    script = lua.load("sessions/drop_import")
    caller = lua.ScriptCaller(client)
    plan_id = client.hget(keys.session, "plan")
    if plan_id is None:
        return 0
    dropped = 0
    while True:
        references: Any = client.zrange(keys.messages, 0, PAGE - 1)
        removed, remaining = caller.call(script, [*keys, *references], [plan_id])
        dropped += int(removed)
        if remaining == 0:
            return dropped


def drop_imports(
    client: RedisClient, client_ids: Iterable[str], *, plan_id: str, prefix: str, dry_run: bool
) -> DropReport:
    """Remove what a plan has imported, session by session; sessions that were used since are left alone.

    :param client_ids: sessions to look at.
    :param dry_run: count only.
    """
    dropped = messages = moved_on = absent = 0
    for client_id in client_ids:
        keys = session_keys(client_id, prefix=prefix)
        if client.hget(keys.session, "plan") != plan_id.encode():
            absent += 1
            continue
        if dry_run:
            dropped += 1
            messages += int(client.zcard(keys.messages))
            continue
        try:
            messages += drop_import(client, client_id, prefix=prefix)
            dropped += 1
        except MovedOn:
            moved_on += 1
    return DropReport(
        plan_id=plan_id,
        dry_run=dry_run,
        sessions_dropped=dropped,
        messages_dropped=messages,
        sessions_moved_on=moved_on,
        sessions_absent=absent,
    )
