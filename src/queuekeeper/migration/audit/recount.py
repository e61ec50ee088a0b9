"""Sets the ledger of a finished migration beside what one SQL query finds in source, quarantine and RDB files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.migration.audit.found import Found, found_in
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.rdb.files import SnapshotFiles, files_at
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

EXAMPLES = 5
"""How many examples of each kind of difference are shown."""


@dataclass(frozen=True, kw_only=True)
class AuditedNumber:
    """A number of the ledger beside the recomputed one.

    :param name: fate of rows, or kind of differences.
    :param ledger: none where the ledger has no row.
    :param agrees: whether both are the same; a message whose life ended while the verification ran may be copied to
        one and expired to the other.
    """

    name: str
    ledger: int | None
    recomputed: int
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class AuditedCohort:
    """The numbers of one cohort."""

    cohort: int
    numbers: tuple[AuditedNumber, ...]
    worked_out: ClassVar[tuple[str, ...]] = ("agrees",)

    @property
    def agrees(self) -> bool:
        """Whether all numbers agree."""
        return all(each.agrees for each in self.numbers)


@dataclass(frozen=True, kw_only=True)
class AuditExample:
    """One difference; it never holds a payload.

    :param serial_number: none for a session.
    :param packet_id: none for a session.
    :param expected: what source and plan ask for, shortened; a hash in place of content.
    :param found: what the files or the quarantine hold, likewise.
    """

    cohort: int
    client_id: str
    serial_number: int | None
    packet_id: int | None
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """All differences of one kind, with the first of them.

    :param kind: ``missing``, ``unexpected``, ``unreadable``, ``order``, ``payload``, ``properties``, ``expiry``,
        ``last_packet_id``, ``session_missing`` or ``quarantine``.
    """

    kind: str
    count: int
    examples: tuple[AuditExample, ...]


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit comes to.

    :param files: the RDB files.
    :param taken_at_ms: instant at which the last of them was begun.
    :param numbers: sums over the cohorts.
    :param sessions_elsewhere: sessions in the files that the source does not have; nothing is known of them.
    """

    plan_id: str
    files: tuple[Path, ...]
    taken_at_ms: int
    seconds: float
    sessions_elsewhere: int
    numbers: tuple[AuditedNumber, ...]
    cohorts: tuple[AuditedCohort, ...]
    findings: tuple[AuditFinding, ...]
    worked_out: ClassVar[tuple[str, ...]] = ("agrees",)

    @property
    def agrees(self) -> bool:
        """Whether the ledger is right, and nothing differs."""
        return not self.findings and all(each.agrees for each in self.cohorts)

    @property
    def wrong(self) -> str:
        """Numbers that do not agree and differences, in words."""
        numbers = sum(not each.agrees for cohort in self.cohorts for each in cohort.numbers)
        differences = sum(each.count for each in self.findings)
        return f"{number_of(numbers, 'number')} of the ledger, {number_of(differences, 'difference')}"


def audit_migration(
    connection: Connection, *, plan_id: str, paths: Sequence[Path], database: int = 0, examples: int = EXAMPLES
) -> AuditReport:
    """Recompute the ledger of a finished migration; nothing is written that stays.

    :param connection: to the database of source and ledger, outside of a transaction.
    :param paths: RDB file of the target, or one of each master of a cluster.
    :param database: logical database of the sessions.
    :raises UsageError: when there is no such plan, or a file is none or none of this plan.
    :raises RefusedError: when the plan is not finished, or the source is gone.
    :raises UnreadableSnapshot: when a file is damaged.
    """
    started = time.monotonic()
    files = files_at(paths)
    with translated_errors(connection), connection.transaction(force_rollback=True):
        # All statements see one state of source and ledger.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        prefix, packed, written_at_ms = _checked(connection, plan_id)
        taken_at_ms = _taken_at_ms(files, plan_id=plan_id, written_at_ms=written_at_ms)
        connection.execute(statement("migration/make_audit_found"))
        connection.execute(statement("migration/make_audit_lines"))
        _load(
            connection,
            found_in(files, prefix=prefix, database=database, packed=packed, taken_at_ms=taken_at_ms),
        )
        _check_files(connection, files, plan_id=plan_id, database=database)
        connection.execute(statement("migration/recount"), {"plan_id": plan_id, "taken_at_ms": taken_at_ms})
        connection.execute("ANALYZE audit_lines")
        cohorts = _cohorts(connection.execute(statement("migration/audit_numbers"), {"plan_id": plan_id}).fetchall())
        found = connection.execute(statement("migration/audit_findings"), {"examples": examples}).fetchall()
        (elsewhere,) = connection.execute(statement("migration/audit_elsewhere")).fetchone() or (0,)
    return AuditReport(
        plan_id=plan_id,
        files=files.paths,
        taken_at_ms=taken_at_ms,
        numbers=_sums(cohorts),
        cohorts=cohorts,
        findings=_findings(found),
        sessions_elsewhere=elsewhere,
        seconds=round(time.monotonic() - started, 3),
    )


def _checked(connection: Connection, plan_id: str) -> tuple[str, bool, int]:
    """Return prefix of the keys, whether sessions are packed, and when the plan's last copy or replay ended.

    :raises RefusedError: when the plan cannot be audited.
    """
    row = connection.execute(statement("migration/audit_plan"), {"plan_id": plan_id}).fetchone()
    if row is None:
        raise UsageError(f"there is no plan {plan_id!r} in this database: `queuekeeper run list` lists those there are")
    state, mode, source, layout, prefix, written_at_ms, has_source = row
    if mode != "offline" or source != "postgres":
        raise RefusedError(
            f"plan {plan_id} moves sessions while devices are connected: its rows change after they were counted, and "
            "only an offline migration from PostgreSQL can be recomputed; use "
            f"`queuekeeper online verify {plan_id}` before its commit"
        )
    if state != "verified" or written_at_ms is None:
        raise RefusedError(
            f"plan {plan_id} is {state}: an audit recomputes a finished migration. Copy and verify it until its ledger "
            f"balances, then take a snapshot; `queuekeeper migrate status {plan_id}` says what is left"
        )
    if not has_source:
        raise RefusedError(
            "the tables device_publish_msg and device_session_ctx are not in this database: an audit reads the source. "
            "Restore the backup into a database, with schema queuekeeper, and name that one"
        )
    return prefix, layout == "packed", written_at_ms


def _taken_at_ms(files: SnapshotFiles, *, plan_id: str, written_at_ms: int) -> int:
    """Return the instant of the files.

    :raises UsageError: when they do not say it, or were begun before the last copy or replay had ended.
    """
    taken_at_ms = files.as_of_ms
    if taken_at_ms is None:
        raise UsageError(
            f"{files.paths[0]} does not say when it was written: take another snapshot by BGSAVE, after the copy"
        )
    # A file says the second, and each of a cluster's files must have been begun afterwards.
    for path, each_ms in zip(files.paths, files.taken_at_ms, strict=True):
        if each_ms is not None and each_ms + 999 < written_at_ms:
            raise UsageError(
                f"{path} was begun {(written_at_ms - each_ms) / 1_000:,.0f} s before the last copy or replay of plan "
                f"{plan_id} had ended: take another snapshot by BGSAVE, and name that file"
            )
    return taken_at_ms


def _load(connection: Connection, rows: Iterable[Found]) -> None:
    with connection.cursor().copy(statement("migration/load_audit_found")) as copy:
        for row in rows:
            copy.write_row(row)
    # The planner knows nothing of a table that was just filled.
    connection.execute("ANALYZE audit_found")


def _check_files(connection: Connection, files: SnapshotFiles, *, plan_id: str, database: int) -> None:
    """Check that the files are of this plan's target, and of its masters.

    :raises UsageError: when they are not.
    """
    split = connection.execute(statement("migration/audit_split_client")).fetchone()
    if split is not None:
        raise UsageError(
            f"{files.paths[split[1]]} and {files.paths[split[2]]} both have keys of one session: name one file of each "
            "master of a cluster, of one moment, and none of a replica"
        )
    (is_of_plan,) = connection.execute(statement("migration/audit_is_of_plan"), {"plan_id": plan_id}).fetchone() or (0,)
    if not is_of_plan:
        names = ", ".join(map(str, files.paths))
        raise UsageError(
            f"database {database} of {names} has no session that plan {plan_id} has imported: name the file of the "
            "plan's target, and by --rdb-database the logical database of its sessions"
        )


def _cohorts(rows: Sequence[tuple[Any, ...]]) -> tuple[AuditedCohort, ...]:
    return tuple(
        AuditedCohort(
            cohort=cohort,
            numbers=tuple(
                AuditedNumber(
                    name=name, ledger=None if ledger is None else int(ledger), recomputed=int(recomputed), agrees=agrees
                )
                for _, name, ledger, recomputed, agrees in of_cohort
            ),
        )
        for cohort, of_cohort in groupby(rows, key=lambda row: row[0])
    )


def _sums(cohorts: Sequence[AuditedCohort]) -> tuple[AuditedNumber, ...]:
    return tuple(
        AuditedNumber(
            name=same[0].name,
            ledger=None if any(each.ledger is None for each in same) else sum(each.ledger or 0 for each in same),
            recomputed=sum(each.recomputed for each in same),
            agrees=all(each.agrees for each in same),
        )
        for same in zip(*(each.numbers for each in cohorts), strict=True)
    )


def _findings(rows: Sequence[tuple[Any, ...]]) -> tuple[AuditFinding, ...]:
    return tuple(
        AuditFinding(
            kind=kind,
            count=count,
            examples=tuple(
                AuditExample(
                    cohort=cohort,
                    client_id=client_id,
                    serial_number=serial_number,
                    packet_id=packet_id,
                    expected=expected,
                    found=found,
                )
                for _, _, cohort, client_id, serial_number, packet_id, expected, found in of_kind
            ),
        )
        for (kind, count), of_kind in groupby(rows, key=lambda row: row[:2])
    )
