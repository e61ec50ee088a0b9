"""Of the same rows a copy by Spark and a move client by client leave the same Redis, key by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuekeeper import keyspace, schema_migrations, sql_statements
from queuekeeper.clock import system_clock
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.postgres import Connection
from tests.conformance.online_worlds import DEFAULT_TTL_S, OnlineWorld
from tests.property.generated_clients import RULES, Client, clients
from tests.property.migration_rules import Message, Session
from tests.spark.world import IMPORTED_UNTIL_MS, World

CLIENTS = 160
LIMIT = 3
DAY_S = 86_400
BY_NATURE = {
    # Whose the session is, and what the mirror of one that moved online has to tell.
    b"owner", b"epoch", b"mirror", b"outbox", b"outbox_version", b"outbox_ms",
    # Which plan copied the session offline, and what it left, for the undo.
    b"plan", b"import", b"references", b"imported_last_packet_id", b"imported_until_ms",
}  # fmt: skip
"""Fields of a session's hash in which the two ways differ; all else is the same."""


def timely(message: Message, now_ms: int) -> Message:
    """Return a generated message as of now, which neither dies while the test runs nor lives by a moment."""
    if not RULES.as_of_ms - 10_000_000 < message.time <= RULES.as_of_ms:
        return message
    age_ms = RULES.as_of_ms - message.time
    interval = message.msg_expiry_interval
    if interval is not None and 1 < interval < DAY_S and age_ms < 1_000 * interval:
        interval += DAY_S
    elif interval in (0, 1):
        age_ms += 120_000
    return message._replace(time=now_ms - age_ms, msg_expiry_interval=interval)


def fits(message: Message) -> bool:
    """Return whether the vendor's columns have room for a generated message."""
    texts = (message.packet_type, message.content_type, message.response_topic)
    return all(text is None or len(text) < 256 for text in texts)


def chosen(now_ms: int) -> list[Client]:
    """Return clients that show what the two ways once did differently."""

    def row(client_id: str, serial: int, packet_id: int, **fields: Any) -> Message:
        values: dict[str, Any] = dict.fromkeys(Message._fields) | {
            "client_id": client_id, "serial_number": serial, "topic": "t", "time": now_ms, "packet_id": packet_id,
            "packet_type": "PUBLISH", "qos": 1, "payload": b"\x00x",
        }  # fmt: skip
        return Message(**(values | fields))

    made = [
        Client(
            client_id=f"counter-{counter}",
            messages=tuple(row(f"counter-{counter}", serial, serial + 1) for serial in range(3)),
            session=Session(f"counter-{counter}", 2, counter),
        )
        for counter in (None, -1, 0, 2, 3, 65_535, 65_536, 2**31 - 1)
    ]
    made += [
        Client(client_id=f"empty-{serial}", messages=(), session=Session(f"empty-{serial}", serial, 7))
        for serial in (None, -1, 0, 70_000, 2**53 - 1, 2**53, 2**63 - 1)
    ]
    wrapped = [row("wrapped", 70_000 + n, packet_id) for n, packet_id in enumerate([65_534, 65_535, 1, 2, 1])]
    made.append(Client(client_id="wrapped", messages=tuple(wrapped), session=Session("wrapped", 70_004, 2)))
    twice = [row("twice", serial, packet_id) for serial, packet_id in ((5, 5), (6, 6), (65_540, 5))]
    made.append(Client(client_id="twice", messages=tuple(twice), session=Session("twice", 65_540, 5)))
    dead = [row("dead", n, n + 1, time=1) for n in range(2)]
    made.append(Client(client_id="dead", messages=tuple(dead), session=None))
    orphan = [row("orphan", 8, 9, packet_type="PUBREL", payload=b""), row("orphan", 9, 10, time=1)]
    made.append(Client(client_id="orphan", messages=tuple(orphan), session=None))
    ahead = [row("ahead", 3, 4), row("ahead", 4, 5, qos=7)]
    made.append(Client(client_id="ahead", messages=tuple(ahead), session=Session("ahead", 2, 3)))
    texts = '\x01\x0b\x1f\x7f\\u001f"\\\t\u2028é😀'
    controls = row("controls", 0, 1, topic=texts, content_type=texts, response_topic=texts, correlation_data=b"")
    made.append(Client(client_id="controls", messages=(controls,), session=None))
    return made


def fill(connection: Connection) -> None:
    """Insert generated clients and chosen ones."""
    now_ms = system_clock()
    found = [client for client in clients(CLIENTS) if 0 < len(client.client_id) < 256] + chosen(now_ms)
    messages = [timely(message, now_ms) for client in found for message in client.messages if fits(message)]
    sessions = [client.session for client in found if client.session is not None]
    with connection.cursor() as cursor:
        names = ", ".join(Message._fields)
        marks = ", ".join(["%s"] * len(Message._fields))
        # Rows in any order: the newest first.
        cursor.executemany(f"INSERT INTO device_publish_msg ({names}) VALUES ({marks})", messages[::-1])
        cursor.executemany(
            "INSERT INTO device_session_ctx (client_id, last_updated_time, last_serial_number, last_packet_id)"
            " VALUES (%s, 0, %s, %s)",
            sessions,
        )


def alike(contents: dict[bytes, tuple[Any, int]]) -> dict[bytes, tuple[Any, int]]:
    """Return keys with values and ends of life, without what differs by nature."""
    found = {}
    for key, (value, expires_at_ms) in contents.items():
        left = value
        if isinstance(value, dict):
            left = {name: text for name, text in value.items() if name not in BY_NATURE}
        if left != {}:
            # The same undo knows by an expiry in the year 144,683 that nobody has used the session.
            found[key] = (left, -1 if expires_at_ms == IMPORTED_UNTIL_MS else expires_at_ms)
    return found


@pytest.fixture
def moved(
    make_world: Callable[..., World], own_redis: Callable[..., str]
) -> tuple[dict[bytes, tuple[Any, int]], dict[bytes, tuple[Any, int]]]:
    """What Redis holds of the same rows, copied offline and moved online."""
    world = make_world()
    world.connection.execute(sql_statements.statement("sessions/vendor_schema"))
    schema_migrations.migrate(world.connection)
    fill(world.connection)
    parameters = MigrationParameters(
        cohort_count=4, limit=LIMIT, default_ttl_s=DEFAULT_TTL_S, quarantine_cap_percent=100.0
    )
    plan = world.plan(parameters)
    world.copy(plan.plan_id)
    online = OnlineWorld(world.postgres_url, own_redis(), limit=LIMIT)
    try:
        online.plan(count=4)
        online.to_redis()
        there = World.contents(
            World(
                spark=world.spark, postgres_url=world.postgres_url, redis_url=online.redis_url,
                connection=world.connection, client=online.client, ledger=world.ledger,
            )
        )  # fmt: skip
    finally:
        online.close()
    return world.contents(), there


def test_offline_and_online_leave_the_same_redis(
    moved: tuple[dict[bytes, tuple[Any, int]], dict[bytes, tuple[Any, int]]],
) -> None:
    offline, online = map(alike, moved)

    assert sorted(offline.keys() ^ online.keys()) == []
    assert {key: (offline[key], online[key]) for key in offline if offline[key] != online[key]} == {}
    # From 2 and from 65,535 a broker's next messages would overwrite 3, and 1 to 3; from 5 in "twice" its first one 6.
    expected = {f"counter-{counter}": b"3" for counter in (None, -1, 0, 2, 3, 65_535, 65_536, 2**31 - 1)}
    for client_id, counter in (expected | {"twice": b"6"}).items():
        assert online[keyspace.session_keys(client_id).last_packet_id.encode()] == (counter, -1)
    assert len([key for key in offline if b"_messages_" in key]) > CLIENTS
