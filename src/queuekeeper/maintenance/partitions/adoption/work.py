"""Copies, compares and exchanges the tables of an adoption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import LiteralString

import psycopg
from psycopg import IsolationLevel, sql

from queuekeeper.clock import Backoff
from queuekeeper.errors import CheckFailed, RefusedError, StalePlan
from queuekeeper.jobs.model import World
from queuekeeper.maintenance.partitions.adoption.model import AdoptionCounts, AdoptionParameters
from queuekeeper.maintenance.partitions.adoption.statements import RowKey, Said, Statements
from queuekeeper.maintenance.partitions.adoption.table import (
    Table,
    extremes,
    fingerprint,
    reasons_against,
    sequences,
    too_many,
)
from queuekeeper.maintenance.partitions.catalog import PartitionedTable, blockers, read_table
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.plan import ALL_MODES
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, spans
from queuekeeper.maintenance.partitions.ranges import missing
from queuekeeper.maintenance.partitions.statements import Writer
from queuekeeper.maintenance.partitions.survey import name_of_partition, names_free_in
from queuekeeper.postgres import Connection, outside_dependants
from queuekeeper.sql_statements import statement
from queuekeeper.wording import named, number_of

_QUERIES: LiteralString = "maintenance/adoption/"
_FEW_CHANGES = 500
_TRIES = 10
_BACKOFF = Backoff(first_s=0.1, longest_s=2.0)
_LOOK_S = 1.0

_BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class _TooLong(Exception):
    """Others would wait for longer than they may."""


@dataclass
class Work:
    """Works on the table of one adoption.

    :param statements: names and statements of both tables.
    :param definitions: what defines the old table besides its storage.
    """

    connection: Connection
    world: World[AdoptionParameters]
    statements: Statements
    definitions: list[tuple[str, str]]
    _looked_s: float = field(default=float("-inf"), init=False)

    @property
    def asked(self) -> AdoptionParameters:
        """Parameters of the run."""
        return self.world.parameters

    @property
    def table(self) -> Table:
        """The table that serves."""
        return self.statements.table

    @property
    def key(self) -> Key:
        """The partition key."""
        return self.statements.key

    # --- partitions ----------------------------------------------------------------------------------------------

    @property
    def policy(self) -> PartitionPolicy:
        """The policy of the copy while it is filled."""
        made = self.asked.policy(storage=self.table.storage)
        return PartitionPolicy(**{**made.model_dump(), "table": self.statements.copy.as_string(None)})

    def first_partitions(self) -> list[Said]:
        """Return the statements that create the partitions of the copy: from the oldest row to ahead of the clock."""
        found = extremes(self.connection, self.statements.serving, self.key, sql.SQL(""))
        return self._created(PartitionedTable(
            oid=0, name=self.policy.table, schema_name=self.statements.new_room,
            relation_name=self.table.relation_name, owner=self.table.owner, key=self.key, partitions=(), default=None,
        ), found)  # fmt: skip

    def cover(self, where: sql.Composable, table: sql.Identifier) -> bool:
        """Create the partitions that rows need, and those ahead of the clock; return whether any was missing.

        :param where: WHERE clause that picks the rows of the table.
        """
        found = extremes(self.connection, table, self.key, where)
        made = self._created(read_table(self.connection, self.policy.table), found)
        with self.connection.transaction():
            self._send(made)
        return bool(made)

    def _created(self, copy: PartitionedTable, rows: tuple[int, int] | None) -> list[Said]:
        policy, key = self.policy, self.key
        found = spans(policy, key)
        now = key.clock(self.world.clock())
        points = [*(rows or ()), *([] if now is None else [now])] or [0]
        lowest, present = min([*points, *(each.start for each in copy.ranges)]), max(points)
        end = found.step.ceiling(found.ahead.after(present))
        start = key.edge_before(found.step, lowest)
        last = key.last_edge()
        end = max([end if last is None else min(end, last), *(each.end for each in copy.ranges)])
        wanted = missing(copy.ranges, step=found.step, start=start, now=start, end=end, at_most=policy.at_most + 1)
        if len(wanted) + len(copy.ranges) > policy.at_most:
            raise too_many(policy.at_most, self.asked, key.text(lowest), key.text(end))
        names = names_free_in(
            self.connection,
            [name_of_partition(self.table.relation_name, key, each.start) for each in wanted],
            schema_name=self.table.schema_name,
            quarantine_schema=policy.quarantine_schema,
        )
        writer = Writer(copy, policy, foreign_keys=(), role=self.table.role, as_of_ms=self.world.now_ms)
        return self.statements.creation(
            writer,
            [(name, key.text(each.start), key.text(each.end)) for name, each in zip(names, wanted, strict=True)],
        )

    # --- preparation ---------------------------------------------------------------------------------------------

    def preparation(self) -> list[Said]:
        """Return the statements that make the copy and note changes."""
        asked = self.asked.model_copy(update={"storage": self.policy.storage}).model_dump_json()
        return self.statements.preparation(self.definitions, self.first_partitions(), asked=asked)

    def prepare(self) -> None:
        """Make the copy, in one transaction: after a crash there is all of it or nothing."""
        made, attempt = self.preparation(), 0
        while True:
            try:
                with self.connection.transaction():
                    self._send(made)
                return
            except _BUSY as error:
                self._tell_blocked(error)
                self._rest(_BACKOFF.after(attempt))
                attempt += 1

    def check_unchanged(self) -> None:
        """Refuse to go on when somebody has altered the table.

        :raises StalePlan: with the way back.
        :raises RefusedError: with what has come to refer to it, and to be in the way.
        """
        now = self.statements.definitions_of(self.connection, self.table.oid, self.asked)
        if fingerprint(now) != fingerprint(self.definitions):
            raise StalePlan(
                f"{self.table.name} was altered since its copy was made, so nothing was exchanged: remove the copy "
                f"by `queuekeeper partitions adopt {quote(self.table.name)} --act back`, then adopt the table again"
            )
        if reasons := reasons_against(self.connection, self.table.oid, self.asked):
            raise RefusedError(
                f"{self.table.name} was not exchanged, since this has come meanwhile: {'; '.join(reasons)}; "
                "`queuekeeper run list` shows the run, and `queuekeeper partitions adopt --go-on RUN` goes on then"
            )

    def check_return(self) -> None:
        """Refuse the way back where what belongs to the table in use, or refers to it, would be lost with it.

        :raises RefusedError: naming it.
        """
        now = self.statements.definitions_of(self.connection, self.table.oid, self.asked)
        self._check_columns(now)
        here, there = (
            {words for moment, words in each if moment != "column" and _is_kept(moment, words)}
            for each in (now, self.statements.definitions_of(self.connection, self.statements.old_oid, self.asked))
        )
        lost = [
            words for words, refers in reasons_against(self.connection, self.table.oid, self.asked).items() if refers
        ]
        if here != there:
            lost.append(
                f"it was altered, and the old table was not ({named(sorted(here ^ there))}): undo that, and do it "
                "again afterwards"
            )
        if lost:
            raise RefusedError(
                f"the way back of {self.table.name} would lose what has come since it was adopted, and nothing was "
                f"exchanged: {'; '.join(lost)}; or commit"
            )

    def _check_columns(self, now: list[tuple[str, str]]) -> None:
        here, there = ({words for moment, words in each if moment == "column"} for each in (now, self.definitions))
        if here != there:
            raise RefusedError(
                f"{self.table.name} has other columns than the old table ({', '.join(sorted(here ^ there))}): make "
                f"both the same, or commit; the old table is {self.statements.old.as_string(None)}"
            )

    # --- rows ----------------------------------------------------------------------------------------------------

    def batches(self, after: RowKey) -> Iterator[tuple[RowKey, tuple[str, ...], int]]:
        """Yield the batches of the table that serves: the keys before its first and of its last row, and its rows."""
        while True:
            query = self.statements.batch(after, self.world.size(self.asked.batch_rows))
            row = self.connection.execute(query).fetchone()
            self.world.breaker.answered()
            if row is None:
                return
            *texts, number = row
            until = tuple(map(str, texts))
            yield after, until, int(number)
            after = until

    def copy(self, after: RowKey, until: RowKey, number: int) -> int:
        """Copy the rows of a batch and return how many there were."""
        self._hold(number)
        query = self.statements.copying(after, until)
        try:
            row = self.connection.execute(query).fetchone()
        except psycopg.errors.CheckViolation:
            if not self.cover(self.statements.within(after, until), self.statements.serving):
                raise
            row = self.connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def compare(self, aside: sql.Identifier, after: RowKey, until: RowKey, number: int) -> int:
        """Compare the rows of a batch by key and hash, in one snapshot, and return how many there were.

        :param aside: the table that does not serve.
        :raises CheckFailed: when rows differ whose changes were not noted.
        """
        self._hold(number)
        row = self.connection.execute(self.statements.comparison(aside, after, until)).fetchone()
        seen, differing = row or (0, 0)
        if differing and aside == self.statements.old:
            raise CheckFailed(
                f"{number_of(differing, 'row')} of {self.table.name} and of the old table {aside.as_string(None)} "
                "differ, and no change of them was noted: a partition was attached, detached or truncated by hand, a "
                "trigger was disabled, or somebody wrote into the old table. Nothing was exchanged. Make the rows of "
                "the old table the same, or commit"
            )
        if differing:
            raise CheckFailed(
                f"{number_of(differing, 'row')} of the copy of {self.table.name} differ, and no change of them was "
                "noted: a trigger was disabled, or somebody wrote into it. Nothing was exchanged. Remove the copy by "
                f"`queuekeeper partitions adopt {quote(self.table.name)} --act back`, then adopt the table again"
            )
        return int(seen)

    # --- changes -------------------------------------------------------------------------------------------------

    def catch_up(self, source: sql.Identifier, target: sql.Identifier) -> int:
        """Repeat noted changes until few are left, and return how many there were."""
        total, whole = 0, False
        while True:
            size = self.world.size(self.asked.batch_rows)
            self._hold(size)
            try:
                repeated, differing = self._round(source, target, None if whole else size)
            except psycopg.errors.CheckViolation:
                # A row came whose key lies outside of all partitions.
                if target != self.statements.copy or not self.cover(sql.SQL(""), self.statements.changes):
                    raise
                continue
            total += repeated
            if differing and whole:
                raise self._differing(differing)
            # A row in whose place another one is waits for the change that makes room.
            whole = bool(differing)
            if repeated < min(size, _FEW_CHANGES) and not whole:
                return total

    def _round(self, source: sql.Identifier, target: sql.Identifier, size: int | None) -> tuple[int, int]:
        """Repeat some noted changes; both tables and the notes are seen as of one instant."""
        before = self.connection.isolation_level
        self.connection.isolation_level = IsolationLevel.REPEATABLE_READ
        try:
            with self.connection.transaction():
                return self._repeat(source, target, size)
        finally:
            # What broke the connection is the error to show.
            if not self.connection.closed:
                self.connection.isolation_level = before

    def _repeat(self, source: sql.Identifier, target: sql.Identifier, size: int | None) -> tuple[int, int]:
        row = self.connection.execute(self.statements.last_change(size)).fetchone()
        if row is None or row[0] is None:
            return 0, 0
        for each in self.statements.repetition(source, target, int(row[0])):
            done = self.connection.execute(each)
        repeated, differing = done.fetchone() or (0, 0)
        return int(repeated), int(differing)

    def _differing(self, differing: int) -> CheckFailed:
        return CheckFailed(
            f"{number_of(differing, 'changed row')} of {self.table.name} cannot be repeated on the other table, since "
            "another row has the same key or unique value there: the table in use was left as it is; correct these rows"
        )

    # --- exchange ------------------------------------------------------------------------------------------------

    def exchange(self) -> AdoptionCounts | None:
        """Put the copy in the place of the table; return none when others held the table all the time."""
        write = self.statements
        return self._exchanged(
            write.serving,
            write.copy,
            write.exchange(self.definitions, sequences(self.connection, self.table.oid)),
            # Nothing may be retired before the commit: the old table would bring it back.
            lambda: save_policy(self.connection, self._kept(retention=None)),
            check=self.check_unchanged,
        )

    def exchange_back(self, forget: Callable[[], None]) -> AdoptionCounts | None:
        """Put the old table in its place again; return none when others held the table all the time.

        :param forget: removes the policy of the table.
        """
        write = self.statements
        return self._exchanged(write.serving, write.old, self.returning(), forget, check=self.check_return)

    def returning(self) -> list[Said]:
        """Return the statements by which the old table takes its place again, with the triggers as they are by now."""
        now = self.statements.definitions_of(self.connection, self.table.oid, self.asked)
        return self.statements.exchange_back(now, sequences(self.connection, self.table.oid))

    def commit(self) -> None:
        """Drop the old table and all that noted changes, and let the policy retire partitions from now on."""
        self.check_removal()
        made = [*self.statements.silence(), *self.statements.removal()]
        self._insist_briefly(made, lambda: save_policy(self.connection, self._kept(retention=self.asked.retention)))

    def stop_noting(self) -> None:
        """Leave the old table as it was."""
        self._insist_briefly(self.statements.silence())

    def remove(self) -> None:
        """Drop what stands aside; nobody uses it."""
        self.check_removal()
        with self.connection.transaction():
            self._send(self.statements.removal())

    def check_removal(self) -> None:
        """Refuse to drop what stands aside while anything of others would go with it.

        :raises RefusedError: naming it.
        """
        if outside := outside_dependants(self.connection, self.statements.rooms):
            raise RefusedError(
                f"{named(outside)} of others would go with the table that was set aside, and nothing was dropped: drop "
                f"that, or let it refer to {self.table.name}"
            )

    def _kept(self, *, retention: str | None) -> PartitionPolicy:
        kept = self.asked.policy(storage=self.table.storage)
        return replace(kept, table=self.table.name, retention=retention)

    def _exchanged(
        self,
        source: sql.Identifier,
        target: sql.Identifier,
        made: list[Said],
        note: Callable[[], None],
        *,
        check: Callable[[], None],
    ) -> AdoptionCounts | None:
        counts = AdoptionCounts()

        def act(bounded: _Bounded) -> None:
            repeated, differing = self._repeat(source, target, None)
            if differing:
                raise self._differing(differing)
            check()
            bounded.send_all(made)
            note()
            counts.repeated += repeated

        for attempt in range(_TRIES):
            counts.repeated += self.catch_up(source, target)
            try:
                if self._briefly(self.statements.lock(target), act):
                    counts.exchanged = 1
                    return counts
            except psycopg.errors.CheckViolation:
                if target != self.statements.copy or not self.cover(sql.SQL(""), self.statements.changes):
                    raise
            else:
                self._rest(_BACKOFF.after(attempt))
        return None

    # --- inside --------------------------------------------------------------------------------------------------

    def _send(self, made: Iterable[Said]) -> None:
        for words, _ in made:
            self.connection.execute(words.encode())

    def _briefly(self, lock: Said, act: Callable[[_Bounded], None]) -> bool:
        """Do something in one transaction for which others wait; return false when it would take too long.

        :param lock: statement of the first lock. Whoever has the table has it first, so nobody waits crosswise.
        """
        try:
            with self.connection.transaction():
                bounded = _Bounded(self.connection, self.asked.exchange_ms)
                bounded.lock(lock[0])
                act(bounded)
                bounded.end()
        except (*_BUSY, psycopg.errors.QueryCanceled, _TooLong) as error:
            self._tell_blocked(error)
            return False
        return True

    def _insist_briefly(self, made: Iterable[Said], note: Callable[[], None] = lambda: None) -> None:
        """Send statements for which others wait, again and again until they have been quick enough."""
        kept = list(made)

        def act(bounded: _Bounded) -> None:
            bounded.send_all(kept)
            note()

        attempt = 0
        while not self._briefly(self.statements.lock(), act):
            self._rest(_BACKOFF.after(attempt))
            attempt += 1

    def _tell_blocked(self, error: Exception) -> None:
        held = blockers(self.connection, [self.table.oid], ALL_MODES)
        names = ", ".join(f"pid {each.pid} ({each.state})" for each in held[:3])
        slow = isinstance(error, _TooLong | psycopg.errors.QueryCanceled)
        why = "it would have taken too long" if slow else "others have it in use"
        self.world.say(
            f"{self.table.name}: a lock was given back, since {why}{': ' + names if names else ''}; again soon"
        )

    def _rest(self, seconds: float) -> None:
        """Wait; end with the run's pause or time limit."""
        self.world.rest()
        self.world.wait(0)
        time.sleep(seconds)

    def _hold(self, number: int) -> None:
        """Wait for the run's pace, and while standbys lag or sessions wait for locks.

        :raises CheckFailed: when the copy takes more disk than it may.
        """
        self.world.pace(number)
        told = ""
        while time.monotonic() - self._looked_s >= _LOOK_S:
            copies = [self.statements.copy.as_string(None), self.statements.changes.as_string(None)]
            row = self.connection.execute(statement(f"{_QUERIES}strain"), {"copies": copies}).fetchone()
            lag_s, waiting, size = row or (None, 0, 0)
            if self.asked.disk_mib is not None and size > self.asked.disk_mib * 2**20:
                raise RefusedError(
                    f"the copy of {self.table.name} takes {size / 2**20:,.0f} MiB, and may take "
                    f"{self.asked.disk_mib:,}: the table in use is untouched; remove the copy by `queuekeeper "
                    f"partitions adopt {quote(self.table.name)} --act back`, and adopt it with more disk"
                )
            why = ""
            if lag_s is not None and lag_s > self.asked.max_standby_lag_s:
                why = f"a standby lags by {lag_s:,.0f} s"
            elif waiting > self.asked.max_waiting:
                why = f"sessions wait for locks: {waiting:,}"
            if not why:
                self._looked_s = time.monotonic()
                return
            if not told:
                told = why
                self.world.say(f"{self.table.name}: the copy waits, since {why}")
            self._rest(_LOOK_S)


def _is_kept(moment: str, words: str) -> bool:
    """Tell whether both tables of an adoption have this: triggers alone are asleep on the one that stands aside."""
    return moment in {"owner", "column", "check", "copy"} or (moment == "arrive" and not words.startswith("ALTER "))


class _Bounded:
    """Bounds the time for which a transaction keeps others waiting, from its first lock to its end."""

    def __init__(self, connection: Connection, most_ms: int) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + most_ms / 1_000
        self._most_ms = most_ms

    def lock(self, words: str) -> None:
        """Send the statement of the first lock, which may wait for half of the time."""
        self._set(self._most_ms // 2, self._most_ms)
        self._connection.execute(words.encode())

    def send_all(self, made: Iterable[Said]) -> None:
        """Send statements, each of which may take what is left of the time."""
        for words, _ in made:
            left_ms = self._left_ms()
            self._set(left_ms, left_ms)
            self._connection.execute(words.encode())

    def end(self) -> None:
        """Refuse to commit when the time is over."""
        self._left_ms()

    def _left_ms(self) -> int:
        left_ms = round((self._end_s - time.monotonic()) * 1_000)
        if left_ms <= 0:
            raise _TooLong
        return left_ms

    def _set(self, lock_ms: int, statement_ms: int) -> None:
        self._connection.execute(
            f"SET LOCAL lock_timeout = {lock_ms}; SET LOCAL statement_timeout = {statement_ms}".encode()
        )
