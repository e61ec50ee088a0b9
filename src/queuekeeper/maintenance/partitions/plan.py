"""Plans changes of a table's partitions, with the exact SQL, its locks and the sessions that hold them now.

Creation, retirement and drop have separate plans, so that none holds up another. Planning writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from queuekeeper.errors import ForeignOwner, KeyFromFuture, RefusedError, UsageError
from queuekeeper.jobs.findings import Finding
from queuekeeper.maintenance.partitions.catalog import (
    Partition,
    Relation,
    blockers,
    clashing_names,
    is_detaching,
    relations,
)
from queuekeeper.maintenance.partitions.findings import FindingKind, finding
from queuekeeper.maintenance.partitions.model import (
    HeldPartition,
    PartitionPlan,
    Piece,
    PlannedStep,
    Purpose,
    RetiredPartition,
    RetiredState,
    StepKind,
)
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.ranges import Range, missing
from queuekeeper.maintenance.partitions.retired import load_retired, retired_partitions
from queuekeeper.maintenance.partitions.session import pinned
from queuekeeper.maintenance.partitions.statements import Writer
from queuekeeper.maintenance.partitions.survey import (
    Survey,
    findings,
    free_names,
    lowest_needed,
    partition_name,
    survey,
)
from queuekeeper.postgres import Connection

ALL_MODES = frozenset(
    {
        "AccessShareLock",
        "RowShareLock",
        "RowExclusiveLock",
        "ShareUpdateExclusiveLock",
        "ShareLock",
        "ShareRowExclusiveLock",
        "ExclusiveLock",
        "AccessExclusiveLock",
    }
)
_AGAINST_ATTACH = ALL_MODES - {"AccessShareLock", "RowShareLock", "RowExclusiveLock"}


@contextmanager
def judged(
    connection: Connection, *, policy: PartitionPolicy, now_ms: int, only_read: bool
) -> Iterator[tuple[Survey, list[Finding]]]:
    """Yield the state of a table and its findings, while nobody else can change its partitions."""
    with pinned(connection, lock_timeout_ms=policy.lock_timeout_ms):
        seen = survey(connection, policy=policy, now_ms=now_ms, only_read=only_read)
        yield seen, findings(connection, seen, wanted_ranges(seen))


def plan_creation(connection: Connection, *, policy: PartitionPolicy, now_ms: int) -> PartitionPlan:
    """Plan the partitions that are missing: ahead of clock and data, in gaps, and for rows that lie in DEFAULT.

    :raises UnknownTable: when there is no such table.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises ForeignOwner: when this role may not alter it.
    :raises InvalidPolicy: when the policy does not suit it.
    """
    with pinned(connection, lock_timeout_ms=policy.lock_timeout_ms):
        seen = survey(connection, policy=policy, now_ms=now_ms)
        wanted = wanted_ranges(seen)
        found = findings(connection, seen, wanted)
        if len(wanted) >= policy.at_most:
            found.append(
                finding(
                    FindingKind.CUT_SHORT,
                    table=seen.table.name,
                    subject=seen.table.name,
                    words=f"more than {policy.at_most} partitions are missing: plan again after this one is applied",
                )
            )
        steps = [*_pending_steps(connection, seen), *_creation_steps(connection, seen, wanted)]
        return _plan(connection, seen, Purpose.CREATION, steps, found=found)


def wanted_ranges(seen: Survey) -> list[Range]:
    """Return the ranges that no partition covers and that one should, lowest first."""
    table, step = seen.table, seen.spans.step
    overflow = table.overflow
    end = seen.end
    if overflow and overflow.range:
        # Nothing can be created beyond the overflow's bound, which the event broker's own function moves.
        end = min(end, overflow.range.start)
    now = seen.base if seen.now is None else seen.now
    at_most = seen.policy.at_most
    # Ranges whose rows cannot leave DEFAULT get no partition, and must not use up the number of new ones.
    taken = [*table.ranges, *(seen.default_steps if seen.undrainable else ())]
    present = max(seen.start, step.floor(now))
    found = missing(taken, step=step, start=present, now=now, end=end, at_most=at_most)
    found += missing(taken, step=step, start=seen.start, now=now, end=min(present, end), at_most=at_most - len(found))
    for each in seen.default_steps:
        # Rows from before the covered range get partitions; the gaps between them do not.
        if each.end <= seen.cap and each.start < seen.start and len(found) < at_most:
            found += missing([*taken, *found], step=step, start=each.start, now=now, end=min(each.end, end), at_most=1)
    return sorted(found, key=lambda each: each.start)


def _pending_steps(connection: Connection, seen: Survey) -> list[PlannedStep]:
    """Return the steps that put back partitions whose detach was interrupted and whose retention is not over."""
    pending = [each for each in seen.table.partitions if each.pending]
    if not pending or is_detaching(connection):
        return []
    needed = _needed_at_least(connection, seen)
    return [
        _step(
            StepKind.FINALIZE,
            each,
            each,
            "its detach was interrupted, and it is still needed: end the detach and attach it again",
        )
        for each in pending
        if _stays(seen, each, needed) and each.owner == seen.table.owner
    ]


def _needed_at_least(connection: Connection, seen: Survey) -> int | None:
    """Return the lowest key that a consumer still needs; a key below all others when the policy's query fails."""
    try:
        return lowest_needed(connection, seen, override_consumers=False)
    except (KeyFromFuture, UsageError):
        return min((each.start for each in seen.table.ranges), default=0)


def _stays(seen: Survey, partition: Partition, needed: int | None) -> bool:
    """Return whether a partition whose detach was interrupted is to be put back."""
    is_needed = needed is not None and partition.range is not None and partition.range.end > needed
    return is_needed or not _beyond(seen, partition) or bool(_unarchivable(seen, partition))


def _unarchivable(seen: Survey, partition: Partition) -> str:
    """Return why a partition could never be archived, and so never leave the quarantine; empty when it can."""
    if seen.policy.archive and partition.relkind == "p":
        return "it is partitioned further, and only plain tables are archived: detach it by hand, or allow no archive"
    return ""


def _creation_steps(connection: Connection, seen: Survey, wanted: Sequence[Range]) -> list[PlannedStep]:
    table, key = seen.table, seen.table.key
    names = free_names(connection, seen, [partition_name(seen, each.start) for each in wanted])
    drained: list[Piece] = []
    steps: list[PlannedStep] = []
    for each, name in zip(wanted, names, strict=True):
        lower, upper = key.text(each.start), key.text(each.end)
        if any(each.overlaps(rows) for rows in seen.default_steps):
            drained.append(Piece(relation_name=name, lower=lower, upper=upper))
            continue
        steps.append(
            PlannedStep(
                kind=StepKind.CREATE,
                schema_name=table.schema_name,
                relation_name=name,
                oid=None,
                lower=lower,
                upper=upper,
                bytes=0,
                reason=_why(seen, each),
            )
        )
    if drained and table.default:
        (name,) = free_names(connection, seen, [f"{table.relation_name}_default"])
        why = "DEFAULT holds rows of these ranges: they are copied while DEFAULT is in use, then exchanged"
        steps.append(
            replace(
                _step(StepKind.DRAIN, table.default, table.default, why),
                lower=drained[0].lower,
                upper=drained[-1].upper,
                pieces=(*drained, Piece(relation_name=name, lower=None, upper=None)),
                renames=_renames(connection, seen, table.default.oid),
            )
        )
    elif seen.drain_left and table.default:
        steps.append(
            _step(
                StepKind.CLEAR,
                table.default,
                table.default,
                "a drain was interrupted and left its copy and its trigger",
            )
        )
    overflow = table.overflow
    if seen.is_broker and (overflow is None or (overflow.range and overflow.range.start < seen.end)):
        steps.append(
            PlannedStep(
                kind=StepKind.ADVANCE,
                schema_name=table.schema_name,
                relation_name=overflow.relation_name if overflow else table.relation_name,
                oid=overflow.oid if overflow else None,
                lower=overflow.lower if overflow else None,
                upper=key.text(seen.end),
                rows=overflow.rows if overflow else None,
                bytes=overflow.bytes if overflow else 0,
                reason="partitions up to the head-room take the place of the overflow",
            )
        )
    return steps


def _why(seen: Survey, wanted: Range) -> str:
    if wanted.end <= seen.base:
        return "a gap: inserts of these keys fail"
    if wanted.start <= seen.base:
        return "the present has no partition: inserts fail"
    return f"ahead of {'clock and data' if seen.now is not None else 'the data'}"


# --- retirement ---------------------------------------------------------------------------------------------------


def plan_retirement(
    connection: Connection, *, policy: PartitionPolicy, now_ms: int, override_consumers: bool = False
) -> PartitionPlan:
    """Plan which partitions go to the quarantine, and list those that stay with the reason.

    :param override_consumers: also retire partitions that a consumer still needs; only a person may decide that.
    :raises KeyFromFuture: when a consumer's cursor lies in the future.
    :raises UsageError: when the policy's query of consumers fails.
    """
    with pinned(connection, lock_timeout_ms=policy.lock_timeout_ms):
        seen = survey(connection, policy=policy, now_ms=now_ms)
        key = seen.table.key
        needed = lowest_needed(connection, seen, override_consumers=override_consumers)
        known = retired_partitions(connection, table=seen.table.name)
        steps = _unfinished_steps(connection, seen, known)
        held: list[HeldPartition] = []
        detaching = is_detaching(connection)
        stuck = [each for each in seen.table.partitions if each.pending and _stays(seen, each, needed)]
        for each in seen.table.partitions:
            if not _beyond(seen, each) or each.range is None:
                continue
            consumer = needed is not None and each.range.end > needed
            reason = _held_because(seen, each, known, detaching=detaching, stuck=stuck)
            if consumer and needed is not None:
                reason = f"a consumer still needs keys from {key.text(needed)}"
            if reason:
                step = _step(StepKind.DETACH, each, each, reason)
                held.append(_held(step, each.oid, partition=each.name, consumer=consumer))
                continue
            ended = "its detach was interrupted" if each.pending else f"all keys are older than {policy.retention}"
            steps.append(
                replace(_step(StepKind.DETACH, each, each, ended), renames=_renames(connection, seen, each.oid))
            )
        return _plan(
            connection,
            seen,
            Purpose.RETIREMENT,
            steps,
            held=held,
            found=findings(connection, seen, []),
            limit=None if seen.limit is None else key.text(seen.limit),
            needed=None if needed is None else key.text(needed),
            overrides_consumers=override_consumers,
        )


def _beyond(seen: Survey, partition: Partition) -> bool:
    return bool(
        seen.limit is not None
        and partition.range
        and partition.range.upper is not None
        and partition.range.end <= seen.limit
    )


def _held_because(
    seen: Survey,
    partition: Partition,
    known: Iterable[RetiredPartition],
    *,
    detaching: bool,
    stuck: Sequence[Partition],
) -> str:
    """Return why a partition stays although its retention is over; empty when it is retired."""
    table, policy = seen.table, seen.policy
    if partition.owner != table.owner:
        return f"it belongs to {partition.owner}, not to {table.owner}"
    if partition.is_foreign:
        return "it is a foreign table: detach it by hand"
    if words := _unarchivable(seen, partition):
        return words
    if partition.pending and detaching:
        return "another session is detaching it"
    if stuck and not partition.pending:
        return f"the detach of {stuck[0].name} was interrupted: apply a plan of creation first, which mends that"
    for each in [] if partition.pending else known:
        if each.partition_oid == partition.oid and each.state is RetiredState.REATTACHED and each.ended_at:
            until_ms = each.ended_at.timestamp() * 1_000 + policy.quarantine_days * 86_400_000
            if until_ms > seen.as_of_ms:
                return f"it was attached again on {each.ended_at:%Y-%m-%d}: it stays {policy.quarantine_days} days"
    if table.default and not partition.pending and not policy.blocking_detach:
        return (
            f"{table.default.name} is a DEFAULT partition, so DETACH ... CONCURRENTLY is refused: drain and detach it, "
            "or allow blocking_detach"
        )
    return ""


def _unfinished_steps(connection: Connection, seen: Survey, known: Iterable[RetiredPartition]) -> list[PlannedStep]:
    """Return the steps that quarantine partitions which were detached before an interruption."""
    open_ones = [each for each in known if each.state is RetiredState.DETACHING]
    there = relations(connection, [each.partition_oid for each in open_ones])
    steps = []
    for each in open_ones:
        relation = there.get(each.partition_oid)
        if relation and not relation.is_partition:
            steps.append(
                replace(
                    _step(StepKind.QUARANTINE, relation, each, "it was detached before an interruption"),
                    renames=_renames(connection, seen, each.partition_oid),
                )
            )
    return steps


def plan_drop(connection: Connection, *, policy: PartitionPolicy, now_ms: int) -> PartitionPlan:
    """Plan the drop of partitions in quarantine whose days are up and whose archive was verified."""
    with pinned(connection, lock_timeout_ms=policy.lock_timeout_ms):
        seen = survey(connection, policy=policy, now_ms=now_ms)
        now = datetime.fromtimestamp(now_ms / 1_000, UTC)
        waiting = [
            each
            for each in retired_partitions(connection, table=seen.table.name)
            if each.state is RetiredState.QUARANTINED
        ]
        there = relations(connection, [each.partition_oid for each in waiting])
        steps: list[PlannedStep] = []
        held: list[HeldPartition] = []
        found: list[Finding] = []
        for each in waiting:
            relation = there.get(each.partition_oid)
            if relation is None or relation.is_partition:
                state = "was dropped" if relation is None else "was attached"
                found.append(
                    finding(
                        FindingKind.UNMANAGED,
                        table=seen.table.name,
                        subject=f"{each.quarantine_schema}.{each.partition_name}",
                        words=f"it {state} by somebody else",
                    )
                )
                continue
            reason = ""
            if relation.owner != seen.table.owner:
                reason = f"it belongs to {relation.owner}, not to {seen.table.owner}"
            elif each.drop_after > now:
                reason = f"it stays in quarantine until {each.drop_after:%Y-%m-%d %H:%M} UTC"
            elif policy.archive and each.archived_at is None and not each.drained_default:
                reason = "its archive was not verified"
            if reason:
                held.append(_held(_step(StepKind.DROP, relation, each, reason), relation.oid))
                continue
            archived = "archived and verified" if each.archived_at else "not archived"
            steps.append(_step(StepKind.DROP, relation, each, f"retired on {each.retired_at:%Y-%m-%d}, {archived}"))
        return _plan(connection, seen, Purpose.DROP, steps, held=held, found=found)


def plan_for(
    connection: Connection,
    *,
    policy: PartitionPolicy,
    purpose: Purpose,
    now_ms: int,
    override_consumers: bool = False,
) -> PartitionPlan:
    """Plan creation, retirement or drop."""
    if purpose is Purpose.CREATION:
        return plan_creation(connection, policy=policy, now_ms=now_ms)
    if purpose is Purpose.RETIREMENT:
        return plan_retirement(connection, policy=policy, now_ms=now_ms, override_consumers=override_consumers)
    return plan_drop(connection, policy=policy, now_ms=now_ms)


def plan_reattachment(
    connection: Connection, *, policy: PartitionPolicy, retired_id: int, now_ms: int
) -> PartitionPlan:
    """Plan to attach one partition from quarantine again.

    :raises UsageError: when there is no such record.
    :raises RefusedError: when the partition is not in quarantine, or other partitions have its range now.
    :raises ForeignOwner: when the partition belongs to another role now.
    """
    with pinned(connection, lock_timeout_ms=policy.lock_timeout_ms):
        seen = survey(connection, policy=policy, now_ms=now_ms)
        record = load_retired(connection, retired_id)
        what = f"retired partition {retired_id} ({record.partition_name} of {record.table})"
        if record.table != seen.table.name:
            raise RefusedError(f"{what} is no part of {seen.table.name}: name its own table")
        if record.drained_default:
            raise RefusedError(f"{what} is a drained DEFAULT: its rows are in the table already")
        relation = relations(connection, [record.partition_oid]).get(record.partition_oid)
        if record.state is not RetiredState.QUARANTINED or relation is None or relation.is_partition:
            advice = "restore it from its archive first" if record.state is RetiredState.DROPPED else "nothing to do"
            raise RefusedError(f"{what} is {record.state.value}, not in quarantine: {advice}")
        if relation.owner != seen.table.owner:
            raise ForeignOwner(f"{what} belongs to {relation.owner}, not to {seen.table.owner}: give it back first")
        key = seen.table.key
        own = Range(
            lower=None if record.lower is None else key.position(record.lower),
            upper=None if record.upper is None else key.position(record.upper),
        )
        others = [each.name for each in seen.table.partitions if each.range and each.range.overlaps(own)]
        if others:
            raise RefusedError(f"{what} cannot come back: {', '.join(others)} has its range; detach that first")
        if any(own.overlaps(each) for each in seen.default_steps):
            raise RefusedError(f"{what} cannot come back: DEFAULT holds rows of its range; drain it first")
        step = replace(
            _step(StepKind.REATTACH, relation, record, f"it was retired on {record.retired_at:%Y-%m-%d}"),
            schema_name=record.schema_name,
            quarantine_schema=relation.schema_name,
        )
        return _plan(connection, seen, Purpose.REATTACHMENT, [step])


# --- inside -------------------------------------------------------------------------------------------------------


def writer(connection: Connection, seen: Survey) -> Writer:
    """Return the writer of statements for a table."""
    return Writer(
        seen.table,
        seen.policy,
        foreign_keys=seen.foreign_keys,
        role=quoted_role(connection),
        as_of_ms=seen.as_of_ms,
        columns=seen.columns,
        key_columns=seen.key_columns,
    )


def quoted_role(connection: Connection) -> str:
    """Return the role that this session acts as, quoted as the catalog's columns are."""
    row = connection.execute("SELECT quote_ident(current_user)").fetchone()
    return str(row[0]) if row else ""


def _renames(connection: Connection, seen: Survey, oid: int) -> tuple[tuple[str, str], ...]:
    return clashing_names(connection, oid, schema_name=seen.policy.quarantine_schema)


def _step(
    kind: StepKind, place: Partition | Relation, bounds: Partition | RetiredPartition, reason: str
) -> PlannedStep:
    """Return a step about a partition.

    :param place: present name and size of the partition.
    :param bounds: the partition, or the record of a retired one.
    """
    return PlannedStep(
        kind=kind,
        schema_name=place.schema_name,
        relation_name=place.relation_name,
        oid=place.oid,
        lower=bounds.lower,
        upper=bounds.upper,
        rows=place.rows if isinstance(place, Partition) else None,
        bytes=place.bytes,
        reason=reason,
        retired_id=bounds.retired_id if isinstance(bounds, RetiredPartition) else None,
    )


def _held(step: PlannedStep, oid: int, *, partition: str = "", consumer: bool = False) -> HeldPartition:
    """Return a partition that stays, from the step that would retire it and whose reason says why it stays."""
    return HeldPartition(
        partition=partition or step.partition,
        oid=oid,
        lower=step.lower,
        upper=step.upper,
        rows=step.rows,
        bytes=step.bytes,
        reason=step.reason,
        consumer=consumer,
    )


def _plan(
    connection: Connection,
    seen: Survey,
    purpose: Purpose,
    steps: Sequence[PlannedStep],
    *,
    held: Sequence[HeldPartition] = (),
    found: Sequence[Finding] = (),
    limit: str | None = None,
    needed: str | None = None,
    overrides_consumers: bool = False,
) -> PartitionPlan:
    table = seen.table
    write = writer(connection, seen)
    written = tuple(replace(each, statements=write.of(each)) for each in steps)
    oids = {each.oid for each in written if each.oid is not None}
    waits: tuple[int, ...] = ()
    modes = ALL_MODES
    if purpose in {Purpose.CREATION, Purpose.REATTACHMENT} and not table.default and not seen.is_broker:
        modes = _AGAINST_ATTACH
        waits = (table.oid,)
    elif purpose is Purpose.DROP:
        waits = tuple(oids)
    elif written:
        waits = (table.oid, *oids, *([table.default.oid] if table.default else []))
    return PartitionPlan(
        purpose=purpose,
        table=table.name,
        table_oid=table.oid,
        policy=seen.policy,
        as_of_ms=seen.as_of_ms,
        steps=written,
        held=tuple(held),
        findings=tuple(found),
        blockers=blockers(connection, waits, modes) if written else (),
        limit=limit,
        lowest_needed=needed,
        overrides_consumers=overrides_consumers,
    )
