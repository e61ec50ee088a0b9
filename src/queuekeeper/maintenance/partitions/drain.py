"""Moves the rows of a DEFAULT partition into partitions of their own while others write to it.

The rows are copied in blocks, changes since then are noted and repeated, and at the end the tables are exchanged.
Others wait only for the exchange. When anything fails before it, the copy is removed and the table is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from queuekeeper.errors import CheckFailed
from queuekeeper.jobs.pace import Breaker
from queuekeeper.maintenance.partitions.catalog import block_count
from queuekeeper.maintenance.partitions.model import PlannedStep, Statement
from queuekeeper.maintenance.partitions.statements import Writer
from queuekeeper.postgres import Connection, server_words

_COPIED_BLOCKS = 100
_ROUNDS = 5
_FEW_CHANGES = 1_000


@dataclass(frozen=True, kw_only=True)
class Drain:
    """One try of a step that drains a DEFAULT partition.

    :param write: writes the statements of the step.
    :param send: sends statements; those between BEGIN and COMMIT are one transaction.
    :param copied: called after each copy with the number of its rows, and with the blocks copied so far in words; may
        wait.
    :param may_repeat: called when others hold a lock at the exchange; waits and returns true, or returns false when no
        time is left.
    :param note: writes the record, in the transaction of the exchange.
    :param say: prints what is being done.
    """

    connection: Connection
    step: PlannedStep
    write: Writer
    send: Callable[[Sequence[Statement]], None]
    copied: Callable[[int, str], None]
    may_repeat: Callable[[], bool]
    note: Callable[[], None]
    say: Callable[[str], None]

    def carry_out(self) -> None:
        """Copy the rows and exchange the tables, or leave no copy behind.

        :raises CheckFailed: when the copy would differ.
        """
        try:
            self.send(self.write.drain_preparation(self.step))
            self._copy()
            self._exchange()
        except BaseException:
            if not self.connection.closed:
                self._clear()
            raise

    def _copy(self) -> None:
        blocks = block_count(self.connection, self.step.oid or 0)
        breaker, end = Breaker(self.say), 0
        while end < blocks:
            first, end = end, end + breaker.size(_COPIED_BLOCKS)
            breaker.sent()
            rows = self._rows(self.write.drain_copy(self.step, str(first), str(end)))
            breaker.answered()
            self.copied(rows, f"{min(end, blocks):,} of {blocks:,} blocks")

    def _exchange(self) -> None:
        """Repeat the changes since the copy, then exchange the tables; others wait only for the last few changes."""
        while True:
            for _ in range(_ROUNDS):
                with self.connection.transaction():
                    changes = self._round()
                if changes < _FEW_CHANGES:
                    break
            try:
                with self.connection.transaction():
                    self._rows(self.write.drain_lock(self.step))
                    self._round()
                    self._compare()
                    for each in self.write.drain_exchange(self.step):
                        self._rows(each)
                    self.note()
                return
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                # The copy stays up to date, so only the exchange is tried again.
                if not self.may_repeat():
                    raise

    def _round(self) -> int:
        """Repeat the changes that were noted, and return how many there were."""
        counts = [self._rows(each) for each in self.write.drain_round(self.step)]
        return counts[0]

    def _compare(self) -> None:
        row = self.connection.execute(self.write.drain_comparison(self.step).sql.encode()).fetchone()
        if row is None or row[0]:
            raise CheckFailed(
                f"the copy would differ by {row[0] if row else 0:+,} rows, since some changes were not noted: nothing "
                "was exchanged; create the partitions again"
            )

    def _clear(self) -> None:
        try:
            self.send(self.write.drain_removal(self.step))
        except psycopg.Error as error:
            self.say(
                f"{self.step.partition}: the copy could not be removed, and the next plan removes it: "
                f"{server_words(error)}"
            )

    def _rows(self, each: Statement) -> int:
        return self.connection.execute(each.sql.encode()).rowcount
