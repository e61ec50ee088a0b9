"""Writers that are not ours, such as the vendor's broker: the trigger refuses what they write to moved sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from queuekeeper import keyspace
from queuekeeper.errors import RefusedError
from queuekeeper.migration.online import foreign_writers
from queuekeeper.migration.online.foreign_writers import TriggerState
from queuekeeper.postgres import Connection
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.owners import OwnerStore
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from tests.postgres_roles import new_login

pytestmark = pytest.mark.sql

TABLES = ("device_publish_msg", "device_session_ctx")
INSERT_MESSAGE = (
    "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload)"
    " VALUES (%s, %s, 't', 1, 1, 'PUBLISH', 1, 'x')"
)
INSERT_SESSION = "INSERT INTO device_session_ctx VALUES (%s, 1, 1, 1)"
CHANGES = {
    "insert message": INSERT_MESSAGE.replace("%s, %s", "'a', 2"),
    "update message": "UPDATE device_publish_msg SET packet_type = 'PUBREL' WHERE client_id = 'a'",
    "give message": "UPDATE device_publish_msg SET client_id = 'a', serial_number = 2 WHERE client_id = 'b'",
    "take message": "UPDATE device_publish_msg SET client_id = 'c' WHERE client_id = 'a'",
    "delete message": "DELETE FROM device_publish_msg WHERE client_id = 'a'",
    "insert session": INSERT_SESSION.replace("%s", "'a'") + " ON CONFLICT (client_id) DO UPDATE SET last_packet_id = 2",
    "update session": "UPDATE device_session_ctx SET last_packet_id = 2 WHERE client_id = 'a'",
    "delete session": "DELETE FROM device_session_ctx WHERE client_id = 'a'",
}


@pytest.fixture
def database(source: Connection, control_schema: None) -> Connection:
    """Connection to a database with the vendor's tables and ours, two sessions, and the trigger."""
    for client_id in ("a", "b"):
        source.execute(INSERT_SESSION, [client_id])
        source.execute(INSERT_MESSAGE, [client_id, 1])
    foreign_writers.install(source)
    return source


@pytest.fixture
def foreign(database: Connection, postgres_url: str) -> Iterator[psycopg.Connection]:
    """Connection of a role that may do what the vendor's broker may, and knows nothing of ours."""
    with new_login(database, "broker", url=postgres_url) as url, psycopg.connect(url, autocommit=True) as connection:
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(TABLES)} TO {connection.info.user}")
        yield connection


def own(connection: Connection, client_id: str, owner: str) -> None:
    connection.execute(
        "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch) VALUES (%s, %s, %s, 1)",
        [client_id, keyspace.client_slot(client_id), owner],
    )


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_session_on_its_way_is_to_be_repeated(
    database: Connection, foreign: psycopg.Connection, change: str
) -> None:
    own(database, "a", "postgres")
    fenced = OwnerStore(database).fence("a", driver=1, lease_ms=60_000)
    assert fenced is not None

    with pytest.raises(psycopg.errors.SerializationFailure, match="FENCED session 'a'"):
        foreign.execute(CHANGES[change])

    OwnerStore(database).unfence("a", driver=1, epoch=fenced.epoch or 0)
    assert foreign.execute(CHANGES[change]).rowcount == 1


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_session_that_has_moved_is_refused(
    database: Connection, foreign: psycopg.Connection, change: str
) -> None:
    own(database, "a", "redis")

    with pytest.raises(psycopg.Error, match="NOT_OWNER Redis owns session 'a'") as caught:
        foreign.execute(CHANGES[change])

    assert caught.value.sqlstate == "QK001"
    for table in TABLES:
        assert database.execute(f"SELECT client_id FROM {table} ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_other_clients_are_untouched(database: Connection, foreign: psycopg.Connection) -> None:
    own(database, "a", "redis")

    assert foreign.execute("UPDATE device_publish_msg SET qos = 2 WHERE client_id = 'b'").rowcount == 1
    assert foreign.execute("DELETE FROM device_session_ctx WHERE client_id = 'b'").rowcount == 1
    with foreign.cursor().copy("COPY device_session_ctx FROM STDIN") as copy:
        for number in range(1_000):
            copy.write_row((f"client-{number}", 1, 1, 1))
    assert database.execute("SELECT count(*) FROM device_session_ctx").fetchone() == (1_001,)


def test_our_stores_write_as_before(database: Connection) -> None:
    own(database, "b", "redis")
    store = PostgresSessionStore(database)
    message = NewMessage(topic="t", payload=b"x", qos=1, time_ms=time.time_ns() // 1_000_000)

    first, second = store.save_messages([SessionSave(client_id=each, messages=(message,)) for each in ("new", "b")])

    assert first.stored == 1
    assert second.error is not None
    assert store.purge_session("new").messages == 1


def test_fence_waits_for_a_foreign_writer(
    database: Connection, foreign: psycopg.Connection, connect: Callable[[], Connection]
) -> None:
    own(database, "a", "postgres")
    driver = connect()
    with ThreadPoolExecutor(1) as pool:
        with foreign.transaction():
            foreign.execute(CHANGES["insert message"])
            fencing = pool.submit(OwnerStore(driver).fence, "a", driver=1, lease_ms=60_000, patience_ms=600_000)
            query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            while database.execute(query, [driver.info.backend_pid]).fetchone() != (True,):
                assert not fencing.done()
        assert fencing.result() is not None


def test_replica_is_asked_too(database: Connection) -> None:
    own(database, "a", "redis")
    database.execute("SET session_replication_role = replica")

    with pytest.raises(psycopg.Error, match="NOT_OWNER"):
        database.execute(CHANGES["delete message"])


def test_triggers_come_and_go(database: Connection) -> None:
    own(database, "a", "redis")
    there = tuple(TriggerState(table=table, installed=True, enabled=True) for table in TABLES)
    gone = tuple(TriggerState(table=table, installed=False, enabled=False) for table in TABLES)

    assert foreign_writers.install(database).triggers == there
    found = foreign_writers.state(database)
    assert (found.triggers, found.complete, found.moved) == (there, True, 1)

    planned = foreign_writers.remove(database, dry_run=True)
    assert (planned.triggers, planned.dry_run) == (there, True)
    assert [each.split()[0] for each in planned.statements] == ["DROP", "DROP"]

    removed = foreign_writers.remove(database)
    assert (removed.triggers, removed.complete) == (gone, False)
    assert foreign_writers.remove(database).triggers == gone
    assert database.execute(CHANGES["delete message"]).rowcount == 1

    planned = foreign_writers.install(database, dry_run=True)
    assert planned.triggers == gone
    for each in planned.statements:
        database.execute(each.encode())
    assert foreign_writers.state(database).complete

    database.execute("ALTER TABLE device_session_ctx DISABLE TRIGGER USER")
    assert foreign_writers.state(database).complete is False


def test_busy_tables_are_left_alone(database: Connection, foreign: psycopg.Connection) -> None:
    foreign_writers.remove(database)
    with foreign.transaction():
        foreign.execute("UPDATE device_publish_msg SET qos = 2")

        with pytest.raises(RefusedError, match="written to for longer than 50 ms, and nothing was changed"):
            foreign_writers.install(database, patience_ms=50)

    assert not any(trigger.installed for trigger in foreign_writers.state(database).triggers)


def test_database_without_our_schema_is_refused(source: Connection) -> None:
    with pytest.raises(RefusedError, match="run `queuekeeper database migrate`"):
        foreign_writers.install(source)
