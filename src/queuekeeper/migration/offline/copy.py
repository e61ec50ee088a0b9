"""Copies planned sessions into Redis: Spark tasks stream ready-made script calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import hiredis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.taskcontext import TaskContext
from redis.exceptions import RedisError, ResponseError

from queuekeeper import lua
from queuekeeper.clock import Clock, Pace, system_clock
from queuekeeper.errors import ImportedBefore, MovedOn, NotOwner, RefusedError, StaleEpoch
from queuekeeper.jobs.pace import control_of
from queuekeeper.keyspace import safe_counter, session_keys
from queuekeeper.lua import scripts
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import (
    EPOCH,
    CohortState,
    CopyManner,
    CopyReport,
    MigrationPlan,
    Mode,
    PlanState,
)
from queuekeeper.migration.ledger.progress import reported, warn
from queuekeeper.migration.ledger.shared_rate import shared_rate
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.plan import measured_rows
from queuekeeper.migration.offline.quarantine import reopen_lost
from queuekeeper.migration.offline.source import (
    MESSAGE_COLUMNS,
    MESSAGES,
    SESSION_COLUMNS,
    SESSIONS,
    Source,
    layout,
    open_source,
    task_count,
)
from queuekeeper.migration.offline.undo import drop_import
from queuekeeper.migration.spark.session import our_errors, task_memory
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import RedisClient, address_of, from_redis, is_cluster
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.judge import Reason

# Bounds of one script call: about 2 ms of the server's time.
CHUNK_MESSAGES = 256
CHUNK_BYTES = 512 * 1024
# What is written before replies are read; two such windows are in flight, so that the server always has work.
WINDOW_CALLS = 64
WINDOW_BYTES = 2 * 1024 * 1024

_THERE = {CohortState.COPIED, CohortState.VERIFIED}
_MISSING = {CohortState.PLANNED, CohortState.COPYING}
OWNERS = {
    Mode.OFFLINE: "redis",  # the session belongs to Redis as soon as it is complete
    Mode.ONLINE: "postgres",  # nobody may use the copy before its owner changes
}

_RESULT_COLUMNS = (
    "cohort int, messages_written bigint, messages_expired bigint, sessions_written bigint, "
    "sessions_unchanged bigint, sessions_moved_on bigint, script_calls bigint"
)

Buffer: TypeAlias = "memoryview[int] | bytes"


def _bulk(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return b"$%d\r\n%s\r\n" % (len(raw), raw)


@dataclass(slots=True)
class Chunk:
    """One call of ``import_session``.

    :param keys: payload keys as Redis bulk strings, one behind the other.
    :param args: serial, expiry and JSON of each message, likewise.
    """

    client_id: str
    cohort: int
    number: int
    count: int
    keys: bytes
    args: bytes
    last: bool = False
    last_packet_id: str = ""
    last_serial: str = ""


@dataclass(slots=True)
class Counts:
    """What happened in one cohort."""

    messages_written: int = 0
    messages_expired: int = 0
    sessions_written: int = 0
    sessions_unchanged: int = 0
    sessions_moved_on: int = 0
    script_calls: int = 0


def chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
    """Cut rows into script calls, the last of each client marked, with a counter that has passed the messages' ids.

    :param batches: see :func:`queuekeeper.migration.offline.transforms.fragments`; rows of a client lie together.
    """
    pending: Chunk | None = None
    # Of the pending chunk's client, the newest message's first.
    packet_ids: list[int] = []
    last_packet_id: int | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys, key_ends = _slices(batch.column("keys_part"))
        args, arg_ends = _slices(batch.column("args_part"))
        is_message = pc.equal(batch.column("kind"), transforms.MESSAGE).to_numpy(zero_copy_only=False)
        last_packet_ids, last_serials = batch.column("last_packet_id"), batch.column("last_serial")
        cohorts, own_ids = batch.column("cohort"), batch.column("packet_id")
        runs = pc.run_end_encode(batch.column("client_id"))
        start = 0
        for client_id, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            # A session row carries no message and comes last in its run.
            stop = end if is_message[end - 1] else end - 1
            if pending is not None and pending.client_id != client_id:
                yield _ended(pending, last_packet_id, packet_ids)
                pending, packet_ids = None, []
            last_packet_id, last_serial = last_packet_ids[end - 1].as_py(), last_serials[end - 1].as_py()
            packet_ids += own_ids[start:stop].to_pylist()
            cohort = cohorts[end - 1].as_py()
            first = start
            while first < stop or pending is None:
                until = min(stop, first + CHUNK_MESSAGES)
                if until - first > 1 and arg_ends[until] - arg_ends[first] > CHUNK_BYTES:
                    limit = arg_ends[first] + CHUNK_BYTES
                    until = max(first + 1, int(np.searchsorted(arg_ends[: until + 1], limit, side="right")) - 1)
                number = 0
                if pending is not None:
                    number = pending.number + 1
                    yield pending
                pending = Chunk(
                    client_id=client_id,
                    cohort=cohort,
                    number=number,
                    count=until - first,
                    keys=bytes(keys[key_ends[first] : key_ends[until]]),
                    args=bytes(args[arg_ends[first] : arg_ends[until]]),
                )
                first = until
            pending.last_serial = "" if last_serial is None else str(last_serial)
            start = end
    if pending is not None:
        yield _ended(pending, last_packet_id, packet_ids)


def _ended(chunk: Chunk, last_packet_id: int | None, packet_ids: list[int]) -> Chunk:
    """Return the last chunk of a client, with what is its counter from now on."""
    safe = safe_counter(last_packet_id, packet_ids[::-1])
    chunk.last, chunk.last_packet_id = True, "" if safe is None else str(safe)
    return chunk


def _slices(column: pa.Array) -> tuple[Buffer, np.ndarray[Any, np.dtype[np.int32]]]:
    """Return a text column's bytes and the offsets between which each row lies."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return (memoryview(data) if data is not None else b""), ends


class _Lane:
    """One connection to one shard, with two windows of calls in flight."""

    def __init__(self, connection: redis.Connection, address: str) -> None:
        self.connection = connection
        self.address = address
        self.buffer: list[bytes] = []
        self.buffered_bytes = 0
        self.unsent: list[Chunk] = []
        self.sent: deque[list[Chunk]] = deque()


class SessionImporter:
    """Streams chunks into Redis; a call that a server did not run is sent again, in order.

    :param plan_id: written into each session, so that a repeated run knows its own work.
    :param pace: called before each chunk with its number of messages; may wait.
    :param mode: whether the broker is stopped; if it is not, sessions that are further already are left alone.
    :ivar messages_done: messages that need no more work, those included that an earlier run has written.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        plan_id: str,
        prefix: str,
        pace: Callable[[int], None],
        mode: Mode = Mode.OFFLINE,
    ) -> None:
        self.client = client
        self.owner = OWNERS[mode]
        self.left_alone = (MovedOn,) if mode is Mode.OFFLINE else (MovedOn, NotOwner, StaleEpoch)
        self.plan_id = plan_id
        self.prefix = prefix
        self.pace = pace
        self.script = lua.load("sessions/import_session")
        self.counts: dict[int, Counts] = {}
        self.messages_done = 0
        self._caller = lua.ScriptCaller(client)
        self._lanes: dict[str, _Lane] = {}
        self._failed: list[Chunk] = []
        self._left_alone: set[str] = set()
        self._evalsha = b"$7\r\nEVALSHA\r\n" + _bulk(self.script.sha1)
        self._fixed = _bulk(plan_id) + _bulk(EPOCH) + _bulk(self.owner)

    def add(self, chunk: Chunk) -> None:
        """Send a chunk, sooner or later."""
        self.pace(chunk.count)
        lane = self._lane(chunk)
        keys = session_keys(chunk.client_id, prefix=self.prefix)
        head = b"*%d\r\n" % (13 + 4 * chunk.count)
        body = (
            head,
            self._evalsha,
            _bulk(str(3 + chunk.count)),
            *(_bulk(key) for key in keys),
            chunk.keys,
            self._fixed,
            _bulk(str(chunk.number)),
            b"$1\r\n1\r\n" if chunk.last else b"$1\r\n0\r\n",
            _bulk(chunk.last_packet_id if chunk.last else ""),
            _bulk(chunk.last_serial if chunk.last else ""),
            chunk.args,
        )
        lane.buffer.extend(body)
        lane.buffered_bytes += len(chunk.keys) + len(chunk.args) + 300
        lane.unsent.append(chunk)
        if len(lane.unsent) >= WINDOW_CALLS or lane.buffered_bytes >= WINDOW_BYTES:
            self._write(lane)
            if len(lane.sent) > 1:
                self._read(lane)
            if self._failed:
                self._settle()

    def finish(self) -> None:
        """Send what is left and wait for all replies."""
        self._settle()

    def close(self) -> None:
        """Give up the connections."""
        for lane in self._lanes.values():
            lane.connection.disconnect()  # type: ignore[no-untyped-call]
        self._lanes.clear()

    def _lane(self, chunk: Chunk) -> _Lane:
        if isinstance(self.client, redis.RedisCluster):
            key = session_keys(chunk.client_id, prefix=self.prefix).messages
            try:
                node = self.client.get_node_from_key(key)  # type: ignore[no-untyped-call]
            except RedisError as error:
                raise from_redis(error, address_of(self.client)) from error
            if node is None:
                raise RefusedError(f"the cluster does not serve the slot of {key!r}: repair it, then repeat the copy")
            name, single = str(node.name), self.client.get_redis_connection(node)
        else:
            name, single = address_of(self.client), self.client
        if name not in self._lanes:
            self._lanes[name] = _Lane(_connection(single, name), name)
        return self._lanes[name]

    def _write(self, lane: _Lane) -> None:
        try:
            lane.connection.send_packed_command([b"".join(lane.buffer)])  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            raise from_redis(error, lane.address) from error
        lane.sent.append(lane.unsent)
        lane.unsent, lane.buffer, lane.buffered_bytes = [], [], 0

    def _read(self, lane: _Lane) -> None:
        for chunk in lane.sent.popleft():
            try:
                reply = lane.connection.read_response(disable_decoding=True)
            except ResponseError:
                # The script refused or was not there: looked at once nothing is in flight any more.
                self._failed.append(chunk)
            except (RedisError, OSError) as error:
                raise from_redis(error, lane.address) from error
            else:
                self._count(chunk, reply)

    def _settle(self) -> None:
        """Read all outstanding replies, then repeat what failed one by one, in the order in which it was sent."""
        for lane in self._lanes.values():
            if lane.unsent:
                self._write(lane)
            while lane.sent:
                self._read(lane)
        failed, self._failed = self._failed, []
        for chunk in failed:
            self._alone(chunk)

    def _alone(self, chunk: Chunk) -> None:
        if chunk.client_id in self._left_alone:
            self.messages_done += chunk.count
            return
        call = scripts.sessions.import_session(
            session_keys(chunk.client_id, prefix=self.prefix),
            payloads=_unpacked(chunk.keys, chunk.count),
            plan=self.plan_id,
            epoch=EPOCH,
            owner=self.owner,
            chunk=chunk.number,
            last=int(chunk.last),
            last_packet_id=chunk.last_packet_id if chunk.last else "",
            last_serial=chunk.last_serial if chunk.last else "",
            messages=_unpacked(chunk.args, 3 * chunk.count),
        )
        try:
            try:
                reply = self._caller.call(*call)
            except ImportedBefore:
                drop_import(self.client, chunk.client_id, prefix=self.prefix)
                reply = self._caller.call(*call)
        except self.left_alone:
            self._left_alone.add(chunk.client_id)
            self._counts(chunk).sessions_moved_on += 1
            self.messages_done += chunk.count
            return
        self._count(chunk, reply)

    def _counts(self, chunk: Chunk) -> Counts:
        return self.counts.setdefault(chunk.cohort, Counts())

    def _count(self, chunk: Chunk, reply: list[Any]) -> None:
        counts = self._counts(chunk)
        counts.script_calls += 1
        self.messages_done += chunk.count
        status, written, expired = reply
        counts.messages_written += written
        counts.messages_expired += expired
        if chunk.last:
            if status == b"unchanged":
                counts.sessions_unchanged += 1
            elif status == b"used":
                counts.sessions_moved_on += 1
            else:
                counts.sessions_written += 1


def _connection(single: redis.Redis, address: str) -> redis.Connection:
    """Return a connection of our own, logged in and with TLS as the client has it."""
    try:
        connection: Any = single.connection_pool.make_connection()
        connection.connect()
    except (RedisError, OSError) as error:
        raise from_redis(error, address) from error
    assert isinstance(connection, redis.Connection)
    return connection


def _unpacked(fragment: bytes, count: int) -> list[bytes]:
    """Return the values of concatenated bulk strings."""
    if count == 0:
        return []
    reader = hiredis.Reader()
    reader.feed(b"*%d\r\n" % count)
    reader.feed(fragment)
    values = reader.gets()
    assert isinstance(values, list)
    return values


def copy_sessions(
    spark: SparkSession,
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    cohorts: str = "",
    manner: CopyManner = CopyManner(),  # noqa: B008 - it is frozen
    clock: Clock = system_clock,
) -> CopyReport:
    """Write the planned sessions into Redis; what an earlier run has written is recognised and left as it is.

    Where it does not give way to a pause, it waits for its end. Then source and servers are checked once more: others
    may have filled the memory meanwhile.

    :param cohorts: some of the plan's cohorts; all of them when empty.
    :param manner: whether it ends when the migration is paused, and goes on with what is missing.
    :raises StalePlan: when the source or the code has changed since the plan was made.
    :raises RefusedError: when the plan was refused, another copy holds a cohort, or Redis is not fit.
    :raises StoreFull: when Redis ran out of memory; nothing is half-written, repeat after making room.
    """

    def copy(manner: CopyManner) -> CopyReport:
        return _copy_until_paused(
            spark, postgres_url=postgres_url, redis_url=redis_url, plan_id=plan_id, cohorts=cohorts, manner=manner,
            clock=clock,
        )  # fmt: skip

    report = copy(manner)
    while report.paused and not manner.gives_way:
        with connect_postgres(postgres_url, autocommit=True) as connection:
            words = f"copy: paused by a person, queuekeeper run resume {plan_id} lets it go on"
            control_of(MigrationLedger(connection), plan_id, paused=partial(print, words, flush=True))
        report = report.with_rest(copy(CopyManner(only_missing=True)))
    return report


def _copy_until_paused(
    spark: SparkSession,
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    cohorts: str,
    manner: CopyManner,
    clock: Clock,
) -> CopyReport:
    started = time.monotonic()
    with ExitStack() as stack:
        connection = stack.enter_context(connect_postgres(postgres_url, autocommit=True))
        ledger = MigrationLedger(connection)
        plan = ledger.load_plan(plan_id)
        wanted = plan.choose(cohorts)
        if plan.state == PlanState.REFUSED:
            raise RefusedError(f"plan {plan_id} was refused: {plan.state_reason}")
        ledger.check_current(plan_id, now_ms=system_clock())
        client = connect_redis(redis_url)
        stack.callback(client.close)
        preflight.check_same_target(client, plan)
        states = ledger.cohort_states(plan_id)
        if manner.only_missing:
            wanted = [cohort for cohort in wanted if states[cohort] not in _THERE] or wanted
        missing = [c for c in plan.cohorts if c.cohort in wanted and states[c.cohort] in _MISSING]
        left = preflight.left_to_copy(missing, ledger.copied_messages(plan_id))
        warn(preflight.check_target(client, forecast_bytes=preflight.forecast_by_master(client, left)))
        stack.enter_context(ledger.copy_lock(plan_id, wanted))
        placement = layout(
            spark, cohorts=plan.cohorts, wanted=wanted, tasks=task_count(spark, rows=plan.total_of(wanted, "messages"))
        )
        totals = [plan.total_of(group, "to_copy") for group in placement.groups]
        names = [f"{group[0]:05d}-{group[-1]:05d}" for group in placement.groups]
        source = stack.enter_context(open_source(spark, postgres_url=postgres_url, placement=placement))
        # In the very snapshot that is copied: what comes later is not in it.
        preflight.check_same_source(source.connection, plan)
        preflight.check_heap(source.connection, task_memory(spark))
        _check_values(client, source, plan, wanted)
        ledger.begin_copy(plan)
        ledger.set_cohort_state(plan_id, wanted, CohortState.COPYING)
        for name in names:
            ledger.clear_progress(plan_id, "copy", name)
        prefix, mode = plan.parameters.key_prefix, plan.parameters.mode

        def import_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            part = context.partitionId()
            yield _import_task(
                batches, postgres_url=postgres_url, redis_url=redis_url, plan_id=plan_id, prefix=prefix,
                part=names[part], number=part, total=totals[part], mode=mode,
            )  # fmt: skip

        with (
            reported(postgres_url, plan_id=plan_id, step="copy", parts=names, total=sum(totals), clock=clock),
            our_errors(),
        ):
            rows = transforms.rows(source.read(MESSAGES, MESSAGE_COLUMNS), source.read(SESSIONS, SESSION_COLUMNS))
            classified = transforms.classify(
                source.partitioned(rows),
                parameters=plan.parameters,
                as_of_ms=plan.as_of_ms,
                clustered=is_cluster(client),
                duplicates=_has_duplicates(plan, wanted),
            )
            results = transforms.fragments(classified, prefix=prefix).mapInArrow(import_task, _RESULT_COLUMNS).collect()
        broken_off = {_task_of(row["cohort"]) for row in results if row["cohort"] < 0}
        missing_yet = {cohort for task in broken_off for cohort in placement.groups[task]}
        copied = [cohort for cohort in wanted if cohort not in missing_yet]
        # An import that was taken out, or lost with its server, is there again without what was replayed into it.
        if opened := reopen_lost(ledger, client, plan, copied):
            warn([f"{opened:,} rows of the quarantine that were replayed are open again: replay them once more"])
        ledger.set_cohort_state(plan_id, copied, CohortState.COPIED)
        for task in broken_off:
            # Whoever goes on cuts the rest into other tasks.
            ledger.clear_progress(plan_id, "copy", names[task])
        states = ledger.cohort_states(plan_id)
        if all(states[cohort] in _THERE for cohort in plan.chosen):
            ledger.set_plan_state(plan_id, PlanState.COPIED)
        report = CopyReport(
            plan_id=plan_id,
            cohorts=tuple(wanted),
            paused=bool(broken_off),
            messages_written=sum(row["messages_written"] for row in results),
            messages_expired=sum(row["messages_expired"] for row in results),
            sessions_written=sum(row["sessions_written"] for row in results),
            sessions_unchanged=sum(row["sessions_unchanged"] for row in results),
            sessions_moved_on=sum(row["sessions_moved_on"] for row in results),
            script_calls=sum(row["script_calls"] for row in results),
            seconds=round(time.monotonic() - started, 3),
        )
        written = {row["cohort"]: row["messages_written"] for row in results if row["cohort"] >= 0}
        ledger.save_copy_report(report, messages_by_cohort=written)
        return report


def _check_values(client: RedisClient, source: Source, plan: MigrationPlan, wanted: list[int]) -> None:
    """Check that Redis takes the largest message of a copy: it may be another server than the plan's, or set anew.

    :raises RefusedError: naming the setting that is too low and what it must be.
    """
    largest_bytes = preflight.largest_value(source.connection, plan, wanted, now_ms=plan.as_of_ms)
    try:
        preflight.check_values(client, largest_bytes=largest_bytes)
    except RefusedError:
        # Perhaps it is trimmed, or set aside for another one: what the plan would send decides.
        judged = transforms.classify(
            source.partitioned(measured_rows(source)),
            parameters=plan.parameters,
            as_of_ms=plan.as_of_ms,
            clustered=is_cluster(client),
        )
        with our_errors():
            row = judged.where("fate = 'copied'").agg(F.max(transforms.json_bytes())).first()
        preflight.check_values(client, largest_bytes=int((row and row[0]) or 0))


def _task_of(number: int) -> int:
    """Return the number that stands for a task where counts of cohorts stand, and the other way round."""
    return -1 - number


def _has_duplicates(plan: MigrationPlan, wanted: list[int]) -> bool:
    """Return whether a client may have a packet id twice; with the broker stopped the plan has read this source."""
    return plan.parameters.mode is Mode.ONLINE or any(
        plan.cohorts[cohort].quarantined_by_reason.get(Reason.PACKET_ID_DUPLICATE.value, 0) > 0 for cohort in wanted
    )


def _import_task(
    batches: Iterator[pa.RecordBatch],
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    prefix: str,
    part: str,
    number: int,
    total: int,
    mode: Mode,
) -> pa.RecordBatch:
    """Import one Spark partition and return its counts, a row per cohort, and another one if a pause has broken it off.

    :param number: of the partition.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(connect_postgres(postgres_url, autocommit=True))
        ledger = MigrationLedger(connection)
        client = connect_redis(redis_url)
        stack.callback(client.close)
        halted = ledger.control(plan_id).paused
        # The throttle is the plan's: copies that run at the same time, each with cohorts of its own, share it.
        share = stack.enter_context(shared_rate(connection, f"copy {plan_id}"))

        def report() -> float | None:
            ledger.record_progress(
                plan_id=plan_id, step="copy", part=part, done=importer.messages_done, total=total, at_ms=system_clock()
            )
            nonlocal halted
            control = ledger.control(plan_id)
            halted, rate = control.paused, control.operations_per_s
            return None if rate is None else share(rate)

        importer = SessionImporter(client, plan_id=plan_id, prefix=prefix, pace=Pace(report), mode=mode)
        stack.callback(importer.close)
        done, broken_off = total, False
        between = True  # sessions
        for chunk in chunks(batches):
            if between and halted:
                broken_off = True
                break
            importer.add(chunk)
            between = chunk.last
        importer.finish()
        if broken_off:
            importer.counts[_task_of(number)] = Counts()
            done = importer.messages_done
        ledger.record_progress(plan_id=plan_id, step="copy", part=part, done=done, total=total, at_ms=system_clock())
    names = [name.split()[0] for name in _RESULT_COLUMNS.split(", ")]
    rows = sorted(importer.counts.items())
    columns: list[pa.Array] = [pa.array([cohort for cohort, _ in rows], pa.int32())]
    columns += [pa.array([getattr(counts, name) for _, counts in rows], pa.int64()) for name in names[1:]]
    return pa.RecordBatch.from_arrays(columns, names=names)
