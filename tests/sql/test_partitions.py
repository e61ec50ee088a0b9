"""Maintenance of partitions on real tables: what is created, retired, brought back and dropped, and what is refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql
from typer.testing import CliRunner

from queuekeeper import postgres
from queuekeeper.cli.partitions import app
from queuekeeper.errors import (
    CheckFailed,
    ForeignOwner,
    InvalidPolicy,
    KeyFromFuture,
    NotPartitioned,
    RefusedError,
    UnknownTable,
    UsageError,
)
from queuekeeper.events import schema
from queuekeeper.facts import plain
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.manifest import (
    FORMAT,
    ArchivedFile,
    Manifest,
    archive_place,
    describe_table,
    pin_texts,
    sum_file,
    table_content,
    write_manifest,
)
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    RetiredPartition,
    RetiredState,
    StepKind,
    StepState,
    plan_of,
)
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_drop, plan_reattachment, plan_retirement
from queuekeeper.maintenance.partitions.policies import delete_policy, load_policies, load_policy, save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.restore import restore_partition
from queuekeeper.maintenance.partitions.retired import (
    finish_restore,
    load_retired,
    record_archive,
    recreate_retired,
    retired_partitions,
)
from queuekeeper.places import make_folder, remove_folder
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.partitioned_tables import read_partitioned_tables
from tests.addresses import url_of
from tests.object_store import ObjectStore
from tests.patience import PATIENCE_S
from tests.postgres_roles import new_role

pytestmark = pytest.mark.sql

DAY_MS = 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


NOW = ms("2026-11-21 12:00")
POLICY = PartitionPolicy(
    table="public.readings", step="1 day", ahead="3 days", retention="10 days", quarantine_days=7, deadline_s=20
)


@pytest.fixture
def table(connection: Connection, control_schema: None) -> Connection:
    """A table partitioned by day, without partitions yet."""
    connection.execute(
        "CREATE TABLE readings (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now(), "
        "value int, doubled int GENERATED ALWAYS AS (value * 2) STORED, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)"
    )
    connection.execute("CREATE INDEX readings_at_idx ON readings (at)")
    return connection


def apply(connection: Connection, plan: PartitionPlan, now_ms: int = NOW) -> ApplyReport:
    return apply_plan(connection, plan=plan, now_ms=now_ms, random=Random(1))


def create(connection: Connection, policy: PartitionPolicy = POLICY, now_ms: int = NOW) -> ApplyReport:
    report = apply(connection, plan_creation(connection, policy=policy, now_ms=now_ms), now_ms)
    assert report.done, report
    return report


def retire(connection: Connection, policy: PartitionPolicy = POLICY, now_ms: int = NOW) -> ApplyReport:
    report = apply(connection, plan_retirement(connection, policy=policy, now_ms=now_ms), now_ms)
    assert report.done, report
    return report


def bounds(connection: Connection, table: str = "readings") -> list[str]:
    return [
        text
        for (text,) in connection.execute(
            "SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = to_regclass(%s) ORDER BY 1",
            [table],
        )
    ]


def days(*names: str) -> list[str]:
    moments = [datetime.fromisoformat(f"2026-{name}") for name in names]
    return [
        f"FOR VALUES FROM ('{one:%Y-%m-%d} 00:00:00+00') TO ('{other:%Y-%m-%d} 00:00:00+00')"
        for one, other in pairwise(moments)
    ]


def insert(connection: Connection, *instants: str) -> None:
    for each in instants:
        connection.execute("INSERT INTO readings (at, value) VALUES (%s, 1)", [each + "+00"])


def found(plan_or_coverage: Any, kind: FindingKind) -> list[str]:
    return [f"{each.subject}: {each.words}" for each in plan_or_coverage.findings if each.kind is kind]


def test_partitions_reach_ahead_of_the_clock(table: Connection) -> None:
    create(table)

    assert bounds(table) == days("11-21", "11-22", "11-23", "11-24", "11-25")
    insert(table, "2026-11-21 00:00:00", "2026-11-24 23:59:59.999999")
    again = plan_creation(table, policy=POLICY, now_ms=NOW)
    assert again.empty


def test_new_partition_is_like_its_table(table: Connection) -> None:
    create(table, replace(POLICY, storage=("fillfactor=90",)))
    insert(table, "2026-11-21 01:00:00")

    assert table.execute("SELECT value, doubled FROM readings").fetchall() == [(1, 2)]
    row = table.execute(
        "SELECT reloptions, (SELECT count(*) FROM pg_index WHERE indrelid = c.oid), "
        "(SELECT count(*) FROM pg_constraint WHERE conrelid = c.oid AND contype = 'c') "
        "FROM pg_class c WHERE relname = 'readings_p20261121'"
    ).fetchone()
    assert row == (["fillfactor=90"], 2, 0)


def test_plan_goes_through_json_and_is_applied_in_another_session(table: Connection) -> None:
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)
    again = plan_of(json.loads(json.dumps(plain(plan))))

    assert again == plan
    assert apply(table, again).done
    assert {each.state for each in apply(table, again).outcomes} == {StepState.ALREADY}


def test_statements_of_an_altered_plan_are_never_sent(table: Connection) -> None:
    text = json.dumps(plain(plan_creation(table, policy=POLICY, now_ms=NOW))).replace(
        "CREATE TABLE", "DROP TABLE public.readings; CREATE TABLE"
    )

    report = apply(table, plan_of(json.loads(text)))

    assert {each.state for each in report.outcomes} == {StepState.STALE}
    assert bounds(table) == []


def test_retired_partition_goes_to_quarantine_and_comes_back(table: Connection) -> None:
    create(table, now_ms=NOW)
    insert(table, "2026-11-21 01:00:00", "2026-11-22 01:00:00")
    later = NOW + 11 * DAY_MS
    create(table, now_ms=later)
    plan = plan_retirement(table, policy=POLICY, now_ms=later)

    assert [(each.kind, each.relation_name) for each in plan.steps] == [(StepKind.DETACH, "readings_p20261121")]
    assert plan.steps[0].statements[1].sql.endswith("CONCURRENTLY")
    assert apply(table, plan, later).done
    assert table.execute("SELECT count(*) FROM readings").fetchone() == (1,)
    (record,) = retired_partitions(table, table="public.readings")
    assert (record.state, record.partition_name) == (RetiredState.QUARANTINED, "readings_p20261121")
    assert table.execute("SELECT count(*) FROM queuekeeper_retired.readings_p20261121").fetchone() == (1,)

    undo = plan_reattachment(table, policy=POLICY, retired_id=record.retired_id, now_ms=later)
    assert apply(table, undo, later).done
    assert table.execute("SELECT count(*) FROM readings").fetchone() == (2,)
    held = plan_retirement(table, policy=POLICY, now_ms=later)
    assert held.empty
    assert "attached again" in held.held[0].reason


def archive(connection: Connection, record: RetiredPartition, path: Path, *files: ArchivedFile) -> None:
    """Note an archive that has all that a drop compares; its rows are in these files."""
    with connection.transaction():
        pin_texts(connection)
        shape = describe_table(connection, f"{record.quarantine_schema}.{record.partition_name}")
        content = table_content(connection, shape.name, columns=shape.columns, key="at")
    manifest = Manifest(
        format=FORMAT,
        system_identifier=shape.system_identifier,
        database=shape.database,
        parent=record.table,
        table=shape.name,
        table_oid=shape.oid,
        key="at",
        bounds=f"FOR VALUES FROM ('{record.lower}') TO ('{record.upper}')",
        content=content,
        files_hash="",
        columns=shape.columns,
        files=files,
        ddl=(),
        archived_at_ms=NOW,
        generated_by="test",
    )
    write_manifest(path, manifest)
    record_archive(connection, retired_id=record.retired_id, archive=asdict(manifest) | {"path": str(path)})


def test_partition_is_dropped_only_when_archived_and_its_days_are_up(table: Connection, tmp_path: Path) -> None:
    create(table)
    later = NOW + 11 * DAY_MS
    create(table, now_ms=later)
    retire(table, now_ms=later)
    (record,) = retired_partitions(table)
    early = plan_drop(table, policy=POLICY, now_ms=later + 6 * DAY_MS)
    unarchived = plan_drop(table, policy=POLICY, now_ms=later + 8 * DAY_MS)

    assert early.empty
    assert "stays in quarantine until" in early.held[0].reason
    assert unarchived.empty
    assert unarchived.held[0].reason == "its archive was not verified"
    archive(table, record, tmp_path)
    plan = plan_drop(table, policy=POLICY, now_ms=later + 8 * DAY_MS)
    assert apply(table, plan, later + 8 * DAY_MS).done
    assert load_retired(table, record.retired_id).state is RetiredState.DROPPED
    assert table.execute("SELECT to_regclass('queuekeeper_retired.readings_p20261121')").fetchone() == (None,)
    assert {each.state for each in apply(table, plan).outcomes} == {StepState.ALREADY}


def test_dropped_partition_is_recreated_for_its_archive(table: Connection) -> None:
    create(table)
    later = NOW + 11 * DAY_MS
    policy = replace(POLICY, archive=False, quarantine_days=0)
    create(table, policy, now_ms=later)
    retire(table, policy, now_ms=later)
    apply(table, plan_drop(table, policy=policy, now_ms=later + 1), later + 1)
    (record,) = retired_partitions(table)
    with pytest.raises(RefusedError, match="restore it from its archive first"):
        plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=later)

    empty = recreate_retired(table, retired_id=record.retired_id)
    assert empty.state is RetiredState.RESTORING
    table.execute("INSERT INTO queuekeeper_retired.readings_p20261121 (id, at) VALUES (7, '2026-11-21 10:00+00')")
    with pytest.raises(Exception, match="range_check"):
        table.execute("INSERT INTO queuekeeper_retired.readings_p20261121 (id, at) VALUES (7, '2026-11-22 10:00+00')")
    finish_restore(table, retired_id=record.retired_id, quarantine_days=7, now_ms=later)
    assert apply(table, plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=later)).done
    assert table.execute("SELECT id FROM readings").fetchall() == [(7,)]


def test_rows_in_default_are_drained_and_stay(table: Connection) -> None:
    table.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    insert(table, "2026-11-19 05:00:00", "2026-11-21 05:00:00", "2026-11-22 05:00:00", "2100-01-01 00:00:00")
    before = table.execute("SELECT id, at, value FROM readings ORDER BY id").fetchall()

    plan = plan_creation(table, policy=POLICY, now_ms=NOW)
    assert [each.kind for each in plan.steps].count(StepKind.DRAIN) == 1
    assert "no partitions are created for them" in found(plan, FindingKind.FAR_FUTURE)[0]
    report = apply(table, plan)

    assert report.done, report
    assert table.execute("SELECT id, at, value FROM readings ORDER BY id").fetchall() == before
    assert bounds(table) == ["DEFAULT", *days(*(f"11-{day}" for day in range(19, 27)))]
    assert table.execute("SELECT count(*) FROM readings_default_2").fetchone() == (1,)
    assert plan_creation(table, policy=POLICY, now_ms=NOW).empty
    (record,) = retired_partitions(table)
    assert record.drained_default
    assert table.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queuekeeper_drain%'").fetchone() == (0,)


def test_coverage_says_when_inserts_fail(table: Connection) -> None:
    create(table)
    now = coverage(table, policy=POLICY, now_ms=NOW)
    later = coverage(table, policy=POLICY, now_ms=NOW + 3 * DAY_MS)
    gone = coverage(table, policy=POLICY, now_ms=NOW + 30 * DAY_MS)

    assert (now.covered_until, now.head_room_met) == ("2026-11-25 00:00:00+00", True)
    assert now.inserts_fail_in_s == 3.5 * 86_400
    assert (later.inserts_fail_in_s, later.head_room_met) == (0.5 * 86_400, False)
    assert (gone.inserts_fail_in_s, gone.head_room_met) == (0.0, False)
    assert found(later, FindingKind.SHORT)


def test_head_room_is_short_only_when_maintenance_has_not_made_the_next_step(table: Connection) -> None:
    create(table)
    (next_day,) = {
        coverage(table, policy=POLICY, now_ms=ms(f"2026-11-22 {hour}")).head_room_met for hour in ("00:01", "23:59")
    }
    assert next_day, "maintenance is due"
    assert not plan_creation(table, policy=POLICY, now_ms=ms("2026-11-22 00:01")).empty
    day_after = coverage(table, policy=POLICY, now_ms=ms("2026-11-23 00:01"))
    assert not day_after.head_room_met
    assert found(day_after, FindingKind.SHORT)

    # With head-room of one step, half of it must be left.
    one = replace(POLICY, ahead="1 day")
    assert coverage(table, policy=one, now_ms=ms("2026-11-24 12:00")).head_room_met
    assert not coverage(table, policy=one, now_ms=ms("2026-11-24 12:01")).head_room_met


def test_policies_are_kept(table: Connection) -> None:
    save_policy(table, POLICY)
    changed = replace(POLICY, step="1 week", storage=("fillfactor=90",))
    save_policy(table, changed)

    assert load_policies(table) == [changed]
    assert load_policy(table, "public.readings") == changed
    delete_policy(table, "public.readings")
    with pytest.raises(UsageError, match=r"no policy for table 'public.readings'.*there are none yet"):
        load_policy(table, "public.readings")


# --- what other tools stumble over --------------------------------------------------------------------------------


@pytest.mark.slow
def test_sessions_of_any_time_zone_make_the_same_partitions(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    hourly = replace(POLICY, step="1 hour", ahead="30 hours", retention="20 hours")
    zones = ["America/New_York", "UTC", "Asia/Tokyo", "Europe/Berlin"]
    # The nights in which clocks are changed, spring and autumn, on both sides of the ocean.
    for night in ("2026-03-08 04:00", "2026-03-29 00:30", "2026-10-25 00:30", "2026-11-01 04:30"):
        table.execute(
            "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid::regclass FROM pg_inherits "
            "WHERE inhparent = 'readings'::regclass LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$"
        )
        for hours, zone in enumerate(zones):
            other = connect()
            other.execute(f"SET TimeZone = '{zone}'")
            create(other, hourly, now_ms=ms(night) + hours * 3_600_000)
            assert other.execute("SHOW TimeZone").fetchone() == (zone,)
            assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
        seen = coverage(table, policy=hourly, now_ms=ms(night))
        assert not seen.findings
        assert seen.partitions == (33 if night.endswith("00") else 34)
        starts = [datetime.fromisoformat(text.split("'")[1]) for text in bounds(table)]
        assert {int((b - a).total_seconds()) for a, b in pairwise(sorted(starts))} == {3_600}


def test_quiet_table_follows_the_clock(table: Connection) -> None:
    create(table)
    insert(table, "2026-11-21 01:00:00")

    create(table, now_ms=NOW + 40 * DAY_MS)
    insert(table, "2026-12-31 12:00:00", "2027-01-03 12:00:00")


def test_partitions_reach_ahead_of_data_that_run_ahead(table: Connection) -> None:
    create(table)
    insert(table, "2026-11-24 12:00:00")

    create(table)
    assert bounds(table)[-1:] == days("11-27", "11-28")


def test_far_future_row_pulls_no_partitions(table: Connection) -> None:
    create(table)
    table.execute("CREATE TABLE far PARTITION OF readings FOR VALUES FROM ('2100-01-01') TO ('2100-01-02')")
    insert(table, "2100-01-01 00:00:00")
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)

    assert plan.empty
    assert "highest key is 2100-01-01" in found(plan, FindingKind.FAR_FUTURE)[0]
    assert "beyond what the policy asks for" in found(plan, FindingKind.UNMANAGED)[0]


def test_stranger_with_a_partitions_name_stops_nothing_and_is_reported(table: Connection) -> None:
    table.execute("CREATE TABLE readings_p20261122 (id int)")
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)

    assert found(plan, FindingKind.STRANGER)[0].startswith("public.readings_p20261122: ")
    assert apply(table, plan).done
    insert(table, "2026-11-22 01:00:00")
    assert table.execute("SELECT tableoid::regclass::text FROM readings").fetchone() == ("readings_p20261122_2",)
    assert found(coverage(table, policy=POLICY, now_ms=NOW), FindingKind.STRANGER)


def test_gap_is_found_and_filled(table: Connection) -> None:
    create(table)
    table.execute("DROP TABLE readings_p20261122")
    seen = coverage(table, policy=POLICY, now_ms=NOW)

    assert found(seen, FindingKind.GAP)[0].startswith("2026-11-22 00:00:00+00 to 2026-11-23 00:00:00+00: ")
    assert seen.inserts_fail_in_s == 0.5 * 86_400
    create(table)
    assert bounds(table) == days("11-21", "11-22", "11-23", "11-24", "11-25")


@pytest.mark.slow
def test_changed_step_leaves_neither_gap_nor_overlap(table: Connection) -> None:
    for at, step in enumerate(("1 day", "1 week", "1 hour", "1 month", "12 hours", "1 day")):
        create(table, replace(POLICY, step=step), now_ms=NOW + at * 5 * DAY_MS)
        assert not coverage(table, policy=replace(POLICY, step=step), now_ms=NOW + at * 5 * DAY_MS).findings
    for day in range(21, 31):
        insert(table, f"2026-11-{day} 23:59:59.999999")


def test_month_without_maintenance_is_made_good_at_once(table: Connection) -> None:
    minutes = replace(POLICY, step="1 minute", ahead="5 minutes", retention=None, at_most=50)
    create(table, minutes)
    later = NOW + 30 * DAY_MS

    assert coverage(table, policy=minutes, now_ms=later).inserts_fail_in_s == 0
    create(table, minutes, now_ms=later)
    insert(table, "2026-12-21 12:00:30", "2026-12-01 00:00:00")
    seen = coverage(table, policy=minutes, now_ms=later)
    assert seen.head_room_met
    assert not seen.findings
    assert seen.partitions < 20


def test_partition_of_a_foreign_owner_is_left_alone(table: Connection) -> None:
    create(table)
    later = NOW + 12 * DAY_MS
    create(table, now_ms=later)
    role = f"stranger_{table.info.dbname}"
    table.execute(f"CREATE ROLE {role}")
    try:
        table.execute(f"ALTER TABLE readings_p20261121 OWNER TO {role}")
        plan = plan_retirement(table, policy=POLICY, now_ms=later)

        assert [each.relation_name for each in plan.steps] == ["readings_p20261122"]
        assert plan.held[0].reason == f"it belongs to {role}, not to postgres"
        assert found(plan, FindingKind.FOREIGN_OWNER)
        assert apply(table, plan, later).done
        (record,) = retired_partitions(table)
        table.execute(f"ALTER TABLE queuekeeper_retired.readings_p20261122 OWNER TO {role}")
        with pytest.raises(ForeignOwner, match=f"belongs to {role}, not to postgres: give it back first"):
            plan_reattachment(table, policy=POLICY, retired_id=record.retired_id, now_ms=later)
    finally:
        table.execute(f"REASSIGN OWNED BY {role} TO postgres")
        table.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("key", ["at timestamptz", "at bigint"])
def test_rows_on_another_server_that_does_not_answer_keep_no_partition_from_being_created(
    connection: Connection, control_schema: None, key: str
) -> None:
    is_time = "time" in key
    lower, upper = ("2026-01-01", "2026-02-01") if is_time else ("0", "100")
    connection.execute(
        "CREATE EXTENSION postgres_fdw; "
        "CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1'); "
        "CREATE USER MAPPING FOR CURRENT_USER SERVER away"
    )
    connection.execute(f"CREATE TABLE events (id int, {key}) PARTITION BY RANGE (at)".encode())
    connection.execute(
        f"CREATE FOREIGN TABLE old PARTITION OF events FOR VALUES FROM ('{lower}') TO ('{upper}') SERVER away".encode()
    )
    policy = replace(POLICY, table="public.events")
    if not is_time:
        policy = replace(policy, step="100", ahead="200", retention="100")

    create(connection, policy)
    assert coverage(connection, policy=policy, now_ms=NOW).head_room_met
    plan = plan_retirement(connection, policy=policy, now_ms=NOW)
    assert [each.reason for each in plan.held] == (["it is a foreign table: detach it by hand"] if is_time else [])


def test_role_that_may_not_alter_the_table_is_told_so(table: Connection, postgres_url: str) -> None:
    role = f"reader_{table.info.dbname}"
    table.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        with (
            postgres.connect(f"{postgres_url}?user={role}&password=reader", autocommit=True) as reader,
            pytest.raises(ForeignOwner, match=f"belongs to postgres: connect as that role.*GRANT postgres TO {role}"),
        ):
            plan_creation(reader, policy=POLICY, now_ms=NOW)
    finally:
        table.execute(f"DROP ROLE {role}")


# --- consumers ------------------------------------------------------------------------------------------------------


def read_by_cursors(table: Connection, later: int) -> PartitionPolicy:
    """Return the policy of a table whose consumers keep their places, with its partitions of two days."""
    table.execute("CREATE TABLE cursors (at timestamptz)")
    guarded = replace(POLICY, lowest_needed_sql="SELECT min(at) FROM cursors;")
    create(table, guarded)
    create(table, guarded, now_ms=later)
    return guarded


def test_partition_that_a_consumer_needs_stays(table: Connection) -> None:
    later = NOW + 20 * DAY_MS
    guarded = read_by_cursors(table, later)
    table.execute("INSERT INTO cursors VALUES ('2026-11-22 09:00+00')")
    plan = plan_retirement(table, policy=guarded, now_ms=later)

    assert plan.lowest_needed == "2026-11-22 09:00:00+00"
    assert [each.relation_name for each in plan.steps] == ["readings_p20261121"]
    assert {(each.consumer, each.reason) for each in plan.held} == {
        (True, "a consumer still needs keys from 2026-11-22 09:00:00+00")
    }
    override = plan_retirement(table, policy=guarded, now_ms=later, override_consumers=True)
    assert override.passes_consumers
    assert len(override.steps) == len(plan.steps) + len(plan.held)


def test_consumer_that_went_back_after_the_plan_keeps_its_partition(table: Connection) -> None:
    later = NOW + 11 * DAY_MS
    guarded = read_by_cursors(table, later)
    plan = plan_retirement(table, policy=guarded, now_ms=later)
    table.execute("INSERT INTO cursors VALUES ('2026-11-21 09:00+00')")
    report = apply(table, plan, later)

    assert [each.state for each in report.outcomes] == [StepState.STALE]
    assert "a consumer needs keys from 2026-11-21 09:00:00+00 by now; make a new plan" in report.outcomes[0].words
    assert retired_partitions(table) == []


def test_cursor_from_the_future_is_refused(table: Connection) -> None:
    create(table)
    with pytest.raises(KeyFromFuture, match=r"a consumer of public\.readings stands at 2030-.*correct the consumer's"):
        plan_retirement(table, policy=replace(POLICY, lowest_needed_sql="SELECT DATE '2030-01-01'"), now_ms=NOW)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT now() + interval '1 h' / 0", "fails: division by zero; nothing is retired"),
        ("SELECT now() UNION ALL SELECT now() - interval '1 h'", "answers several rows"),
        ("DELETE FROM readings RETURNING at", "fails: "),
        ("SELECT nextval('s')::text", "fails: "),
    ],
)
def test_query_of_consumers_that_fails_retires_nothing(table: Connection, query: str, words: str) -> None:
    table.execute("CREATE SEQUENCE s")
    with pytest.raises(UsageError, match=f"lowest_needed_sql of public.readings {words}"):
        plan_retirement(table, policy=replace(POLICY, lowest_needed_sql=query), now_ms=NOW)


# --- archives ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["a disk", "an object store"])
def dropped(
    table: Connection, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[Connection, RetiredPartition, Path]:
    """A table with a dropped partition, and a folder with the one row that it had."""
    folder = archive_place(
        tmp_path if request.param == "a disk" else f"s3://{request.getfixturevalue('bucket')}/archive"
    )
    table.execute("CREATE TABLE log (id bigint, at timestamptz NOT NULL) PARTITION BY RANGE (at)")
    policy = replace(POLICY, table="public.log", quarantine_days=0)
    save_policy(table, policy)
    later = NOW + 11 * DAY_MS
    create(table, policy)
    table.execute("INSERT INTO log VALUES (4711, '2026-11-21 05:00+00')")
    create(table, policy, now_ms=later)
    retire(table, policy, now_ms=later)
    (record,) = retired_partitions(table)
    rows = folder / "rows"
    make_folder(rows)
    moment = pa.array([datetime(2026, 11, 21, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    with (rows / "one.parquet").open("wb") as written:
        pq.write_table(pa.table({"id": [4711], "at": moment}), written)
    size_bytes, sha256 = sum_file(rows / "one.parquet")
    file = ArchivedFile(name="one.parquet", rows=1, size_bytes=size_bytes, sha256=sha256)
    archive(table, record, folder, file)
    assert apply(table, plan_drop(table, policy=policy, now_ms=later + 1), later + 1).done
    return table, record, folder


def test_dropped_partition_is_restored_by_a_command_from_where_its_archive_was_moved(
    dropped: tuple[Connection, RetiredPartition, Path],
) -> None:
    table, record, folder = dropped
    moved = archive_place(f"memory://moved-{folder.name}-{table.info.dbname}/archive")
    for name in ("manifest.json", "rows/one.parquet"):
        (moved / name).parent.mkdir(parents=True, exist_ok=True)
        (moved / name).write_bytes((folder / name).read_bytes())
    remove_folder(folder, what="archives")
    arguments = ["restore", str(record.retired_id), "--postgres-url", url_of(table), "--json"]

    gone = CliRunner().invoke(app, arguments)
    back = CliRunner().invoke(app, [*arguments, "--folder", str(moved)])

    assert isinstance(gone.exception, RefusedError)
    assert "there is no archive in" in str(gone.exception)
    assert json.loads(back.stdout)["path"] == str(moved)
    name = f"queuekeeper_retired.{record.partition_name}"
    assert table.execute(f"SELECT id FROM {name}".encode()).fetchall() == [(4711,)]


@pytest.mark.parametrize("dropped", ["a disk"], indirect=True)
def test_restore_that_fails_leaves_no_table_and_the_next_one_takes_the_columns_of_its_day(
    dropped: tuple[Connection, RetiredPartition, Path],
) -> None:
    table, record, folder = dropped
    file = folder / "rows" / "one.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"cut.")
    with pytest.raises(CheckFailed, match="differs from the manifest"):
        restore_partition(table, retired_id=record.retired_id, now_ms=NOW)
    assert load_retired(table, record.retired_id).state is RetiredState.DROPPED
    assert table.execute("SELECT count(*) FROM pg_class WHERE relname = %s", [record.partition_name]).fetchone() == (0,)

    file.write_bytes(whole)
    table.execute("ALTER TABLE log ADD COLUMN late int DEFAULT 7")
    restore_partition(table, retired_id=record.retired_id, now_ms=NOW)
    policy = load_policy(table, "public.log")
    undo = plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=NOW)
    assert apply(table, undo).done
    assert table.execute("SELECT id, late FROM log").fetchall() == [(4711, 7)]


@pytest.mark.parametrize("dropped", ["a disk"], indirect=True)
@pytest.mark.parametrize("schema", ["queuekeeper_retired", "public"])
def test_partition_is_restored_under_another_name_where_its_own_is_taken(
    dropped: tuple[Connection, RetiredPartition, Path], schema: str
) -> None:
    table, record, _ = dropped
    table.execute(f"CREATE TABLE {schema}.{record.partition_name} (other int)".encode())
    restore_partition(table, retired_id=record.retired_id, now_ms=NOW)
    undo = plan_reattachment(table, policy=load_policy(table, "public.log"), retired_id=record.retired_id, now_ms=NOW)
    assert apply(table, undo).done
    assert table.execute("SELECT tableoid::regclass::text, id FROM log").fetchall() == [
        (f"{record.partition_name}_2", 4711)
    ]


def test_partition_whose_archive_cannot_be_read_now_is_not_dropped(
    retired: tuple[Connection, PartitionPolicy, int], object_store: ObjectStore, bucket: str
) -> None:
    table, policy, later = retired
    (record,) = retired_partitions(table)
    archive(table, record, archive_place(f"s3://{bucket}/archive"))
    plan = plan_drop(table, policy=policy, now_ms=later + 1)

    with object_store.answering(403, "AccessDenied", method="GET"):
        refused = apply(table, plan, later + 1)

    assert [each.state for each in refused.outcomes] == [StepState.FAILED]
    assert "cannot be read: AccessDenied; let this user read it" in refused.outcomes[0].words
    assert "drop it where the archive can be read" in refused.outcomes[0].words
    assert load_retired(table, record.retired_id).state is RetiredState.QUARANTINED
    assert apply(table, plan, later + 1).done


def test_restored_partition_is_its_tables_owners_and_is_archived_anew(
    dropped: tuple[Connection, RetiredPartition, Path],
) -> None:
    table, record, _ = dropped
    role = f"owner_{table.info.dbname}"
    table.execute(f"CREATE ROLE {role}")
    try:
        table.execute(f"ALTER TABLE log OWNER TO {role}")
        restore_partition(table, retired_id=record.retired_id, now_ms=NOW)
        (restored,) = retired_partitions(table)
        policy = load_policy(table, "public.log")
        drop = plan_drop(table, policy=policy, now_ms=NOW + DAY_MS)
        reattachment = plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=NOW)

        assert (restored.state, restored.archived_at) == (RetiredState.QUARANTINED, None)
        assert [each.reason for each in drop.held] == ["its archive was not verified"]
        assert [each.kind for each in reattachment.steps] == [StepKind.REATTACH]
        name = f"queuekeeper_retired.{record.partition_name}"
        assert table.execute(f"SELECT id FROM {name}".encode()).fetchall() == [(4711,)]
    finally:
        table.execute(f"REASSIGN OWNED BY {role} TO postgres")
        table.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parent": "public.others"}, r"is of public\.others FOR VALUES .* not of retired partition 1 "),
        ({"bounds": "DEFAULT"}, r"is of public\.log DEFAULT, not of retired partition 1 .*: name its own folder"),
        ({"content": {"rows": 0, "rows_hash": "0"}}, r"has other rows than that of retired partition 1 "),
    ],
)
def test_archive_of_another_partition_is_not_restored(
    dropped: tuple[Connection, RetiredPartition, Path], change: dict[str, Any], words: str
) -> None:
    table, record, folder = dropped
    text = json.loads((folder / "manifest.json").read_text())
    if "content" in change:
        change = {"content": text["content"] | change["content"]}
    (folder / "manifest.json").write_text(json.dumps(text | change))

    with pytest.raises(RefusedError, match=words):
        restore_partition(table, retired_id=record.retired_id, now_ms=NOW, path=folder)
    assert load_retired(table, record.retired_id).state is RetiredState.DROPPED


# --- what others do meanwhile -----------------------------------------------------------------------------------------


def test_partition_that_gave_its_name_to_another_is_not_detached(table: Connection) -> None:
    create(table)
    later = NOW + 11 * DAY_MS
    create(table, now_ms=later)
    plan = plan_retirement(table, policy=POLICY, now_ms=later)
    table.execute("ALTER TABLE readings_p20261121 RENAME TO older")
    table.execute("ALTER TABLE readings_p20261205 RENAME TO readings_p20261121")
    before = bounds(table)
    report = apply(table, plan, later)

    assert [each.state for each in report.outcomes] == [StepState.STALE]
    assert "it was renamed to public.older; make a new plan" in report.outcomes[0].words
    assert bounds(table) == before
    retire(table, now_ms=later)
    assert [each.partition_name for each in retired_partitions(table)] == ["older"]


@pytest.fixture
def retired(table: Connection) -> tuple[Connection, PartitionPolicy, int]:
    """A table with one partition in quarantine, with a row, that may be dropped at once; and the instant."""
    create(table)
    insert(table, "2026-11-21 01:00:00")
    later = NOW + 11 * DAY_MS
    policy = replace(POLICY, quarantine_days=0)
    create(table, policy, now_ms=later)
    retire(table, policy, now_ms=later)
    return table, policy, later


def test_role_with_another_search_path_drops_what_was_archived(table: Connection, tmp_path: Path) -> None:
    table.execute("CREATE SCHEMA types; CREATE TYPE types.mood AS ENUM ('fine')")
    table.execute("ALTER TABLE readings ADD COLUMN mood types.mood DEFAULT 'fine'")
    create(table)
    insert(table, "2026-11-21 01:00:00")
    later, policy = NOW + 11 * DAY_MS, replace(POLICY, quarantine_days=0)
    create(table, policy, now_ms=later)
    retire(table, policy, now_ms=later)
    (record,) = retired_partitions(table)
    table.execute("SET search_path TO types, public")
    archive(table, record, tmp_path)
    table.execute("RESET search_path")
    report = apply(table, plan_drop(table, policy=policy, now_ms=later + 1), later + 1)
    assert [(each.state, each.words) for each in report.outcomes] == [(StepState.DONE, "")]


@pytest.mark.parametrize("purpose", ["drop", "reattach"])
def test_table_that_took_the_name_of_one_in_quarantine_is_neither_dropped_nor_attached(
    retired: tuple[Connection, PartitionPolicy, int], purpose: str
) -> None:
    table, policy, later = retired
    policy = replace(policy, archive=False)
    (record,) = retired_partitions(table)
    plan = (
        plan_drop(table, policy=policy, now_ms=later + 1)
        if purpose == "drop"
        else plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=later)
    )
    table.execute("ALTER TABLE queuekeeper_retired.readings_p20261121 RENAME TO kept")
    table.execute("CREATE TABLE queuekeeper_retired.readings_p20261121 (LIKE readings INCLUDING ALL)")
    report = apply(table, plan, later + 1)

    assert [each.state for each in report.outcomes] == [StepState.STALE]
    assert "it was renamed to queuekeeper_retired.kept; make a new plan" in report.outcomes[0].words
    assert table.execute("SELECT count(*) FROM queuekeeper_retired.kept").fetchone() == (1,)
    assert table.execute("SELECT count(*) FROM queuekeeper_retired.readings_p20261121").fetchone() == (0,)
    assert load_retired(table, record.retired_id).state is RetiredState.QUARANTINED


def test_table_that_has_other_rows_than_its_archive_is_not_dropped(
    retired: tuple[Connection, PartitionPolicy, int], tmp_path: Path
) -> None:
    table, policy, later = retired
    (record,) = retired_partitions(table)
    archive(table, record, tmp_path)
    plan = plan_drop(table, policy=policy, now_ms=later + 1)
    table.execute("INSERT INTO queuekeeper_retired.readings_p20261121 (id, at) VALUES (99, '2026-11-21 02:00+00')")
    changed = apply(table, plan, later + 1)
    table.execute("DELETE FROM queuekeeper_retired.readings_p20261121 WHERE id = 99")
    (tmp_path / "manifest.json").rename(tmp_path / "elsewhere.json")
    gone = apply(table, plan, later + 1)
    (tmp_path / "elsewhere.json").rename(tmp_path / "manifest.json")

    assert [each.state for each in (*changed.outcomes, *gone.outcomes)] == [StepState.FAILED] * 2
    assert "as it is now (2 rows" in changed.outcomes[0].words
    assert "there is no archive in" in gone.outcomes[0].words
    assert "drop it where the archive can be read, or archive it again" in gone.outcomes[0].words
    assert apply(table, plan, later + 1).done


def test_partition_that_was_attached_by_hand_needs_another_archive(
    retired: tuple[Connection, PartitionPolicy, int], tmp_path: Path
) -> None:
    table, policy, later = retired
    (record,) = retired_partitions(table)
    archive(table, record, tmp_path)
    table.execute("ALTER TABLE queuekeeper_retired.readings_p20261121 SET SCHEMA public")
    table.execute(
        "ALTER TABLE readings ATTACH PARTITION readings_p20261121 FOR VALUES "
        "FROM ('2026-11-21 00:00+00') TO ('2026-11-22 00:00+00')"
    )
    insert(table, "2026-11-21 02:00:00")
    retire(table, policy, now_ms=later + 1)
    drop = plan_drop(table, policy=policy, now_ms=later + 2)

    assert drop.empty
    assert drop.held[0].reason == "its archive was not verified"
    first, second = retired_partitions(table)
    assert (first.state, second.state) == (RetiredState.REATTACHED, RetiredState.QUARANTINED)
    assert second.archive is None
    assert table.execute("SELECT count(*) FROM queuekeeper_retired.readings_p20261121").fetchone() == (2,)


def test_tables_of_one_name_share_a_quarantine(table: Connection) -> None:
    table.execute("CREATE SCHEMA other")
    table.execute("CREATE TABLE other.readings (LIKE public.readings INCLUDING ALL) PARTITION BY RANGE (at)")
    later = NOW + 11 * DAY_MS
    policies = [replace(POLICY, table=f"{schema}.readings") for schema in ("public", "other")]
    for policy in policies:
        create(table, policy)
        create(table, policy, now_ms=later)
    table.execute("INSERT INTO other.readings (at) VALUES ('2026-11-21 01:00+00')")
    for policy in policies:
        retire(table, policy, now_ms=later)

    _, second = retired_partitions(table)
    assert second.partition_name == f"readings_p20261121_{second.partition_oid}"
    name = f"queuekeeper_retired.{second.partition_name}"
    assert table.execute(f"SELECT count(*) FROM {name}".encode()).fetchone() == (1,)
    undo = plan_reattachment(table, policy=policies[1], retired_id=second.retired_id, now_ms=later)
    assert apply(table, undo, later).done
    assert table.execute("SELECT count(*) FROM other.readings").fetchone() == (1,)


def test_partition_comes_back_from_the_quarantine_it_went_to(
    retired: tuple[Connection, PartitionPolicy, int],
) -> None:
    table, policy, later = retired
    (record,) = retired_partitions(table)
    moved = replace(policy, quarantine_schema="elsewhere")
    undo = plan_reattachment(table, policy=moved, retired_id=record.retired_id, now_ms=later)

    assert apply(table, undo, later).done
    assert table.execute("SELECT count(*) FROM readings").fetchone() == (1,)


def test_role_without_the_right_to_create_schemas_uses_the_one_that_is_there(table: Connection) -> None:
    later = NOW + 11 * DAY_MS
    create(table)
    create(table, now_ms=later)
    with new_role(table, "keeper") as role:
        table.execute(f"GRANT CREATE, USAGE ON SCHEMA public, queuekeeper TO {role}")
        table.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA queuekeeper TO {role}")
        table.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA queuekeeper TO {role}")
        table.execute(f"ALTER TABLE readings OWNER TO {role}")
        for (name,) in table.execute("SELECT inhrelid::regclass::text FROM pg_inherits").fetchall():
            if name.startswith("readings_p") and not name.endswith(("idx", "pkey")):
                table.execute(f"ALTER TABLE {name} OWNER TO {role}")
        before = bounds(table)
        table.execute(f"SET ROLE {role}")
        plan = plan_retirement(table, policy=POLICY, now_ms=later)
        refused = apply(table, plan, later)
        table.execute("RESET ROLE")
        assert [each.state for each in refused.outcomes] == [StepState.FAILED]
        assert "there is no schema queuekeeper_retired, and" in refused.outcomes[0].words
        assert bounds(table) == before
        assert retired_partitions(table) == []

        table.execute("CREATE SCHEMA queuekeeper_retired")
        table.execute(f"SET ROLE {role}")
        refused = apply(table, plan, later)
        table.execute("RESET ROLE")
        assert "GRANT CREATE ON SCHEMA queuekeeper_retired" in refused.outcomes[0].words
        assert bounds(table) == before

        table.execute(f"GRANT CREATE, USAGE ON SCHEMA queuekeeper_retired TO {role}")
        table.execute(f"SET ROLE {role}")
        assert apply(table, plan, later).done


@pytest.mark.parametrize("name", ["", "pg_old", "information_schema", "q" * 64])
def test_quarantine_that_nobody_can_create_is_refused(name: str) -> None:
    with pytest.raises(InvalidPolicy, match="quarantine_schema is '"):
        replace(POLICY, quarantine_schema=name)


def test_policy_that_registers_what_it_does_not_archive_is_refused() -> None:
    with pytest.raises(InvalidPolicy, match="register_archives is on and archive is off"):
        replace(POLICY, archive=False, register_archives=True)


# --- keys of other types ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", ["smallint", "integer", "bigint"])
def test_integer_keys_stay_ahead_of_the_data(table: Connection, type_name: str) -> None:
    table.execute(f"CREATE TABLE log (n {type_name} PRIMARY KEY) PARTITION BY RANGE (n)")
    policy = PartitionPolicy(table="public.log", step="1000", ahead="2500", retention="3000", deadline_s=20)
    create(table, policy)
    assert [[int(edge) for edge in re.findall(r"\d+", each)] for each in bounds(table, "log")] == [
        [0, 1000],
        [1000, 2000],
        [2000, 3000],
    ]
    for at in range(1, 8):
        table.execute("INSERT INTO log SELECT generate_series((%s - 1) * 1000, %s * 1000 - 1)", [at, at])
        create(table, policy, now_ms=NOW + at * 3_600_000)
    seen = coverage(table, policy=policy, now_ms=NOW + 8 * 3_600_000)
    retire(table, policy, now_ms=NOW + 8 * 3_600_000)

    assert (seen.covered_until, seen.key_kind) == ("10000", "integer")
    assert seen.keys_per_hour is not None
    assert seen.inserts_fail_in_s is not None
    assert 2 * 3_600 < seen.inserts_fail_in_s < 5 * 3_600
    assert table.execute("SELECT min(n), max(n) FROM log").fetchone() == (3000, 6999)


@pytest.mark.parametrize("key", ["bigint NOT NULL", "bigint PRIMARY KEY"])
def test_integer_keys_within_their_retention_stay_whether_an_index_tells_the_highest_one_or_not(
    table: Connection, key: str
) -> None:
    table.execute(f"CREATE TABLE log (n {key}) PARTITION BY RANGE (n)")
    policy = PartitionPolicy(table="public.log", step="1000", ahead="3000", retention="500", deadline_s=20)
    create(table, policy)
    table.execute("INSERT INTO log SELECT generate_series(0, 1010)")
    retire(table, policy)
    assert table.execute("SELECT count(*) FROM log WHERE n >= 1010 - 500").fetchone() == (501,)

    table.execute("INSERT INTO log SELECT generate_series(1011, 2499)")
    retire(table, policy)
    assert table.execute("SELECT min(n) FROM log").fetchone() == (1000,)


def test_wrong_integer_key_far_ahead_retires_nothing(table: Connection) -> None:
    wrong = 9 * 10**12
    table.execute("CREATE TABLE log (n bigint PRIMARY KEY) PARTITION BY RANGE (n)")
    policy = PartitionPolicy(table="public.log", step="1000", ahead="1000", retention="1500", deadline_s=20)
    create(table, policy)
    table.execute("CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (1000) TO (2000)")
    table.execute("CREATE TABLE log_rest PARTITION OF log FOR VALUES FROM (2000) TO (MAXVALUE)")
    table.execute("INSERT INTO log SELECT generate_series(0, 2400)")
    table.execute("INSERT INTO log VALUES (%s)", [wrong])

    plan = plan_retirement(table, policy=policy, now_ms=NOW)
    assert (plan.steps, plan.limit) == ((), "900")
    assert str(wrong) in found(plan, FindingKind.FAR_FUTURE)[0]
    believed = replace(policy, far_future=str(2**63 - 1))
    assert len(plan_retirement(table, policy=believed, now_ms=NOW).steps) == 2


def test_integer_keys_end_where_their_type_ends(table: Connection) -> None:
    table.execute("CREATE TABLE log (n smallint PRIMARY KEY) PARTITION BY RANGE (n)")
    table.execute("CREATE TABLE log_a PARTITION OF log FOR VALUES FROM (30000) TO (32000)")
    table.execute("INSERT INTO log VALUES (31999)")
    create(table, PartitionPolicy(table="public.log", step="1000", ahead="5000"))

    table.execute("INSERT INTO log VALUES (32766)")


@pytest.mark.parametrize("key", ["bigint GENERATED ALWAYS AS IDENTITY", "bigserial"])
def test_integer_keys_of_a_queue_that_is_empty_again_and_again_stay_ahead_of_its_sequence(
    table: Connection, key: str
) -> None:
    table.execute(f"CREATE TABLE jobs (n {key}, what text, PRIMARY KEY (n)) PARTITION BY RANGE (n)")
    policy = PartitionPolicy(table="public.jobs", step="1000", ahead="2500", deadline_s=20)
    create(table, policy)
    for at in range(1, 8):
        table.execute("INSERT INTO jobs (what) SELECT 'x' FROM generate_series(1, 1500)")
        table.execute("DELETE FROM jobs")
        create(table, policy, now_ms=NOW + at * 3_600_000)
    seen = coverage(table, policy=policy, now_ms=NOW + 8 * 3_600_000)
    assert (seen.covered_until, seen.head_room_met, seen.findings) == ("13000", True, ())


def test_integer_keys_whose_newest_rows_were_taken_out_raise_no_alarm(table: Connection) -> None:
    table.execute("CREATE TABLE log (n bigint PRIMARY KEY) PARTITION BY RANGE (n)")
    policy = PartitionPolicy(table="public.log", step="1000", ahead="2500", deadline_s=20)
    create(table, policy)
    table.execute("INSERT INTO log SELECT generate_series(0, 900)")
    create(table, policy, now_ms=NOW + 3_600_000)
    table.execute("DELETE FROM log WHERE n > 100")
    seen = coverage(table, policy=policy, now_ms=NOW + 7_200_000)
    assert (seen.head_room_met, seen.inserts_fail_in_s, seen.keys_per_hour) == (True, None, None)
    save_policy(table, policy)
    (row,) = (
        each for each in read_partitioned_tables(table, now_ms=NOW + 7_200_000) if each["table_name"] == "public.log"
    )
    assert row["intervals_ahead"] is None


def test_integer_keys_begin_where_their_type_begins(table: Connection) -> None:
    table.execute("CREATE TABLE log (n smallint PRIMARY KEY) PARTITION BY RANGE (n)")
    table.execute("CREATE TABLE log_default PARTITION OF log DEFAULT")
    table.execute("INSERT INTO log VALUES (-32768), (-31500), (5)")
    create(table, PartitionPolicy(table="public.log", step="1000", ahead="1000", far_future="5000"))
    assert table.execute("SELECT count(*) FROM log").fetchone() == (3,)
    assert table.execute("SELECT count(*) FROM log_default_2").fetchone() == (0,)


@pytest.mark.parametrize("type_name", ["date", "timestamp", "timestamptz", "timestamp(0)"])
@pytest.mark.parametrize("step", ["1 day", "1 week", "1 month", "1 year"])
def test_times_of_any_type_and_step(table: Connection, type_name: str, step: str) -> None:
    table.execute(f"CREATE TABLE log (at {type_name} PRIMARY KEY) PARTITION BY RANGE (at)")
    policy = replace(POLICY, table="public.log", step=step, ahead="40 days", at_most=100)
    create(table, policy)
    table.execute("INSERT INTO log SELECT generate_series('2026-11-21'::date, '2026-12-31', '1 day')")

    seen = coverage(table, policy=policy, now_ms=NOW)
    assert not seen.findings
    assert seen.head_room_met


def test_event_ids_are_kept_by_their_time(table: Connection) -> None:
    table.execute("CREATE DOMAIN event_id AS varchar(24); CREATE DOMAIN log_id AS event_id")
    table.execute('CREATE TABLE "My Log" (id log_id PRIMARY KEY) PARTITION BY RANGE (id)')
    policy = PartitionPolicy(
        table='public."My Log"', step="30 minutes", ahead="3 hours", retention="1 hour", archive=False
    )
    for at in range(6):
        now = NOW + at * 1_800_000
        create(table, policy, now_ms=now)
        retire(table, policy, now_ms=now)
        for ahead_ms in (0, 1, 1_799_000, 10_799_000):
            event_id = f"pm{(now + ahead_ms) * 1_000:013x}{at * 4 + 1:09x}"
            table.execute('INSERT INTO "My Log" VALUES (%s) ON CONFLICT DO NOTHING', [event_id])
    seen = coverage(table, policy=policy, now_ms=NOW + 5 * 1_800_000)

    assert not seen.findings
    assert seen.quarantined == 3
    assert seen.head_room_met


@pytest.mark.parametrize("ahead", ["7 days", "1 month"])
def test_head_room_of_less_than_a_step_is_no_shortage(table: Connection, ahead: str) -> None:
    policy = replace(POLICY, step="1 month", ahead=ahead)
    save_policy(table, policy)
    shortest = 9.9
    for day in range(45):
        create(table, policy, now_ms=NOW + day * DAY_MS)
        # Just before the next maintenance.
        rows = read_partitioned_tables(table, now_ms=NOW + (day + 1) * DAY_MS - 1)
        shortest = min(shortest, *(each["intervals_ahead"] for each in rows))

    assert shortest >= 1
    (late,) = read_partitioned_tables(table, now_ms=NOW + 95 * DAY_MS)
    assert late["intervals_ahead"] < 1


def test_retired_partitions_of_an_unknown_table_are_not_none(table: Connection, postgres_url: str) -> None:
    save_policy(table, POLICY)
    arguments = ["--postgres-url", postgres_url, "--json"]
    known = CliRunner().invoke(app, ["retired", "public.readings", *arguments])
    unknown = CliRunner().invoke(app, ["retired", "nosuch", *arguments])

    assert json.loads(known.stdout) == {"retired": []}
    assert isinstance(unknown.exception, UsageError)
    assert "no policy for table 'nosuch'" in str(unknown.exception)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"retention": "-3 days"}, r"retention is '-3 days': it must be more than nothing"),
        ({"retention": "0 days"}, r"retention is '0 days': it must be more than nothing"),
        ({"step": "7 minutes"}, r"step is '7 minutes': it does not divide a day; write such as 15 minutes"),
        ({"step": "36 hours"}, r"step is '36 hours': it does not divide a day"),
        ({"step": "5 months"}, r"step is '5 months': it does not divide a year; write 1, 2, 3, 4 or 6 months"),
        ({"step": "soon"}, r"step is 'soon': write a number and a unit"),
        ({"ahead": "1000"}, r"ahead is '1000': write a number and a unit"),
    ],
)
def test_policy_that_cannot_be_kept_is_refused(table: Connection, change: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidPolicy, match=words):
        plan_creation(table, policy=replace(POLICY, **change), now_ms=NOW)  # type: ignore[arg-type]


def test_date_is_not_cut_inside_a_day(table: Connection) -> None:
    table.execute("CREATE TABLE log (at date PRIMARY KEY) PARTITION BY RANGE (at)")
    with pytest.raises(InvalidPolicy, match="column at is a date; write whole days"):
        plan_creation(table, policy=replace(POLICY, table="public.log", step="1 hour"), now_ms=NOW)


@pytest.mark.parametrize("name", ["public.nothing", "nowhere.readings", 'public."', "a.b.c.d"])
def test_unknown_table_is_refused(table: Connection, name: str) -> None:
    with pytest.raises(UnknownTable, match="there is no table"):
        plan_creation(table, policy=replace(POLICY, table=name), now_ms=NOW)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("(at timestamptz)", "is not partitioned: `queuekeeper partitions adopt` makes it so"),
        ("(at timestamptz) PARTITION BY LIST (at)", "not partitioned by ranges of one column"),
        ("(at timestamptz, n int) PARTITION BY RANGE (at, n)", "not partitioned by ranges of one column"),
        ("(at timestamp) PARTITION BY RANGE (date_trunc('day', at))", "not partitioned by ranges of one column"),
        ("(n numeric) PARTITION BY RANGE (n)", "column n is of type numeric: partitions are kept by"),
    ],
)
def test_table_that_is_not_partitioned_by_a_range_is_refused(table: Connection, definition: str, words: str) -> None:
    table.execute(f"CREATE TABLE plain {definition}")
    with pytest.raises(NotPartitioned, match=words):
        plan_creation(table, policy=replace(POLICY, table="public.plain"), now_ms=NOW)


def test_connection_in_a_transaction_is_refused(table: Connection, postgres_url: str) -> None:
    with (
        postgres.connect(postgres_url) as other,
        pytest.raises(UsageError, match="partitions need a connection with autocommit=True"),
    ):
        plan_creation(other, policy=POLICY, now_ms=NOW)


# --- the event broker ---------------------------------------------------------------------------------------------


def test_tables_of_the_event_broker_are_kept_by_its_own_settings(table: Connection) -> None:
    schema.install(table)
    policies = load_policies(table)
    assert [each.table for each in policies] == ["pgmb.events", "pgmb.dispatches", "pgmb.subscription_events"]
    with pytest.raises(UsageError, match=r"belongs to the event broker: change partition_interval"):
        save_policy(table, policies[0])
    now = int(datetime.now(UTC).timestamp() * 1_000)
    table.execute("SELECT pgmb.publish(ARRAY['a'], ARRAY['{}'::jsonb])")

    for hours in (0, 2, 30):
        for policy in policies:
            plan = plan_creation(table, policy=policy, now_ms=now + hours * 3_600_000)
            if hours:
                assert [each.kind for each in plan.steps] == [StepKind.ADVANCE]
            assert apply(table, plan).done
            seen = coverage(table, policy=policy, now_ms=now + hours * 3_600_000)
            assert seen.head_room_met
            assert not seen.findings
            assert seen.inserts_fail_in_s is None
    # Nobody has polled: no retention takes what was not dispatched, whoever agrees.
    for override in (False, True):
        plan = plan_retirement(table, policy=policies[0], now_ms=now + 30 * 3_600_000, override_consumers=override)
        assert all(each.upper and plan.lowest_needed and each.upper <= plan.lowest_needed for each in plan.steps)
        assert plan.held


def test_partitions_of_the_event_broker_are_retired_when_they_are_read(table: Connection) -> None:
    schema.install(table)
    (events, *_) = load_policies(table)
    table.execute("SELECT pgmb.publish(ARRAY['a'], ARRAY['{}'::jsonb])")
    table.execute("SELECT pgmb.poll_for_events()")
    later = int(datetime.now(UTC).timestamp() * 1_000) + 30 * 3_600_000
    create(table, events, now_ms=later)
    table.execute("UPDATE pgmb.config SET value = '1 minute' WHERE id = 'partition_retention_period'")
    before = plan_retirement(table, policy=load_policies(table)[0], now_ms=later)

    assert before.lowest_needed is not None
    assert before.steps
    assert apply(table, before, later).done
    assert {each.state for each in retired_partitions(table)} == {RetiredState.QUARANTINED}


def test_event_of_the_future_leaves_head_room_as_it_is(table: Connection) -> None:
    # Within one transaction the broker makes its partitions by the same instant: a partition may end meanwhile.
    with table.transaction():
        schema.install(table)
        row = table.execute("SELECT now()").fetchone()
    assert row is not None
    now = int(row[0].timestamp() * 1_000)
    (events, *_) = load_policies(table)
    table.execute(
        "INSERT INTO pgmb.events (id, topic, payload) "
        "VALUES (pgmb.create_event_id(%s + interval '2 hours', 1), 'early', '{}')",
        (row[0],),
    )
    plan = plan_creation(table, policy=events, now_ms=now)

    assert plan.empty
    assert coverage(table, policy=events, now_ms=now).head_room_met
    later = plan_creation(table, policy=events, now_ms=now + 2 * 3_600_000)
    # The broker's own maintenance comes first.
    table.execute("SELECT pgmb.extend_partitions('pgmb.events', %s + interval '3 hours')", (row[0],))
    assert apply(table, later).done


def test_event_that_is_committed_while_its_partition_is_detached_is_not_retired_with_it(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    schema.install(table)
    table.execute("UPDATE pgmb.config SET value = '1 minute' WHERE id = 'partition_retention_period'")
    (events, *_) = load_policies(table)
    later = int(datetime.now(UTC).timestamp() * 1_000) + 30 * 3_600_000
    create(table, events, now_ms=later)
    plan = plan_retirement(table, policy=events, now_ms=later, override_consumers=True)
    publisher, watcher = connect(), connect()

    def commit_when_it_waits(retirement: Future[ApplyReport]) -> None:
        waiting = (
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'ALTER TABLE %DETACH%'"
            " AND wait_event_type = 'Lock'"
        )
        give_up_at = time.monotonic() + PATIENCE_S
        while not retirement.done() and time.monotonic() < give_up_at and not watcher.execute(waiting).fetchall():
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        with publisher.transaction():
            publisher.execute(
                "INSERT INTO pgmb.events (id, topic, payload) VALUES (%s, 'late', '{}')", (plan.steps[0].lower,)
            )
            retirement = pool.submit(apply, table, plan, later)
            commit_when_it_waits(retirement)
        report = retirement.result()

    assert not report.done
    assert StepState.STALE in {each.state for each in report.outcomes}
    assert watcher.execute("SELECT topic FROM pgmb.events").fetchall() == [("late",)]
    watcher.execute("SELECT pgmb.poll_for_events()")
    assert watcher.execute("SELECT event_count FROM pgmb.dispatches").fetchall() == [(1,)]


def test_idle_group_goes_on_behind_the_dispatches_that_are_retired(table: Connection) -> None:
    schema.install(table)
    table.execute("UPDATE pgmb.config SET value = '1 minute' WHERE id = 'partition_retention_period'")
    table.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('idle')")
    table.execute("INSERT INTO pgmb.subscriptions (group_id, conditions_sql) VALUES ('idle', 'FALSE')")
    (_, dispatches, _) = load_policies(table)
    later = int(datetime.now(UTC).timestamp() * 1_000) + 30 * 3_600_000
    create(table, dispatches, now_ms=later)
    retired = plan_retirement(table, policy=dispatches, now_ms=later)
    table.execute("UPDATE pgmb.subscription_groups SET last_read_event_id = %s", (retired.steps[0].lower,))

    assert apply(table, retired, later).done

    (cursor,) = table.execute("SELECT last_read_event_id FROM pgmb.subscription_groups").fetchone() or ("",)
    assert cursor == max(each.upper or "" for each in retired.steps)


# --- tables with company ------------------------------------------------------------------------------------------


def test_foreign_keys_are_kept_and_their_locks_are_named(table: Connection) -> None:
    table.execute("CREATE TABLE devices (id int PRIMARY KEY)")
    table.execute("INSERT INTO devices VALUES (1)")
    table.execute(
        "ALTER TABLE readings ADD CONSTRAINT readings_device_fkey FOREIGN KEY (value) REFERENCES devices (id)"
    )
    policy = replace(POLICY, archive=False, quarantine_days=0)
    plan = plan_creation(table, policy=policy, now_ms=NOW)

    assert ("SHARE ROW EXCLUSIVE", "devices", "writers") in {
        (lock.mode, lock.relation, lock.blocks) for each in plan.steps[0].statements for lock in each.locks
    }
    assert apply(table, plan).done
    insert(table, "2026-11-21 01:00:00")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        table.execute("INSERT INTO readings (at, value) VALUES ('2026-11-21 02:00+00', 2)")
    later = NOW + 11 * DAY_MS
    retire(table, policy, now_ms=later)
    assert apply(table, plan_drop(table, policy=policy, now_ms=later + 1), later + 1).done


def test_rows_that_others_refer_to_are_not_retired_and_the_rest_is(table: Connection) -> None:
    create(table)
    insert(table, "2026-11-21 01:00:00")
    table.execute(
        "CREATE TABLE notes (reading bigint, at timestamptz, FOREIGN KEY (reading, at) REFERENCES readings (id, at))"
    )
    table.execute("INSERT INTO notes SELECT id, at FROM readings")
    later = NOW + 12 * DAY_MS
    create(table, now_ms=later)
    report = apply(table, plan_retirement(table, policy=POLICY, now_ms=later), later)

    assert [each.state for each in report.outcomes] == [StepState.FAILED, StepState.DONE]
    assert "violates foreign key constraint" in report.outcomes[0].words
    assert table.execute("SELECT count(*) FROM readings").fetchone() == (1,)


def test_partition_that_is_partitioned_further_is_retired_whole(table: Connection) -> None:
    create(table)
    table.execute("DROP TABLE readings_p20261121")
    table.execute(
        "CREATE TABLE nested PARTITION OF readings FOR VALUES FROM ('2026-11-21 00:00+00') TO ('2026-11-22 00:00+00') "
        "PARTITION BY HASH (id)"
    )
    table.execute("CREATE TABLE nested_a PARTITION OF nested FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    insert(table, "2026-11-21 01:00:00")
    later = NOW + 11 * DAY_MS
    create(table, now_ms=later)
    held = plan_retirement(table, policy=POLICY, now_ms=later)
    assert held.empty
    assert [(each.partition, each.reason) for each in held.held] == [
        (
            "public.nested",
            "it is partitioned further, and only plain tables are archived: detach it by hand, or allow no archive",
        )
    ]
    policy = replace(POLICY, archive=False)
    retire(table, policy, now_ms=later)

    assert table.execute("SELECT count(*) FROM queuekeeper_retired.nested").fetchone() == (1,)
    (record,) = retired_partitions(table)
    assert apply(table, plan_reattachment(table, policy=policy, retired_id=record.retired_id, now_ms=later)).done
    assert table.execute("SELECT count(*) FROM readings").fetchone() == (1,)


@pytest.mark.parametrize("name", ["change", 'Odd "one" %'])
def test_default_is_drained_whatever_the_columns_of_its_key_are_called(table: Connection, name: str) -> None:
    column = sql.Identifier(name).as_string(None)
    table.execute(
        f"CREATE TABLE log (at timestamptz, {column} int, PRIMARY KEY ({column}, at)) PARTITION BY RANGE (at)".encode()
    )
    table.execute("CREATE TABLE log_default PARTITION OF log DEFAULT")
    table.execute("INSERT INTO log SELECT '2026-11-20', n FROM generate_series(1, 20) AS n")
    create(table, replace(POLICY, table="public.log"))
    assert table.execute("SELECT count(*) FROM log_p20261120").fetchone() == (20,)


def test_default_without_primary_key_is_left_to_a_person(table: Connection) -> None:
    table.execute("CREATE TABLE log (at timestamptz) PARTITION BY RANGE (at)")
    table.execute("CREATE TABLE log_default PARTITION OF log DEFAULT")
    table.execute("INSERT INTO log VALUES ('2026-11-22 10:00+00')")
    policy = replace(POLICY, table="public.log")
    plan = plan_creation(table, policy=policy, now_ms=NOW)

    assert "without a primary key changes cannot be followed" in found(plan, FindingKind.DEFAULT_ROWS)[0]
    assert StepKind.DRAIN not in {each.kind for each in plan.steps}
    assert apply(table, plan).done


def test_an_archive_describes_each_generated_column_as_it_is(connection: Connection) -> None:
    if connection.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    connection.execute(
        "CREATE TABLE computed (value int, kept int GENERATED ALWAYS AS (value * 2) STORED, "
        "asked int GENERATED ALWAYS AS (value * 3) VIRTUAL)"
    )
    (create,) = describe_table(connection, "computed").ddl
    assert re.findall(r'"(\w+)" integer GENERATED ALWAYS AS \(.*\) (\w+)', create) == [
        ("kept", "STORED"), ("asked", "VIRTUAL"),
    ]  # fmt: skip
    connection.execute("DROP TABLE computed")
    connection.execute(create.encode())
    assert describe_table(connection, "computed").ddl == (create,)
