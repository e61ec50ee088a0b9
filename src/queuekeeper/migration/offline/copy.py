"""Copies planned sessions into Redis with Spark tasks that read the source and import what they read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from functools import partial

import pyarrow as pa
import redis
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.taskcontext import TaskContext

from queuekeeper.clock import Clock, Pace, system_clock
from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.jobs.pace import control_of
from queuekeeper.jobs.shared_bucket import SharedBucket
from queuekeeper.keyspace import format_cohorts
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, CopyReport, MigrationPlan, PlanState
from queuekeeper.migration.ledger.parameters import CopyManner, Mode
from queuekeeper.migration.ledger.progress import reported, warn
from queuekeeper.migration.offline.fates import decided, sent
from queuekeeper.migration.offline.importer import Counts, SessionImporter, chunks
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.migration.offline.plan import measured_rows
from queuekeeper.migration.offline.quarantine import reopen_lost
from queuekeeper.migration.offline.source import (
    ARROW_TYPES,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    Part,
    Source,
    Wanted,
    counting,
    layout,
    open_source,
    part_name,
    schema_of,
)
from queuekeeper.migration.spark.session import our_errors, set_task_count, task_memory
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import RedisClient, is_cluster
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_names import Master, masters, replaced
from queuekeeper.sessions.pages import Layout
from queuekeeper.wording import number_of

_THERE = {CohortState.COPIED, CohortState.VERIFIED}
_MISSING = {CohortState.PLANNED, CohortState.COPYING}

_RESULT_COLUMNS = {"cohort": "int", "rows_read": "bigint"} | {each.name: "bigint" for each in fields(Counts)}


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
    """Write the planned sessions into Redis; sessions that an earlier run has written are left as they are.

    Unless ``manner`` says that the copy ends when the migration is paused, it waits for the end of the pause and then
    checks source and servers again, since others may have filled the memory meanwhile.

    :param cohorts: some of the plan's cohorts; all of them when empty.
    :param manner: whether the copy ends when the migration is paused, and whether it copies only what is missing.
    :raises StalePlan: when the source or the code has changed since the plan was made.
    :raises RefusedError: when the plan was refused, another copy holds a cohort, or Redis is not fit.
    :raises ServerUnavailable: when Redis cannot be reached, or a replica took over meanwhile from a master of a cluster
        and may lack some of what was written: repeat the copy.
    :raises StoreFull: when Redis ran out of memory; no call is half-written, so repeat the copy after making room.
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
        plan.check_from_postgres(instead=f"queuekeeper online catch-up {plan_id}")
        wanted = plan.choose(cohorts)
        plan.check_accepted()
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
        tasks = set_task_count(spark, rows=plan.total_of(wanted, "messages"))
        placement = layout(cohorts=plan.cohorts, wanted=wanted, tasks=tasks)
        by_key = _by_key(plan, wanted, states, throttled=ledger.control(plan_id).operations_per_s is not None)
        source = stack.enter_context(
            open_source(spark, postgres_url=postgres_url, placement=placement, ranges=tasks if by_key else None)
        )
        parts = source.parts(partial(plan.total_of, name="to_copy"))
        before = masters(client) if isinstance(client, redis.RedisCluster) else []
        # Checked in the snapshot that is copied.
        preflight.check_same_source(source.connection, plan)
        preflight.check_heap(source.connection, task_memory(spark))
        _check_values(client, source, plan, wanted)
        ledger.begin_copy(plan)
        ledger.set_cohort_state(plan_id, wanted, CohortState.COPYING)
        for group in {part.cohorts for part in parts}:
            ledger.clear_progress(plan_id, "copy", part_name(group))
        prefix, mode, limit = plan.parameters.key_prefix, plan.parameters.mode, plan.parameters.limit
        as_of_ms, target_layout = plan.as_of_ms, plan.parameters.layout

        def import_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            number = context.partitionId()
            yield _import_task(
                decided(batches, limit=limit, as_of_ms=as_of_ms), postgres_url=postgres_url, redis_url=redis_url,
                plan_id=plan_id, prefix=prefix, part=parts[number], number=number, mode=mode,
                target_layout=target_layout,
            )  # fmt: skip

        with (
            reported(
                postgres_url,
                plan_id=plan_id,
                step="copy",
                parts=[part.name for part in parts],
                total=sum(part.total for part in parts),
                clock=clock,
            ),  # fmt: skip
            our_errors(),
        ):
            judging = _judging(plan, client)
            results = source.queues(
                messages=Wanted(columns=MESSAGE_COLUMNS, step=judging.fragments(prefix=prefix, as_of_ms=plan.as_of_ms)),
                sessions=Wanted(columns=SESSION_COLUMNS, step=judging.sessions(SESSION_COLUMNS)),
                each=import_task,
                schema=schema_of(_RESULT_COLUMNS),
            ).collect()
        broken_off = {_task_of(row["cohort"]) for row in results if row["cohort"] < 0}
        missing_yet = {cohort for task in broken_off for cohort in parts[task].cohorts}
        torn = _torn(client, before, plan, wanted)
        missing_yet |= torn
        copied = [cohort for cohort in wanted if cohort not in missing_yet]
        if mode is Mode.OFFLINE:
            read = _by_cohort(results, "rows_read")
            preflight.check_cohorts_read(
                plan,
                {cohort: read.get(cohort, 0) for cohort in copied},
                words="the copy",
                then="these are to be undone",
            )
        # An import that was undone, or lost with its server, was copied again without the rows replayed into it.
        if opened := reopen_lost(ledger, client, plan, copied):
            warn(
                [f"this copy has opened {number_of(opened, 'replayed row')} of the quarantine again: replay once more"]
            )
        ledger.set_cohort_state(plan_id, copied, CohortState.COPIED)
        for task in broken_off:
            # The run that continues cuts the rest into other tasks.
            ledger.clear_progress(plan_id, "copy", parts[task].name)
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
        written = _by_cohort(results, "messages_written")
        ledger.save_copy_report(report, messages_by_cohort=written)
        if torn:
            raise ServerUnavailable(
                "a replica took over from a master, or a master was started again, while sessions were copied: what it "
                f"had not received may be missing in cohorts {format_cohorts(sorted(torn))}. Copy again: what is there "
                "stays as it is"
            )
        return report


def _torn(client: RedisClient, before: list[Master], plan: MigrationPlan, wanted: list[int]) -> set[int]:
    """Return the cohorts of which something may be lost since, with a master of a cluster."""
    if not isinstance(client, redis.RedisCluster):
        return set()
    slots = replaced(before, masters(client))
    return {
        cohort
        for cohort in wanted
        if not slots.isdisjoint(range(plan.cohorts[cohort].slot_first, plan.cohorts[cohort].slot_last + 1))
    }


def _check_values(client: RedisClient, source: Source, plan: MigrationPlan, wanted: list[int]) -> None:
    """Check again that Redis takes the largest message of a copy, since server or settings may have changed.

    :raises RefusedError: when a setting is too low; says what it must be.
    """
    largest_bytes = preflight.largest_value(source.connection, plan, wanted, now_ms=plan.as_of_ms)
    try:
        preflight.check_values(client, largest_bytes=largest_bytes)
    except RefusedError:
        # The largest row may be trimmed or quarantined: only rows that the plan would send count.
        judging = _judging(plan, client)
        judged = measured_rows(
            source, judging, prefix=plan.parameters.key_prefix, limit=plan.parameters.limit, as_of_ms=plan.as_of_ms
        )
        with our_errors():
            row = judged.where("fate = 'copied'").agg(F.max("value_bytes")).first()
        preflight.check_values(client, largest_bytes=int((row and row[0]) or 0))


def _judging(plan: MigrationPlan, client: RedisClient) -> Judging:
    return Judging(
        default_ttl_s=plan.parameters.default_ttl_s, clustered=is_cluster(client), layout=plan.parameters.layout
    )


def _task_of(number: int) -> int:
    """Return a task's number as it stands among cohort numbers, or the task's number again."""
    return -1 - number


def _by_key(plan: MigrationPlan, wanted: list[int], states: Mapping[int, CohortState], *, throttled: bool) -> bool:
    """Return whether a copy reads queues in the order of the key.

    Its tasks have rows of all cohorts, so that a pause leaves none whole and what follows begins again. So a copy that
    was broken off is finished cohort by cohort, and one that takes its time is made so.
    """
    begun = any(states[cohort] is CohortState.COPYING for cohort in wanted)
    return plan.parameters.mode is Mode.OFFLINE and not throttled and not begun


def _by_cohort(results: Sequence[Row], name: str) -> dict[int, int]:
    """Return the sum of a count over all tasks."""
    found: dict[int, int] = {}
    for row in results:
        if row["cohort"] >= 0:
            found[row["cohort"]] = found.get(row["cohort"], 0) + row[name]
    return found


def _import_task(
    batches: Iterator[pa.RecordBatch],
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    prefix: str,
    part: Part,
    number: int,
    mode: Mode,
    target_layout: Layout,
) -> pa.RecordBatch:
    """Import one Spark partition and return its counts, a row per cohort, and one more if a pause has interrupted it.

    :param number: number of the partition.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(connect_postgres(postgres_url, autocommit=True))
        ledger = MigrationLedger(connection)
        client = connect_redis(redis_url)
        stack.callback(client.close)
        halted = ledger.control(plan_id).paused

        def report() -> float | None:
            ledger.record_progress(
                plan_id=plan_id,
                step="copy",
                part=part.name,
                done=importer.messages_done,
                total=part.total,
                at_ms=system_clock(),
            )
            nonlocal halted
            control = ledger.control(plan_id)
            halted = control.paused
            return control.operations_per_s

        # Copies of one plan that run at the same time share the plan's throttle.
        pace = Pace(report, SharedBucket(connection, plan_id))
        importer = SessionImporter(client, plan_id=plan_id, prefix=prefix, pace=pace, mode=mode, layout=target_layout)
        stack.callback(importer.close)
        done, broken_off = part.total, False
        read: dict[int, int] = {}
        between = True  # whether the importer is between two sessions
        for chunk in chunks(sent(counting(batches, read))):
            if between and halted:
                broken_off = True
                break
            importer.add(chunk)
            between = chunk.last
        importer.finish()
        if broken_off:
            importer.counts[_task_of(number)] = Counts()
            done = importer.messages_done
        ledger.record_progress(
            plan_id=plan_id, step="copy", part=part.name, done=done, total=part.total, at_ms=system_clock()
        )
    counts = {cohort: Counts() for cohort in read} | importer.counts
    rows = [{"cohort": cohort, "rows_read": read.get(cohort, 0)} | asdict(counts[cohort]) for cohort in sorted(counts)]
    return pa.RecordBatch.from_pylist(
        rows, schema=pa.schema([(name, ARROW_TYPES[kind]) for name, kind in _RESULT_COLUMNS.items()])
    )
