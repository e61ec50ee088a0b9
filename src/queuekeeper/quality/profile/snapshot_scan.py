"""Finds the sessions of a snapshot in its RDB file, and has each task read those of its cohorts from memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from queuekeeper.errors import UsageError
from queuekeeper.quality.profile.scan import Scanner, in_order, is_text, parcelled
from queuekeeper.quality.profile.snapshot_answers import SnapshotCaller, SnapshotKey, references_of
from queuekeeper.rdb.snapshot import Entry, Snapshot, Want
from queuekeeper.rdb.values import NEVER, Kind

_KEYS = pa.schema(
    [
        ("key", pa.binary()),
        ("kind", pa.string()),
        ("expires_at_ms", pa.int64()),
        ("length", pa.int64()),
        ("text", pa.binary()),
        ("references", pa.list_(pa.int64())),
        ("fields", pa.list_(pa.binary())),
    ]
)
"""Fields of :class:`~queuekeeper.quality.profile.snapshot_answers.SnapshotKey`."""

_FILED_KEYS = _KEYS.append(pa.field("file", pa.int32()))
"""The same with the number of the file that has the key."""

_KEYS_PER_PAGE = 20_000
_BYTES_PER_PAGE = 16_000_000
# Types whose values a profile looks into; payloads have an end of their own.
_VALUES = {b"messages": Kind.ZSET, b"last_packet_id": Kind.STRING, b"session": Kind.HASH, b"packed": Kind.HASH}


def session_keys_of(
    snapshot: Snapshot, *, prefix: str, database: int, contents: bool, now_ms: int
) -> Iterator[SnapshotKey]:
    """Yield the keys of sessions that have not expired, with the values that a profile looks into.

    :param contents: whether the payloads of messages are looked into.
    """
    key_of = re.compile(
        rb"%b\{.*\}_(messages_|messages$|last_packet_id$|session$|packed$)" % re.escape(prefix.encode()), re.DOTALL
    )

    looked_into = _VALUES | {b"messages_": Kind.STRING} if contents else _VALUES

    def wanted(number: int, key: bytes, kind: Kind) -> Want:
        match = key_of.match(key)
        if match is None or number != database or not is_text(key):
            return Want.NOTHING
        return Want.VALUE if kind is looked_into.get(match[1]) else Want.LENGTH

    for entry in snapshot.entries(wanted):
        if not _has_expired(entry.expires_at_ms, now_ms=now_ms):
            yield _key(entry, now_ms=now_ms)


def _has_expired(expires_at_ms: int, *, now_ms: int) -> bool:
    """Return whether a server would take a key or field for gone, as it does before it removes it."""
    return expires_at_ms != NEVER and now_ms > expires_at_ms


def _key(entry: Entry, *, now_ms: int) -> SnapshotKey:
    _, key, kind, expires_at_ms, length, value = entry
    if value is None:
        return SnapshotKey(key, kind, expires_at_ms, length)
    if kind is Kind.STRING:
        return SnapshotKey(key, kind, expires_at_ms, len(value), text=value)
    if kind is Kind.ZSET:
        return SnapshotKey(key, kind, expires_at_ms, references=references_of(key, value))
    alive = (each for each in value if not _has_expired(each.expires_at_ms, now_ms=now_ms))
    fields = [part for each in alive for part in (each.name, each.value)]
    return SnapshotKey(key, kind, expires_at_ms, fields=fields)


def packages(keys: Iterator[SnapshotKey], scanner: Scanner, *, file: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the keys in packages for the tasks that read them, as ``PACKAGES`` of :mod:`.scan` says.

    :param file: number of the file that has the keys.
    """
    page: list[SnapshotKey] = []
    size = 0
    for key in keys:
        page.append(key)
        size += _size_of(key)
        if len(page) == _KEYS_PER_PAGE or size > _BYTES_PER_PAGE:
            yield _package(page, scanner, file=file)
            page, size = [], 0
    if page:
        yield _package(page, scanner, file=file)


def unpackaged(
    batches: Iterator[pa.RecordBatch], scanner: Scanner, *, paths: Sequence[Path], now_ms: int
) -> tuple[SnapshotCaller, Iterator[pa.RecordBatch]]:
    """Return what answers for a task's keys, all of which are held in memory, and whose they are, client by client.

    :param paths: the files, by their numbers.
    :raises UsageError: when two files have keys of one slot.
    """
    keys: dict[int, list[SnapshotKey]] = {}
    for batch in batches:
        for parcel in batch.column("rows"):
            rows = pa.ipc.read_record_batch(parcel.as_buffer(), _FILED_KEYS)
            columns = rows.select(_KEYS.names).to_pydict().values()
            keys.setdefault(rows.column("file")[0].as_py(), []).extend(
                map(SnapshotKey._make, zip(*columns, strict=True))
            )
    windows = {file: scanner.window([each.key for each in keys[file]]) for file in sorted(keys)}
    owners: dict[int, int] = {}
    for file, window in windows.items():
        # Keys that cannot be read together may be in files of several masters.
        together = window.column("slot").filter(pc.invert(window.column("unreadable")))
        for slot in together.unique().to_pylist():
            if owners.setdefault(slot, file) != file:
                raise UsageError(
                    f"{paths[owners[slot]]} and {paths[file]} both have keys of slot {slot}: name one file of each "
                    "master of a cluster, of one moment, and none of a replica"
                )
    return SnapshotCaller(chain.from_iterable(keys.values()), now_ms=now_ms), in_order(list(windows.values()))


def _package(page: list[SnapshotKey], scanner: Scanner, *, file: int) -> pa.RecordBatch:
    tasks = scanner.tasks([each.key for each in page])
    read = tasks >= 0
    columns = [pa.array(values, kind) for values, kind in zip(zip(*page, strict=True), _KEYS.types, strict=True)]
    columns.append(pa.array([file] * len(page), pa.int32()))
    rows = pa.RecordBatch.from_arrays(columns, schema=_FILED_KEYS)
    return parcelled(tasks[read], rows.filter(pa.array(read)))


def _size_of(key: SnapshotKey) -> int:
    """Return about how many bytes what a profile looks into of a key takes."""
    if key.text is not None:
        return len(key.text)
    return 8 * len(key.references or ()) + sum(map(len, key.fields or ()))
