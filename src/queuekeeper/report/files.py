"""Writes a report as two files, JSON and an HTML page that names its hash; a reader sees whole files or none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from queuekeeper.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """Where a report was written.

    :param sha256: of the HTML file; the page in turn names the hash of the JSON file.
    """

    html: Path
    json: Path
    sha256: str


def stamp(at_ms: int) -> str:
    """Return an instant as it stands in file names, in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def write_files(directory: Path, *, stem: str, text: str, page: Callable[[str, str], str]) -> ReportFiles:
    """Write a report's two files.

    :param directory: made when it is not there.
    :param stem: file name without its ending.
    :param text: the JSON.
    :param page: returns the page, given name and hash of the JSON file.
    :raises RefusedError: when the directory cannot be written to.
    """
    html_path, json_path = directory / f"{stem}.html", directory / f"{stem}.json"
    data = text.encode()
    content = page(json_path.name, hashlib.sha256(data).hexdigest()).encode()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(json_path, data)
        write_whole(html_path, content)
    except OSError as error:
        raise RefusedError(
            f"the report cannot be written to {directory}: {error.strerror}; name another folder or make room"
        ) from error
    return ReportFiles(html=html_path, json=json_path, sha256=hashlib.sha256(content).hexdigest())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or put another in its place, so that nobody sees half of it.

    :raises OSError: when that cannot be done; the file is as it was.
    """
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
