"""Registration of consumers with a fan-out queue, and options of both."""

from __future__ import annotations

from contextlib import suppress

from queuekeeper import lua
from queuekeeper.checks import check_choice, check_integer, shown
from queuekeeper.errors import HasLeases, UnknownConsumer, UsageError
from queuekeeper.fanout.model import MAX_MS, ConsumerOptions, QueueOptions, Start, check_consumer, check_queue
from queuekeeper.fanout.operations.common import (
    IDS_PER_CALL,
    CommonOperations,
    Steps,
    ask,
    read_options,
    written_options,
)
from queuekeeper.fanout.reports import Registration, UnregisterReport
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, fanout_consumer_keys
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation


class RegisterOperations(CommonOperations):
    """Register, adopt, configure, touch, unregister."""

    def register(
        self, queue: str, *, consumer: str, options: ConsumerOptions | None = None, start: Start = Start.NEW
    ) -> Operation[Registration]:
        """Register a consumer; it gets every message that is published from then on.

        A consumer that is registered already keeps its options and messages; :meth:`configure` changes options. Repeat
        the call if it was interrupted: the consumer can claim nothing until it has all earlier messages of ``start``.

        :param options: options of a new consumer; defaults when absent.
        :param start: earlier messages that a new consumer gets, none by default.
        :raises ConsumerLeaving: while a consumer of this name is being removed.
        """
        keys = self._keys(queue)
        check_consumer(consumer)
        check_choice("start", start, Start)
        chosen = options or ConsumerOptions()
        own = fanout_consumer_keys(queue, consumer, prefix=self._prefix)
        reply = yield from ask(
            scripts.register(
                keys, own, consumer=consumer, options=written_options(chosen), start=start, now_ms=self._now()
            )
        )
        self._forget(queue)
        adopted = (yield from self._adopt(queue, consumer, reply.adopting.decode())) if reply.adopting else 0
        return Registration(
            queue=queue,
            consumer=consumer,
            created=bool(reply.created),
            options=read_options(reply.options) or chosen,
            adopted=adopted,
            version=reply.membership,
        )

    def adopt(self, queue: str, *, consumer: str) -> Operation[int]:
        """Finish a registration that was interrupted before its consumer had all earlier messages.

        The consumer can claim nothing until then. The call can be repeated, also while the registration is running.

        :returns: number of messages that the call gave to the consumer.
        """
        reply = yield from self._consumer_facts(queue, consumer, sample=0)
        adopting: bytes = dict(reply.fields)[b"adopting"]
        return (yield from self._adopt(queue, consumer, adopting.decode())) if adopting else 0

    def _adopt(self, queue: str, consumer: str, adopting: str) -> Steps[int]:
        """Give a new consumer earlier messages, newest first.

        :param adopting: its start, and the id that all its earlier messages are below.
        """
        start, below = adopting.split()
        ids: list[int] = []
        if start == Start.RETAINED:
            # Every message has a count of references; reading these hash values is cheaper than reading the messages.
            counts = yield from self._walk_ids(self._keys(queue).references)
            ids = sorted({message_id for message_id in counts if message_id < int(below)}, reverse=True)
        adopted = at = 0
        more = 1

        def call(keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.adopt(
                keys,
                own,
                consumer=consumer,
                limit=limit,
                is_last=int(at >= len(ids)),
                now_ms=self._now(),
                ids=page,
            )

        while more:
            limit = self._size(IDS_PER_CALL)
            page = ids[at : at + limit]
            at += limit
            reply = yield from self._ask_with_lanes(queue, consumer, call)
            adopted += reply.adopted
            more = reply.more
            if self._counts_only and start != Start.RETAINED:
                # Nothing was adopted, so another call would return the same messages.
                break
        return adopted

    def configure(
        self, queue: str, *, consumer: str | None = None, options: ConsumerOptions | QueueOptions
    ) -> Operation[None]:
        """Replace the options of a consumer, or of the queue when ``consumer`` is absent.

        :raises UsageError: when mode or lanes would change while messages wait.
        """
        check_queue(queue)
        kind = QueueOptions if consumer is None else ConsumerOptions
        if not isinstance(options, kind):
            raise UsageError(
                f"options is {shown(options)}: it must be {kind.__name__}; a consumer takes ConsumerOptions, and the "
                "queue itself QueueOptions"
            )
        if isinstance(options, QueueOptions):
            yield from ask(
                scripts.configure_queue(
                    self._keys(queue),
                    when_nobody=options.when_nobody,
                    max_held=options.max_held,
                    deduplication_ms=options.deduplication_ms,
                )
            )
            return
        assert consumer is not None
        text = written_options(options)
        yield from self._with_all_in_line(
            queue,
            consumer,
            lambda: self._ask_with_lanes(
                queue, consumer, lambda keys, own: scripts.configure(keys, own, consumer=consumer, options=text)
            ),
        )
        self._forget(queue)

    def take_over(self, queue: str, *, dry_run: bool = True) -> Operation[tuple[str, ...]]:
        """Let consumers that an earlier version has registered read the log, so that a publish costs the same for all.

        Nothing is moved: what is in their lists comes first. Update all workers and publishers before. A consumer with
        a ``max_length`` keeps its lists.

        :returns: names of these consumers.
        """
        reply = yield from ask(scripts.take_over(self._keys(queue), dry_run=int(dry_run)))
        self._forget(queue)
        return tuple(sorted(name.decode() for name in reply.consumers))

    def touch(self, queue: str, *, consumer: str) -> Operation[int]:
        """Note that a consumer is alive.

        The consumer is then not removed as idle. Every claim notes the same.

        :returns: the instant that was noted, in milliseconds.
        """
        keys, _ = self._own_keys(queue, consumer)
        seen_ms: int = yield from ask(scripts.touch(keys, consumer=consumer, now_ms=self._now()))
        return seen_ms

    def unregister(
        self, queue: str, *, consumer: str, force: bool = False, begun: bool = False, dry_run: bool = False
    ) -> Operation[UnregisterReport]:
        """Remove a consumer with its messages and dead letters, in bounded steps.

        It gets no more messages from the first step on. Repeat the call if it was interrupted.

        :param force: whether to remove it while its messages are under lease; their acks will be refused.
        :param begun: whether to only finish a removal; a consumer that was registered again since counts as unknown.
        :raises HasLeases: when messages are under lease and ``force`` is false.
        """
        if dry_run:
            view = yield from self._consumer_view(queue, consumer, sample=0)
            if begun and view.options is not None:
                raise UnknownConsumer(f"consumer {consumer!r} is registered, and is not being removed")
            if view.leased > view.overdue and view.options is not None and not force:
                raise HasLeases(f"somebody works on messages of consumer {consumer}")
            owed = view.ready + view.leased + view.delayed + view.dead
            return UnregisterReport(queue=queue, consumer=consumer, released=owed, freed=None, dry_run=True)
        report = yield from self._unregister(queue, consumer, force=force, begun=begun)
        assert report is not None
        return report

    def unregister_idle(
        self, queue: str, *, idle_expiry_ms: int | None = None, dry_run: bool = False
    ) -> Operation[list[UnregisterReport]]:
        """Remove the consumers whose ``idle_expiry_ms`` is over, and finish removals that were interrupted.

        :param idle_expiry_ms: time in ms for consumers whose options have none; when absent, these stay.
        """
        if idle_expiry_ms is not None:
            check_integer("idle_expiry_ms", idle_expiry_ms, 1, MAX_MS)
        membership = yield from self._membership(queue, fresh=True)
        now_ms = membership.now_ms if self._clock is None else self._clock()
        reports: list[UnregisterReport] = []
        for consumer, member in membership.members.items():
            # A removal that has begun is finished, whatever the idle time.
            idle_ms = 0 if member.options is None else member.options.idle_expiry_ms or idle_expiry_ms
            if idle_ms is None or member.last_seen_ms > now_ms - idle_ms:
                continue
            with suppress(HasLeases, UnknownConsumer):
                if dry_run:
                    reports.append((yield from self.unregister(queue, consumer=consumer, dry_run=True)))
                else:
                    report = yield from self._unregister(
                        queue, consumer, unseen_since_ms=now_ms - idle_ms + 1, begun=member.options is None
                    )
                    reports += [report] if report is not None else []
        return reports

    def _unregister(
        self,
        queue: str,
        consumer: str,
        *,
        force: bool = False,
        begun: bool = False,
        unseen_since_ms: int | None = None,
    ) -> Steps[UnregisterReport | None]:
        """Remove a consumer; return ``None`` when it was seen since ``unseen_since_ms``."""
        released = freed = pages = 0
        more = 1

        def call(keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.unregister(
                keys,
                own,
                consumer=consumer,
                force=int(force),
                unseen_since_ms="" if unseen_since_ms is None else unseen_since_ms,
                limit=self._size(IDS_PER_CALL),
                # Between two pages others may finish the removal and register the name again: that consumer stays.
                begun=int(begun or pages > 0),
                now_ms=self._now(),
            )

        while more:
            try:
                reply = yield from self._ask_with_lanes(queue, consumer, call)
            except UnknownConsumer:
                if not pages:
                    raise
                break
            if reply.word == "seen":
                return None
            released += reply.released
            freed += reply.freed
            more = 0 if self._counts_only else reply.more
            pages += 1
        self._forget(queue)
        return UnregisterReport(queue=queue, consumer=consumer, released=released, freed=freed, dry_run=False)
