"""Servers and wishes that do not fit: refused in clear words with nothing written, or stopped without damage."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn
from urllib.parse import urlsplit, urlunsplit

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queuekeeper import postgres, sql_statements
from queuekeeper.clock import system_clock
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import (
    QueuekeeperError,
    RefusedError,
    SchemaMismatch,
    ServerUnavailable,
    StalePlan,
    StoreFull,
    UsageError,
)
from queuekeeper.keyspace import session_keys
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, MigrationPlan, PlanState, plan_id
from queuekeeper.migration.ledger.parameters import BadRows, MigrationParameters, Mode
from queuekeeper.migration.ledger.status import list_plans, migration_status
from queuekeeper.migration.preflight import HEAP_PER_PAYLOAD, HEAP_PER_QUEUED
from queuekeeper.migration.spark.session import our_errors, task_memory
from queuekeeper.postgres import connect
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_client import facts
from queuekeeper.sessions.pages import Layout
from tests.append_only import finished_sessions_that_lack_something
from tests.conftest import REDIS_FLAVOURS, nightly
from tests.patience import PATIENCE_S
from tests.spark.world import PARAMETERS, World


def _with(url: str, *, password: str | None = None, port: int | None = None) -> str:
    parts = urlsplit(url)
    user = parts.username or ""
    netloc = f"{user}:{password or parts.password}@{parts.hostname}:{port or parts.port}"
    return urlunsplit(parts._replace(netloc=netloc))


@pytest.fixture(scope="module")
def healthy(make_world: Callable[..., World], healthy_template: str) -> World:
    return make_world(template=healthy_template)


def _refused(
    world: World, error: type[QueuekeeperError], words: str, parameters: MigrationParameters = PARAMETERS
) -> None:
    """See a plan refused, and that neither server has noticed anything."""
    with pytest.raises(error, match=words):
        world.plan(parameters)
    assert world.contents() == {}
    row = world.connection.execute("SELECT to_regnamespace('queuekeeper')").fetchone()
    assert row == (None,)


def test_wishes_that_cannot_be_met_are_named() -> None:
    with pytest.raises(UsageError, match="limit is 65536: it must be an integer from 1 to 65,535"):
        MigrationParameters(limit=65_536)
    with pytest.raises(UsageError, match="default_ttl_s is 0: it must be an integer from 1 to 4,294,967,295"):
        MigrationParameters(default_ttl_s=0)


def test_wish_for_bad_rows_is_part_of_the_plan_and_fits_its_mode() -> None:
    with pytest.raises(UsageError, match="bad_rows is 'drop': it must be quarantine or leave"):
        MigrationParameters(bad_rows="drop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bad_rows is 'leave', and the mode is offline: PostgreSQL serves no client"):
        MigrationParameters(bad_rows=BadRows.LEAVE)
    plans = {
        plan_id(
            parameters=MigrationParameters(mode=Mode.ONLINE, bad_rows=each), source_fingerprint="same", version="same"
        )
        for each in BadRows
    }
    assert len(plans) == len(BadRows)


def test_redis_that_is_down_is_named(healthy: World) -> None:
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1"):
        replace(healthy, redis_url=_with(healthy.redis_url, port=1)).plan()
    _refused(replace(healthy, postgres_url=_with(healthy.postgres_url, port=1)), ServerUnavailable, r"127\.0\.0\.1:1")


def test_wrong_passwords_are_named_but_not_shown(healthy: World) -> None:
    for changed in (
        replace(healthy, redis_url=_with(healthy.redis_url, password="open-sesame")),
        replace(healthy, postgres_url=_with(healthy.postgres_url, password="open-sesame")),
    ):
        with pytest.raises(ServerUnavailable, match="password") as raised:
            changed.plan()
        assert "open-sesame" not in str(raised.value)
    assert healthy.contents() == {}


def test_database_without_the_vendors_tables_is_named(healthy: World, clone: Callable[[str], str]) -> None:
    url = clone("template0")
    _refused(replace(healthy, postgres_url=url), SchemaMismatch, "lacks device_publish_msg and device_session_ctx")
    with postgres.connect(url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        connection.execute("ALTER TABLE device_publish_msg DROP COLUMN content_type")
    _refused(replace(healthy, postgres_url=url), SchemaMismatch, r"lacks column content_type, which TBMQ 1\.2\.1 added")


def test_cohort_that_does_not_exist_is_named(healthy: World) -> None:
    wishes = replace(PARAMETERS, cohorts="3,12")
    _refused(healthy, UsageError, "cohort 12 is out of range: this plan has cohorts 0 to 11", wishes)


def test_redis_that_may_evict_is_refused(healthy: World) -> None:
    client: Any = healthy.client
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        _refused(healthy, RefusedError, r"may evict messages \(maxmemory-policy allkeys-lru\): CONFIG SET maxmemory-p")
    finally:
        client.config_set("maxmemory-policy", "noeviction")


def test_too_little_memory_is_on_record_as_a_refusal(
    make_world: Callable[..., World], healthy_template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(template=healthy_template)
    client: Any = world.client
    client.config_set("maxmemory", facts(world.client)[0].used_memory_bytes + 500_000)
    with pytest.raises(RefusedError, match=r"too little memory: .* CONFIG SET maxmemory \d+"):
        world.plan(run_id="tight")
    assert world.contents() == {}
    plan = world.ledger.load_plan(world.ledger.plan_of_run("tight"))
    assert plan.state is PlanState.REFUSED
    assert "too little memory" in plan.state_reason
    with pytest.raises(RefusedError, match=f"plan {plan.plan_id} was refused: .*too little memory"):
        world.copy(plan.plan_id)

    # Memory was found: the same plan is good now, but for what is risky.
    client.config_set("maxmemory", 0)
    client.config_set("appendonly", "no")
    assert world.plan(run_id="wide").state is PlanState.PLANNED
    assert re.search(r"^warning: Redis at 127\S+ keeps no append-only file, so a crash", capsys.readouterr().out, re.M)
    assert world.ledger.plan_of_run("wide") == plan.plan_id


def test_redis_that_goes_away_at_the_end_of_a_plan_does_not_leave_a_refused_one(
    make_world: Callable[..., World], healthy_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(template=healthy_template)

    def away(*_: object) -> NoReturn:
        raise ServerUnavailable("Redis is away")

    monkeypatch.setattr(preflight, "forecast_by_master", away)
    with pytest.raises(ServerUnavailable, match="Redis is away"):
        world.plan(run_id="away")
    monkeypatch.undo()
    assert list_plans(world.connection) == []
    assert world.plan(run_id="back").state is PlanState.PLANNED


def _large(world: World, payload_bytes: int, *, messages: int = 1) -> None:
    """Give a client of the source messages of a size."""
    world.connection.execute(sql_statements.statement("sessions/vendor_schema"))
    world.connection.execute(
        "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload)"
        " SELECT 'meter-7', n, 't', %s, n, 'PUBLISH', 1, convert_to(repeat('ab', %s), 'UTF8')"
        " FROM generate_series(1, %s) AS n",
        (time.time_ns() // 1_000_000, payload_bytes // 2, messages),
    )


def test_payload_that_sparks_memory_does_not_carry_is_refused_by_plan_and_copy(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    heap_bytes = task_memory(world.spark).heap_bytes
    _large(world, heap_bytes // HEAP_PER_PAYLOAD + 2)
    with pytest.raises(
        RefusedError,
        match=r"the largest payload has [\d,]+ bytes: the .* MiB of Spark's heap carry [\d,]+\. Set spark",
    ):
        world.plan(run_id="large")
    plan = world.ledger.load_plan(world.ledger.plan_of_run("large"))
    assert plan.state is PlanState.REFUSED
    with pytest.raises(RefusedError, match=f"plan {plan.plan_id} was refused: the largest payload has"):
        world.copy(plan.plan_id)
    assert world.contents() == {}

    # Planned where there was more memory than there is for the copy.
    world.ledger.set_plan_state(plan.plan_id, PlanState.PLANNED)
    with pytest.raises(RefusedError, match=r"the largest payload has .* Set spark\.driver\.memory to \d+m"):
        world.copy(plan.plan_id)
    assert world.contents() == {}


# By day: tests/sql/test_preflight.py, and the test above, which goes the same way through plan and copy.
@pytest.mark.nightly
def test_queue_that_sparks_memory_does_not_carry_is_refused_by_plan_and_copy(make_world: Callable[..., World]) -> None:
    world = make_world()
    memory = task_memory(world.spark)
    _large(world, 2**20, messages=memory.heap_bytes // HEAP_PER_QUEUED // 2**20 + 2)
    words = (
        r"the largest queue of a client has [\d,]+ bytes of payloads beside its largest.* Set spark\.driver\.memory to"
    )
    with pytest.raises(RefusedError, match=words):
        world.plan(run_id="long")
    plan = world.ledger.load_plan(world.ledger.plan_of_run("long"))
    assert plan.state is PlanState.REFUSED

    # Planned where there was more memory than there is for the copy.
    world.ledger.set_plan_state(plan.plan_id, PlanState.PLANNED)
    with pytest.raises(RefusedError, match=words):
        world.copy(plan.plan_id)
    assert world.contents() == {}


def test_task_that_runs_out_of_memory_says_what_to_raise() -> None:
    # A real one ends the JVM that all tests share.
    with (
        pytest.raises(RefusedError, match=r"has run out of memory: raise spark\.driver\.memory with a local master"),
        our_errors(),
    ):
        raise PySparkException("Job aborted: Lost task 1.0: java.lang.OutOfMemoryError: Java heap space")


def _refused_for_a_large_payload(world: World) -> str:
    """See a plan refused whose Redis takes no value as large, and return the words."""
    _large(world, 1_000_000)
    with pytest.raises(
        RefusedError, match=r"makes a value of 1,333,\d+ bytes, and Redis at .* takes 1,048,576"
    ) as refused:
        world.plan()
    assert world.contents() == {}
    return str(refused.value)


def test_payload_that_redis_does_not_take_is_refused_by_the_plan(
    make_world: Callable[..., World], redis_server_factory: Callable[..., RedisServer]
) -> None:
    world = make_world(target=redis_server_factory(proto_max_bulk_len=2**20).url)
    assert ": CONFIG SET proto-max-bulk-len 1333" in _refused_for_a_large_payload(world)


# That a server with this remedy takes such a value: tests/sql/test_preflight.py.
@pytest.mark.nightly
def test_payload_that_redis_does_not_take_is_copied_by_the_remedy_of_its_refusal(
    make_world: Callable[..., World], redis_server_factory: Callable[..., RedisServer]
) -> None:
    world = make_world(target=redis_server_factory(proto_max_bulk_len=2**20).url)
    client: Any = world.client
    words = _refused_for_a_large_payload(world)

    client.config_set(*words.split(": CONFIG SET ")[1].partition(",")[0].split())
    plan = world.plan()
    assert world.copy(plan.plan_id).messages_written == 1
    assert world.verify(plan.plan_id).balanced


def _planned_for_another_redis(
    make_world: Callable[..., World], redis_server_factory: Callable[..., RedisServer]
) -> tuple[World, MigrationPlan, World]:
    """Plan a large payload, and return the same world with a target that takes only smaller ones."""
    world = make_world()
    _large(world, 1_000_000)
    other = replace(world, redis_url=redis_server_factory(proto_max_bulk_len=2**20).url)
    return world, world.plan(), other


def test_payload_that_another_redis_than_the_plans_does_not_take_is_refused_by_the_copy(
    make_world: Callable[..., World], redis_server_factory: Callable[..., RedisServer]
) -> None:
    world, plan, other = _planned_for_another_redis(make_world, redis_server_factory)
    with connect_redis(other.redis_url) as client:
        target: Any = client
        with pytest.raises(RefusedError, match=r"makes a value of 1,333,\d+ bytes, and Redis at .* takes 1,048,576"):
            other.copy(plan.plan_id)
        assert (target.dbsize(), world.ledger.load_plan(plan.plan_id).state) == (0, PlanState.PLANNED)


# By day: tests/sql/test_preflight.py.
@pytest.mark.nightly
def test_payload_that_a_plan_trims_is_in_nobodys_way_and_another_goes_in_by_the_remedy_of_its_refusal(
    make_world: Callable[..., World], redis_server_factory: Callable[..., RedisServer]
) -> None:
    world, plan, other = _planned_for_another_redis(make_world, redis_server_factory)
    with connect_redis(other.redis_url) as client:
        target: Any = client
        with pytest.raises(RefusedError, match="makes a value of") as refused:
            other.copy(plan.plan_id)

        world.connection.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) SELECT client_id, 2, topic, time, 2, packet_type, qos, 'newer' FROM device_publish_msg"
        )
        newest = world.plan(MigrationParameters(limit=1))
        assert newest.total("trimmed") == 1
        assert other.copy(newest.plan_id).messages_written == 1

        target.flushall()
        target.config_set(*str(refused.value).split(": CONFIG SET ")[1].partition(",")[0].split())
        assert other.copy(world.plan().plan_id).messages_written == 2


def test_row_that_comes_while_a_copy_starts_makes_its_plan_stale(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    client: Any = world.client
    plan = world.plan()
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND state = 'idle' AND clock_timestamp() - state_change > interval '0.2 s'"
    )
    client.client_pause(1_500)  # milliseconds, for which the copy cannot look at its target
    with ThreadPoolExecutor(1) as threads:
        copy = threads.submit(world.copy, plan.plan_id)
        while not copy.done() and world.connection.execute(waits).fetchone() == (0,):
            time.sleep(0.01)
        world.connection.execute("INSERT INTO device_session_ctx VALUES ('late', 0, 1, 1)")
        with pytest.raises(StalePlan, match=r"the source has changed since plan .* stop the broker"):
            copy.result()
    assert world.contents() == {}


def test_cohorts_that_another_copy_holds_are_not_copied(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    plan = world.plan()
    with (
        connect(world.postgres_url, autocommit=True) as connection,
        MigrationLedger(connection).copy_lock(plan.plan_id, [3]),
        pytest.raises(RefusedError, match=rf"another copy of plan {plan.plan_id} is running \(backend \d+, started"),
    ):
        world.copy(plan.plan_id, "2-3")
    assert world.contents() == {}
    assert world.copy(plan.plan_id, "2-3").messages_written > 0


def test_too_many_bad_rows_refuse_plan_and_copy(make_world: Callable[..., World], hostile_template: str) -> None:
    world = make_world(template=hostile_template)
    with pytest.raises(
        RefusedError, match=r"messages \(\d\.\d\d %\) would be quarantined, more than the cap of 0\.1 %"
    ):
        world.plan(replace(PARAMETERS, quarantine_cap_percent=0.1), run_id="strict")
    plan = world.ledger.load_plan(world.ledger.plan_of_run("strict"))
    assert plan.state is PlanState.REFUSED
    assert len(world.ledger.quarantined(plan.plan_id, limit=None)) >= plan.total("quarantined")
    with pytest.raises(RefusedError, match=f"plan {plan.plan_id} was refused: .*more than the cap"):
        world.copy(plan.plan_id)
    assert world.contents() == {}


# Sessions without messages are also among those of tests/spark/test_migration.py.
@pytest.mark.parametrize("sessions", [0, *nightly(3)], ids=["empty", "only sessions"])
def test_source_without_messages_migrates(make_world: Callable[..., World], sessions: int) -> None:
    world = make_world()
    world.connection.execute(sql_statements.statement("sessions/vendor_schema"))
    for number in range(sessions):
        world.connection.execute("INSERT INTO device_session_ctx VALUES (%s, 0, 5, %s)", (f"idle-{number}", number))
    plan = world.plan()
    assert (plan.total("messages"), plan.total("sessions")) == (0, sessions)
    assert world.copy(plan.plan_id).sessions_written == sessions
    report = world.verify(plan.plan_id)
    assert report.balanced
    assert sum(row.sessions_copied for row in report.ledger) == sessions
    client: Any = world.client
    counters = [client.get(session_keys(f"idle-{number}").last_packet_id) for number in range(sessions)]
    assert counters == [None, b"1", b"2"][:sessions]


# Both layouts are written by one loop of the copy, by scripts that a full server refuses as a whole.
@pytest.mark.parametrize(
    ("layout", "keys"), [(Layout.TBMQ, 300), pytest.param(Layout.PACKED, 20, marks=pytest.mark.nightly)]
)
def test_full_redis_stops_the_copy_without_damage_and_it_goes_on_afterwards(
    spark: SparkSession,
    make_world: Callable[..., World],
    healthy_template: str,
    redis_server_factory: Callable[..., RedisServer],
    layout: Layout,
    keys: int,
) -> None:
    world = make_world(template=healthy_template, target=redis_server_factory().url)
    client: Any = world.client
    # Slow enough that the server fills up while most is still to come.
    plan = world.plan(replace(PARAMETERS, throttle_messages_per_s=2_000, layout=layout))

    def fill_up() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while client.dbsize() < keys and time.monotonic() < deadline:
            time.sleep(0.001)
        client.config_set("maxmemory", "1mb")

    watcher = threading.Thread(target=fill_up)
    watcher.start()
    with pytest.raises(StoreFull, match="maxmemory"):
        world.copy(plan.plan_id)
    watcher.join()

    stored, referred = _stored(world)
    assert referred == stored
    assert 0 < len(stored) < plan.total("to_copy")
    assert finished_sessions_that_lack_something(client) == []

    client.config_set("maxmemory", 0)
    world.ledger.set_throttle(plan.plan_id, None)
    world.copy(plan.plan_id)
    assert world.verify(plan.plan_id).balanced
    assert len(_stored(world)[0]) == plan.total("to_copy")


def _stored(world: World) -> tuple[set[Any], set[Any]]:
    """Return the messages that a target holds, and those to which it refers; a packed session needs no references."""
    contents = world.contents()
    packed = {(key, name) for key in contents if key.endswith(b"_packed") for name in contents[key][0]}
    packed = {(key, name) for key, name in packed if name.isdigit()}
    stored = {key for key in contents if b"}_messages_" in key}
    references = {member for key in contents if key.endswith(b"_messages") for member, _ in contents[key][0]}
    return stored | packed, references | packed


# The report of the migration in tests/integration/test_cli.py has the forecast's error.
@pytest.mark.nightly
@pytest.mark.parametrize("flavour", REDIS_FLAVOURS)
def test_forecast_is_close_to_the_memory_that_is_used(
    make_world: Callable[..., World], healthy_template: str, flavour: str
) -> None:
    world = make_world(template=healthy_template, target=flavour)
    plan = world.plan()
    before = facts(world.client)[0].used_memory_bytes
    world.copy(plan.plan_id)
    grown = facts(world.client)[0].used_memory_bytes - before
    assert plan.total("forecast_bytes") == pytest.approx(grown, rel=0.15)


def test_paused_copy_says_so_writes_nothing_and_goes_on(
    spark: SparkSession, make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    plan = world.plan()
    world.ledger.set_paused(plan.plan_id, True)
    seen: list[tuple[str, int]] = []

    def look_and_resume() -> None:
        with connect(world.postgres_url, autocommit=True) as connection:
            ledger = MigrationLedger(connection)
            while not ledger.copy_reports(plan.plan_id):
                time.sleep(0.05)
            client: Any = world.client
            held = migration_status(connection, plan.plan_id, now_ms=system_clock()).held_back
            seen.append((held, client.dbsize()))
            ledger.set_paused(plan.plan_id, False)

    watcher = threading.Thread(target=look_and_resume, daemon=True)
    watcher.start()
    report = world.copy(plan.plan_id)
    watcher.join(timeout=PATIENCE_S)

    assert (report.paused, report.messages_written) == (False, plan.total("to_copy"))
    assert report.cohorts == plan.chosen
    assert seen == [("Paused by a person: queuekeeper run resume lets it go on.", 0)]
    assert world.verify(plan.plan_id).balanced


def test_copy_that_goes_on_looks_at_the_memory_that_is_left_for_what_is_left(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    client: Any = world.client
    plan = world.plan()
    begun = [each for each in plan.cohorts if each.cohort in plan.chosen][: len(plan.chosen) // 2]
    first = world.copy(plan.plan_id, f"{begun[0].cohort}-{begun[-1].cohort}")
    # As a pause leaves it: all have begun, and half of them are there.
    world.ledger.set_cohort_state(plan.plan_id, plan.chosen, CohortState.COPYING)
    there = sum(each.to_copy for each in begun)
    assert sum(world.ledger.copied_messages(plan.plan_id).values()) == first.messages_written == there > 0
    left_bytes = sum(each.forecast_bytes for each in plan.chosen_cohorts) - sum(each.forecast_bytes for each in begun)
    used_bytes = facts(world.client)[0].used_memory_bytes

    client.config_set("maxmemory", int((used_bytes + left_bytes / 2) / 0.9))
    with pytest.raises(RefusedError, match=r"has too little memory: .* CONFIG SET maxmemory \d+, where the host has"):
        world.copy(plan.plan_id)

    # Not for all that was planned once more.
    whole_bytes = sum(each.forecast_bytes for each in plan.chosen_cohorts)
    client.config_set("maxmemory", int((used_bytes + (left_bytes + whole_bytes) / 2) / 0.9))
    world.copy(plan.plan_id)
    assert world.verify(plan.plan_id).balanced


def test_copy_that_has_waited_for_the_end_of_a_pause_looks_at_memory_before_it_goes_on(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    client: Any = world.client
    plan = world.plan()
    world.ledger.set_paused(plan.plan_id, True)
    with ThreadPoolExecutor(1) as threads:
        copy = threads.submit(world.copy, plan.plan_id)
        while not copy.done() and not world.ledger.copy_reports(plan.plan_id):
            time.sleep(0.05)
        # Others have filled it meanwhile.
        forecast_bytes = sum(each.forecast_bytes for each in plan.chosen_cohorts)
        client.config_set("maxmemory", facts(world.client)[0].used_memory_bytes + forecast_bytes // 2)
        world.ledger.set_paused(plan.plan_id, False)
        with pytest.raises(RefusedError, match=r"has too little memory: .* CONFIG SET maxmemory \d+"):
            copy.result()
    assert client.dbsize() == 0


def test_copy_that_gives_way_ends_at_a_pause_with_what_is_done_on_record_and_goes_on_with_the_rest(
    spark: SparkSession, make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    plan = world.plan(replace(PARAMETERS, throttle_messages_per_s=100))  # 23 seconds in all
    ledger, chosen = world.ledger, plan.plan_id

    def pause() -> None:
        with connect(world.postgres_url, autocommit=True) as connection:
            looking = MigrationLedger(connection)
            while not looking.progress(chosen, "copy").done:
                time.sleep(0.02)
            looking.set_paused(chosen, True)
            # The sessions that are begun are ended, as fast as it goes.
            looking.set_throttle(chosen, None)

    watcher = threading.Thread(target=pause, daemon=True)
    watcher.start()
    begun = world.copy(chosen, gives_way=True)
    watcher.join(timeout=PATIENCE_S)
    stored = sum(b"}_messages_" in key for key in world.contents())
    assert begun.paused
    assert begun.messages_written == stored
    assert 0 < stored < plan.total("to_copy")
    assert CohortState.COPYING in ledger.cohort_states(chosen).values()
    assert ledger.load_plan(chosen).state is PlanState.COPYING
    # What is told while it is paused is told of whole tasks.
    assert ledger.progress(chosen, "copy").done < plan.total("to_copy")

    again = world.copy(chosen, gives_way=True, only_missing=True)
    assert (again.paused, again.messages_written) == (True, 0)

    ledger.set_paused(chosen, False)
    first, second, *others = ledger.cohort_states(chosen)
    ledger.set_cohort_state(chosen, [first], CohortState.COPIED)
    ledger.set_cohort_state(chosen, [second], CohortState.VERIFIED)
    rest = world.copy(chosen, gives_way=True, only_missing=True)
    assert not rest.paused
    assert rest.cohorts == tuple(others)
    world.copy(chosen, f"{first},{second}")
    assert sum(each.messages_written for each in ledger.copy_reports(chosen)) == plan.total("to_copy")
    assert ledger.load_plan(chosen).state is PlanState.COPIED
    assert world.verify(chosen).balanced
