"""Calls of scripts, and what their answers mean; blocking and asyncio callers share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from queuekeeper.checks import check_seconds
from queuekeeper.clock import Backoff
from queuekeeper.errors import (
    LUA_ERRORS,
    QueuekeeperError,
    ScatteredClient,
    ScriptError,
    UsageError,
    WrongType,
    from_lua,
)
from queuekeeper.keyspace import check_served, key_owner
from queuekeeper.lua.bundle import Script
from queuekeeper.redis_client import REPLY_TIMEOUT_S, from_redis, refused_in_script
from queuekeeper.wording import named

Value: TypeAlias = str | bytes | int
"""What a key or an argument may be; never a float, whose text differs between languages."""

Reply: TypeAlias = Any
"""What a script returned: integers, bytes, none, and lists of these."""

REPLICA_TIMEOUT_MS = 1_000
"""How long replicas get by default to confirm a write."""

MOST_REPLICAS = 1_000

LONGEST_WAIT_S = 10.0
"""How long one blocking command waits at most; a lost connection is noticed within this time."""

_NOT_RUN = (NoScriptError, AskError, TryAgainError, ClusterDownError, BusyLoadingError, ReadOnlyError)
# Said by the server before a script runs, and unknown to redis-py.
_BACKOFF = Backoff(first_s=0.01, longest_s=0.5)
_SERVER_REFUSALS = frozenset({"BUSY", "MISCONF", "NOREPLICAS"})


class Call(NamedTuple):
    """A script with its keys and arguments.

    :param keys: every key that the script touches.
    """

    script: Script
    keys: Sequence[Value] = ()
    args: Sequence[Value] = ()

    @property
    def command(self) -> tuple[Value, ...]:
        """Command that runs the script."""
        return command(self.script, self.keys, self.args)

    @property
    def client_id(self) -> bytes:
        """Whose session or queue its keys are of."""
        return client_id(self.keys)


def command(script: Script, keys: Sequence[Value], args: Sequence[Value]) -> tuple[Value, ...]:
    """Return the command that runs a script, or the server's own command, which has no digest."""
    if not script.sha1:
        return (script.name, *keys, *args)
    return ("EVALSHA", script.sha1, len(keys), *keys, *args)


def client_id(keys: Sequence[Value]) -> bytes:
    """Return what all keys of a client or queue have in common: calls with the same are kept in order."""
    return key_owner(keys[0]) if keys else b""


def refused_by_cluster(calls: Sequence[Call], client_ids: Sequence[bytes]) -> dict[bytes, QueuekeeperError]:
    """Return why a cluster does not serve some of the calls, by client id.

    :param client_ids: what :func:`client_id` says of each call.
    """
    refused: dict[bytes, QueuekeeperError] = {}
    for call, name in zip(calls, client_ids, strict=True):
        if b"{}" in name and name not in refused:
            try:
                check_served(call.keys)
            except ScatteredClient as error:
                refused[name] = error
    return refused


class Replies(list[Reply]):
    """Replies in the order of their calls. Where a call failed, its exception stands.

    :ivar replicated: for each call, whether as many replicas as asked for have what it wrote; none where none were
        asked for, and where the call failed or its script only reads.
    """

    def __init__(self, count: int) -> None:
        super().__init__([None] * count)
        self.replicated: list[bool | None] = [None] * count

    def or_raise(self) -> Replies:
        """Return the replies themselves, or raise the first exception among them."""
        for reply in self:
            if isinstance(reply, QueuekeeperError):
                raise reply
        return self


def has_not_run(reply: Reply) -> bool:
    """Return whether a reply says that the script was not begun and will be if it is sent again, soon or elsewhere.

    NOSCRIPT, MOVED, ASK, TRYAGAIN, CLUSTERDOWN, MASTERDOWN, LOADING, READONLY (a demoted master) and BUSY.
    """
    return isinstance(reply, _NOT_RUN) or (type(reply) is ResponseError and str(reply).startswith("BUSY "))


def pause_s(reply: Reply, attempt: int) -> float:
    """Return how long to wait before a script that has not run is sent again.

    :param attempt: how often it was sent again before; what is first sent elsewhere needs no wait, and what has to be
        loaded must not wait, as somebody may flush the scripts again meanwhile.
    """
    if isinstance(reply, NoScriptError) or (attempt == 0 and isinstance(reply, AskError)):
        return 0.0
    return _BACKOFF.after(attempt)


def as_ours(error: BaseException, script: Script, address: str, *, keys: Sequence[Value] = ()) -> QueuekeeperError:
    """Return our exception for an error reply or a failed exchange.

    :param keys: those of the call.
    """
    text = str(error)
    word = text.partition(" ")[0].lstrip("-")
    if word in script.errors:
        return from_lua(error)
    # redis-py gives errors that it knows a class of their own and takes the word away.
    if type(error) is not ResponseError or word in _SERVER_REFUSALS or refused_in_script(text):
        return from_redis(error, address)
    if word in LUA_ERRORS:
        return ScriptError(f"{script.name} answered {word}, which its header does not declare: {text}")
    if word == "WRONGTYPE":
        return WrongType(
            f"a key has another type than Queuekeeper gives it, one of {_named(keys)}: find it by TYPE, and move it "
            f"away by RENAME, which keeps what it holds ({script.name}: {script.locate(text)})"
        )
    return ScriptError(f"{script.name}: {script.locate(text)}")


def _named(keys: Sequence[Value]) -> str:
    return named([key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key) for key in keys])


def check_waits(replicas: int, replica_timeout_ms: int, retry_for_s: float) -> None:
    """Check how many replicas are to be waited for, for how long, and for how long a script is sent again.

    :raises UsageError: when a number is out of range; WAIT would never end with 0 ms.
    """
    check_seconds("retry_for_s", retry_for_s, least=0)
    most_ms = REPLY_TIMEOUT_S * 500
    are_integers = type(replicas) is type(replica_timeout_ms) is int
    if not are_integers or not 0 <= replicas <= MOST_REPLICAS or not 1 <= replica_timeout_ms <= most_ms:
        raise UsageError(
            f"cannot wait {replica_timeout_ms} ms for {replicas} replicas: 0 to {MOST_REPLICAS} replicas, 1 to "
            f"{most_ms} ms, both integers"
        )


def longest_wait_s(reply_timeout_s: float | None) -> float:
    """Return how long one blocking command may wait on a connection whose replies are waited for so long."""
    return LONGEST_WAIT_S if reply_timeout_s is None else min(LONGEST_WAIT_S, reply_timeout_s / 2)


def wait_s(seconds: float) -> float:
    """Return a timeout as a blocking command takes it: the server reads 0 as for ever."""
    return max(0.001, round(seconds, 3))


def target_of(reply: Reply, target: str | None) -> str | None:
    """Return the server, as ``host:port``, that a script which has not run is to be sent to under ASKING.

    :param target: the one that it was sent to so.
    :returns: none for the server that holds the slot.
    """
    if isinstance(reply, NoScriptError):
        return target
    if isinstance(reply, AskError) and not isinstance(reply, MovedError):
        return f"{reply.host}:{reply.port}"
    return None
