"""Profiles stores with Spark: one row per queue with the numbers that checks need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel
from pyspark.taskcontext import TaskContext

from queuekeeper import keyspace, lua
from queuekeeper.clock import Pace
from queuekeeper.config import Settings
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.shared_bucket import SharedBucket
from queuekeeper.migration.offline.source import Layout, layout, open_source
from queuekeeper.migration.spark.parquet import replace_parquet
from queuekeeper.migration.spark.session import our_errors, set_task_count
from queuekeeper.postgres import Connection, address, translated_errors
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.quality.profile import postgres_queues, scan, snapshot_scan
from queuekeeper.quality.profile.model import (
    PROFILES,
    SNAPSHOT,
    TURNS,
    ProfileParameters,
    ProfileReport,
    SnapshotWish,
    Store,
    in_sample,
    profile_folder,
)
from queuekeeper.quality.profile.preflight import check_profiled, check_profiled_source
from queuekeeper.quality.profile.queue_reader import QueueReader
from queuekeeper.quality.profile.servers import redis_target
from queuekeeper.quality.profile.tables import HOURS, SPARK_HOURS, SPARK_ROWS, ProfileTables
from queuekeeper.rdb.files import SnapshotFiles, files_at
from queuekeeper.rdb.snapshot import Snapshot
from queuekeeper.redis_client import RedisClient, clocks_ms, count_keys, is_cluster, shards
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_names import masters
from queuekeeper.schema_migrations import migrate
from queuekeeper.sql_statements import statement

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """Settings of one profile, the same for both stores."""

    spark: SparkSession
    profile_id: str
    store: Store
    parameters: ProfileParameters
    postgres_url: str
    parquet_dir: str | None
    hash_key: bytes
    cohorts: tuple[keyspace.Cohort, ...]
    wanted: tuple[int, ...]

    @property
    def shards(self) -> tuple[str, ...]:
        """Address of the server of each cohort."""
        return tuple(cohort.shard for cohort in self.cohorts)


@dataclass(frozen=True, kw_only=True)
class _Sessions:
    """Sessions of a Redis, on a server or in its snapshot.

    :ivar shards: see :func:`queuekeeper.keyspace.cohorts`.
    :ivar queues: returns what :func:`_record` takes as ``found`` and ``read``.
    """

    target: str
    shards: list[tuple[int, int, str]]
    as_of_ms: int
    key_count: int
    queues: Callable[[_Profile, Layout], tuple[DataFrame, Callable[[Batches], Batches]]]


def profile(spark: SparkSession, *, store: str, snapshot: SnapshotWish, redis_url: str, **read: Any) -> ProfileReport:
    """Read the queues of a store and record one row per queue.

    :param snapshot: RDB files that are read instead of Redis.
    :param redis_url: empty for PostgreSQL, and for RDB files.
    :param read: see :func:`profile_redis`.
    """
    if store == "postgres":
        return profile_postgres(spark, **read)
    if not snapshot.rdb:
        return profile_redis(spark, redis_url=redis_url, **read)
    paths = [Path(path) for path in snapshot.rdb]
    return profile_snapshot(spark, paths=paths, as_of_ms=snapshot.as_of_ms, database=snapshot.rdb_database, **read)


def profile_redis(
    spark: SparkSession,
    *,
    redis_url: str,
    postgres_url: str,
    parameters: ProfileParameters,
    now_ms: int,
    profile_id: str | None = None,
    parquet_dir: str | None = None,
    key: bytes | None = None,
) -> ProfileReport:
    """Read the queues of a Redis and record one row per queue; nothing is written to Redis.

    One task per master scans the slots that the master has at the start, even if they move. The clients it finds are
    grouped, and tasks of several cohorts each, never of two masters, read them with scripts.

    :param postgres_url: address of the control database.
    :param now_ms: instant of the profile, from which its id is made if none is given.
    :param profile_id: id of the profile; an earlier profile of this id is replaced.
    :param parquet_dir: folder for the rows as Parquet, which go into a subfolder named by the profile's id.
    :param key: key of the client hashes in reports; ``None`` takes the installation's.
    :raises UsageError: when no slot of the chosen cohorts is in the sample.
    :raises RefusedError: when the server is not fit, or a permission is missing; the message has the rule to grant it.
    """
    started = time.monotonic()
    with connect_redis(redis_url) as client, connect_postgres(postgres_url, autocommit=True) as connection:
        check_profiled(client, parameters=parameters)
        sessions = _Sessions(
            target=redis_target(client, redis_url=redis_url, key_prefix=parameters.key_prefix),
            shards=shards(client),
            as_of_ms=max(clocks_ms(client)),
            key_count=count_keys(client),
            queues=partial(_redis_queues, redis_url=redis_url, held=_held(client), is_cluster=is_cluster(client)),
        )
        return _profile_sessions(
            spark, connection, sessions, parameters=parameters, postgres_url=postgres_url, now_ms=now_ms,
            profile_id=profile_id, parquet_dir=parquet_dir, key=key, started=started,
        )  # fmt: skip


def profile_snapshot(
    spark: SparkSession,
    *,
    paths: Sequence[Path],
    postgres_url: str,
    parameters: ProfileParameters,
    now_ms: int,
    as_of_ms: int | None = None,
    database: int = 0,
    profile_id: str | None = None,
    parquet_dir: str | None = None,
    key: bytes | None = None,
) -> ProfileReport:
    """Read the queues of a Redis from its RDB files and record one row per queue, as :func:`profile_redis` does.

    One task reads each file, and tasks of several cohorts each judge what was found. No server is asked anything.
    The other parameters are those of :func:`profile_redis`.

    :param paths: RDB file of a server, or one of each master of a cluster; all workers must reach them by these names.
    :param as_of_ms: instant at which a message is live or expired; ``None`` takes that at which the last file was
        begun.
    :param database: logical database that holds the queues.
    :raises UnreadableSnapshot: when a file is damaged, cut off, or holds something unknown.
    :raises UsageError: when there is no such file, two files are not of one cluster or hold the same slot, or no file
        says when it was written.
    """
    started = time.monotonic()
    files = files_at(paths)
    instant_ms = files.as_of_ms if as_of_ms is None else as_of_ms
    if instant_ms is None:
        raise UsageError(
            f"{files.paths[0]} does not say when it was written: say by rdb_as_of at which instant messages are live"
        )
    sessions = _Sessions(
        target=f"{SNAPSHOT}{','.join(map(str, files.paths))}/{database} {parameters.key_prefix}".rstrip(),
        shards=[(0, keyspace.SLOTS - 1, ", ".join(path.name for path in files.paths))],
        as_of_ms=instant_ms,
        key_count=files.key_count,
        queues=partial(_snapshot_queues, files=files, database=database, now_ms=instant_ms),
    )
    with connect_postgres(postgres_url, autocommit=True) as connection:
        return _profile_sessions(
            spark, connection, sessions, parameters=parameters, postgres_url=postgres_url, now_ms=now_ms,
            profile_id=profile_id, parquet_dir=parquet_dir, key=key, started=started,
        )  # fmt: skip


def profile_postgres(
    spark: SparkSession,
    *,
    postgres_url: str,
    parameters: ProfileParameters,
    now_ms: int,
    profile_id: str | None = None,
    parquet_dir: str | None = None,
    key: bytes | None = None,
) -> ProfileReport:
    """Read the queues of TBMQ's tables in one snapshot and record one row per queue.

    A user who may not read payloads gets their sizes from a function of ``queuekeeper acl postgres``; then contents
    cannot be judged. The other parameters and errors are those of :func:`profile_redis`.

    :param postgres_url: address of the database that holds the tables and the control schema.
    :param now_ms: instant at which a message is live or expired.
    """
    started = time.monotonic()
    with connect_postgres(postgres_url, autocommit=True) as connection:
        facts_only = not check_profiled_source(connection, contents=parameters.contents)
        whole = [(0, keyspace.SLOTS - 1, address(connection))]
        profile = _begin(
            spark, connection, cohorts=keyspace.cohorts(count=parameters.cohort_count, shards=whole), store="postgres",
            parameters=parameters, postgres_url=postgres_url, now_ms=now_ms, as_of_ms=now_ms, profile_id=profile_id,
            parquet_dir=parquet_dir, key=key, target=address(connection),
        )  # fmt: skip
        with translated_errors(connection):
            found = connection.execute(statement("migration/count_messages")).fetchone()
        assert found is not None
        placement = layout(
            cohorts=profile.cohorts, wanted=profile.wanted, tasks=set_task_count(spark, rows=int(found[0]))
        )
        with open_source(spark, postgres_url=postgres_url, placement=placement) as source:
            queues = postgres_queues.queues(
                source, parameters=parameters, as_of_ms=now_ms, shards=profile.shards, facts_only=facts_only
            )
            hours = postgres_queues.hours(source, parameters=parameters, as_of_ms=now_ms, facts_only=facts_only)
            return _record(
                connection, profile, placement=placement, found=queues, read=_named(profile), hours=hours,
                started=started,
            )  # fmt: skip


# --- both stores ----------------------------------------------------------------------------------------------


def _begin(
    spark: SparkSession,
    connection: Connection,
    *,
    cohorts: Sequence[keyspace.Cohort],
    store: Store,
    target: str,
    parameters: ProfileParameters,
    postgres_url: str,
    now_ms: int,
    as_of_ms: int,
    profile_id: str | None,
    parquet_dir: str | None,
    key: bytes | None,
) -> _Profile:
    chosen = keyspace.parse_cohorts(parameters.cohorts, count=len(cohorts))
    if parameters.mode == "fast":
        chosen = [cohort for place, cohort in enumerate(chosen) if place % TURNS == parameters.turn]
    slots = (slot for number in chosen for slot in range(cohorts[number].slot_first, cohorts[number].slot_last + 1))
    if not any(in_sample(slot, percent=parameters.sample_percent) for slot in slots):
        raise UsageError(
            f"no slot of the chosen cohorts is in a sample of {parameters.sample_percent} %: choose a larger one"
        )
    profile = _Profile(
        spark=spark,
        profile_id=profile_id or parameters.profile_id(store, now_ms=now_ms),
        store=store,
        parameters=parameters,
        postgres_url=postgres_url,
        parquet_dir=parquet_dir,
        hash_key=key or hash_key(Settings()),
        cohorts=tuple(cohorts),
        wanted=tuple(chosen),
    )
    migrate(connection)
    ProfileTables(connection).begin(
        profile.profile_id, store=store, target=target, parameters=parameters, cohorts=chosen, as_of_ms=as_of_ms
    )
    return profile


def _record(
    connection: Connection,
    profile: _Profile,
    *,
    started: float,
    placement: Layout,
    found: DataFrame,
    read: Callable[[Batches], Batches],
    hours: DataFrame | None = None,
) -> ProfileReport:
    """Write the rows in the tasks that compute them, then the sums.

    :param found: clients to read, partitioned by task.
    :param read: makes columns of :data:`queuekeeper.quality.profile.tables.ROWS` of them, in a task.
    :param hours: when messages expire, if the rows do not say it.
    """
    parquet = f"{profile.parquet_dir}/{profile.profile_id}" if profile.parquet_dir else None
    postgres_url, profile_id, groups = profile.postgres_url, profile.profile_id, placement.groups

    def store(batches: Batches) -> Batches:
        yield from _stored(batches, postgres_url=postgres_url, profile_id=profile_id, cohorts=groups[_part()])

    def read_and_store(batches: Batches) -> Batches:
        yield from store(read(batches))

    with our_errors(), ExitStack() as stack:
        if parquet:
            rows = found.mapInArrow(read, SPARK_ROWS).persist(StorageLevel.DISK_ONLY)
            stack.callback(rows.unpersist)
            sums = _summed(rows.mapInArrow(store, SPARK_HOURS))
            replace_parquet(rows.drop("hours"), partial(profile_folder, parquet), what=PROFILES)
        else:
            # Rows for the database alone do not pass through Spark, since they have many columns.
            sums = _summed(found.mapInArrow(read_and_store, SPARK_HOURS))
        if hours is not None:
            sums = _summed(hours)
    totals = ProfileTables(connection).finish(
        profile.profile_id, shards=profile.shards, hours=sums, keep_profiles=profile.parameters.keep_profiles
    )
    return ProfileReport(
        profile_id=profile.profile_id,
        store=profile.store,
        mode=profile.parameters.mode,
        cohorts=profile.wanted,
        queues=totals.queues,
        messages=totals.messages,
        live=totals.live,
        faulty_queues=totals.faulty_queues,
        seconds=round(time.monotonic() - started, 3),
        parquet=parquet,
    )


def _part() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _summed(hours: DataFrame) -> list[tuple[int, int, int]]:
    sums = hours.groupBy("hour_ms").agg(F.sum("messages").alias("messages"), F.sum("payload_bytes").alias("bytes"))
    return [(row["hour_ms"], row["messages"], row["bytes"]) for row in sums.collect()]


def _stored(batches: Batches, *, postgres_url: str, profile_id: str, cohorts: Sequence[int]) -> Batches:
    """Record the rows of one task and yield when their messages expire."""
    hours: dict[int, tuple[int, int]] = {}

    def passed() -> Batches:
        for batch in batches:
            for hour in batch.column("hours").flatten().to_pylist():
                messages, size_bytes = hours.get(hour["hour_ms"], (0, 0))
                hours[hour["hour_ms"]] = messages + hour["messages"], size_bytes + hour["payload_bytes"]
            yield batch

    with connect_postgres(postgres_url, autocommit=True) as connection:
        ProfileTables(connection).replace_queues(profile_id, cohorts, passed())
    yield pa.RecordBatch.from_pydict(
        {
            "hour_ms": list(hours),
            "messages": [messages for messages, _ in hours.values()],
            "payload_bytes": [size_bytes for _, size_bytes in hours.values()],
        },
        schema=HOURS,
    )


# --- Redis and its snapshots ----------------------------------------------------------------------------------


def _profile_sessions(
    spark: SparkSession,
    connection: Connection,
    sessions: _Sessions,
    *,
    parameters: ProfileParameters,
    postgres_url: str,
    now_ms: int,
    profile_id: str | None,
    parquet_dir: str | None,
    key: bytes | None,
    started: float,
) -> ProfileReport:
    profile = _begin(
        spark, connection, cohorts=keyspace.cohorts(count=parameters.cohort_count, shards=sessions.shards),
        store="redis", target=sessions.target, parameters=parameters, postgres_url=postgres_url, now_ms=now_ms,
        as_of_ms=sessions.as_of_ms, profile_id=profile_id, parquet_dir=parquet_dir, key=key,
    )  # fmt: skip
    share = len(profile.wanted) / len(profile.cohorts)
    placement = layout(
        cohorts=profile.cohorts, wanted=profile.wanted,
        tasks=set_task_count(spark, rows=int(sessions.key_count * share)),
    )  # fmt: skip
    found, read = sessions.queues(profile, placement)
    return _record(connection, profile, placement=placement, found=found, read=read, started=started)


@contextmanager
def _paced(postgres_url: str, profile_id: str, *, rate: int | None) -> Iterator[Pace]:
    """Hold all tasks of a profile together to its throttle."""
    if rate is None:
        yield Pace(lambda: None)
        return
    with connect_postgres(postgres_url, autocommit=True) as connection:
        yield Pace(lambda: rate, SharedBucket(connection, profile_id))


def _redis_queues(
    profile: _Profile, placement: Layout, *, redis_url: str, held: tuple[frozenset[int], ...], is_cluster: bool
) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """Return the clients that SCAN finds, partitioned by task, and a function that reads the queues of a task.

    :param held: slots that each task scans.
    """
    parameters, shard_of, secret = profile.parameters, profile.shards, profile.hash_key
    postgres_url, profile_id, rate = profile.postgres_url, profile.profile_id, parameters.throttle_references_per_s

    def find(batches: Batches) -> Batches:
        with _paced(postgres_url, profile_id, rate=rate) as pace:
            scanner = _scanner(parameters, placement, is_cluster=is_cluster, pace=pace)
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    with connect_redis(redis_url) as client:
                        yield from scan.packages(scanner.read(client, held[number]))

    def read(batches: Batches) -> Batches:
        with connect_redis(redis_url) as client, _paced(postgres_url, profile_id, rate=rate) as pace:
            reader = QueueReader(
                lua.ScriptCaller(client), parameters=parameters, shards=shard_of, hash_key=secret, pace=pace
            )
            yield from reader.read(scan.unpackaged(batches))

    found = profile.spark.range(0, len(held), 1, len(held)).mapInArrow(find, scan.SPARK_PACKAGES)
    return found.repartition(placement.tasks, "task"), read


def _held(client: RedisClient) -> tuple[frozenset[int], ...]:
    """Return the slots of each master."""
    return tuple(master.slots for master in masters(client) if master.slots)


def _scanner(parameters: ProfileParameters, placement: Layout, *, is_cluster: bool, pace: Pace) -> scan.Scanner:
    return scan.Scanner(
        prefix=parameters.key_prefix,
        slot_firsts=placement.slot_firsts,
        labels=placement.labels,
        sample_percent=parameters.sample_percent,
        is_cluster=is_cluster,
        key_share=parameters.shares.key,
        pace=pace,
    )


def _snapshot_queues(
    profile: _Profile, placement: Layout, *, files: SnapshotFiles, database: int, now_ms: int
) -> tuple[DataFrame, Callable[[Batches], Batches]]:
    """Return the keys of sessions in RDB files, partitioned by task, and a function that reads those of a task."""
    parameters, shard_of, secret = profile.parameters, profile.shards, profile.hash_key
    pace = Pace(lambda: None)

    def find(batches: Batches) -> Batches:
        scanner = _scanner(parameters, placement, is_cluster=files.is_cluster, pace=pace)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with files.paths[number].open("rb") as file:
                    keys = snapshot_scan.session_keys_of(
                        Snapshot(file, name=str(files.paths[number])), prefix=parameters.key_prefix,
                        database=database, contents=parameters.contents, now_ms=now_ms,
                    )  # fmt: skip
                    yield from snapshot_scan.packages(keys, scanner, file=number)

    def read(batches: Batches) -> Batches:
        scanner = _scanner(parameters, placement, is_cluster=files.is_cluster, pace=pace)
        caller, found = snapshot_scan.unpackaged(batches, scanner, paths=files.paths, now_ms=now_ms)
        reader = QueueReader(
            caller, parameters=parameters, shards=shard_of, hash_key=secret, pace=pace, orphan_pause_s=0
        )
        yield from reader.read(found)

    count = len(files.paths)
    found = profile.spark.range(0, count, 1, count).mapInArrow(find, scan.SPARK_PACKAGES)
    return found.repartition(placement.tasks, "task"), read


# --- PostgreSQL -----------------------------------------------------------------------------------------------


def _named(profile: _Profile) -> Callable[[Batches], Batches]:
    """Return a function that adds the hashes of client ids to rows."""
    secret = profile.hash_key

    def name(batches: Batches) -> Batches:
        for batch in batches:
            hashes = [client_hash(client, key=secret) for client in batch.column("client_id").to_pylist()]
            place = batch.schema.get_field_index("client_hash")
            yield batch.set_column(place, "client_hash", pa.array(hashes, pa.string()))

    return name
