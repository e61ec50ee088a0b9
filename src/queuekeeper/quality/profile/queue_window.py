"""Queues that a profile reads together, with their measures, and the rows that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.clock import HOUR_MS
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID, SessionKeys, session_keys
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.tables import ODD_CHARACTERS, ROWS
from queuekeeper.sessions.pages import Layout

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

MISSING, UNREADABLE = -1, -2
"""In place of a packet id: none, or one that is none."""

NEVER_EXPIRES = -1
"""In place of an expiry."""

FAULT_BITS = {
    "unreadable": 1, "mismatched": 2, "bad_qos": 4, "qos_0": 8, "bad_packet_types": 16, "ttl_too_long": 32,
}  # fmt: skip
"""Column of a fault in a message's contents -> its number in the answer of a script."""

_COUNTED = (
    "messages", "live", "dead", "tied_serials", "bad_serials", "equal_serials", "step_errors", "bad_packet_ids",
    "foreign_references", "orphans", "ids_in_use", "without_ttl", "payload_bytes", "oversized", "wrong_type_keys",
    "duplicate_packet_ids", "misplaced", "state_faults", "in_both_layouts", *FAULT_BITS,
)  # fmt: skip
_OF_TBMQ = frozenset({"foreign_references", "orphans", "without_ttl", "mismatched"})
_OF_PACKED = frozenset({"duplicate_packet_ids", "state_faults", "in_both_layouts"})
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Page:
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
class Window:
    """Queues that are read together, with their measures so far: an array per measure, a place per queue.

    :param prefix: put before every key.
    :param packed: whether the queue is a packed session.
    """

    clients: list[str]
    prefix: str
    packed: Flags
    size: int = field(init=False)
    keys: list[SessionKeys] = field(init=False)
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
    # When messages expire: start of the hour -> number of messages and bytes.
    hours: dict[int, tuple[int, int]] = field(default_factory=dict)
    fingerprints: list[tuple[Integers, Integers]] = field(default_factory=list)
    # Queues with messages that builds before release 0.1 stored there for an encoded client id.
    encoded: Flags = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.clients)
        # No store uses the keys of the empty client id.
        self.keys = [session_keys(name or "-", prefix=self.prefix) for name in self.clients]
        self.sums = {name: np.zeros(self.size, np.int64) for name in _COUNTED}
        self.heads = np.zeros((self.size, 6), np.int64)
        self.heads[:, 3] = MISSING
        self.heads[:, 5] = MISSING
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

    def measure(
        self,
        owners: Integers,
        packet_ids: Integers,
        *,
        expires_at_ms: Integers,
        size_bytes: Integers,
        max_record_bytes: int,
    ) -> None:
        """Count live messages, of which each has one packet id."""
        self.live_codes.append(codes(owners, packet_ids))
        self.add("live", owners)
        self.add("payload_bytes", owners, size_bytes)
        self.add("oversized", owners[size_bytes > max_record_bytes])
        self.add("without_ttl", owners[expires_at_ms < 0])
        np.maximum.at(self.largest, owners, size_bytes)
        ending = expires_at_ms >= 0
        np.minimum.at(self.earliest, owners[ending], expires_at_ms[ending])
        np.maximum.at(self.latest, owners[ending], expires_at_ms[ending])
        _add_hours(self.hours, np.where(ending, expires_at_ms // HOUR_MS * HOUR_MS, 0), size_bytes)

    def note_faults(self, owners: Integers, faults: Integers, fingerprints: Integers) -> None:
        """Count faults in the contents of messages, and keep what tells equal contents."""
        for name, bit in FAULT_BITS.items():
            self.add(name, owners[faults & bit > 0])
        readable = fingerprints > 0
        self.fingerprints.append((owners[readable], fingerprints[readable]))

    def judge_order(self, page: Page) -> None:
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
        before_serial[firsts], before_packet_id[firsts] = self.before_serial[queues], self.before_packet_id[queues]
        has_before = np.ones(len(owners), bool)
        has_before[firsts] = self.before[queues]

        good = serials >= 0
        comparable = has_before & good & (before_serial >= 0)
        equal = comparable & (serials == before_serial)
        tied = equal.copy()
        tied[:-1] |= equal[1:] & ~begins[1:]
        late = equal[firsts] & ~self.before_tied[queues]
        valid = _is_packet_id(packet_ids)
        surplus = (packet_ids - before_packet_id - (serials - before_serial)) % MAX_PACKET_ID
        # Packet ids may skip some, for messages of a group and ids in use, but they never go backwards.
        backward = surplus > HALF_ROUND

        self.add("messages", owners)
        self.add("bad_serials", owners[~good])
        self.add("equal_serials", owners[equal])
        self.add("tied_serials", owners[tied])
        self.add("tied_serials", queues[late])
        self.add("step_errors", owners[comparable & ~equal & valid & _is_packet_id(before_packet_id) & backward])
        self.add("foreign_references", owners[packet_ids == MISSING])
        self.add("bad_packet_ids", owners[~valid & (packet_ids != MISSING)])
        np.minimum.at(self.lowest, owners[good], serials[good])
        np.maximum.at(self.highest, owners[good], serials[good])
        self.before[queues] = True
        self.before_serial[queues], self.before_packet_id[queues] = serials[lasts], packet_ids[lasts]
        self.before_tied[queues] = tied[lasts]

    def rows(
        self,
        *,
        parameters: ProfileParameters,
        shards: Sequence[str],
        hash_key: bytes,
        cohorts: Integers,
        slots: Integers,
        scattered: Integers,
        bad_tag: Flags,
    ) -> pa.RecordBatch:
        """Return a row per queue.

        :param shards: address of the server of each cohort.
        :param scattered: payload keys of queues that cannot be read.
        """
        limit, contents = parameters.limit, parameters.contents
        sums = self.sums
        references, wrong_types, without_expiry, last, saved, newest = self.heads.T
        messages = sums["messages"] + scattered
        spanned = self.highest >= 0
        ordered = sums["messages"] - sums["bad_serials"]
        span = np.where(spanned, self.highest - np.where(spanned, self.lowest, 0) + 1, 0)
        ahead = (newest - last) % MAX_PACKET_ID
        behind = (last >= 0) & _is_packet_id(newest) & (ahead >= 1) & (ahead <= HALF_ROUND)
        in_use = (sums["ids_in_use"] > 0) & (saved == 0)
        odd = pc.match_substring_regex(pa.array(self.clients, pa.string()), ODD_CHARACTERS)
        columns: dict[str, Any] = {
            "client_id": pa.array([name.replace("\0", "\u2400") for name in self.clients], pa.string()),
            "client_hash": pa.array([client_hash(name, key=hash_key) for name in self.clients]),
            "cohort": cohorts,
            "slot": slots,
            "shard": pa.array([shards[cohort] for cohort in cohorts]),
            "messages": messages,
            "live": sums["live"] + scattered,
            "dead": sums["dead"],
            "over_limit": np.maximum(0, sums["live"] - limit),
            # A packed session is rid of what has expired before a live message is trimmed.
            "dead_crowding": ~self.packed & (sums["dead"] > 0) & (10 * sums["messages"] >= 9 * limit),
            "lowest_serial": pa.array(self.lowest.astype(np.float64), mask=~spanned),
            "highest_serial": pa.array(self.highest.astype(np.float64), mask=~spanned),
            "bad_serials": sums["bad_serials"] + sums["misplaced"],
            "serial_gaps": np.maximum(0, span - (ordered - sums["equal_serials"])),
            "counter_missing": (sums["live"] > 0) & (last == MISSING),
            "counter_invalid": last == UNREADABLE,
            "counter_behind": behind | in_use,
            "last_packet_id": pa.array(last, mask=last < 0),
            "largest_bytes": self.largest,
            "wrong_type_keys": wrong_types + sums["wrong_type_keys"],
            "bad_tag": bad_tag,
            "odd_characters": odd,
            "idle_keys": np.where(references == 0, without_expiry, 0),
            "earliest_expires_at_ms": pa.array(self.earliest, mask=self.latest < 0),
            "latest_expires_at_ms": pa.array(self.latest, mask=self.latest < 0),
            "layout": pa.array([str(Layout.PACKED if packed else Layout.TBMQ) for packed in self.packed]),
            "hours": [[(hour, *sums_of_hour) for hour, sums_of_hour in self.hours.items()]] + [None] * (self.size - 1),
        }
        if contents:
            columns["duplicate_messages"] = _duplicates(self)
        for name in _COUNTED:
            if name in ROWS.names and name not in columns:
                columns[name] = pa.array(sums[name], mask=self._without(name, contents=contents))
        return pa.RecordBatch.from_arrays(
            [
                _column(columns[name], kind) if name in columns else pa.nulls(self.size, kind)
                for name, kind in zip(ROWS.names, ROWS.types, strict=True)
            ],
            schema=ROWS,
        )

    def _without(self, name: str, *, contents: bool) -> Flags:
        """Return the queues that have no such measure; of packed sessions, contents are always read."""
        if name in _OF_PACKED:
            return ~self.packed
        if name in _OF_TBMQ:
            return self.packed | (name in FAULT_BITS and not contents)
        return ~self.packed & (name in FAULT_BITS and not contents)


def codes(owners: Integers, packet_ids: Integers) -> Integers:
    """Return queue and packet id combined into one number."""
    return (owners.astype(np.int64) << 32) | packet_ids


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind if pa.types.is_nested(kind) else None)
    return array.cast(kind)


def _is_packet_id(values: Integers) -> Flags:
    return (values >= 1) & (values <= MAX_PACKET_ID)


def _add_hours(hours: dict[int, tuple[int, int]], starts: Integers, size_bytes: Integers) -> None:
    distinct, places = np.unique(starts, return_inverse=True)
    counts = np.bincount(places)
    sizes = np.zeros(len(distinct), np.int64)
    np.add.at(sizes, places, size_bytes)
    for hour, count, size in zip(distinct.tolist(), counts.tolist(), sizes.tolist(), strict=True):
        messages, total = hours.get(hour, (0, 0))
        hours[hour] = messages + count, total + size


def _duplicates(window: Window) -> Integers:
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
