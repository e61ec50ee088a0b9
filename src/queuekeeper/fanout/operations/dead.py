"""Dead letters of the consumers of a fan-out queue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from queuekeeper import lua
from queuekeeper.checks import check_page
from queuekeeper.fanout.model import DEFAULT_PAGE, MAX_PAGE, Mode
from queuekeeper.fanout.operations.common import (
    IDS_PER_CALL,
    CommonOperations,
    Steps,
    ask,
    parts_of,
    read_message,
)
from queuekeeper.fanout.reports import DeadLetter, DeadPage, PurgeReport, RetryReport
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation


class DeadOperations(CommonOperations):
    """List, retry and purge dead letters."""

    def list_dead(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE
    ) -> Operation[DeadPage]:
        """List a consumer's dead letters and why they died, oldest first.

        :param offset: number of dead letters to skip before the first one.
        :param limit: largest number of dead letters to list.
        """
        check_page(offset, limit, most=MAX_PAGE)
        keys, own = self._own_keys(queue, consumer)
        yield from self._member(queue, consumer)
        reply = yield from ask(scripts.list_dead(keys, own, offset=offset, limit=limit))
        letters = tuple(
            DeadLetter(
                id=int(letter.id),
                died_ms=int(letter.died_ms),
                reason=letter.reason.decode("utf-8", "replace"),
                attempts=letter.attempts,
                stalls=letter.stalls,
                message=read_message(
                    queue, consumer, int(letter.id), letter.message, attempt=letter.attempts, stalls=letter.stalls
                ),
            )
            for letter in reply.letters
            # Skip entries of other programs.
            if letter.id.isdigit()
        )
        reached = offset + len(reply.letters)
        goes_on = reply.letters and reached < reply.total
        return DeadPage(letters=letters, total=reply.total, next_offset=reached if goes_on else None)

    def retry_dead(self, queue: str, *, consumer: str, ids: Sequence[int] | None = None) -> Operation[RetryReport]:
        """Put dead letters back in line, with attempts and stalls at zero; an ordered consumer gets them first.

        :param ids: ids of the dead letters; all of the consumer's when absent.
        """
        member = yield from self._member(queue, consumer)
        wanted = sorted((yield from self._walk_ids(member.keys.dead)) if ids is None else ids)
        parts = parts_of(wanted, IDS_PER_CALL)
        if member.options is not None and member.options.mode is Mode.ORDERED:
            # Each part goes to the head: the first part last.
            parts.reverse()
        retried = missing = 0

        def call(part: Sequence[int], keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.retry_dead(keys, own, consumer=consumer, now_ms=self._now(), ids=part)

        for part in parts:
            reply = yield from self._ask_with_lanes(queue, consumer, partial(call, part))
            retried += reply.retried
            missing += len(reply.missing)
        return RetryReport(retried=retried, missing=missing)

    def purge_dead(
        self, queue: str, *, consumer: str, ids: Sequence[int] | None = None, dry_run: bool = False
    ) -> Operation[PurgeReport]:
        """Remove dead letters.

        :param ids: ids of the dead letters; all of the consumer's when absent.
        """
        parts = parts_of(ids or (), IDS_PER_CALL)
        member = yield from self._member(queue, consumer)
        if dry_run:
            dead = set((yield from self._walk_ids(member.keys.dead)))
            return PurgeReport(released=len(dead if ids is None else dead.intersection(ids)), freed=None, dry_run=True)
        if ids is None:
            return (yield from self._purge_dead(queue, consumer))
        released = freed = 0
        for part in parts:
            report = yield from self._purge_dead(queue, consumer, ids=part)
            released += report.released
            freed += report.freed or 0
        return PurgeReport(released=released, freed=freed)

    def _purge_dead(
        self, queue: str, consumer: str, *, died_before_ms: int | None = None, ids: Sequence[int] = ()
    ) -> Steps[PurgeReport]:
        """Remove the dead letters with these ids, or without ids those that died before an instant."""
        keys, own = self._own_keys(queue, consumer)
        released = freed = behind = 0
        more = 1
        while more:
            reply = yield from ask(
                scripts.purge_dead(
                    keys,
                    own,
                    died_before_ms="" if died_before_ms is None else died_before_ms,
                    limit=self._size(IDS_PER_CALL),
                    behind=behind,
                    ids=ids,
                )
            )
            released += reply.purged
            freed += reply.freed
            more = reply.more
            behind += reply.purged if self._counts_only else 0
        return PurgeReport(released=released, freed=freed)
