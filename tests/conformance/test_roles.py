"""The roles that ``queuekeeper acl postgres`` prints do their jobs on a real server, and nobody else's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from queuekeeper import audit, postgres, redis_client, schema_migrations, sql_statements
from queuekeeper.cli.access import app
from queuekeeper.clock import system_clock
from queuekeeper.doctor import State, examine_postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.events import schema
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.consumer import EventConsumer
from queuekeeper.events.dispatcher import Dispatcher
from queuekeeper.events.model import Delivery, Interest, NewEvent
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.events.broker import read_event_broker
from queuekeeper.maintenance.events.watch import UpkeepLimits, watch_broker
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.broker import broker_policies
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_drop, plan_reattachment, plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.runs import carry_out
from queuekeeper.metrics import gather
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.partitioned_tables import read_partitioned_tables
from queuekeeper.quality.judge.run import run_quality
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.preflight import check_profiled_source
from queuekeeper.roles import postgres_roles, quoted
from queuekeeper.sessions.model import Ack
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from tests import postgres_roles as printed
from tests import report_samples
from tests.access_users import CLIENT, SECRET
from tests.cleanup_world import World as CleanupWorld
from tests.conformance.online_worlds import UNHURRIED, OnlineWorld, until_none_is_late
from tests.conformance.test_online_migration import payloads, save
from tests.event_samples import delivered, publish, subscribe
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

DAY_MS = 86_400_000
POLICY = PartitionPolicy(
    table="public.readings", step="1 day", ahead="2 days", retention="5 days", quarantine_days=1, archive=False
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A database with everything in it, which belongs to a role without privileges of its own, and all the roles.

    :param owner: connection of a superuser.
    """

    url: str
    admin: Connection
    prefix: str
    opened: ExitStack

    def url_of(self, job: str) -> str:
        """Return the address of the database for the role of a job."""
        return printed.role_url(self.url, f"{self.prefix}{job}")

    def connect(self, job: str) -> Connection:
        """Return a connection of the role of a job."""
        return self.opened.enter_context(postgres.connect(self.url_of(job), autocommit=True))

    def refused(self, job: str, *statements: str) -> None:
        """See that a role may not do something for want of a privilege, each thing by itself."""
        connection = self.connect(job)
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


@pytest.fixture(scope="module")
def world(postgres_server: PostgresServer) -> Iterator[World]:
    postgres_server.start()
    name = f"roles_{os.getpid()}"
    owner, prefix = f"{name}_owner", f"{name}_It's_"
    url = postgres_server.create_database(name, template="template0")
    with ExitStack() as opened:
        admin = opened.enter_context(postgres.connect(url, autocommit=True))
        opened.callback(postgres_server.drop_database, name)
        admin.execute(sql.SQL("CREATE ROLE {} CREATEROLE").format(sql.Identifier(owner)))
        opened.callback(printed.forget, admin, owner)
        opened.callback(admin.execute, sql.SQL("ALTER DATABASE {} OWNER TO CURRENT_USER").format(sql.Identifier(name)))
        with admin.transaction():
            # The role of conditions belongs to the whole server.
            schema.install(admin)
            schema.uninstall(admin)
        admin.execute(sql.SQL("GRANT pgmb_reader TO {}").format(sql.Identifier(owner)))
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(owner)))
        admin.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(owner)))
        admin.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(owner)))
        admin.execute(sql_statements.statement("sessions/vendor_schema"))
        schema.install(admin)
        admin.execute("CREATE TABLE readings (id bigint, at timestamptz NOT NULL) PARTITION BY RANGE (at)")
        admin.execute("RESET SESSION AUTHORIZATION")
        schema_migrations.migrate(admin)
        save_policy(admin, POLICY)
        opened.enter_context(printed.roles(admin, url=url, prefix=prefix))
        yield World(url=url, admin=admin, prefix=prefix, opened=opened.enter_context(ExitStack()))


def test_store_of_sessions(world: World) -> None:
    store = PostgresSessionStore(world.connect("sessions"))
    save(store, CLIENT, SECRET, b"2", b"3", qos=2)
    first, second, _ = store.fetch_pending(CLIENT, mark_delivered=True).messages
    store.mark_released(CLIENT, packet_id=first.packet_id)
    assert store.ack(CLIENT, [Ack(packet_id=second.packet_id, serial=second.serial)]).removed == 1
    exported = store.export_session(CLIENT)
    assert store.reserve_packet_ids(CLIENT, count=2) == (4, 5)
    assert PostgresSessionStore(world.connect("source")).inspect(CLIENT).messages == 2
    assert PostgresSessionStore(world.connect("source")).export_session(CLIENT).lines[1:] == exported.lines[1:]
    assert store.purge_session(CLIENT).messages == 2
    assert store.import_session(CLIENT, exported.lines).stored == 2
    store.purge_session(CLIENT)

    world.refused(
        "sessions",
        "UPDATE queuekeeper.session_owners SET owner = 'redis'",
        "TRUNCATE device_publish_msg",
        "SELECT FROM queuekeeper.plans",
        "SELECT FROM pgmb.events",
    )
    world.refused(
        "source",
        "DELETE FROM device_publish_msg",
        "UPDATE device_session_ctx SET last_packet_id = 1",
        "INSERT INTO queuekeeper.session_states (client_id, known_serial) VALUES ('c', 1)",
        "SELECT payload FROM queuekeeper.quarantine",
    )


def test_driver_of_a_migration_with_devices_connected(world: World, postgres_url: str, valkey_url: str) -> None:
    clients = ["meter-1", "meter-2", "}first"]
    there = OnlineWorld(world.url, valkey_url)
    try:
        for client_id in clients:
            save(there.at_postgres, client_id, SECRET, b"2")
        there.plan(count=2)

        def driver() -> OnlineDriver:
            return OnlineDriver(
                postgres_url=world.url_of("online"), redis_url=valkey_url, actor="test", plan_id=there.plan_id,
                count=2, limits=UNHURRIED, tell=there.told.append,
            )  # fmt: skip

        there.to_redis(driver())
        assert there.all_owners() == {"redis"}
        save(there.at_redis, clients[0], b"3")
        driver().mirror()
        assert payloads(there.at_redis, clients[0]) == [SECRET, b"2", b"3"]
        assert until_none_is_late(driver().roll_back).left == {}
        assert there.all_owners() == {"postgres"}
        assert payloads(there.at_postgres, clients[0]) == [SECRET, b"2", b"3"]
    finally:
        there.close()
        world.admin.execute("TRUNCATE device_publish_msg, device_session_ctx, queuekeeper.session_owners")
        world.admin.execute("DELETE FROM queuekeeper.online_cohorts; DELETE FROM queuekeeper.plans")
    world.refused(
        "online", "SELECT FROM queuekeeper.audit", "DROP TABLE device_publish_msg", "SELECT FROM pgmb.subscriptions"
    )


def mend(connection: Connection, kind: str, *wanted: str) -> dict[str, int]:
    """Plan and carry out a job on the event broker, with its record, and return what was changed.

    :param wanted: ids that the plan has to name.
    """
    engine, runs = Engine(job=job_of(kind), database=connection), MaintenanceRuns(connection)
    plan = engine.plan(engine.job.Parameters())
    assert set(wanted) <= {each for found in plan.found.examples.values() for each in found}
    run_id = engine.save(runs, plan).maintenance_run_id
    for share in plan.share_names():
        engine.apply(runs, run_id, share)
    counts = engine.report(runs, run_id, dry_run=False).counts
    assert counts == plan.counts
    return asdict(counts)


def test_event_broker_from_publishing_to_upkeep(world: World) -> None:
    consumer = EventConsumer(world.url_of("consumer"), group_id="billing")
    seen: list[object] = []

    def bill(delivery: Delivery) -> None:
        paid = [event.payload for event in delivery.events]
        seen.extend(paid)
        if "bad" in paid:
            raise ValueError("this one cannot be billed")

    consumer.handle(bill, name="bill", interest=Interest.topics("order.paid"), retries_s=())
    with consumer:
        publisher = EventBroker(world.connect("publisher"))
        publisher.publish([NewEvent(topic="order.paid", payload=name) for name in ("good", "bad")])
        late = NewEvent(topic="order.paid", payload="late")
        publisher.schedule(late, due_at=datetime(2100, 1, 1, tzinfo=UTC))
        with pytest.raises(RefusedError, match="there is no subscription nobody"):
            publisher.schedule(late, due_at=datetime(2100, 1, 1, tzinfo=UTC), subscription_id="nobody")
        # As PGMB's client schedules.
        world.connect("publisher").execute(
            "INSERT INTO pgmb.events (id, topic, payload) VALUES "
            "(pgmb.create_event_id(now() + interval '1 hour', pgmb.create_random_bigint()), 'later', '1') RETURNING id"
        )
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            # A subscription that comes later gets nothing of before, so what is new is published until it arrives.
            publisher.publish_many([NewEvent(topic="order.paid", payload="bad")])
            Dispatcher(world.url_of("dispatcher"), once=True).run()
            (dead,) = world.admin.execute("SELECT count(*) FROM pgmb.dead_letters").fetchall()[0]
            if dead:
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    assert "bad" in seen

    subscribe(world.admin, "fragile", condition="(e.payload ->> 'number')::int > 7", group="fragile")
    subscribe(world.admin, "expired", group="fragile")
    publish(world.admin, {"number": SECRET.decode()})
    world.admin.execute(
        "UPDATE pgmb.subscriptions SET expiry_interval = '1 s', last_active_at = now() - interval '1 hour'"
        " WHERE id = 'expired'"
    )
    limited = world.connect("upkeep")
    assert mend(limited, "event_upkeep", "expired") == {"expired_subscriptions": 1, "reenqueued_events": 0}
    watch = watch_broker(limited, limits=UpkeepLimits())
    assert len(watch.failing_conditions) == 1
    assert watch.dead_letters >= 1
    assert mend(limited, "quarantine_subscription", "fragile") == {"mended": 1}
    # As after a crash of PGMB's: dispatched, and in no dispatch.
    lost = publish(world.admin, "lost", topic="lost")
    subscribe(world.admin, "finder", condition="e.topic = 'lost'", group="finder")
    Dispatcher(world.url_of("dispatcher"), once=True).run()
    world.admin.execute("DELETE FROM pgmb.subscription_events; DELETE FROM pgmb.dispatches")
    mend(limited, "reenqueue_events", *lost)
    Dispatcher(world.url_of("dispatcher"), once=True).run()
    assert delivered(world.admin, "finder", group="finder") == lost

    world.refused(
        "publisher",
        "SELECT payload FROM pgmb.events",
        "SELECT pgmb.poll_for_events()",
        "SELECT group_id, conditions_sql FROM pgmb.subscriptions",
    )
    world.refused(
        "consumer",
        "SELECT pgmb.poll_for_events()",
        "DELETE FROM pgmb.events",
        "UPDATE pgmb.subscriptions SET conditions_sql = 'FALSE'",
        "SELECT FROM queuekeeper.plans",
    )
    world.refused(
        "dispatcher",
        "INSERT INTO pgmb.events (topic, payload) VALUES ('t', '1')",
        "DELETE FROM pgmb.subscriptions",
        "SELECT FROM pgmb.dead_letters",
        "SELECT pgmb.drop_expired_partition('pgmb.events')",
    )
    world.refused(
        "upkeep",
        "SELECT payload FROM pgmb.events",
        "SELECT payload FROM pgmb.dead_letters",
        "SELECT params FROM pgmb.subscriptions",
        "SELECT (pgmb.check_condition('TRUE')).failure",
        "SELECT FROM pgmb.read_events(ARRAY[]::varchar[]::pgmb.event_id[])",
        "INSERT INTO pgmb.events (topic, payload) VALUES ('t', '1')",
    )


def test_quality_judges_what_it_may_not_read(world: World) -> None:
    store = PostgresSessionStore(world.admin)
    save(store, CLIENT, SECRET, b"2")
    subscribe(world.admin, "watched", condition="e.topic = 'watched'", group="watched")
    limited = world.connect("quality")
    url = world.url_of("quality")

    assert check_profiled_source(limited, contents=False) is False
    with pytest.raises(RefusedError, match="may not read device_publish_msg"):
        check_profiled_source(limited, contents=True)
    sizes = limited.execute(
        "SELECT client_id, payload_bytes FROM queuekeeper.message_facts('(0,0)', '(4294967295,0)') ORDER BY 2 DESC"
    )
    assert sizes.fetchall() == [(CLIENT, len(SECRET)), (CLIENT, 1)]
    assert {row["name"] for row in read_event_broker(limited) if row["kind"] == "group"} >= {"watched"}
    # As the owner sees it, with rows and without.
    now_ms = system_clock()
    assert _partitions(limited, now_ms=now_ms) == _partitions(world.admin, now_ms=now_ms)
    world.admin.execute("CREATE TABLE soon PARTITION OF readings FOR VALUES FROM ('2199-01-01') TO ('2199-02-01')")
    world.admin.execute("INSERT INTO readings VALUES (1, '2199-01-05')")
    assert _partitions(limited, now_ms=now_ms) == _partitions(world.admin, now_ms=now_ms)
    assert _partitions(limited, now_ms=now_ms)["public.readings"]["unreadable"] == 0
    world.admin.execute("DROP TABLE soon")
    report = run_quality(
        postgres_url=url,
        profile_ids=[],
        suites=["events", "partitions"],
        quality_run_id="limited",
        now=datetime.now(UTC),
    )
    assert report.verdict in (Verdict.PASSED, Verdict.FAILED)
    assert all("broken" not in str(result.status) for result in report.results)

    for column in ("payload", "topic", "user_properties", "correlation_data", "*", "device_publish_msg"):
        world.refused("quality", f"SELECT {column} FROM device_publish_msg")
    world.refused(
        "quality",
        "SELECT FROM device_publish_msg WHERE payload = ''",
        "SELECT octet_length(payload) FROM device_publish_msg",
        "COPY device_publish_msg TO STDOUT",
        "UPDATE device_publish_msg SET qos = 1",
        "DELETE FROM device_session_ctx",
        "SELECT id FROM readings",
        "SELECT payload FROM pgmb.events",
        "SELECT metadata FROM pgmb.events",
        "SELECT e FROM pgmb.events AS e",
        "SELECT (pgmb.check_condition('e.payload IS NULL')).failure",
        "SELECT params FROM pgmb.subscriptions",
        "UPDATE pgmb.subscriptions SET conditions_sql = 'e.payload IS NULL'",
        "SELECT payload FROM queuekeeper.quarantine",
        "SELECT payload FROM queuekeeper.session_quarantine",
        "SELECT FROM queuekeeper.audit",
        "UPDATE queuekeeper.plans SET state = 'approved'",
    )
    store.purge_session(CLIENT)


def _partitions(connection: Connection, *, now_ms: int) -> dict[str, dict[str, Any]]:
    return {row["table_name"]: row for row in read_partitioned_tables(connection, now_ms=now_ms)}


def test_sizes_are_asked_of_the_table_where_nobody_has_made_the_function(world: World, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        assert check_profiled_source(connection, contents=True) is True
    stranger = world.connect("audit")
    with pytest.raises(RefusedError, match="what `queuekeeper acl postgres --job quality` prints"):
        check_profiled_source(stranger, contents=False)


def test_records_of_what_mends_redis(world: World, valkey_url: str, tmp_path: Path) -> None:
    with redis_client.connect(valkey_url) as client:
        cleanup = CleanupWorld(client=client, connection=world.connect("maintenance"), undo=tmp_path)
        device = cleanup.device("meter-1")
        device.add(3)
        device.expire(2)
        run_id, _ = cleanup.clean()
        assert device.references() == [1, 3]
        assert cleanup.runs.load(run_id).approved_by == "ada"
    world.refused(
        "maintenance",
        "SELECT payload FROM device_publish_msg",
        "SELECT FROM device_session_ctx",
        "DELETE FROM queuekeeper.queue_profiles",
        "SELECT FROM queuekeeper.audit",
    )


def test_partitions_are_maintained_and_what_is_retired_can_be_archived(world: World) -> None:
    limited = world.connect("partitions")
    now_ms = system_clock()
    later_ms = now_ms + 12 * DAY_MS
    for at_ms in (now_ms, later_ms):
        plan = plan_creation(limited, policy=POLICY, now_ms=at_ms)
        assert apply_plan(limited, plan=plan, now_ms=at_ms, random=Random(1)).done
    assert coverage(limited, policy=POLICY, now_ms=later_ms).head_room_met
    plan = plan_retirement(limited, policy=POLICY, now_ms=later_ms)
    assert plan.steps
    assert apply_plan(limited, plan=plan, now_ms=later_ms, random=Random(1)).done
    first, *rest = retired_partitions(limited)
    name = f'"{first.quarantine_schema}"."{first.partition_name}"'
    assert world.connect("archive").execute(f"SELECT count(*) FROM {name}".encode()).fetchone() == (0,)
    world.refused("archive", f"DELETE FROM {name}", f"DROP TABLE {name}", "SELECT FROM device_publish_msg")
    back = plan_reattachment(limited, policy=POLICY, retired_id=first.retired_id, now_ms=later_ms)
    assert apply_plan(limited, plan=back, now_ms=later_ms, random=Random(1)).done
    much_later_ms = later_ms + 3 * DAY_MS
    dropped = apply_plan(
        limited, plan=plan_drop(limited, policy=POLICY, now_ms=much_later_ms), now_ms=much_later_ms, random=Random(1)
    )
    assert dropped.done
    assert rest
    for policy in broker_policies(limited):
        # An hour later two more are wanted.
        soon_ms = now_ms + DAY_MS // 24
        plan = plan_creation(limited, policy=replace(policy, deadline_s=60), now_ms=soon_ms)
        assert plan.steps
        # As a run on record.
        assert carry_out(limited, plan).done
    world.refused(
        "partitions", "DELETE FROM queuekeeper.plans", "CREATE ROLE somebody", "SELECT FROM queuekeeper.audit"
    )


def test_audit_is_added_to_by_many_and_changed_by_nobody(world: World) -> None:
    audit.record(world.connect("audit"), actor="ann", action=audit.Action.APPLY, subject="s", effect={"done": 1})
    assert audit.verify_chain(audit.read_chain(world.connect("monitor"))).is_whole
    for job in postgres_roles():
        world.refused(
            job,
            "TRUNCATE queuekeeper.audit",
            "DELETE FROM queuekeeper.audit",
            "UPDATE queuekeeper.audit SET actor = 'eve'",
            "ALTER TABLE queuekeeper.audit DISABLE TRIGGER ALL",
            "DROP TABLE queuekeeper.audit",
        )
    world.refused("audit", "SELECT FROM queuekeeper.audit", "SELECT FROM queuekeeper.plans")


def test_monitoring_reads_figures_and_no_content(world: World) -> None:
    MigrationLedger(world.admin).save_plan(report_samples.balanced(count=2).plan, run_id=None)
    url = world.url_of("monitor")
    unknown = [finding for finding in examine_postgres(url) if finding.state is State.UNKNOWN]
    assert {finding.check for finding in unknown} <= {"free disk for its data", "old snapshots", "TBMQ 1.x tables"}
    gathered = gather(postgres_url=url, redis_url=None)
    assert gathered.failures == ()
    assert "queuekeeper_events_undispatched" in gathered.text
    assert f'plan="{report_samples.PLAN_ID}"' in gathered.text
    world.admin.execute("DELETE FROM queuekeeper.plans")
    world.refused(
        "monitor",
        "SELECT payload FROM device_publish_msg",
        "SELECT payload FROM queuekeeper.quarantine",
        "SELECT payload FROM pgmb.events",
        "SELECT payload FROM pgmb.dead_letters",
        "UPDATE queuekeeper.plans SET throttle_messages_per_s = 1",
        "INSERT INTO queuekeeper.audit (actor, action, subject, effect) VALUES ('a', 'b', 'c', '{}')",
    )


def test_script_takes_away_what_a_role_had_and_no_longer_needs(world: World) -> None:
    role = quoted(f"{world.prefix}quality")
    world.admin.execute(f"GRANT SELECT ON device_publish_msg, pgmb.events TO {role}".encode())
    world.admin.execute(f"GRANT EXECUTE ON FUNCTION pgmb.read_events TO {role}".encode())
    printed.run(printed.script("quality", prefix=world.prefix), url=world.url)
    world.refused("quality", "SELECT payload FROM device_publish_msg", "SELECT payload FROM pgmb.events")


def test_nobody_becomes_a_superuser_or_the_owner_of_the_audit(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    prefix = f"plain_{os.getpid()}_"
    with postgres.connect(postgres_url, autocommit=True) as admin:
        schema_migrations.migrate(admin)
        admin.execute("CREATE TABLE readings (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
        save_policy(admin, POLICY)
        try:
            # There are neither sessions nor a broker in this database.
            warnings = printed.run(printed.script(prefix=prefix), url=postgres_url)
            assert "readings belongs to superuser postgres: give it to a role of its own" in warnings
            assert len(printed.made(admin, prefix=prefix)) == len(postgres_roles())
            admin.execute(f"CREATE ROLE {prefix}owner; ALTER TABLE readings OWNER TO {prefix}owner".encode())
            admin.execute(f"ALTER TABLE queuekeeper.audit OWNER TO {prefix}owner".encode())
            warnings = printed.run(printed.script("partitions", prefix=prefix), url=postgres_url)
            assert f"readings belongs to {prefix}owner, and so does schema queuekeeper with its audit" in warnings
            members = admin.execute(
                "SELECT count(*) FROM pg_auth_members AS joined JOIN pg_roles AS role ON role.oid = joined.member"
                " WHERE starts_with(role.rolname, %s)",
                [prefix],
            )
            assert members.fetchone() == (0,)
        finally:
            printed.forget(admin, *printed.made(admin, prefix=prefix))


def test_script_and_json_say_the_same_and_hold_no_password() -> None:
    shown = CliRunner().invoke(app, ["postgres", "--job", "quality", "--json"])
    (role,) = json.loads(shown.stdout)["roles"]
    assert (role["role"], role["reads_payloads"]) == ("queuekeeper_quality", False)
    text = printed.script("quality", prefix="queuekeeper_")
    for statement in role["statements"]:
        assert f"{statement['sql']};" in text
    assert "PASSWORD" not in text.upper()
    assert {job for job, role in postgres_roles().items() if not role.reads_payloads} == {
        "quality", "maintenance", "publisher", "upkeep", "audit", "monitor",
    }  # fmt: skip


def test_names_that_would_end_the_text_they_stand_in_are_refused() -> None:
    for wrong in ("a$queuekeeper$", "a\nb", "", "x" * 64):
        with pytest.raises(UsageError, match="no name for a role or schema here"):
            quoted(wrong)
    assert quoted('a"b') == '"a""b"'
    shown = CliRunner().invoke(app, ["postgres", "--job", "everything"])
    assert isinstance(shown.exception, UsageError)
    assert "there is no job 'everything': name one of source, migration" in str(shown.exception)
