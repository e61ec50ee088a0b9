"""Operations that set the retention of a compacted queue, purge its messages, or drop it."""

from __future__ import annotations

from queuekeeper.compacted.model import Purge, Retention
from queuekeeper.compacted.operations.common import ROWS_PER_CALL, ask, check_retention
from queuekeeper.compacted.operations.look import LookOperations
from queuekeeper.compacted.reports import DropReport, PurgeReport
from queuekeeper.errors import UsageError
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation


class UpkeepOperations(LookOperations):
    """Configure, purge, drop."""

    def configure(self, client_id: str, *, retention: Retention | None) -> Operation[None]:
        """Set the retention of a queue, which is made if it does not exist.

        :param retention: none for the collector's retention.
        """
        keys = self._keys(client_id)
        if retention is None:
            call = scripts.configure(keys, policy="", retention_ms="", tombstone_ms="")
        else:
            check_retention(retention)
            call = scripts.configure(
                keys,
                policy=retention.policy,
                retention_ms=retention.retention_ms,
                tombstone_ms=retention.tombstone_ms,
            )
        yield from ask(call)
        # Messages may be due earlier now than the collector's next visit of the queue.
        yield from self._note(client_id, "earlier")

    def purge(self, client_id: str, *, what: Purge, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove messages of a queue, in calls of bounded size.

        The queue keeps its sequence numbers, its cursor, and messages appended after the purge began.

        :param what: which messages to remove.
        :param dry_run: remove nothing, and report what would be removed.
        """
        if type(what) is not Purge:
            raise UsageError(f"what to purge is {what!r}: it must be a Purge")
        up_to = what.sequence if what.sequence is not None else (yield from self.inspect(client_id)).sequence
        keys = self._keys(client_id)
        messages = unacked = tombstones = size_bytes = after = 0
        more = 1
        while more:
            reply = yield from ask(
                scripts.purge(
                    keys,
                    what="acked" if what.kind == "acked" else "up_to",
                    up_to_sequence=up_to,
                    after_sequence=after,
                    limit=ROWS_PER_CALL,
                    dry_run=int(dry_run),
                )
            )
            messages += reply.deleted
            unacked += reply.unacked
            tombstones += reply.tombstones
            size_bytes += reply.bytes
            more, after = reply.more, reply.next_after_sequence
        return PurgeReport(
            client_id=client_id,
            messages=messages,
            unacked=unacked,
            tombstones=tombstones,
            size_bytes=size_bytes,
            dry_run=dry_run,
        )

    def drop(self, client_id: str, *, dry_run: bool = False, incarnation: int | None = None) -> Operation[DropReport]:
        """Remove a queue with its sequence numbers and cursor; the next append makes a new queue.

        :param dry_run: remove nothing, and report what would be removed.
        :param incarnation: drop the queue only if it has this incarnation, as :meth:`inspect` or a dry run returned it;
            none for any.
        :raises StaleEpoch: when the queue has another incarnation, or does not exist.
        """
        reply = yield from ask(
            scripts.drop(
                self._keys(client_id), incarnation="" if incarnation is None else incarnation, dry_run=int(dry_run)
            )
        )
        return DropReport(
            client_id=client_id,
            existed=bool(reply.existed),
            messages=reply.live,
            lag=reply.lag,
            in_flight=reply.in_flight,
            size_bytes=reply.bytes,
            incarnation=reply.incarnation or None,
            dry_run=dry_run,
        )
