"""Finds the sessions of a Redis by SCAN, as Arrow batches of clients with their packet ids."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queuekeeper.clock import Pace
from queuekeeper.keyspace import SLOTS, client_slot, is_scattered, session_scan_pattern
from queuekeeper.quality.profile.model import in_sample
from queuekeeper.redis_client import RedisClient
from queuekeeper.redis_names import Names

SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("cohort", pa.int32()),
        ("slot", pa.int32()),
        ("client_id", pa.string()),
        ("packed", pa.bool_()),
        ("packet_ids", pa.list_(pa.int32())),
        ("unreadable", pa.bool_()),
    ]
)
"""A row per client, layout and window of SCAN; a client may have many rows.

``packet_ids`` are those of the payload keys, with -1 for a key that does not end in a number. ``unreadable`` marks a
client whose keys cannot be read together: the empty id, and in a cluster an id that begins with ``}``.
"""

ORDER = [("client_id", "ascending"), ("packed", "ascending")]
"""Order in which a task reads the rows."""

PACKAGES = pa.schema([("task", pa.int32()), ("rows", pa.binary())])
"""Rows of :data:`SCHEMA` in packages for the task that reads them, so that Spark shuffles packages instead of rows."""

SPARK_PACKAGES = "task int, rows binary"

_KEYS_PER_PAGE = 500
_KEYS_PER_WINDOW = 100_000
_ROWS_PER_BATCH = 10_000
_PACKET_ID = r"^(0|[1-9][0-9]{0,8})$"
_PAYLOAD = "messages_"
_PACKED_KEY = "packed"
_IS_PACKED, _IS_TBMQS = "p", "t"
_SESSION_KEYS = pa.array(["messages", "last_packet_id", "session", _PACKED_KEY])


class _Owners(NamedTuple):
    """Whose keys are whose.

    :ivar ours: which of all keys are of sessions; the next three have a value for each of these.
    :ivar ends: part of the key behind the tag.
    :ivar owners: place of the client and layout in what follows.
    :ivar tasks: -1 for what is not read.
    """

    ours: Any
    ends: pa.Array
    are_payloads: Any
    owners: Any
    clients: list[str]
    packed: Any
    slots: Any
    regular: Any
    cohorts: Any
    tasks: Any


class Scanner:
    """Reads key names window by window, which bounds memory.

    SCAN may return a key twice, and may miss a key that is created or removed meanwhile: the rows are candidates.

    :param prefix: prefix of every key.
    :param slot_firsts: first slot of each cohort, ascending.
    :param labels: task of each cohort; -1 for a cohort that is not read.
    :param sample_percent: see :func:`queuekeeper.quality.profile.model.in_sample`.
    :param is_cluster: whether the server is a cluster, which places keys by their hash slots.
    :param key_share: share of a key's name in the work on a reference.
    :param pace: called with the work that was done, counted in references.
    """

    def __init__(
        self,
        *,
        prefix: str,
        slot_firsts: tuple[int, ...],
        labels: tuple[int, ...],
        sample_percent: int,
        is_cluster: bool,
        key_share: float,
        pace: Pace,
    ) -> None:
        self._prefix = prefix
        self._slot_firsts = np.asarray(slot_firsts)
        self._labels = np.asarray(labels, np.int32)
        self._sample_percent = sample_percent
        self._is_cluster = is_cluster
        self._key_share = key_share
        self._pace = pace

    def read(self, client: RedisClient, slots: frozenset[int]) -> Iterator[pa.RecordBatch]:
        """Yield the clients whose keys are in the given hash slots.

        :raises ServerUnavailable: at the end, when clients may be missing because the cluster kept moving slots.
        """
        keys: list[bytes] = []
        names = Names(client, session_scan_pattern(self._prefix), slots=slots, count=lambda: _KEYS_PER_PAGE)
        for page in names.all_pages():
            keys += page.names
            self._pace(len(page.names) * self._key_share)
            if len(keys) >= _KEYS_PER_WINDOW:
                yield self.window(keys)
                keys = []
        yield self.window(keys)

    def tasks(self, keys: list[bytes]) -> Any:
        """Return the task of each key, -1 for one that is not read.

        :param keys: all with a tag that ends, in UTF-8.
        """
        found = self._owners(_texts(keys))
        tasks = np.full(len(keys), -1, np.int32)
        tasks[found.ours] = found.tasks[found.owners]
        return tasks

    def window(self, keys: list[bytes]) -> pa.RecordBatch:
        """Return a row per client and layout; see :data:`SCHEMA`."""
        names = _texts(keys)
        found = self._owners(names.filter(pc.match_substring(names, "}_")))
        texts = pc.utf8_slice_codeunits(found.ends, len(_PAYLOAD))
        texts = pc.if_else(pc.match_substring_regex(texts, _PACKET_ID), texts, "-1")
        packet_ids = texts.cast(pa.int32()).to_numpy(zero_copy_only=False)

        counted = found.are_payloads
        order = np.flatnonzero(counted)
        order = order[np.argsort(found.owners[order], kind="stable")]
        offsets = np.zeros(len(found.clients) + 1, np.int32)
        np.cumsum(np.bincount(found.owners[counted], minlength=len(found.clients)), out=offsets[1:])
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(found.tasks),
                pa.array(found.cohorts),
                pa.array(found.slots),
                pa.array(found.clients, pa.string()),
                pa.array(found.packed),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(packet_ids[order])),
                pa.array(~found.regular),
            ],
            schema=SCHEMA,
        )
        return batch.filter(pa.array(found.tasks >= 0))

    def _owners(self, names: pa.Array) -> _Owners:
        # The last "}_" ends the tag, since the rest of our keys holds no brace.
        parts = pc.split_pattern(names, pattern="}_", max_splits=1, reverse=True)
        stems, ends = pc.list_element(parts, 0), pc.list_element(parts, 1)
        is_payload = pc.starts_with(ends, _PAYLOAD)
        ours = pc.or_(is_payload, pc.is_in(ends, _SESSION_KEYS))
        stems, ends, is_payload = stems.filter(ours), ends.filter(ours), is_payload.filter(ours)
        # The layout's mark stands behind the stem.
        marks = pc.if_else(pc.equal(ends, _PACKED_KEY), _IS_PACKED, _IS_TBMQS)
        encoded = pc.binary_join_element_wise(stems, marks, "").dictionary_encode()
        clients, packed, slots, regular = self._clients(encoded.dictionary.to_pylist())
        cohorts = (np.searchsorted(self._slot_firsts, slots, side="right") - 1).astype(np.int32)
        return _Owners(
            ours=ours.to_numpy(zero_copy_only=False),
            ends=ends,
            are_payloads=is_payload.to_numpy(zero_copy_only=False),
            owners=encoded.indices.to_numpy(zero_copy_only=False),
            clients=clients,
            packed=packed,
            slots=slots,
            regular=regular,
            cohorts=cohorts,
            tasks=np.where(in_sample(slots, percent=self._sample_percent), self._labels[cohorts], np.int32(-1)),
        )

    def _clients(self, stems: list[str]) -> tuple[list[str], Any, Any, Any]:
        """Return for each stem with its mark the client id, the layout, the slot, and whether its keys can be read."""
        tags = [stem[len(self._prefix) + 1 : -1] for stem in stems]
        are_packed = np.array([stem[-1] == _IS_PACKED for stem in stems], bool)
        slots = np.fromiter((crc_hqx(tag.encode(), 0) for tag in tags), np.int32, len(tags)) % SLOTS
        regular = np.ones(len(tags), bool)
        for index, tag in enumerate(tags):
            # A rare case: the tag ends within the client id.
            if not tag or "}" in tag:
                slots[index] = client_slot(tag) if tag else 0
                # A packed session has one key, so that it is never scattered.
                scatters = self._is_cluster and is_scattered(tag) and not are_packed[index]
                regular[index] = bool(tag) and not scatters
        return tags, are_packed, slots, regular


def packages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one package per task and batch; Spark takes longer to move a row than the server takes to read it.

    :param batches: see :data:`SCHEMA`.
    """
    for batch in batches:
        yield parcelled(batch.column("task").to_numpy(), batch)


def parcelled(tasks: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a package of rows for each task; see :data:`PACKAGES`.

    :param tasks: task of each row.
    """
    order = np.argsort(tasks, kind="stable")
    ordered, tasks = rows.take(pa.array(order)), tasks[order]
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))
    parcels = [
        ordered.slice(first, end - first).serialize().to_pybytes()
        for first, end in pairwise([*starts.tolist(), len(tasks)])
    ]
    return pa.RecordBatch.from_arrays([pa.array(tasks[starts]), pa.array(parcels, pa.binary())], schema=PACKAGES)


def unpackaged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's packages, client by client; all of them, some 100,000 keys, are held in memory.

    :param batches: see :data:`PACKAGES`.
    """
    rows = [
        pa.ipc.read_record_batch(parcel.as_buffer(), SCHEMA) for batch in batches for parcel in batch.column("rows")
    ]
    yield from in_order(rows)


def in_order(rows: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows client by client; see :data:`SCHEMA`."""
    if rows:
        yield from pa.Table.from_batches(rows).sort_by(ORDER).to_batches(max_chunksize=_ROWS_PER_BATCH)


def _texts(keys: list[bytes]) -> pa.Array:
    """Return the keys as text, without keys that are not UTF-8: they are not ours, since client ids are UTF-8."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key for key in keys if is_text(key)], pa.binary()).cast(pa.string())


def is_text(key: bytes) -> bool:
    """Return whether a key may be of a client."""
    if key.isascii():
        return True
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
