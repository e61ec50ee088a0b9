"""Fixtures of the chaos lane: dice, one Spark, a planned migration, and what it looks like when nobody disturbs it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, CopyReport, MigrationPlan, PlanState, VerifyReport
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.postgres import Connection, connect
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests.chaos.online_world import prepare
from tests.chaos.support import Driver, Value, contents, until
from tests.conftest import new_template
from tests.spark_session import spark

__all__ = ["spark"]

SEED = int(os.environ.get("CHAOS_SEED") or 20_260_101)
MESSAGES = 8_000
# Some queues are longer than a call of the import script, so that a kill also meets half-written sessions.
LONG_QUEUES, LONG_QUEUE_MESSAGES = 2, 1_000
# Slow enough to be hit half-way also where a kill comes seconds late: progress is told once a second, and a copy of all
# messages takes more than twenty.
THROTTLE = 320


def pytest_report_header() -> str:
    """Say with which seed a failure can be met again."""
    return f"chaos: CHAOS_SEED={SEED}"


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Chance that is the same in every run of this test with the same CHAOS_SEED."""
    print(f"CHAOS_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@contextmanager
def template_of(server: PostgresServer, purpose: str, prepare: Callable[[Connection], Any]) -> Iterator[str]:
    """Make a database that tests copy, on a server that they may kill; give its name."""
    name = new_template(server, purpose, prepare)
    yield name
    server.start()
    server.drop_database(name)


@pytest.fixture(scope="module")
def online_template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a database with all tables of an online migration, of which tests make copies."""
    with template_of(postgres_server, "online", prepare) as name:
        yield name


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a copy comes to when nothing gets in its way.

    :param contents: every key of the target.
    """

    digest: str
    contents: dict[bytes, Value] = field(repr=False)


@dataclass(kw_only=True)
class Laboratory:
    """One planned migration on servers that may be killed."""

    spark: SparkSession
    postgres: PostgresServer
    redis: RedisServer
    postgres_url: str
    plan: MigrationPlan
    folder: Path

    @property
    def to_copy(self) -> int:
        """Messages that will be in the target."""
        return self.plan.total("to_copy")

    @contextmanager
    def ledger(self) -> Iterator[MigrationLedger]:
        """Read and write the plan's records."""
        with connect(self.postgres_url, autocommit=True) as connection:
            yield MigrationLedger(connection)

    def reset(self, *, throttle: int | None) -> None:
        """Empty the target and put the plan back to where it was approved."""
        with self.redis.client() as client:
            client.flushall()
            client.script_flush()
        with self.ledger() as ledger:
            ledger.set_plan_state(self.plan.plan_id, PlanState.APPROVED)
            ledger.set_cohort_state(self.plan.plan_id, self.plan.chosen, CohortState.PLANNED)
            ledger.clear_progress(self.plan.plan_id, "copy")
            ledger.set_throttle(self.plan.plan_id, throttle)

    def driver(self) -> Driver:
        """Start a copy in processes of its own."""
        with self.ledger() as ledger:
            # What a killed driver told is not this one's progress.
            ledger.clear_progress(self.plan.plan_id, "copy")
        return Driver(
            plan_id=self.plan.plan_id, postgres_url=self.postgres_url, redis_url=self.redis.url, folder=self.folder
        )

    def wait_for(self, share: float, *, running: Callable[[], bool]) -> None:
        """Wait until the copy says that this share of the messages is written."""
        with self.ledger() as ledger:

            def reached() -> bool:
                done = ledger.progress(self.plan.plan_id, "copy").done
                assert done < self.to_copy, "the copy was done before it could be hit"
                assert running(), "the copy ended before it could be hit"
                return done >= share * self.to_copy

            until(reached, what=f"{share:.0%} of the messages")

    def copy(self) -> CopyReport:
        """Copy in this process, as fast as it goes."""
        with self.ledger() as ledger:
            ledger.set_throttle(self.plan.plan_id, None)
        return copy_sessions(
            self.spark, postgres_url=self.postgres_url, redis_url=self.redis.url, plan_id=self.plan.plan_id
        )

    def verify(self) -> VerifyReport:
        """Compare source and target."""
        return verify_migration(
            self.spark, postgres_url=self.postgres_url, redis_url=self.redis.url, plan_id=self.plan.plan_id
        )

    def contents(self) -> dict[bytes, Value]:
        """Return all that the target holds."""
        with self.redis.client() as client:
            return contents(client)


# With a parameter of its own, tests that name no layout share the servers of those that name this one.
@pytest.fixture(scope="module", params=[Layout.TBMQ])
def laboratory(request: pytest.FixtureRequest, spark: SparkSession, server_home: Path) -> Iterator[Laboratory]:
    """A plan for a hostile sample; rows that live now outlive every test, those that are dead stay dead.

    A test may name the layout of the target, which is otherwise TBMQ's.
    """
    layout: Layout = request.param
    folder = server_home / f"chaos-{layout}"
    folder.mkdir()
    postgres = PostgresServer(folder / "postgres", durable=False, die_with_parent=True)
    redis = RedisServer(folder / "valkey", flavour="valkey", die_with_parent=True)
    try:
        postgres.start()
        redis.start()
        postgres_url = postgres.create_database("chaos", template="template0")
        # Sample and plan live a day ahead of the servers: what the plan finds alive cannot expire meanwhile.
        tomorrow_ms = system_clock() + DAY_MS
        with connect(postgres_url) as connection:
            fill(
                connection,
                SampleParameters(
                    messages=MESSAGES,
                    sessions=600,
                    seed=SEED,
                    now_ms=tomorrow_ms,
                    long_queues=LONG_QUEUES,
                    long_queue_messages=LONG_QUEUE_MESSAGES,
                    hostile=True,
                    create_schema=True,
                ),
            )
        plan = plan_migration(
            spark,
            postgres_url=postgres_url,
            redis_url=redis.url,
            parameters=MigrationParameters(cohort_count=16, layout=layout),
            run_id="chaos",
            now_ms=tomorrow_ms,
        )
        yield Laboratory(
            spark=spark, postgres=postgres, redis=redis, postgres_url=postgres_url, plan=plan, folder=folder
        )
    finally:
        redis.stop()
        postgres.erase()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(laboratory: Laboratory) -> Undisturbed:
    """The reference: plan, copy and verification in peace."""
    laboratory.reset(throttle=None)
    written = laboratory.copy()
    assert written.messages_written == laboratory.to_copy
    report = laboratory.verify()
    assert report.balanced
    return Undisturbed(digest=report.digest, contents=laboratory.contents())
