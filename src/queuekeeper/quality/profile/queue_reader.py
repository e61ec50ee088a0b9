"""Reads and judges queues in Redis: SCAN finds them, scripts return numbers, and NumPy computes the rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper import lua
from queuekeeper.clock import HOUR_MS, Pace
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID, SessionKeys, encoded_client_id, session_keys
from queuekeeper.lua import scripts
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.tables import ODD_CHARACTERS, ROWS
from queuekeeper.redis_client import RedisClient

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_QUEUES_PER_WINDOW = 512
_REFERENCES_PER_PAGE = 500
# Number of references that are judged at once.
_REFERENCES_PER_STEP = 10_000
_QUEUES_PER_STEP = 512
# A server answers all calls that have arrived before it serves others: a third of a millisecond per exchange.
_REFERENCES_PER_EXCHANGE = 50
_CONTENTS_PER_EXCHANGE = 15
# The server decodes at most this much JSON in one call.
_CONTENT_BYTES_PER_CALL = 250_000
# A suspected orphan is checked again, since a broker that stores a message in two steps may have been between them.
_ORPHAN_PAUSE_S = 0.05
_MISSING, _UNREADABLE = -1, -2
# Values in place of an expiry: no expiry, no message, and for an orphan: a reference exists now.
_NEVER_EXPIRES, _DEAD = -1, -2
_REFERRED = -2
_FAULT_BITS = {
    "unreadable": 1, "mismatched": 2, "bad_qos": 4, "qos_0": 8, "bad_packet_types": 16, "ttl_too_long": 32,
}  # fmt: skip
_COUNTED = (
    "messages", "live", "dead", "tied_serials", "bad_serials", "equal_serials", "step_errors", "bad_packet_ids",
    "foreign_references", "orphans", "ids_in_use", "without_ttl", "payload_bytes", "oversized", "wrong_type_keys",
    *_FAULT_BITS,
)  # fmt: skip
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class _Page:
    """References that were read in one step, queue by queue; each queue has at most one page.

    :param owners: position of each reference's queue in the window.
    :param firsts: start of the page of each queue of ``queues``.
    :param last_packet_ids: last packet id of the client when the reference's page was read.
    """

    queues: Integers
    firsts: Integers
    owners: Integers
    serials: Integers
    packet_ids: Integers
    last_packet_ids: Integers


@dataclass
class _Window:
    """Queues that are read together, with their measures so far: an array per measure, a place per queue."""

    clients: list[str]
    keys: list[SessionKeys]
    size: int = field(init=False)
    sums: dict[str, Integers] = field(init=False)
    heads: Integers = field(init=False)
    lowest: Integers = field(init=False)
    highest: Integers = field(init=False)
    largest: Integers = field(init=False)
    earliest: Integers = field(init=False)
    latest: Integers = field(init=False)
    # The last reference before the next page of each queue.
    before: Flags = field(init=False)
    before_serial: Integers = field(init=False)
    before_packet_id: Integers = field(init=False)
    before_tied: Flags = field(init=False)
    live_codes: list[Integers] = field(default_factory=list)
    fingerprints: list[tuple[Integers, Integers]] = field(default_factory=list)
    # Queues with messages that builds before release 0.1 stored there for an encoded client id.
    encoded: Flags = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.clients)
        self.sums = {name: np.zeros(self.size, np.int64) for name in _COUNTED}
        self.heads = np.zeros((self.size, 6), np.int64)
        self.heads[:, 3] = _MISSING
        self.heads[:, 5] = _MISSING
        self.lowest = np.full(self.size, _NEVER)
        self.highest = np.full(self.size, -1, np.int64)
        self.largest = np.zeros(self.size, np.int64)
        self.earliest = np.full(self.size, _NEVER)
        self.latest = np.full(self.size, -1, np.int64)
        self.before = np.zeros(self.size, bool)
        self.encoded = np.zeros(self.size, bool)
        self.before_serial = np.zeros(self.size, np.int64)
        self.before_packet_id = np.zeros(self.size, np.int64)
        self.before_tied = np.zeros(self.size, bool)

    def add(self, name: str, owners: Integers, weights: Integers | None = None) -> None:
        """Add to a measure of the queues, once per owner."""
        if weights is None:
            self.sums[name] += np.bincount(owners, minlength=self.size)
        else:
            np.add.at(self.sums[name], owners, weights)


class QueueReader:
    """Reads the queues that SCAN has found, one window at a time, which bounds memory.

    :param shards: address of the server of each cohort.
    :param hash_key: key of the client hashes in reports.
    :param pace: called at every step with the number of references read, where a step counts as a share of one.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        parameters: ProfileParameters,
        shards: Sequence[str],
        hash_key: bytes,
        pace: Pace,
    ) -> None:
        self._caller = lua.ScriptCaller(client)
        self._parameters = parameters
        self._shards = shards
        self._hash_key = hash_key
        self._pace = pace
        self._shares = parameters.shares

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row per client.

        :param batches: see :data:`queuekeeper.quality.profile.scan.SCHEMA`; rows of one client follow each other.
        """
        waiting: pa.Table | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            table = pa.Table.from_batches([batch])
            waiting = table if waiting is None else pa.concat_tables([waiting, table]).combine_chunks()
            # The next batch may have more rows of the last client.
            names = waiting.column("client_id")
            complete = pc.index(pc.equal(names, names[-1]), True).as_py()
            if complete:
                yield from self._windows(waiting.slice(0, complete))
                waiting = waiting.slice(complete)
        if waiting is not None:
            yield from self._windows(waiting)

    def _windows(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        rows = rows.combine_chunks()
        starts = np.flatnonzero(_changes(rows.column("client_id")))
        edges = [*starts[::_QUEUES_PER_WINDOW].tolist(), rows.num_rows]
        for first, end in pairwise(edges):
            yield self._window(rows.slice(first, end - first).combine_chunks())

    def _window(self, rows: pa.Table) -> pa.RecordBatch:
        names = rows.column("client_id")
        changes = _changes(names)
        starts = np.flatnonzero(changes)
        queue_of_row = np.cumsum(changes) - 1
        clients = names.take(pa.array(starts)).to_pylist()
        unreadable = rows.column("unreadable").to_numpy()
        # No store uses the keys of the empty client id.
        prefix = self._parameters.key_prefix
        window = _Window(clients, [session_keys(name or "-", prefix=prefix) for name in clients])
        scattered = np.zeros(window.size, np.int64)
        np.add.at(scattered, queue_of_row, rows.column("scattered").to_numpy())
        bad_tag = np.bincount(queue_of_row[unreadable], minlength=window.size) > 0
        regular = np.flatnonzero(np.bincount(queue_of_row[~unreadable], minlength=window.size))

        lists = rows.column("packet_ids").combine_chunks()
        seen_ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        seen_owners = np.repeat(queue_of_row, lists.value_lengths().to_numpy(zero_copy_only=False))
        seen = _distinct(_codes(seen_owners, seen_ids)[seen_ids >= 0])

        hours: dict[int, tuple[int, int]] = {}
        self._read_references(window, regular, np.bincount(seen_owners, minlength=window.size), hours)
        self._count_orphans(window, seen)
        first_rows = pa.array(starts)
        return self._rows(
            window,
            cohorts=rows.column("cohort").take(first_rows).to_numpy(),
            slots=rows.column("slot").take(first_rows).to_numpy(),
            scattered=scattered,
            bad_tag=bad_tag | window.encoded,
            hours=hours,
        )

    # --- reading -----------------------------------------------------------------------------------------------

    def _read_references(
        self, window: _Window, queues: Integers, expected: Integers, hours: dict[int, tuple[int, int]]
    ) -> None:
        """Read all pages of all queues, many queues per step."""
        pending = deque((int(queue), 0) for queue in queues)
        while pending:
            step: list[tuple[int, int]] = []
            sizes: list[int] = []
            while pending and sum(sizes) < _REFERENCES_PER_STEP and len(step) < _QUEUES_PER_STEP:
                queue, start = pending.popleft()
                step.append((queue, start))
                sizes.append(max(1, min(_REFERENCES_PER_PAGE, int(expected[queue]) - start)))
            page = self._read_page(window, step, sizes)
            for (queue, start), count in zip(step, np.diff([*page.firsts, len(page.owners)]), strict=True):
                if count and start + count < window.heads[queue, 0]:
                    pending.append((queue, start + int(count)))
            self._judge_order(window, page)
            self._read_messages(window, page, hours)

    def _read_page(self, window: _Window, step: list[tuple[int, int]], sizes: list[int]) -> _Page:
        calls = [
            scripts.quality.profile_references(window.keys[queue], start=start, limit=_REFERENCES_PER_PAGE)
            for queue, start in step
        ]
        share = self._shares.reference
        replies = list(self._exchange(calls, sizes, most=_REFERENCES_PER_EXCHANGE, share=share))
        width = window.heads.shape[1]
        heads = np.array([reply[:width] for reply in replies], np.int64)
        counts = np.array([(len(reply) - width) // 2 for reply in replies])
        values = np.fromiter(chain.from_iterable(reply[width:] for reply in replies), np.int64, 2 * int(counts.sum()))
        queues = np.array([queue for queue, _ in step], np.int64)
        begins = np.array([start == 0 for _, start in step])
        window.heads[queues[begins]] = heads[begins]
        # A queue that grows meanwhile is read to its new end.
        window.heads[queues, 0] = np.maximum(window.heads[queues, 0], heads[:, 0])
        return _Page(
            queues=queues,
            firsts=np.cumsum(counts) - counts,
            owners=np.repeat(queues, counts),
            serials=values[::2],
            packet_ids=values[1::2],
            last_packet_ids=np.repeat(heads[:, 3], counts),
        )

    def _read_messages(self, window: _Window, page: _Page, hours: dict[int, tuple[int, int]]) -> None:
        """Measure the messages of a page's references."""
        named = np.flatnonzero(page.packet_ids >= 0)
        if not len(named):
            return
        owners, packet_ids = page.owners[named], page.packet_ids[named]
        keys = _payload_keys(window, owners, packet_ids)
        edges = _runs(owners, limit=_REFERENCES_PER_EXCHANGE)
        flat = self._numbers(
            [
                scripts.quality.profile_messages(window.keys[owners[first]], payloads=keys[first:end])
                for first, end in pairwise(edges)
            ],
            share=self._shares.message,
        )
        expires_at_ms, size_bytes = flat[::2], flat[1::2]
        live = (expires_at_ms >= _NEVER_EXPIRES) & (size_bytes >= 0)
        window.add("dead", owners[expires_at_ms == _DEAD])
        window.add("wrong_type_keys", owners[size_bytes < 0])
        in_use = (
            live
            & (page.last_packet_ids[named] >= 0)
            & ((packet_ids - page.last_packet_ids[named]) % MAX_PACKET_ID == 1)
            & (page.packet_ids[named] <= MAX_PACKET_ID)
        )
        window.add("ids_in_use", owners[in_use])

        places = np.flatnonzero(live)
        owners, packet_ids, size_bytes, expires_at_ms = (
            owners[places], packet_ids[places], size_bytes[places], expires_at_ms[places],
        )  # fmt: skip
        window.live_codes.append(_codes(owners, packet_ids))
        window.add("live", owners)
        window.add("payload_bytes", owners, size_bytes)
        window.add("oversized", owners[size_bytes > self._parameters.max_record_bytes])
        window.add("without_ttl", owners[expires_at_ms < 0])
        np.maximum.at(window.largest, owners, size_bytes)
        ending = expires_at_ms >= 0
        np.minimum.at(window.earliest, owners[ending], expires_at_ms[ending])
        np.maximum.at(window.latest, owners[ending], expires_at_ms[ending])
        _add_hours(hours, np.where(ending, expires_at_ms // HOUR_MS * HOUR_MS, 0), size_bytes)
        if self._parameters.contents:
            # An oversized record is only reported, since decoding it would occupy the server for long.
            small = np.flatnonzero(size_bytes <= self._parameters.max_record_bytes)
            if len(small):
                self._read_contents(
                    window, owners[small], packet_ids[small], size_bytes[small], [keys[n] for n in places[small]]
                )

    def _read_contents(
        self, window: _Window, owners: Integers, packet_ids: Integers, size_bytes: Integers, keys: list[str]
    ) -> None:
        faults, fingerprints = self._judge_contents(window.clients, owners, packet_ids, size_bytes, keys)
        foreign = np.flatnonzero(faults & _FAULT_BITS["mismatched"])
        encoded = {int(owner): encoded_client_id(window.clients[owner]) for owner in np.unique(owners[foreign])}
        suspects = np.array([place for place in foreign if encoded[int(owners[place])] is not None], np.int64)
        if len(suspects):
            # The tag may come from a build before release 0.1, which encoded the id: the message belongs to that id.
            again, _ = self._judge_contents(
                encoded, owners[suspects], packet_ids[suspects], size_bytes[suspects], [keys[n] for n in suspects]
            )
            theirs = again & (_FAULT_BITS["mismatched"] | _FAULT_BITS["unreadable"]) == 0
            faults[suspects[theirs]] = again[theirs]
            window.encoded[owners[suspects[theirs]]] = True
        for name, bit in _FAULT_BITS.items():
            window.add(name, owners[faults & bit > 0])
        readable = fingerprints > 0
        window.fingerprints.append((owners[readable], fingerprints[readable]))

    def _judge_contents(
        self,
        names: Sequence[Any] | Mapping[int, Any],
        owners: Integers,
        packet_ids: Integers,
        size_bytes: Integers,
        keys: list[str],
    ) -> tuple[Integers, Integers]:
        """Return the faults of messages, and a fingerprint of each.

        :param names: client id that the messages of each owner should name.
        """
        edges = _runs(owners, limit=_CONTENTS_PER_EXCHANGE, weights=size_bytes, most=_CONTENT_BYTES_PER_CALL)
        ids = packet_ids.tolist()
        flat = self._numbers(
            [
                scripts.quality.profile_contents(
                    payloads=keys[first:end],
                    client_id=names[int(owners[first])],
                    default_ttl_s=self._parameters.default_ttl_s,
                    packet_ids=ids[first:end],
                )
                for first, end in pairwise(edges)
            ],
            most=_CONTENTS_PER_EXCHANGE,
            share=self._shares.content,
        )
        return flat[::2], flat[1::2]

    def _count_orphans(self, window: _Window, seen: Integers) -> None:
        """Check payload keys that SCAN found and no reference names: twice, each time in one script with the set."""
        referred = np.concatenate(window.live_codes) if window.live_codes else np.zeros(0, np.int64)
        suspects = seen[np.isin(seen, referred, assume_unique=True, invert=True, kind="sort")]
        for attempt in range(2):
            if not len(suspects):
                return
            if attempt:
                time.sleep(_ORPHAN_PAUSE_S)
            suspects = suspects[self._unreferred(window, suspects)]
        window.add("orphans", suspects >> 32)

    def _unreferred(self, window: _Window, suspects: Integers) -> Flags:
        owners = suspects >> 32
        keys = _payload_keys(window, owners, suspects & 0xFFFFFFFF)
        edges = _runs(owners, limit=_REFERENCES_PER_EXCHANGE)
        found: list[Integers] = []
        pairs = list(pairwise(edges))
        for start in range(0, len(pairs), _QUEUES_PER_STEP):
            calls = [
                scripts.sessions.find_orphans(window.keys[owners[first]], payloads=keys[first:end])
                for first, end in pairs[start : start + _QUEUES_PER_STEP]
            ]
            found.append(self._numbers(calls, share=1.0))
        return np.not_equal(np.concatenate(found), _REFERRED, dtype=bool)

    def _numbers(self, calls: list[lua.Call], *, share: float, most: int = _REFERENCES_PER_EXCHANGE) -> Integers:
        sizes = [len(call.keys) for call in calls]
        return np.fromiter(chain.from_iterable(self._exchange(calls, sizes, most=most, share=share)), np.int64)

    def _exchange(self, calls: list[lua.Call], sizes: Sequence[int], *, most: int, share: float) -> Iterator[Any]:
        """Yield the replies of all calls; calls are sent together up to ``most`` keys, a longer one by itself.

        :param share: share of the work on a reference, by which each exchange is paced.
        """
        first = size = 0
        for index, each in enumerate(sizes):
            if index > first and size + each > most:
                yield from self._caller.execute(calls[first:index]).or_raise()
                self._pace(size * share)
                first, size = index, 0
            size += each
        yield from self._caller.execute(calls[first:]).or_raise()
        self._pace(size * share)

    # --- judging -----------------------------------------------------------------------------------------------

    def _judge_order(self, window: _Window, page: _Page) -> None:
        """Compare each reference with the one before it, across pages."""
        owners, serials, packet_ids = page.owners, page.serials, page.packet_ids
        if not len(owners):
            return
        begins = np.zeros(len(owners), bool)
        lengths = np.diff([*page.firsts, len(owners)])
        queues, firsts = page.queues[lengths > 0], page.firsts[lengths > 0]
        lasts = firsts + lengths[lengths > 0] - 1
        begins[firsts] = True
        before_serial, before_packet_id = np.roll(serials, 1), np.roll(packet_ids, 1)
        before_serial[firsts], before_packet_id[firsts] = window.before_serial[queues], window.before_packet_id[queues]
        has_before = np.ones(len(owners), bool)
        has_before[firsts] = window.before[queues]

        good = serials >= 0
        comparable = has_before & good & (before_serial >= 0)
        equal = comparable & (serials == before_serial)
        tied = equal.copy()
        tied[:-1] |= equal[1:] & ~begins[1:]
        late = equal[firsts] & ~window.before_tied[queues]
        valid = _is_packet_id(packet_ids)
        surplus = (packet_ids - before_packet_id - (serials - before_serial)) % MAX_PACKET_ID
        # Packet ids may skip some, for messages of a group and ids in use, but they never go backwards.
        backward = surplus > HALF_ROUND

        window.add("messages", owners)
        window.add("bad_serials", owners[~good])
        window.add("equal_serials", owners[equal])
        window.add("tied_serials", owners[tied])
        window.add("tied_serials", queues[late])
        window.add("step_errors", owners[comparable & ~equal & valid & _is_packet_id(before_packet_id) & backward])
        window.add("foreign_references", owners[packet_ids == _MISSING])
        window.add("bad_packet_ids", owners[~valid & (packet_ids != _MISSING)])
        np.minimum.at(window.lowest, owners[good], serials[good])
        np.maximum.at(window.highest, owners[good], serials[good])
        window.before[queues] = True
        window.before_serial[queues], window.before_packet_id[queues] = serials[lasts], packet_ids[lasts]
        window.before_tied[queues] = tied[lasts]

    def _rows(
        self,
        window: _Window,
        *,
        cohorts: Integers,
        slots: Integers,
        scattered: Integers,
        bad_tag: Flags,
        hours: dict[int, tuple[int, int]],
    ) -> pa.RecordBatch:
        limit, contents = self._parameters.limit, self._parameters.contents
        sums = window.sums
        references, wrong_types, without_expiry, last, saved, newest = window.heads.T
        messages = sums["messages"] + scattered
        spanned = window.highest >= 0
        ordered = sums["messages"] - sums["bad_serials"]
        span = np.where(spanned, window.highest - np.where(spanned, window.lowest, 0) + 1, 0)
        ahead = (newest - last) % MAX_PACKET_ID
        behind = (last >= 0) & _is_packet_id(newest) & (ahead >= 1) & (ahead <= HALF_ROUND)
        in_use = (sums["ids_in_use"] > 0) & (saved == 0)
        odd = pc.match_substring_regex(pa.array(window.clients, pa.string()), ODD_CHARACTERS)
        columns: dict[str, Any] = {
            "client_id": pa.array([name.replace("\0", "\u2400") for name in window.clients], pa.string()),
            "client_hash": pa.array([client_hash(name, key=self._hash_key) for name in window.clients]),
            "cohort": cohorts,
            "slot": slots,
            "shard": pa.array([self._shards[cohort] for cohort in cohorts]),
            "messages": messages,
            "live": sums["live"] + scattered,
            "dead": sums["dead"],
            "over_limit": np.maximum(0, sums["live"] - limit),
            "dead_crowding": (sums["dead"] > 0) & (10 * sums["messages"] >= 9 * limit),
            "lowest_serial": pa.array(window.lowest.astype(np.float64), mask=~spanned),
            "highest_serial": pa.array(window.highest.astype(np.float64), mask=~spanned),
            "serial_gaps": np.maximum(0, span - (ordered - sums["equal_serials"])),
            "counter_missing": (sums["live"] > 0) & (last == _MISSING),
            "counter_invalid": last == _UNREADABLE,
            "counter_behind": behind | in_use,
            "last_packet_id": pa.array(last, mask=last < 0),
            "largest_bytes": window.largest,
            "wrong_type_keys": wrong_types + sums["wrong_type_keys"],
            "bad_tag": bad_tag,
            "odd_characters": odd,
            "idle_keys": np.where(references == 0, without_expiry, 0),
            "earliest_expires_at_ms": pa.array(window.earliest, mask=window.latest < 0),
            "latest_expires_at_ms": pa.array(window.latest, mask=window.latest < 0),
            "hours": [[(hour, *sums_of_hour) for hour, sums_of_hour in hours.items()]] + [None] * (window.size - 1),
        }
        if contents:
            columns["duplicate_messages"] = _duplicates(window)
        for name in _COUNTED:
            if name in ROWS.names and name not in columns and (contents or name not in _FAULT_BITS):
                columns[name] = sums[name]
        return pa.RecordBatch.from_arrays(
            [
                _column(columns[name], kind) if name in columns else pa.nulls(window.size, kind)
                for name, kind in zip(ROWS.names, ROWS.types, strict=True)
            ],
            schema=ROWS,
        )


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind if pa.types.is_nested(kind) else None)
    return array.cast(kind)


def _changes(names: pa.ChunkedArray) -> Flags:
    """Return the positions where the rows of a client begin."""
    codes = names.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    changes = np.ones(len(codes), bool)
    changes[1:] = codes[1:] != codes[:-1]
    return changes


def _codes(owners: Integers, packet_ids: Integers) -> Integers:
    """Return queue and packet id combined into one number."""
    return (owners.astype(np.int64) << 32) | packet_ids


def _distinct(codes: Integers) -> Integers:
    """Return each code once, in order; NumPy's own function uses hashes and takes ten times as long."""
    ordered = np.sort(codes)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    distinct: Integers = ordered[first]
    return distinct


def _is_packet_id(values: Integers) -> Flags:
    return (values >= 1) & (values <= MAX_PACKET_ID)


def _payload_keys(window: _Window, owners: Integers, packet_ids: Integers) -> list[str]:
    stems = pa.array([keys.messages for keys in window.keys], pa.string()).take(pa.array(owners))
    names: list[str] = pc.binary_join_element_wise(stems, pa.array(packet_ids).cast(pa.string()), "_").to_pylist()
    return names


def _runs(owners: Integers, *, limit: int, weights: Integers | None = None, most: int = 0) -> list[int]:
    """Cut keys into calls, each with keys of one queue, within a limit of keys and of their total weight."""
    edges: list[int] = []
    starts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    for first, end in pairwise(starts):
        place, weight = first, 0
        edges.append(first)
        if weights is None:
            edges += range(first + limit, end, limit)
            continue
        for index in range(first, end):
            weight += int(weights[index])
            if index > place and (weight > most or index - place >= limit):
                edges.append(index)
                place, weight = index, int(weights[index])
    return [*edges, len(owners)]


def _add_hours(hours: dict[int, tuple[int, int]], starts: Integers, size_bytes: Integers) -> None:
    distinct, places = np.unique(starts, return_inverse=True)
    counts = np.bincount(places)
    sizes = np.zeros(len(distinct), np.int64)
    np.add.at(sizes, places, size_bytes)
    for hour, count, size in zip(distinct.tolist(), counts.tolist(), sizes.tolist(), strict=True):
        messages, total = hours.get(hour, (0, 0))
        hours[hour] = messages + count, total + size


def _duplicates(window: _Window) -> Integers:
    """Return the number of messages of each queue that have the contents of another message of the queue."""
    if not window.fingerprints:
        return np.zeros(window.size, np.int64)
    owners = np.concatenate([owner for owner, _ in window.fingerprints])
    fingerprints = np.concatenate([value for _, value in window.fingerprints])
    order = np.lexsort((fingerprints, owners))
    owners, fingerprints = owners[order], fingerprints[order]
    same = (owners[1:] == owners[:-1]) & (fingerprints[1:] == fingerprints[:-1])
    doubled = np.zeros(len(owners), bool)
    doubled[1:] |= same
    doubled[:-1] |= same
    return np.bincount(owners[doubled], minlength=window.size).astype(np.int64)
