"""Decides what a place of files is, a folder or one in an object store, and does what differs between both."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from queuekeeper.errors import QueuekeeperError, RefusedError, UsageError

# --- what a text names -----------------------------------------------------------------------------------------------


def folder(text: str, *, name: str) -> Path:
    """Return the folder that a text names, as a path or a ``file://`` URL.

    Of an object store's URL a path would be made that is a new folder on whichever machine the process runs on.

    :param name: what somebody has set.
    :raises UsageError: when it names an object store.
    """
    scheme, mark, _ = text.partition("://")
    if not mark:
        return Path(text)
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    raise UsageError(
        f"{name} names an object store ({scheme}://), and a folder is needed: reports, undo files, archives and "
        "Parquet of profiles may be in an object store, and nothing else; name a folder of this machine"
    )


def folder_or_url(text: str, *, name: str) -> Path | str:
    """Return the folder that a text names; one in an object store stays a URL.

    :param name: what somebody has set.
    :raises UsageError: when the URL holds a password.
    """
    if "://" not in text or text.startswith("file://"):
        return folder(text, name=name)
    url = urlsplit(text)
    if url.password is not None:
        raise UsageError(
            f"{name} names an object store ({url.scheme}://) with a password, which pages would show: name a "
            f"connection of Airflow instead, as {url.scheme}://CONNECTION@BUCKET/FOLDER, or the bucket alone"
        )
    return text


def shared_place(text: str, *, name: str) -> Path | str:
    """Return what :func:`folder_or_url` does, of a place that Spark and commands know by the same name as Airflow.

    :raises UsageError: also when the URL names a connection, which only Airflow knows.
    """
    url = urlsplit(text)
    # Azure's URLs have the container there.
    if url.username is not None and url.scheme not in ("abfs", "abfss", "file"):
        raise UsageError(
            f"{name} names a user or a connection of Airflow before the @ ({url.scheme}://), which Spark and commands "
            "do not know: leave it out, and give workers, commands and Spark credentials of their own "
            "(docs/deploying.md)"
        )
    return folder_or_url(text, name=name)


# --- how it is opened ------------------------------------------------------------------------------------------------

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Packages by which fsspec opens a store; of some it does not say so itself."""


def by_fsspec(url: str) -> Any:
    """Return what acts like a path, for a URL that names no connection of Airflow."""
    # Both come with Airflow, and are needed for object stores alone.
    from fsspec import get_filesystem_class  # noqa: PLC0415
    from upath import UPath  # noqa: PLC0415

    path = UPath(url)
    # It knows what to install for a store that it cannot open.
    get_filesystem_class(path.protocol)
    return path


def opened(place: Path | str, *, what: str, name: str, by: Callable[[str], Any] = by_fsspec) -> Path:
    """Return a folder as a path; one in an object store as what acts like one, without renames.

    :param what: is kept there, in the plural.
    :param name: what somebody has set.
    :param by: how an object store is opened: returns for a URL what acts like a path.
    :raises UsageError: when nothing that is installed opens that object store.
    """
    if isinstance(place, Path):
        return place
    try:
        return cast(Path, by(place))
    except (ImportError, ValueError) as error:
        scheme = urlsplit(place).scheme
        raise UsageError(
            f"{what} are in an object store ({scheme}://), which takes universal-pathlib and "
            f"{_DRIVERS.get(scheme, 'a driver of fsspec')} ({error}): install both, or let {name} name a folder"
        ) from None


def shared_folder(place: Path | str, *, what: str, name: str) -> Path:
    """Return a folder that Spark, commands and tasks of Airflow name alike, as a path.

    :param place: path, or URL of a folder in an object store.
    :param what: is kept there, in the plural.
    :param name: name of the setting, for the error.
    :raises UsageError: when no installed package opens that object store.
    """
    return opened(shared_place(str(place), name=name), what=what, name=name)


def on_disk(path: object) -> bool:
    """Tell whether what acts like a path is one, and not in an object store."""
    return isinstance(path, Path)


def store(path: Path, *, what: str) -> tuple[Any, str]:
    """Return the file system of a path in an object store, and what it calls that path.

    :param what: is kept there, in the plural.
    :raises UsageError: when it would take the path for a pattern.
    """
    fs, key = _in_store(path)
    if set(key) & set("*?["):
        raise UsageError(f"{what} cannot be in {path}, whose name would be taken for a pattern: name another")
    return fs, key


def _in_store(path: Path) -> tuple[Any, str]:
    # Airflow's path speaks for its connection, and without one leaves all to the path that it wraps.
    speaks: Any = path if getattr(path, "conn_id", None) else getattr(path, "__wrapped__", path)
    return speaks.fs, str(speaks.path)


# --- what is done there ----------------------------------------------------------------------------------------------

_ANSWER_S = 45.0
"""How long an object store may take to answer. Clients repeat what is not answered: that of S3 for seven minutes."""

_SLOWEST_BYTES_PER_S = 128 * 1024


@contextmanager
def told(problem: str, directory: Path, advice: str) -> Iterator[None]:
    """Say in words what a folder does not allow while a block works in it.

    :param problem: what could not be done.
    :param directory: also one in an object store.
    :param advice: what to do about it.
    :raises RefusedError: in place of an error of the system's, or of any of an object store's client.
    """
    try:
        yield
    except QueuekeeperError:
        raise
    except Exception as error:
        # Clients of object stores have errors of their own.
        if not isinstance(error, OSError) and on_disk(directory):
            raise
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RefusedError(f"{problem}: {words}; {advice}") from error


def names(directory: Path, *, what: str) -> list[str]:
    """Return what a folder holds by now, in order; nothing when it is not there.

    :param what: is kept there, in the plural.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        if on_disk(directory):
            return sorted(each.name for each in directory.iterdir())
        fs, key = store(directory, what=what)
        # Another process may have written since this one has looked.
        fs.invalidate_cache()
        found = _answered(fs, fs.ls, key, detail=False)
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)
    return []


def size_bytes(path: Path, *, what: str) -> int:
    """Return the size of a file; in an object store, that of all files of a folder.

    :param what: is kept there, in the plural.
    """
    if on_disk(path):
        return path.stat().st_size
    fs, key = store(path, what=what)
    fs.invalidate_cache()
    return int(_answered(fs, fs.du, key))


def make_folder(directory: Path) -> None:
    """Make a folder on a disk; in an object store :func:`write_whole` makes the one that it needs."""
    if on_disk(directory):
        directory.mkdir(parents=True, exist_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or put another in its place, so that nobody sees half of it.

    :raises OSError: when that cannot be done; the file is as it was.
    """
    if not on_disk(path):
        # An object is there once all of it is.
        fs, key = _in_store(path)
        try:
            _answered(fs, fs.pipe_file, key, content)
        except FileNotFoundError:
            _make_within(fs, fs._parent(key))
            _answered(fs, fs.pipe_file, key, content)
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _answered(fs: Any, call: Callable[..., Any], key: str, *content: bytes, **given: Any) -> Any:
    """Return what a store answers to a call; one that does not answer is not waited for."""
    if not fs.async_impl:
        # It cannot be left alone with the call.
        return call(key, *content, **given)
    limit_s = _ANSWER_S + sum(map(len, content)) / _SLOWEST_BYTES_PER_S
    try:
        return call(key, *content, timeout=limit_s, **given)
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, f"it has not answered within {limit_s:.0f} seconds") from error


def _make_within(fs: Any, folder: str) -> None:
    """Make a folder for a server of files that wants it first, but no bucket: a wrong name would be one."""
    if "/" not in folder.strip("/"):
        raise FileNotFoundError(errno.ENOENT, "there is no such bucket", folder)
    try:
        fs.mkdir(folder, create_parents=False)
    except FileNotFoundError:
        _make_within(fs, fs._parent(folder))
        fs.mkdir(folder, create_parents=False)


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, be on disk when this returns; an object store keeps things at once."""
    if on_disk(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_folder(directory: Path, *, what: str) -> None:
    """Remove a folder with all that is in it, if it is there.

    :param what: is kept there, in the plural.
    """
    with suppress(FileNotFoundError):
        if on_disk(directory):
            shutil.rmtree(directory)
        else:
            fs, key = store(directory, what=what)
            fs.invalidate_cache()
            fs.rm(key, recursive=True)
