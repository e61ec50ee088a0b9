"""Profiles on record: the rows are those that the reader finds, sums agree with them, and a repeat changes nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy2
from typing import Any

import pyarrow.parquet
import pytest
from lua_sessions import now_ms
from planted_queues import (
    HEALTHY,
    HEALTHY_PACKED,
    PACKED,
    PARAMETERS,
    PLANTED,
    SHOWN,
    plant,
    plant_healthy,
    plant_healthy_packed,
    profiled,
)
from pyspark.sql import SparkSession

from queuekeeper import schema_migrations, sql_statements
from queuekeeper.embedded.redis_server import RedisCluster
from queuekeeper.errors import UnreadableSnapshot, UsageError
from queuekeeper.identity import client_hash
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.keyspace import SLOTS, client_slot
from queuekeeper.maintenance.remedies.model import Selection
from queuekeeper.maintenance.remedies.queues import failed_queues
from queuekeeper.migration.spark.job import Environment
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.run import QualityReport, run_quality
from queuekeeper.quality.profile.model import (
    ProfileParameters,
    ProfilePlace,
    ProfileReport,
    SnapshotWish,
    in_sample,
)
from queuekeeper.quality.profile.stores import profile_postgres, profile_redis, profile_snapshot
from queuekeeper.redis_client import nodes
from queuekeeper.sessions.pages import Layout
from tests.conftest import nightly
from tests.spark.world import World

pytestmark = pytest.mark.usefixtures("compiling")

KEY = b"a key of tests"
CONTENTS = replace(PARAMETERS, contents=True)
ROOT = Path(__file__).parents[2]


def _profile(world: World, parameters: ProfileParameters, **options: Any) -> ProfileReport:
    return profile_redis(
        world.spark, redis_url=world.redis_url, postgres_url=world.postgres_url, parameters=parameters,
        now_ms=now_ms(), key=KEY, **options,
    )  # fmt: skip


def _judged(world: World, profile_id: str, *, quality_run_id: str) -> QualityReport:
    return run_quality(
        postgres_url=world.postgres_url, redis_url=world.redis_url, profile_ids=[profile_id],
        suites=["sessions_redis"], quality_run_id=quality_run_id, now=datetime.now(UTC), show_client_ids=True,
    )  # fmt: skip


def _rows(connection: Connection, profile_id: str) -> dict[str, dict[str, Any]]:
    cursor = connection.execute("SELECT * FROM queuekeeper.queue_profiles WHERE profile_id = %s", (profile_id,))
    names = [column.name for column in cursor.description or ()]
    return {row["client_id"]: row for values in cursor if (row := dict(zip(names, values, strict=True)))}


def _bare(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("profile_id", "hours", "client_hash")}


def _sums(world: World, table: str, profile_id: str, *columns: str) -> tuple[Any, ...]:
    sums = ", ".join(f"sum({column})" for column in columns)
    row = world.connection.execute(
        f"SELECT {sums} FROM queuekeeper.{table} WHERE profile_id = %s", (profile_id,)
    ).fetchone()
    assert row is not None
    return row


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    return make_world(planted=True)


def test_profile_of_redis_is_what_the_reader_finds(world: World, tmp_path: Path) -> None:
    report = _profile(world, CONTENTS, profile_id="first", parquet_dir=str(tmp_path))
    expected = profiled(world.client, CONTENTS)
    rows = _rows(world.connection, "first")
    assert {name: _bare(row) for name, row in rows.items()} == {name: _bare(row) for name, row in expected.items()}
    assert {row["client_hash"] for row in rows.values()} == {client_hash(name, key=KEY) for name in rows}

    messages, live = (sum(row[name] for row in expected.values()) for name in ("messages", "live"))
    harmless = {"dead references", "idle session", "gap", "same message twice"}
    assert report == replace(
        report,
        queues=len(PLANTED) + len(HEALTHY),
        messages=messages,
        live=live,
        faulty_queues=len(PLANTED) - len(harmless),
    )
    assert _sums(world, "cohort_profiles", "first", "queues", "messages", "live", "faulty_queues") == (
        report.queues, messages, live, report.faulty_queues,
    )  # fmt: skip
    hours = [hour for row in expected.values() for hour in row["hours"] or ()]
    assert _sums(world, "expiry_hours", "first", "messages", "payload_bytes") == (
        sum(hour["messages"] for hour in hours),
        sum(hour["payload_bytes"] for hour in hours),
    )
    (kept,) = world.connection.execute(
        "SELECT contents, cohort_count, cardinality(cohorts), queues, finished_at IS NOT NULL FROM queuekeeper.profiles"
    ).fetchall()
    assert kept == (True, 12, 12, report.queues, True)
    table = pyarrow.parquet.read_table(str(report.parquet))
    assert {row["client_id"]: _bare(row) for row in table.to_pylist()} == {
        name: _bare(row) for name, row in rows.items()
    }

    # Again under the same name: the same rows. Under another one: only the newest keeps its rows, all keep their sums.
    assert replace(_profile(world, CONTENTS, profile_id="first"), seconds=0) == replace(report, seconds=0, parquet=None)
    assert _rows(world.connection, "first") == rows
    assert _profile(world, replace(CONTENTS, keep_profiles=1), profile_id="second").queues == report.queues
    assert _rows(world.connection, "first") == {}
    assert _sums(world, "cohort_profiles", "first", "queues") == (report.queues,)


def _by_job(world: World, *models: Parameters, redis_url: str) -> ProfileReport:
    """Profile as the Spark job does."""
    spec = importlib.util.spec_from_file_location("profile_queues", ROOT / "spark_jobs" / "profile_queues.py")
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)

    class Running(Environment):
        def spark(self, name: str) -> SparkSession:
            return world.spark

    report: ProfileReport = job._profile(Running(postgres_url=world.postgres_url, redis_url=redis_url), *models)
    return report


def test_fast_profile_reads_the_cohorts_of_its_turn(world: World) -> None:
    turn = client_slot("saved") * 96 // 16_384
    result = _by_job(
        world,
        ProfilePlace(store="redis", profile_id="fast"),
        SnapshotWish(),
        ProfileParameters(mode="fast", turn=turn),
        redis_url=world.redis_url,
    )
    rows = _rows(world.connection, "fast")
    assert result.cohorts == (turn,)
    assert "saved" in rows
    assert {row["cohort"] for row in rows.values()} == {turn}
    assert all(client_slot(name) * 96 // 16_384 == turn for name in rows)
    assert _bare(rows["saved"]) == _bare(profiled(world.client, ProfileParameters())["saved"])


def test_profile_of_a_cluster_keeps_each_queue_with_its_shard(make_world: Callable[..., World]) -> None:
    world = make_world(target="cluster")
    plant(world.client)
    plant_healthy(world.client)
    report = _profile(world, replace(PARAMETERS, throttle_references_per_s=100_000))
    expected = profiled(world.client)
    rows = _rows(world.connection, report.profile_id)
    assert {name: _bare(row) for name, row in rows.items()} == {name: _bare(row) for name, row in expected.items()}
    assert {row["shard"] for row in rows.values()} == {name for name, _ in nodes(world.client)}


def test_cohort_that_does_not_exist_is_refused_before_anything_is_written(make_world: Callable[..., World]) -> None:
    world = make_world()
    with pytest.raises(UsageError, match="cohort 12 is out of range"):
        _profile(world, replace(PARAMETERS, cohorts="0,12"))
    assert world.connection.execute("SELECT to_regnamespace('queuekeeper')").fetchone() == (None,)


def test_empty_redis_has_an_empty_profile(make_world: Callable[..., World]) -> None:
    report = _profile(make_world(), PARAMETERS)
    assert (report.queues, report.messages, report.faulty_queues) == (0, 0, 0)


@pytest.mark.parametrize("target", [*nightly("redis"), "cluster"])
def test_profile_of_packed_sessions_is_what_the_reader_finds_and_is_judged(
    make_world: Callable[..., World], target: str
) -> None:
    world = make_world(target=target)
    plant(world.client, Layout.PACKED)
    plant_healthy_packed(world.client, prefix="")
    report = _profile(world, PARAMETERS, profile_id="packed")
    rows, expected = _rows(world.connection, "packed"), profiled(world.client)
    assert {name: _bare(row) for name, row in rows.items()} == {name: _bare(row) for name, row in expected.items()}
    assert report.queues == len(PACKED) + len(HEALTHY_PACKED)

    judged = _judged(world, "packed", quality_run_id="q-1")
    checks = {each.check_id for each in judged.results}
    assert not {"Q1", "Q10", "Q13"} & checks
    assert [each.split(" ", 1)[0] for each in judged.senseless] == ["Q1", "Q10", "Q13"]
    assert all("makes no sense for packed sessions: " in each for each in judged.senseless)
    assert judged.not_judged == ("Q21",)
    form = {"quality_run_id": "q-1", "cohorts": "all", "dry_run": True}
    remedies = {"Q5": "quarantine_messages", "Q14": "repair_ttl", "Q38": "repair_state", "Q11": "repair_counter"}
    for check_id, remedy in remedies.items():
        (finding, *_) = [each for each in judged.findings if each.check_id == check_id]
        assert finding.remedy_conf == form | {"remedy": remedy}, finding
    wanted = {name for name, planted in PACKED.items() if planted.found.keys() & {"state_faults", "bad_serials"}}
    failed = failed_queues(world.connection, remedy="repair_state", selection=Selection(quality_run_id="q-1"))
    assert {queue.client_id for queue in failed.queues} == wanted

    # Beside sessions in TBMQ's layout, both are judged, and each check says for which it makes no sense.
    plant_healthy(world.client, prefix="")
    assert _profile(world, PARAMETERS, profile_id="both").queues == report.queues + len(HEALTHY)
    both = _judged(world, "both", quality_run_id="q-2")
    assert [each.split(":", 1)[0] for each in both.senseless] == [
        "Q1 makes no sense for packed sessions",
        "Q5 makes no sense for sessions in TBMQ's layout",
        "Q10 makes no sense for packed sessions",
        "Q13 makes no sense for packed sessions",
        "Q38 makes no sense for sessions in TBMQ's layout",
        "Q39 makes no sense for sessions in TBMQ's layout",
    ]
    assert {"Q1", "Q10", "Q13"} <= {each.check_id for each in both.results if each.passed}
    (twice,) = [each for each in both.findings if each.check_id == "Q39" and each.severity is Severity.CRITICAL]
    assert {each["client_id"] for each in twice.examples} == set(HEALTHY) & set(HEALTHY_PACKED)


# --- PostgreSQL -----------------------------------------------------------------------------------------------


def _third(change: str) -> str:
    return f"UPDATE device_publish_msg SET {change} WHERE client_id = %(id)s AND serial_number = 1003"


def _session(change: str) -> str:
    return f"UPDATE device_session_ctx SET {change} WHERE client_id = %(id)s"


def _more(batches: int) -> str:
    """Add so many times five messages, and move the counter behind them."""
    return (
        "WITH added AS (INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type,"
        " qos, payload) SELECT client_id, serial_number + 5 * n, topic, time, packet_id + 5 * n, packet_type, qos,"
        f" payload || n::text::bytea FROM device_publish_msg, generate_series(1, {batches}) AS n"
        f" WHERE client_id = %(id)s) UPDATE device_session_ctx SET last_packet_id = {5 * batches + 5}"
        " WHERE client_id = %(id)s"
    )


EXPIRED = "time = time - 10000, msg_expiry_interval = 1"
# What is wrong -> changes to a healthy queue of five messages, and what they are found as.
IN_POSTGRES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "more than the limit": ((_more(4),), {"over_limit": 5}),
    "past its expiry": ((_third(EXPIRED),), {"dead": 1}),
    "dead rows crowd": ((_more(3), _third(EXPIRED)), {"dead": 1, "dead_crowding": 1}),
    "negative serial": ((_third("serial_number = -1"),), {"bad_serials": 1, "serial_gaps": 1, "step_errors": 1}),
    "step": ((_third("packet_id = 33"),), {"step_errors": 2}),
    "packet id 0": ((_third("packet_id = 0"),), {"bad_packet_ids": 1}),
    "packet id null": ((_third("packet_id = NULL"),), {"bad_packet_ids": 1}),
    "same packet id": ((_third("packet_id = 2"),), {"duplicate_packet_ids": 2, "step_errors": 2}),
    "no counter": ((_session("last_packet_id = NULL"),), {"counter_missing": 1}),
    "no packet id as counter": ((_session("last_packet_id = 70000"),), {"counter_invalid": 1}),
    "counter lags": ((_session("last_packet_id = 3"),), {"counter_behind": 1}),
    "next packet id is in use": (
        ("UPDATE device_publish_msg SET packet_id = 6 WHERE client_id = %(id)s AND serial_number = 1001",),
        {"counter_behind": 1, "step_errors": 1},
    ),
    "counter behind what lives": (
        (
            "UPDATE device_publish_msg SET packet_id = 9 WHERE client_id = %(id)s AND serial_number = 1004",
            f"UPDATE device_publish_msg SET {EXPIRED} WHERE client_id = %(id)s AND serial_number = 1005",
        ),
        {"counter_behind": 1, "dead": 1, "step_errors": 2},
    ),
    "no session": (
        ("DELETE FROM device_session_ctx WHERE client_id = %(id)s",),
        {"missing_session": 1, "counter_missing": 1},
    ),
    "large": ((_third("payload = convert_to(repeat('x', 2001), 'UTF8')"),), {"oversized": 1}),
    "quality 3": ((_third("qos = 3"),), {"bad_qos": 1}),
    "quality 0": ((_third("qos = 0"),), {"qos_0": 1}),
    "PUBREL of quality 1": ((_third("packet_type = 'PUBREL'"),), {"bad_packet_types": 1}),
    "no packet type": ((_third("packet_type = NULL"),), {"bad_packet_types": 1}),
    "gap": (
        ("DELETE FROM device_publish_msg WHERE client_id = %(id)s AND serial_number = 1003",),
        {"serial_gaps": 1},
    ),
    "no properties": ((_third("user_properties = '[]'"),), {"unreadable": 1}),
    "same twice": ((_third("payload = '2', time = time - 1"),), {"duplicate_messages": 2}),
    "}brace": ((), {"bad_tag": 1}),
    "<b>": ((), {"odd_characters": 1}),
    "healthy": ((), {}),
    # Our own store passes over packet ids that are in use.
    "passed over": (
        (
            "UPDATE device_publish_msg SET packet_id = packet_id + 2 WHERE client_id = %(id)s AND serial_number > 1003",
            _session("last_packet_id = 7"),
            "INSERT INTO queuekeeper.session_states (client_id, known_serial) VALUES (%(id)s, 1005)",
        ),
        {},
    ),
    "in use, passed over": (
        (
            (
                "UPDATE device_publish_msg SET packet_id = ('{4,30000,60000,2,3}'::int[])[serial_number - 1000]"
                " WHERE client_id = %(id)s"
            ),
            _session("last_packet_id = 3"),
            "INSERT INTO queuekeeper.session_states (client_id, known_serial) VALUES (%(id)s, 1005)",
        ),
        {},
    ),
}


def test_profile_of_postgres_sees_each_fault_as_itself(make_world: Callable[..., World]) -> None:
    world = make_world()
    connection = world.connection
    connection.execute(sql_statements.statement("sessions/vendor_schema"))
    schema_migrations.migrate(connection)
    now = now_ms()
    for client_id, (changes, _) in IN_POSTGRES.items():
        connection.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) SELECT %(id)s, 1000 + n, 'plant', %(now)s - 1000 + n, n, 'PUBLISH', 1, n::text::bytea"
            " FROM generate_series(1, 5) AS n",
            {"id": client_id, "now": now},
        )
        connection.execute("INSERT INTO device_session_ctx VALUES (%s, 0, 1005, 5)", (client_id,))
        for change in changes:
            connection.execute(change, {"id": client_id})
    connection.execute("INSERT INTO device_session_ctx VALUES ('idle', 0, 7, 7)")

    report = profile_postgres(
        world.spark, postgres_url=world.postgres_url, parameters=CONTENTS, now_ms=now, profile_id="tables", key=KEY
    )
    rows = _rows(connection, "tables")
    assert rows.keys() == {*IN_POSTGRES, "idle"}
    found = {name: {column: row[column] for column in SHOWN if row[column]} for name, row in rows.items()}
    assert found == {name: dict(faults) for name, (_, faults) in IN_POSTGRES.items()} | {"idle": {}}
    assert {name for name, row in rows.items() if row["next_in_use"]} >= {"in use, passed over"}
    assert (rows["healthy"]["next_in_use"], rows["passed over"]["next_in_use"]) == (0, 0)
    healthy = rows["healthy"]
    assert healthy | {
        "client_hash": client_hash("healthy", key=KEY), "slot": client_slot("healthy"), "messages": 5, "live": 5,
        "lowest_serial": 1_001.0, "highest_serial": 1_005.0, "last_packet_id": 5, "payload_bytes": 5,
        "largest_bytes": 1, "orphans": None, "idle_keys": None, "latest_expires_at_ms": now - 995 + 604_800_000,
    } == healthy  # fmt: skip
    assert report.messages == sum(row["messages"] for row in rows.values())
    harmless = {"past its expiry", "gap", "same twice", "healthy", "passed over", "in use, passed over"}
    assert report.faulty_queues == len(IN_POSTGRES) - len(harmless)
    assert _sums(world, "expiry_hours", "tables", "messages") == (report.live,)

    some = profile_postgres(
        world.spark, postgres_url=world.postgres_url, now_ms=now, profile_id="some", key=KEY,
        parameters=replace(PARAMETERS, cohorts="0-5", sample_percent=60),
    )  # fmt: skip
    half = _rows(connection, "some")
    first_cohorts = {name: row["slot"] for name, row in rows.items() if row["cohort"] < 6}
    assert (
        set(half) == {name for name, slot in first_cohorts.items() if in_sample(slot, percent=60)} < set(first_cohorts)
    )
    assert _sums(world, "expiry_hours", "some", "messages") == (some.live,)
    assert some.queues == len(half)
    assert {row["unreadable"] for row in half.values()} == {None}


def saved(client: Any) -> Path:
    """Have a server write its snapshot and return its place."""
    client.save()
    return Path(client.config_get("dir")["dir"], client.config_get("dbfilename")["dbfilename"])


def test_profile_of_a_snapshot_is_that_of_its_server_and_is_judged_without_one(world: World, tmp_path: Path) -> None:
    path = saved(world.client)
    common: dict[str, Any] = {
        "postgres_url": world.postgres_url, "parameters": CONTENTS, "now_ms": now_ms(), "key": KEY,
    }  # fmt: skip
    live = profile_redis(world.spark, redis_url=world.redis_url, profile_id="of the server", **common)
    found = profile_snapshot(
        world.spark, paths=[path], profile_id="of the snapshot", parquet_dir=str(tmp_path), **common
    )

    assert replace(found, profile_id=live.profile_id, seconds=live.seconds, parquet=None) == live
    places = {"shard": path.name}
    rows, expected = (_rows(world.connection, each.profile_id) for each in (found, live))
    assert {name: _bare(row) for name, row in rows.items()} == {
        name: _bare(row) | places for name, row in expected.items()
    }
    hours = "messages", "payload_bytes"
    assert _sums(world, "expiry_hours", "of the snapshot", *hours) == _sums(
        world, "expiry_hours", "of the server", *hours
    )
    (target,) = world.connection.execute(
        "SELECT target FROM queuekeeper.profiles WHERE profile_id = 'of the snapshot'"
    ).fetchall()
    assert target == (f"rdb:{path}/0",)

    judged = run_quality(
        postgres_url=world.postgres_url, profile_ids=["of the snapshot"], suites=["sessions_redis"],
        quality_run_id="of the snapshot", now=datetime.now(UTC),
    )  # fmt: skip
    of_the_server = _judged(world, "of the server", quality_run_id="of the server")
    outcomes = [
        [(each.check_id, each.status, each.unexpected_count) for each in run.results] for run in (judged, of_the_server)
    ]
    assert outcomes[0] == outcomes[1]
    assert judged.findings


def test_profile_of_the_files_of_a_clusters_masters_is_that_of_the_cluster(
    make_world: Callable[..., World], redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    world = make_world(target="cluster", planted=True)
    paths = []
    for number, node in enumerate(redis_cluster.nodes):
        with node.client() as client:
            paths.append(Path(copy2(saved(client), tmp_path / f"master-{number}.rdb")))
    common: dict[str, Any] = {
        "postgres_url": world.postgres_url, "parameters": CONTENTS, "now_ms": now_ms(), "key": KEY,
    }  # fmt: skip
    profile_redis(world.spark, redis_url=world.redis_url, profile_id="of the cluster", **common)
    profile_snapshot(world.spark, paths=paths[::-1], profile_id="of the files", **common)

    rows, expected = (_rows(world.connection, each) for each in ("of the files", "of the cluster"))
    assert {row.pop("shard") for row in rows.values()} == {"master-0.rdb, master-1.rdb, master-2.rdb"}
    for row in (*rows.values(), *expected.values()):
        # A cluster's cohorts end where a master's slots do.
        row.pop("cohort")
    expected = {name: {column: row[column] for column in rows[name]} for name, row in expected.items()}
    assert {name: _bare(row) for name, row in rows.items()} == {name: _bare(row) for name, row in expected.items()}
    assert {row["slot"] * 3 // SLOTS for row in rows.values()} == {0, 1, 2}

    replica = Path(copy2(paths[1], tmp_path / "replica.rdb"))
    with pytest.raises(UsageError, match=r"master-1\.rdb and .*replica\.rdb both have keys of slot"):
        profile_snapshot(world.spark, paths=[*paths, replica], profile_id="of too many files", **common)


def test_job_reads_a_snapshot_instead_of_a_server(world: World) -> None:
    path = saved(world.client)
    files = SnapshotWish(rdb=(str(path),), rdb_as_of=datetime.now(UTC).isoformat())
    place = ProfilePlace(store="redis", profile_id="by the job")

    report = _by_job(world, place, files, PARAMETERS, redis_url="redis://127.0.0.1:1")

    assert report.queues == len(_rows(world.connection, "by the job")) > 0
    assert _rows(world.connection, "by the job").keys() == profiled(world.client).keys()
    with pytest.raises(UsageError, match="rdb is read instead of Redis, which is not among the chosen"):
        _by_job(world, replace(place, store="postgres"), files, PARAMETERS, redis_url="")


def test_a_damaged_snapshot_leaves_no_profile(world: World, tmp_path: Path) -> None:
    whole = saved(world.client).read_bytes()
    path = tmp_path / "cut.rdb"
    path.write_bytes(whole[:-20])
    with pytest.raises(UnreadableSnapshot, match=r"cut\.rdb ends after"):
        profile_snapshot(
            world.spark, paths=[path], postgres_url=world.postgres_url, parameters=CONTENTS, now_ms=now_ms(),
            profile_id="damaged", key=KEY,
        )  # fmt: skip
    row = world.connection.execute(
        "SELECT finished_at FROM queuekeeper.profiles WHERE profile_id = 'damaged'"
    ).fetchone()
    assert row == (None,)
