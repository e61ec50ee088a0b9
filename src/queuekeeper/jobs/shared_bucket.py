"""Holds all that share a rate to it together, in whatever process and on whatever machine they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from queuekeeper.clock import UNUSED_S
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement


@dataclass(frozen=True)
class SharedBucket:
    """A bucket in the control database, by PostgreSQL's clock.

    Nobody has to know how many share it: an executor that comes late takes from the same bucket, and what a killed one
    has taken is at most its last step.

    :param run_id: whose rate it is: that of a run, a plan or a profile.
    """

    connection: Connection
    run_id: str
    ahead_s: float = field(default=0.05, init=False)

    def take(self, amount: float, *, rate: float, at: datetime | None = None) -> float:
        """Take so much work, and return how much the rate has to release before it may be done; 0 or less for none.

        :param at: when; none for now.
        """
        values = {"run_id": self.run_id, "amount": amount, "per_s": rate, "unused_s": UNUSED_S, "at": at}
        with translated_errors(self.connection):
            row = self.connection.execute(statement("queuekeeper/queries/take_work"), values).fetchone()
        return float(row[0]) if row else 0.0
