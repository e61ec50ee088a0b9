"""What only the PostgreSQL store does: few statements, locks in order, the vendor's rows and habits, clean-ups."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import orjson
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from queuekeeper import postgres, sql_statements
from queuekeeper.errors import PacketIdInUse, RefusedError, ServerUnavailable, UsageError
from queuekeeper.postgres import AsyncConnection, Connection
from queuekeeper.sessions import postgres_operations, sample
from queuekeeper.sessions.judge import sql_bounds
from queuekeeper.sessions.model import Ack, NewMessage, Release, SessionSave, StoreRules
from queuekeeper.sessions.postgres_operations import CleanupReport, Step
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore, PostgresSessionStore
from queuekeeper.sessions.reports import SaveReport
from queuekeeper.sessions.sample_parameters import SampleParameters

pytestmark = pytest.mark.sql

DAY_MS = 86_400_000
MESSAGE_COLUMNS = (
    "client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,"
    " msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data"
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def message(payload: bytes = b"x", **fields: Any) -> NewMessage:
    values: dict[str, Any] = {"topic": "t", "payload": payload, "qos": 1, "time_ms": now_ms()}
    return NewMessage(**values | fields)


def save(client_id: str, count: int = 1, **fields: Any) -> SessionSave:
    return SessionSave(client_id=client_id, messages=tuple(message(b"%d" % n) for n in range(count)), **fields)


def insert(
    connection: Connection, client_id: str, serials: Sequence[int], *, time_ms: int | None = None, **values: Any
) -> None:
    """Write rows as the vendor's broker does; the packet id is the serial unless told otherwise."""
    row = {"packet_type": "PUBLISH", "qos": 1, "topic": "t", "payload": b"x", "time": time_ms or now_ms()} | values
    names = ["client_id", "serial_number", *({"packet_id": None} | row)]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO device_publish_msg ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
            [(client_id, serial, *({"packet_id": serial} | row).values()) for serial in serials],
        )


def state(connection: Connection, client_id: str) -> dict[str, int]:
    names = ("delivered_serial", "trimmed", "expired", "refused", "quarantined")
    query = f"SELECT {', '.join(names)} FROM queuekeeper.session_states WHERE client_id = %s"
    row = connection.execute(query, [client_id]).fetchone()
    return dict(zip(names, row, strict=True)) if row else {}


class Watched(PostgresSessionStore):
    """A store that remembers what it has sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[Step] = []

    def answer(self, step: Step) -> Any:
        self.steps.append(step)
        return super().answer(step)

    @property
    def statements(self) -> list[str]:
        return [query.name for step in self.steps for query in step.queries]


@pytest.fixture
def store(database: Connection) -> Watched:
    return Watched(database, rules=StoreRules(limit=10))


# --- saving ----------------------------------------------------------------------------------------------------


def test_many_sessions_are_saved_by_few_statements_in_one_transaction(store: Watched) -> None:
    saves = [save(f"client-{number}", source="partition-0", offset=7) for number in range(400)]

    reports = store.save_messages(saves)

    assert [report.packet_ids for report in reports] == [(1,)] * 400
    assert [step.begin for step in store.steps].count(True) == 1
    assert store.statements == [
        "hold_owners",
        "lock_sessions",
        "forget_cleared_sessions",
        "read_sessions",
        "save_messages",
        "save_sessions",
        "save_session_states",
        "save_session_sources",
    ]


def test_transactions_are_bounded(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_messages([save(f"client-{number}") for number in range(1_200)])
    assert store.statements.count("lock_sessions") == 3

    store.steps.clear()
    monkeypatch.setattr(postgres_operations.rows, "BYTES_PER_STATEMENT", 1_000)
    monkeypatch.setattr(postgres_operations.save, "BYTES_PER_TRANSACTION", 2_000)
    big = [SessionSave(client_id=name, messages=(message(bytes(600)),) * 3) for name in "abc"]
    assert [report.stored for report in store.save_messages(big)] == [3, 3, 3]
    assert store.statements.count("lock_sessions") == 3
    assert store.statements.count("save_messages") == 9


def test_failure_of_one_session_leaves_the_others_saved(store: Watched, database: Connection) -> None:
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$"
    )
    database.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON device_publish_msg FOR EACH ROW"
        " WHEN (NEW.client_id = 'client-33') EXECUTE FUNCTION refuse()"
    )

    reports = store.save_messages([save(f"client-{number}") for number in range(100)])

    failed = {report.client_id: report.error for report in reports if report.error}
    assert list(failed) == ["client-33"]
    assert str(failed["client-33"]).endswith("refuses: no room")
    assert sum(report.stored for report in reports) == 99
    assert not store.inspect("client-33").exists


def test_save_after_a_failed_one_of_its_session_is_not_stored_before_it(store: Watched, database: Connection) -> None:
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$"
    )
    database.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON device_publish_msg FOR EACH ROW"
        " WHEN (NEW.payload = 'first') EXECUTE FUNCTION refuse()"
    )
    saves = [
        SessionSave(client_id=name, messages=(message(payload),))
        for name, payload in (("a", b"first"), ("b", b"x"), ("a", b"second"), ("b", b"y"), ("a", b"third"))
    ]

    first, _, second, _, third = reports = store.save_messages(saves)

    assert str(first.error).endswith("refuses: no room")
    assert first == second == third
    assert [report.packet_ids for report in reports if not report.error] == [(1,), (2,)]
    assert not store.inspect("a").exists
    database.execute("DROP TRIGGER refuse ON device_publish_msg")
    repeated = store.save_messages([each for each, report in zip(saves, reports, strict=True) if report.error])
    assert [report.packet_ids for report in repeated] == [(1,), (2,), (3,)]
    assert [each.payload for each in store.fetch_pending("a").messages] == [b"first", b"second", b"third"]


def test_what_no_session_is_to_blame_for_is_not_tried_again_and_again(store: Watched, database: Connection) -> None:
    database.execute("SET default_transaction_read_only = on")

    reports = store.save_messages([save(f"client-{number}") for number in range(100)])

    assert all("takes no writes" in str(report.error) for report in reports)
    assert store.statements.count("lock_sessions") == 1


def test_writers_of_the_same_sessions_queue_up_and_never_wait_in_a_circle(
    database: Connection, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_operations.common, "TRIES", 1)  # a deadlock would show
    client_ids = [f"client-{number}" for number in range(12)]
    batches, barrier = 25, threading.Barrier(6)

    def write(number: int) -> list[SaveReport]:
        shuffle = random.Random(number).sample
        writer = PostgresSessionStore(connect(), rules=StoreRules(limit=60))
        barrier.wait()
        reports: list[SaveReport] = []
        for offset in range(batches):
            saves = [
                SessionSave(
                    client_id=client_id,
                    messages=(message(b"%d %d" % (number, offset)),) * 3,
                    source=f"writer-{number}",
                    offset=offset,
                )
                for client_id in shuffle(client_ids, 8)
            ]
            reports += writer.save_messages(saves)
        return reports

    def read(number: int) -> int:
        choose = random.Random(number)
        reader = PostgresSessionStore(connect(), rules=StoreRules(limit=60))
        barrier.wait()
        removed = 0
        for turn in range(60):
            client_id = choose.choice(client_ids)
            page = reader.fetch_pending(client_id, limit=choose.randrange(1, 40), mark_delivered=True)
            acks = [Ack(packet_id=each.packet_id, serial=each.serial) for each in page.messages]
            choose.shuffle(acks)
            removed += reader.ack(client_id, acks).removed
            if turn % 20 == 0:
                reader.remove_expired()
                reader.trim_sessions()
        return removed

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, number) for number in range(4)]
        readers = [pool.submit(read, number) for number in range(2)]
        reports = [report for each in writers for report in each.result()]
        removed = sum(each.result() for each in readers)

    assert [report.error for report in reports if report.error] == []
    for client_id in client_ids:
        own = [report for report in reports if report.client_id == client_id]
        serials = sorted(serial for report in own for serial in report.serials if serial is not None)
        assert serials == list(range(len(serials))), "each serial is given out once"
    (left,) = database.execute("SELECT count(*) FROM device_publish_msg").fetchone() or (0,)
    assert left + removed + sum(report.trimmed for report in reports) == sum(report.stored for report in reports)
    query = "SELECT count(*) - count(DISTINCT (client_id, packet_id)) FROM device_publish_msg"
    assert database.execute(query).fetchone() == (0,)


def test_writer_waits_for_the_one_that_holds_the_session(
    database: Connection, connect: Callable[[], Connection]
) -> None:
    holder, other = connect(), connect()
    with holder.transaction():
        (first,) = PostgresSessionStore(holder).save_messages([save("a", 2)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(PostgresSessionStore(other).save_messages, [save("a")])
            query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            while database.execute(query, [other.info.backend_pid]).fetchone() != ("Lock",):
                assert not waiting.done()
            holder.execute("COMMIT")
            (second,) = waiting.result()
        holder.execute("BEGIN")

    assert (first.serials, second.serials) == ((0, 1), (2,))
    assert (first.packet_ids, second.packet_ids) == ((1, 2), (3,))


def test_serial_that_the_vendors_broker_gives_out_meanwhile_is_not_given_out_again(
    store: Watched, database: Connection, connect: Callable[[], Connection]
) -> None:
    store.save_messages([save("a")])
    broker, watcher = connect(), connect()
    with broker.transaction():
        insert(broker, "a", [1], packet_id=2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.save_messages, [save("a"), save("b")])
            query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            while watcher.execute(query, [database.info.backend_pid]).fetchone() != ("Lock",):
                assert not waiting.done()
            broker.execute("COMMIT")
            reports = waiting.result()
        broker.execute("BEGIN")

    assert [report.error for report in reports] == [None, None]
    assert (reports[0].serials, reports[0].packet_ids) == ((2,), (3,))


def test_packet_ids_in_use_are_passed_over_when_ids_wrap(store: Watched, database: Connection) -> None:
    insert(database, "a", [4], packet_id=65_534)
    insert(database, "a", [5], packet_id=1)
    insert(database, "a", [6], packet_id=2)
    database.execute("INSERT INTO device_session_ctx VALUES ('a', 0, 6, 65533)")

    assert store.save_messages([save("a", 3)])[0].packet_ids == (65_535, 3, 4)
    assert store.reserve_packet_ids("a", count=2) == (5, 6)


@pytest.mark.parametrize("held", [False, True])
def test_save_without_a_free_packet_id_makes_room_first_and_is_refused_alone_where_others_hold_all(
    store: Watched, database: Connection, connect: Callable[[], Connection], held: bool
) -> None:
    database.execute(
        f"INSERT INTO device_publish_msg ({MESSAGE_COLUMNS}) SELECT 'full', n, 't', %s, n, 'PUBLISH', 1, '', NULL,"
        " FALSE, NULL, NULL, NULL, NULL, NULL FROM generate_series(1, 65535) AS n",
        [now_ms()],
    )

    with connect() as other, other.transaction():
        if held:
            other.execute("SELECT 1 FROM device_publish_msg WHERE client_id = 'full' FOR UPDATE")
        reports = store.save_messages([save("full"), save("b")])

    if held:
        assert isinstance(reports[0].error, PacketIdInUse)
        assert "has 0 free packet ids, and 1 are needed" in str(reports[0].error)
    else:
        # One for the packet id, and then what one transaction removes of what is over the limit.
        assert (reports[0].packet_ids, reports[0].trimmed) == ((1,), 10_001)
    assert reports[1].stored == 1


def test_session_goes_on_where_messages_without_a_session_row_end(store: Watched, database: Connection) -> None:
    insert(database, "orphan", [70, 71], packet_id=9)

    assert store.get_last_packet_id("orphan") == 9
    (report,) = store.save_messages([save("orphan")])

    assert (report.serials, report.packet_ids) == ((72,), (10,))


def test_session_that_somebody_else_cleared_begins_anew(store: Watched, database: Connection) -> None:
    store.save_messages([save("a", 5, source="s", offset=9)])
    store.mark_delivered("a", serial=4)
    database.execute("DELETE FROM device_publish_msg")
    database.execute("DELETE FROM device_session_ctx")

    (report,) = store.save_messages([save("a", 2, source="s", offset=3)])

    assert (report.replayed, report.serials) == (False, (0, 1))
    assert [each.redelivery for each in store.fetch_pending("a").messages] == [False, False]


def test_interval_beyond_the_signed_column_keeps_its_length(store: Watched, database: Connection) -> None:
    sent = [message(expiry_interval_s=interval) for interval in (2**31 - 1, 2**31, 2**32 - 1)]
    store.save_messages([SessionSave(client_id="a", messages=tuple(sent))])

    query = "SELECT msg_expiry_interval FROM device_publish_msg ORDER BY serial_number"
    assert database.execute(query).fetchall() == [(2**31 - 1,), (-(2**31),), (-1,)]
    for before, after in zip(sent, store.fetch_pending("a").messages, strict=True):
        assert after.expiry_interval_s == before.expiry_interval_s
        assert after.expires_at_ms == before.time_ms + 1000 * (before.expiry_interval_s or 0)


@pytest.mark.parametrize(
    ("client_id", "fields", "text"),
    [
        ("i" * 256, {}, "client id has 256 characters ('iiiiiiiiiiiiiiiiiiii'...): this store has columns of 255"),
        ("a", {"content_type": "c" * 256}, "content_type has 256 characters"),
        ("a", {"response_topic": "é" * 256}, "response_topic has 256 characters"),
        ("a", {"subscription_ids": (5,)}, "subscription_ids is (5,): TBMQ 1.x has no column for them"),
        ("a", {"payload": bytes(1_048_577)}, "a payload for 'a' has 1048577 bytes: this store takes at most 1048576"),
    ],
)
def test_what_the_vendors_columns_cannot_hold_is_refused_before_anything_is_written(
    store: Watched, client_id: str, fields: dict[str, Any], text: str
) -> None:
    bad = SessionSave(client_id=client_id, messages=(message(**fields),))
    with pytest.raises(UsageError) as caught:
        store.save_messages([save("b"), bad])
    assert str(caught.value).startswith(text)
    assert store.steps == []


def test_longest_texts_that_the_columns_hold_are_stored(store: Watched) -> None:
    texts: dict[str, Any] = {"content_type": "é" * 255, "response_topic": "é" * 255, "topic": "é" * 32_767}
    properties = tuple(("é" * 10_000, "") for _ in range(5))
    client_id = "é" * 255
    store.save_messages([SessionSave(client_id=client_id, messages=(message(user_properties=properties, **texts),))])

    (found,) = store.fetch_pending(client_id).messages
    assert {name: getattr(found, name) for name in texts} == texts
    assert found.user_properties == properties


# --- the vendor's broker ---------------------------------------------------------------------------------------


def test_vendors_broker_reads_what_was_saved(store: Watched, database: Connection) -> None:
    full = message(
        b"\0\xff",
        retain=True,
        expiry_interval_s=60,
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answer",
        correlation_data=b"\1",
        user_properties=(("name", 'va"lue'), ("name", "")),
    )
    store.save_messages([SessionSave(client_id="a", messages=(full, message(), message(qos=2)))])

    newest = database.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM device_publish_msg WHERE client_id = %s ORDER BY serial_number DESC LIMIT %s",
        ["a", 3],
    ).fetchall()
    assert newest[-1] == (
        "a", 0, "t", full.time_ms, 1, "PUBLISH", 1, b"\0\xff",
        '{"props":[{"k":"name","v":"va\\"lue"},{"k":"name","v":""}]}', True, 60, 1, "text/plain", "answer", b"\1",
    )  # fmt: skip
    assert newest[-2][8:] == (None, False, None, None, None, None, None)
    query = "SELECT last_serial_number, last_packet_id FROM device_session_ctx WHERE client_id IN ('a')"
    assert database.execute(query).fetchall() == [(2, 3)]

    gap = (
        "SELECT serial_number FROM device_publish_msg WHERE client_id = %s AND serial_number >= 1 AND serial_number < 3"
    )
    assert database.execute(gap, ["a"]).fetchall() == [(1,), (2,)]
    database.execute("UPDATE device_publish_msg SET packet_type = 'PUBREL' WHERE client_id = 'a' AND packet_id = 3")
    database.execute("DELETE FROM device_publish_msg WHERE client_id = 'a' AND packet_id = 1")

    assert store.mark_released("a", packet_id=3) == Release.ALREADY
    assert [(each.packet_id, each.packet_type) for each in store.fetch_pending("a").messages] == [
        (2, "PUBLISH"),
        (3, "PUBREL"),
    ]


def test_both_write_the_same_session_in_turn(store: Watched, database: Connection) -> None:
    store.save_messages([save("a", 2)])
    insert(database, "a", [2, 3])
    database.execute(
        "INSERT INTO device_session_ctx VALUES ('a', %s, 3, 4) ON CONFLICT (client_id) DO UPDATE SET last_serial_number"
        " = excluded.last_serial_number, last_packet_id = excluded.last_packet_id",
        [now_ms()],
    )

    (report,) = store.save_messages([save("a", 8)])

    assert (report.serials[0], report.packet_ids[0]) == (4, 5)
    assert report.trimmed == 2, "what the broker has added is counted"


def test_every_row_of_an_old_database_is_delivered_or_put_aside(database: Connection) -> None:
    sample.fill(database, SampleParameters(messages=300, sessions=50, now_ms=now_ms(), long_queues=0, hostile=True))
    store = PostgresSessionStore(database)
    (rows,) = database.execute("SELECT count(*) FROM device_publish_msg WHERE client_id <> ''").fetchone() or (0,)
    ids = database.execute("SELECT DISTINCT client_id FROM device_publish_msg WHERE client_id <> ''").fetchall()
    delivered = expired = unreadable = 0
    for (client_id,) in ids:
        after_serial, more = -1, True
        while more:
            page = store.fetch_pending(client_id, after_serial=after_serial, limit=7)
            assert [x.serial < y.serial for x, y in pairwise(page.messages)] == [True] * (len(page.messages) - 1)
            after_serial, more = page.after_serial, page.more
            delivered += len(page.messages)
            expired += page.expired
            unreadable += page.unreadable

    assert delivered + expired + unreadable == rows
    reasons: dict[str, int] = dict(
        database.execute("SELECT reason, count(*) FROM queuekeeper.session_quarantine GROUP BY 1").fetchall()
    )
    assert sum(reasons.values()) == unreadable
    assert reasons.keys() == {
        "packet_id_out_of_range",
        "packet_type_unknown",
        "qos_out_of_range",
        "serial_out_of_range",
        "time_out_of_range",
        "topic_empty",
        "user_properties_invalid",
    }


def test_row_is_put_aside_whole_and_counted(store: Watched, database: Connection) -> None:
    store.save_messages([save("a", 2)])
    database.execute("UPDATE device_publish_msg SET user_properties = '{', payload = 'kept' WHERE serial_number = 0")
    (row,) = database.execute(f"SELECT {MESSAGE_COLUMNS} FROM device_publish_msg WHERE serial_number = 0").fetchall()

    with pytest.raises(RefusedError, match="message 1 of session 'a' cannot be read: user_properties_invalid"):
        store.peek("a", packet_id=1)
    page = store.fetch_pending("a")

    assert (page.unreadable, [each.serial for each in page.messages]) == (1, [1])
    (kept,) = database.execute(f"SELECT {MESSAGE_COLUMNS} FROM queuekeeper.session_quarantine").fetchall()
    assert kept == row
    assert state(database, "a")["quarantined"] == 1
    assert store.inspect("a").messages == 1


def test_large_messages_are_read_in_pages_of_bounded_bytes(store: Watched) -> None:
    sizes = (400, 400, 400, 5_000, 10)
    store.save_messages([SessionSave(client_id="a", messages=tuple(message(bytes(size)) for size in sizes))])
    pages: list[list[int]] = []
    after_serial, more = -1, True
    while more:
        page = store.fetch_pending("a", after_serial=after_serial, max_bytes=1_000)
        pages.append([len(each.payload) for each in page.messages])
        after_serial, more = page.after_serial, page.more

    assert pages == [[400, 400], [400], [5_000], [10]]


# --- export and import -----------------------------------------------------------------------------------------


def test_export_leaves_out_the_older_of_two_messages_with_one_packet_id(store: Watched, database: Connection) -> None:
    insert(database, "a", [1, 2])
    insert(database, "a", [65_536], packet_id=1)

    page = store.export_session("a")

    assert (len(page.lines), page.unreadable) == (3, 1)
    store.purge_session("a")
    assert store.import_session("a", page.lines).stored == 2
    assert [(each.serial, each.packet_id) for each in store.fetch_pending("a").messages] == [(2, 2), (65_536, 1)]


def test_export_goes_on_behind_rows_that_no_store_can_keep(store: Watched, database: Connection) -> None:
    insert(database, "a", [-3, -2, 1, 2], packet_id=1)

    lines: list[bytes] = []
    unreadable = pages = 0
    page = store.export_session("a", limit=1)
    while pages < 10:
        pages += 1
        lines += page.lines
        unreadable += page.unreadable
        if not page.more:
            break
        page = store.export_session("a", after_serial=page.after_serial, limit=1)

    assert (pages, unreadable) == (4, 3), "one of the two with the same packet id is left out, too"
    assert [orjson.loads(line)["serial"] for line in lines[1:]] == [2]


def test_import_of_an_expiry_that_the_columns_cannot_say_is_refused(database: Connection) -> None:
    PostgresSessionStore(database, rules=StoreRules(default_ttl_s=3_600)).save_messages([save("a")])
    lines = PostgresSessionStore(database, rules=StoreRules(default_ttl_s=3_600)).export_session("a").lines
    store = PostgresSessionStore(database)
    store.purge_session("a")

    with pytest.raises(
        UsageError, match=r"the message with serial 0 expires at \d+, but in this store it would expire at \d+"
    ):
        store.import_session("a", lines)
    assert not store.inspect("a").exists


def test_import_of_more_than_the_limit_is_refused(database: Connection, store: Watched) -> None:
    large = PostgresSessionStore(database)
    large.save_messages([save("a", 11)])
    lines = large.export_session("a").lines
    large.purge_session("a")

    with pytest.raises(UsageError, match="the export has 11 messages: this store keeps at most 10"):
        store.import_session("a", lines)


# --- cleaning up -----------------------------------------------------------------------------------------------


def test_expired_messages_of_all_sessions_are_removed_in_steps(
    store: Watched, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_operations.upkeep, "BLOCKS_PER_STEP", 1)
    store.save_messages([save("a", 3)])
    insert(database, "a", range(10, 13), time_ms=now_ms() - 8 * DAY_MS)
    insert(database, "a", [20], time_ms=now_ms() - DAY_MS, msg_expiry_interval=60)
    insert(database, "a", [21], time_ms=now_ms() - 8 * DAY_MS, msg_expiry_interval=-1)
    insert(database, "orphan", range(500), time_ms=5, payload=bytes(100))

    assert store.remove_expired(dry_run=True) == CleanupReport(messages=504, sessions=0, dry_run=True)
    assert store.inspect("orphan").messages == 500
    assert store.remove_expired() == CleanupReport(messages=504, sessions=0, dry_run=False)

    assert [each.serial for each in store.inspect("a").page] == [0, 1, 2, 21]
    assert state(database, "a")["expired"] == 4
    assert not store.inspect("orphan").exists
    assert store.statements.count("remove_expired") > 5


def test_clean_up_waits_for_nobody(store: Watched, database: Connection, connect: Callable[[], Connection]) -> None:
    insert(database, "a", [1, 2, 3], time_ms=5)
    database.execute("SET lock_timeout = '1s'")
    other = connect()
    with other.transaction():
        other.execute("SELECT 1 FROM device_publish_msg WHERE serial_number = 2 FOR UPDATE")
        assert store.remove_expired().messages == 2
    assert store.remove_expired().messages == 1


def test_session_ends_when_its_own_time_is_over(database: Connection) -> None:
    store = PostgresSessionStore(database, rules=StoreRules(session_expiry_s=0, default_ttl_s=600))
    lasting = PostgresSessionStore(database, rules=StoreRules(session_expiry_s=None, default_ttl_s=600))
    store.save_messages([save("short"), save("long"), save("used")])
    lasting.save_messages([save("lasting")])
    store.save_messages([SessionSave(client_id="long", messages=(message(expiry_interval_s=3_600),))])
    PostgresSessionStore(database).save_messages([save("used")])
    store.set_last_packet_id("unknown", packet_id=5, expected=None)
    for client_id in ("long", "lasting", "used"):
        store.ack(client_id, [Ack(packet_id=number) for number in (1, 2)])
    # Ten minutes go by for whatever lives no longer.
    database.execute("UPDATE device_publish_msg SET time = time - 600_000")
    database.execute("UPDATE queuekeeper.session_states SET until_ms = until_ms - 600_000")

    assert store.remove_expired(dry_run=True) == CleanupReport(messages=1, sessions=1, dry_run=True)
    assert store.remove_expired() == CleanupReport(messages=1, sessions=1, dry_run=False)
    assert [store.inspect(name).exists for name in ("short", "long", "lasting", "used", "unknown")] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_sessions_over_the_limit_are_trimmed_also_without_a_row_of_their_own(
    store: Watched, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_operations.upkeep, "SESSIONS_PER_STEP", 2)
    monkeypatch.setattr(postgres_operations.room, "TRIMMED_PER_TRANSACTION", 7)
    insert(database, "orphan", range(1, 31))
    insert(database, "within", range(1, 11))
    insert(database, "dead", range(1, 9), time_ms=5)
    insert(database, "dead", range(9, 12))
    for number in range(5):
        insert(database, f"other-{number}", [1])
    expected = CleanupReport(messages=28, sessions=2, dry_run=True)

    assert store.trim_sessions(dry_run=True) == expected
    assert store.trim_sessions() == replace(expected, dry_run=False)

    assert [each.serial for each in store.inspect("orphan").page] == list(range(21, 31))
    assert store.inspect("within").messages == 10
    assert [each.serial for each in store.inspect("dead").page] == [9, 10, 11]
    assert (state(database, "orphan")["trimmed"], state(database, "dead")["expired"]) == (20, 8)
    assert store.inspect("orphan").last_packet_id == 30, "the broker goes on behind the messages"


@pytest.mark.parametrize(("dead", "live", "limit", "left"), [(0, 25, 1, 1), (12, 3, 10, 3), (15, 25, 1, 1)])
def test_trim_of_more_than_a_transaction_removes_brings_a_session_to_its_limit_and_its_dry_run_says_so(
    database: Connection, dead: int, live: int, limit: int, left: int
) -> None:
    store = PostgresSessionStore(database, rules=StoreRules(limit=1_000 * limit))
    fill = (
        "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload)"
        " SELECT 'a', n, 't', %s, 1 + n, 'PUBLISH', 1, 'x' FROM generate_series(%s::bigint, %s::bigint) AS n"
    )
    database.execute(fill, [5, 0, 1_000 * dead - 1])
    database.execute(fill, [now_ms(), 1_000 * dead, 1_000 * (dead + live) - 1])
    expected = CleanupReport(messages=1_000 * (dead + live - left), sessions=1, dry_run=True)

    assert store.trim_sessions(dry_run=True) == expected
    assert store.trim_sessions() == replace(expected, dry_run=False)

    serials = database.execute("SELECT min(serial_number), count(*) FROM device_publish_msg").fetchone()
    assert serials == (1_000 * (dead + live - left), 1_000 * left)
    counts = {"trimmed": 1_000 * (live - left), "expired": 1_000 * dead}
    assert state(database, "a") == {"delivered_serial": -1, "refused": 0, "quarantined": 0} | counts


# --- connections -----------------------------------------------------------------------------------------------


def test_work_within_a_transaction_of_the_caller_ends_with_it(
    store: Watched, database: Connection, connect: Callable[[], Connection]
) -> None:
    with database.transaction(force_rollback=True):
        assert store.save_messages([save("a")])[0].stored == 1
        with pytest.raises(RefusedError):
            PostgresSessionStore(database).import_session("a", store.export_session("a").lines)
        assert store.inspect("a").messages == 1, "an operation that failed has undone itself only"
    assert not store.inspect("a").exists


def test_connection_without_autocommit_holds_no_transaction_open(database: Connection, postgres_url: str) -> None:
    with postgres.connect(postgres_url) as connection:
        store = PostgresSessionStore(connection)
        store.save_messages([save("a")])
        store.inspect("a")
        assert connection.info.transaction_status == TransactionStatus.IDLE
    assert PostgresSessionStore(database).inspect("a").messages == 1


def test_missing_tables_of_ours_are_explained(source: Connection) -> None:
    words = r'"queuekeeper\.session_states" does not exist; run `queuekeeper database migrate`'
    with pytest.raises(RefusedError, match=words):
        PostgresSessionStore(source).fetch_pending("a")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_connection_that_cannot_leave_a_pipeline_is_given_up(
    database: Connection, postgres_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is, once in hundreds of killed servers, when the server's last word has come and its end has not.
    def stuck(connection: Connection | AsyncConnection) -> NoReturn:
        connection.pgconn.enter_pipeline_mode()
        raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    async def purge() -> bool:
        async with await postgres.connect_async(postgres_url, autocommit=True) as connection:
            with pytest.raises(ServerUnavailable, match="broke the connection: cannot exit pipeline mode while busy"):
                await AsyncPostgresSessionStore(connection).purge_session("c")
            return connection.closed

    for kind_of_connection in (psycopg.Connection, psycopg.AsyncConnection):
        monkeypatch.setattr(kind_of_connection, "pipeline", stuck)
    if kind == "asyncio":
        assert asyncio.run(purge())
        return
    with postgres.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(ServerUnavailable, match="broke the connection: cannot exit pipeline mode while busy"):
            PostgresSessionStore(connection).purge_session("c")
        assert connection.closed


def test_threads_share_a_store(database: Connection) -> None:
    store = PostgresSessionStore(database)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: store.save_messages([save(f"client-{number % 3}", 2)]), range(60)))
    assert [reports[0].error for reports in done if reports[0].error] == []
    assert [store.inspect(f"client-{number}").messages for number in range(3)] == [40, 40, 40]


def test_cancelled_task_leaves_the_connection_to_the_others(
    database: Connection, connect: Callable[[], Connection], postgres_url: str
) -> None:
    watcher = connect()

    async def run() -> int:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            store = AsyncPostgresSessionStore(connection)
            with database.transaction():
                database.execute("LOCK TABLE device_publish_msg")
                task = asyncio.ensure_future(store.save_messages([save("a")]))
                query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
                while watcher.execute(query, [connection.info.backend_pid]).fetchone() != ("Lock",):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            reports = await asyncio.gather(*(store.save_messages([save("a")]) for _ in range(20)))
            return sum(report.stored for (report,) in reports)

    assert asyncio.run(run()) == 20
    assert PostgresSessionStore(database).inspect("a").messages == 20


@pytest.mark.parametrize("loop_is_busy", [False, True])
@pytest.mark.parametrize("passes", range(8))
def test_task_may_be_cancelled_at_any_point(
    database: Connection, postgres_url: str, passes: int, loop_is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop_is_busy:
        # psycopg lets other tasks of a busy loop run at more points, at each of which a task may be cancelled.
        monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", -1.0)
    # What the server has answered by then differs from pass to pass.
    turns = range(20) if loop_is_busy else range(passes * 10, passes * 10 + 10)

    async def cancel_at(turn: int) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            store = AsyncPostgresSessionStore(connection)
            await store.save_messages([save("b", source="s", offset=turn)])
            task = asyncio.ensure_future(store.save_messages([save("a", source="s", offset=turn)]))
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert connection.info.transaction_status == TransactionStatus.IDLE
            (report,) = await store.save_messages([save("a", source="s", offset=turn)])
            assert report.stored == 1

    async def run() -> None:
        for turn in turns:
            await cancel_at(turn)

    asyncio.run(run())
    assert PostgresSessionStore(database).inspect("a").messages == len(turns)


def test_transaction_whose_rollback_a_late_request_has_ended_is_rolled_back(
    connection: Connection, postgres_url: str
) -> None:
    query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"

    async def run() -> TransactionStatus:
        async with postgres.connect_async(postgres_url, autocommit=True) as shared:

            async def work() -> None:
                await shared.execute("BEGIN")
                await shared.execute("SELECT pg_sleep(600)")

            task = asyncio.ensure_future(postgres.undisturbed(shared, work()))
            while connection.execute(query, [shared.info.backend_pid]).fetchone() != ("PgSleep",):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            return shared.info.transaction_status

    assert asyncio.run(run()) == TransactionStatus.IDLE


# --- plans -----------------------------------------------------------------------------------------------------

PARAMETERS: dict[str, dict[str, Any]] = {
    "ack": {"client_id": "c-7", "packet_ids": [1, 2], "serials": [None, 3]},
    "count_pending": {"client_id": "c-7"},
    "duplicate_messages": {"client_id": "c-7", "default_ttl_s": 60},
    "fetch_pending": {
        "client_id": "c-7",
        "first_serial": 6,
        "backlog_serial": None,
        "limit": 50,
        "max_bytes": 10**6,
        "default_ttl_s": 60,
    },
    "last_packet_id": {"client_id": "c-7"},
    "list_serials": {"client_id": "c-7"},
    "lock_sessions": {"client_ids": ["c-7", "c-8"]},
    "mark_delivered": {"client_id": "c-7", "serial": 5},
    "mark_released": {"client_id": "c-7", "packet_id": 5, "serial": None, "default_ttl_s": 60},
    "peek": {"client_id": "c-7", "packet_id": 5},
    "purge_messages": {"client_id": "c-7", "up_to_serial": 50, "limit": 10},
    "quarantine_messages": {"client_id": "c-7", "serials": [5, 6], "reasons": ["x", "y"]},
    "read_sessions": {"client_ids": ["c-7", "c-8"], "sources": ["s", None], "counts": [1, 2], "limit": 10},
    "remove_dead_messages": {"client_ids": ["c-7", "c-8"], "default_ttl_s": 60},
    "remove_empty_sessions": {"client_ids": ["c-7", "c-8"], "now_ms": None},
    "remove_messages": {"client_id": "c-7", "serials": [5, 6]},
    "remove_replaced_messages": {"client_id": "c-7", "packet_ids": [5, 6], "default_ttl_s": 60},
    "remove_other_messages": {"client_id": "c-7", "kept": [5, 6], "serials": None},
    "save_sessions": {"client_ids": ["c-7"], "last_serials": [9], "last_packet_ids": [9]},
    "sessions_over_limit": {"after_client_id": "", "sessions": 50, "limit": 10, "default_ttl_s": 60},
    "snapshot_messages": {"client_id": "c-7", "before_serial": None, "limit": 50},
    "snapshot_session": {"client_id": "c-7"},
    "superseded_messages": {"client_id": "c-7", "first_serial": 5, "last_serial": 50},
    "suspicious_messages": {"client_id": "c-7", **sql_bounds()},
    "trim_messages": {"client_ids": ["c-7", "c-8"], "excess": [3, 4], "delivered_serials": [-1, 20]},
    "used_packet_ids": {"client_id": "c-7", "default_ttl_s": 60},
}


def test_no_statement_of_a_session_reads_the_whole_table(database: Connection) -> None:
    database.execute(
        f"INSERT INTO device_publish_msg ({MESSAGE_COLUMNS}) SELECT 'c-' || n % 400, n / 400, 't', 0, n / 400 + 1,"
        " 'PUBLISH', 1, 'payload', NULL, FALSE, NULL, NULL, NULL, NULL, NULL FROM generate_series(0, 39999) AS n"
    )
    database.execute("INSERT INTO device_session_ctx SELECT 'c-' || n, 0, 99, 100 FROM generate_series(0, 19999) AS n")
    database.execute("VACUUM ANALYZE device_publish_msg, device_session_ctx")
    scanned = {}
    for name, parameters in PARAMETERS.items():
        plan = database.execute("EXPLAIN " + sql_statements.statement(f"sessions/{name}"), parameters).fetchall()
        scanned[name] = [line for (line,) in plan if "Seq Scan on device_" in line]

    assert {name: lines for name, lines in scanned.items() if lines} == {}


def test_clean_up_reads_the_named_blocks_only(database: Connection) -> None:
    parameters = {"first_place": "(0,0)", "end_place": "(1,0)", "default_ttl_s": 60, "client_ids": None}
    insert(database, "a", range(1_000))
    for name in ("expired_sessions", "remove_expired"):
        plan = database.execute("EXPLAIN " + sql_statements.statement(f"sessions/{name}"), parameters).fetchall()
        assert any("Tid Range Scan on device_publish_msg" in line for (line,) in plan)
