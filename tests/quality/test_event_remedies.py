"""Remedies of the event broker do what their plans say, once, and leave nothing for the next judgement to find."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from queuekeeper.errors import RefusedError
from queuekeeper.events.schema import install
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import AnyPlan
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.events import remedies as event_remedies
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge.run import run_quality
from queuekeeper.schema_migrations import migrate
from tests.golden_defects.event_defects import POISON

pytestmark = pytest.mark.quality


@pytest.fixture
def broker(postgres_url: str) -> Iterator[Connection]:
    """A broker with a group that takes everything."""
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        install(connection)
        subscribe(connection, "all")
        yield connection


def subscribe(connection: Connection, group: str, condition: str = "TRUE") -> None:
    connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", (group,))
    connection.execute("INSERT INTO pgmb.subscriptions (group_id, conditions_sql) VALUES (%s, %s)", (group, condition))


def publish(connection: Connection, *values: int) -> None:
    connection.execute(
        "SELECT pgmb.publish(array_fill('t'::text, ARRAY[%s]), %s::jsonb[])",
        (len(values), [f'{{"value": {value}}}' for value in values]),
    )


def waiting(connection: Connection, group: str = "all") -> list[int]:
    rows = connection.execute(
        "SELECT (payload ->> 'value')::int FROM pgmb.read_next_events(%s, NULL, 100, peek => true)", (group,)
    )
    return [value for (value,) in rows]


def plan_of(connection: Connection, remedy: str) -> AnyPlan:
    engine = Engine(job=job_of(remedy), database=connection)
    return engine.plan(engine.job.Parameters())


def apply(connection: Connection, remedy: str, plan: AnyPlan) -> int:
    """Carry a plan out, and return how much was changed."""
    engine, runs = Engine(job=job_of(remedy), database=connection), MaintenanceRuns(connection)
    run_id = engine.save(runs, plan).maintenance_run_id
    for share in plan.share_names():
        engine.apply(runs, run_id, share)
    outcome = engine.report(runs, run_id, dry_run=False)
    assert outcome.clean or remedy == "freeze_partition"
    changes: int = outcome.counts.changes
    return changes


def findings(connection: Connection, url: str) -> set[str]:
    report = run_quality(
        postgres_url=url, profile_ids=(), suites=("events",), quality_run_id="mended", now=datetime.now(UTC)
    )
    return {finding.check_id for finding in report.findings}


def test_events_that_were_never_dispatched_are_delivered_after_reenqueue_events(
    broker: Connection, postgres_url: str
) -> None:
    publish(broker, 1)
    broker.execute("SELECT pgmb.poll_for_events()")
    publish(broker, 2, 3)
    broker.execute("UPDATE pgmb.dispatch_state SET dispatched = pg_current_snapshot()")
    assert findings(broker, postgres_url) == {"Q31"}

    plan = plan_of(broker, "reenqueue_events")
    assert plan.counts.changes == 2
    event_ids = plan.found.examples["reenqueue_events"]
    assert apply(broker, "reenqueue_events", plan) == 2
    assert event_remedies.REMEDIES["reenqueue_events"].mend(broker, event_ids) == 0

    assert plan_of(broker, "reenqueue_events").empty
    broker.execute("SELECT pgmb.poll_for_events()")
    assert waiting(broker) == [1, 2, 3]
    assert findings(broker, postgres_url) == set()


def test_condition_that_fails_is_set_aside_before_a_poll_meets_it(broker: Connection) -> None:
    subscribe(broker, "poisoned", POISON)
    publish(broker, 0)

    plan = plan_of(broker, "quarantine_subscription")
    assert plan.counts.changes == 1
    subscription_ids = plan.found.examples["quarantine_subscription"]
    assert apply(broker, "quarantine_subscription", plan) == 1
    assert event_remedies.REMEDIES["quarantine_subscription"].mend(broker, subscription_ids) == 0

    assert broker.execute("SELECT group_id FROM pgmb.subscriptions WHERE quarantined_at IS NOT NULL").fetchall() == [
        ("poisoned",)
    ]
    broker.execute("SELECT pgmb.poll_for_events()")
    assert waiting(broker) == [0]


def test_subscription_that_comes_back_after_the_plan_stays(broker: Connection) -> None:
    for group in ("gone", "back"):
        subscribe(broker, group)
    broker.execute(
        "UPDATE pgmb.subscriptions SET expiry_interval = '1 hour', last_active_at = now() - interval '2 hours'"
        " WHERE group_id <> 'all'"
    )
    expiry = event_remedies.REMEDIES["expire_subscriptions"]
    found = expiry.find(broker)
    assert len(found) == 2
    broker.execute("UPDATE pgmb.subscriptions SET last_active_at = now() WHERE group_id = 'back'")

    assert (expiry.mend(broker, ["another"]), expiry.mend(broker, found), expiry.mend(broker, found)) == (0, 1, 0)
    left = broker.execute("SELECT group_id FROM pgmb.subscriptions ORDER BY group_id").fetchall()
    assert left == [("all",), ("back",)]


def test_tables_that_are_too_old_are_frozen(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    # Transactions by the hundred million are not to be had in a test: every age is too old.
    monkeypatch.setattr(event_remedies, "FREEZE_SHARE", -1.0)
    publish(broker, 1)
    plan = plan_of(broker, "freeze_partition")
    assert "pgmb.subscriptions" in event_remedies.REMEDIES["freeze_partition"].find(broker)
    for _ in range(50):
        broker.execute("SELECT pg_current_xact_id()")
    age = "SELECT max(age(relfrozenxid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'pgmb'::regnamespace"
    [[before]] = broker.execute(age).fetchall()

    assert apply(broker, "freeze_partition", plan) == plan.counts.changes > 10

    [[after]] = broker.execute(age).fetchall()
    assert after < before


def test_nothing_is_planned_where_nothing_is_wrong(broker: Connection) -> None:
    publish(broker, 1, 2)
    for remedy in ("event_upkeep", "reenqueue_events", "quarantine_subscription", "freeze_partition"):
        assert plan_of(broker, remedy).empty


def test_suite_of_events_needs_a_broker(postgres_url: str) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        with pytest.raises(RefusedError, match="there is no event broker in this database"):
            findings(connection, postgres_url)


def test_idle_groups_are_not_taken_for_groups_that_have_lost_something(broker: Connection, postgres_url: str) -> None:
    subscribe(broker, "idle", "e.topic = 'never'")
    publish(broker, 1)
    broker.execute("SELECT pgmb.poll_for_events()")
    [[oldest]] = broker.execute("SELECT min(lower_bound) FROM pgmb.partition_bounds('pgmb.dispatches')").fetchall()
    last = broker.execute("SELECT last_read_event_id FROM pgmb.subscription_groups ORDER BY id").fetchall()

    [[advanced]] = broker.execute("SELECT pgmb.advance_groups(pgmb.create_event_id(now(), 0))").fetchall()

    assert advanced == 1
    now = broker.execute("SELECT last_read_event_id FROM pgmb.subscription_groups ORDER BY id").fetchall()
    assert now[0] == last[0]
    assert now[1] > last[1] > (oldest,)
    assert waiting(broker) == [1]
    assert findings(broker, postgres_url) == set()
