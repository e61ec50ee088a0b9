"""Snapshots of a session in PostgreSQL: what is in one, and what applying it to the copy of Redis's session changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from queuekeeper import keyspace
from queuekeeper.errors import NotOwner, StaleEpoch, UsageError
from queuekeeper.postgres import Connection
from queuekeeper.sessions import postgres_operations
from queuekeeper.sessions.model import NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.owners import OwnerStore
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import ApplyReport, SessionSnapshot, SourceBatch, differences

pytestmark = pytest.mark.sql

EPOCH, DRIVER = 5, 3


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def save(client_id: str, count: int = 1, **fields: Any) -> SessionSave:
    values: dict[str, Any] = {"topic": "t", "qos": 1, "time_ms": now_ms()}
    messages = tuple(NewMessage(payload=b"%d" % number, **values) for number in range(count))
    return SessionSave(client_id=client_id, messages=messages, **fields)


def insert(connection: Connection, client_id: str, serial: int, **values: Any) -> None:
    row = {"packet_id": serial + 1, "packet_type": "PUBLISH", "qos": 1, "topic": "t", "payload": b"x", "time": now_ms()}
    row |= values
    connection.execute(
        f"INSERT INTO device_publish_msg (client_id, serial_number, {', '.join(row)})"
        f" VALUES (%s, %s, {', '.join(['%s'] * len(row))})",
        [client_id, serial, *row.values()],
    )


def give_to_redis(connection: Connection, client_id: str, **columns: Any) -> None:
    values = {
        "client_id": client_id,
        "slot": keyspace.client_slot(client_id),
        "owner": "redis",
        "epoch": EPOCH,
        "driver": DRIVER,
    } | columns
    connection.execute(
        f"INSERT INTO queuekeeper.session_owners ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
        list(values.values()),
    )


def message(serial: int, **fields: Any) -> PendingMessage:
    values: dict[str, Any] = {
        "serial": serial,
        "packet_id": serial + 1,
        "packet_type": "PUBLISH",
        "topic": "t",
        "payload": b"payload of %d" % serial,
        "qos": 2,
        "time_ms": now_ms(),
        "redelivery": False,
        "retain": False,
        "expiry_interval_s": 600,
        "payload_format_indicator": 1,
        "content_type": "text",
        "response_topic": "r",
        "correlation_data": b"\x00c",
        "user_properties": (("k", "v"), ("k", "w")),
    } | fields
    return PendingMessage(**{"expires_at_ms": values["time_ms"] + 600_000} | values)


def snapshot(*messages: PendingMessage, **fields: Any) -> SessionSnapshot:
    last_serial = messages[-1].serial if messages else None
    values: dict[str, Any] = {
        "client_id": "a",
        "last_packet_id": 77,
        "last_serial": last_serial,
        "delivered_serial": None,
        "messages": messages,
    }
    return SessionSnapshot(**values | fields)


@pytest.fixture
def store(database: Connection) -> PostgresSessionStore:
    return PostgresSessionStore(database, rules=StoreRules(limit=10))


def apply(store: PostgresSessionStore, wanted: SessionSnapshot, **fields: Any) -> ApplyReport:
    return store.apply_snapshot("a", wanted, **{"epoch": EPOCH, "driver": DRIVER} | fields)


# --- reading ---------------------------------------------------------------------------------------------------


def test_snapshot_holds_what_was_saved(store: PostgresSessionStore) -> None:
    store.save_messages([save("a", 2, source="z", offset=4), save("a", 1, source="b", offset=9)])
    store.mark_delivered("a", serial=1)

    found = store.read_snapshot("a")

    assert (found.last_packet_id, found.last_serial, found.delivered_serial) == (3, 2, 1)
    assert found.batches == (SourceBatch(source="b", offset=9), SourceBatch(source="z", offset=4))
    assert found.messages == store.fetch_pending("a").messages
    assert [each.serial for each in store.read_snapshot("a", [2, 0, 99]).messages] == [0, 2]


def test_snapshot_of_nobody_is_empty(store: PostgresSessionStore) -> None:
    assert store.read_snapshot("a") == SessionSnapshot(
        client_id="a", last_packet_id=None, last_serial=None, delivered_serial=None
    )


def test_snapshot_leaves_out_what_nobody_gets_and_tells_why(database: Connection, store: PostgresSessionStore) -> None:
    insert(database, "a", -3)
    insert(database, "a", 0, packet_id=50)
    insert(database, "a", 1, qos=0)
    insert(database, "a", 2, packet_id=51)
    insert(database, "a", 3, packet_id=50)
    insert(database, "a", 4, packet_id=52, time=1)
    # A newer message that is dead takes nobody's packet id.
    insert(database, "a", 5, packet_id=51, time=1)
    insert(database, "a", 6, user_properties="{")
    before = database.execute("SELECT * FROM device_publish_msg ORDER BY serial_number").fetchall()

    found = store.read_snapshot("a")

    assert [each.serial for each in found.messages] == [2, 3]
    assert store.read_left_out("a") == {
        -3: "serial_out_of_range",
        0: "packet_id_duplicate",
        1: "qos_out_of_range",
        4: "expired",
        5: "expired",
        6: "user_properties_invalid",
    }
    assert store.read_snapshot("a", [0]).messages == ()
    assert database.execute("SELECT * FROM device_publish_msg ORDER BY serial_number").fetchall() == before

    assert store.set_aside_unreadable("a") == 3
    assert store.set_aside_unreadable("a") == 0
    rows = database.execute("SELECT serial_number, reason FROM queuekeeper.session_quarantine ORDER BY 1").fetchall()
    assert rows == [(-3, "serial_out_of_range"), (1, "qos_out_of_range"), (6, "user_properties_invalid")]
    assert store.read_snapshot("a").messages == found.messages

    assert store.set_aside_unreadable("a", duplicates=True) == 1
    assert store.set_aside_unreadable("a", duplicates=True) == 0
    rows = database.execute("SELECT reason FROM queuekeeper.session_quarantine WHERE serial_number = 0").fetchall()
    assert rows == [("packet_id_duplicate",)]
    # What is dead is left to the clean-up.
    assert store.read_left_out("a") == {4: "expired", 5: "expired"}
    assert store.read_snapshot("a").messages == found.messages


@pytest.mark.parametrize(
    ("client_id", "clustered", "looked", "call"),
    [
        ("}a", True, "_unreadable", PostgresSessionStore.set_aside_unreadable),
        ("a", False, "_duplicates", PostgresSessionStore.set_aside_unreadable),
        ("a", False, "_read_page", PostgresSessionStore.fetch_pending),
    ],
)
def test_what_a_device_acknowledges_in_between_is_not_counted_as_set_aside(
    database: Connection,
    store: PostgresSessionStore,
    monkeypatch: pytest.MonkeyPatch,
    client_id: str,
    clustered: bool,
    looked: str,
    call: Callable[..., Any],
) -> None:
    store.save_messages([save(client_id, 3)])
    columns = {"_unreadable": "topic = topic", "_duplicates": "packet_id = 9", "_read_page": "user_properties = '{'"}
    database.execute(f"UPDATE device_publish_msg SET {columns[looked]} WHERE client_id = %s", [client_id])
    operations: Any = postgres_operations.PostgresSessionOperations
    original = getattr(operations, looked)

    def then_acknowledged(self: Any, *args: Any, **options: Any) -> Any:
        found = yield from original(self, *args, **options)
        database.execute("DELETE FROM device_publish_msg WHERE client_id = %s AND serial_number = 0", [client_id])
        return found

    monkeypatch.setattr(operations, looked, then_acknowledged)
    options = {} if looked == "_read_page" else {"clustered": clustered, "duplicates": looked == "_duplicates"}
    report = call(store, client_id, **options)

    (kept,) = database.execute("SELECT count(*) FROM queuekeeper.session_quarantine").fetchall()[0]
    assert kept == (1 if looked == "_duplicates" else 2), "of two duplicates one has gone"
    counts = store.inspect(client_id).counts
    assert counts is not None
    assert counts.quarantined == kept
    if looked != "_read_page":
        assert report == kept


def test_snapshot_holds_the_newest_that_the_rules_allow(
    database: Connection, store: PostgresSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_operations.online, "MESSAGES_PER_SNAPSHOT_STEP", 3)
    for serial in range(30):
        insert(database, "a", serial, time=1 if serial % 3 else now_ms())

    assert [each.serial for each in store.read_snapshot("a").messages] == list(range(0, 30, 3))
    small = PostgresSessionStore(database, rules=StoreRules(limit=4))
    assert [each.serial for each in small.read_snapshot("a").messages] == [18, 21, 24, 27]


def test_snapshot_goes_on_where_messages_are_ahead_of_their_session(
    database: Connection, store: PostgresSessionStore
) -> None:
    store.save_messages([save("a", 1)])
    insert(database, "a", 7, packet_id=40)

    found = store.read_snapshot("a")

    assert (found.last_packet_id, found.last_serial) == (40, 7)


# --- applying --------------------------------------------------------------------------------------------------


def test_applied_snapshot_is_what_is_read_and_applying_it_again_changes_nothing(
    database: Connection, store: PostgresSessionStore
) -> None:
    store.save_messages([save("a", 3, source="old", offset=1), save("a", 1, source="same", offset=2)])
    give_to_redis(database, "a")
    wanted = snapshot(
        message(1, packet_type="PUBREL", payload=b""),
        message(5, retain=True, expiry_interval_s=None, expires_at_ms=now_ms() + 1_000 * StoreRules().default_ttl_s),
        message(6, expiry_interval_s=2**31 + 5, expires_at_ms=now_ms() + 1_000 * (2**31 + 5), user_properties=()),
        last_serial=9,
        delivered_serial=1,
        batches=(SourceBatch(source="new", offset=8), SourceBatch(source="same", offset=2)),
    )
    wanted = replace(
        wanted,
        messages=tuple(
            replace(
                each,
                expires_at_ms=each.time_ms
                + 1_000 * (StoreRules().default_ttl_s if each.expiry_interval_s is None else each.expiry_interval_s),
            )
            for each in wanted.messages
        ),
    )

    assert apply(store, wanted) == ApplyReport(written=3, removed=3)

    assert differences(wanted, store.read_snapshot("a")) == []
    assert [each.redelivery for each in store.read_snapshot("a").messages] == [True, False, False]
    assert apply(store, wanted) == ApplyReport(written=0, removed=0)
    assert differences(wanted, store.read_snapshot("a")) == []


def test_named_serials_alone_are_looked_at(database: Connection, store: PostgresSessionStore) -> None:
    store.save_messages([save("a", 6)])
    give_to_redis(database, "a")
    present = {each.serial: each for each in store.read_snapshot("a").messages}
    wanted = snapshot(message(2), message(7), message(8), last_serial=8)

    assert apply(store, wanted, serials=[2, 3, 7]) == ApplyReport(written=2, removed=1)

    found = store.read_snapshot("a")
    assert [each.serial for each in found.messages] == [0, 1, 2, 4, 5, 7]
    assert found.last_serial == 8
    assert {each.serial: each for each in found.messages if each.serial in (0, 1, 4, 5)} == {
        serial: present[serial] for serial in (0, 1, 4, 5)
    }


def test_session_goes_on_in_postgresql_where_redis_ended(database: Connection, store: PostgresSessionStore) -> None:
    store.save_messages([save("a", 2, source="s", offset=1)])
    give_to_redis(database, "a")
    apply(store, snapshot(message(20), last_packet_id=65_535, batches=(SourceBatch(source="s", offset=4),)))
    database.execute("DELETE FROM queuekeeper.session_owners")

    repeated, older, following = store.save_messages(
        [save("a", 3, source="s", offset=4), save("a", 1, source="s", offset=3), save("a", 2, source="s", offset=5)]
    )

    for report in (repeated, older):
        assert (report.replayed, report.forgotten, report.error) == (True, True, None)
    assert (following.packet_ids, following.serials) == ((1, 2), (21, 22))
    assert store.save_messages([save("a", 2, source="s", offset=5)])[0].packet_ids == (1, 2)
    assert [each.serial for each in store.fetch_pending("a").messages] == [20, 21, 22]


def test_batch_that_postgresql_knows_itself_is_still_answered_in_full(
    database: Connection, store: PostgresSessionStore
) -> None:
    (first,) = store.save_messages([save("a", 2, source="s", offset=1)])
    give_to_redis(database, "a")
    apply(store, store.read_snapshot("a"))
    database.execute("DELETE FROM queuekeeper.session_owners")

    (report,) = store.save_messages([save("a", 2, source="s", offset=1)])

    assert (report.replayed, report.forgotten, report.packet_ids) == (True, False, first.packet_ids)


def test_purged_session_is_gone(database: Connection, store: PostgresSessionStore) -> None:
    store.save_messages([save("a", 3, source="s", offset=1)])
    give_to_redis(database, "a")

    assert apply(store, snapshot(last_packet_id=None)) == ApplyReport(written=0, removed=3)

    assert store.inspect("a").exists is False
    assert store.read_snapshot("a") == snapshot(last_packet_id=None)


def test_rows_that_nobody_can_deliver_are_kept_aside(database: Connection, store: PostgresSessionStore) -> None:
    insert(database, "a", 0, qos=5)
    give_to_redis(database, "a")

    assert apply(store, snapshot(message(3))).written == 1

    reasons = database.execute("SELECT serial_number, reason FROM queuekeeper.session_quarantine").fetchall()
    assert reasons == [(0, "qos_out_of_range")]


@pytest.mark.parametrize(
    ("columns", "fields", "error"),
    [
        ({"owner": "postgres"}, {}, NotOwner),
        ({"owner": "postgres", "state": "fenced", "fenced_until": "2100-01-01"}, {}, NotOwner),
        ({}, {"driver": DRIVER - 1}, NotOwner),
        ({}, {"epoch": EPOCH - 1}, StaleEpoch),
        ({"state": "fenced", "fenced_until": "2000-01-01"}, {}, StaleEpoch),
    ],
)
def test_copy_is_written_by_the_driver_of_redis_session_alone(
    database: Connection,
    store: PostgresSessionStore,
    columns: dict[str, Any],
    fields: dict[str, Any],
    error: type[Exception],
) -> None:
    store.save_messages([save("a", 2)])
    give_to_redis(database, "a", **columns)
    before = store.read_snapshot("a")

    with pytest.raises(error):
        apply(store, snapshot(message(5)), **fields)

    assert store.read_snapshot("a") == before
    database.execute("DELETE FROM queuekeeper.session_owners")
    with pytest.raises(NotOwner, match="PostgreSQL owns session 'a'"):
        apply(store, snapshot(message(5)))


def test_snapshot_and_flip_back_are_one_transaction(database: Connection, store: PostgresSessionStore) -> None:
    give_to_redis(database, "a")
    owners = OwnerStore(database)
    fenced = owners.fence("a", driver=DRIVER, lease_ms=60_000, owner="redis")
    assert fenced is not None
    assert fenced.epoch is not None
    with database.transaction():
        assert owners.hold("a", driver=DRIVER, epoch=fenced.epoch) == fenced
        assert apply(store, snapshot(message(4)), epoch=fenced.epoch).written == 1
        flipped = owners.flip("a", driver=DRIVER, epoch=fenced.epoch, to="postgres", mirrored=False)

    assert flipped is not None
    assert store.save_messages([save("a")])[0].serials == (5,)


def test_message_that_the_vendors_tables_cannot_say_is_refused(
    database: Connection, store: PostgresSessionStore
) -> None:
    give_to_redis(database, "a")

    with pytest.raises(UsageError, match="serial 4 cannot be stored here: subscription_ids"):
        apply(store, snapshot(message(4, subscription_ids=(1,))))

    assert store.read_snapshot("a").messages == ()
