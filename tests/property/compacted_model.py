"""A compacted queue as plain Python: what the scripts have to do, without a server, and slowly."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from queuekeeper.compacted.model import Append, Position, QueueRules, Refill, Retention, RetentionPolicy, WhenFull
from queuekeeper.compacted.records import record_of


class Refused(Exception):
    """The queue must refuse this, with the error of this word."""


@dataclass(frozen=True)
class Row:
    """The value of a key."""

    key: bytes
    sequence: int
    ms: int
    value: bytes
    tombstone: bool
    size: int


@dataclass
class ModelQueue:
    """One queue. Its rows are in the order of their numbers, as a newer value of a key goes to the end.

    :ivar resend: numbers in flight that the consumer is to get again: those above the first up to the second.
    :ivar producers: first and last number of each producer's last append.
    """

    rules: QueueRules
    rows: dict[bytes, Row] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    producers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    sequence: int = 0
    sent: int = 0
    acked: int = 0
    last_ms: int = 0
    last_lost: int = 0
    session: str = ""
    lease_until_ms: int = 0
    resend: tuple[int, int] = (0, 0)

    # What can be said of it

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows.values())

    @property
    def lag(self) -> int:
        return sum(row.sequence > self.sent for row in self.rows.values())

    def ordered(self, after: int = 0) -> Iterator[Row]:
        return (row for row in self.rows.values() if row.sequence > after)

    def is_acked(self, sequence: int) -> bool:
        return sequence <= self.acked or (sequence <= self.sent and sequence not in self.in_flight)

    # Producing

    def append(self, appends: Sequence[Append], now_ms: int, producer: str | None, number: int) -> list[int | None]:
        """Return which numbers the entries replaced."""
        if producer is not None and producer in self.producers:
            last = self.producers[producer][0]
            if number <= last:
                raise Refused("replayed" if number == last else "forgotten")
        for append in appends:
            row = self.rows.get(append.key)
            if append.expected_sequence not in (None, row.sequence if row else 0):
                raise Refused("CONFLICT")
        ms = max(now_ms, self.last_ms)
        rows = dict(self.rows)
        replaced: list[int | None] = []
        batch: dict[bytes, Row] = {}
        for place, append in enumerate(appends, start=1):
            before = rows.pop(append.key, None)
            replaced.append(before.sequence if before else None)
            sequence = self.sequence + place
            size = len(append.key) + len(f"{sequence} 0 ") + len(record_of(append))
            rows[append.key] = batch[append.key] = Row(append.key, sequence, ms, append.value, append.tombstone, size)
        self._check_room(rows, batch)
        self.rows = rows
        if producer is not None:
            self.producers[producer] = (number, self.sequence + 1, self.sequence + len(appends))
        self.sequence += len(appends)
        self.last_ms = ms
        return replaced

    def _check_room(self, rows: dict[bytes, Row], batch: dict[bytes, Row]) -> None:
        keys, size = len(rows), sum(row.size for row in rows.values())
        rules = self.rules
        if rules.when_full is WhenFull.DROP_OLDEST:
            keys, size = len(batch), sum(row.size for row in batch.values())
            if (rules.max_keys and keys > rules.max_keys) or (rules.max_bytes and size > rules.max_bytes):
                raise Refused("FULL")
            return
        if rules.max_keys and keys > max(rules.max_keys, len(self.rows)):
            raise Refused("FULL")
        if rules.max_bytes and size > max(rules.max_bytes, self.size):
            raise Refused("FULL")

    def evict(self) -> tuple[int, int]:
        """Drop the oldest rows until the queue is within its limits; say how many, and how many were unacknowledged."""
        rules, left, size = self.rules, list(self.rows.values()), self.size
        gone: list[Row] = []
        if rules.when_full is WhenFull.DROP_OLDEST:
            while (rules.max_keys and len(left) > rules.max_keys) or (rules.max_bytes and size > rules.max_bytes):
                gone.append(left.pop(0))
                size -= gone[-1].size
        return len(gone), self.remove(gone)

    def remove(self, rows: Sequence[Row]) -> int:
        """Remove rows, and say how many of them had not been acknowledged."""
        unacked = [row.sequence for row in rows if not self.is_acked(row.sequence)]
        self.last_lost = max([self.last_lost, *unacked])
        for row in rows:
            del self.rows[row.key]
        return len(unacked)

    def restore(self, rows: Sequence[Row]) -> list[Row]:
        """Bring rows back whose keys are not there, and return those."""
        back = [row for row in rows if row.key not in self.rows]
        self.rows |= {row.key: row for row in back}
        self.rows = {row.key: row for row in sorted(self.rows.values(), key=lambda row: row.sequence)}
        return back

    # Consuming

    def subscribe(self, session: str, *, takeover: bool, lease_ms: int, now_ms: int, start: Position | None) -> None:
        if not takeover and self.session not in ("", session) and self.lease_until_ms > now_ms:
            raise Refused("HELD")
        self.session = session
        self.lease_until_ms = now_ms + lease_ms
        if start is not None:
            self._move(self.next_sequence(start))
        self.resend = (0, self.sent)

    def next_sequence(self, position: Position) -> int:
        """Return the number that is delivered next when the queue is read from a position."""
        first = next((row.sequence for row in self.rows.values()), self.sequence + 1)
        if position.kind == "earliest":
            return first
        if position.kind == "latest":
            return self.sequence + 1
        assert position.value is not None
        if position.kind == "sequence":
            return max(first, min(position.value, self.sequence + 1))
        rows = list(self.rows.values())
        at = bisect_left([row.ms for row in rows], position.value)
        return rows[at].sequence if at < len(rows) else self.sequence + 1

    def _move(self, next_sequence: int) -> None:
        self.sent = self.acked = next_sequence - 1
        self.in_flight.clear()

    def rewind(self, to: Position) -> None:
        self._move(self.next_sequence(to))
        self.resend = (0, 0)

    def ack(self, sequences: Sequence[int], *, up_to: bool = False, is_alone: bool = True) -> tuple[int, int]:
        """Return how many were in flight, and how many not.

        :param is_alone: no fetch follows, which moves the cursor itself.
        """
        named = {n for n in self.in_flight if n <= max(sequences)} if up_to else self.in_flight & set(sequences)
        self.in_flight -= named
        if is_alone:
            self._advance()
        return len(named), (not named) if up_to else len(sequences) - len(named)

    def _advance(self) -> None:
        self.acked = max(self.acked, min(self.in_flight) - 1 if self.in_flight else self.sent)

    def fetch(
        self, *, limit: int, window: int, max_bytes: int, refill: Refill, redeliver: bool
    ) -> list[tuple[Row, bool]]:
        """Return rows, each with whether it is delivered again."""
        found: list[tuple[Row, bool]] = []
        after, up_to = (0, self.sent) if redeliver else self.resend
        by_number = {row.sequence: row for row in self.rows.values()}
        size = 0

        def fits(row: Row) -> bool:
            return not found or size + row.size <= max_bytes

        again = [n for n in sorted(self.in_flight) if after < n <= up_to][:limit]
        gone = {n for n in again if n not in by_number}
        self.in_flight -= gone
        is_cut = False
        for number in again:
            if number in gone:
                continue
            if not fits(by_number[number]):
                is_cut = True
                break
            found.append((by_number[number], True))
            size += by_number[number].size
        if after < up_to:
            after = found[-1][0].sequence if is_cut else again[-1] if len(again) == limit else up_to
        self.resend = (after, up_to)
        room = min(limit - len(found), window - len(self.in_flight))
        if after >= up_to and room > 0 and size < max_bytes and (refill is Refill.SLIDING or not self.in_flight):
            for row in list(self.ordered(after=self.sent))[:room]:
                if not fits(row):
                    break
                found.append((row, False))
                size += row.size
                self.sent = row.sequence
                self.in_flight.add(row.sequence)
        self._advance()
        return found

    # Keeping house

    def is_due(self, row: Row, retention: Retention, now_ms: int) -> bool:
        age_ms = now_ms - row.ms
        acked = self.is_acked(row.sequence)
        if row.tombstone and age_ms > retention.tombstone_ms and acked:
            return True
        if age_ms <= retention.retention_ms or retention.policy is RetentionPolicy.COMPACT:
            return False
        return retention.policy is RetentionPolicy.DELETE or acked
