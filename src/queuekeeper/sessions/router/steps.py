"""Steps of a router, and the store that answers each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.errors import NotOwner, QueuekeeperError
from queuekeeper.operation import Operation, Pause, mapped
from queuekeeper.sessions.model import Owner
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.pages import STORES
from queuekeeper.sessions.postgres_operations import Query
from queuekeeper.sessions.postgres_operations import Step as PostgresStep

POSTGRES: Owner = "postgres"
REDIS: Owner = "redis"
FENCED = "fenced"
"""Owner, as recorded in Redis, of a session that is moving back."""

T = TypeVar("T")


class AtRedis(NamedTuple):
    """A step that Redis answers."""

    calls: Sequence[lua.Call]


class AtPostgres(NamedTuple):
    """A step that PostgreSQL answers.

    :ivar operation: operation of the step; a transaction keeps its connection from step to step.
    """

    step: PostgresStep
    operation: object


class Together(NamedTuple):
    """Independent operations; the answer is the result of each, or its exception."""

    operations: Sequence[Operation[Any]]


Step: TypeAlias = AtRedis | AtPostgres | Pause | Together


def by_redis(operation: Operation[T]) -> Operation[T]:
    """Have Redis answer the steps of an operation."""
    return mapped(operation, AtRedis)


def by_postgres(operation: Operation[T]) -> Operation[T]:
    """Have PostgreSQL answer the steps of an operation."""
    return mapped(operation, lambda step: AtPostgres(step, operation))


def judged_at_redis(operation: Operation[T], ownership: Ownership, *, was_just_asked: bool) -> Operation[T]:
    """Read in Redis, unless the session's own fields, which come first, say that it is not Redis's.

    :param ownership: what PostgreSQL says.
    :param was_just_asked: PostgreSQL has said so during this call: what is fenced has not changed since.
    :raises NotOwner: when it is another store's, or Redis does not know.
    """
    calls = next(operation)
    replies = yield calls
    if not isinstance(replies[0], QueuekeeperError):
        fields = dict(calls[0].script.read(replies[0]).fields)
        owner = fields.get(b"owner", b"nobody").decode("utf-8", "replace")
        epoch = fields.get(b"epoch", b"").decode("utf-8", "replace")
        as_told = owner == REDIS and epoch.isdecimal() and int(epoch) >= (ownership.epoch or 0)
        if not as_told and not (owner == FENCED and was_just_asked):
            raise NotOwner(f"{owner} owns the session (epoch {epoch or 'unknown'})")
    return (yield from mapped(operation, answer=replies))


def judged_at_postgres(client_id: str, operation: Operation[T]) -> Operation[T]:
    """Read in PostgreSQL, unless it says at the first step that the session is not its own.

    :raises NotOwner: when it is not.
    """
    step = next(operation)
    owner = Query(name="look_up_owners", parameters={"client_ids": [client_id]})
    owners, *answer = yield replace(step, queries=(owner, *step.queries))
    for _, owner, *_ in owners:
        if owner != POSTGRES:
            raise NotOwner(f"{STORES[owner]} owns the session")
    return (yield from mapped(operation, answer=answer))
