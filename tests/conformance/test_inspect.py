"""``inspect``: one contract over both stores, and what only one of them can say."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, Protocol

import psycopg
import pytest

from queuekeeper import assets, lua, postgres, schema_migrations
from queuekeeper.errors import SchemaMismatch, UsageError
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import ImportView, MessageView, Problem, SessionCounts, SessionView

pytestmark = pytest.mark.conformance

TIME_MS = 4_000_000_000_000
CLIENT_IDS = ("meter-7", "%7Dbrace", "{", "glob*?[x]", "a{b}c", "смарт-😀", "i" * 255)


class Store(Protocol):
    """What the stores share."""

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = 500) -> SessionView: ...


class Filled:
    """A store and a way to put messages into it: payloads by serial, packet ids count up."""

    def __init__(self, target: RedisClient | postgres.Connection) -> None:
        self.target = target
        self.store: Store
        if isinstance(target, psycopg.Connection):
            self.store = PostgresSessionStore(target)
        else:
            self.store = RedisSessionStore(target)

    def fill(self, client_id: str, payloads: dict[int, bytes], *, last_packet_id: int | None) -> None:
        if isinstance(self.target, psycopg.Connection):
            self._fill_postgres(self.target, client_id, payloads, last_packet_id)
        else:
            self._fill_redis(self.target, client_id, payloads, last_packet_id)

    @staticmethod
    def _fill_postgres(
        connection: postgres.Connection, client_id: str, payloads: dict[int, bytes], last_packet_id: int | None
    ) -> None:
        if last_packet_id is not None:
            connection.execute(
                "INSERT INTO device_session_ctx (client_id, last_updated_time, last_packet_id) VALUES (%s, 0, %s)",
                (client_id, last_packet_id),
            )
        for packet_id, (serial, payload) in enumerate(payloads.items(), start=1):
            connection.execute(
                "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
                " payload, msg_expiry_interval) VALUES (%s, %s, %s, %s, %s, 'PUBLISH', 1, %s, 60)",
                (client_id, serial, f"topic/{serial}", TIME_MS, packet_id, payload),
            )

    @staticmethod
    def _fill_redis(
        client: RedisClient, client_id: str, payloads: dict[int, bytes], last_packet_id: int | None
    ) -> None:
        args: list[Any] = ["plan-a", 1, "redis", 0, 1, "" if last_packet_id is None else last_packet_id, ""]
        for packet_id, (serial, payload) in enumerate(payloads.items(), start=1):
            message = {
                "clientId": client_id,
                "topicName": f"topic/{serial}",
                "time": TIME_MS,
                "qos": 1,
                "packetId": packet_id,
                "packetType": "PUBLISH",
                "payload": b64encode(payload).decode(),
                "msgExpiryInterval": 60,
            }
            args += [serial, TIME_MS + 60_000, json.dumps(message)]
        keys = [payload_key(client_id, packet_id) for packet_id in range(1, len(payloads) + 1)]
        lua.ScriptCaller(client).call(lua.load("sessions/import_session"), [*session_keys(client_id), *keys], args)


@pytest.fixture
def database(postgres_url: str) -> Iterator[postgres.Connection]:
    """A database with TBMQ's tables."""
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        yield connection


@pytest.fixture(params=["postgres", "valkey", "cluster"])
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """Each store in turn."""
    if request.param == "postgres":
        yield Filled(request.getfixturevalue("database"))
        return
    with connect(request.getfixturevalue("valkey_url" if request.param == "valkey" else "redis_cluster_url")) as client:
        yield Filled(client)


@pytest.mark.parametrize("client_id", CLIENT_IDS)
def test_messages_are_described_in_the_order_of_delivery(filled: Filled, client_id: str) -> None:
    filled.fill(client_id, {12: b"abc", 7: b"", 2**53 - 1: b"x" * 1_000}, last_packet_id=3)

    view = filled.store.inspect(client_id)

    assert view.client_id == client_id
    assert view.exists
    assert view.messages == 3
    assert view.last_packet_id == 3
    assert view.next_offset is None
    assert view.payload_bytes == 1_003
    assert view.problems == {}
    assert view.page[0] == MessageView(
        serial=7,
        packet_id=2,
        packet_type="PUBLISH",
        qos=1,
        topic="topic/7",
        payload_bytes=0,
        time_ms=TIME_MS,
        expires_at_ms=TIME_MS + 60_000,
    )
    assert [(m.serial, m.packet_id, m.payload_bytes) for m in view.page] == [
        (7, 2, 0),
        (12, 1, 3),
        (2**53 - 1, 3, 1_000),
    ]


def test_session_that_is_not_there_is_said_to_be_missing(filled: Filled) -> None:
    view = filled.store.inspect("nobody")
    assert not view.exists
    assert (view.messages, view.page, view.last_packet_id, view.next_offset) == (0, (), None, None)


def test_session_without_messages_exists(filled: Filled) -> None:
    filled.fill("quiet", {}, last_packet_id=65_535)
    view = filled.store.inspect("quiet")
    assert view.exists
    assert view.last_packet_id == 65_535


def test_long_queue_is_read_page_by_page(filled: Filled) -> None:
    filled.fill("long", dict.fromkeys(range(1, 1302), b"x"), last_packet_id=1_301)
    seen: list[int] = []
    offset: int | None = 0
    pages = 0
    while offset is not None:
        view = filled.store.inspect("long", offset=offset, limit=600)
        assert view.messages == 1_301
        seen += [message.serial for message in view.page]
        offset = view.next_offset
        pages += 1
    assert seen == list(range(1, 1_302))
    assert pages == 3
    assert filled.store.inspect("long", offset=5_000).page == ()


def test_no_content_of_a_message_is_shown(filled: Filled) -> None:
    filled.fill("private", {1: b"secret-content"}, last_packet_id=1)
    shown = repr(asdict(filled.store.inspect("private")))
    assert "secret-content" not in shown
    assert b64encode(b"secret-content").decode() not in shown
    assert "payload" not in {field.name for field in fields(MessageView)}


@pytest.mark.parametrize(
    ("client_id", "page", "message"),
    [
        ("", {}, "client id is empty: a session without an id cannot be stored"),
        ("a", {"offset": -1}, "offset is -1: it must be 0 to 9007199254740991"),
        ("a", {"limit": 0}, "limit is 0: it must be 1 to 10000; read longer queues page by page"),
        ("a", {"limit": 10_001}, "limit is 10001: it must be 1 to 10000; read longer queues page by page"),
    ],
)
def test_bad_parameter_is_refused(filled: Filled, client_id: str, page: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filled.store.inspect(client_id, **page)
    assert str(caught.value) == message


def test_redis_says_who_owns_and_imported_the_session(redis_url: str) -> None:
    with connect(redis_url) as client:
        Filled(client).fill("meter-7", {1: b"a", 2: b"b"}, last_packet_id=2)
        store = RedisSessionStore(client)
        view = store.inspect("meter-7")
        assert (view.owner, view.epoch) == ("redis", 1)
        assert view.imported == ImportView(
            plan_id="plan-a", state="done", references=2, last_packet_id=2, touched=False
        )

        client.set(session_keys("meter-7").last_packet_id, 3)
        view = store.inspect("meter-7")
        assert view.imported is not None
        assert view.imported.touched


def test_redis_session_that_nobody_imported_has_no_import(redis_url: str) -> None:
    with connect(redis_url) as client:
        client.set(session_keys("a").last_packet_id, "not a number")
        view = RedisSessionStore(client).inspect("a")
        assert view.exists
        assert (view.imported, view.owner, view.epoch, view.last_packet_id) == (None, None, None, None)


def test_broken_references_in_redis_are_named_and_left_alone(redis_url: str) -> None:
    with connect(redis_url) as client:
        Filled(client).fill("a", dict.fromkeys(range(1, 6), b"x"), last_packet_id=5)
        keys = session_keys("a")
        client.delete(payload_key("a", 1))
        client.set(payload_key("a", 2), "{broken")
        client.set(payload_key("a", 3), "[1]")
        client.delete(payload_key("a", 4))
        client.hset(payload_key("a", 4), "field", "value")
        client.zadd(keys.messages, {"{b}_messages_1": 6, b"{a}_messages_\xff": 7, "{a}_messages_0": float("inf")})

        view = RedisSessionStore(client).inspect("a")

        assert [(message.packet_id, message.problem) for message in view.page] == [
            (1, Problem.DANGLING),
            (2, Problem.UNREADABLE),
            (3, Problem.UNREADABLE),
            (4, Problem.UNREADABLE),
            (5, None),
            (None, Problem.FOREIGN),
            (None, Problem.DANGLING),
            (None, Problem.DANGLING),
        ]
        assert view.problems == {Problem.DANGLING: 3, Problem.UNREADABLE: 3, Problem.FOREIGN: 1}
        assert client.zcard(keys.messages) == 8


def test_redis_messages_of_other_releases_are_described_as_far_as_they_go(redis_url: str) -> None:
    with connect(redis_url) as client:
        client.zadd(session_keys("a").messages, {payload_key("a", 9): 1})
        client.set(payload_key("a", 9), '{"topic":"old","qos":true,"packetType":"PUBREL"}')
        (message,) = RedisSessionStore(client).inspect("a").page
        assert message == MessageView(
            serial=1, packet_id=9, packet_type="PUBREL", topic="old", payload_bytes=0, problem=Problem.UNREADABLE
        )


def test_large_messages_in_redis_are_read_in_bounded_calls(redis_url: str) -> None:
    with connect(redis_url) as client:
        Filled(client).fill("big", dict.fromkeys(range(1, 9), b"x" * 1000000), last_packet_id=8)
        client.config_resetstat()
        view = RedisSessionStore(client).inspect("big")
        assert view.payload_bytes == 8_000_000
        scripts = client.info("commandstats")["cmdstat_evalsha"]
        reads = scripts["calls"] - scripts["failed_calls"] - 2
        assert reads == 4, "two messages of 1.3 MB, base64, fill a call, and the third does not fit"


def test_prefix_is_honoured_and_may_hold_no_brace(redis_url: str) -> None:
    with connect(redis_url) as client:
        client.set("tbmq:{a}_last_packet_id", 4)
        assert RedisSessionStore(client, prefix="tbmq:").inspect("a").last_packet_id == 4
        assert not RedisSessionStore(client).inspect("a").exists
        with pytest.raises(UsageError, match="holds a brace"):
            RedisSessionStore(client, prefix="{x}")


def test_postgres_rows_that_no_broker_should_have_written_are_described(database: postgres.Connection) -> None:
    database.execute(
        "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, qos, payload, msg_expiry_interval)"
        " VALUES ('a', -5, '', 9223372036854775807, 7, '', -1), ('a', 1, 't', 10, 1, '\\x00', NULL)"
    )
    view = PostgresSessionStore(database).inspect("a")
    assert view.exists
    assert view.last_packet_id is None
    assert view.page == (
        MessageView(
            serial=-5,
            qos=7,
            topic="",
            payload_bytes=0,
            time_ms=2**63 - 1,
            expires_at_ms=2**63 - 1 + 1_000 * (2**32 - 1),
            problem=Problem.UNREADABLE,
            reason=Reason.SERIAL_OUT_OF_RANGE,
        ),
        MessageView(
            serial=1,
            qos=1,
            topic="t",
            payload_bytes=1,
            time_ms=10,
            expires_at_ms=10 + 604_800_000,
            problem=Problem.UNREADABLE,
            reason=Reason.PACKET_ID_OUT_OF_RANGE,
        ),
    )


def test_postgres_says_which_serial_was_given_out_last(database: postgres.Connection) -> None:
    database.execute("INSERT INTO device_session_ctx VALUES ('a', 0, 77, 5)")
    view = PostgresSessionStore(database).inspect("a")
    assert (view.last_serial, view.last_packet_id) == (77, 5)


def test_postgres_counts_are_those_of_the_session_that_is_there_now(database: postgres.Connection) -> None:
    database.execute("INSERT INTO device_session_ctx VALUES ('a', 0, 77, 5)")
    store = PostgresSessionStore(database)
    assert store.inspect("a").counts is None, "without schema queuekeeper nothing is counted, and nothing fails"

    schema_migrations.migrate(database)
    database.execute("INSERT INTO queuekeeper.session_states (client_id, known_serial, trimmed) VALUES ('a', 77, 9)")
    assert store.inspect("a").counts == SessionCounts(trimmed=9)
    assert store.inspect("a").delivered_serial is None

    database.execute("UPDATE device_session_ctx SET last_serial_number = 3")
    assert store.inspect("a").counts is None, "the broker has cleared the session and begun again"


def test_postgres_is_described_to_one_who_may_not_read_the_counts(database: postgres.Connection) -> None:
    schema_migrations.migrate(database)
    database.execute("INSERT INTO device_session_ctx VALUES ('a', 0, 77, 5)")
    with database.transaction(force_rollback=True):
        database.execute("CREATE ROLE reader")
        database.execute("GRANT SELECT ON device_session_ctx, device_publish_msg TO reader")
        database.execute("SET LOCAL ROLE reader")
        view = PostgresSessionStore(database).inspect("a")
    assert (view.last_serial, view.counts) == (77, None)


def test_database_without_the_tables_is_refused(postgres_url: str) -> None:
    with (
        postgres.connect(postgres_url) as connection,
        pytest.raises(SchemaMismatch, match=r'"device_session_ctx" does not exist\. Name the database of TBMQ 1\.x$'),
    ):
        PostgresSessionStore(connection).inspect("a")


def test_id_that_postgres_cannot_hold_is_refused(database: postgres.Connection) -> None:
    with pytest.raises(UsageError, match=r"^client id holds a zero character, which MQTT forbids"):
        PostgresSessionStore(database).inspect("a\0b")
