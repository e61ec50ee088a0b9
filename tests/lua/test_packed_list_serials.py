"""``list_serials`` of packed sessions: what stays is listed, also when the server starts again between two pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from planted_queues import PackedQueue
from script_replies import reply_of

from queuekeeper.keyspace import packed_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.packed_listing import Listing
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua

C = "meter-7"
PLACES = range(1, 6_000, 10)


@pytest.fixture
def server(own_server: Any) -> Any:
    """A server with a session that has far more places than messages, and more of those than a page."""
    with connect(own_server.url) as client:
        queue = PackedQueue(client=client, client_id=C)
        for number, serial in enumerate(PLACES, start=1):
            queue.put(serial, number)
        queue.settle(ids=len(PLACES))
    return own_server


@contextmanager
def started_again(server: Any) -> Iterator[None]:
    """Kill the server and start it again behind the first page."""
    execute = ScriptCaller.execute
    met: list[bool] = []

    def execute_and_kill(self: Any, calls: Sequence[Any]) -> Any:
        replies = execute(self, calls)
        if not met and calls[0].script.name == "packed/list_serials":
            met.append(True)
            server.kill()
            server.start()
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptCaller, "execute", execute_and_kill)
        yield
    assert met


def test_listing_begins_again_when_another_process_answers(server: Any) -> None:
    def listed(client: RedisClient, listing: Listing) -> bytes:
        call = scripts.list_serials(packed_keys(C), cursor=listing.cursor, count=100)
        reply = reply_of(call, ScriptCaller(client).call(*call))
        listing.take(reply)
        answered: bytes = reply.server
        return answered

    listing = Listing()
    with connect(server.url) as client:
        begun = listed(client, listing)
        assert listed(client, listing) == begun
        assert (listing.is_done, listing.cursor == b"0") == (False, False)
    server.kill()
    server.start()
    with connect(server.url) as client:
        assert listed(client, listing) != begun
        assert (listing.is_done, listing.cursor) == (False, b"0")
        while not listing.is_done:
            listed(client, listing)
    assert listing.serials == list(PLACES)


def test_session_is_fetched_whole_and_no_packet_id_is_given_twice_while_its_server_is_started_again(
    server: Any,
) -> None:
    with connect(server.url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        with started_again(server):
            page = store.fetch_pending(C, limit=1_000)
        assert [each.serial for each in page.messages] == list(PLACES)
        assert store.set_last_packet_id(C, packet_id=65_535, expected=len(PLACES))
        with started_again(server):
            assert store.reserve_packet_ids(C, count=2) == (len(PLACES) + 1, len(PLACES) + 2)
