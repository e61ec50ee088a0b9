"""Users of Redis as ``queuekeeper acl`` prints them, for tests that work as one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queuekeeper.access import PLACEHOLDER, redis_user
from queuekeeper.clock import system_clock
from queuekeeper.keyspace import session_keys
from queuekeeper.redis_client import RedisClient, connect, nodes
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

PREFIX = "site-1:"
SECRET = b"nobody's business"
WORD = "word"
CLIENT = "meter 7"


@contextmanager
def working_as(admin: RedisClient, job: str) -> Iterator[RedisClient]:
    """Return a client of the user that is printed for a job, and see afterwards that nothing was refused to it."""
    with url_of_user(admin, job) as url, connect(url) as client:
        yield client


@contextmanager
def url_of_user(admin: RedisClient, job: str, *, prefix: str = PREFIX) -> Iterator[str]:
    """Return a URL with the user that is printed for a job, and see afterwards that nothing was refused to it."""
    name = f"queuekeeper-{job}"
    words = redis_user(job).command(key_prefix=prefix).replace(PLACEHOLDER, WORD)
    masters: list[Any] = [node for _, node in nodes(admin)]
    for node in masters:
        # A selector in brackets is one word of the command.
        head, *selectors = words.split(" (")
        node.execute_command(*head.split(), *(f"({selector}" for selector in selectors))
        node.execute_command("ACL", "LOG", "RESET")
    options = masters[0].connection_pool.connection_kwargs
    try:
        yield f"redis://{name}:{WORD}@{options['host']}:{options['port']}"
        refused = [entry for node in masters for entry in _refusals(node)]
        assert refused == [], refused
    finally:
        for node in masters:
            node.execute_command("ACL", "DELUSER", name)


def _refusals(node: Any) -> list[Any]:
    """Return what was refused, but for what is no fault.

    No rule of Redis 7.0 can allow redis-py's word on its own version; and ``CONFIG GET``, which tells passwords, is
    done without by whoever asks for a server's limits.
    """
    allowed = {"client|setinfo", b"client|setinfo", "config|get", b"config|get"}
    return [entry for entry in node.acl_log() if entry["object"] not in allowed]


def save(client: RedisClient, *, count: int = 3, layout: Layout = Layout.TBMQ) -> RedisSessionStore:
    """Store messages as an administrator."""
    store = RedisSessionStore(client, prefix=PREFIX, layout=layout)
    now_ms = system_clock()
    messages = tuple(NewMessage(topic=f"t/{number}", payload=SECRET, qos=2, time_ms=now_ms) for number in range(count))
    (report,) = store.save_messages([SessionSave(client_id=CLIENT, messages=messages)])
    assert report.error is None
    return store


def holder(client: RedisClient) -> Any:
    """Return the connection to the server that holds the client's keys."""
    key = session_keys(CLIENT, prefix=PREFIX).messages
    anything: Any = client
    return (
        anything.get_redis_connection(anything.get_node_from_key(key)) if hasattr(client, "nodes_manager") else client
    )


def forget_refusals(admin: RedisClient) -> None:
    for _, node in nodes(admin):
        anything: Any = node
        anything.execute_command("ACL", "LOG", "RESET")
