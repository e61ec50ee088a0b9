"""Undo files: each line describes one change of a run, from which the change can be undone.

An undo file is JSON Lines: the first line names the run, and each further line describes one change. The file holds
client ids, and payloads only where removed messages are to come back. A line is written before its change is made, so
a line may describe a change that never happened: an undo has to check each place first.

On a disk it is a file that only its owner can read. An object store cannot append to a file, so there it is a folder of
numbered parts that make up the file; the store decides who may read them.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.places import make_folder, names, on_disk, size_bytes, store, told, write_whole

FORMAT = "queuekeeper-undo-1"
PREVENTED = "prevented"
"""Field of a line that names the line of a change that was noted and then not made."""

_SUFFIX = ".undo.jsonl"
_START = b'{"format":"%s"' % FORMAT.encode()

_PART = re.compile(r"(?P<number>[0-9]{8})-(?P<at_ms>[0-9]{13})-[0-9a-f]{8}\.jsonl")
"""Name of a part: its instant and a token, so that no writer overwrites another's part."""

_AT_ONCE = 32
"""Parts to read at once; drivers of object stores fetch them side by side."""

_WHAT = "undo files"
_ELSE = "or name another place by QUEUEKEEPER_UNDO_DIR"


@dataclass(frozen=True, kw_only=True)
class KeptUndoFile:
    """An undo file that is there.

    :param written_ms: when it was last written to.
    """

    path: Path
    size_bytes: int
    written_ms: int

    def kept_until_ms(self, *, days: int) -> int:
        """Return when the file is so old that :func:`remove_old_undo_files` removes it."""
        return self.written_ms + days * DAY_MS


class UndoFile:
    """Writes the undo file of one run; a continued run appends to its file.

    A file that ends within its first line is begun again, since nothing was changed then.

    :param path: file to create or to append to; may be in an object store (``config.Settings.undo``).
    :param header: first line of the file, with at least ``kind``; a file with another header is refused.
    :raises RefusedError: when the file belongs to another run or cannot be written.
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
                # Written at once, so that a place that refuses does so before anything is changed.
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
    """Return the first line and the changes; an incomplete last line is skipped.

    :param kind: kind that the file's run must have; none for any.
    :raises UsageError: when there is no such file, it is no undo file, or it is of another kind.
    :raises RefusedError: when an object store does not allow to read it.
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


def changes(path: Path, *, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the changes of an undo file without those that were noted and then prevented.

    :param kind: kind that the file's run must have.
    :raises UsageError: as :func:`read_undo_file`.
    :raises RefusedError: as :func:`read_undo_file`.
    """
    prevented = Counter(_text([line[PREVENTED]]) for line in read_undo_file(path, kind=kind)[1] if PREVENTED in line)
    for line in read_undo_file(path, kind=kind)[1]:
        text = _text([line])
        if prevented[text]:
            prevented[text] -= 1
        elif PREVENTED not in line:
            yield line


def undo_path(directory: Path, *, run_id: str, shard: str) -> Path:
    """Return the undo file of one shard of a run.

    :param shard: any text.
    """
    return directory / f"{run_id}.{re.sub(r'[^A-Za-z0-9.-]+', '_', shard)}{_SUFFIX}"


def undo_paths(directory: Path, *, run_id: str) -> list[Path]:
    """Return the undo files of all shards of a run that hold at least one change.

    :raises UsageError: when the folder has no such file.
    """
    paths = [path for path in _found(directory, f"{run_id}.*{_SUFFIX}") if not _is_cut(path)]
    if not paths:
        raise UsageError(
            f"run {run_id} has no undo file in {directory}: it changed nothing, ran on another machine, or its file "
            "was removed after its retention"
        )
    return paths


def kept_undo_files(directory: Path, *, run_id: str) -> list[KeptUndoFile]:
    """Return the facts of a run's undo files.

    :raises UsageError: as :func:`undo_paths`.
    :raises RefusedError: when the folder cannot be read.
    """
    found = []
    for path in undo_paths(directory, run_id=run_id):
        written_ms = _place(path).written_ms()
        if written_ms is not None:  # else another process has just removed it
            with told(f"{path} cannot be measured", path, f"let this user read it, {_ELSE}"):
                size = size_bytes(path, what=_WHAT)
            found.append(KeptUndoFile(path=path, size_bytes=size, written_ms=int(written_ms)))
    return found


def undo_paths_of(directory: Path, *, kind: str) -> list[Path]:
    """Return the undo files of all runs of a kind."""
    return [path for path in _found(directory, f"*{_SUFFIX}") if _is_of(path, kind)]


def undo_file_exists(path: Path) -> bool:
    """Return whether there is an undo file at a path."""
    return _place(path).written_ms() is not None


def remove_old_undo_files(
    directory: Path, *, kind: str, days: int, now_ms: int, goes_on: Callable[[str], bool] = lambda _: False
) -> int:
    """Remove the files of a kind that were not written to for some days, and return how many.

    :param kind: kind of runs whose files are removed; a file that ends within its first line is removed for any kind.
    :param days: days since the last write.
    :param goes_on: returns whether the run of an id may still go on, so that its files stay.
    """
    removed = 0
    for path in _found(directory, f"*{_SUFFIX}"):
        place = _place(path)
        written_ms = place.written_ms()
        is_old = written_ms is not None and written_ms < now_ms - days * DAY_MS
        if is_old and (_is_cut(path) or (_is_of(path, kind) and not goes_on(_run_of(path)))):
            place.remove()
            removed += 1
    return removed


# --- where it is kept ------------------------------------------------------------------------------------------------


class _OnDisk:
    """A file, or a folder of files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> bytes:
        """Open the file for writing, and return its first line, as far as it was written."""
        with told(f"undo file {self._path} cannot be written", self._path, "name another"):
            make_folder(self._path.parent)
            # Without a buffer, which close would try to write again after a failure.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        return self._file.readline()

    def take(self, *, begin_again: bool) -> None:
        """Keep others from reading the file, and make sure that the next text begins a line, or the file."""
        with told(f"undo file {self._path} is another user's", self._path, "name another"):
            # The file may have been made readable for all.
            os.fchmod(self._file.fileno(), 0o600)
        if begin_again:
            self._file.truncate(0)
        elif size := self._file.seek(0, os.SEEK_END):
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                # A kill left an incomplete line.
                self.append(b"\n")

    def append(self, text: bytes) -> None:
        """Append a text, and return when it is on disk."""
        left = memoryview(text)
        with told(f"undo file {self._path} cannot be written", self._path, "make room"):
            while left:
                left = left[os.write(self._file.fileno(), left) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """End writing."""
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file."""
        with self._path.open("rb") as file:
            yield from file

    def written_ms(self) -> float | None:
        """Return when the file was last written to; none when there is no file."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._path.stat().st_mtime * 1000
        return None

    def remove(self) -> None:
        """Remove the file, unless another process was quicker."""
        self._path.unlink(missing_ok=True)


class _InStore:
    """A file in an object store, in which every text is a separate part, stored whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with told(f"{path} cannot be opened", path, f"install its driver, in Airflow its provider, {_ELSE}"):
            self._fs, self._folder = store(path, what=_WHAT)

    def begin(self) -> bytes:
        """Begin behind the existing parts, and return the first line, as far as it was written."""
        parts = self._parts()
        self._written = int(parts[-1]["number"]) if parts else 0
        return _first_line(self.lines()) if parts else b""

    def take(self, *, begin_again: bool) -> None:
        """Remove incomplete parts where the file is to be begun again; the store decides who may read it."""
        if begin_again and self._parts():
            # A file server may hold half of a part.
            self.remove()
            self._written = 0

    def append(self, text: bytes) -> None:
        """Write a text as a part, and return when it is in the store."""
        self._written += 1
        name = f"{self._written:08}-{system_clock():013}-{token_hex(4)}.jsonl"
        with told(f"undo file {self._path} cannot be written", self._path, f"let this user write, {_ELSE}"):
            write_whole(self._path / name, text)

    def close(self) -> None:
        """Do nothing: nothing is open between two parts."""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file."""
        names = [self._name(part[0]) for part in self._parts()]
        if not names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # The first part is read alone: often only the file's first line is needed.
        for some in (names[:1], *(names[at : at + _AT_ONCE] for at in range(1, len(names), _AT_ONCE))):
            for text in self._texts(some):
                yield from BytesIO(text)

    def written_ms(self) -> float | None:
        """Return when the file was last written to; none when there is no file."""
        return max((int(part["at_ms"]) for part in self._parts()), default=None)

    def remove(self) -> None:
        """Remove all parts, unless another process was quicker."""
        with (
            told(f"undo file {self._path} cannot be removed", self._path, f"let this user remove it, {_ELSE}"),
            suppress(FileNotFoundError),
        ):
            # The first part is removed last, since it names the run of the remaining parts.
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
    """Return whether a file ends within its first line; nothing was changed then."""
    try:
        line = _first_line(_place(path).lines())
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a later read reports why it fails
    return not line.endswith(b"\n") and (line.startswith(_START) or _START.startswith(line))


def _first_line(lines: Iterator[bytes]) -> bytes:
    """Return the first line, which may span several parts."""
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


def _run_of(path: Path) -> str:
    header, _ = read_undo_file(path)
    return str(header.get("maintenance_run_id", ""))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
