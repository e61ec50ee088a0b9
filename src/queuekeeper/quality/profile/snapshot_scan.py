"""Finds the sessions of a snapshot in its RDB file, and has each task read those of its cohorts from memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
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


@dataclass(frozen=True, kw_only=True)
class SnapshotFiles:
    """RDB files of one Redis: that of a server, or one of each master of a cluster.

    :ivar paths: in the order of their names.
    :ivar as_of_ms: instant at which the last of them was begun.
    :ivar key_count: number of keys in all of them, as the files say.
    """

    paths: tuple[Path, ...]
    as_of_ms: int | None
    key_count: int
    is_cluster: bool


def files_at(paths: Sequence[Path]) -> SnapshotFiles:
    """Return what RDB files say of themselves before their first keys.

    :raises UsageError: when there is no such file, one is named twice, or one of several is of a single server.
    :raises UnreadableSnapshot: when one is no file that can be read.
    """
    absolute = sorted(path.absolute() for path in paths)
    found = [_snapshot_at(path) for path in absolute]
    for path, other in combinations(absolute, 2):
        if path.samefile(other):
            raise UsageError(f"{path} and {other} are one file: name the file of each master once")
    for path, each in zip(absolute, found, strict=True):
        if len(found) > 1 and each.is_of_single_server:
            raise UsageError(
                f"{path} is of a single server: name it by itself; only files of the masters of one cluster are read "
                "together"
            )
    return SnapshotFiles(
        paths=tuple(absolute),
        as_of_ms=max((each.taken_at_ms for each in found if each.taken_at_ms is not None), default=None),
        key_count=sum(each.key_count for each in found),
        is_cluster=len(found) > 1 or found[0].is_clustered,
    )


def _snapshot_at(path: Path) -> Snapshot:
    try:
        with path.open("rb") as file:
            return Snapshot(file, name=str(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name an RDB file, as SAVE, BGSAVE or a backup writes it"
        ) from None


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
