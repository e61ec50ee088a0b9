"""Looking up the owners of sessions: a cache of PostgreSQL's records, renewed when a store refuses a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from queuekeeper.checks import check_integer
from queuekeeper.clock import Backoff
from queuekeeper.errors import (
    NotOwner,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    SessionFenced,
    StaleEpoch,
    UsageError,
)
from queuekeeper.operation import Operation, Pause
from queuekeeper.sessions.by_layout import RedisOperations, operations_of
from queuekeeper.sessions.layouts import RECENT_SESSIONS
from queuekeeper.sessions.model import OWNER_OF, OWNER_WORDS, Owner, StoreRules
from queuekeeper.sessions.owners import OwnerOperations, Ownership
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_operations import PostgresSessionOperations
from queuekeeper.sessions.router.steps import POSTGRES, AtRedis, by_postgres

PATIENCE_S = 3.0
"""Seconds that a call waits for a session that is moving; TBMQ 1.x gives a batch up after about the same time."""

BACKOFF = Backoff(first_s=0.005, longest_s=0.1)
OWNERS = 100_000
OWNER_AGE_S = 60.0
UNANSWERED_S = 5.0
"""Seconds for which cached owners are used without asking PostgreSQL, after it could not be reached."""

SESSIONS_PER_PART = 1_000
"""Most sessions whose saves are sent together."""

MOVED = (NotOwner, StaleEpoch, SessionFenced)
"""Errors of a store that does not own the session, or no longer, or not at this moment; it has changed nothing then."""

_NO_EPOCH = 0
"""An epoch that no session has; a call with it is refused."""


class Known(NamedTuple):
    """The owner of a session as PostgreSQL gave it, and when the cache entry ends."""

    ownership: Ownership
    until_s: float


class KnownOwners:
    """Cache of the owners of the sessions used last; threads may share it.

    It has two halves. When the newer half is full it becomes the older one, and the older one is dropped.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._younger: dict[str, Known] = {}
        self._older: dict[str, Known] = {}

    def get(self, client_id: str) -> Known | None:
        """Return an entry, and move it to the newer half."""
        known = self._younger.get(client_id)
        if known is None:
            known = self._older.get(client_id)
            if known is not None:
                self.put(client_id, known)
        return known

    def put(self, client_id: str, known: Known) -> None:
        """Add an entry."""
        if len(self._younger) >= self._half:
            self._older, self._younger = self._younger, {}
        self._younger[client_id] = known

    def epoch_of(self, client_id: str) -> int | None:
        """Return the epoch to send; for a session that was dropped meanwhile, one with which the call is refused."""
        known = self._younger.get(client_id) or self._older.get(client_id)
        return _NO_EPOCH if known is None else known.ownership.epoch


class Refused(NamedTuple):
    """A call that a store has refused.

    :ivar used: owner to which it was sent.
    """

    used: Ownership
    error: QueuekeeperError


class Patience:
    """How long a call is repeated, and the pause before the next try; the first try follows at once."""

    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.pause_s = 0.0
        self.is_over = False
        self._in_vain = -1

    def note(self, *, in_vain: bool) -> None:
        """Set the next pause; there is none when the owner has changed.

        :param in_vain: whether nothing has changed since the last try.
        """
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self.pause_s = BACKOFF.after(self._in_vain)


class FindingOperations:
    """Looks up owners, renews them, and records owners in Redis that it lacks; see ``RouterOperations``."""

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
        home: Layout | None = None,
    ) -> None:
        check_integer("owners", owners, 2 * SESSIONS_PER_PART, 10_000_000, "each takes about 400 bytes")
        if not patience_s >= 0 or not owner_age_s > 0:
            raise UsageError(
                f"patience_s is {patience_s} and owner_age_s is {owner_age_s}: they must be 0 or more, and more than 0"
            )
        self._rules = rules = rules or StoreRules()
        self._known = KnownOwners(owners)
        self._owner_age_s = owner_age_s
        self._patience_s = patience_s
        self._clock = clock
        self._unanswered_until_s = clock()
        self.prefix = prefix
        self._home: Owner = POSTGRES if home is None else OWNER_OF[home]
        self._in_redis: Mapping[Owner, RedisOperations] = {
            OWNER_OF[layout]: operations_of(
                layout, prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=self._known.epoch_of
            )
            for layout in Layout
        }
        self._postgres = PostgresSessionOperations(rules, epoch_of=self._known.epoch_of)
        self._owners = OwnerOperations()

    def _look_up(
        self, client_ids: Sequence[str], failed: dict[str, QueuekeeperError], *, may_be_old: bool = True
    ) -> Operation[dict[str, Ownership]]:
        """Ask PostgreSQL for the owners of sessions.

        :param failed: receives the errors of sessions whose owner is not known.
        :param may_be_old: while PostgreSQL cannot be reached, use cached owners of any age. That does no harm, since
            the stores check every call.
        """
        owners: dict[str, Ownership] = {}
        if may_be_old and self._clock() < self._unanswered_until_s:
            owners = self._remembered(client_ids)
            if len(owners) == len(client_ids):
                return owners
        try:
            found = yield from by_postgres(self._owners.look_up(client_ids, home=self._home))
        except QueuekeeperError as error:
            if may_be_old and isinstance(error, ServerUnavailable):
                # Another question may take as long as a connection attempt.
                self._unanswered_until_s = self._clock() + UNANSWERED_S
                owners = self._remembered(client_ids)
            for client_id in client_ids:
                if client_id not in owners:
                    failed[client_id] = type(error)(f"nobody can say who owns session {client_id!r}: {error}")
            return owners
        until_s = self._clock() + self._owner_age_s
        for client_id in client_ids:
            # No armed cohort has the session.
            ownership = found.get(client_id) or Ownership(client_id=client_id, owner=POSTGRES, epoch=None)
            if ownership.owner in OWNER_WORDS:
                owners[client_id] = ownership
                self._known.put(client_id, Known(ownership, until_s))
            else:
                failed[client_id] = RefusedError(
                    f"session {client_id!r} belongs to {ownership.owner!r} according to PostgreSQL, and this release "
                    "does not know that store: use the release that moved it"
                )
        return owners

    def _remembered(self, client_ids: Sequence[str]) -> dict[str, Ownership]:
        """Return cached owners of any age."""
        return {
            client_id: known.ownership for client_id in client_ids if (known := self._known.get(client_id)) is not None
        }

    def _ask_again(
        self, refused: dict[str, Refused], patience: Patience, failed: dict[str, QueuekeeperError]
    ) -> Operation[dict[str, Ownership]]:
        """Look up owners after stores have refused calls, and record owners in Redis that it lacks.

        :param failed: receives the errors of sessions for which no further try is made.
        """
        # The answer is used at once, since the session may have another owner after a pause.
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
            # When PostgreSQL was slow to answer, its answer is still tried once.
            if ended and (waits or patience.is_over):
                failed[client_id] = self._given_up(client_id, now, refused[client_id].error)
        patience.is_over = ended
        patience.note(in_vain=in_vain)
        return {client_id: now for client_id, now in fresh.items() if client_id not in failed}

    def _help(
        self, refused: dict[str, Refused], fresh: dict[str, Ownership], failed: dict[str, QueuekeeperError]
    ) -> Operation[set[str]]:
        """Record the owners of sessions in Redis, as their driver would; return those that were new to Redis."""
        told = [
            (ownership, self._in_redis[name])
            for client_id, ownership in fresh.items()
            # A driver works on a fenced session. A session of another store that Redis refused may be fenced there.
            if ownership.fenced_until_ms is None and ownership.epoch is not None
            for name in {ownership.owner, refused[client_id].used.owner} - {POSTGRES}
        ]
        if not told:
            return set()
        calls = [store.set_owner_call(ownership) for ownership, store in told]
        try:
            replies = yield AtRedis(calls)
        except QueuekeeperError as error:
            replies = [error] * len(calls)
        helped: set[str] = set()
        for (ownership, store), reply in zip(told, replies, strict=True):
            is_owner = ownership.owner == OWNER_OF[store.layout]
            if reply == b"set":
                helped.add(ownership.client_id)
            elif isinstance(reply, QueuekeeperError) and is_owner and not isinstance(reply, MOVED):
                failed[ownership.client_id] = reply
        return helped

    def _given_up(self, client_id: str, now: Ownership, error: QueuekeeperError) -> QueuekeeperError:
        if now.fenced_until_ms is not None or isinstance(error, SessionFenced):
            return SessionFenced(
                f"session {client_id!r} is still on its way to the other store after {self._patience_s:g} s: "
                "repeat the call in a moment"
            )
        epoch = "" if now.epoch is None else f" (epoch {now.epoch})"
        return type(error)(
            f"session {client_id!r} belongs to {OWNER_WORDS[now.owner]}{epoch} according to PostgreSQL, but was "
            f"refused for {self._patience_s:g} s: {error}. Repeat the call; if that does not help, let the migration's "
            "driver run again"
        )
