"""Cleans pages of keys, or only counts, by scripts that decide when they write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, NamedTuple

import redis

from queuekeeper import lua
from queuekeeper.errors import NotOwner, QueuekeeperError, WrongType
from queuekeeper.jobs.model import World
from queuekeeper.jobs.pace import RunPaused, TimeIsUp
from queuekeeper.keyspace import raw_session_keys, split_session_key
from queuekeeper.lua import scripts
from queuekeeper.maintenance.cleanup.model import CleanupCounts, CleanupParameters, Stop
from queuekeeper.maintenance.cleanup.packed import PackedSweep
from queuekeeper.maintenance.cleanup.undo import REFERENCES_PER_CALL, name_of
from queuekeeper.portions import portions

RECORDS_PER_CALL = 100
CALLS_PER_TRIP = 200
COST_PER_TRIP = 2_000
"""Most keys, or equal work, in the calls of one trip: other clients may wait until the server is through."""

LIST_COST = 200
"""Cost of a full page of references."""

RECORD_COST = 10
_NO_BEFORE: Mapping[bytes, int] = {}
WORST_QUEUES = 10
CROWDED_SHARE = 0.9
"""Share of the limit from which dead references may push live messages out of a queue."""


def _positions(text: bytes) -> list[int]:
    return [int(position) for position in text.split(b",")] if text else []


class _Reference(NamedTuple):
    member: bytes
    score: float


class _Judged(NamedTuple):
    """Reply of a script that judged records.

    :param as_of_ms: the server's instant of the judgement.
    :param answers: each key with the values of the script's answer.
    """

    stem: bytes
    as_of_ms: int
    answers: list[tuple[bytes, list[Any]]]


@dataclass
class _Queue:
    """A set that a sweep works through.

    :ivar start: rank at which the next page begins.
    :ivar dead_share: memory and number of dead references on the first page that has some, measured before any are
        removed.
    """

    stem: bytes
    start: int = 0
    seen: int = 0
    dead: int = 0
    dead_share: tuple[int, int] = (0, 0)
    page: list[_Reference] = field(default_factory=list)


class Sweep:
    """Cleans pages of keys, or counts what there is to clean where the world's writer only counts.

    Each trip keeps to the pace of the run.

    :ivar worst: ``(dead, references, stem)`` of the queues with most dead references.
    """

    def __init__(self, world: World[CleanupParameters]) -> None:
        self.worst: list[tuple[int, int, bytes]] = []
        self._world, self._writer = world, world.writer
        self._parameters = parameters = world.parameters
        self._prefix = parameters.key_prefix.encode()
        # An empty hash tag scatters a session's keys over slots, and no script may touch two slots of a cluster.
        self._scattered = self._prefix + b"{}" if isinstance(world.client, redis.RedisCluster) else None
        self._keep_ms = parameters.idle_days * 86_400_000
        self._packed = PackedSweep(world, call=self._call_until_error, note=self._note, keep_ms=self._keep_ms)
        self._default_ttl_ms, self._grace_ms = parameters.default_ttl_s * 1_000, parameters.grace_s * 1_000

    def page(self, names: Iterable[bytes], counts: CleanupCounts) -> None:
        """Clean a page of keys, and add each change to the counts as soon as it is made."""
        queues: set[bytes] = set()
        packed: set[bytes] = set()
        payloads: dict[bytes, list[bytes]] = defaultdict(list)
        idle: dict[bytes, set[str]] = defaultdict(set)
        for name in names:
            found = split_session_key(name, prefix=self._prefix)
            if found is None:
                continue
            stem, kind = found
            counts.keys += 1
            if kind == "packed":
                packed.add(stem)
            elif self._scattered is not None and stem.startswith(self._scattered):
                counts.scattered_keys += 1
            elif kind == "messages":
                queues.add(stem)
            elif kind == "payload":
                payloads[stem].append(name)
            else:
                idle[stem].add(kind)
        self._pace(counts.keys)
        self._orphans(payloads, counts)
        emptied = self._queues([_Queue(stem) for stem in sorted(queues)], counts)
        self._idle({stem: {"last_packet_id", "session"} for stem in emptied}, counts, all_dead=True)
        # Sessions whose set is gone meanwhile were judged above.
        self._idle({stem: kinds for stem, kinds in idle.items() if stem not in emptied}, counts, all_dead=False)
        dead = self._packed.sessions(sorted(packed), counts)
        self.worst = nlargest(WORST_QUEUES, [*self.worst, *dead])

    def _pace(self, amount: int = 0) -> None:
        """Note how long the last trip took, and wait until the next one may be sent."""
        self._world.rest()
        self._world.pace(amount)

    def _trips(self, calls: Sequence[lua.Call], cost: int | None) -> Iterator[list[lua.Call]]:
        """Yield the calls in portions that keep a server busy for a few milliseconds."""

        def price(call: lua.Call) -> int:
            return len(call.keys) if cost is None else cost

        size = self._world.size
        while calls:
            trip = next(portions(calls, size=price, most=size(COST_PER_TRIP), most_items=size(CALLS_PER_TRIP)))
            calls = calls[len(trip) :]
            yield trip

    def _call(self, calls: Sequence[lua.Call], counts: CleanupCounts, *, cost: int | None = None) -> list[lua.Reply]:
        """Return the replies; none where a key is of another type.

        :param cost: cost of each call; by default the number of its keys.
        """
        replies, error = self._call_until_error(calls, counts, cost=cost)
        if error is not None:
            raise error
        return replies

    def _call_until_error(
        self, calls: Sequence[lua.Call], counts: CleanupCounts, *, cost: int | None = None
    ) -> tuple[list[lua.Reply], Stop | None]:
        """Return the replies and the first error; the caller counts what was done before it raises the error.

        :returns: none in place of a reply where a key is of another type, Redis does not own the session, or the call
            failed.
        """
        replies: list[lua.Reply] = []
        error: Stop | None = None
        for trip in self._trips(calls, cost):
            try:
                self._pace()
            except (RunPaused, TimeIsUp) as stop:
                error = stop
                break
            for call, reply in zip(trip, self._writer.execute(trip), strict=True):
                if isinstance(reply, WrongType):
                    counts.wrong_type_keys += 1
                elif isinstance(reply, NotOwner):
                    counts.held_sessions += 1
                elif isinstance(reply, QueuekeeperError):
                    error = error or reply
                replies.append(None if isinstance(reply, QueuekeeperError) else call.script.read(reply))
            if error is not None:
                break
        return replies + [None] * (len(calls) - len(replies)), error

    # --- references ----------------------------------------------------------------------------------------------

    def _queues(self, queues: list[_Queue], counts: CleanupCounts) -> set[bytes]:
        """Go through sets page by page; return the sessions that have only dead references."""
        emptied: set[bytes] = set()
        counts.sessions += len(queues)
        while queues:
            going_on: list[_Queue] = []
            # As many sets at once as a trip can hold full pages.
            for some in self._world.batches(queues, CALLS_PER_TRIP // 4):
                limit, cost = self._world.size(REFERENCES_PER_CALL), self._world.size(LIST_COST)
                calls = [
                    scripts.sessions.list_references(
                        raw_session_keys(each.stem), by="rank", start=each.start, limit=limit
                    )
                    for each in some
                ]
                listed: list[_Queue] = []
                for queue, reply in zip(some, self._call(calls, counts, cost=cost), strict=True):
                    if reply is None:
                        continue
                    queue.page = [_Reference(row.member, float(row.score)) for row in reply.references]
                    listed.append(queue)
                self._pace(sum(len(each.page) for each in listed))
                self._references(listed, counts)
                for queue in listed:
                    if len(queue.page) == limit:
                        going_on.append(queue)
                    elif self._end(queue, counts):
                        emptied.add(queue.stem)
            queues = going_on
        return emptied

    def _end(self, queue: _Queue, counts: CleanupCounts) -> bool:
        """Count a finished set, and return whether all its references were dead."""
        if queue.dead:
            if queue.seen >= CROWDED_SHARE * self._parameters.limit:
                counts.crowded_queues += 1
            self.worst = nlargest(WORST_QUEUES, [*self.worst, (queue.dead, queue.seen, queue.stem)])
        return 0 < queue.seen == queue.dead

    def _references(self, queues: Sequence[_Queue], counts: CleanupCounts) -> None:
        """Judge a page of each set."""
        judged: list[tuple[_Queue, list[_Reference]]] = []
        for queue in queues:
            own = queue.stem + b"_messages_"
            ours = [each for each in queue.page if each.member.startswith(own) and each.member[len(own) :].isdigit()]
            counts.foreign_references += len(queue.page) - len(ours)
            counts.references += len(queue.page)
            queue.seen += len(queue.page)
            queue.start += len(queue.page)
            if ours:
                judged.append((queue, ours))
        calls = [
            scripts.maintenance.find_dead_references(
                raw_session_keys(queue.stem), payloads=[each.member for each in ours]
            )
            for queue, ours in judged
        ]
        dead: list[tuple[_Queue, list[_Reference]]] = []
        lasting: list[tuple[_Queue, list[_Reference]]] = []
        for (queue, ours), reply in zip(judged, self._call(calls, counts), strict=True):
            if reply is None:
                continue
            gone = [ours[position] for position in _positions(reply.dead)]
            if gone:
                queue.dead_share = queue.dead_share if queue.dead_share[1] else (int(reply.bytes), len(gone))
                dead.append((queue, gone))
            without = [ours[position] for position in _positions(reply.lasting)]
            if without:
                lasting.append((queue, without))
        self._remove(dead, counts)
        self._repair(lasting, counts)

    def _remove(self, dead: Sequence[tuple[_Queue, list[_Reference]]], counts: CleanupCounts) -> None:
        """Note dead references in the undo file, then remove them."""
        if not dead:
            return
        self._writer.note(
            {
                "messages": name_of(queue.stem + b"_messages"),
                "references": [(name_of(each.member), each.score) for each in gone],
            }
            for queue, gone in dead
        )
        calls = [
            scripts.sessions.remove_dead_references(
                raw_session_keys(queue.stem),
                payloads=[each.member for each in gone],
                epoch="",
                earliest_expiry_ms="",
                complete_for="",
            )
            for queue, gone in dead
        ]
        replies, error = self._call_until_error(calls, counts)
        for (queue, _), reply in zip(dead, replies, strict=True):
            number = 0 if reply is None else int(reply.removed)
            memory, of = queue.dead_share
            counts.dead_references += number
            counts.freed_bytes += memory * number // of
            queue.dead += number
            queue.start -= number - self._writer.still_there(number)
        if error is not None:
            raise error

    def _repair(self, lasting: Sequence[tuple[_Queue, list[_Reference]]], counts: CleanupCounts) -> None:
        """Give an expiry to messages without one."""
        work = [
            (queue.stem, [each.member for each in page])
            for queue, without in lasting
            for page in self._world.batches(without, RECORDS_PER_CALL)
        ]

        call = self._judging(scripts.maintenance.repair_expiries)
        for judged in self._records(work, call, 1, counts):
            counts.unreadable += sum(answer == b"unreadable" for each in judged for _, (answer,) in each.answers)
            self._limit(
                [each._replace(answers=[pair for pair in each.answers if pair[1][0].isdigit()]) for each in judged],
                call,
                1,
                counts,
            )

    # --- messages ------------------------------------------------------------------------------------------------

    def _orphans(self, payloads: dict[bytes, list[bytes]], counts: CleanupCounts) -> None:
        """Judge payload keys that no reference names."""
        asked = [
            (stem, page) for stem, keys in payloads.items() for page in self._world.batches(keys, REFERENCES_PER_CALL)
        ]
        calls = [scripts.sessions.find_orphans(raw_session_keys(stem), payloads=keys) for stem, keys in asked]
        replies = self._call(calls, counts)
        work = [
            (stem, some)
            for (stem, keys), reply in zip(asked, replies, strict=True)
            if reply is not None
            for some in self._world.batches(
                [key for key, found in zip(keys, reply.expiries, strict=True) if found != -2], RECORDS_PER_CALL
            )
        ]

        call = self._judging(scripts.maintenance.unlink_orphans)
        for judged in self._records(work, call, 2, counts):
            for _, (outcome, amount) in (pair for each in judged for pair in each.answers):
                if outcome == b"unlinked":
                    counts.orphans += 1
                    counts.freed_bytes += amount
                elif outcome == b"young":
                    counts.young_orphans += 1
                elif outcome == b"unreadable":
                    counts.unreadable += 1
                elif outcome == b"wrong_type":
                    counts.wrong_type_keys += 1
            self._limit(
                [each._replace(answers=[pair for pair in each.answers if pair[1][0] == b"limited"]) for each in judged],
                call,
                2,
                counts,
            )

    def _judging(self, script: Callable[..., lua.Call]) -> Callable[..., lua.Call]:
        """Return what calls a script that judges messages of a session by their age."""
        ages = {"default_ttl_ms": self._default_ttl_ms, "grace_ms": self._grace_ms}
        return lambda stem, keys, said_ms=0: script(raw_session_keys(stem), payloads=keys, said_ms=said_ms, **ages)

    def _records(
        self,
        work: list[tuple[bytes, list[bytes]]],
        call: Callable[[bytes, list[bytes]], lua.Call],
        width: int,
        counts: CleanupCounts,
    ) -> Iterator[list[_Judged]]:
        """Yield each key with its answer; a call may answer for fewer keys than it was given.

        An error is raised after the answers before it have been yielded.

        :param width: number of values in an answer.
        """
        while work:
            again: list[tuple[bytes, list[bytes]]] = []
            for some in self._world.batches(work, CALLS_PER_TRIP):
                done: list[_Judged] = []
                cost = RECORD_COST * max(len(keys) for _, keys in some)
                calls = [call(stem, keys) for stem, keys in some]
                replies, error = self._call_until_error(calls, counts, cost=cost)
                for (stem, keys), reply in zip(some, replies, strict=True):
                    if reply is None:
                        continue
                    judged = _judged(stem, keys, reply, width)
                    done.append(judged)
                    if len(judged.answers) < len(keys):
                        again.append((stem, keys[len(judged.answers) :]))
                yield done
                if error is not None:
                    raise error
            work = again

    def _limit(
        self,
        said: Sequence[_Judged],
        call: Callable[[bytes, list[bytes], int], lua.Call],
        width: int,
        counts: CleanupCounts,
    ) -> None:
        """Note the expiries that scripts have announced, set them, and count them.

        :param said: last value of the answers for records that are to get an expiry.
        :param call: makes the call that sets the expiries announced for an instant.
        """
        said = [each for each in said if each.answers]
        if not said:
            return
        announced = {key: int(answer[-1]) for each in said for key, answer in each.answers}
        self._note(announced.items())
        calls = [call(each.stem, [key for key, _ in each.answers], each.as_of_ms) for each in said]
        cost = RECORD_COST * max(len(each.answers) for each in said)
        replies, error = self._call_until_error(calls, counts, cost=cost)
        done = {
            key: int(answer[-1])
            for each, reply in zip(said, replies, strict=True)
            if reply is not None
            for key, answer in _judged(each.stem, [key for key, _ in each.answers], reply, width).answers
            if answer[0] == b"limited" or answer[0].isdigit()
        }
        # The script has judged records again that were written in between.
        self._note((key, at_ms) for key, at_ms in done.items() if at_ms != announced[key])
        counts.expiries_repaired += len(done)
        if error is not None:
            raise error

    # --- what outlives its session -------------------------------------------------------------------------------

    def _idle(self, sessions: dict[bytes, set[str]], counts: CleanupCounts, *, all_dead: bool) -> None:
        """Let packet ids and fields of sessions without messages expire.

        :param sessions: sessions, each with the kinds of keys to count; SCAN meets their other keys separately.
        :param all_dead: whether the sets hold, or held, only dead references.
        """
        stems = list(sessions)

        def call(stem: bytes, said_ms: int = 0) -> lua.Call:
            return scripts.maintenance.expire_idle_session(
                raw_session_keys(stem),
                keep_ms=self._keep_ms,
                said_ms=said_ms,
                all_dead=int(all_dead and self._writer.counts_only),
            )

        replies = self._call([call(stem) for stem in stems], counts)
        found = {stem: reply for stem, reply in zip(stems, replies, strict=True) if reply is not None}
        counts.held_sessions += sum(reply.word == "held" for reply in found.values())
        counts.wrong_type_keys += sum(reply.word == "foreign" for reply in found.values())
        going = {stem: reply for stem, reply in found.items() if reply.word == "expires"}
        announced = dict(pair for stem, reply in going.items() for pair in _idle_expiries(stem, reply))
        # An import marks a last packet id by an expiry, which shows that nobody has used it; an undo gives that back.
        before = {stem + b"_last_packet_id": int(reply.before_ms) for stem, reply in going.items()}
        self._note(announced.items(), before)
        asked = list(going)
        replies, error = self._call_until_error([call(stem, going[stem].as_of_ms) for stem in asked], counts)
        going = {
            stem: reply
            for stem, reply in zip(asked, replies, strict=True)
            if reply is not None and reply.word == "expires"
        }
        # The script has judged sessions again that were used in between.
        done = [pair for stem, reply in going.items() for pair in _idle_expiries(stem, reply)]
        before = {stem + b"_last_packet_id": int(reply.before_ms) for stem, reply in going.items()}
        self._note(((key, at_ms) for key, at_ms in done if announced.get(key) != at_ms), before)
        for stem, reply in going.items():
            sizes = _idle_sizes(reply)
            met = {kind: size for kind, size in sizes.items() if kind in sessions[stem] or not self._writer.counts_only}
            counts.idle_keys += len(met)
            counts.later_bytes += sum(met.values())
            shared = stem.startswith(self._prefix + b"{ss_")
            counts.shared_subscriptions += shared and "last_packet_id" in met
        if error is not None:
            raise error

    def _note(self, expiries: Iterable[tuple[bytes, int]], before: Mapping[bytes, int] = _NO_BEFORE) -> None:
        """Note expiries; keys of one session stand in one line, since they share a slot.

        :param before: expiries that keys have had; -1, or nothing, for none.
        """
        lines: dict[bytes, list[tuple[str | int, ...]]] = defaultdict(list)
        for key, expires_at_ms in expiries:
            found = split_session_key(key, prefix=self._prefix)
            assert found is not None  # the stem was made of a key
            before_ms = before.get(key, -1)
            had = () if before_ms < 0 else (before_ms,)
            lines[found[0]].append((name_of(key), expires_at_ms, *had))
        if lines:
            self._writer.note(
                {"expiries": page} for each in lines.values() for page in self._world.batches(each, REFERENCES_PER_CALL)
            )


def _judged(stem: bytes, keys: Sequence[bytes], reply: Any, width: int) -> _Judged:
    answers = [[text] for text in reply.expires_at_ms] if width == 1 else list(map(list, reply.outcomes))
    return _Judged(stem, int(reply.as_of_ms), list(zip(keys, answers, strict=False)))


def _idle_sizes(reply: Any) -> dict[str, int]:
    """Return the memory of each key of a session that is to expire."""
    sizes = {"last_packet_id": int(reply.last_packet_id), "session": int(reply.session)}
    return {kind: size for kind, size in sizes.items() if size}


def _idle_expiries(stem: bytes, reply: Any) -> list[tuple[bytes, int]]:
    return [(stem + b"_" + kind.encode(), int(reply.expires_at_ms)) for kind in _idle_sizes(reply)]
