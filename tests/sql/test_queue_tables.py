"""What the doctor says of queue tables on real servers: each thing that can be wrong, nothing where all is well."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import ExecStatus, PGconn

from queuekeeper import postgres, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.doctor import Finding, State, examine_postgres
from queuekeeper.doctor.queue_tables import Limits, examine_queue_tables
from queuekeeper.embedded import PostgresServer
from queuekeeper.events import schema
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.broker import TABLES
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.head_room import head_room_s as catalog_head_room_s
from queuekeeper.maintenance.partitions.plan import plan_creation
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection
from queuekeeper.sql_statements import statement

pytestmark = pytest.mark.sql

HOUR_MS = 3_600_000
AT_ONCE = Limits(held_s=0.0, unread_s=0.0)
"""Every holder of a snapshot is too late."""

POLICY = PartitionPolicy(table="public.readings", step="6 hours", ahead="2 days", archive=False)


def examine(connection: Connection, *, limits: Limits | None = None, later_ms: int = 0) -> list[Finding]:
    return examine_queue_tables(connection, server="PostgreSQL", clock=lambda: system_clock() + later_ms, limits=limits)


@pytest.fixture
def queues(connection: Connection, control_schema: None) -> Connection:
    """A database with a broker and a table of readings, both with their partitions."""
    schema.install(connection)
    connection.execute("CREATE TABLE readings (at timestamptz, n int, PRIMARY KEY (at, n)) PARTITION BY RANGE (at)")
    connection.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    save_policy(connection, POLICY)
    create(connection)
    return connection


def create(connection: Connection) -> None:
    now_ms = system_clock()
    apply_plan(connection, plan=plan_creation(connection, policy=POLICY, now_ms=now_ms), now_ms=now_ms)


@pytest.fixture(scope="module")
def own_server(postgres_binaries: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with prepared transactions and logical slots, on which autovacuum begins no work."""
    home = tmp_path_factory.mktemp("postgres")
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o711)
    server = PostgresServer(home / "server", durable=False, die_with_parent=True, binaries=postgres_binaries)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        admin.execute("ALTER SYSTEM SET wal_level = 'logical'")
        # Autovacuum is on, and does not come.
        admin.execute("ALTER SYSTEM SET autovacuum_naptime = '1d'")
    server.stop()
    server.start()
    yield server
    server.erase()


@pytest.fixture
def own(own_server: PostgresServer) -> Iterator[Connection]:
    with postgres.connect(own_server.url, autocommit=True) as opened:
        yield opened


def test_healthy_tables_yield_nothing(queues: Connection) -> None:
    assert examine(queues) == []
    found = {each.check: each for each in examine_postgres(dsn(queues))}
    assert (found["queue tables"].state, found["queue tables"].remedy) == (State.OK, "")


def dsn(connection: Connection) -> str:
    told = connection.info
    return f"postgresql://{told.user}:{told.password}@{told.host}:{told.port}/{told.dbname}"


def test_session_that_idles_in_a_transaction_is_named_with_what_ends_it(
    queues: Connection, connect: Callable[[], Connection]
) -> None:
    idle = connect()
    idle.execute("SET application_name = 'forgotten'")
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    idle.execute("SELECT count(*) FROM readings")
    assert examine(queues) == []
    (found,) = examine(queues, limits=AT_ONCE)
    pid = idle.info.backend_pid
    assert (found.subject, found.check, found.state) == ("PostgreSQL", "old snapshots", State.WARNING)
    assert found.found.startswith(f"idle in transaction {pid} (postgres, forgotten, 127.0.0.1) for ")
    assert found.command == f"SELECT pg_terminate_backend({pid});"
    (worse,) = examine(queues, limits=replace(AT_ONCE, dangerous_transactions=0))
    assert worse.state is State.FAILED
    (old,) = examine(queues, limits=Limits(held_transactions=0))
    assert old.state is State.WARNING

    queues.execute(found.command.encode())
    until_gone(queues, pid)
    assert examine(queues, limits=AT_ONCE) == []


def until_gone(connection: Connection, pid: int) -> None:
    while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall():
        connection.execute("SELECT pg_sleep(0.02)")


def test_long_query_is_cancelled_and_an_open_transaction_is_ended(
    queues: Connection, connect: Callable[[], Connection]
) -> None:
    other = connect()
    pid = other.info.backend_pid
    other.execute("BEGIN")
    other.execute("INSERT INTO readings VALUES (now(), 1)")
    (idle,) = examine(queues, limits=AT_ONCE)
    assert idle.found.startswith("idle in transaction")
    other.execute("SELECT pg_sleep(0.5)")
    other.pgconn.send_query(b"SELECT pg_sleep(60)")
    running = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query LIKE '%%sleep(60)'"
    while not queues.execute(running, [pid]).fetchall():
        queues.execute("SELECT pg_sleep(0.02)")
    (opened,) = examine(queues, limits=AT_ONCE)
    assert opened.found.startswith(f"open transaction {pid} ")
    assert opened.command == f"SELECT pg_terminate_backend({pid});"
    queues.execute("SELECT pg_sleep(0.8)")
    (query,) = examine(queues, limits=AT_ONCE)
    assert query.found.startswith(f"long query {pid} ")
    assert "sleep" not in query.found
    assert query.command == f"SELECT pg_cancel_backend({pid});"
    queues.execute(query.command.encode())
    ended = other.pgconn.get_result()
    assert ended is not None
    assert b"canceling statement" in ended.error_message


def test_vacuum_and_other_databases_hold_nothing_back(queues: Connection, postgres_server: PostgresServer) -> None:
    with postgres.connect(postgres_server.url) as elsewhere:
        elsewhere.execute("SELECT pg_current_xact_id()")
        assert examine(queues, limits=AT_ONCE) == []


def test_prepared_transaction_is_named_and_its_name_is_quoted(own: Connection) -> None:
    with own.transaction():
        own.execute("SELECT pg_current_xact_id()")
        own.execute("PREPARE TRANSACTION 'it''s mine'")
    (found,) = examine(own, limits=AT_ONCE)
    assert found.found.startswith("prepared transaction it's mine (postgres) for ")
    assert found.command == "ROLLBACK PREPARED 'it''s mine';"
    own.execute(found.command.encode())
    assert examine(own, limits=AT_ONCE) == []


def test_slot_without_a_reader_is_named_and_dropped(own: Connection) -> None:
    own.execute("SELECT pg_create_logical_replication_slot('lost', 'test_decoding')")
    assert examine(own) == []
    limits = AT_ONCE if own.info.server_version >= 170_000 else Limits(held_transactions=0)
    (found,) = examine(own, limits=limits)
    assert found.found.startswith("logical replication slot lost (test_decoding, postgres)")
    assert found.found.endswith("holds rows of catalogs")
    assert found.command == "SELECT pg_drop_replication_slot('lost');"
    own.execute(found.command.encode())
    assert examine(own, limits=AT_ONCE) == []


def test_slot_that_keeps_too_much_write_ahead_log_is_named_and_dropped(
    own_server: PostgresServer, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
    own.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 2000000))")

    def told() -> Finding:
        return next(each for each in examine_postgres(own_server.url) if each.check == "replication slots")

    assert told().state is State.OK
    monkeypatch.setattr("queuekeeper.doctor.postgres.KEPT_GIB_WARNING", 0.001)
    kept = told()
    assert (kept.state, kept.command) == (State.WARNING, "SELECT pg_drop_replication_slot('forgotten');")
    run(own, kept.command)
    assert told().state is State.OK


def test_standby_that_reports_its_queries_is_named_and_so_is_its_slot_when_it_is_gone(own: Connection) -> None:
    own.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    ((xmin,),) = own.execute("SELECT pg_current_xact_id()::text::int").fetchall()
    own.execute("SELECT pg_current_xact_id()")
    own.execute("SELECT pg_current_xact_id()")
    for slot, kind in (("", "standby feedback"), ("SLOT standby ", "standby feedback standby")):
        with replicating(own, slot, xmin):
            while not (found := examine(own, limits=Limits(held_transactions=1))):
                own.execute("SELECT pg_sleep(0.02)")
            (feedback,) = found
            assert feedback.found.startswith(kind)
            assert "hot_standby_feedback" in feedback.command
    while (found := examine(own, limits=Limits(held_transactions=1))) and not found[0].found.startswith(
        "physical replication slot standby"
    ):
        own.execute("SELECT pg_sleep(0.02)")
    (gone,) = found
    assert gone.command == "SELECT pg_drop_replication_slot('standby');"
    run(own, gone.command)
    assert examine(own, limits=AT_ONCE) == []


@contextmanager
def replicating(connection: Connection, slot: str, xmin: int) -> Iterator[None]:
    """Follow a server as a standby does, and report that its queries need rows from a transaction on."""
    ((start,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    line = PGconn.connect(f"{dsn(connection)}?replication=true".encode())
    try:
        begun = line.exec_(f"START_REPLICATION {slot}PHYSICAL {start}".encode())
        assert begun.status == ExecStatus.COPY_BOTH
        line.put_copy_data(b"h" + struct.pack("!qIIII", 0, xmin, 0, 0, 0))
        line.flush()
        yield
    finally:
        line.finish()


def test_many_holders_are_told_oldest_first_and_then_counted(
    queues: Connection, connect: Callable[[], Connection]
) -> None:
    pids = []
    for _ in range(7):
        other = connect()
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        pids.append(other.info.backend_pid)
    found = examine(queues, limits=AT_ONCE)
    assert [each.command for each in found] == [f"SELECT pg_terminate_backend({pid});" for pid in pids[:5]]
    assert found[-1].found.endswith("; 2 more are not shown")


@pytest.mark.parametrize(("has_default", "then"), [(True, "rows go to DEFAULT"), (False, "inserts fail")])
def test_head_room_is_told_in_hours_before_it_ends_and_after(queues: Connection, has_default: bool, then: str) -> None:
    if not has_default:
        queues.execute("DROP TABLE readings_default")
    now_ms = system_clock()
    head_room_s = coverage(queues, policy=POLICY, now_ms=now_ms).head_room_s
    assert head_room_s is not None
    assert 48 <= head_room_s / 3_600 <= 54
    assert catalog_head_room_s(queues, table=POLICY.table, now_ms=now_ms) == head_room_s

    def told(hours_left: float) -> Finding | None:
        at_ms = now_ms + round(1_000 * (head_room_s - 3_600 * hours_left))
        found = examine_queue_tables(queues, server="PostgreSQL", clock=lambda: at_ms)
        return next((each for each in found if each.subject == POLICY.table), None)

    assert told(6.1) is None
    short, gone = told(3), told(-1)
    assert short is not None
    assert (short.check, short.state) == ("head-room", State.WARNING)
    assert short.found == f"partitions reach 3.0 hours ahead, the step is 6 hours: {then} then"
    assert gone is not None
    assert (gone.check, gone.state) == ("head-room", State.FAILED)
    assert gone.found == f"partitions reach 0.0 hours ahead, the step is 6 hours: {then} now"
    assert gone.command == "queuekeeper partitions create public.readings"


def test_head_room_of_integers_is_told_in_keys_until_their_rate_is_known(queues: Connection) -> None:
    queues.execute("CREATE TABLE log (n bigint PRIMARY KEY) PARTITION BY RANGE (n)")
    save_policy(queues, PartitionPolicy(table="public.log", step="1000", ahead="2500"))
    (found,) = examine(queues)
    assert (found.subject, found.check, found.state) == ("public.log", "head-room", State.WARNING)
    assert found.found == "partitions reach to 0, too little for 2500 ahead: apply a plan of creation"
    assert found.command == "queuekeeper partitions create public.log"


def test_broker_whose_partitions_run_out_is_named_before_events_go_to_the_overflow(queues: Connection) -> None:
    found = {each.subject: each for each in examine(queues, later_ms=4 * HOUR_MS)}
    assert set(found) == set(TABLES)
    assert found["pgmb.events"].state is State.FAILED
    assert found["pgmb.events"].found.endswith("rows go to the overflow now")


def test_rows_in_default_are_named_with_what_drains_them(queues: Connection) -> None:
    queues.execute("INSERT INTO readings VALUES (now() - interval '3 days', 1)")
    (found,) = examine(queues)
    assert (found.subject, found.check, found.state) == ("public.readings", "default rows", State.WARNING)
    assert found.found.startswith("public.readings_default: it holds rows of 1 step, from ")
    assert found.command == "queuekeeper partitions create public.readings"
    create(queues)
    assert examine(queues) == []


def test_policy_of_a_table_that_is_gone_is_to_be_forgotten(queues: Connection) -> None:
    queues.execute("DROP TABLE readings")
    (found,) = examine(queues)
    assert (found.subject, found.state) == ("public.readings", State.WARNING)
    assert "there is no table public.readings" in found.found
    assert found.command == "queuekeeper partitions forget public.readings"


def test_table_that_somebody_has_locked_holds_up_nobody(queues: Connection, connect: Callable[[], Connection]) -> None:
    other = connect()
    other.execute("BEGIN")
    other.execute("LOCK TABLE readings")
    queues.execute("CREATE TABLE device_publish_msg (id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 2))")
    queues.execute("INSERT INTO device_publish_msg SELECT FROM generate_series(1, 2)")
    locked, used = examine(queues)
    assert (locked.subject, locked.check, locked.state) == ("public.readings", "partitions", State.UNKNOWN)
    assert "lock timeout" in locked.found
    assert used.check == "sequences"
    assert catalog_head_room_s(queues, table="public.readings", now_ms=system_clock()) is None


def test_role_with_few_rights_is_told_what_it_may_not_see(
    queues: Connection, connect: Callable[[], Connection]
) -> None:
    role = f"few_{os.getpid()}"
    queues.execute("INSERT INTO readings SELECT now() - interval '3 days', n FROM generate_series(1, 12) AS n")
    queues.execute("SELECT pg_stat_force_next_flush()")
    queues.execute("ANALYZE readings_default")
    idle = connect()
    idle.execute("BEGIN")
    idle.execute("SELECT pg_current_xact_id()")
    queues.execute("CREATE TABLE device_publish_msg (id int GENERATED ALWAYS AS IDENTITY)")
    queues.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
    try:
        with psycopg.connect(dsn(queues), user=role, password="x", autocommit=True) as few:
            unknown = examine(few, limits=AT_ONCE)
            queues.execute(f"GRANT USAGE ON SCHEMA queuekeeper, pgmb TO {role}".encode())
            queues.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA queuekeeper, pgmb TO {role}".encode())
            queues.execute(f"GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgmb TO {role}".encode())
            queues.execute(f"GRANT SELECT (at) ON readings TO {role}".encode())
            some = examine(few, limits=AT_ONCE)
            old = examine(few, limits=Limits(held_transactions=0))
    finally:
        queues.execute(f"DROP OWNED BY {role}".encode())
        queues.execute(f"DROP ROLE {role}".encode())
    assert {each.check: each.state for each in unknown} == {
        "policies of partitions": State.UNKNOWN,
        "old snapshots": State.UNKNOWN,
        "sequences": State.UNKNOWN,
    }
    assert unknown[0].command == "queuekeeper acl postgres --job monitor"
    assert unknown[1].command == f"GRANT pg_read_all_stats TO {role};"
    assert [(each.check, each.state) for each in some] == [
        ("old snapshots", State.UNKNOWN),
        ("default rows", State.WARNING),
        ("sequences", State.UNKNOWN),
    ]
    assert some[2].found == "the position of 1 sequence is not shown to this role"
    assert some[2].command == f"GRANT SELECT ON SEQUENCE public.device_publish_msg_id_seq TO {role};"
    assert some[1].found == "public.readings_default: it holds about 12 rows by the statistics"
    assert old[0].found.startswith(f"session {idle.info.backend_pid} ")


def test_database_without_our_schemas_has_nothing_to_find(connection: Connection) -> None:
    assert examine(connection, limits=AT_ONCE) == []
    schema_migrations.migrate(connection)
    assert examine(connection) == []


def with_dead_rows(connection: Connection, *, options: str = "") -> None:
    connection.execute(f"CREATE TABLE device_publish_msg (n int) {options}".encode())
    connection.execute("INSERT INTO device_publish_msg SELECT generate_series(1, 20000)")
    connection.execute("DELETE FROM device_publish_msg WHERE n > 100")
    connection.execute("SELECT pg_stat_force_next_flush()")


def test_table_without_autovacuum_is_named_and_mended(queues: Connection) -> None:
    with_dead_rows(queues, options="WITH (autovacuum_enabled = off, autovacuum_vacuum_threshold = 1000)")
    (found,) = examine(queues)
    assert (found.subject, found.check, found.state) == ("public.device_publish_msg", "dead rows", State.FAILED)
    assert found.found == (
        "public.device_publish_msg: 19,900 dead rows beside 100 live ones; autovacuum comes at 1,000, "
        "it is off for this table, never vacuumed"
    )
    queues.execute("ALTER TABLE device_publish_msg SET (autovacuum_vacuum_threshold = 19000)")
    (warning,) = examine(queues)
    assert warning.state is State.WARNING
    run(queues, found.command)
    assert examine(queues) == []


def run(connection: Connection, command: str) -> None:
    """Run the statements of a finding, one after the other as psql does."""
    for each in command.split(";"):
        if each.strip():
            connection.execute(each.encode())


def test_table_to_which_autovacuum_does_not_come_is_named(own: Connection) -> None:
    with_dead_rows(own)
    try:
        (found,) = examine(own)
        assert found.state is State.FAILED
        assert "autovacuum comes at 50, it is on, never vacuumed" in found.found
        assert found.command == "VACUUM (ANALYZE) public.device_publish_msg;"
        own.execute("ALTER TABLE device_publish_msg SET (autovacuum_vacuum_threshold = 10000)")
        # It is due, and may be on its way.
        assert examine(own) == []
        run(own, found.command)
        own.execute("ALTER TABLE device_publish_msg RESET (autovacuum_vacuum_threshold)")
        assert examine(own) == []
    finally:
        own.execute("DROP TABLE device_publish_msg")


def test_vacuum_in_vain_is_told_with_who_makes_it_so(queues: Connection, connect: Callable[[], Connection]) -> None:
    idle = connect()
    idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    idle.execute("SELECT count(*) FROM readings")
    with_dead_rows(queues)
    queues.execute("VACUUM device_publish_msg")
    holder, dead = examine(queues, limits=AT_ONCE)
    assert holder.check == "old snapshots"
    assert (dead.check, dead.remedy, dead.command) == (
        "dead rows",
        "vacuum it, but first end what holds old snapshots",
        "VACUUM (ANALYZE) public.device_publish_msg;",
    )
    assert "19,900 dead rows" in dead.found
    run(queues, holder.command)
    until_gone(queues, idle.info.backend_pid)
    run(queues, dead.command)
    assert examine(queues) == []


def test_ages_near_the_wraparound_are_told_of_transactions_and_of_multixacts(
    queues: Connection, connect: Callable[[], Connection]
) -> None:
    queues.execute(
        "ALTER TABLE readings_default"
        " SET (autovacuum_freeze_max_age = 100000, autovacuum_multixact_freeze_max_age = 10000)"
    )
    # Nothing here is as old as what tests before this one have left.
    queues.execute("VACUUM (FREEZE)")
    queues.execute("CREATE TABLE locked (n int)")
    queues.execute("INSERT INTO locked VALUES (1)")
    first, second = connect(), connect()
    for _ in range(20):
        for each in (first, second):
            each.execute("BEGIN")
            each.execute("SELECT n FROM locked FOR SHARE")
        for each in (first, second):
            each.execute("COMMIT")
    limits = Limits(frozen_share=15 / 100_000)
    found = examine(queues, limits=limits)
    assert [each.found.partition(" is ")[0] for each in found] == [
        "public.readings_default: its oldest multixact",
        "public.readings_default: its oldest transaction id",
    ]
    assert {(each.subject, each.check, each.state) for each in found} == {
        ("public.readings", "wraparound age", State.WARNING)
    }
    assert found[0].command == "VACUUM (FREEZE) public.readings_default;"
    run(queues, found[0].command)
    assert examine(queues, limits=limits) == []


@pytest.mark.parametrize(
    ("table", "sequence", "wider"),
    [
        ("id int GENERATED ALWAYS AS IDENTITY", "public.device_publish_msg_id_seq", True),
        ("id smallserial", "public.device_publish_msg_id_seq", True),
        ("id int DEFAULT nextval('wide')", "public.wide", True),
        ("id bigint DEFAULT nextval('short')", "public.short", False),
        ("id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 1000)", "public.device_publish_msg_id_seq", False),
    ],
)
def test_sequence_near_its_end_is_named_and_goes_on(queues: Connection, table: str, sequence: str, wider: bool) -> None:
    queues.execute("CREATE SEQUENCE wide")
    queues.execute("CREATE SEQUENCE short MAXVALUE 1000")
    queues.execute(f"CREATE TABLE device_publish_msg ({table}, n int)".encode())
    assert examine(queues) == []
    final = 1_000 if not wider else 32_767 if "small" in table else 2_147_483_647
    for share, state in ((0.79, None), (0.81, State.WARNING), (0.951, State.FAILED)):
        queues.execute("SELECT setval(%s, %s)", [sequence, round(share * final)])
        found = examine(queues)
        assert [each.state for each in found] == ([] if state is None else [state])
    (used,) = found
    assert (used.subject, used.check) == ("public.device_publish_msg", "sequences")
    assert (
        used.found
        == f"id, numbered by {sequence}, is at {round(0.951 * final):,} of {final:,}, 95.1%: then inserts fail"
    )
    assert used.command.startswith("ALTER TABLE" if wider else f"ALTER SEQUENCE {sequence} AS bigint NO MAXVALUE;")
    run(queues, used.command)
    assert examine(queues) == []
    queues.execute("SELECT setval(%s, %s)", [sequence, final])
    queues.execute("INSERT INTO device_publish_msg (n) VALUES (1)")


def test_sequence_that_begins_anew_has_no_end(queues: Connection) -> None:
    queues.execute("CREATE TABLE device_publish_msg (id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 10 CYCLE))")
    queues.execute("SELECT setval('device_publish_msg_id_seq', 10)")
    assert examine(queues) == []


SMALL = Limits(bloat_bytes=1024 * 1024)


@pytest.mark.parametrize("column", ["id bigint", "id text", "id uuid"])
def test_index_much_larger_than_a_new_one_is_named_and_built_anew(queues: Connection, column: str) -> None:
    values = {"id bigint": "n", "id text": "'client ' || md5(n::text)", "id uuid": "md5(n::text)::uuid"}
    queues.execute(f"CREATE TABLE device_publish_msg ({column} PRIMARY KEY) WITH (autovacuum_enabled = off)".encode())
    rows = f"SELECT {values[column]} FROM generate_series(1, 100000) AS n ORDER BY 1"
    queues.execute(f"INSERT INTO device_publish_msg {rows}".encode())
    queues.execute("VACUUM (ANALYZE) device_publish_msg")
    ((oid,),) = queues.execute("SELECT 'device_publish_msg'::regclass::oid").fetchall()
    ((_, _, row_count, size_bytes, needed_bytes),) = queues.execute(
        statement("queue_tables/indexes"), {"oids": [oid], "least_bytes": 0}
    ).fetchall()
    assert row_count == 100_000
    assert needed_bytes == pytest.approx(size_bytes, rel=0.1)
    assert examine(queues, limits=SMALL) == []

    queues.execute("CREATE INDEX also ON device_publish_msg (id, id)")
    queues.execute("DELETE FROM device_publish_msg WHERE hashtext(id::text) % 20 <> 0")
    # Otherwise the server may count what was deleted after VACUUM has removed it.
    queues.execute("SELECT pg_stat_force_next_flush()")
    queues.execute("VACUUM (ANALYZE) device_publish_msg")
    found = examine(queues, limits=SMALL)
    assert {each.check for each in found} == {"index bloat"}
    assert len(found) == 2
    for each in found:
        run(queues, each.command)
    queues.execute("ANALYZE device_publish_msg")
    assert examine(queues, limits=SMALL) == []
