"""Chooses the queues of a remedy: those named by a person, or those that failed the remedy's check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import check_client_id, parse_cohorts
from queuekeeper.maintenance.remedies.model import NEWEST, Queue, Selection
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Queues of a quality run, and the rules of that run.

    :param limit: messages that a session may hold.
    :param default_ttl_s: seconds that a message without an expiry lives.
    """

    quality_run_id: str
    queues: tuple[Queue, ...]
    limit: int
    default_ttl_s: int


def named_queues(client_ids: Iterable[str], *, key: bytes) -> list[Queue]:
    """Return the queues of client ids, each once.

    :param key: secret of :func:`queuekeeper.identity.hash_key`.
    :raises UsageError: when an id is no valid client id.
    """
    found = dict.fromkeys(client_ids)
    for client_id in found:
        check_client_id(client_id)
    return [Queue(client_id=client_id, client_hash=client_hash(client_id, key=key)) for client_id in found]


def failed_queues(connection: Connection, *, remedy: str, selection: Selection) -> Judged:
    """Return the Redis queues that failed a remedy's check in a quality run, in the order of their hashes.

    :raises UsageError: when there is no such quality run, cohort or client hash.
    :raises RefusedError: when the run's queues have been dropped since.
    """
    named = "" if selection.quality_run_id == NEWEST else selection.quality_run_id
    with translated_errors(connection):
        run = connection.execute(statement("quality/judged_profiles"), {"quality_run_id": named or None}).fetchone()
        if run is None:
            wanted = f"quality run {named!r}" if named else "quality run yet"
            raise UsageError(f"there is no {wanted} with a profile of Redis: run `queuekeeper quality run` first")
        quality_run_id, profile_ids, cohort_count, limit, default_ttl_s, is_forgotten = run
        if is_forgotten:
            raise RefusedError(
                f"the queues of quality run {quality_run_id} have been dropped since, as newer profiles are there: "
                "name a newer run, or make one by `queuekeeper quality run`"
            )
        cohorts = parse_cohorts(selection.cohorts, count=cohort_count)
        rows = connection.execute(
            statement("quality/queues_to_repair"),
            {
                "remedy": remedy,
                "profile_ids": profile_ids,
                "cohorts": cohorts,
                "client_hashes": list(selection.client_hashes) or None,
            },
        ).fetchall()
    queues = tuple(Queue(client_id=client_id, client_hash=digest) for client_id, digest in rows)
    missing = sorted(set(selection.client_hashes) - {queue.client_hash for queue in queues})
    if missing:
        raise UsageError(f"quality run {quality_run_id} knows no queue {_listed(missing)} in these cohorts")
    return Judged(quality_run_id=quality_run_id, queues=queues, limit=limit, default_ttl_s=default_ttl_s)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
