"""Reads and judges queues in Redis: SCAN finds them, scripts return numbers, and NumPy computes the rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queuekeeper import lua
from queuekeeper.clock import Pace
from queuekeeper.keyspace import MAX_PACKET_ID, encoded_client_id, packed_keys
from queuekeeper.lua import scripts
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.packed_reader import Caller, PackedReader, named_rule
from queuekeeper.quality.profile.queue_window import FAULT_BITS, NEVER_EXPIRES, Flags, Integers, Page, Window, codes

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

ORPHAN_PAUSE_S = 0.05
"""A suspected orphan is checked again, since a broker that stores a message in two steps may have been between them."""

# In place of an expiry: no message, and for an orphan: a reference exists now.
_DEAD = -2
_REFERRED = -2


class QueueReader:
    """Reads the queues that SCAN has found, one window at a time, which bounds memory.

    :param caller: answers the scripts.
    :param shards: address of the server of each cohort.
    :param hash_key: key of the client hashes in reports.
    :param pace: called at every step with the number of references read, where a step counts as a share of one.
    :param orphan_pause_s: how long a suspected orphan is given before it is checked again.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        parameters: ProfileParameters,
        shards: Sequence[str],
        hash_key: bytes,
        pace: Pace,
        orphan_pause_s: float = ORPHAN_PAUSE_S,
    ) -> None:
        self._caller = caller
        self._orphan_pause_s = orphan_pause_s
        self._parameters = parameters
        self._shards = shards
        self._hash_key = hash_key
        self._pace = pace
        self._shares = parameters.shares
        self._packed = PackedReader(caller, parameters=parameters, pace=pace)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row per client and layout.

        :param batches: see :data:`queuekeeper.quality.profile.scan.SCHEMA`; rows of one client follow each
            other, first those of TBMQ's layout.
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
        starts = np.flatnonzero(_changes(rows))
        begins = np.arange(0, len(starts), _QUEUES_PER_WINDOW)
        # Both layouts of a client are in one window.
        begins += _is_second_row(rows.column("client_id").take(pa.array(starts)))[begins]
        edges = [*starts[begins[begins < len(starts)]].tolist(), rows.num_rows]
        for first, end in pairwise(edges):
            yield self._window(rows.slice(first, end - first).combine_chunks())

    def _window(self, rows: pa.Table) -> pa.RecordBatch:
        names = rows.column("client_id")
        changes = _changes(rows)
        starts = np.flatnonzero(changes)
        queue_of_row = np.cumsum(changes) - 1
        clients = names.take(pa.array(starts)).to_pylist()
        unreadable = rows.column("unreadable").to_numpy()
        packed = rows.column("packed").to_numpy()[starts]
        window = Window(clients, self._parameters.key_prefix, packed)
        bad_tag = np.bincount(queue_of_row[unreadable], minlength=window.size) > 0
        regular = np.bincount(queue_of_row[~unreadable], minlength=window.size) > 0

        lists = rows.column("packet_ids").combine_chunks()
        seen_ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        seen_owners = np.repeat(queue_of_row, lists.value_lengths().to_numpy(zero_copy_only=False))
        seen = _distinct(codes(seen_owners, seen_ids)[seen_ids >= 0])

        expected = np.bincount(seen_owners, minlength=window.size)
        self._read_references(window, np.flatnonzero(regular & ~packed), expected)
        together = regular[seen >> 32]
        self._count_orphans(window, seen[together])
        self._packed.read(window, np.flatnonzero(regular & packed))
        seconds = np.flatnonzero(_is_second_row(pa.array(clients, pa.string())))
        self._judge_layouts(window, seconds[regular[seconds] & regular[seconds - 1]])
        first_rows = pa.array(starts)
        return window.rows(
            parameters=self._parameters,
            shards=self._shards,
            hash_key=self._hash_key,
            cohorts=rows.column("cohort").take(first_rows).to_numpy(),
            slots=rows.column("slot").take(first_rows).to_numpy(),
            scattered=np.bincount(seen[~together] >> 32, minlength=window.size),
            bad_tag=bad_tag | window.encoded,
        )

    # --- reading -----------------------------------------------------------------------------------------------

    def _read_references(self, window: Window, queues: Integers, expected: Integers) -> None:
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
            window.judge_order(page)
            self._read_messages(window, page)

    def _read_page(self, window: Window, step: list[tuple[int, int]], sizes: list[int]) -> Page:
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
        return Page(
            queues=queues,
            firsts=np.cumsum(counts) - counts,
            owners=np.repeat(queues, counts),
            serials=values[::2],
            packet_ids=values[1::2],
            last_packet_ids=np.repeat(heads[:, 3], counts),
        )

    def _read_messages(self, window: Window, page: Page) -> None:
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
        live = (expires_at_ms >= NEVER_EXPIRES) & (size_bytes >= 0)
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
        window.measure(
            owners,
            packet_ids,
            expires_at_ms=expires_at_ms,
            size_bytes=size_bytes,
            max_record_bytes=self._parameters.max_record_bytes,
        )
        if self._parameters.contents:
            # An oversized record is only reported, since decoding it would occupy the server for long.
            small = np.flatnonzero(size_bytes <= self._parameters.max_record_bytes)
            if len(small):
                self._read_contents(
                    window, owners[small], packet_ids[small], size_bytes[small], [keys[n] for n in places[small]]
                )

    def _read_contents(
        self, window: Window, owners: Integers, packet_ids: Integers, size_bytes: Integers, keys: list[str]
    ) -> None:
        faults, fingerprints = self._judge_contents(window.clients, owners, packet_ids, size_bytes, keys)
        foreign = np.flatnonzero(faults & FAULT_BITS["mismatched"])
        encoded = {int(owner): encoded_client_id(window.clients[owner]) for owner in np.unique(owners[foreign])}
        suspects = np.array([place for place in foreign if encoded[int(owners[place])] is not None], np.int64)
        if len(suspects):
            # The tag may come from a build before release 0.1, which encoded the id: the message belongs to that id.
            again, _ = self._judge_contents(
                encoded, owners[suspects], packet_ids[suspects], size_bytes[suspects], [keys[n] for n in suspects]
            )
            theirs = again & (FAULT_BITS["mismatched"] | FAULT_BITS["unreadable"]) == 0
            faults[suspects[theirs]] = again[theirs]
            window.encoded[owners[suspects[theirs]]] = True
        window.note_faults(owners, faults, fingerprints)

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

    def _count_orphans(self, window: Window, seen: Integers) -> None:
        """Check payload keys that SCAN found and no reference names: twice, each time in one script with the set."""
        referred = np.concatenate(window.live_codes) if window.live_codes else np.zeros(0, np.int64)
        suspects = seen[np.isin(seen, referred, assume_unique=True, invert=True, kind="sort")]
        for attempt in range(2):
            if not len(suspects):
                return
            if attempt:
                time.sleep(self._orphan_pause_s)
            suspects = suspects[self._unreferred(window, suspects)]
        window.add("orphans", suspects >> 32)

    def _unreferred(self, window: Window, suspects: Integers) -> Flags:
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

    def _judge_layouts(self, window: Window, packed: Integers) -> None:
        """Note clients whose sessions take messages in both layouts, of which one script sees both.

        :param packed: packed sessions of clients whose row before is of TBMQ's layout.
        """
        if not len(packed):
            return
        with named_rule(self._parameters.key_prefix):
            takes = self._numbers(
                [
                    scripts.quality.profile_layouts(
                        window.keys[queue], packed=packed_keys(window.clients[queue], prefix=window.prefix).session
                    )
                    for queue in packed
                ],
                share=1.0,
            ).reshape(-1, 2)
        messages = window.sums["messages"]
        waits = (messages[packed] > 0) & (messages[packed - 1] > 0)
        window.add("in_both_layouts", packed, takes.all(axis=1) * (1 + waits))

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


def _changes(rows: pa.Table) -> Flags:
    """Return the positions where the rows of a queue begin."""
    codes_of_names = rows.column("client_id").combine_chunks().dictionary_encode().indices
    queues = 2 * codes_of_names.to_numpy(zero_copy_only=False).astype(np.int64) + rows.column("packed").to_numpy()
    changes = np.ones(len(queues), bool)
    changes[1:] = queues[1:] != queues[:-1]
    return changes


def _is_second_row(names: pa.Array) -> Flags:
    """Return which rows are of the same client as the row before: rows of packed sessions."""
    second = np.zeros(len(names), bool)
    second[1:] = pc.equal(names.slice(1), names.slice(0, len(names) - 1)).to_numpy(zero_copy_only=False)
    return second


def _distinct(codes: Integers) -> Integers:
    """Return each code once, in order; NumPy's own function uses hashes and takes ten times as long."""
    ordered = np.sort(codes)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    distinct: Integers = ordered[first]
    return distinct


def _payload_keys(window: Window, owners: Integers, packet_ids: Integers) -> list[str]:
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
