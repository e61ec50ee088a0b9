"""What is refused before a migration starts, and in which words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import RedisError

from queuekeeper.clock import system_clock
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import RefusedError, SchemaMismatch, ServerUnavailable, StalePlan
from queuekeeper.keyspace import SLOTS
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState, TaskMemory, code_version, plan_id
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.quarantine import replay
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.preflight import (
    HEAP_PER_PAYLOAD,
    QUEUED_ROWS,
    check_heap,
    check_payloads,
    check_same_target,
    check_target,
    check_values,
    forecast_by_master,
    source_fingerprint,
)
from queuekeeper.migration.servers import check_source
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import address_of, facts, shards
from queuekeeper.redis_client import connect as connect_redis

pytestmark = pytest.mark.sql

MESSAGES = """
INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload)
SELECT 'c' || n % 10, n, 'topic', 1000 + n, n, 'PUBLISH', 1, repeat('x', n * 20)::bytea
FROM generate_series(1, 200) AS n
"""
SESSIONS = "INSERT INTO device_session_ctx SELECT 'c' || n, 5, 6, 7 FROM generate_series(0, 9) AS n"


# --- target of another kind ------------------------------------------------------------------------------------


@pytest.fixture(params=["single server", "cluster"])
def misdirected(request: pytest.FixtureRequest, database: Connection) -> tuple[Connection, str, str, str]:
    """A database with a plan, the address of a Redis of the other kind, and both kinds in words."""
    is_cluster = request.param == "cluster"
    plan = MigrationPlan(
        plan_id="plan-a", parameters=MigrationParameters(cohort_count=1), source_fingerprint="",
        code_version=code_version(), as_of_ms=system_clock(), cohorts=(cohort(0, SLOTS - 1, forecast_bytes=1),),
        chosen=(0,), state=PlanState.APPROVED, target_clustered=is_cluster,
    )  # fmt: skip
    MigrationLedger(database).save_plan(plan, run_id=None)
    url = str(request.getfixturevalue("valkey_url" if is_cluster else "redis_cluster_url"))
    return database, url, request.param, "single server" if is_cluster else "cluster"


@pytest.mark.parametrize("step", ["copy", "verify", "replay", "arm", "catch_up", "cut_over", "roll_back", "mirror"])
def test_plan_that_was_made_for_another_kind_of_redis_is_refused(
    postgres_url: str, misdirected: tuple[Connection, str, str, str], step: str
) -> None:
    database, url, made_for, here = misdirected
    where: Any = {"postgres_url": postgres_url, "redis_url": url, "plan_id": "plan-a"}
    no_spark: Any = None
    words = (
        f"plan plan-a was made for a {made_for}, and this Redis is a {here}, where clients whose ids begin "
        "with } are treated differently: plan again for this Redis, or name the one that the plan was made for"
    )
    with connect_redis(url) as client:
        steps: dict[str, Callable[[], Any]] = {
            "copy": lambda: copy_sessions(no_spark, **where),
            "verify": lambda: verify_migration(no_spark, **where),
            "replay": lambda: replay(database, client, plan_id="plan-a"),
        }
        call = steps.get(step) or getattr(OnlineDriver(**where, actor="Ada"), step)
        with pytest.raises(StalePlan, match=f"^{words}$"):
            call()
    assert MigrationLedger(database).load_plan("plan-a").state is PlanState.APPROVED


def test_plan_of_an_earlier_release_is_taken_for_any_redis(valkey_url: str) -> None:
    plan = MigrationPlan(
        plan_id="plan-a", parameters=MigrationParameters(), source_fingerprint="", code_version="", as_of_ms=0,
        cohorts=(), chosen=(),
    )  # fmt: skip
    with connect_redis(valkey_url) as client:
        check_same_target(client, plan)
        check_same_target(client, replace(plan, target_clustered=False))


def test_plans_of_one_source_for_a_server_and_for_a_cluster_are_two() -> None:
    plans = {
        plan_id(
            parameters=MigrationParameters(), source_fingerprint="same", version="same", target_clustered=is_cluster
        )
        for is_cluster in (False, True)
    }
    assert len(plans) == 2


# --- source ----------------------------------------------------------------------------------------------------


def test_vendor_schema_is_accepted(source: Connection) -> None:
    check_source(source)


def test_further_columns_and_schemas_of_the_search_path_are_accepted(connection: Connection) -> None:
    connection.execute("CREATE SCHEMA broker; SET search_path TO broker")
    connection.execute(
        "CREATE TABLE device_session_ctx (client_id text PRIMARY KEY, last_updated_time bigint, "
        "last_serial_number bigint, last_packet_id int, extra json)"
    )
    connection.execute(
        "CREATE TABLE device_publish_msg (client_id text, serial_number bigint, topic text, time bigint, "
        "packet_id int, packet_type text, qos int, payload bytea, user_properties text, retain boolean, "
        "msg_expiry_interval int, payload_format_indicator int, content_type text, response_topic text, "
        "correlation_data bytea, extra json, "
        "UNIQUE (serial_number, client_id))"
    )

    check_source(connection)
    assert source_fingerprint(connection)


@pytest.mark.parametrize("table", ["device_publish_msg", "device_session_ctx"])
def test_missing_table_is_named(source: Connection, table: str) -> None:
    source.execute(f"DROP TABLE {table}")

    with pytest.raises(SchemaMismatch, match=rf"lacks {table}: name the database of TBMQ 1\.x"):
        check_source(source)


def test_empty_database_lacks_both_tables(connection: Connection) -> None:
    with pytest.raises(SchemaMismatch, match="lacks device_publish_msg and device_session_ctx: name the database"):
        check_source(connection)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "ALTER TABLE device_publish_msg DROP COLUMN correlation_data",
            (
                r"device_publish_msg lacks column correlation_data, which TBMQ 1\.3 added: upgrade TBMQ to 1\.4 first, "
                r"or ALTER TABLE device_publish_msg ADD COLUMN correlation_data bytea"
            ),
        ),
        (
            "ALTER TABLE device_session_ctx DROP COLUMN last_packet_id",
            r"device_session_ctx lacks column last_packet_id \(integer\), which every release has",
        ),
        (
            "ALTER TABLE device_publish_msg ALTER packet_id TYPE bigint",
            "device_publish_msg.packet_id is bigint: it must be integer",
        ),
        (
            "ALTER TABLE device_publish_msg DROP CONSTRAINT device_publish_msg_pkey",
            (
                r"device_publish_msg has no unique key over \(client_id, serial_number\).* "
                r"ADD PRIMARY KEY \(client_id, serial_number\)"
            ),
        ),
        (
            "ALTER TABLE device_session_ctx RENAME TO kept; CREATE VIEW device_session_ctx AS SELECT * FROM kept",
            "device_session_ctx is not a table",
        ),
    ],
)
def test_different_schema_is_named_with_its_remedy(source: Connection, change: str, message: str) -> None:
    source.execute(change)

    with pytest.raises(SchemaMismatch, match=message):
        check_source(source)


def test_all_differences_are_named_at_once(source: Connection) -> None:
    source.execute("ALTER TABLE device_publish_msg DROP COLUMN retain, DROP COLUMN content_type")

    with pytest.raises(SchemaMismatch, match=r"lacks column retain .*; .* lacks column content_type"):
        check_source(source)


def test_remedy_that_is_named_works(source: Connection) -> None:
    source.execute("ALTER TABLE device_publish_msg DROP COLUMN content_type, DROP COLUMN msg_expiry_interval")
    for _ in range(2):
        with pytest.raises(SchemaMismatch) as caught:
            check_source(source)
        source.execute("ALTER TABLE " + str(caught.value).split("ALTER TABLE ")[1].partition(";")[0])

    check_source(source)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("device_publish_msg", "client_id"),
        ("device_publish_msg", "serial_number"),
        ("device_publish_msg", "payload"),
        ("device_session_ctx", "client_id"),
    ],
)
def test_rows_that_cannot_be_read_in_order_or_compared_are_named_with_what_helps(
    source: Connection, table: str, column: str
) -> None:
    source.execute("INSERT INTO device_session_ctx VALUES ('meter-7', 0, 1, 1)")
    source.execute(
        "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload) "
        "VALUES ('meter-7', 1, 't', 1, 1, 'PUBLISH', 1, ''), ('meter-7', 2, 't', 1, 1, 'PUBLISH', 1, '')"
    )
    key = "client_id, serial_number" if table == "device_publish_msg" else "client_id"
    source.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD UNIQUE ({key})".encode())
    source.execute(f"ALTER TABLE {table} ALTER {column} DROP NOT NULL".encode())
    check_source(source)
    source.execute(f"UPDATE {table} SET {column} = NULL".encode())

    with pytest.raises(RefusedError, match=rf"rows? of {table} without {column}, which TBMQ never writes") as refused:
        check_source(source)
    source.execute(str(refused.value).partition("(")[2].rpartition(")")[0].encode())
    check_source(source)


@pytest.fixture
def plain_role(connection: Connection) -> Iterator[str]:
    """A role without any privilege, for the length of a test's transaction."""
    role = f"reader_{connection.info.dbname}"
    connection.autocommit = False
    connection.execute(f"CREATE ROLE {role}")
    yield role
    connection.rollback()


def test_missing_privilege_is_named_with_its_grant(source: Connection, plain_role: str) -> None:
    source.execute(f"GRANT SELECT ON device_session_ctx TO {plain_role}")
    source.execute(f"SET LOCAL ROLE {plain_role}")

    with pytest.raises(RefusedError, match=r"may not read device_publish_msg .* GRANT SELECT ON device_publish_msg TO"):
        check_source(source)


def test_hidden_rows_are_refused(source: Connection, plain_role: str) -> None:
    source.execute(f"GRANT SELECT ON device_session_ctx, device_publish_msg TO {plain_role}")
    source.execute("ALTER TABLE device_publish_msg ENABLE ROW LEVEL SECURITY")
    source.execute(f"SET LOCAL ROLE {plain_role}")

    with pytest.raises(RefusedError, match=r"row security hides rows of device_publish_msg .* BYPASSRLS"):
        check_source(source)


def test_reader_needs_no_more_than_select(source: Connection, plain_role: str) -> None:
    source.execute(f"GRANT SELECT ON device_session_ctx, device_publish_msg TO {plain_role}")
    source.execute(f"SET LOCAL ROLE {plain_role}")

    check_source(source)
    assert source_fingerprint(source)


# --- fingerprint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *(
            f"UPDATE device_publish_msg SET {assignment} WHERE serial_number = 77"
            for assignment in (
                "client_id = 'other'",
                "serial_number = 777",
                "topic = 'other'",
                "time = time + 1",
                "packet_id = NULL",
                "packet_type = 'PUBREL'",
                "qos = 2",
                "payload = set_byte(payload, 1500, 0)",
                "user_properties = ''",
                "retain = FALSE",
                "msg_expiry_interval = 0",
                "payload_format_indicator = 0",
                "content_type = ''",
                "response_topic = ''",
                "correlation_data = ''",
            )
        ),
        "DELETE FROM device_publish_msg WHERE serial_number = 77",
        "DELETE FROM device_publish_msg",
        (
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, qos, payload) "
            "VALUES ('', 0, '', 0, 0, '')"
        ),
        "INSERT INTO device_session_ctx VALUES ('', 0, 0, 0)",
        "DELETE FROM device_session_ctx WHERE client_id = 'c3'",
        "UPDATE device_session_ctx SET last_updated_time = 0 WHERE client_id = 'c3'",
        "UPDATE device_session_ctx SET last_serial_number = NULL WHERE client_id = 'c3'",
        "UPDATE device_session_ctx SET last_packet_id = 8 WHERE client_id = 'c3'",
        # two rows exchange a value, so that no column alone has changed
        "UPDATE device_publish_msg SET packet_id = 257 - packet_id WHERE serial_number IN (128, 129)",
    ],
)
def test_fingerprint_changes_with_any_row(source: Connection, change: str) -> None:
    source.execute(MESSAGES)
    source.execute(SESSIONS)
    before = source_fingerprint(source)
    source.execute(change)

    assert source_fingerprint(source) != before


def test_fingerprint_knows_nothing_of_where_rows_lie(source: Connection) -> None:
    source.execute(MESSAGES)
    source.execute(SESSIONS)
    before = source_fingerprint(source)
    source.execute("UPDATE device_publish_msg SET qos = qos WHERE serial_number % 3 = 0")
    source.execute("VACUUM FULL device_publish_msg")
    assert source_fingerprint(source) == before
    source.execute("CLUSTER device_publish_msg USING idx_device_publish_msg_packet_id")
    assert source_fingerprint(source) == before
    source.execute("CREATE TABLE kept AS SELECT * FROM device_publish_msg ORDER BY random()")
    source.execute("TRUNCATE device_publish_msg")
    source.execute("INSERT INTO device_publish_msg SELECT * FROM kept")
    assert source_fingerprint(source) == before


def test_fingerprint_of_a_wrong_database_is_refused(connection: Connection) -> None:
    with pytest.raises(RefusedError, match=r'"device_publish_msg" does not exist; name the database of TBMQ 1\.4'):
        source_fingerprint(connection)


def test_fingerprint_differs_between_databases(source: Connection) -> None:
    before = source_fingerprint(source)

    assert before.split("/")[1] == source.info.dbname
    assert before.split("/")[2:] == [f"messages-0-{0:016x}", f"sessions-0-{0:016x}"]


def _memory(*, payload_bytes: int, tasks: int) -> TaskMemory:
    return TaskMemory(heap_bytes=HEAP_PER_PAYLOAD * payload_bytes, tasks=tasks, setting="spark.driver.memory")


def test_heap_has_to_carry_the_largest_payloads_that_tasks_may_hold_at_once(source: Connection) -> None:
    check_payloads(source, _memory(payload_bytes=0, tasks=2))  # no rows
    source.execute(MESSAGES)
    source.execute("ALTER TABLE device_publish_msg ALTER COLUMN payload DROP NOT NULL")
    source.execute("UPDATE device_publish_msg SET payload = NULL WHERE serial_number < 100")
    check_payloads(source, _memory(payload_bytes=4_000, tasks=1))
    check_payloads(source, _memory(payload_bytes=4_000 + 3_980, tasks=2))

    with pytest.raises(RefusedError) as refused:
        check_payloads(source, _memory(payload_bytes=7_970, tasks=2))
    assert str(refused.value) == (
        "the largest payload has 4,000 bytes, and the 2 that may be copied at once have 7,980: the 124.5 KiB of "
        "Spark's heap carry 7,970. Set spark.driver.memory to 1m (docs/migration.md, 4), or take rows of "
        "device_publish_msg with octet_length(payload) > 3985 out of the source"
    )
    source.execute("DELETE FROM device_publish_msg WHERE octet_length(payload) > 3985")
    check_payloads(source, _memory(payload_bytes=7_970, tasks=2))


def test_heap_has_to_carry_the_queues_that_tasks_may_hold_while_they_judge_them(source: Connection) -> None:
    memory = TaskMemory(heap_bytes=1_000_000, tasks=2, setting="spark.driver.memory")
    check_heap(source, memory)  # no rows

    def add(client_id: str, *, messages: int, payload_bytes: int) -> None:
        source.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) SELECT %s, n, 't', 0, n, 'PUBLISH', 1, convert_to(repeat('x', %s), 'UTF8')"
            " FROM generate_series(1, %s) AS n",
            (client_id, payload_bytes, messages),
        )

    # One beside nothing, a hundred together, and of ten thousand as many as are in the heap at once.
    add("alone", messages=1, payload_bytes=20_000)
    add("long", messages=QUEUED_ROWS + 5_000, payload_bytes=20)
    add("many", messages=51, payload_bytes=1_000)
    check_heap(source, memory)

    add("more", messages=100, payload_bytes=1_000)
    with pytest.raises(RefusedError) as refused:
        check_heap(source, memory)
    assert str(refused.value) == (
        "the largest queue of a client has 99,000 bytes of payloads beside its largest, and the 2 that may be copied "
        "at once have 180,900: the 976.6 KiB of Spark's heap carry 166,000. Set spark.driver.memory to 2m "
        "(docs/migration.md, 4), or take messages of the clients with the greatest sum(octet_length(payload)) in "
        "device_publish_msg out of the source"
    )
    source.execute("DELETE FROM device_publish_msg WHERE client_id = 'more' AND serial_number > 85")
    check_heap(source, memory)


# --- target ----------------------------------------------------------------------------------------------------


def test_fitting_server_is_accepted(redis_url: str) -> None:
    with connect_redis(redis_url) as client:
        assert check_target(client) == ()
        assert check_target(client, forecast_bytes={address_of(client): 2**20}) == ()


def test_fitting_cluster_is_accepted(redis_cluster_url: str) -> None:
    with connect_redis(redis_cluster_url) as client:
        addresses = [server.address for server in facts(client)]

        assert check_target(client, forecast_bytes=dict.fromkeys(addresses, 2**20)) == ()


def test_forecast_is_shared_out_by_the_slots_that_each_master_holds_now(redis_cluster_url: str) -> None:
    with connect_redis(redis_cluster_url) as client:
        ranges = shards(client)
        first, last, holder = ranges[0]
        # The second one was planned when a single server held all slots.
        forecast = forecast_by_master(
            client, [cohort(first, last, forecast_bytes=2**20), cohort(0, SLOTS - 1, forecast_bytes=10 * SLOTS)]
        )

        expected: Counter[str] = Counter({holder: 2**20})
        for begin, end, address in ranges:
            expected[address] += 10 * (end - begin + 1)
        assert len(expected) == 3
        assert forecast == expected
        assert forecast_by_master(client, []) == {}


def cohort(slot_first: int, slot_last: int, *, forecast_bytes: int) -> CohortPlan:
    return CohortPlan(
        cohort=0, slot_first=slot_first, slot_last=slot_last, shard="somewhere:6379", sessions=1, clients=1,
        messages=1, payload_bytes=1, to_copy=1, expired=0, trimmed=0, quarantined=0, forecast_bytes=forecast_bytes,
        longest_queue=1,
    )  # fmt: skip


def test_evicting_server_is_refused(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(maxmemory_policy="volatile-lru")
    with connect_redis(server.url) as client:
        with pytest.raises(
            RefusedError,
            match=r"may evict messages \(maxmemory-policy volatile-lru\): CONFIG SET maxmemory-policy noevic",
        ):
            check_target(client)
        client.config_set("maxmemory-policy", "noeviction")

        check_target(client)


def test_small_server_is_refused_with_the_size_that_helps(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(maxmemory="64mb")
    with connect_redis(server.url) as client:
        where = address_of(client)
        check_target(client)
        check_target(client, forecast_bytes={where: 2**25})
        with pytest.raises(RefusedError, match=r"too little memory: .* in use and a forecast of 60\.0 MiB") as caught:
            check_target(client, forecast_bytes={where: 60 * 2**20})
        size = str(caught.value).split("CONFIG SET maxmemory ")[1].partition(",")[0]
        # What is in use moves by some kilobytes between two looks.
        client.config_set("maxmemory", int(size) + 2**22)

        assert check_target(client, forecast_bytes={where: 60 * 2**20}) == ()


def test_host_without_the_memory_is_refused(redis_url: str) -> None:
    with connect_redis(redis_url) as client, pytest.raises(RefusedError, match=r"the host 127\.0\.0\.1 has too little"):
        check_target(client, forecast_bytes={address_of(client): 2**50})


def test_masters_of_one_host_share_its_memory(redis_cluster_url: str) -> None:
    with connect_redis(redis_cluster_url) as client:
        servers = facts(client)
        half = servers[0].total_system_memory_bytes // 2
        assert check_target(client, forecast_bytes={servers[0].address: half}) == ()

        with pytest.raises(
            RefusedError, match=r"the host 127\.0\.0\.1 has too little memory for Redis: .* and .* and "
        ):
            check_target(client, forecast_bytes={server.address: half for server in servers})


def test_master_that_ceased_to_be_one_between_two_looks_is_not_held_against_the_plan(redis_cluster_url: str) -> None:
    with (
        connect_redis(redis_cluster_url) as client,
        pytest.raises(ServerUnavailable, match=r"^10\.0\.0\.1:6379 ceased to be a master while .*: try again$"),
    ):
        check_target(client, forecast_bytes={"10.0.0.1:6379": 1})


def test_server_without_append_only_file_is_warned_of(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory(appendonly="no")
    with connect_redis(server.url) as client:
        (warning,) = check_target(client)

        assert "keeps no append-only file" in warning
        assert "CONFIG SET appendonly yes" in warning


def test_replica_is_refused(redis_server_factory: Callable[..., RedisServer]) -> None:
    server = redis_server_factory()
    with connect_redis(server.url) as client:
        # A master that does not answer will do: the server is a replica from this moment on.
        client.execute_command("REPLICAOF", "127.0.0.1", "1")

        with pytest.raises(RefusedError, match="is a replica: name its master instead, or REPLICAOF NO ONE"):
            check_target(client)


@pytest.mark.parametrize("setting", ["proto-max-bulk-len", "client-query-buffer-limit"])
def test_server_that_takes_no_value_as_large_is_refused(
    redis_server_factory: Callable[..., RedisServer], setting: str
) -> None:
    server = redis_server_factory(**{setting.replace("-", "_"): 2**20})
    with connect_redis(server.url) as client:
        check_values(client, largest_bytes=2**20 - 2)
        with pytest.raises(
            RefusedError, match=rf"takes 1,048,576 \({setting}\): CONFIG SET {setting} 2000002"
        ) as refused:
            check_values(client, largest_bytes=2_000_000)
        remedy = str(refused.value).split(": CONFIG SET ")[1].partition(",")[0].split()
        # The server ends the connection of whoever sends too much.
        with connect_redis(server.url) as ended, pytest.raises(RedisError):
            ended.set("large", bytes(2_000_000))
        client.config_set(*remedy)

        check_values(client, largest_bytes=2_000_000)
        assert client.set("large", bytes(2_000_000))


def test_server_that_may_not_be_asked_takes_the_largest_packet_by_default(
    redis_server_factory: Callable[..., RedisServer],
) -> None:
    server = redis_server_factory()
    with connect_redis(server.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")

        check_values(client, largest_bytes=400_000_000)
