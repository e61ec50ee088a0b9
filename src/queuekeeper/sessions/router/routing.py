"""The operations of sessions that move: each call goes to the store that owns the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import Operation, errors_name, keeps
from queuekeeper.sessions.model import (
    Ack,
    NewMessage,
    Owner,
    Release,
    SessionSave,
)
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.pages import DEFAULT_PAGE
from queuekeeper.sessions.parts import BYTES_PER_SAVE, MESSAGES_PER_SAVE
from queuekeeper.sessions.postgres_operations import MAX_VENDOR_TEXT
from queuekeeper.sessions.reports import (
    AckReport,
    ExportPage,
    ImportReport,
    PendingMessage,
    PendingPage,
    PurgeProgress,
    PurgeReport,
    SaveReport,
    SessionView,
)
from queuekeeper.sessions.router.finding import MOVED, SESSIONS_PER_PART, FindingOperations, Patience, Refused
from queuekeeper.sessions.router.steps import (
    POSTGRES,
    T,
    Together,
    by_postgres,
    by_redis,
    judged_at_postgres,
    judged_at_redis,
)
from queuekeeper.sessions.store import FetchOperations, PageWish, SessionOperations

_Call: TypeAlias = Callable[[SessionOperations], Operation[T]]
"""Makes an operation of a given store."""


@errors_name(client_id="session of client")
class RouterOperations(FindingOperations, FetchOperations):
    """The operations of a store (:class:`SessionOperations`), for sessions in PostgreSQL and in both layouts of Redis.

    A store refuses a call when the session has another owner, is moving, or has moved during the call. The router then
    repeats the rest of the call at the owner, until it is done or ``patience_s`` is over. When a driver has made Redis
    the owner in PostgreSQL and ended before Redis was told, the router tells Redis.

    :param prefix: put before every key in Redis.
    :param rules: limits to apply, the same in both stores.
    :param recent_sessions: sessions in Redis whose last packet id is cached.
    :param patience_s: seconds that a call waits for a session that is moving.
    :param owners: sessions whose owner is cached.
    :param owner_age_s: seconds for which an owner is cached. A wrong owner costs a refused call and does no harm.
    :param clock: monotonic clock, in seconds.
    :param home: layout in Redis of the sessions whose owner PostgreSQL does not record; none when it holds them.
    :raises UsageError: for a prefix with a brace, or a number out of range.
    """

    @keeps(SessionOperations.save_messages)
    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """After a failed save, later saves of the same session are not stored either, so that their order is kept.

        :raises UsageError: also for values that one of the stores cannot hold, and for a save of more than 256 messages
            or 512 KiB, which would take several steps: split it. Nothing is written then.
        """
        for save in saves:
            # A writer keeps these limits and has checked each message, but not its source.
            if not save.is_checked or save.source is not None:
                self._check_save(save)
        reports: dict[int, SaveReport] = {}
        failed: dict[str, QueuekeeperError] = {}
        for begin in range(0, len(saves), SESSIONS_PER_PART):
            part = range(begin, min(begin + SESSIONS_PER_PART, len(saves)))
            yield from self._save_part(saves, part, reports, failed)
        return [reports[index] for index in range(len(saves))]

    def check_payload(self, client_id: str, message: NewMessage) -> int:
        """Return a message's size in bytes; refuse what is not a message or is larger than the rules allow.

        :raises UsageError: also for a message that one of the stores cannot hold; it names the value.
        """
        if type(message) is not NewMessage:
            SessionSave(client_id=client_id, messages=(message,))
        size_bytes = len(message.payload)
        self._check_save(
            SessionSave.checked(
                client_id=client_id, messages=(message,), sizes_bytes=(size_bytes,), source=None, offset=None
            )
        )
        return size_bytes

    def _check_save(self, save: SessionSave) -> None:
        messages = save.messages
        size_bytes = save.payload_bytes
        self._rules.check_size(save)
        is_plain = save.source is None
        for message in messages:
            if message.subscription_ids or message.content_type is not None or message.response_topic is not None:
                is_plain = False
        if self._home == POSTGRES and (not is_plain or len(save.client_id) > MAX_VENDOR_TEXT):
            # The session may later be in either store.
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

        :param failed: errors of sessions for which this call saves no more.
        """
        patience: Patience | None = None
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
            at: dict[Owner, list[int]] = {}
            for index in part:
                client_id = saves[index].client_id
                if failed and client_id in failed:
                    reports[index] = SaveReport(client_id=client_id, error=failed[client_id])
                else:
                    at.setdefault(found[client_id].owner, []).append(index)
            refused: dict[str, Refused] = {}
            part = yield from self._save_at(saves, at, found, reports, failed, refused)
            if not part:
                return
            if patience is None:
                patience = Patience(self._clock() + self._patience_s)
            found = yield from self._ask_again(refused, patience, failed)

    def _save_at(
        self,
        saves: Sequence[SessionSave],
        at: Mapping[Owner, Sequence[int]],
        found: dict[str, Ownership],
        reports: dict[int, SaveReport],
        failed: dict[str, QueuekeeperError],
        refused: dict[str, Refused],
    ) -> Operation[list[int]]:
        """Send saves to their owners, to all stores at the same time; return the saves to try again.

        :param at: owner -> its saves.
        """
        groups: list[tuple[Sequence[int], Operation[list[SaveReport]]]] = []
        for owner, indexes in at.items():
            some = [saves[index] for index in indexes]
            if owner == POSTGRES:
                groups.append((indexes, self._save_at_postgres(some)))
            else:
                groups.append((indexes, by_redis(self._in_redis[owner].save_messages(some))))
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
                elif isinstance(error, MOVED):
                    client_id = report.client_id
                    refused[client_id] = Refused(found[client_id], error)
                    again.append(index)
                else:
                    failed.setdefault(report.client_id, error)
                    reports[index] = report
        again.sort()
        return again

    def _save_at_postgres(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Save one of each session at a time, so that what was stored is reported where the server fails later."""
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
                answer = yield from by_postgres(self._postgres.save_messages([saves[index] for index in sent]))
            except QueuekeeperError as error:
                answer = [SaveReport(client_id=saves[index].client_id, error=error) for index in sent]
            for index, report in zip(sent, answer, strict=True):
                reports[index] = report
                if report.error is not None:
                    failed[report.client_id] = report.error
            left = later
        return [reports[index] for index in range(len(saves))]

    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        # Serials are the same in both stores, so cursors stay valid.
        asked = asdict(replace(wish, mark_delivered=False))
        page = yield from self._at_owner(
            client_id, lambda store: store.fetch_pending(client_id, **asked), ask_first=True
        )
        if wish.mark_delivered and page.messages and not page.messages[-1].redelivery:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return page

    @keeps(SessionOperations.mark_delivered)
    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        return (yield from self._at_owner(client_id, lambda store: store.mark_delivered(client_id, serial=serial)))

    @keeps(SessionOperations.ack)
    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        removed = unknown = 0
        most = min(store.acks_per_call for store in self._in_redis.values())
        # A store does this many together, or none of them.
        for begin in range(0, max(1, len(acks)), most):
            part = acks[begin : begin + most]
            report = yield from self._ack(client_id, part)
            removed += report.removed
            unknown += report.unknown
        return AckReport(client_id=client_id, removed=removed, unknown=unknown)

    def _ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        return (yield from self._at_owner(client_id, lambda store: store.ack(client_id, acks)))

    @keeps(SessionOperations.mark_released)
    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        return (
            yield from self._at_owner(
                client_id, lambda store: store.mark_released(client_id, packet_id=packet_id, serial=serial)
            )
        )

    @keeps(SessionOperations.purge_session)
    def purge_session(self, client_id: str, *, dry_run: bool = False) -> Operation[PurgeReport]:
        """A purge that began in one store may end in the other."""
        progress = PurgeProgress()

        def call(store: Any) -> Operation[PurgeReport]:
            purged: Operation[PurgeReport] = store.purge_session(client_id, dry_run=dry_run, progress=progress)
            return purged

        return (yield from self._at_owner(client_id, call, ask_first=dry_run))

    @keeps(SessionOperations.get_last_packet_id)
    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        return (yield from self._at_owner(client_id, lambda store: store.get_last_packet_id(client_id), ask_first=True))

    @keeps(SessionOperations.has_saved)
    def has_saved(self, client_id: str, *, source: str) -> Operation[bool]:
        def call(store: SessionOperations) -> Operation[bool]:
            return store.has_saved(client_id, source=source)

        return (yield from self._at_owner(client_id, call, ask_first=True))

    @keeps(SessionOperations.set_last_packet_id)
    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        return (
            yield from self._at_owner(
                client_id,
                lambda store: store.set_last_packet_id(client_id, packet_id=packet_id, expected=expected),
            )
        )

    @keeps(SessionOperations.reserve_packet_ids)
    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        return (yield from self._at_owner(client_id, lambda store: store.reserve_packet_ids(client_id, count=count)))

    @keeps(SessionOperations.inspect)
    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """The ``store`` of the view is the owner."""
        return (
            yield from self._at_owner(
                client_id, lambda store: store.inspect(client_id, offset=offset, limit=limit), ask_first=True
            )
        )

    @keeps(SessionOperations.peek)
    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        return (
            yield from self._at_owner(
                client_id, lambda store: store.peek(client_id, packet_id=packet_id), ask_first=True
            )
        )

    @keeps(SessionOperations.export_session)
    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """The next page may come from the other store."""
        return (
            yield from self._at_owner(
                client_id,
                lambda store: store.export_session(client_id, after_serial=after_serial, limit=limit),
                ask_first=True,
            )
        )

    @keeps(SessionOperations.import_session)
    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """The lines are held in memory."""
        given = list(lines)

        def call(store: SessionOperations) -> Operation[ImportReport]:
            # Redis must know first that it owns the session, and whether there is a mirror.
            yield from store.get_last_packet_id(client_id)
            return (yield from store.import_session(client_id, given))

        return (yield from self._at_owner(client_id, call, ask_first=True))

    def _at_owner(self, client_id: str, call: _Call[T], *, ask_first: bool = False) -> Operation[T]:
        """Send one call for one session to its owner.

        :param ask_first: check the owner with the first step, for calls that a store answers without being the owner.
        """
        check_client_id(client_id)
        if self._home == POSTGRES and len(client_id) > MAX_VENDOR_TEXT:
            raise UsageError(
                f"client id has {len(client_id)} characters ({client_id[:20]!r}...): TBMQ 1.x stores at "
                f"most {MAX_VENDOR_TEXT}, so the session cannot move"
            )
        failed: dict[str, QueuekeeperError] = {}
        known = self._known.get(client_id)
        if known is not None and known.until_s > self._clock():
            found = {client_id: known.ownership}
        else:
            found = yield from self._look_up([client_id], failed)
        patience: Patience | None = None
        while client_id in found:
            ownership = found[client_id]
            try:
                if ownership.owner != POSTGRES:
                    in_redis = self._in_redis[ownership.owner]
                    operation = call(in_redis)
                    if ask_first:
                        operation = judged_at_redis(
                            operation, ownership, in_redis.own_fields, was_just_asked=patience is not None
                        )
                    return (yield from by_redis(operation))
                operation = call(self._postgres)
                if ask_first:
                    operation = judged_at_postgres(client_id, operation)
                return (yield from by_postgres(operation))
            except MOVED as error:
                refused = {client_id: Refused(ownership, error)}
            if patience is None:
                patience = Patience(self._clock() + self._patience_s)
            found = yield from self._ask_again(refused, patience, failed)
        raise failed[client_id]
