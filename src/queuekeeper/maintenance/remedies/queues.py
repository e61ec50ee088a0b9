"""Which queues a remedy treats: those that somebody names, or a choice among those that failed its check."""

from __future__ import annotations

from collections.abc import Iterable

from queuekeeper.identity import client_hash
from queuekeeper.jobs import common
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.keyspace import check_client_id
from queuekeeper.maintenance.remedies.model import Queue


class Selection(Parameters):
    """A choice among the queues of a judgement of quality."""

    quality_run_id: str = parameter(
        "",
        title="Quality run",
        help="Treat the queues that failed the remedy's check in this quality run. The newest is taken where a form "
        "leaves this empty, or a command says latest.",
        form_pattern=r"^[0-9A-Za-z_.:+\-]*$",
        longest=200,
        noun="RUN",
        examples=["3f2a9c0d11e47b58"],
    )
    cohorts: str = common.cohorts(what="Treat only queues of these cohorts, as the profile has cut them.")
    client_hashes: tuple[str, ...] = parameter(
        (),
        title="Queues",
        help="Treat only these queues, by their names in reports, whatever their checks said.",
        unset="all queues that failed",
        pattern="^[0-9a-f]{16}$",
        rule="each must be the name of a queue in reports: 16 hex digits",
        noun="HASH",
        examples=[["0123456789abcdef"]],
    )


def named_queues(client_ids: Iterable[str], *, key: bytes) -> list[Queue]:
    """Return queues by their client ids, each once.

    :param key: secret of :func:`queuekeeper.identity.hash_key`.
    :raises UsageError: for an id that cannot be one.
    """
    found = dict.fromkeys(client_ids)
    for client_id in found:
        check_client_id(client_id)
    return [Queue(client_id=client_id, client_hash=client_hash(client_id, key=key)) for client_id in found]
