"""Lists the clients that have sessions in the source, page by page and without Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from queuekeeper.keyspace import client_slot
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement


def clients_of(
    connection: Connection, plan: MigrationPlan, cohorts: Sequence[int], *, missing: str = "restore its tables first"
) -> Iterator[str]:
    """Yield the ids of the source's clients in some cohorts.

    :param connection: a connection with an open transaction.
    :param missing: advice for the error when the source's tables are missing.
    """
    firsts = [cohort.slot_first for cohort in plan.cohorts]
    chosen = set(cohorts)
    with translated_errors(connection, missing=missing), connection.cursor(name="clients") as cursor:
        cursor.itersize = 5_000
        cursor.execute(statement("migration/clients"))
        for (client_id,) in cursor:
            # An empty id has no keys.
            if client_id and bisect_right(firsts, client_slot(client_id)) - 1 in chosen:
                yield client_id
