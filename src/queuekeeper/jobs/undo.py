"""A file of what a run is about to change, line by line, from which it can be taken back; doing so is the run's kind's.

JSON Lines: a first line that says whose file it is, then a line per change. It holds client ids, and payloads only
where removed messages are to come back; only its owner can read it. Lines are on disk before the change is made, so a
line may tell of one that never was: whoever takes back has to look at each place first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from queuekeeper.errors import RefusedError, UsageError

FORMAT = "queuekeeper-undo-1"
_SUFFIX = ".undo.jsonl"


class UndoFile:
    """Writes the undo file of one run; a run that goes on appends to its file.

    :param path: file to make or to go on with.
    :param header: whose file it is: at least its ``kind``; a file with another header is refused.
    :raises RefusedError: when it is another run's file or cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        first = {"format": FORMAT, **header}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer, which closing the file would try to write once more after a failure.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as error:
            raise RefusedError(f"undo file {path} cannot be written: {error.strerror}; name another") from error
        try:
            self._begin(first)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, first: Mapping[str, Any]) -> None:
        known = self._file.readline()
        if known and _parsed(known) != first:
            raise RefusedError(f"{self.path} is the undo file of something else: name another file")
        try:
            # Somebody may have made it for all to read.
            os.fchmod(self._file.fileno(), 0o600)
        except OSError as error:
            raise RefusedError(f"undo file {self.path} is another user's: {error.strerror}; name another") from error
        if not known:
            self.write([first])
        elif _ends_within_a_line(self._file):
            # A kill left half a line; what follows it has to be whole.
            self._append(b"\n")

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines and return when they are on disk.

        :raises RefusedError: when there is no room for them.
        """
        self._append(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))

    def _append(self, text: bytes) -> None:
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._file.fileno(), left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RefusedError(f"undo file {self.path} cannot be written: {error.strerror}; make room") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_undo_file(path: Path, *, kind: str | None = None) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return what the first line says, and the changes; half a line that a kill left is passed over.

    :param kind: of the run that it has to be of; none for any.
    :raises UsageError: when there is no such file, it is none of ours, or of another kind.
    """
    try:
        with path.open("rb") as file:
            header = _parsed(file.readline())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if header is None or header.get("format") != FORMAT:
        raise UsageError(f"{path} is no undo file of this release")
    if kind not in (None, header.get("kind")):
        raise UsageError(f"{path} is the undo file of a {header.get('kind')}, not of a {kind}")
    return header, _lines(path)


def undo_path(directory: Path, *, run_id: str, shard: str) -> Path:
    """Return the undo file of one shard of a run.

    :param shard: any text.
    """
    return directory / f"{run_id}.{re.sub(r'[^A-Za-z0-9.-]+', '_', shard)}{_SUFFIX}"


def undo_paths(directory: Path, *, run_id: str) -> list[Path]:
    """Return the undo files of all shards of a run.

    :raises UsageError: when there is none on this machine.
    """
    paths = sorted(directory.glob(f"{run_id}.*{_SUFFIX}"))
    if not paths:
        raise UsageError(
            f"run {run_id} has no undo file in {directory}: it changed nothing, ran on another machine, or its file "
            "was removed after its retention"
        )
    return paths


def undo_paths_of(directory: Path, *, kind: str) -> list[Path]:
    """Return the undo files of all runs of a kind."""
    return [path for path in sorted(directory.glob(f"*{_SUFFIX}")) if _is_of(path, kind)]


def remove_old_undo_files(directory: Path, *, kind: str, days: int, now_ms: int) -> int:
    """Remove the files that nobody has written to for so long, and return how many.

    :param kind: of runs; those of others are kept in the same folder.
    """
    removed = 0
    for path in undo_paths_of(directory, kind=kind):
        if path.stat().st_mtime * 1000 < now_ms - days * 86_400_000:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _is_of(path: Path, kind: str) -> bool:
    try:
        read_undo_file(path, kind=kind)
    except UsageError:
        return False
    return True


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        file.readline()
        for line in file:
            found = _parsed(line)
            if found is not None:
                yield found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ends_within_a_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")
