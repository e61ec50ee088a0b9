"""Checks before clients change over: the trigger, the approval, the clocks, and that the servers are the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from queuekeeper.approvals import old_approval
from queuekeeper.clock import Clock
from queuekeeper.errors import RefusedError
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.online import foreign_writers
from queuekeeper.migration.online.cohorts import OnlineCohort, OnlineCohorts
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.redis_client import RedisClient, clocks_ms, facts
from queuekeeper.sql_statements import statement

MAX_SKEW_MS = 1_000
"""Most milliseconds by which the servers' clocks may differ: both judge when a message expires."""


def check_trigger(connection: Connection) -> None:
    """Check that PostgreSQL refuses writers that do not ask who owns a session.

    :raises RefusedError: when a table has no trigger; names the table.
    """
    missing = [
        each.table for each in foreign_writers.state(connection).triggers if not (each.installed and each.enabled)
    ]
    if missing:
        raise RefusedError(
            f"writers that do not ask are not refused in {' and '.join(missing)}: install the trigger first "
            "(queuekeeper migrate trigger install), or say that every writer asks; nothing was armed"
        )


def check_approval_age(ledger: MigrationLedger, plan_id: str, *, limit_s: float) -> None:
    """Check that a plan is approved and that the approval still counts.

    :raises RefusedError: when nobody has approved the plan, or longer than ``limit_s`` seconds ago.
    """
    approval = ledger.approval(plan_id)
    if approval is None:
        raise RefusedError(f"nobody has approved plan {plan_id}: nothing was moved")
    age_s = (datetime.now(UTC) - approval.approved_at).total_seconds()
    if age_s > limit_s:
        words = old_approval(f"plan {plan_id}", approval.approved_by, age_s=age_s, limit_s=limit_s)
        raise RefusedError(f"{words}: have it approved anew; no client was moved")


def servers_of(connection: Connection, client: RedisClient) -> str:
    """Return a text that identifies both servers; it changes when one of them is replaced or restarted."""
    with translated_errors(connection):
        row = connection.execute(statement("queuekeeper/queries/server_identity")).fetchone()
    postgres = "" if row is None else f"{row[0]}/{row[1]}"
    redis = " ".join(sorted(f"{each.run_id[:12]}/{each.replication_id[:12]}" for each in facts(client)))
    return f"postgres {postgres} redis {redis}"


def _postgres_ms(connection: Connection) -> int:
    with translated_errors(connection):
        row = connection.execute(statement("queuekeeper/queries/server_clock")).fetchone()
    return int(row[0]) if row else 0


def servers_clock(connection: Connection, client: RedisClient) -> Clock:
    """Return a clock that follows the servers: what has expired by this clock has expired for one of them.

    The clock of this machine may be days ahead, and would take living messages for expired ones.
    """
    begun_s = time.monotonic()
    first_ms = max(_postgres_ms(connection), *clocks_ms(client))
    return lambda: first_ms + round(1_000 * (time.monotonic() - begun_s))


def check_skew(connection: Connection, client: RedisClient) -> None:
    """Check that the clocks of both servers agree.

    :raises RefusedError: when they differ too much; says by how much.
    """
    postgres_ms = _postgres_ms(connection)
    skew_ms = max(abs(each - postgres_ms) for each in clocks_ms(client))
    if skew_ms > MAX_SKEW_MS:
        raise RefusedError(
            f"the clocks of PostgreSQL and Redis differ by {skew_ms:,} ms, at most {MAX_SKEW_MS:,} ms are allowed, as "
            "lives of messages are judged by both: set them (NTP), then try again"
        )


def check_clean(cohorts: Sequence[OnlineCohort]) -> None:
    """Check that no cohort has to be verified again.

    :raises RefusedError: when one has to be; names it and the reason.
    """
    for each in cohorts:
        if each.dirty_reason:
            raise RefusedError(
                f"cohort {each.cohort} has to be verified again before a cut over or a commit: {each.dirty_reason}"
            )


def check_servers(
    connection: Connection, client: RedisClient, plan_id: str, cohorts: Sequence[int], driver: int
) -> None:
    """Check that the servers and the driver are still those that last worked on the cohorts.

    :raises RefusedError: when a server was replaced or restarted.
    :raises StaleDriver: when another driver has taken a cohort over.
    """
    dirty = OnlineCohorts(connection).note_servers(
        plan_id, cohorts, driver=driver, servers=servers_of(connection, client)
    )
    if dirty:
        raise RefusedError(
            f"a server has failed over or was restarted while cohort {dirty[0]} was worked on: verify it again "
            f"(queuekeeper online verify {plan_id}) before a cut over or a commit"
        )
