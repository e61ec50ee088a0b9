"""Sessions that move between PostgreSQL and Redis while they are used: each call goes to the store that owns them.

Who owns a session is what PostgreSQL says (``sessions.owners``). It is kept in mind, and may be out of date: the stores
refuse a writer that is wrong, and the router asks again. How a session is moved is not its business.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from queuekeeper import lua, postgres
from queuekeeper.checks import check_integer
from queuekeeper.errors import (
    NotOwner,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    SessionFenced,
    StaleEpoch,
    UsageError,
)
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import Operation, Pause, awaited, blocking
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions import postgres_operations, redis_operations
from queuekeeper.sessions.model import (
    DEFAULT_PAGE,
    Ack,
    AckReport,
    ExportPage,
    ImportReport,
    NewMessage,
    PendingMessage,
    PendingPage,
    PurgeProgress,
    PurgeReport,
    Release,
    SaveReport,
    SessionSave,
    SessionView,
    StoreRules,
)
from queuekeeper.sessions.owners import Owner, OwnerOperations, Ownership
from queuekeeper.sessions.parts import BYTES_PER_SAVE, MESSAGES_PER_SAVE
from queuekeeper.sessions.postgres_operations import MAX_VENDOR_TEXT, PostgresSessionOperations, Query
from queuekeeper.sessions.postgres_store import AsyncPostgresAnswers, PostgresAnswers, Rows
from queuekeeper.sessions.redis_operations import RECENT_SESSIONS, RedisSessionOperations
from queuekeeper.sessions.store import FIRST_SERIAL, PAGE_BYTES, SessionOperations

PATIENCE_S = 3.0
"""How long a call waits for a session that is being moved; TBMQ 1.x gives a batch up after about as long."""

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1
OWNERS = 100_000
OWNER_AGE_S = 60.0
UNANSWERED_S = 5.0
"""How long PostgreSQL is not asked for owners that are known from before, when it could not be reached."""

SESSIONS_PER_PART = 1_000
"""Sessions whose saves go out together."""

CONNECTIONS = 4
MOST_CONNECTIONS = 100
POSTGRES: Owner = "postgres"
REDIS: Owner = "redis"
FENCED = "fenced"
"""Owner in Redis of a session that is on its way back."""

T = TypeVar("T")

_Call: TypeAlias = Callable[[SessionOperations], Operation[T]]
"""Makes the operation of the store that it is given."""

_MOVED = (NotOwner, StaleEpoch, SessionFenced)
"""What a store says that does not own the session, or not any more, or not just now; it has changed nothing then."""

_STORES = {POSTGRES: "PostgreSQL", REDIS: "Redis"}
_NO_EPOCH = 0
"""An epoch that no session has: a call with it is refused."""


class AtRedis(NamedTuple):
    """A step that Redis answers."""

    calls: Sequence[lua.Call]


class AtPostgres(NamedTuple):
    """A step that PostgreSQL answers.

    :ivar operation: what it is a step of; a transaction keeps its connection from step to step.
    """

    step: postgres_operations.Step
    operation: object


class Together(NamedTuple):
    """Operations that need nothing of each other; the answer is the result of each, or its exception."""

    operations: Sequence[Operation[Any]]


Step: TypeAlias = AtRedis | AtPostgres | Pause | Together


class _Known(NamedTuple):
    """What PostgreSQL has said about a session, and until when that is believed."""

    ownership: Ownership
    until_s: float


class _Owners:
    """What is known of the sessions that were used last; threads may share it.

    When the younger half is full it becomes the older one, whose sessions are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._younger: dict[str, _Known] = {}
        self._older: dict[str, _Known] = {}

    def get(self, client_id: str) -> _Known | None:
        known = self._younger.get(client_id)
        if known is None:
            known = self._older.get(client_id)
            if known is not None:
                self.put(client_id, known)
        return known

    def put(self, client_id: str, known: _Known) -> None:
        if len(self._younger) >= self._half:
            self._older, self._younger = self._younger, {}
        self._younger[client_id] = known

    def epoch_of(self, client_id: str) -> int | None:
        """Return the epoch to send; a call for a session that has been forgotten meanwhile has to be refused."""
        known = self._younger.get(client_id) or self._older.get(client_id)
        return _NO_EPOCH if known is None else known.ownership.epoch


class _Refused(NamedTuple):
    """A call that a store has refused.

    :ivar used: whom it was sent to.
    """

    used: Ownership
    error: QueuekeeperError


class _Patience:
    """How long a call goes on, and how long it waits before the next try: at first not at all."""

    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.pause_s = 0.0
        self.is_over = False

    def note(self, *, in_vain: bool) -> None:
        """Set the next pause; where the owner has changed, a try is worth more than a pause.

        :param in_vain: nothing has changed since the try before.
        """
        self.pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self.pause_s)) if in_vain else FIRST_PAUSE_S


class RouterOperations:
    """What ``store.SessionOperations`` says, for sessions of which some are in PostgreSQL and some in Redis.

    A call that a store refuses, since the session has another owner, is on its way, or has moved in the midst of the
    call, is repeated at the owner until it is done or ``patience_s`` is over; what was done before counts. A driver
    that ends between giving a session to Redis and telling Redis costs nothing: the router tells it.

    :param prefix: put before every key in Redis.
    :param rules: bounds to keep, the same in both stores.
    :param recent_sessions: sessions in Redis whose last packet id is kept in mind.
    :param patience_s: how long a call waits for a session that is being moved.
    :param owners: sessions whose owner is kept in mind.
    :param owner_age_s: how long an owner is kept in mind. A wrong one costs a refused call and does no harm.
    :param clock: seconds that only grow.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: StoreRules | None = None,
        recent_sessions: int = RECENT_SESSIONS,
        patience_s: float = PATIENCE_S,
        owners: int = OWNERS,
        owner_age_s: float = OWNER_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_integer("owners", owners, 2 * SESSIONS_PER_PART, 10_000_000, "each takes about 400 bytes")
        if not patience_s >= 0 or not owner_age_s > 0:
            raise UsageError(
                f"patience_s is {patience_s} and owner_age_s is {owner_age_s}: seconds, 0 or more, and more than 0"
            )
        rules = rules or StoreRules()
        self._most_bytes = rules.max_payload_bytes
        self._known = _Owners(owners)
        self._owner_age_s = owner_age_s
        self._patience_s = patience_s
        self._clock = clock
        self._unanswered_until_s = clock()
        self._redis = RedisSessionOperations(
            prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=self._known.epoch_of
        )
        self._postgres = PostgresSessionOperations(rules, epoch_of=self._known.epoch_of)
        self._owners = OwnerOperations()

    # Saving.

    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """See ``store.SessionOperations.save_messages``.

        What comes after a save that failed is not stored either, so that no save of a session overtakes another one.

        :raises UsageError: also for what only one of the stores can keep, and for a save of more than 256 messages or
            512 KiB, which would not be one step: cut it. Nothing was written then.
        """
        for save in saves:
            self._check_save(save)
        reports: dict[int, SaveReport] = {}
        failed: dict[str, QueuekeeperError] = {}
        for begin in range(0, len(saves), SESSIONS_PER_PART):
            part = range(begin, min(begin + SESSIONS_PER_PART, len(saves)))
            yield from self._save_part(saves, part, reports, failed)
        return [reports[index] for index in range(len(saves))]

    def check_payload(self, client_id: str, message: NewMessage) -> None:
        """Refuse what is no message, larger than the rules allow, or has no place in one of the stores.

        :raises UsageError: naming it.
        """
        self._redis.check_payload(client_id, message)
        self._check_save(SessionSave(client_id=client_id, messages=(message,)))

    def _check_save(self, save: SessionSave) -> None:
        messages = save.messages
        most_bytes = self._most_bytes
        size_bytes = 0
        is_plain = save.source is None
        for message in messages:
            if type(message) is not NewMessage or len(message.payload) > most_bytes:
                self._redis.check_payload(save.client_id, message)
            size_bytes += len(message.payload)
            if message.subscription_ids or message.content_type is not None or message.response_topic is not None:
                is_plain = False
        if not is_plain or len(save.client_id) > MAX_VENDOR_TEXT:
            # Either store may have it tomorrow.
            self._postgres.check_save(save)
        if len(messages) > MESSAGES_PER_SAVE or (size_bytes > BYTES_PER_SAVE and len(messages) > 1):
            raise UsageError(
                f"the save for {save.client_id!r} has {len(messages)} messages of {size_bytes} bytes together: while "
                f"sessions move, one save takes at most {MESSAGES_PER_SAVE} messages and {BYTES_PER_SAVE} bytes; cut "
                "it into several saves"
            )

    def _save_part(
        self,
        saves: Sequence[SessionSave],
        part: Sequence[int],
        reports: dict[int, SaveReport],
        failed: dict[str, QueuekeeperError],
    ) -> Operation[None]:
        """Do some of the saves, until each has its report.

        :param failed: why no more is saved for a session in this call.
        """
        patience: _Patience | None = None
        found: dict[str, Ownership] = {}
        unknown: dict[str, None] = {}
        now_s = self._clock()
        for index in part:
            client_id = saves[index].client_id
            known = self._known.get(client_id)
            if known is not None and known.until_s > now_s:
                found[client_id] = known.ownership
            else:
                unknown[client_id] = None
        if unknown:
            found |= yield from self._look_up(list(unknown), failed)
        while part:
            at_postgres: list[int] = []
            at_redis: list[int] = []
            for index in part:
                client_id = saves[index].client_id
                if failed and client_id in failed:
                    reports[index] = SaveReport(client_id=client_id, error=failed[client_id])
                elif found[client_id].owner == REDIS:
                    at_redis.append(index)
                else:
                    at_postgres.append(index)
            refused: dict[str, _Refused] = {}
            part = yield from self._save_at(saves, at_postgres, at_redis, found, reports, failed, refused)
            if not part:
                return
            if patience is None:
                patience = _Patience(self._clock() + self._patience_s)
            found = yield from self._ask_again(refused, patience, failed)

    def _save_at(
        self,
        saves: Sequence[SessionSave],
        at_postgres: Sequence[int],
        at_redis: Sequence[int],
        found: dict[str, Ownership],
        reports: dict[int, SaveReport],
        failed: dict[str, QueuekeeperError],
        refused: dict[str, _Refused],
    ) -> Operation[list[int]]:
        """Send saves to their owners, at the same time where there are two; return what has to be tried again."""
        groups: list[tuple[Sequence[int], Operation[list[SaveReport]]]] = []
        if at_postgres:
            groups.append((at_postgres, self._save_at_postgres([saves[index] for index in at_postgres])))
        if at_redis:
            groups.append((at_redis, _at_redis(self._redis.save_messages([saves[index] for index in at_redis]))))
        answers: Sequence[Any]
        if len(groups) > 1:
            answers = yield Together([operation for _, operation in groups])
        else:
            answers = []
            for _, operation in groups:
                answers = [(yield from operation)]
        again: list[int] = []
        for (indexes, _), answer in zip(groups, answers, strict=True):
            if isinstance(answer, QueuekeeperError):
                raise answer
            for index, report in zip(indexes, answer, strict=True):
                error = report.error
                if error is None:
                    reports[index] = report
                elif isinstance(error, _MOVED):
                    client_id = report.client_id
                    refused[client_id] = _Refused(found[client_id], error)
                    again.append(index)
                else:
                    failed.setdefault(report.client_id, error)
                    reports[index] = report
        again.sort()
        return again

    def _save_at_postgres(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Save; unlike the store alone, nothing for a session behind a save that failed."""
        reports: dict[int, SaveReport] = {}
        failed: dict[str, QueuekeeperError] = {}
        left: Sequence[int] = range(len(saves))
        while left:
            first: dict[str, int] = {}
            later: list[int] = []
            for index in left:
                client_id = saves[index].client_id
                if client_id in failed:
                    reports[index] = SaveReport(client_id=client_id, error=failed[client_id])
                elif first.setdefault(client_id, index) != index:
                    later.append(index)
            sent = list(first.values())
            try:
                answer = yield from _at_postgres(self._postgres.save_messages([saves[index] for index in sent]))
            except QueuekeeperError as error:
                answer = [SaveReport(client_id=saves[index].client_id, error=error) for index in sent]
            for index, report in zip(sent, answer, strict=True):
                reports[index] = report
                if report.error is not None:
                    failed[report.client_id] = report.error
            left = later
        return [reports[index] for index in range(len(saves))]

    # Delivering.

    def fetch_pending(
        self,
        client_id: str,
        *,
        after_serial: int = FIRST_SERIAL,
        backlog_serial: int | None = None,
        limit: int = DEFAULT_PAGE,
        max_bytes: int = PAGE_BYTES,
        mark_delivered: bool = False,
    ) -> Operation[PendingPage]:
        """See ``store.SessionOperations.fetch_pending``; serials are the same in both stores, so cursors hold."""
        page = yield from self._at_owner(
            client_id,
            lambda store: store.fetch_pending(
                client_id, after_serial=after_serial, backlog_serial=backlog_serial, limit=limit, max_bytes=max_bytes
            ),
            ask_first=True,
        )
        if mark_delivered and page.messages and not page.messages[-1].redelivery:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return page

    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """See ``store.SessionOperations.mark_delivered``."""
        return (yield from self._at_owner(client_id, lambda store: store.mark_delivered(client_id, serial=serial)))

    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        """See ``store.SessionOperations.ack``."""
        removed = unknown = 0
        # A store does this many at once, or none of them.
        for begin in range(0, max(1, len(acks)), redis_operations.KEYS_PER_CALL):
            part = acks[begin : begin + redis_operations.KEYS_PER_CALL]
            report = yield from self._ack(client_id, part)
            removed += report.removed
            unknown += report.unknown
        return AckReport(client_id=client_id, removed=removed, unknown=unknown)

    def _ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        return (yield from self._at_owner(client_id, lambda store: store.ack(client_id, acks)))

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """See ``store.SessionOperations.mark_released``."""
        return (
            yield from self._at_owner(
                client_id, lambda store: store.mark_released(client_id, packet_id=packet_id, serial=serial)
            )
        )

    # The session as a whole.

    def purge_session(self, client_id: str, *, dry_run: bool = False) -> Operation[PurgeReport]:
        """See ``store.SessionOperations.purge_session``; one that was begun in one store ends in the other."""
        progress = PurgeProgress()

        def call(store: Any) -> Operation[PurgeReport]:
            purged: Operation[PurgeReport] = store.purge_session(client_id, dry_run=dry_run, progress=progress)
            return purged

        return (yield from self._at_owner(client_id, call, ask_first=dry_run))

    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        """See ``store.SessionOperations.get_last_packet_id``."""
        return (yield from self._at_owner(client_id, lambda store: store.get_last_packet_id(client_id), ask_first=True))

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        """See ``store.SessionOperations.set_last_packet_id``."""
        return (
            yield from self._at_owner(
                client_id,
                lambda store: store.set_last_packet_id(client_id, packet_id=packet_id, expected=expected),
            )
        )

    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        """See ``store.SessionOperations.reserve_packet_ids``."""
        return (yield from self._at_owner(client_id, lambda store: store.reserve_packet_ids(client_id, count=count)))

    # Looking.

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """See ``store.SessionOperations.inspect``; ``store`` of the view is the owner."""
        return (
            yield from self._at_owner(
                client_id, lambda store: store.inspect(client_id, offset=offset, limit=limit), ask_first=True
            )
        )

    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """See ``store.SessionOperations.peek``."""
        return (
            yield from self._at_owner(
                client_id, lambda store: store.peek(client_id, packet_id=packet_id), ask_first=True
            )
        )

    # Moving.

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """See ``store.SessionOperations.export_session``; the next page may come from the other store."""
        return (
            yield from self._at_owner(
                client_id,
                lambda store: store.export_session(client_id, after_serial=after_serial, limit=limit),
                ask_first=True,
            )
        )

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """See ``store.SessionOperations.import_session``; the lines are held in memory."""
        given = list(lines)

        def call(store: SessionOperations) -> Operation[ImportReport]:
            # Redis has to have been told that the session is its own, and whether it has a mirror.
            yield from store.get_last_packet_id(client_id)
            return (yield from store.import_session(client_id, given))

        return (yield from self._at_owner(client_id, call, ask_first=True))

    # Owners.

    def _at_owner(self, client_id: str, call: _Call[T], *, ask_first: bool = False) -> Operation[T]:
        """Do one call for one session where its owner is.

        :param ask_first: a store answers the call whether the session is its own or not: its first step asks, too.
        """
        check_client_id(client_id)
        if len(client_id) > MAX_VENDOR_TEXT:
            raise UsageError(
                f"client id has {len(client_id)} characters ({client_id[:20]!r}...): TBMQ 1.x has room for "
                f"{MAX_VENDOR_TEXT}, so that no such session moves"
            )
        failed: dict[str, QueuekeeperError] = {}
        known = self._known.get(client_id)
        if known is not None and known.until_s > self._clock():
            found = {client_id: known.ownership}
        else:
            found = yield from self._look_up([client_id], failed)
        patience: _Patience | None = None
        while client_id in found:
            ownership = found[client_id]
            try:
                if ownership.owner == REDIS:
                    operation = call(self._redis)
                    if ask_first:
                        operation = _judged_at_redis(operation, ownership, was_just_asked=patience is not None)
                    return (yield from _at_redis(operation))
                operation = call(self._postgres)
                if ask_first:
                    operation = _judged_at_postgres(client_id, operation)
                return (yield from _at_postgres(operation))
            except _MOVED as error:
                refused = {client_id: _Refused(ownership, error)}
            if patience is None:
                patience = _Patience(self._clock() + self._patience_s)
            found = yield from self._ask_again(refused, patience, failed)
        raise failed[client_id]

    def _look_up(
        self, client_ids: Sequence[str], failed: dict[str, QueuekeeperError], *, may_be_old: bool = True
    ) -> Operation[dict[str, Ownership]]:
        """Ask PostgreSQL who owns sessions.

        :param failed: gets those of which that is not to be known, and why.
        :param may_be_old: while PostgreSQL cannot be asked, take what it said before, however long ago: the stores
            judge every call, so that it does no harm.
        """
        owners: dict[str, Ownership] = {}
        if may_be_old and self._clock() < self._unanswered_until_s:
            owners = self._remembered(client_ids)
            if len(owners) == len(client_ids):
                return owners
        try:
            found = yield from _at_postgres(self._owners.look_up(client_ids))
        except QueuekeeperError as error:
            if may_be_old and isinstance(error, ServerUnavailable):
                # To find out again may take as long as a connection attempt does.
                self._unanswered_until_s = self._clock() + UNANSWERED_S
                owners = self._remembered(client_ids)
            for client_id in client_ids:
                if client_id not in owners:
                    failed[client_id] = type(error)(f"nobody can say who owns session {client_id!r}: {error}")
            return owners
        until_s = self._clock() + self._owner_age_s
        for client_id in client_ids:
            # No armed cohort has it.
            ownership = found.get(client_id) or Ownership(client_id=client_id, owner=POSTGRES, epoch=None)
            if ownership.owner in _STORES:
                owners[client_id] = ownership
                self._known.put(client_id, _Known(ownership, until_s))
            else:
                failed[client_id] = RefusedError(
                    f"session {client_id!r} belongs to {ownership.owner!r}, as PostgreSQL says, and this release does "
                    "not know that store: use the release that moved it"
                )
        return owners

    def _remembered(self, client_ids: Sequence[str]) -> dict[str, Ownership]:
        """Return what PostgreSQL said before, however long ago."""
        return {
            client_id: known.ownership for client_id in client_ids if (known := self._known.get(client_id)) is not None
        }

    def _ask_again(
        self, refused: dict[str, _Refused], patience: _Patience, failed: dict[str, QueuekeeperError]
    ) -> Operation[dict[str, Ownership]]:
        """Look up who owns sessions after stores have refused calls, and help where Redis has not been told.

        :param failed: gets those for which nothing more is to be tried.
        """
        # What PostgreSQL says is used at once: it may be another store's again after a pause.
        if patience.pause_s:
            yield Pause(patience.pause_s)
        fresh = yield from self._look_up(list(refused), failed, may_be_old=False)
        helped = yield from self._help(refused, fresh, failed)
        fresh = {client_id: now for client_id, now in fresh.items() if client_id not in failed}
        ended = self._clock() >= patience.ends_s
        in_vain = False
        for client_id, now in fresh.items():
            used = refused[client_id].used
            is_news = (now.owner, now.epoch) != (used.owner, used.epoch) or client_id in helped
            waits = now.fenced_until_ms is not None or not is_news
            in_vain |= waits
            # What was learned so late, as PostgreSQL was slow to answer, is tried once.
            if ended and (waits or patience.is_over):
                failed[client_id] = self._given_up(client_id, now, refused[client_id].error)
        patience.is_over = ended
        patience.note(in_vain=in_vain)
        return {client_id: now for client_id, now in fresh.items() if client_id not in failed}

    def _help(
        self, refused: dict[str, _Refused], fresh: dict[str, Ownership], failed: dict[str, QueuekeeperError]
    ) -> Operation[set[str]]:
        """Tell Redis what PostgreSQL says of sessions, as their driver would; return those for which it was news."""
        told = [
            ownership
            for client_id, ownership in fresh.items()
            # What is fenced is in good hands. A session in PostgreSQL that Redis has refused may still be fenced there.
            if ownership.fenced_until_ms is None
            and ownership.epoch is not None
            and REDIS in (ownership.owner, refused[client_id].used.owner)
        ]
        if not told:
            return set()
        calls: list[lua.Call] = []
        for ownership in told:
            calls += next(
                self._redis.set_owner(
                    ownership.client_id,
                    epoch=ownership.epoch or 0,
                    owner=ownership.owner,
                    mirrored=ownership.mirrored,
                )
            )
        try:
            replies = yield AtRedis(calls)
        except QueuekeeperError as error:
            replies = [error] * len(calls)
        helped: set[str] = set()
        for ownership, reply in zip(told, replies, strict=True):
            if reply == b"set":
                helped.add(ownership.client_id)
            elif isinstance(reply, QueuekeeperError) and ownership.owner == REDIS and not isinstance(reply, _MOVED):
                failed[ownership.client_id] = reply
        return helped

    def _given_up(self, client_id: str, now: Ownership, error: QueuekeeperError) -> QueuekeeperError:
        if now.fenced_until_ms is not None or isinstance(error, SessionFenced):
            return SessionFenced(
                f"session {client_id!r} is on its way to the other store, and was for {self._patience_s:g} s: repeat "
                "the call in a moment"
            )
        epoch = "" if now.epoch is None else f" (epoch {now.epoch})"
        return type(error)(
            f"session {client_id!r} belongs to {_STORES[now.owner]}{epoch}, as PostgreSQL says, and was refused for "
            f"{self._patience_s:g} s: {error}. Repeat the call; when that does not help, let the migration's driver "
            "run again"
        )


def _judged_at_redis(operation: Operation[T], ownership: Ownership, *, was_just_asked: bool) -> Operation[T]:
    """Read in Redis, unless the session's own fields, which come first, say that it is not Redis's.

    :param ownership: what PostgreSQL says.
    :param was_just_asked: PostgreSQL has said so during this call: what is fenced has not changed since.
    :raises NotOwner: when it is another store's, or Redis does not know.
    """
    replies = yield next(operation)
    if not isinstance(replies[0], QueuekeeperError):
        _, _, _, _, *texts = replies[0]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        owner = fields.get(b"owner", b"nobody").decode("utf-8", "replace")
        epoch = fields.get(b"epoch", b"").decode("utf-8", "replace")
        as_told = owner == REDIS and epoch.isdecimal() and int(epoch) >= (ownership.epoch or 0)
        if not as_told and not (owner == FENCED and was_just_asked):
            raise NotOwner(f"{owner} owns the session (epoch {epoch or 'unknown'})")
    return (yield from _continued(operation, replies))


def _judged_at_postgres(client_id: str, operation: Operation[T]) -> Operation[T]:
    """Read in PostgreSQL, unless it says at the first step that the session is not its own.

    :raises NotOwner: when it is not.
    """
    step = next(operation)
    owner = Query(name="look_up_owners", parameters={"client_ids": [client_id]})
    owners, *answer = yield replace(step, queries=(owner, *step.queries))
    for _, owner, *_ in owners:
        if owner != POSTGRES:
            raise NotOwner(f"{_STORES[owner]} owns the session")
    return (yield from _continued(operation, answer))


def _continued(operation: Operation[T], answer: Any) -> Operation[T]:
    """Go on with an operation whose first step has been answered."""
    try:
        step = operation.send(answer)
        while True:
            try:
                answer = yield step
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _at_redis(operation: Operation[T]) -> Operation[T]:
    """Have Redis answer the steps of an operation."""
    try:
        step = next(operation)
        while True:
            try:
                answer = yield AtRedis(step)
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _at_postgres(operation: Operation[T]) -> Operation[T]:
    """Have PostgreSQL answer the steps of an operation."""
    try:
        step = next(operation)
        while True:
            try:
                answer = yield AtPostgres(step, operation)
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _itself(_: RouterOperations, operation: Operation[T]) -> Operation[T]:
    """Return an operation that is under way in another one."""
    return operation


def _checked(outcomes: list[Any]) -> list[Any]:
    """Return what came of operations; an exception that is no answer is raised."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, QueuekeeperError):
            raise outcome
    return outcomes


class _Connections:
    """A bounded set of connections to PostgreSQL, opened when they are needed, for threads.

    An operation that is in a transaction has one for itself; whatever else is asked takes one for a single step.
    """

    def __init__(self, url: str, most: int) -> None:
        self._url = url
        self._room = threading.Semaphore(most)
        self._idle: list[tuple[postgres.Connection, PostgresAnswers]] = []
        self._held: dict[object, tuple[postgres.Connection, PostgresAnswers]] = {}
        self._closed = False

    def answer(self, at: AtPostgres) -> list[Rows]:
        """Carry out a step where the transaction of its operation is."""
        step = at.step
        held = self._held.pop(at.operation, None)
        if held is None:
            if step.undo:
                # The error that it is about has ended the transaction.
                return []
            held = self._take()
        ends = True
        try:
            rows = held[1].answer(step)
            ends = step.end or step.undo
            return rows
        finally:
            if ends:
                self._give_back(held)
            else:
                self._held[at.operation] = held

    def close(self) -> None:
        """Close what nobody uses; the rest is closed when it is given back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop()[0].close()

    def _take(self) -> tuple[postgres.Connection, PostgresAnswers]:
        if self._closed:
            raise _closed_error()
        self._room.acquire()
        try:
            # Another thread may take the last one first.
            with suppress(IndexError):
                while True:
                    held = self._idle.pop()
                    if _is_usable(held[0]):
                        return held
                    held[0].close()
            connection = postgres.connect(self._url, autocommit=True)
            return connection, PostgresAnswers(connection)
        except BaseException:
            self._room.release()
            raise

    def _give_back(self, held: tuple[postgres.Connection, PostgresAnswers]) -> None:
        try:
            if self._closed or not _is_idle(held[0]):
                held[0].close()
            else:
                self._idle.append(held)
        finally:
            self._room.release()


class _AsyncConnections:
    """The same for the tasks of an event loop; a task that is cancelled leaves its connection usable or closed."""

    def __init__(self, url: str, most: int) -> None:
        self._url = url
        self._room = asyncio.Semaphore(most)
        self._idle: list[tuple[postgres.AsyncConnection, AsyncPostgresAnswers]] = []
        self._held: dict[object, tuple[postgres.AsyncConnection, AsyncPostgresAnswers]] = {}
        self._closed = False

    async def answer(self, at: AtPostgres) -> list[Rows]:
        """Carry out a step where the transaction of its operation is."""
        step = at.step
        held = self._held.pop(at.operation, None)
        if held is None:
            if step.undo:
                # The error that it is about has ended the transaction.
                return []
            held = await self._take()
        ends = True
        try:
            rows = await held[1].answer(step)
            ends = step.end or step.undo
            return rows
        finally:
            if ends:
                await self._give_back(held)
            else:
                self._held[at.operation] = held

    async def close(self) -> None:
        """Close what nobody uses; the rest is closed when it is given back."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[0].close()

    async def _take(self) -> tuple[postgres.AsyncConnection, AsyncPostgresAnswers]:
        if self._closed:
            raise _closed_error()
        await self._room.acquire()
        try:
            while self._idle:
                held = self._idle.pop()
                if _is_usable(held[0]):
                    return held
                await held[0].close()
            connection = await postgres.connect_async(self._url, autocommit=True)
            return connection, AsyncPostgresAnswers(connection)
        except BaseException:
            self._room.release()
            raise

    async def _give_back(self, held: tuple[postgres.AsyncConnection, AsyncPostgresAnswers]) -> None:
        try:
            if self._closed or not _is_idle(held[0]):
                await held[0].close()
            else:
                self._idle.append(held)
        finally:
            self._room.release()


def _is_idle(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a connection may serve the next operation."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _is_usable(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a connection that was idle still is: a server that ends it says so, unasked."""
    if not _is_idle(connection):
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _closed_error() -> RefusedError:
    return RefusedError("the router is closed: open another one")


class SessionRouter:
    """Sessions that move between PostgreSQL and Redis, for blocking callers; threads may share it.

    To be closed, or used with ``with``. It opens its connections to PostgreSQL when it needs them.

    :param client: of the Redis to which sessions move; who opened it closes it.
    :param postgres_url: of the database of TBMQ 1.x, with schema ``queuekeeper``.
    :param prefix: put before every key in Redis.
    :param rules: bounds to keep.
    :param connections: most connections to PostgreSQL, each for one operation at a time.
    :param patience_s: how long a call waits for a session that is being moved.
    :param owners: sessions whose owner is kept in mind.
    :param owner_age_s: how long it is.
    :param recent_sessions: see :class:`RedisSessionStore`, as are the rest.
    :raises UsageError: for a number that is out of range.
    """

    def __init__(
        self,
        client: RedisClient,
        postgres_url: str,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        connections: int = CONNECTIONS,
        patience_s: float = PATIENCE_S,
        owners: int = OWNERS,
        owner_age_s: float = OWNER_AGE_S,
        recent_sessions: int = RECENT_SESSIONS,
        replicas: int = 0,
        replica_timeout_ms: int = lua.REPLICA_TIMEOUT_MS,
        retry_for_s: float = lua.RETRY_FOR_S,
    ) -> None:
        check_integer("connections", connections, 1, MOST_CONNECTIONS, "each is a process of the server")
        self.operations = RouterOperations(
            prefix=prefix,
            rules=rules,
            recent_sessions=recent_sessions,
            patience_s=patience_s,
            owners=owners,
            owner_age_s=owner_age_s,
        )
        self._caller = lua.ScriptCaller(
            client, replicas=replicas, replica_timeout_ms=replica_timeout_ms, retry_for_s=retry_for_s
        )
        self._connections = _Connections(postgres_url, connections)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to PostgreSQL."""
        self._connections.close()

    def answer(self, step: Step) -> Any:
        """Have the store that a step is for answer it."""
        if type(step) is AtRedis:
            return self._caller.execute(step.calls)
        if type(step) is AtPostgres:
            return self._connections.answer(step)
        if type(step) is Pause:
            return time.sleep(step.seconds)
        assert type(step) is Together
        return self._together(step.operations)

    def _together(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        outcomes: list[Any] = [None] * len(operations)

        def run(place: int) -> None:
            try:
                outcomes[place] = self._run(operations[place])
            except Exception as error:
                outcomes[place] = error

        threads = [threading.Thread(target=run, args=[place]) for place in range(1, len(operations))]
        for thread in threads:
            thread.start()
        try:
            run(0)
        finally:
            for thread in threads:
                thread.join()
        return _checked(outcomes)

    _run = blocking(_itself)
    save_messages = blocking(RouterOperations.save_messages)
    fetch_pending = blocking(RouterOperations.fetch_pending)
    mark_delivered = blocking(RouterOperations.mark_delivered)
    ack = blocking(RouterOperations.ack)
    mark_released = blocking(RouterOperations.mark_released)
    purge_session = blocking(RouterOperations.purge_session)
    get_last_packet_id = blocking(RouterOperations.get_last_packet_id)
    set_last_packet_id = blocking(RouterOperations.set_last_packet_id)
    reserve_packet_ids = blocking(RouterOperations.reserve_packet_ids)
    inspect = blocking(RouterOperations.inspect)
    peek = blocking(RouterOperations.peek)
    export_session = blocking(RouterOperations.export_session)
    import_session = blocking(RouterOperations.import_session)


class AsyncSessionRouter:
    """:class:`SessionRouter` for asyncio; tasks may share it, and one that is cancelled leaves nothing open.

    :param caller: sends the calls to Redis; who opened it closes it. It also says how many replicas are waited for.
    """

    def __init__(
        self,
        caller: AsyncScriptCaller,
        postgres_url: str,
        prefix: str = "",
        rules: StoreRules | None = None,
        *,
        connections: int = CONNECTIONS,
        patience_s: float = PATIENCE_S,
        owners: int = OWNERS,
        owner_age_s: float = OWNER_AGE_S,
        recent_sessions: int = RECENT_SESSIONS,
    ) -> None:
        check_integer("connections", connections, 1, MOST_CONNECTIONS, "each is a process of the server")
        self.operations = RouterOperations(
            prefix=prefix,
            rules=rules,
            recent_sessions=recent_sessions,
            patience_s=patience_s,
            owners=owners,
            owner_age_s=owner_age_s,
        )
        self._caller = caller
        self._connections = _AsyncConnections(postgres_url, connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to PostgreSQL."""
        await self._connections.close()

    async def answer(self, step: Step) -> Any:
        """Have the store that a step is for answer it."""
        if type(step) is AtRedis:
            return await self._caller.execute(step.calls)
        if type(step) is AtPostgres:
            return await self._connections.answer(step)
        if type(step) is Pause:
            return await asyncio.sleep(step.seconds)
        assert type(step) is Together
        # When this task is cancelled, so are they, and it goes on when they have ended.
        outcomes = await asyncio.gather(*map(self._run, step.operations), return_exceptions=True)
        return _checked(outcomes)

    _run = awaited(_itself)
    save_messages = awaited(RouterOperations.save_messages)
    fetch_pending = awaited(RouterOperations.fetch_pending)
    mark_delivered = awaited(RouterOperations.mark_delivered)
    ack = awaited(RouterOperations.ack)
    mark_released = awaited(RouterOperations.mark_released)
    purge_session = awaited(RouterOperations.purge_session)
    get_last_packet_id = awaited(RouterOperations.get_last_packet_id)
    set_last_packet_id = awaited(RouterOperations.set_last_packet_id)
    reserve_packet_ids = awaited(RouterOperations.reserve_packet_ids)
    inspect = awaited(RouterOperations.inspect)
    peek = awaited(RouterOperations.peek)
    export_session = awaited(RouterOperations.export_session)
    import_session = awaited(RouterOperations.import_session)
