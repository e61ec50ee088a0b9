"""Published defects, profiled and judged as operators do it: each is found in its queues, and in no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queuekeeper import postgres, redis_client, sql_statements
from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.jobs.checks import Severity
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.quality.judge import run
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.stores import profile_postgres, profile_redis, profile_snapshot
from queuekeeper.redis_client import RedisClient
from tests.golden_defects import broker_defects, healthy, source_defects, table
from tests.golden_defects.defect import BOTH, POSTGRES, REDIS, Defect, Finding, act_out
from tests.golden_defects.source_defects import SourceStage
from tests.golden_defects.stage import DEFAULT_LIFE_S, LIMIT, SHORT_LIFE_S, Stage

pytestmark = pytest.mark.spark

# A name that TBMQ's own migration could not read, and an output format that it could not decode.
DATABASE = "golden-defects_1.4"
PARAMETERS = ProfileParameters(cohort_count=1, contents=True, limit=LIMIT, default_ttl_s=DEFAULT_LIFE_S)
KEY = b"golden defects"
SUITES = (REDIS, POSTGRES, BOTH)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a quality run found.

    :param urgent: what is more than good to know.
    """

    verdict: Verdict
    found: frozenset[Finding]
    urgent: frozenset[Finding]

    def of(self, defect: Defect[Any]) -> frozenset[Finding]:
        """Return what was found in a defect's queues."""
        return frozenset(finding for finding in self.found if finding.client_id in defect.clients)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """All defects in one Redis and one PostgreSQL; the same events and the same rows in the care of our own stores.

    :param source_clients: clients that PostgreSQL knows.
    """

    vendor: Judged
    ours: Judged
    source_clients: frozenset[str]


def _judge(spark: SparkSession, *, redis_url: str, postgres_url: str) -> Judged:
    name = f"redis-{system_clock()}"
    profile_redis(
        spark, redis_url=redis_url, postgres_url=postgres_url, parameters=PARAMETERS, now_ms=system_clock(),
        profile_id=name, key=KEY,
    )  # fmt: skip
    _assert_snapshot_is_alike(spark, name, redis_url=redis_url, postgres_url=postgres_url)
    report = run.run_quality(
        postgres_url=postgres_url, profile_ids=(name, "source"), suites=SUITES, quality_run_id=name,
        now=datetime.now(UTC), show_client_ids=True,
    )  # fmt: skip
    assert not any(result.status == "broken" for result in report.results), report.results
    assert all(len(result.examples) == result.unexpected_count for result in report.results)
    findings = [
        (Finding(result.suite, result.check_id, example["client_id"]), result.severity)
        for result in report.results
        # Gaps are counted, not judged: acknowledgements leave them, too.
        if result.check_id != "Q6"
        for example in result.examples
    ]
    return Judged(
        verdict=report.verdict,
        found=frozenset(finding for finding, _ in findings),
        urgent=frozenset(finding for finding, severity in findings if severity is not Severity.INFO),
    )


def _assert_snapshot_is_alike(spark: SparkSession, name: str, *, redis_url: str, postgres_url: str) -> None:
    """Check that a profile of the server's snapshot has the rows of a profile of the server."""
    with redis_client.connect(redis_url) as client:
        server: Any = client
        server.save()
        path = Path(server.config_get("dir")["dir"], server.config_get("dbfilename")["dbfilename"])
    profile_snapshot(
        spark, paths=[path], postgres_url=postgres_url, parameters=PARAMETERS, now_ms=system_clock(),
        profile_id="snapshot", key=KEY,
    )  # fmt: skip
    rows = (
        "SELECT to_jsonb(each) - 'profile_id' - 'shard' FROM queuekeeper.queue_profiles AS each "
        'WHERE profile_id = %s ORDER BY client_id COLLATE "C", layout'
    )
    with postgres.connect(postgres_url) as connection:
        found, expected = (connection.execute(rows, (each,)).fetchall() for each in ("snapshot", name))
    assert found == expected
    assert len(found) > 20


@pytest.fixture(scope="module")
def golden(spark: SparkSession, postgres_server: PostgresServer, server_home: Path) -> Iterator[Golden]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # Every queue that is found is evidence here, not the first few.
        patch.setattr(run, "SHOWN_VALUES", 1_000)

        def server(name: str) -> tuple[str, RedisClient]:
            started = RedisServer(server_home / name, flavour="valkey", die_with_parent=True)
            started.start()
            stack.callback(started.stop)
            return started.url, stack.enter_context(redis_client.connect(started.url))

        vendor_url, vendor = server("golden-vendor")
        our_url, ours = server("golden-ours")
        url = postgres_server.create_database(DATABASE, template="template0")
        stack.callback(postgres_server.drop_database, DATABASE)
        with postgres.connect(url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{DATABASE}" SET bytea_output = escape'.encode())
            connection.execute(sql_statements.statement("sessions/vendor_schema"))
            act_out(source_defects.DEFECTS, SourceStage(connection=connection, client=vendor), short_life_s=0)
            clients = connection.execute(
                "SELECT client_id FROM device_session_ctx UNION SELECT client_id FROM device_publish_msg"
            ).fetchall()
        for client, stage in ((vendor, Stage.of_the_vendor(vendor)), (ours, Stage.of_ours(ours))):
            act_out(broker_defects.DEFECTS, stage, short_life_s=SHORT_LIFE_S + 0.2)
            for name, befalls in healthy.NEIGHBOURS.items():
                befalls(stage.queue(f"healthy-{name}"))
                befalls(Stage.of_ours(client).queue(f"healthy-too-{name}"))
        profile_postgres(
            spark, postgres_url=url, parameters=PARAMETERS, now_ms=system_clock(), profile_id="source", key=KEY
        )
        # Before our migration: what it puts into quarantine is accounted for.
        of_the_vendor = _judge(spark, redis_url=vendor_url, postgres_url=url)
        plan = plan_migration(
            spark, postgres_url=url, redis_url=our_url, now_ms=system_clock(), run_id=None,
            parameters=MigrationParameters(cohort_count=1, limit=LIMIT, quarantine_cap_percent=100.0),
        )  # fmt: skip
        copy_sessions(spark, postgres_url=url, redis_url=our_url, plan_id=plan.plan_id)
        yield Golden(
            vendor=of_the_vendor,
            ours=_judge(spark, redis_url=our_url, postgres_url=url),
            source_clients=frozenset(client_id for (client_id,) in clients),
        )


def _judged_alone(found: frozenset[Finding], source_clients: frozenset[str]) -> frozenset[Finding]:
    """Leave out that sessions which no migration has brought are in one store only."""
    return frozenset(each for each in found if each.suite != BOTH or each.client_id in source_clients)


@pytest.mark.parametrize("defect", table.OF_SESSIONS, ids=lambda defect: defect.id)
def test_defect_is_found_by_its_checks_in_its_queues(golden: Golden, defect: Defect[Any]) -> None:
    assert _judged_alone(golden.vendor.of(defect), golden.source_clients) == defect.finds


def test_no_check_fails_without_a_defect(golden: Golden) -> None:
    expected = {finding for defect in table.OF_SESSIONS for finding in defect.finds}
    assert _judged_alone(golden.vendor.found, golden.source_clients) == expected
    assert golden.vendor.verdict is Verdict.FAILED


def test_dead_references_are_urgent_where_they_crowd_live_messages_out(golden: Golden) -> None:
    urgent = {finding.client_id for finding in golden.vendor.urgent if finding.check_id == "Q9"}
    assert urgent == {"crowded", "crowded-out"}


def test_same_events_and_rows_leave_no_trace_in_ours(golden: Golden) -> None:
    found = _judged_alone(golden.ours.found, golden.source_clients)
    remains = {finding for defect in table.OF_SESSIONS for finding in defect.remains}
    assert {finding for finding in found if finding.suite != POSTGRES} - remains == set()
