"""Spark's jobs as the roles that ``queuekeeper acl postgres`` prints; that of quality profiles without any payload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuekeeper import postgres, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.archive import archive_partition
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.quality.judge.store import QualityStore
from queuekeeper.quality.profile.model import ProfileParameters, ProfileReport
from queuekeeper.quality.profile.stores import profile_postgres
from tests import postgres_roles as printed
from tests.spark.world import World

DAY_MS = 86_400_000
KEY = b"a key of tests"
NOW_MS = system_clock()
PARAMETERS = ProfileParameters(cohort_count=12)
POLICY = PartitionPolicy(
    table="public.readings", step="1 day", ahead="2 days", retention="5 days", quarantine_days=1, archive=True
)


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World], hostile_template: str) -> Iterator[World]:
    made = make_world(template=hostile_template)
    schema_migrations.migrate(made.connection)
    owner = f"{_prefix(made)}owner"
    made.connection.execute(f"CREATE ROLE {owner}; GRANT CREATE, USAGE ON SCHEMA public TO {owner}".encode())
    made.connection.execute("CREATE TABLE readings (id bigint, at timestamptz NOT NULL) PARTITION BY RANGE (at)")
    made.connection.execute(f"ALTER TABLE readings OWNER TO {owner}".encode())
    save_policy(made.connection, POLICY)
    with printed.roles(made.connection, url=made.postgres_url, prefix=_prefix(made)):
        yield made


def _prefix(world: World) -> str:
    return f"{world.connection.info.dbname}_"


def _url(world: World, job: str) -> str:
    return printed.role_url(world.postgres_url, f"{_prefix(world)}{job}")


def _profiled(
    world: World, postgres_url: str, *, profile_id: str, parameters: ProfileParameters = PARAMETERS
) -> tuple[ProfileReport, list[tuple[Any, ...]]]:
    report = profile_postgres(
        world.spark, postgres_url=postgres_url, parameters=parameters, now_ms=NOW_MS, profile_id=profile_id, key=KEY
    )
    rows = world.connection.execute(
        "SELECT to_jsonb(queue) - 'profile_id' AS row FROM queuekeeper.queue_profiles AS queue"
        " WHERE profile_id = %s ORDER BY client_id",
        [report.profile_id],
    )
    return report, rows.fetchall()


def _rows(world: World, schema: str, name: str) -> int:
    row = world.connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, name))).fetchone()
    return int(row[0]) if row else 0


def test_quality_profiles_the_same_without_the_right_to_read_a_payload(world: World) -> None:
    whole, expected = _profiled(world, world.postgres_url, profile_id="owner")
    limited, found = _profiled(world, _url(world, "quality"), profile_id="limited")

    assert replace(limited, seconds=0, profile_id="") == replace(whole, seconds=0, profile_id="")
    assert found == expected
    assert limited.messages > 3_000
    assert sum(row["payload_bytes"] for (row,) in found) > 0
    store = QualityStore(world.connection)
    assert store.expiry_hours("limited") == store.expiry_hours("owner")
    with pytest.raises(RefusedError, match="may not read device_publish_msg"):
        _profiled(world, _url(world, "quality"), profile_id="none", parameters=replace(PARAMETERS, contents=True))


def test_migration_is_planned_copied_and_verified(world: World) -> None:
    limited = replace(world, postgres_url=_url(world, "migration"))
    plan = limited.plan()
    limited.ledger.approve(plan.plan_id, "ann")
    report = limited.copy(plan.plan_id)
    assert report.messages_written > 0
    assert limited.verify(plan.plan_id).balanced
    with postgres.connect(limited.postgres_url, autocommit=True) as connection:
        for refused in (
            "DELETE FROM device_publish_msg",
            "TRUNCATE device_session_ctx",
            "SELECT FROM queuekeeper.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused.encode())


def test_what_one_role_has_retired_another_one_archives(world: World, tmp_path: Path) -> None:
    now_ms = system_clock()
    later_ms = now_ms + 12 * DAY_MS
    with postgres.connect(_url(world, "partitions"), autocommit=True) as connection:
        plan = plan_creation(connection, policy=POLICY, now_ms=now_ms)
        assert apply_plan(connection, plan=plan, now_ms=now_ms, random=Random(1)).done
        world.connection.execute("INSERT INTO readings SELECT n, now() FROM generate_series(1, 100) AS n")
        plan = plan_retirement(connection, policy=POLICY, now_ms=later_ms)
        assert apply_plan(connection, plan=plan, now_ms=later_ms, random=Random(1)).done
    records = retired_partitions(world.connection)
    full = {each.retired_id for each in records if _rows(world, each.quarantine_schema, each.partition_name)}
    assert len(full) == 1
    report = archive_partition(
        world.spark, postgres_url=_url(world, "archive"), retired_id=min(full), directory=tmp_path, now_ms=later_ms
    )
    assert report.manifest.content.rows == 100
    assert [each.archived_at is not None for each in retired_partitions(world.connection)].count(True) == 1
