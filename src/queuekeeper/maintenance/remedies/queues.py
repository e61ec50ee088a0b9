"""Which queues a remedy treats: those that somebody names, or a choice among those that failed its check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queuekeeper.identity import client_hash
from queuekeeper.keyspace import check_client_id
from queuekeeper.maintenance.remedies.model import Queue


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A choice among the queues of a judgement of quality.

    :param quality_run_id: the judgement; empty for the newest.
    :param cohorts: ``all`` or such as ``0-3,7``.
    :param client_hashes: names of queues in reports; when there are any, only these, whatever their checks said.
    """

    quality_run_id: str = ""
    cohorts: str = "all"
    client_hashes: tuple[str, ...] = ()


def named_queues(client_ids: Iterable[str], *, key: bytes) -> list[Queue]:
    """Return queues by their client ids, each once.

    :param key: secret of :func:`queuekeeper.identity.hash_key`.
    :raises UsageError: for an id that cannot be one.
    """
    found = dict.fromkeys(client_ids)
    for client_id in found:
        check_client_id(client_id)
    return [Queue(client_id=client_id, client_hash=client_hash(client_id, key=key)) for client_id in found]
