"""Compares what Redis should hold with what it holds, queue by queue, on Arrow's columns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.keyspace import safe_counter
from queuekeeper.migration.offline.expected import FATES, Queues
from queuekeeper.migration.offline.target import FoundSession, Reader, pairs_as_text
from queuekeeper.sessions import judge
from queuekeeper.sessions.wire import MAX_INTERVAL_S

Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = Callable[[int], Sequence[Any]]
"""Returns what was expected and what was found, of a message."""

MOVED_LATE_MS = 60_000
"""MIGRATE tells another master what is left of a life, not when it ends: each move makes it longer by its own time."""

_PROPERTIES = (
    "topic", "time", "qos", "packet_type", "retain", "msg_expiry_interval", "payload_format_indicator", "content_type",
    "response_topic", "correlation_data", "user_properties",
)  # fmt: skip

_STORED = np.dtype([("score", "<f8"), ("expires_at_ms", "<i8"), ("size_bytes", "<i8")])
_NO_END = -3
"""An expiry instant in place of null; Redis has -1 and -2 for others."""


class Found(NamedTuple):
    """A difference; see :class:`queuekeeper.migration.ledger.model.Difference`."""

    cohort: int
    kind: str
    client_id: str
    serial_number: int | None
    expected: str
    found: str


class Comparison:
    """Compares queues with what Redis holds of them, and counts what it finds.

    :param clustered: whether the target is a cluster, where a life may have become longer by the moves of its slot.
    :param counters: client id -> last packet id that a replay has moved.
    :ivar counts: what happened how often, by cohort and name: what the ledger counts, and the kinds of differences.
    :ivar digests: cohort -> the exclusive or of the hashes of its sessions as found.
    :ivar messages_done: messages that were read out of Redis.
    """

    def __init__(self, reader: Reader, *, plan_id: str, clustered: bool, counters: Mapping[str, int]) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()
        self.digests: dict[int, int] = {}
        self.messages_done = 0
        self._reader = reader
        self._plan_id = plan_id
        self._clustered = clustered
        self._counters = counters

    def compare(self, queues: Queues) -> Iterator[list[Found]]:
        """Yield the differences of whole queues, some at a time."""
        wanted = _Wanted(queues)
        clients = [
            at for at, name in enumerate(queues.names) if judge.client_defect(name, clustered=self._clustered) is None
        ]
        start = 0
        for sessions, pages in self._reader.read([queues.names[at] for at in clients]):
            some = _Some(wanted, np.array(clients[start : start + len(sessions)]), sessions, plan_id=self._plan_id)
            for page in pages:
                yield self._counted(some.differences(page, clustered=self._clustered))
                self.messages_done += page.num_rows
            yield self._counted(some.missing(self._reader.now_ms))
            yield self._counted(self._sessions(some))
            start += len(sessions)
        for name, cohorts in wanted.outcomes():
            self._add(name, cohorts)

    def _sessions(self, some: _Some) -> Iterator[Found]:
        for each in some.each(self._counters):
            self.digests[each.cohort] = self.digests.get(each.cohort, 0) ^ each.digest
            if each.is_expected:
                self.counts[each.cohort, "sessions_seen"] += 1
                self.counts[each.cohort, "sessions_copied"] += not (each.moved_on or each.differences)
            if not each.moved_on:
                yield from each.differences

    def _counted(self, differences: Iterator[Found]) -> list[Found]:
        found = list(differences)
        self.counts.update((each.cohort, each.kind) for each in found)
        return found

    def _add(self, name: str, cohorts: Numbers) -> None:
        """Count rows, of each of which the cohort is given."""
        for cohort, count in zip(*np.unique(cohorts, return_counts=True), strict=True):
            self.counts[int(cohort), name] += int(count)


class _Wanted:
    """What queues of the source ought to be in Redis, ready to be compared, and what has been seen of it.

    :ivar rows: the rows in the order of clients and serials.
    :ivar is_seen: which of the messages that ought to be there have been found.
    :ivar is_expired: which of them Redis has let expire.
    :ivar differs: which of them were found otherwise than they ought to be.
    :ivar is_left: which of the clients others have used in Redis since.
    """

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.rows = queues.rows[np.lexsort((queues.rows["serial"], queues.rows["client"]))]
        self.content = _comparable(queues.copied)
        count = len(queues.copied)
        self.is_seen, self.is_expired, self.differs = (np.zeros(count, np.bool_) for _ in range(3))
        self.is_left = np.zeros(len(queues.names), np.bool_)
        self._serials = np.unique(self.rows["serial"])
        self._keys = self._key(self.rows["client"], np.searchsorted(self._serials, self.rows["serial"]))
        copied = self.rows[self.rows["place"] >= 0]
        self._places = copied["place"]
        self._starts = np.searchsorted(copied["client"], np.arange(len(queues.names) + 1))

    def _key(self, client: Numbers, serial: Numbers) -> Numbers:
        return client.astype(np.int64) * len(self._serials) + serial

    def find(self, client: Numbers, serial: Numbers) -> Numbers:
        """Return the number of the row that has each client and serial; -1 where there is none."""
        if not len(self.rows):
            return np.full(len(client), -1)
        at = np.minimum(np.searchsorted(self._serials, serial), len(self._serials) - 1)
        key = self._key(client, at)
        row = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where((self._serials[at] == serial) & (self._keys[row] == key), row, -1)

    def places(self, first: int, last: int) -> Numbers:
        """Return the messages that clients from one to before another ought to have, in their order."""
        found: Numbers = self._places[self._starts[first] : self._starts[last]]
        return found

    def rank(self, row: int) -> int:
        """Return the place of a message in its queue, from 1."""
        client = int(self.rows["client"][row])
        return int(np.flatnonzero(self.places(client, client + 1) == self.rows["place"][row])[0]) + 1

    def outcomes(self) -> Iterator[tuple[str, Numbers]]:
        """Yield what became of the source's messages, each with the cohorts of the rows that it became of."""
        cohort, client = self.queues.clients["cohort"], self.rows["client"]
        place = self.rows["place"]
        is_copied = place >= 0
        of_source = ~is_copied
        of_source[is_copied] = ~self.queues.is_moved[place[is_copied]]
        yield "rows_seen", cohort[client[of_source]]
        for number, name in enumerate(FATES):
            if number:
                yield name, cohort[client[~is_copied & (self.rows["fate"] == number)]]
        counted = is_copied & of_source
        client, place = client[counted], place[counted]
        left, expired = self.is_left[client], self.is_expired[place]
        yield "superseded", cohort[client[left]]
        yield "expired", cohort[client[~left & expired]]
        yield "copied", cohort[client[~left & self.is_seen[place] & ~self.differs[place]]]


class _Session(NamedTuple):
    """What was found of a session.

    :param is_expected: whether the source has it.
    :param moved_on: whether others have used it since.
    """

    cohort: int
    digest: int
    is_expected: bool
    moved_on: bool
    differences: list[Found]


class _Some:
    """Clients whose sessions are read together.

    :param clients: their numbers among those that are wanted.
    :param sessions: what Redis holds of each.
    """

    def __init__(self, wanted: _Wanted, clients: Numbers, sessions: Sequence[FoundSession], *, plan_id: str) -> None:
        self._wanted = wanted
        self._names = wanted.queues.names
        self._cohorts = wanted.queues.clients["cohort"]
        self._clients = clients
        self._sessions = sessions
        # A repeated copy has noted which imports of this plan were used since; other missing messages were lost.
        wanted.is_left[clients] = [
            each.is_used
            or (
                each.plan != plan_id
                and (each.plan is not None or each.has_references or each.last_packet_id is not None)
            )
            for each in sessions
        ]
        self._hashes = [(hashlib.sha256(), hashlib.sha256()) for _ in sessions]
        self._has_messages = np.zeros(len(sessions), np.bool_)

    def differences(self, page: pa.RecordBatch, *, clustered: bool) -> Iterator[Found]:
        """Yield how messages as found differ from what they ought to be."""
        wanted = self._wanted
        number = _numbers(page.column("client"))
        client = self._clients[number]
        score = page.column("score").to_numpy()
        # A score may be no number that a serial can be.
        is_serial = np.abs(score) < 2.0**63
        serial = np.where(is_serial, score, 0).astype(np.int64)
        row = np.where(is_serial, wanted.find(client, serial), -1)
        place = np.where(row >= 0, wanted.rows["place"][row] if len(wanted.rows) else -1, -1)
        present = _mask(pc.is_valid(page.column("stored")))
        expected = present & (place >= 0)
        told = ~wanted.is_left[client]
        end_ms = _numbers(page.column("expires_at_ms"), null=_NO_END)

        row, place = row[expected], place[expected]
        ought, found = wanted.content.take(pa.array(place)), page.filter(pa.array(expected))
        if clustered:
            late_ms = end_ms[expected] - _numbers(ought.column("expires_at_ms"))
            end_ms[expected] -= np.where((late_ms >= 0) & (late_ms <= MOVED_LATE_MS), late_ms, 0)
        self._hash(page, number, present, end_ms)
        wanted.is_seen[place] = True

        def of(mask: Mask, kind: str, words: Words) -> Iterator[Found]:
            for at in np.flatnonzero(mask & told).tolist():
                yield self._found(client[at], kind, int(serial[at]) if is_serial[at] else None, *words(at))

        def fate(at: int) -> tuple[str, str]:
            found_at = wanted.find(client[at : at + 1], serial[at : at + 1])[0] if is_serial[at] else -1
            return FATES[wanted.rows["fate"][found_at]] if found_at >= 0 else "nothing", "a message"

        unreadable = present & _mask(pc.is_null(page.column("packet_id")))
        yield from of(present & ~expected, "unexpected", fate)
        yield from of(unreadable, "unreadable", lambda _: ("TBMQ's JSON", "something else"))
        index = np.cumsum(expected) - 1
        readable = ~unreadable[expected]
        checks = self._checks(ought, found, row, score[expected], end_ms[expected], client[expected])
        for kind, differs, words in checks:
            if (differs & readable).any():
                wanted.differs[place[differs & readable]] = True
                mask = expected.copy()
                mask[expected] = differs & readable
                yield from of(mask, kind, partial(_at, words, index))
        wanted.differs[place[~readable]] = True

    def _checks(
        self, ought: pa.RecordBatch, found: pa.RecordBatch, row: Numbers, score: Any, end_ms: Numbers, client: Numbers
    ) -> Iterator[tuple[str, Mask, Words]]:
        """Yield kind, where it is found, and both values, of each check of messages that ought to be there."""
        wanted = self._wanted
        yield (
            "order",
            # A score that is no serial may keep the order now and break it with the next message.
            score != wanted.rows["serial"][row],
            lambda at: (
                f"{wanted.rows['serial'][row[at]]} at place {wanted.rank(int(row[at]))}",
                f"{score[at]:.17g} at place {found.column('position')[at].as_py() + 1}",
            ),
        )
        names, numbers = np.unique(client, return_inverse=True)
        client_id = pa.array([self._names[at] for at in names.tolist()], pa.string()).take(pa.array(numbers))
        yield (
            "packet_id",
            _differ(ought.column("packet_id"), found.column("packet_id"))
            | _differ(pc.cast(ought.column("packet_id"), pa.string()).cast(pa.binary()), found.column("key_packet_id"))
            | _differ(client_id, found.column("client_id")),
            lambda at: (ought.column("packet_id")[at].as_py(), found.column("packet_id")[at].as_py()),
        )
        yield (
            "payload",
            _differ(ought.column("payload"), found.column("payload")),
            lambda at: tuple(_short(each.column("payload")[at].as_py()) for each in (ought, found)),
        )
        yield (
            "properties",
            np.logical_or.reduce([_differ(ought.column(name), found.column(name)) for name in _PROPERTIES]),
            lambda at: tuple(
                _short(hashlib.sha256(repr([_raw(each.column(name), at) for name in _PROPERTIES]).encode()).digest())
                for each in (ought, found)
            ),
        )
        yield (
            "expiry",
            end_ms != _numbers(ought.column("expires_at_ms"), null=_NO_END),
            lambda at: (ought.column("expires_at_ms")[at].as_py(), None if end_ms[at] == _NO_END else end_ms[at]),
        )

    def missing(self, now_ms: Callable[[], int]) -> Iterator[Found]:
        """Yield the messages that ought to have been found, unless they have expired since.

        :param now_ms: returns the instant by which they may have.
        """
        wanted = self._wanted
        places = wanted.places(self._clients[0], self._clients[-1] + 1)
        missing = places[~wanted.is_seen[places]]
        if not len(missing):
            return
        ends_ms = _numbers(wanted.content.column("expires_at_ms").take(pa.array(missing)))
        wanted.is_expired[missing] = ends_ms <= now_ms()
        rows = np.flatnonzero(np.isin(wanted.rows["place"], missing[~wanted.is_expired[missing]]))
        for client, serial in zip(*(wanted.rows[name][rows].tolist() for name in ("client", "serial")), strict=True):
            if not wanted.is_left[client]:
                yield self._found(client, "missing", serial, "a message", "nothing")

    def each(self, counters: Mapping[str, int]) -> Iterator[_Session]:
        """Yield each session, after all its messages.

        :param counters: client id -> last packet id that a replay has moved.
        """
        wanted = self._wanted
        packet_ids = _numbers(wanted.content.column("packet_id"))
        for at, (client, session) in enumerate(zip(self._clients.tolist(), self._sessions, strict=True)):
            _, counter, has_session, own_counter = wanted.queues.clients[client].tolist()
            places = wanted.places(client, client + 1)
            given = max(own_counter, -1) if has_session and own_counter >= 0 else counter
            given = counters.get(self._names[client], given)
            last = safe_counter(None if given < 0 else given, packet_ids[places].tolist())
            is_expected = bool(has_session or len(places))
            differences = []
            if is_expected:
                if str(last or 0) != (session.last_packet_id or "0"):
                    differences.append(self._found(client, "last_packet_id", None, last, session.last_packet_id))
                if session.progress != "done":
                    found = session.progress or "nothing"
                    differences.append(self._found(client, "session_missing", None, "done", found))
            digest = self._digest(at, client, session) if is_expected or self._has_messages[at] else 0
            yield _Session(int(self._cohorts[client]), digest, is_expected, bool(wanted.is_left[client]), differences)

    def _found(self, client: int, kind: str, serial: int | None, expected: Any, found: Any) -> Found:
        words = ("none" if value is None else str(value) for value in (expected, found))
        return Found(int(self._cohorts[client]), kind, self._names[client], serial, *words)

    def _hash(self, page: pa.RecordBatch, number: Numbers, present: Mask, end_ms: Numbers) -> None:
        """Add messages to the hashes of their sessions, which do not depend on how pages are cut."""
        values = page.column("stored")
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        stored = np.zeros(len(values), _STORED)
        stored["score"], stored["expires_at_ms"], stored["size_bytes"] = page.column("score"), end_ms, np.diff(ends)
        bounds = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
        content = memoryview(b"" if data is None else data)
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            of_content, of_rest = self._hashes[number[first]]
            of_content.update(content[ends[first] : ends[last]])
            of_rest.update(stored[first:last][present[first:last]].tobytes())
            self._has_messages[number[first]] |= present[first:last].any()

    def _digest(self, at: int, client: int, session: FoundSession) -> int:
        parts = [repr((self._names[client], session.last_packet_id)).encode()]
        whole = hashlib.sha256(b"".join(parts + [each.digest() for each in self._hashes[at]]))
        return int.from_bytes(whole.digest()[:8], "big", signed=True)


def _at(words: Words, index: Numbers, at: int) -> Sequence[Any]:
    return words(int(index[at]))


def _comparable(copied: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages of the source in the form in which those of Redis are read."""
    interval_s = pc.cast(copied.column("msg_expiry_interval"), pa.int64())
    given = {
        "retain": pc.fill_null(copied.column("retain"), fill_value=False),
        # An unsigned interval in a signed column: TBMQ's JSON knows no longer one than this.
        "msg_expiry_interval": pc.if_else(pc.less(interval_s, 0), MAX_INTERVAL_S, interval_s),
        "user_properties": _pairs(copied.column("user_properties")),
    }
    return pa.RecordBatch.from_pydict({name: given.get(name, copied.column(name)) for name in copied.schema.names})


def _pairs(texts: pa.Array) -> pa.Array:
    encoded = texts.dictionary_encode()
    distinct = pa.array(map(pairs_as_text, encoded.dictionary.to_pylist()), pa.string(), size=len(encoded.dictionary))
    return distinct.take(encoded.indices)


def _differ(one: pa.Array, other: pa.Array) -> Mask:
    """Return where values differ; a null is equal to a null."""
    same = pc.equal(one, other)
    if same.null_count:
        same = pc.or_(pc.fill_null(same, fill_value=False), pc.and_(pc.is_null(one), pc.is_null(other)))
    return ~_mask(same)


def _mask(values: pa.Array) -> Mask:
    found: Mask = values.to_numpy(zero_copy_only=False)
    return found


def _numbers(values: pa.Array, *, null: int = 0) -> Numbers:
    found: Numbers = pc.fill_null(pc.cast(values, pa.int64()), null).to_numpy(zero_copy_only=False).copy()
    return found


def _raw(values: pa.Array, at: int) -> Any:
    """Return a value, a text as bytes: what Redis holds may be no UTF-8."""
    value = values[at]
    return value.cast(pa.binary()).as_py() if pa.types.is_string(values.type) else value.as_py()


def _short(hash_: bytes | None) -> str | None:
    return None if hash_ is None else hash_.hex()[:12]
