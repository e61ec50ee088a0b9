"""Steps of a router, and the store that answers each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.errors import NotOwner, QueuekeeperError
from queuekeeper.operation import Operation, Pause, mapped
from queuekeeper.sessions.model import OWNER_WORDS, Owner
from queuekeeper.sessions.online import OwnFields
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.postgres_operations import Query
from queuekeeper.sessions.postgres_operations import Step as PostgresStep

POSTGRES: Owner = "postgres"
OWN, FENCED = "redis", "fenced"
"""Owners, as a session's own keys in Redis record them: these keys; nobody, since the session is moving away."""

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


_ReadOwnFields: TypeAlias = Callable[[lua.Call, Any], OwnFields]

Step: TypeAlias = AtRedis | AtPostgres | Pause | Together


def by_redis(operation: Operation[T]) -> Operation[T]:
    """Have Redis answer the steps of an operation."""
    return mapped(operation, AtRedis)


def by_postgres(operation: Operation[T]) -> Operation[T]:
    """Have PostgreSQL answer the steps of an operation."""
    return mapped(operation, lambda step: AtPostgres(step, operation))


def judged_at_redis(
    operation: Operation[T], ownership: Ownership, own_fields: _ReadOwnFields, *, was_just_asked: bool
) -> Operation[T]:
    """Read in Redis, unless the session's own fields, which come first, say that another store owns it.

    :param own_fields: of the layout, reads them from the first reply.
    :param ownership: what PostgreSQL says.
    :param was_just_asked: PostgreSQL has said so during this call: what is fenced has not changed since.
    :raises NotOwner: when it is another store's, or Redis does not know.
    """
    calls = next(operation)
    replies = yield calls
    if not isinstance(replies[0], QueuekeeperError):
        fields = own_fields(calls[0], replies[0])
        owner = fields.owner.decode("utf-8", "replace") or "nobody"
        epoch = fields.epoch.decode("utf-8", "replace")
        as_told = owner == OWN and epoch.isdecimal() and int(epoch) >= (ownership.epoch or 0)
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
            raise NotOwner(f"{OWNER_WORDS[owner]} owns the session")
    return (yield from mapped(operation, answer=answer))
