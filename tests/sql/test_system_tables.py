"""Tables of other queue systems: which are recognised, what becomes of them, and what is never taken from them."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from queuekeeper import assets, postgres
from queuekeeper.cli import app
from queuekeeper.embedded.postgres_server import PostgresServer
from queuekeeper.errors import RefusedError
from queuekeeper.jobs.engine import Engine
from queuekeeper.maintenance.partitions.adoption.job import Adoption
from queuekeeper.maintenance.partitions.adoption.model import AdoptionParameters
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.model import PartitionPlan, StepState
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_drop, plan_retirement
from queuekeeper.maintenance.partitions.policies import load_policy, save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, spans
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.systems import Care, SystemTable, recognise, systems, whole_name
from queuekeeper.postgres import Connection
from queuekeeper.schema_migrations import migrate
from tests import system_tables
from tests.patience import PATIENCE_S
from tests.postgres_roles import new_role
from tests.system_tables import ARCHIVE, PART_CONFIG, PGMQ_META, QUEUE, RIVER

pytestmark = pytest.mark.sql

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1_000)


def run(connection: Connection, text: str) -> None:
    connection.execute(text.encode())


def found(connection: Connection) -> dict[str, SystemTable]:
    return {each.table: each for each in recognise(connection)}


def cares(connection: Connection) -> dict[str, tuple[str, str | None, str, Care]]:
    return {name: (each.system, each.version, each.form, each.care) for name, each in found(connection).items()}


def pgmq(connection: Connection) -> Connection:
    """Make a partitioned queue as ``pgmq.create_partitioned`` does, but for pg_partman; ten ids to a partition."""
    run(connection, PGMQ_META)
    for table, columns in (("q_orders", QUEUE), ("a_orders", ARCHIVE)):
        run(connection, f"CREATE TABLE pgmq.{table} {columns} PARTITION BY RANGE (msg_id)")
        run(connection, f"CREATE INDEX {table}_part_idx ON pgmq.{table} (msg_id)")
        for lower in range(0, 60, 10):
            edges = f"FROM ({lower}) TO ({lower + 10})"
            run(connection, f"CREATE TABLE pgmq.{table}_p{lower} PARTITION OF pgmq.{table} FOR VALUES {edges}")
    return connection


def send(connection: Connection, *ids: int) -> None:
    for each in ids:
        run(connection, f"INSERT INTO pgmq.q_orders (msg_id, message) VALUES ({each}, '{{}}')")


SMALL = PartitionPolicy(
    table="pgmq.q_orders", step="10", ahead="20", retention="20", archive=False, quarantine_days=0, deadline_s=20
)


def retire(connection: Connection, policy: PartitionPolicy = SMALL, *, override: bool = False) -> PartitionPlan:
    return plan_retirement(connection, policy=policy, now_ms=NOW_MS, override_consumers=override)


def left(plan: PartitionPlan) -> list[str]:
    return [each.relation_name for each in plan.steps]


# --- files --------------------------------------------------------------------------------------------------------


def test_every_shipped_policy_suits_the_column_that_it_is_for() -> None:
    assert [each.system for each in systems()] == ["graphile-worker", "pg-boss", "pgmq", "procrastinate", "River"]
    for system in systems():
        for layout in system.layouts:
            assert (layout.rules is not None) == (layout.care in {Care.KEEP, Care.ADOPT}), layout
            assert layout.care is not Care.ADOPT or (layout.form == "plain" and not layout.live), layout
            if layout.rules is None:
                continue
            column = layout.key or layout.form.removeprefix("range of ")
            key = Key(column=column, type_name=layout.columns[column])
            assert spans(PartitionPolicy(table="a.b", **dict(layout.rules)), key).retention is not None
            # What is dropped was archived before, unless nothing can be in it.
            assert layout.rules.archive != layout.live, layout
    assert {path.name for path in assets.directory("policies").iterdir()} == {each.file for each in systems()}


# --- what is recognised -------------------------------------------------------------------------------------------


def test_nothing_is_recognised_in_a_database_of_others(connection: Connection) -> None:
    run(connection, "CREATE TABLE job (id int); CREATE TABLE archive (id int); CREATE TABLE a_orders (msg_id bigint)")
    assert found(connection) == {}


def test_tables_are_recognised_by_their_columns_and_not_by_their_names(connection: Connection) -> None:
    run(connection, PGMQ_META)
    run(connection, f"CREATE TABLE pgmq.q_orders {QUEUE}; CREATE TABLE pgmq.a_orders {ARCHIVE}")
    run(connection, "CREATE TABLE pgmq.a_notes (); CREATE TABLE pgmq.q_numbers (LIKE pgmq.q_orders)")
    run(connection, "ALTER TABLE pgmq.q_numbers ALTER message TYPE text")
    # The same columns elsewhere are no table of pgmq, whose functions name one schema.
    run(connection, f"CREATE SCHEMA other; CREATE TABLE other.meta (LIKE pgmq.meta); CREATE TABLE other.a_x {ARCHIVE}")
    tables = found(connection)
    assert {name: each.care for name, each in tables.items()} == {
        "pgmq.a_notes": Care.UNLIKE, "pgmq.a_orders": Care.ADOPT,
        "pgmq.q_numbers": Care.UNLIKE, "pgmq.q_orders": Care.LEAVE,
    }  # fmt: skip
    assert (
        tables["pgmq.a_notes"].words == "it has the name of a table of pgmq, but has no column msg_id: it is left alone"
    )
    assert "has a column message of type text, not jsonb" in tables["pgmq.q_numbers"].words
    assert tables["pgmq.a_notes"].command == tables["pgmq.q_orders"].command == ""
    run(connection, "ALTER TABLE pgmq.meta DROP is_unlogged")
    words = found(connection)["pgmq.a_orders"].words
    assert "but beside it, pgmq.meta has no column is_unlogged" in words


def test_partitions_are_not_named_and_other_forms_have_no_policy(connection: Connection) -> None:
    pgmq(connection)
    run(connection, f"CREATE TABLE pgmq.a_hashed {ARCHIVE} PARTITION BY HASH (msg_id)")
    tables = found(connection)
    assert set(tables) == {"pgmq.a_hashed", "pgmq.a_orders", "pgmq.q_orders"}
    assert tables["pgmq.a_hashed"].care is Care.LEAVE
    assert tables["pgmq.a_hashed"].words == "it is partitioned by hash of msg_id, for which no policy ships"
    queue = tables["pgmq.q_orders"]
    assert (queue.form, queue.care, queue.live, queue.policy_file) == (
        "range of msg_id", Care.KEEP, True, "policies/pgmq.toml",
    )  # fmt: skip
    assert queue.command == (
        "queuekeeper partitions set pgmq.q_orders --step 10000 --ahead 40000 --retention 100000 --no-archive"
    )


def test_river_is_left_to_its_cleaner_with_the_number_of_its_migration(connection: Connection) -> None:
    run(connection, RIVER)
    assert cares(connection) == {"jobs.river_job": ("River", "migration 7", "plain", Care.LEAVE)}
    assert "CompletedJobRetentionPeriod" in found(connection)["jobs.river_job"].words


def test_a_version_that_may_not_be_read_is_told_with_the_grant(connection: Connection) -> None:
    run(connection, RIVER)
    user = connection.info.user
    with new_role(connection, "looker") as role:
        run(connection, f"SET ROLE {role}")
        assert found(connection)["jobs.river_job"].version == (
            f'not told: GRANT USAGE ON SCHEMA "jobs" TO {user}; GRANT SELECT ON "jobs"."river_migration" TO {user}'
        )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("10.4.2", {"job": ("list of name", Care.LEAVE), "archive": ("plain", Care.ADOPT)}),
        ("12.38.0", {"job": ("list of name", Care.LEAVE), "queue_stats": ("range of captured_on", Care.LEAVE)}),
    ],
)
def test_pg_boss_as_its_package_makes_it(
    connection: Connection,
    control_schema: None,
    postgres_url: str,
    tmp_path: Path,
    version: str,
    expected: dict[str, tuple[str, Care]],
) -> None:
    run(connection, system_tables.pg_boss(version, tmp_path))
    schema = f"schema {system_tables.PG_BOSS[version]}"
    assert cares(connection) == {
        f"pgboss.{name}": ("pg-boss", schema, form, care) for name, (form, care) in expected.items()
    }
    if "archive" in expected:
        command = found(connection)["pgboss.archive"].command.removesuffix(" --dry-run")
        called(command, postgres_url, "--yes")
        assert cares(connection)["pgboss.archive"] == ("pg-boss", schema, "range of archived_on", Care.KEEP)
    else:
        policy = PartitionPolicy(table="pgboss.queue_stats", step="1 day", ahead="7 days")
        with pytest.raises(RefusedError, match=r"pgboss\.queue_stats belongs to pg-boss: .* finds them by name"):
            plan_creation(connection, policy=policy, now_ms=NOW_MS)


def test_pg_boss_without_partitions_is_left_to_its_own_deletions(connection: Connection, tmp_path: Path) -> None:
    run(connection, system_tables.pg_boss("12.38.0", tmp_path, partitioned=False))
    assert {name: (each.form, each.care) for name, each in found(connection).items()} == {
        f"pgboss.{each}": ("plain", Care.LEAVE) for each in ("job", "queue_stats")
    }


@pytest.mark.parametrize("version", system_tables.GRAPHILE_WORKER)
def test_graphile_worker_as_its_package_makes_it(connection: Connection, tmp_path: Path, version: str) -> None:
    for each in system_tables.graphile_worker(version, tmp_path):
        run(connection, each)
    number = f"migration {system_tables.GRAPHILE_WORKER[version]}"
    assert cares(connection) == {"graphile_worker._private_jobs": ("graphile-worker", number, "plain", Care.LEAVE)}
    assert "has no archive" in found(connection)["graphile_worker._private_jobs"].words


def test_procrastinate_as_its_package_makes_it(connection: Connection, tmp_path: Path) -> None:
    text = system_tables.of_python("procrastinate", "procrastinate/sql/schema.sql", tmp_path)
    run(connection, f"CREATE SCHEMA tasks; SET search_path TO tasks; {text}; RESET search_path")
    names = ("events", "jobs", "periodic_defers")
    assert cares(connection) == {
        f"tasks.procrastinate_{each}": ("procrastinate", None, "plain", Care.LEAVE) for each in names
    }


@pytest.fixture
def real_pgmq(connection: Connection, tmp_path: Path) -> Connection:
    """A database with pgmq as its package for Python installs it."""
    run(connection, system_tables.of_python("pgmq", "pgmq/sql/pgmq.sql", tmp_path))
    return connection


def test_an_archive_of_pgmq_is_adopted_by_the_command_that_is_told_and_goes_on(
    real_pgmq: Connection, control_schema: None, postgres_url: str
) -> None:
    run(real_pgmq, "SELECT pgmq.create('orders'); SELECT pgmq.archive('orders', pgmq.send('orders', '{}'))")
    command = found(real_pgmq)["pgmq.a_orders"].command
    assert command == (
        "queuekeeper partitions adopt pgmq.a_orders --key archived_at --widen-keys --step '1 day' --ahead '7 days' "
        "--retention '90 days' --disk-mib 1 --dry-run"
    )
    called(command, postgres_url)
    assert cares(real_pgmq)["pgmq.a_orders"] == ("pgmq", None, "plain", Care.ADOPT)
    called(command.removesuffix(" --dry-run"), postgres_url, "--yes")
    run(real_pgmq, "SELECT pgmq.archive('orders', pgmq.send('orders', '{}'))")
    assert real_pgmq.execute("SELECT count(*) FROM pgmq.a_orders").fetchone() == (2,)
    assert cares(real_pgmq)["pgmq.a_orders"] == ("pgmq", None, "range of archived_at", Care.KEEP)
    called("queuekeeper partitions adopt pgmq.a_orders --act commit", postgres_url, "--yes")
    assert load_policy(real_pgmq, "pgmq.a_orders").retention == "90 days"
    run(real_pgmq, "SELECT pgmq.drop_queue('orders')")
    assert found(real_pgmq) == {}


def called(command: str, url: str, *others: str) -> None:
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], *others, "--postgres-url", url])
    assert done.exit_code == 0, done.output


# --- what is kept, and what never leaves --------------------------------------------------------------------------


def test_a_queue_gets_partitions_ahead_and_loses_those_without_messages_alone(
    connection: Connection, control_schema: None
) -> None:
    pgmq(connection)
    send(connection, 5, 15, 45)
    (created,) = plan_creation(connection, policy=SMALL, now_ms=NOW_MS).steps
    assert (created.lower, created.upper) == ("60", "70")
    plan = retire(connection)
    assert left(plan) == []
    assert [(each.partition, each.reason) for each in plan.held] == [
        ("pgmq.q_orders_p0", "a consumer still needs keys from 5"),
        ("pgmq.q_orders_p10", "a consumer still needs keys from 5"),
    ]  # fmt: skip
    # A lower message keeps the empty partitions above it, and nobody's approval passes it.
    run(connection, "DELETE FROM pgmq.q_orders WHERE msg_id = 15")
    assert left(retire(connection, override=True)) == []
    run(connection, "DELETE FROM pgmq.q_orders WHERE msg_id = 5")
    plan = retire(connection)
    assert left(plan) == ["q_orders_p0", "q_orders_p10"]
    assert apply_plan(connection, plan=plan, now_ms=NOW_MS).done
    dropped = plan_drop(connection, policy=SMALL, now_ms=NOW_MS + 1_000)
    assert apply_plan(connection, plan=dropped, now_ms=NOW_MS + 1_000).done
    assert connection.execute("SELECT msg_id FROM pgmq.q_orders").fetchall() == [(45,)]


def test_a_policy_without_a_query_of_consumers_is_held_to_live_messages_too(
    connection: Connection, control_schema: None
) -> None:
    """The guard is of the table: a message that came between plan and approval keeps its partition."""
    pgmq(connection)
    send(connection, 45)
    plan = retire(connection)
    assert left(plan) == ["q_orders_p0", "q_orders_p10"]
    send(connection, 12)
    report = apply_plan(connection, plan=plan, now_ms=NOW_MS)
    assert [each.state for each in report.outcomes] == [StepState.DONE, StepState.STALE]
    assert "a consumer needs keys from 12 by now" in report.outcomes[1].words
    assert connection.execute("SELECT msg_id FROM pgmq.q_orders ORDER BY 1").fetchall() == [(12,), (45,)]


@pytest.mark.parametrize("has_default", [False, True])
def test_a_message_that_is_committed_while_its_partition_leaves_stays_in_the_queue(
    connection: Connection, control_schema: None, connect: Callable[[], Connection], has_default: bool
) -> None:
    pgmq(connection)
    send(connection, 45)
    policy = replace(SMALL, blocking_detach=has_default, lock_timeout_ms=60_000, deadline_s=round(PATIENCE_S))
    if has_default:
        run(connection, "CREATE TABLE pgmq.q_orders_default PARTITION OF pgmq.q_orders DEFAULT")
    plan = retire(connection, policy)
    assert left(plan) == ["q_orders_p0", "q_orders_p10"]
    other = connect()
    pid = connection.info.backend_pid

    def commit_once_it_waits() -> None:
        watcher = connect()
        until_s = time.monotonic() + PATIENCE_S
        query = "SELECT cardinality(pg_blocking_pids(%s))"
        while watcher.execute(query, [pid]).fetchone() == (0,) and time.monotonic() < until_s:
            pass
        other.execute("COMMIT")

    # The message is not visible yet when the lowest one is asked for.
    run(other, "BEGIN; INSERT INTO pgmq.q_orders (msg_id) VALUES (7)")
    watching = threading.Thread(target=commit_once_it_waits)
    watching.start()
    report = apply_plan(connection, plan=plan, now_ms=NOW_MS)
    watching.join()
    first = report.outcomes[0]
    assert (first.state, "meanwhile" in first.words) == (StepState.STALE, True), first
    assert connection.execute("SELECT msg_id FROM pgmq.q_orders ORDER BY 1").fetchall() == [(7,), (45,)]
    assert not [each for each in retired_partitions(connection, table="pgmq.q_orders") if each.state == "quarantined"]


def test_an_archive_of_pgmq_loses_old_partitions_by_its_shipped_policy(
    connection: Connection, control_schema: None
) -> None:
    run(connection, PGMQ_META)
    run(connection, f"CREATE TABLE pgmq.a_orders {ARCHIVE} PARTITION BY RANGE (archived_at)")
    day = NOW.replace(hour=0) - timedelta(days=91)
    for number in range(2):
        edges = f"FROM ('{day + timedelta(days=number)}') TO ('{day + timedelta(days=number + 1)}')"
        run(connection, f"CREATE TABLE pgmq.old_{number} PARTITION OF pgmq.a_orders FOR VALUES {edges}")
    run(connection, f"INSERT INTO pgmq.a_orders (msg_id, archived_at) VALUES (1, '{day}')")
    policy = found(connection)["pgmq.a_orders"].policy()
    save_policy(connection, policy)
    assert policy.archive
    assert not coverage(connection, policy=policy, now_ms=NOW_MS).head_room_met
    apply_plan(connection, plan=plan_creation(connection, policy=policy, now_ms=NOW_MS), now_ms=NOW_MS)
    assert coverage(connection, policy=policy, now_ms=NOW_MS).head_room_met
    assert left(retire(connection, policy)) == ["old_0"]
    (table,) = recognise(connection, with_policy=["pgmq.a_orders"])
    assert (table.has_policy, table.sets_policy, table.command) == (
        True, False, "queuekeeper partitions plan pgmq.a_orders",
    )  # fmt: skip


def test_messages_in_default_are_never_moved(connection: Connection, control_schema: None) -> None:
    pgmq(connection)
    run(connection, "ALTER TABLE pgmq.q_orders ADD PRIMARY KEY (msg_id)")
    run(connection, "CREATE TABLE pgmq.q_orders_default PARTITION OF pgmq.q_orders DEFAULT")
    send(connection, 45, 75)
    plan = plan_creation(connection, policy=replace(SMALL, far_future="100"), now_ms=NOW_MS)
    assert [(each.kind, each.lower) for each in plan.steps] == [("create", "60"), ("create", "80"), ("create", "90")]
    (finding,) = [each for each in plan.findings if each.subject == "pgmq.q_orders_default"]
    assert finding.words == "it holds rows of 1 step, from 70: they leave it as they are worked on"


# --- what is refused ----------------------------------------------------------------------------------------------


def test_what_pg_partman_maintains_is_left_to_it(connection: Connection, control_schema: None) -> None:
    pgmq(connection)
    run(connection, PART_CONFIG)
    run(connection, "INSERT INTO partman.part_config VALUES ('pgmq.q_orders', 'msg_id', '10000')")
    tables = found(connection)
    assert (tables["pgmq.q_orders"].care, tables["pgmq.a_orders"].care) == (Care.LEAVE, Care.KEEP)
    expected = r"pgmq\.q_orders is maintained by pg_partman, as partman\.part_config says, and two would make and drop"
    for plan in (plan_creation, plan_retirement, plan_drop):
        with pytest.raises(RefusedError, match=expected):
            plan(connection, policy=SMALL, now_ms=NOW_MS)
    run(connection, "DELETE FROM partman.part_config")
    assert left(plan_creation(connection, policy=SMALL, now_ms=NOW_MS)) == []


def test_where_pg_partmans_catalog_may_not_be_read_nothing_is_maintained(
    connection: Connection, control_schema: None
) -> None:
    pgmq(connection)
    run(connection, PART_CONFIG)
    run(connection, "CREATE TABLE part_config (parent_table text)")  # somebody else's
    with new_role(connection, "keeper") as role:
        run(connection, f"ALTER TABLE pgmq.q_orders OWNER TO {role}; GRANT USAGE ON SCHEMA pgmq TO {role}")
        run(connection, f"SET ROLE {role}")
        expected = r"this role cannot read partman\.part_config, which tells it: GRANT USAGE ON SCHEMA partman TO "
        with pytest.raises(RefusedError, match=expected):
            plan_creation(connection, policy=SMALL, now_ms=NOW_MS)
        tables = found(connection)
        assert "GRANT SELECT ON partman.part_config" in tables["pgmq.q_orders"].words
        run(connection, "RESET ROLE; DROP SCHEMA partman CASCADE")
        run(connection, f"SET ROLE {role}")
        tables = found(connection)
        assert (tables["pgmq.q_orders"].care, tables["pgmq.a_orders"].care) == (Care.KEEP, Care.LEAVE)
        assert "it belongs to postgres: connect as that role, or grant it" in tables["pgmq.a_orders"].words


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        (
            "pgmq.q_plain",
            "msg_id",
            r"it belongs to pgmq and holds messages that are still to be read: pgmq\.delete\(\)",
        ),
        ("jobs.river_job", "created_at", "it belongs to River and holds live and finalised jobs: River deletes"),
    ],
)
def test_live_rows_are_not_adopted(connection: Connection, table: str, key: str, words: str) -> None:
    run(
        connection, f"{PGMQ_META}; CREATE TABLE pgmq.q_plain {QUEUE}; ALTER TABLE pgmq.q_plain ADD PRIMARY KEY (msg_id)"
    )
    run(connection, RIVER)
    asked = AdoptionParameters(table=table, key=key, step="1 day", ahead="1 day", disk_mib=10, widen_keys=True)
    with pytest.raises(RefusedError, match=words):
        Engine(job=Adoption, database=connection).plan(asked)


def test_a_table_of_an_extension_is_not_adopted(connection: Connection) -> None:
    """In 1.5.1 pgmq makes its tables members of its extension, which would not let the old one be dropped."""
    run(connection, "CREATE TABLE visits (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
    run(connection, "ALTER EXTENSION plpgsql ADD TABLE visits")
    asked = AdoptionParameters(table="public.visits", key="id", step="10", ahead="10", disk_mib=10)
    expected = "it belongs to extension plpgsql, .*: ALTER EXTENSION plpgsql DROP TABLE visits first, .* after"
    with pytest.raises(RefusedError, match=expected):
        Engine(job=Adoption, database=connection).plan(asked)
    run(connection, "ALTER EXTENSION plpgsql DROP TABLE visits")
    Engine(job=Adoption, database=connection).plan(asked)


def test_pgmqs_partitioned_queues_are_pg_partmans_until_their_row_is_taken_out(
    system_postgres: PostgresServer, tmp_path: Path
) -> None:
    """With the extension itself, where the system's PostgreSQL has it."""
    with postgres.connect(system_postgres.create_database("partman"), autocommit=True) as connection:
        try:
            run(connection, "CREATE SCHEMA partman; CREATE EXTENSION pg_partman SCHEMA partman")
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("the system's PostgreSQL has no pg_partman")
        migrate(connection)
        run(connection, system_tables.of_python("pgmq", "pgmq/sql/pgmq.sql", tmp_path))
        run(
            connection,
            "SELECT pgmq.create_partitioned('ids'); SELECT pgmq.create_partitioned('days', '1 day', '9 days')",
        )
        tables = found(connection)
        assert {name: each.form for name, each in tables.items()} == {
            "pgmq.a_days": "range of archived_at", "pgmq.a_ids": "range of msg_id",
            "pgmq.q_days": "range of enqueued_at", "pgmq.q_ids": "range of msg_id",
        }  # fmt: skip
        assert all("is maintained by pg_partman" in each.words for each in tables.values())
        run(connection, "DELETE FROM partman.part_config")
        assert {each.care for each in recognise(connection)} == {Care.KEEP}
        for each in recognise(connection):
            seen = coverage(connection, policy=each.policy(), now_ms=round(datetime.now(UTC).timestamp() * 1_000))
            assert (seen.table, seen.has_default) == (whole_name(connection, each.table), True)
