"""Writes a report as two files, JSON and an HTML page that names its hash; a reader sees whole files or none."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from queuekeeper.errors import UsageError
from queuekeeper.facts import plain
from queuekeeper.places import make_folder, told, write_whole

T = TypeVar("T")


@dataclass(frozen=True)
class ReportKind:
    """What reports are about. A job has a kind of its own; the few that are no jobs stand here.

    :param name: how the names of its files begin.
    :param words: what people call such a report, as on the button that leads to it.
    """

    name: str
    words: str

    MIGRATION: ClassVar[ReportKind]
    QUALITY: ClassVar[ReportKind]
    PARTITIONS: ClassVar[ReportKind]


ReportKind.MIGRATION = ReportKind("migration", "Migration report")
ReportKind.QUALITY = ReportKind("quality", "Quality report")
ReportKind.PARTITIONS = ReportKind("partitions", "Partition report")

_STAMP = "%Y%m%dT%H%M%SZ"
RUN_ID = "[0-9a-f]{16}"
"""How the id of a run, or of a plan, is written."""
_NAME = re.compile(
    rf"(?P<about>[a-z][a-z0-9_]*)-(?P<subject>{RUN_ID})-(?P<at>[0-9]{{8}}T[0-9]{{6}}Z)\.(?P<suffix>html|json)"
)


@dataclass(frozen=True, kw_only=True)
class ReportName:
    """What the name of a report's file says.

    :param about: name of its kind.
    :param subject_id: plan of a migration, or run of another kind.
    :param suffix: ``html`` or ``json``.
    :param at: when the report was made.
    """

    about: str
    subject_id: str
    suffix: str
    at: datetime


def report_name(file_name: str) -> ReportName | None:
    """Return what a file's name says, or none when it is the name of no report."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    try:
        at = datetime.strptime(match["at"], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return ReportName(about=match["about"], subject_id=match["subject"], suffix=match["suffix"], at=at)


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """Where a report was written.

    :param sha256: of the HTML file; the page in turn names the hash of the JSON file.
    """

    html: Path
    json: Path
    sha256: str

    def named(self) -> dict[str, Path | str]:
        """Return them under the names by which commands show them."""
        return {"HTML": self.html, "JSON": self.json, "SHA-256 of the HTML": self.sha256}


def stamp(at_ms: int) -> str:
    """Return an instant as it stands in file names, in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(_STAMP)


@dataclass(frozen=True, kw_only=True)
class Report(ABC):
    """What a report that is written as JSON and as a page says of itself.

    :param format: version of the JSON file's shape.
    :param generated_by: release that made it.
    """

    format: int
    generated_at_ms: int
    generated_by: str

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(plain(self), ensure_ascii=False, indent=2) + "\n"

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return what the command and the task that write it say of it, besides where its files are."""


def write_rendered(
    report: Report, directory: Path, *, kind: ReportKind, subject_id: str, render: Callable[..., str]
) -> ReportFiles:
    """Write a report's two files; see :func:`write_files`.

    :param render: returns the page, given the report, and name and hash of its JSON as ``json_name``, ``json_sha256``.
    """
    return write_files(
        directory,
        kind=kind,
        subject_id=subject_id,
        at_ms=report.generated_at_ms,
        text=report.to_json(),
        page=lambda name, sha256: render(report, json_name=name, json_sha256=sha256),
    )


def write_files(
    directory: Path, *, kind: ReportKind, subject_id: str, at_ms: int, text: str, page: Callable[[str, str], str]
) -> ReportFiles:
    """Write a report's two files.

    :param directory: made when it is not there; also one in an object store (``config.Settings.reports``).
    :param subject_id: plan of a migration, or run of another kind: 16 digits from 0 to f.
    :param at_ms: when the report was made.
    :param text: the JSON.
    :param page: returns the page, given name and hash of the JSON file.
    :raises RefusedError: when the directory cannot be written to.
    """
    if not re.fullmatch(RUN_ID, subject_id):
        raise UsageError(f"a report cannot be about {subject_id!r}: its file is named by 16 digits from 0 to f")
    stem = f"{kind.name}-{subject_id}-{stamp(at_ms)}"
    html_path, json_path = directory / f"{stem}.html", directory / f"{stem}.json"
    data = text.encode()
    content = page(json_path.name, hashlib.sha256(data).hexdigest()).encode()
    with writing(directory):
        make_folder(directory)
        write_whole(json_path, data)
        write_whole(html_path, content)
    return ReportFiles(html=html_path, json=json_path, sha256=hashlib.sha256(content).hexdigest())


def writing(directory: Path) -> AbstractContextManager[None]:
    """Say in words what a folder of reports does not allow while a block writes to it."""
    advice = "let this user write there, make room, or name another folder"
    return told(f"the report cannot be written to {directory}", directory, advice)


def read_in(directory: Path, read: Callable[[], T]) -> T | None:
    """Return what is read in a folder of reports; none when it is not there.

    :param directory: also one in an object store (``config.Settings.reports``).
    :raises RefusedError: when the directory cannot be read.
    """
    advice = "let the user that asks read it, or renew the credentials"
    with told(f"reports cannot be read from {directory}", directory, advice):
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            # An object store has no folder before there is something in it.
            return None
