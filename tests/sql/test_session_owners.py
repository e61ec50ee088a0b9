"""Who owns a session: slots, holds of writers, fences and changes of owner between several connections."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuekeeper import keyspace, postgres, sql_statements
from queuekeeper.errors import NotOwner, QueuekeeperError, RefusedError, SessionFenced, StaleEpoch
from queuekeeper.postgres import Connection
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.owners import AsyncOwnerStore, Ownership, OwnerStore
from queuekeeper.sessions.postgres_operations import CleanupReport, Query, Step
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore, PostgresSessionStore
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

HOLD = "SELECT queuekeeper.hold_owners(%s::text[], NULL)"
LONG_MS = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def save(client_id: str, count: int = 1, **fields: Any) -> SessionSave:
    values: dict[str, Any] = {"topic": "t", "payload": b"x", "qos": 1, "time_ms": now_ms()} | fields
    return SessionSave(client_id=client_id, messages=tuple(NewMessage(**values) for _ in range(count)))


def arm(connection: Connection, *, slots: tuple[int, int] = (0, 16_383), **columns: Any) -> None:
    """Have a cohort of a new plan armed; the plan has the name of its first slot."""
    plan_id = f"plan-{slots[0]}"
    connection.execute(
        "INSERT INTO queuekeeper.plans (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state)"
        " VALUES (%s, '{}', '', '', 0, '{0}', 'planned') ON CONFLICT DO NOTHING",
        [plan_id],
    )
    values = {
        "plan_id": plan_id,
        "cohort": 0,
        "slot_first": slots[0],
        "slot_last": slots[1],
        "state": "copying",
    } | columns
    connection.execute(
        f"INSERT INTO queuekeeper.online_cohorts ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
        list(values.values()),
    )


def own(connection: Connection, client_id: str, owner: str = "redis", **columns: Any) -> None:
    """Write down who owns a session."""
    values = {"client_id": client_id, "slot": keyspace.client_slot(client_id), "owner": owner, "epoch": 5} | columns
    connection.execute(
        f"INSERT INTO queuekeeper.session_owners ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
        list(values.values()),
    )


def owned(connection: Connection, client_id: str) -> tuple[Any, ...] | None:
    """Return owner, epoch and state of a session as they are written down."""
    return connection.execute(
        "SELECT owner, epoch, state FROM queuekeeper.session_owners WHERE client_id = %s", [client_id]
    ).fetchone()


def wait_until_blocked(watcher: Connection, blocked: Connection, waiting: Future[Any]) -> None:
    """Return when a connection waits for another's lock."""
    query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    deadline_s = time.monotonic() + PATIENCE_S
    while watcher.execute(query, [blocked.info.backend_pid]).fetchone() != (True,):
        assert not waiting.done(), "it did not wait"
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.fixture
def store(database: Connection) -> PostgresSessionStore:
    return PostgresSessionStore(database, rules=StoreRules(limit=10))


@pytest.fixture
def owners(database: Connection) -> OwnerStore:
    return OwnerStore(database)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


# --- slots -----------------------------------------------------------------------------------------------------


def test_slot_of_a_client_is_the_one_of_its_keys(database: Connection) -> None:
    random_text = random.Random(7)
    client_ids = ["a", "}", "%", "}}", "%7D", "%25", "a}b", "{", "{}", "{a}b", "{}{a}", "ä}ö", "😀" * 60, "123456789"]
    client_ids += ["".join(random_text.choices("ab{}%7Dé😀 \\'\"", k=random_text.randint(1, 12))) for _ in range(2_000)]

    rows = database.execute("SELECT id, queuekeeper.key_slot(id) FROM unnest(%s::text[]) AS id", [client_ids])

    assert dict(rows.fetchall()) == {client_id: keyspace.client_slot(client_id) for client_id in client_ids}
    for client_id in client_ids[:50]:
        assert keyspace.is_scattered(client_id) or keyspace.hash_slot(
            keyspace.session_keys(client_id).session
        ) == keyspace.client_slot(client_id)


# --- nobody migrates -------------------------------------------------------------------------------------------


def test_hold_costs_next_to_nothing_when_no_cohort_is_armed(database: Connection) -> None:
    arm(database, state="planned")
    client_ids = [f"client-{number}" for number in range(500)]
    database.execute(HOLD, [client_ids])
    with database.transaction():
        plan = database.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + HOLD, [client_ids]).fetchall()
        xid = database.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()

    ((found,),) = plan
    # A write costs thousands.
    assert found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"] < 20
    assert xid == (None,)
    assert database.execute("SELECT count(*) FROM queuekeeper.session_owners").fetchone() == (0,)


def test_single_write_takes_one_round_trip_with_its_hold(
    database: Connection, store: PostgresSessionStore, tmp_path: Path
) -> None:
    store.save_messages([save("a")])
    with (tmp_path / "protocol").open("w+b") as trace:
        database.pgconn.trace(trace.fileno())
        assert store.ack("a", [Ack(packet_id=1)]).removed == 1
        database.pgconn.untrace()
        trace.seek(0)
        sent = re.findall(rb"\tF\t\d+\t(\w+)", trace.read())

    assert sent.count(b"Sync") == 1
    assert sent.count(b"Execute") == 2


def test_schema_of_an_earlier_release_is_to_be_migrated(database: Connection, store: PostgresSessionStore) -> None:
    database.execute("DROP FUNCTION queuekeeper.hold_owners")
    reports = store.save_messages([save("a"), save("b")])
    assert all("function queuekeeper.hold_owners" in str(report.error) for report in reports)
    with pytest.raises(RefusedError, match="run `queuekeeper database migrate`"):
        store.ack("a", [Ack(packet_id=1)])

    database.execute("DROP SCHEMA queuekeeper CASCADE")
    with pytest.raises(RefusedError, match="run `queuekeeper database migrate`"):
        store.purge_session("a")


def test_statements_of_one_step_are_one_transaction(database: Connection, owners: OwnerStore) -> None:
    arm(database)
    step = Step(
        begin=True,
        end=True,
        queries=(
            Query(name="make_owners", parameters={"client_ids": ["a"]}),
            Query(name="pause", parameters={"seconds": "soon"}),
        ),
    )

    with pytest.raises(RefusedError, match="soon"):
        owners.answer(step)

    assert owned(database, "a") is None
    assert database.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


# --- writers ---------------------------------------------------------------------------------------------------


class Judged(PostgresSessionStore):
    """A store that remembers which transactions have written to the vendor's tables or ours, and how they began."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begun_with: dict[str, set[str]] = {}
        self._first = ""

    def answer(self, step: Step) -> Any:
        if step.begin:
            self._first = ""
        for query in step.queries:
            self._first = self._first or query.name
            if re.search(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b", sql_statements.statement(f"sessions/{query.name}")):
                self.begun_with.setdefault(query.name, set()).add(self._first)
        return super().answer(step)


def test_every_write_begins_with_a_hold(database: Connection) -> None:
    store = Judged(database, rules=StoreRules(limit=3, session_expiry_s=0))
    store.save_messages([SessionSave(client_id="a", messages=save("a", 5).messages, source="s", offset=1)])
    for name in sorted(WRITES):
        database.execute("UPDATE device_publish_msg SET qos = 7 WHERE serial_number = 4")
        with suppress(QueuekeeperError):
            WRITES[name](store)
    store.save_messages([save("a", 2)])
    database.execute("UPDATE device_publish_msg SET time = 0")
    store.fetch_pending("a")
    store.save_messages([save("a", 2), save("b", 2)])
    # The packet id that is next belongs to a message whose life is over.
    store.save_messages([save("d", 1)])
    database.execute("UPDATE device_publish_msg SET time = 0 WHERE client_id = 'd'")
    store.set_last_packet_id("d", packet_id=65_535, expected=1)
    store.save_messages([save("d", 1)])
    for connection_rules in (StoreRules(limit=1), StoreRules(default_ttl_s=1, session_expiry_s=0)):
        other = Judged(database, rules=connection_rules)
        other.begun_with = store.begun_with
        database.execute("UPDATE device_publish_msg SET time = time - 10000")
        other.trim_sessions()
        other.remove_expired()
    own(database, "c", driver=1)
    store.apply_snapshot("c", replace(store.read_snapshot("b"), client_id="c"), epoch=5, driver=1)

    holds = {"hold_owners", "own_sessions", "sessions_move", "set_driver"}
    assert {name: begun for name, begun in store.begun_with.items() if not begun <= holds} == {}
    assert {
        name
        for name in sql_statements.statements("sessions")
        if name.startswith(("save_", "remove_", "purge_", "trim_"))
    } - set(store.begun_with) == set()


def _import(store: PostgresSessionStore) -> Any:
    lines = jsonl.session_line(client_id="a", last_packet_id=None, last_serial=None, exported_from="redis")
    return store.import_session("a", [lines])


WRITES: dict[str, Callable[[PostgresSessionStore], Any]] = {
    "ack": lambda store: store.ack("a", [Ack(packet_id=1)]),
    "fetch_pending": lambda store: store.fetch_pending("a"),
    "import_session": _import,
    "mark_delivered": lambda store: store.mark_delivered("a", serial=0),
    "mark_released": lambda store: store.mark_released("a", packet_id=1),
    "purge_session": lambda store: store.purge_session("a"),
    "reserve_packet_ids": lambda store: store.reserve_packet_ids("a", count=1),
    "set_aside_unreadable": lambda store: store.set_aside_unreadable("a"),
    "set_last_packet_id": lambda store: store.set_last_packet_id("a", packet_id=9, expected=None),
}


def rows_of(connection: Connection) -> list[list[tuple[Any, ...]]]:
    tables = (
        "device_publish_msg",
        "device_session_ctx",
        "queuekeeper.session_states",
        "queuekeeper.session_quarantine",
    )
    return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"owner": "redis"}, NotOwner),
        ({"owner": "postgres", "state": "fenced", "fenced_until": "2100-01-01"}, SessionFenced),
        ({"owner": "postgres"}, StaleEpoch),
    ],
)
@pytest.mark.parametrize("name", sorted(WRITES))
def test_every_write_is_refused_while_it_must_not_be(
    database: Connection, name: str, columns: dict[str, Any], error: type[QueuekeeperError]
) -> None:
    store = PostgresSessionStore(database, epoch_of=lambda _: 4)
    store.save_messages([save("a", 2)])
    # One that nobody can deliver, for those who put such away.
    database.execute("UPDATE device_publish_msg SET qos = 7 WHERE serial_number = 1")
    own(database, "a", **columns)
    before = rows_of(database)

    with pytest.raises(error, match="'a'"):
        WRITES[name](store)

    assert rows_of(database) == before
    assert database.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_sessions_of_another_store_are_told_and_the_others_saved(
    database: Connection, store: PostgresSessionStore
) -> None:
    moved = {f"client-{number:03}" for number in range(0, 200, 2)}
    for client_id in moved:
        own(database, client_id)
    own(database, "client-001", "postgres", state="fenced", fenced_until="2100-01-01")
    statements: list[str] = []
    answer = store.answer

    def watched(step: Step) -> Any:
        statements.extend(query.name for query in step.queries)
        return answer(step)

    store.answer = watched  # type: ignore[method-assign]
    reports = store.save_messages([save(f"client-{number:03}") for number in range(200)])

    assert [report.client_id for report in reports] == [f"client-{number:03}" for number in range(200)]
    assert {report.client_id for report in reports if isinstance(report.error, NotOwner)} == moved
    assert [report.client_id for report in reports if isinstance(report.error, SessionFenced)] == ["client-001"]
    assert sum(report.stored for report in reports if report.error is None) == 99
    assert "'client-004'" in str(reports[4].error)
    # Not halved until each is alone.
    assert statements.count("hold_owners") == 2


def test_writer_with_the_present_epoch_passes(database: Connection) -> None:
    own(database, "a", "postgres")
    store = PostgresSessionStore(database, epoch_of={"a": 5}.get)

    (report,) = store.save_messages([save("a")])

    assert report.stored == 1


def test_new_client_of_an_armed_cohort_gets_its_default_owner(
    database: Connection, store: PostgresSessionStore
) -> None:
    slot = keyspace.client_slot("a")
    arm(database, slots=(slot, slot))

    before_us = time.time_ns() // 1_000
    (report,) = store.save_messages([save("a")])
    assert report.stored == 1
    found = owned(database, "a")
    assert found is not None
    owner, epoch, state = found
    assert (owner, state) == ("postgres", "settled")
    # Redis may know an epoch of an earlier migration, and follows only a greater one.
    assert before_us <= epoch <= time.time_ns() // 1_000

    store.save_messages([save("somebody else")])
    assert owned(database, "somebody else") is None


def test_new_client_that_redis_owns_is_refused(
    database: Connection, store: PostgresSessionStore, owners: OwnerStore
) -> None:
    arm(database, state="committed", default_owner="redis")

    (report,) = store.save_messages([save("a")])

    assert isinstance(report.error, NotOwner)
    found = owners.look_up(["a"])["a"]
    assert found == Ownership(client_id="a", owner="redis", epoch=found.epoch)
    assert store.inspect("a").exists is False


@pytest.mark.parametrize(("state", "mirrored"), [("on_redis", True), ("soaking", True), ("committed", False)])
def test_new_client_of_redis_is_mirrored_until_its_cohort_is_committed(
    database: Connection, owners: OwnerStore, state: str, mirrored: bool
) -> None:
    arm(database, state=state, default_owner="redis")

    assert owners.look_up(["a"])["a"].mirrored is mirrored


def test_present_migration_counts_before_one_that_is_over(database: Connection, owners: OwnerStore) -> None:
    arm(database, state="committed", default_owner="redis", step_at="2100-01-01")
    arm(database, slots=(0, 16_382), default_owner="postgres", plan_id="plan-0", cohort=1)

    assert owners.look_up(["a"])["a"].owner == "postgres"


def test_default_owner_changes_behind_the_writers_of_new_clients(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    arm(database)
    writer, driver = connect(), connect()
    with writer.transaction():
        PostgresSessionStore(writer).save_messages([save("new")])
        change = pool.submit(driver.execute, "UPDATE queuekeeper.online_cohorts SET default_owner = 'redis'")
        wait_until_blocked(database, driver, change)
    change.result()

    found = owned(database, "new")
    assert found is not None
    assert (found[0], found[2]) == ("postgres", "settled")
    (report,) = PostgresSessionStore(writer).save_messages([save("newer")])
    assert isinstance(report.error, NotOwner)


def test_writers_of_the_same_sessions_never_wait_in_a_circle(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    arm(database)
    client_ids = [f"client-{number}" for number in range(30)]

    def write(seed: int) -> list[QueuekeeperError]:
        shuffled = random.Random(seed)
        errors: list[QueuekeeperError] = []
        with connect() as connection:
            store = PostgresSessionStore(connection)
            for _ in range(15):
                some = shuffled.sample(client_ids, 12)
                reports = store.save_messages([save(each) for each in some])
                errors += [report.error for report in reports if report.error is not None]
                # Whoever lifts a fence whose time is over locks in another way than the others.
                connection.execute(
                    "UPDATE queuekeeper.session_owners SET state = 'fenced', fenced_until = clock_timestamp()"
                    " WHERE client_id = %s",
                    [shuffled.choice(client_ids)],
                )
        return errors

    errors = [error for found in pool.map(write, range(4)) for error in found]

    # One may come upon a fence that was not there when it looked whether there is any to lift.
    assert [error for error in errors if not isinstance(error, SessionFenced)] == []
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert database.execute(query).fetchone() == (0,)
    assert database.execute("SELECT count(*) FROM device_publish_msg").fetchone() == (4 * 15 * 12 - len(errors),)


def test_old_snapshot_does_not_write_once_sessions_may_move(
    database: Connection, store: PostgresSessionStore, connect: Callable[[], Connection]
) -> None:
    other = connect()
    with database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert store.save_messages([save("a")])[0].error is None

    with database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        database.execute("SELECT count(*) FROM device_publish_msg")
        # This transaction does not see the cohort.
        arm(other)
        OwnerStore(other).wait_for_writers(limit_s=1)
        (report,) = store.save_messages([save("a")])
    assert "not written at isolation level repeatable read" in str(report.error)
    assert owned(database, "a") is None


def test_writer_needs_no_rights_on_owners(database: Connection, postgres_url: str) -> None:
    arm(database)
    role = f"writer_{database.info.dbname}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    try:
        database.execute(f"GRANT USAGE ON SCHEMA queuekeeper TO {role}")
        tables = "device_publish_msg, device_session_ctx, queuekeeper.session_states, queuekeeper.session_sources"
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")
        with postgres.connect(f"{postgres_url}?user={role}&password=plain", autocommit=True) as plain:
            (report,) = PostgresSessionStore(plain).save_messages([save("a")])
            assert report.stored == 1
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                plain.execute("UPDATE queuekeeper.session_owners SET owner = 'postgres'")
    finally:
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


# --- fences ----------------------------------------------------------------------------------------------------


def test_fence_waits_for_a_writer_in_progress_and_lets_others_pass_meanwhile(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    arm(database)
    writer, driver, other = connect(), connect(), connect()
    with writer.transaction():
        PostgresSessionStore(writer).save_messages([save("a")])
        fencing = pool.submit(
            OwnerStore(driver).fence, "a", driver=1, lease_ms=LONG_MS, owner="postgres", patience_ms=600_000
        )
        # The row that the writer has made is not there yet for others.
        wait_until_blocked(database, driver, fencing)
    first = fencing.result()
    assert first is not None
    assert PostgresSessionStore(database).inspect("a").messages == 1
    OwnerStore(driver).unfence("a", driver=1, epoch=first.epoch or 0)

    with writer.transaction():
        PostgresSessionStore(writer).ack("a", [Ack(packet_id=1)])
        fencing = pool.submit(OwnerStore(driver).fence, "a", driver=1, lease_ms=LONG_MS, patience_ms=600_000)
        wait_until_blocked(database, driver, fencing)
        assert PostgresSessionStore(other).mark_delivered("a", serial=0) is True
    second = fencing.result()

    assert second is not None
    # The end of the first fence, and the second one.
    assert second == replace(first, epoch=(first.epoch or 0) + 2, fenced_until_ms=second.fenced_until_ms)
    assert (second.fenced_until_ms or 0) > now_ms()
    with pytest.raises(SessionFenced):
        PostgresSessionStore(writer).mark_delivered("a", serial=1)


def test_fence_gives_up_on_a_writer_that_does_not_end(database: Connection, connect: Callable[[], Connection]) -> None:
    own(database, "a", "postgres")
    writer = connect()
    with writer.transaction():
        writer.execute(HOLD, [["a"]])

        assert OwnerStore(database).fence("a", driver=1, lease_ms=LONG_MS, patience_ms=50) is None

        assert owned(database, "a") == ("postgres", 5, "settled")
    assert database.execute("SELECT current_setting('lock_timeout')").fetchone() == ("0",)


def test_unfenced_session_is_written_to_again(
    database: Connection, owners: OwnerStore, store: PostgresSessionStore
) -> None:
    own(database, "a", "postgres")
    fenced = owners.fence("a", driver=1, lease_ms=LONG_MS)
    assert fenced is not None
    assert isinstance(store.save_messages([save("a"), save("b")])[0].error, SessionFenced)
    assert store.inspect("b").messages == 1

    assert owners.unfence("a", driver=2, epoch=6) is None
    assert owners.unfence("a", driver=1, epoch=5) is None
    assert owners.unfence("a", driver=1, epoch=6) == Ownership(client_id="a", owner="postgres", epoch=7)
    assert owners.unfence("a", driver=1, epoch=6) is None

    assert store.save_messages([save("a")])[0].stored == 1


def test_flip_gives_the_session_to_the_other_store(
    database: Connection, owners: OwnerStore, store: PostgresSessionStore
) -> None:
    own(database, "a", "postgres")
    fenced = owners.fence("a", driver=1, lease_ms=LONG_MS, owner="postgres")
    assert fenced is not None
    assert fenced.epoch == 6

    assert owners.flip("a", driver=1, epoch=5, to="redis", mirrored=True) is None
    assert owners.flip("a", driver=2, epoch=6, to="redis", mirrored=True) is None
    flipped = owners.flip("a", driver=1, epoch=6, to="redis", mirrored=True)

    assert flipped == Ownership(client_id="a", owner="redis", epoch=7, mirrored=True)
    assert owners.look_up(["a", "b"]) == {"a": flipped}
    assert owners.flip("a", driver=1, epoch=6, to="redis", mirrored=True) is None
    assert isinstance(store.save_messages([save("a")])[0].error, NotOwner)
    assert owners.fence("a", driver=1, lease_ms=LONG_MS, owner="postgres") is None


def test_fence_whose_time_is_over_is_lifted_by_the_next_writer_and_the_flip_fails(
    database: Connection, owners: OwnerStore, store: PostgresSessionStore
) -> None:
    own(database, "a", "postgres")
    fenced = owners.fence("a", driver=1, lease_ms=1)
    assert fenced is not None
    time.sleep(0.01)

    assert store.save_messages([save("a")])[0].stored == 1

    assert owned(database, "a") == ("postgres", 7, "settled")
    assert owners.flip("a", driver=1, epoch=6, to="redis", mirrored=True) is None
    assert owned(database, "a") == ("postgres", 7, "settled")


def test_flip_after_the_time_of_the_fence_changes_nothing(database: Connection, owners: OwnerStore) -> None:
    own(database, "a", "postgres")
    assert owners.fence("a", driver=1, lease_ms=1) is not None
    time.sleep(0.01)

    assert owners.flip("a", driver=1, epoch=6, to="redis", mirrored=True) is None

    assert owners.look_up(["a"])["a"] == Ownership(client_id="a", owner="postgres", epoch=7)


def test_time_of_a_fence_counts_from_when_the_writers_have_ended(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    own(database, "a", "postgres")
    writer, driver = connect(), connect()
    with writer.transaction():
        writer.execute(HOLD, [["a"]])
        fencing = pool.submit(OwnerStore(driver).fence, "a", driver=1, lease_ms=2_000, patience_ms=600_000)
        wait_until_blocked(database, driver, fencing)
        time.sleep(0.3)
        released_ms = now_ms()
    fenced = fencing.result()

    assert fenced is not None
    assert (fenced.fenced_until_ms or 0) >= released_ms + 2_000


def test_writer_that_waits_for_a_flip_is_refused_by_it(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    own(database, "a", "postgres")
    driver, writer = connect(), connect()
    with driver.transaction():
        fenced = OwnerStore(driver).fence("a", driver=1, lease_ms=LONG_MS)
        assert fenced is not None
        assert OwnerStore(driver).flip("a", driver=1, epoch=6, to="redis", mirrored=False) is not None
        saving = pool.submit(PostgresSessionStore(writer).save_messages, [save("a")])
        wait_until_blocked(database, writer, saving)
    (report,) = saving.result()

    assert isinstance(report.error, NotOwner)
    assert PostgresSessionStore(database).inspect("a").exists is False


def test_flip_that_is_undone_leaves_the_session_where_it_was(database: Connection, owners: OwnerStore) -> None:
    own(database, "a", "postgres")
    assert owners.fence("a", driver=1, lease_ms=LONG_MS) is not None
    with database.transaction(force_rollback=True):
        assert owners.flip("a", driver=1, epoch=6, to="redis", mirrored=False) is not None

    assert owned(database, "a") == ("postgres", 6, "fenced")


def test_second_driver_does_not_fence_what_another_has_fenced(database: Connection, owners: OwnerStore) -> None:
    own(database, "a", "postgres")
    assert owners.fence("a", driver=1, lease_ms=LONG_MS) is not None
    assert owners.fence("a", driver=2, lease_ms=LONG_MS) is None
    database.execute("UPDATE queuekeeper.session_owners SET fenced_until = clock_timestamp()")

    again = owners.fence("a", driver=2, lease_ms=LONG_MS)

    assert again is not None
    # The first fence, its end, the second one.
    assert again.epoch == 8


def test_driver_that_lost_its_cohort_is_refused(database: Connection, owners: OwnerStore) -> None:
    arm(database, driver=1)
    own(database, "a", "postgres")
    assert owners.fence("a", driver=1, lease_ms=LONG_MS) is not None
    database.execute("UPDATE queuekeeper.online_cohorts SET driver = 2")

    assert owners.flip("a", driver=1, epoch=6, to="redis", mirrored=True) is None
    assert owners.fence("a", driver=1, lease_ms=LONG_MS) is None
    assert owned(database, "a") == ("postgres", 6, "fenced")


def test_who_takes_a_cohort_over_waits_for_what_the_driver_writes(
    database: Connection, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    arm(database, driver=1)
    own(database, "a", "redis")
    first, second = connect(), connect()
    first.execute("SET queuekeeper.driver = '1'")
    with first.transaction():
        first.execute(HOLD, [["a"]])
        taking = pool.submit(second.execute, "UPDATE queuekeeper.online_cohorts SET driver = 2")
        wait_until_blocked(database, second, taking)
    taking.result()

    with pytest.raises(psycopg.Error) as caught:
        first.execute(HOLD, [["a"]])
    assert caught.value.sqlstate == "QK001"


def test_held_row_keeps_everybody_out_until_the_transaction_ends(
    database: Connection, owners: OwnerStore, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    own(database, "a", "postgres")
    writer = connect()
    with database.transaction():
        assert owners.hold("a") == Ownership(client_id="a", owner="postgres", epoch=5)
        assert owners.hold("a", epoch=4) is None
        assert owners.hold("a", driver=1) is None
        assert owners.hold("nobody") is None
        saving = pool.submit(PostgresSessionStore(writer).save_messages, [save("a")])
        wait_until_blocked(connect(), writer, saving)

    assert saving.result()[0].stored == 1


def test_mirror_ends_once(database: Connection, owners: OwnerStore) -> None:
    own(database, "a", "redis", mirrored=True)
    own(database, "b", "postgres")

    ended = owners.end_mirror("a")

    assert ended == Ownership(client_id="a", owner="redis", epoch=6)
    assert owners.end_mirror("a") == ended
    assert owners.end_mirror("b") is None


# --- arming ----------------------------------------------------------------------------------------------------


def test_missing_owners_of_armed_cohorts_are_made(database: Connection, owners: OwnerStore) -> None:
    client_ids = [f"client-{number}" for number in range(300)]
    half = {client_id for client_id in client_ids if keyspace.client_slot(client_id) < 8_192}
    arm(database, slots=(0, 8_191))
    arm(database, slots=(8_192, 16_383), state="planned")
    first = min(half)
    own(database, first, "redis")

    before_us = time.time_ns() // 1_000
    assert owners.make_owners(iter(client_ids)) == len(half) - 1
    assert owners.make_owners(client_ids) == 0

    rows = database.execute("SELECT client_id, slot, owner, epoch FROM queuekeeper.session_owners").fetchall()
    assert {row[0] for row in rows} == half
    assert all(row[3] >= before_us for row in rows if row[0] != first)
    assert {(row[0], row[1], row[2]) for row in rows if row[0] != first} == {
        (client_id, keyspace.client_slot(client_id), "postgres") for client_id in half - {first}
    }


def test_slots_are_armed_once_at_a_time(database: Connection) -> None:
    arm(database, slots=(0, 100))
    arm(database, slots=(50, 150), state="planned")

    with pytest.raises(psycopg.errors.ExclusionViolation):
        arm(database, slots=(100, 200))


def test_arming_waits_for_writers_that_have_looked_before(
    database: Connection, owners: OwnerStore, connect: Callable[[], Connection], pool: ThreadPoolExecutor
) -> None:
    early, bystander, driver = connect(), connect(), connect()
    with bystander.transaction():
        bystander.execute("CREATE TABLE of_no_interest (id int)")
        with early.transaction():
            # It has written nothing yet: no transaction id tells of it.
            early.execute(HOLD, [["a"]])
            arm(database)
            waiting = pool.submit(OwnerStore(driver).wait_for_writers, limit_s=60)
            time.sleep(0.2)
            assert not waiting.done()
            late = connect()
            with late.transaction():
                # Whoever comes now sees that the cohort is armed, and is not waited for.
                late.execute(HOLD, [["b"]])
                early.execute("COMMIT")
                waiting.result(timeout=PATIENCE_S)
                early.execute("BEGIN")


def test_writer_that_does_not_end_is_named(
    database: Connection, owners: OwnerStore, connect: Callable[[], Connection]
) -> None:
    writer = connect()
    with writer.transaction():
        writer.execute(HOLD, [["a"]])

        with pytest.raises(RefusedError, match=rf"process {writer.info.backend_pid} \(queuekeeper\) .* end them"):
            owners.wait_for_writers(limit_s=0.1)

    owners.wait_for_writers(limit_s=0.1)


# --- clean-ups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [{"owner": "redis"}, {"state": "fenced", "fenced_until": "2100-01-01"}])
def test_clean_ups_pass_over_sessions_that_are_not_postgresqls(database: Connection, columns: dict[str, Any]) -> None:
    store = PostgresSessionStore(database, rules=StoreRules(limit=3, default_ttl_s=3_600, session_expiry_s=0))
    for client_id in ("here", "there"):
        store.save_messages([save(client_id, 3)])
        database.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) SELECT %s, n, 't', %s, n + 1, 'PUBLISH', 1, 'x' FROM generate_series(3, 4) AS n",
            [client_id, now_ms()],
        )
    own(database, "there", **({"owner": "postgres"} | columns))
    after_trim = {"here": 3, "there": 5}

    assert store.trim_sessions(dry_run=True) == CleanupReport(messages=2, sessions=1, dry_run=True)
    assert store.trim_sessions() == CleanupReport(messages=2, sessions=1, dry_run=False)
    assert {client_id: store.inspect(client_id).messages for client_id in after_trim} == after_trim

    database.execute("UPDATE device_publish_msg SET time = 0")
    assert store.remove_expired(dry_run=True).messages == 3
    assert store.remove_expired().messages == 3
    assert {client_id: store.inspect(client_id).messages for client_id in after_trim} == {"here": 0, "there": 5}

    database.execute("DELETE FROM device_publish_msg")
    database.execute("UPDATE queuekeeper.session_states SET until_ms = 0")
    assert store.remove_expired(dry_run=True).sessions == 1
    assert store.remove_expired().sessions == 1
    assert {client_id: store.inspect(client_id).exists for client_id in after_trim} == {"here": False, "there": True}


# --- asyncio ---------------------------------------------------------------------------------------------------


def test_tasks_do_the_same(database: Connection, postgres_url: str) -> None:
    arm(database)

    async def run() -> None:
        async with await postgres.connect_async(postgres_url, autocommit=True) as connection:
            owners, store = AsyncOwnerStore(connection), AsyncPostgresSessionStore(connection)
            await owners.wait_for_writers()
            assert await owners.make_owners(["a"]) == 1
            fenced = await owners.fence("a", driver=1, lease_ms=LONG_MS, owner="postgres")
            assert fenced is not None
            (report,) = await store.save_messages([save("a")])
            assert isinstance(report.error, SessionFenced)
            async with connection.transaction():
                assert await owners.hold("a", driver=1, epoch=fenced.epoch) == fenced
                flipped = await owners.flip("a", driver=1, epoch=fenced.epoch or 0, to="redis", mirrored=True)
            assert await owners.look_up(["a"]) == {"a": flipped}
            with pytest.raises(NotOwner):
                await store.purge_session("a")
            assert (await owners.end_mirror("a")) is not None

    asyncio.run(run())


def test_connection_serves_after_refusals(database: Connection, postgres_url: str) -> None:
    # A pipeline that is refused ends before its later statements, which psycopg may take for prepared by then.
    arm(database)
    own(database, "moved")

    async def run() -> None:
        async with await postgres.connect_async(postgres_url, autocommit=True) as connection:
            store = AsyncPostgresSessionStore(connection)
            await store.save_messages([save("here", 20)])
            for serial in range(20):
                assert await store.mark_delivered("here", serial=serial)
                with pytest.raises(NotOwner):
                    await store.mark_delivered("moved", serial=serial)

    asyncio.run(run())
    store = PostgresSessionStore(database)
    store.save_messages([save("there", 20)])
    for serial in range(20):
        assert store.mark_delivered("there", serial=serial)
        with pytest.raises(NotOwner):
            store.mark_delivered("moved", serial=serial)
