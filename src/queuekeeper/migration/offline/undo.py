"""Removes imported sessions from Redis if nobody has used them; the source is never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from queuekeeper import lua
from queuekeeper.errors import MovedOn
from queuekeeper.keyspace import PackedKeys, SessionKeys, packed_keys, session_keys
from queuekeeper.lua import scripts
from queuekeeper.redis_client import RedisClient, address_of, redis_errors
from queuekeeper.sessions.pages import Layout

PAGE = 500


@dataclass(frozen=True, kw_only=True)
class DropReport:
    """What an undo removed, or what a dry run would remove.

    :param sessions_dropped: sessions whose import was removed.
    :param messages_dropped: messages of these sessions, and messages removed from a session before somebody used it.
    :param sessions_moved_on: sessions left alone because somebody has used them.
    :param sessions_absent: sessions that this plan had not imported.
    """

    plan_id: str
    dry_run: bool
    sessions_dropped: int
    messages_dropped: int
    sessions_moved_on: int
    sessions_absent: int


@dataclass
class _Drop:
    """Removes one session's import.

    :ivar messages: messages removed so far.
    """

    caller: lua.ScriptCaller
    client: RedisClient
    prefix: str
    layout: Layout
    messages: int = 0

    def run(self, client_id: str, plan_id: str) -> None:
        """Remove page by page.

        :raises MovedOn: when the session has been used since it was imported.
        """
        keys = keys_of(client_id, prefix=self.prefix, layout=self.layout)
        if isinstance(keys, PackedKeys):
            call = scripts.packed.drop_import(keys, plan=plan_id)
            self.messages += call.script.read(self.caller.call(*call))
            return
        # A call sees whether its own page was used, so every page is checked before any is removed.
        if self.client.zcard(keys.messages) > PAGE:
            for _ in self._pages(lua.ScriptCaller(self.client, counts_only=True), keys, plan_id):
                pass
        for removed in self._pages(self.caller, keys, plan_id):
            self.messages += removed

    def _pages(self, caller: lua.ScriptCaller, keys: SessionKeys, plan_id: str) -> Iterator[int]:
        behind = 0
        while True:
            references: Any = self.client.zrange(keys.messages, behind, behind + PAGE - 1)
            call = scripts.sessions.drop_import(keys, payloads=references, plan=plan_id)
            reply = call.script.read(caller.call(*call))
            yield reply.removed
            if reply.remaining == behind:
                return
            behind += caller.still_there(reply.removed)


def keys_of(client_id: str, *, prefix: str, layout: Layout) -> SessionKeys | PackedKeys:
    """Return the keys of a session in a layout; ``session`` notes in both which plan has imported it."""
    keys = session_keys if layout is Layout.TBMQ else packed_keys
    return keys(client_id, prefix=prefix)


def drop_import(client: RedisClient, client_id: str, *, prefix: str, layout: Layout = Layout.TBMQ) -> int:
    """Remove one session's untouched import, page by page.

    :returns: how many messages were removed.
    :raises MovedOn: when the session has been used since it was imported.
    """
    with redis_errors(address_of(client)):
        plan_id: Any = client.hget(keys_of(client_id, prefix=prefix, layout=layout).session, "plan")
        if plan_id is None:
            return 0
        drop = _Drop(lua.ScriptCaller(client), client, prefix, layout)
        drop.run(client_id, plan_id.decode())
        return drop.messages


def drop_imports(
    client: RedisClient,
    client_ids: Iterable[str],
    *,
    plan_id: str,
    prefix: str,
    layout: Layout = Layout.TBMQ,
    dry_run: bool,
) -> DropReport:
    """Remove what a plan has imported, session by session; sessions that were used since stay.

    :param client_ids: clients whose sessions to remove.
    :param dry_run: let the scripts decide and count, and remove nothing.
    """
    drop = _Drop(lua.ScriptCaller(client, counts_only=dry_run), client, prefix, layout)
    dropped = moved_on = absent = 0
    with redis_errors(address_of(client)):
        for client_id in client_ids:
            if client.hget(keys_of(client_id, prefix=prefix, layout=layout).session, "plan") != plan_id.encode():
                absent += 1
                continue
            try:
                drop.run(client_id, plan_id)
                dropped += 1
            except MovedOn:
                moved_on += 1
    return DropReport(
        plan_id=plan_id,
        dry_run=dry_run,
        sessions_dropped=dropped,
        messages_dropped=drop.messages,
        sessions_moved_on=moved_on,
        sessions_absent=absent,
    )
