"""A drain of a DEFAULT partition that fails leaves no copy behind, or says that one is left."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import MagicMock

import psycopg
import pytest

from queuekeeper.errors import CheckFailed
from queuekeeper.maintenance.partitions.drain import Drain
from queuekeeper.maintenance.partitions.model import PlannedStep, Statement, StepKind

pytestmark = pytest.mark.unit

STEP = PlannedStep(
    kind=StepKind.DRAIN, schema_name="public", relation_name="readings_default", oid=7, lower=None, upper=None, bytes=0,
    reason="it holds rows",
)  # fmt: skip


NAMES = ("copy", "lock", "comparison", "round", "exchange")
"""Statements of a drain that are sent one by one."""


class Database:
    """What a drain asks of others: answers that say how many rows the copy differs by, and what was sent."""

    def __init__(self, *, differs: int = 0, locked: int = 0, removable: bool = True) -> None:
        self.locked, self.removable = locked, removable
        self.sent: list[str] = []
        self.said: list[str] = []
        self.noted = 0
        self.connection = MagicMock(closed=False)
        self.connection.execute.side_effect = self.execute
        self.differs = differs
        names = ("preparation", "round", "exchange", "removal")
        self.write = MagicMock(
            **{f"drain_{name}.return_value": (Statement(sql=name),) for name in names},
            **{f"drain_{name}.return_value": Statement(sql=name) for name in ("copy", "lock", "comparison")},
        )

    def execute(self, query: bytes | str, *_: object) -> MagicMock:
        """Answer a statement."""
        text = query.decode() if isinstance(query, bytes) else query
        text = text if text in NAMES else "size"
        self.sent.append(text)
        if text == "lock" and self.locked:
            self.locked -= 1
            raise psycopg.errors.LockNotAvailable("another session holds the table")
        answer = MagicMock(rowcount=3)
        answer.fetchone.return_value = (self.differs,) if text == "comparison" else (150,)
        return answer

    def send(self, statements: Sequence[Statement]) -> None:
        """Send statements that need no answer."""
        self.sent += [each.sql for each in statements]
        if not self.removable and statements[0].sql == "removal":
            raise psycopg.OperationalError("no space")

    def drain(self, copied: list[tuple[int, str]], *, may_repeat: bool = True) -> Drain:
        """Return a drain on this database."""

        def note() -> None:
            self.noted += 1

        return Drain(
            connection=self.connection,
            step=STEP,
            write=self.write,
            send=self.send,
            copied=lambda rows, blocks: copied.append((rows, blocks)),
            may_repeat=lambda: may_repeat,
            note=note,
            say=self.said.append,
        )


def test_rows_are_copied_in_blocks_and_the_exchange_alone_is_tried_again() -> None:
    database, copied = Database(locked=2), list[tuple[int, str]]()
    database.drain(copied).carry_out()

    assert copied == [(3, "100 of 150 blocks"), (3, "150 of 150 blocks")]
    assert database.sent == [
        *("preparation", "size", "copy", "copy"),
        *("round", "lock") * 2,
        *("round", "lock", "round", "comparison", "exchange"),
    ]
    assert (database.noted, database.said) == (1, [])


def test_drain_that_may_not_repeat_its_exchange_removes_its_copy() -> None:
    database = Database(locked=1)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        database.drain([], may_repeat=False).carry_out()

    assert (database.sent[-1], database.noted) == ("removal", 0)


def test_copy_that_differs_is_not_exchanged_and_one_that_cannot_be_removed_is_told() -> None:
    database = Database(differs=-2, removable=False)
    with pytest.raises(CheckFailed, match=r"^the copy would differ by -2 rows, since some changes were not noted"):
        database.drain([]).carry_out()

    assert "exchange" not in database.sent
    assert database.said == [
        "public.readings_default: the copy could not be removed, and the next plan removes it: no space"
    ]
