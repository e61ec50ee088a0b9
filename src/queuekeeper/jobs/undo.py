"""A file of what a run is about to change, line by line, from which it can be taken back.

JSON Lines: a first line that says whose file it is, then a line per change. It holds client ids, and payloads only
where removed messages are to come back. Lines are kept before the change is made, so a line may tell of one that never
was: whoever takes back has to look at each place first.

On a disk it is a file that only its owner can read. In an object store, where nothing can be appended to, it is a
folder of numbered parts that are this file when they are put together; who may read them, the store says.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.places import make_folder, names, on_disk, store, told, write_whole

FORMAT = "queuekeeper-undo-1"
_SUFFIX = ".undo.jsonl"
_START = b'{"format":"%s"' % FORMAT.encode()

_PART = re.compile(r"(?P<number>[0-9]{8})-(?P<at_ms>[0-9]{13})-[0-9a-f]{8}\.jsonl")
"""Name of a part: when it was written, and a token, so that no writer ever puts its part in another's place."""

_AT_ONCE = 32
"""So many parts are asked for at once; drivers of object stores fetch them side by side."""

_WHAT = "undo files"
_ELSE = "or name another place by QUEUEKEEPER_UNDO_DIR"


class UndoFile:
    """Writes the undo file of one run; a run that goes on appends to its file.

    A file that was broken off in its first line is begun again: nothing was changed then.

    :param path: file to make or to go on with; also one in an object store (``config.Settings.undo``).
    :param header: whose file it is: at least its ``kind``; a file with another header is refused.
    :raises RefusedError: when it is another run's file or cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self._place = _place(path)
        first = {"format": FORMAT, **header}
        known = self._place.begin()
        try:
            is_begun = known.endswith(b"\n")
            if not (_parsed(known) == first if is_begun else _text([first]).startswith(known)):
                raise RefusedError(f"{self.path} is the undo file of something else: name another file")
            self._place.take(begin_again=not is_begun)
            if not is_begun:
                # A place that refuses does so here, before anything is changed.
                self.write([first])
        except BaseException:
            self._place.close()
            raise

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines and return when they are on disk, or in the store.

        :raises RefusedError: when there is no room for them, or the store refuses.
        """
        self._place.append(_text(lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.close()


def read_undo_file(path: Path, *, kind: str | None = None) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return what the first line says, and the changes; half a line that a kill left is passed over.

    :param kind: of the run that it has to be of; none for any.
    :raises UsageError: when there is no such file, it is none of ours, or of another kind.
    :raises RefusedError: when an object store does not let it be read.
    """
    lines = _place(path).lines()
    try:
        header = _parsed(next(lines, b""))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if header is None or header.get("format") != FORMAT:
        raise UsageError(f"{path} is no undo file of this release")
    if kind not in (None, header.get("kind")):
        raise UsageError(f"{path} is the undo file of a {header.get('kind')}, not of a {kind}")
    return header, (found for line in lines if (found := _parsed(line)) is not None)


def undo_path(directory: Path, *, run_id: str, shard: str) -> Path:
    """Return the undo file of one shard of a run.

    :param shard: any text.
    """
    return directory / f"{run_id}.{re.sub(r'[^A-Za-z0-9.-]+', '_', shard)}{_SUFFIX}"


def undo_paths(directory: Path, *, run_id: str) -> list[Path]:
    """Return the undo files of all shards of a run in which something was written behind the first line.

    :raises UsageError: when there is none in the folder.
    """
    paths = [path for path in _found(directory, f"{run_id}.*{_SUFFIX}") if not _is_cut(path)]
    if not paths:
        raise UsageError(
            f"run {run_id} has no undo file in {directory}: it changed nothing, ran on another machine, or its file "
            "was removed after its retention"
        )
    return paths


def undo_paths_of(directory: Path, *, kind: str) -> list[Path]:
    """Return the undo files of all runs of a kind."""
    return [path for path in _found(directory, f"*{_SUFFIX}") if _is_of(path, kind)]


def undo_file_exists(path: Path) -> bool:
    """Tell whether there is an undo file under a path."""
    return _place(path).written_ms() is not None


def remove_old_undo_files(directory: Path, *, kind: str, days: int, now_ms: int) -> int:
    """Remove the files that nobody has written to for so long, and return how many.

    :param kind: of runs; those of others are kept in the same folder. Whatever its kind, a file that was broken off in
        its first line tells of no change.
    """
    removed = 0
    for path in _found(directory, f"*{_SUFFIX}"):
        place = _place(path)
        written_ms = place.written_ms()
        is_old = written_ms is not None and written_ms < now_ms - days * 86_400_000
        if is_old and (_is_cut(path) or _is_of(path, kind)):
            place.remove()
            removed += 1
    return removed


# --- where it is kept ------------------------------------------------------------------------------------------------


class _OnDisk:
    """A file, or a folder of files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> bytes:
        """Open it for writing, and return the line that says whose file it is, as far as it was written."""
        with told(f"undo file {self._path} cannot be written", self._path, "name another"):
            make_folder(self._path.parent)
            # Without a buffer, which closing the file would try to write once more after a failure.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        return self._file.readline()

    def take(self, *, begin_again: bool) -> None:
        """Keep others from reading it, and see to it that what is written next begins a line, or the file."""
        with told(f"undo file {self._path} is another user's", self._path, "name another"):
            # Somebody may have made it for all to read.
            os.fchmod(self._file.fileno(), 0o600)
        if begin_again:
            self._file.truncate(0)
        elif size := self._file.seek(0, os.SEEK_END):
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                # A kill left half a line.
                self.append(b"\n")

    def append(self, text: bytes) -> None:
        """Return when a text is on disk."""
        left = memoryview(text)
        with told(f"undo file {self._path} cannot be written", self._path, "make room"):
            while left:
                left = left[os.write(self._file.fileno(), left) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """End writing."""
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """Yield what was written, line by line."""
        with self._path.open("rb") as file:
            yield from file

    def written_ms(self) -> float | None:
        """Return when it was last written to; none when it is not there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._path.stat().st_mtime * 1000
        return None

    def remove(self) -> None:
        """Remove the file, unless another process was quicker."""
        self._path.unlink(missing_ok=True)


class _InStore:
    """The same in an object store, in which every text is a part of its own, there as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with told(f"{path} cannot be opened", path, f"install its driver, in Airflow its provider, {_ELSE}"):
            self._fs, self._folder = store(path, what=_WHAT)

    def begin(self) -> bytes:
        """Go on behind the parts that are there, and return the line that says whose file it is, as on a disk."""
        parts = self._parts()
        self._written = int(parts[-1]["number"]) if parts else 0
        return _first_line(self.lines()) if parts else b""

    def take(self, *, begin_again: bool) -> None:
        """Leave to the store who may read it; what is written next is an object of its own."""
        if begin_again and self._parts():
            # A server of files may be left with half of one.
            self.remove()
            self._written = 0

    def append(self, text: bytes) -> None:
        """Return when a text is in the store."""
        self._written += 1
        name = f"{self._written:08}-{system_clock():013}-{token_hex(4)}.jsonl"
        with told(f"undo file {self._path} cannot be written", self._path, f"let this user write, {_ELSE}"):
            write_whole(self._path / name, text)

    def close(self) -> None:
        """Do nothing: nothing is open between two parts."""

    def lines(self) -> Iterator[bytes]:
        """Yield what was written, line by line."""
        names = [self._name(part[0]) for part in self._parts()]
        if not names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # The first by itself: who wants to know whose file it is needs no more.
        for some in (names[:1], *(names[at : at + _AT_ONCE] for at in range(1, len(names), _AT_ONCE))):
            for text in self._texts(some):
                yield from BytesIO(text)

    def written_ms(self) -> float | None:
        """Return when it was last written to; none when it is not there."""
        return max((int(part["at_ms"]) for part in self._parts()), default=None)

    def remove(self) -> None:
        """Remove all parts, unless another process was quicker."""
        with (
            told(f"undo file {self._path} cannot be removed", self._path, f"let this user remove it, {_ELSE}"),
            suppress(FileNotFoundError),
        ):
            # The first part is removed last: if this breaks off, it says whose file the remaining parts are.
            if names := [self._name(part[0]) for part in self._parts()[1:]]:
                self._fs.rm(names)
            self._fs.rm(self._folder, recursive=True)

    def _parts(self) -> list[re.Match[str]]:
        return [part for name in _names(self._path) if (part := _PART.fullmatch(name)) is not None]

    def _name(self, part: str) -> str:
        return f"{self._folder.rstrip('/')}/{part}"

    def _texts(self, names: list[str]) -> list[bytes]:
        with (
            told(f"{self._path} cannot be read", self._path, f"let this user read it, {_ELSE}"),
            suppress(FileNotFoundError),
        ):
            found: dict[str, bytes] = self._fs.cat(names)
            return [found[name] for name in sorted(found)]
        raise UsageError(f"{self._path} cannot be read: somebody is removing it")


def _place(path: Path) -> _OnDisk | _InStore:
    return _OnDisk(path) if on_disk(path) else _InStore(path)


def _names(directory: Path) -> list[str]:
    with told(f"undo files cannot be looked for in {directory}", directory, f"let this user read it, {_ELSE}"):
        return names(directory, what=_WHAT)


def _found(directory: Path, pattern: str) -> list[Path]:
    return [directory / name for name in _names(directory) if fnmatchcase(name, pattern)]


def _is_cut(path: Path) -> bool:
    """Tell whether a file was broken off in its first line: nothing was changed then."""
    try:
        line = _first_line(_place(path).lines())
    except FileNotFoundError:
        return True
    except OSError:
        return False  # who reads it says why it cannot be read
    return not line.endswith(b"\n") and (line.startswith(_START) or _START.startswith(line))


def _first_line(lines: Iterator[bytes]) -> bytes:
    """Return the first line, as it is when all parts are put together."""
    line = next(lines, b"")
    return line if line.endswith(b"\n") else line + next(lines, b"")


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def _is_of(path: Path, kind: str) -> bool:
    try:
        read_undo_file(path, kind=kind)
    except UsageError:
        return False
    return True


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
