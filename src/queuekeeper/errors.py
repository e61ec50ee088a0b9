"""Every exception that Queuekeeper raises on purpose, and the one table of Lua error words.

::

    QueuekeeperError                 exit code
    ├── UsageError                   2   a parameter, identifier or file is wrong: nothing was started
    │   ├── InvalidName
    │   ├── InvalidLife
    │   ├── InvalidPolicy
    │   ├── InvalidTopic
    │   ├── MissingExtra
    │   ├── PayloadTooLarge
    │   ├── ScatteredClient
    │   ├── UnknownConsumer
    │   ├── UnknownQueue
    │   └── UnknownTable
    ├── RefusedError                 4   the world does not allow it: a pre-flight check, a missing privilege
    │   ├── ServerUnavailable
    │   │   └── StoodStill
    │   ├── NotAllowed
    │   ├── SchemaMismatch
    │   ├── NotOwner
    │   ├── SessionFenced
    │   ├── StaleDriver
    │   ├── MovedOn
    │   ├── ImportedBefore
    │   ├── PacketIdInUse
    │   ├── NotPartitioned
    │   ├── ForeignOwner
    │   ├── KeyFromFuture
    │   ├── MaintenanceRunning
    │   ├── QueueFull
    │   ├── ListsTooLong
    │   ├── QueueBusy
    │   ├── SequenceConflict
    │   ├── NumberReused
    │   ├── UnknownLayout
    │   ├── NoConsumer
    │   ├── HasLeases
    │   ├── ConsumerLeaving
    │   ├── ConsumerBehind
    │   └── MembershipChanged
    ├── StalePlan                    3   the source, the parameters or the code changed after the plan was made
    ├── CheckFailed                  1   a verification found differences
    ├── StoreFull                    1   the server refused a write for want of memory
    ├── UnreadableRecord             1   a stored value is none of ours, or was damaged
    ├── UnreadableSnapshot           1   an RDB file is damaged, cut off, or holds what is not known
    ├── Rejected                     1   a handler's word: a message or event will never do
    ├── TimeLimitExceeded            1   a handler took longer than it may
    └── ScriptError                  1   a Lua file is broken, or a script answered with an unknown error word
        ├── WrongType
        ├── OutOfOrder
        └── StaleEpoch
"""

from __future__ import annotations

from typing import Any, Self


class QueuekeeperError(Exception):
    """Queuekeeper could not do what it was asked."""

    exit_code = 1

    queue: str | None = None
    """Name of the fan-out queue that the call was about; none where it was about none, or the error is a server's."""

    consumer: str | None = None
    """Name of the queue's consumer."""

    client_id: str | None = None
    """Client whose compacted queue or session it was."""

    group_id: str | None = None
    """Consumer group of events."""

    subscription_id: str | None = None
    """Subscription of a group."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip().splitlines()[0])

    def __reduce__(self) -> tuple[Any, ...]:
        # An error of another process, or a copy, is not made anew: its class may want more than its text.
        return _again, (type(self), self.args), vars(self)

    def about(self, **names: Any) -> Self:
        """Note what a call was about, where the error does not say it yet.

        One that is about a server stays as it is: it may be told to many, whose calls it has ended.
        """
        if type(self) not in (ServerUnavailable, NotAllowed, StoreFull, RefusedError, ScriptError):
            for name, value in names.items():
                if getattr(self, name) is None and isinstance(value, str):
                    setattr(self, name, value)
        return self

    def reworded(self, message: str) -> Self:
        """Return an error of the same kind, about the same, that says it in other words."""
        other = type(self)(message)
        vars(other).update(vars(self))
        return other


def _again(kind: type[QueuekeeperError], given: tuple[Any, ...]) -> QueuekeeperError:
    """Return an error as it was, which then gets its attributes."""
    return kind.__new__(kind, *given)


class UsageError(QueuekeeperError):
    """A parameter is wrong; nothing was started."""

    exit_code = 2


class MissingExtra(UsageError, ImportError):
    """A part of the package was used whose extra is not installed."""


class InvalidName(UsageError):
    """A queue or consumer cannot have this name."""


class InvalidLife(UsageError):
    """A message must have a life: 1 ms or more."""


class PayloadTooLarge(UsageError):
    """The payload is larger than the rules of the queue allow; nothing was written."""


class ScatteredClient(UsageError):
    """The client id begins with a closing brace, and a cluster cannot serve its keys together."""


class UnknownConsumer(UsageError):
    """No consumer of this name is registered with the queue."""


class UnknownQueue(UsageError):
    """There is no queue of this name."""


class InvalidPolicy(UsageError):
    """A policy of partitions cannot be kept: a span is negative, or does not divide."""


class InvalidTopic(UsageError):
    """A topic, or what it would be made of, means nothing to a compacted queue."""


class UnknownTable(UsageError):
    """There is no such table in this database."""


class RefusedError(QueuekeeperError):
    """The state of the servers does not allow this; nothing was written."""

    exit_code = 4


class ServerUnavailable(RefusedError):
    """A server cannot be reached or refuses our credentials."""


class StoodStill(ServerUnavailable):
    """The server ended a transaction in which the caller stood still for longer than others may wait."""


class NotAllowed(RefusedError):
    """The user of a Redis lacks a right."""


class SchemaMismatch(RefusedError):
    """The source database does not look like a TBMQ 1.x database."""


class NotOwner(RefusedError):
    """The session belongs to the other store."""


class SessionFenced(RefusedError):
    """The session is on its way to the other store; repeat the call in a moment."""


class StaleDriver(RefusedError):
    """Another run has taken the work over; this one stops."""


class MovedOn(RefusedError):
    """The target session has been used since it was imported; its messages are left alone."""


class ImportedBefore(RefusedError):
    """The session holds the untouched import of another plan; drop that import first."""


class PacketIdInUse(RefusedError):
    """Another pending message of the session has this packet id."""


class NotPartitioned(RefusedError):
    """The table is not partitioned by one range of keys."""


class ForeignOwner(RefusedError):
    """The table or partition belongs to another role."""


class KeyFromFuture(RefusedError):
    """A cursor or key lies further in the future than any real one."""


class MaintenanceRunning(RefusedError):
    """Another process maintains this table."""


class QueueFull(RefusedError):
    """The queue has reached its bounds, and its policy is to refuse; nothing was written."""


class ListsTooLong(RefusedError):
    """What waits for a consumer is too much to be looked through in one call; consume or purge some of it first."""


class QueueBusy(RefusedError):
    """Another session holds the queue; take it over, or wait until its lease ends."""


class SequenceConflict(RefusedError):
    """A key's value is another than expected; nothing was written."""


class NumberReused(RefusedError):
    """The producer has used the number for another append; nothing was written. Its numbers have to grow."""


class NoConsumer(RefusedError):
    """Nobody is registered with the queue, and its policy is to hold nothing; nothing was written."""


class HasLeases(RefusedError):
    """The consumer is at work on messages; end it, or force the removal."""


class ConsumerLeaving(RefusedError):
    """The consumer is being unregistered; finish that before it is registered again."""


class ConsumerBehind(RefusedError):
    """Too much waits for the consumer in the log to be put in line by this call; pull it in other calls before."""


class MembershipChanged(RefusedError):
    """The consumers of the queue are others than the caller knows; read them again."""


class UnknownLayout(RefusedError):
    """A later version of Queuekeeper wrote the queue."""


class StalePlan(QueuekeeperError):
    """The plan no longer describes the source; make a new one."""

    exit_code = 3


class CheckFailed(QueuekeeperError):
    """Source and target differ."""


class StoreFull(QueuekeeperError):
    """Redis refused the write for want of memory; nothing of this call was stored."""


class UnreadableRecord(QueuekeeperError):
    """A stored value cannot be read; append its key anew, or skip its number."""


class UnreadableSnapshot(QueuekeeperError):
    """The file is no snapshot of a Redis that can be read to its end."""


class Rejected(QueuekeeperError):
    """Raised by a handler: what it was given will never do, and becomes a dead letter at once."""


class TimeLimitExceeded(QueuekeeperError):
    """A handler took longer than it may."""


class ScriptError(QueuekeeperError):
    """A Lua script is broken or answered with an error that it does not declare."""


class WrongType(ScriptError):
    """A key has another type than its store gives it: somebody else has written it."""


class OutOfOrder(ScriptError):
    """A chunk of a session arrived before its predecessor; the session is imported again from its first chunk."""


class StaleEpoch(ScriptError):
    """A newer epoch owns the session; this writer has to stop."""


LUA_ERRORS: dict[str, type[QueuekeeperError]] = {
    "BEHIND": ConsumerBehind,
    "CONFLICT": SequenceConflict,
    "FULL": QueueFull,
    "HAS_LEASES": HasLeases,
    "HELD": QueueBusy,
    "IMPORTED_BEFORE": ImportedBefore,
    "INVALID": UsageError,
    "LAYOUT": UnknownLayout,
    "LEAVING": ConsumerLeaving,
    "MOVED_ON": MovedOn,
    "NOT_OWNER": NotOwner,
    "NO_CONSUMER": NoConsumer,
    "OOM": StoreFull,
    "OUT_OF_ORDER": OutOfOrder,
    "PACKET_ID_IN_USE": PacketIdInUse,
    "REUSED": NumberReused,
    "STALE": StaleEpoch,
    "TOO_LONG": ListsTooLong,
    "UNKNOWN_CONSUMER": UnknownConsumer,
    "UNKNOWN_QUEUE": UnknownQueue,
    "VERSION": MembershipChanged,
}
"""First word of a script's error reply -> exception. Lua headers may declare no other word; a test compares them."""


def from_lua(reply: BaseException | str) -> QueuekeeperError:
    """Turn a script's error reply into the exception that ``LUA_ERRORS`` names.

    :param reply: error reply, whose first word is the code (``"STALE epoch 3 owns the session"``).
    :returns: the exception, not raised, with the server's sentence as its message.
    """
    text = str(reply)
    word, _, rest = text.partition(" ")
    cls = LUA_ERRORS.get(word.lstrip("-"), ScriptError)
    return cls(text if cls is ScriptError else rest or None)
