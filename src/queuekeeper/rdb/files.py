"""Which RDB files are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from queuekeeper.errors import UsageError
from queuekeeper.rdb.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class SnapshotFiles:
    """RDB files of one Redis: that of a server, or one of each master of a cluster.

    :ivar paths: in the order of their names.
    :ivar taken_at_ms: instant at which each was begun; none where it does not say it.
    :ivar as_of_ms: instant at which the last of them was begun.
    :ivar key_count: number of keys in all of them, as the files say.
    """

    paths: tuple[Path, ...]
    taken_at_ms: tuple[int | None, ...]
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
        taken_at_ms=(taken := tuple(each.taken_at_ms for each in found)),
        as_of_ms=max((at_ms for at_ms in taken if at_ms is not None), default=None),
        key_count=sum(each.key_count for each in found),
        is_cluster=len(found) > 1 or found[0].is_clustered,
    )


def _snapshot_at(path: Path) -> Snapshot:
    try:
        # To open a pipe that nobody writes to would wait for ever; and a file is read more than once.
        if path.exists() and not path.is_file():
            raise UsageError(
                f"{path} is a folder, pipe or device: name an RDB file, as SAVE, BGSAVE or a backup writes it"
            )
        with path.open("rb") as file:
            return Snapshot(file, name=str(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name an RDB file, as SAVE, BGSAVE or a backup writes it"
        ) from None
