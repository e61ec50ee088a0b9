"""Checks this machine: free disk for the files that are written, and a Java for Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from queuekeeper.config import Settings
from queuekeeper.doctor.findings import Finding, Notes, State
from queuekeeper.errors import QueuekeeperError
from queuekeeper.java import java_home, java_version
from queuekeeper.report import figures

FREE_SHARE_WARNING = 0.1
FREE_BYTES_FAILURE = 512 * 1024 * 1024


def examine_machine(settings: Settings, *, folders: Mapping[str, Path] | None = None) -> list[Finding]:
    """Check the folders of reports, undo files, archives and private servers.

    :param folders: other folders to check, by what is kept there.
    """
    notes = Notes("this machine")
    wanted = {"private servers": settings.home}
    # Files in an object store take no room here.
    if not isinstance(settings.reports_dir, str):
        wanted["reports"] = settings.reports
    if not isinstance(settings.undo_dir, str):
        wanted["undo files"] = settings.undo
    if isinstance(settings.archives, Path):
        wanted["archives"] = settings.archives
    wanted |= dict(folders or {})
    shared: dict[Path, list[str]] = {}
    for purpose, folder in wanted.items():
        shared.setdefault(_present(folder), []).append(purpose)
    for folder, purposes in shared.items():
        room_finding(notes, folder, purposes)
    return notes.findings


def examine_java(settings: Settings) -> list[Finding]:
    """Look for a Java runtime that Spark can use."""
    notes = Notes("this machine")
    if find_spec("pyspark") is None:
        notes.add(
            "Java for Spark", State.UNKNOWN, "Spark is not installed",
            "for plans, copies, verifications, profiles and archives: pip install 'queuekeeper[spark]'",
        )  # fmt: skip
        return notes.findings
    try:
        home = java_home(settings.home)
    except QueuekeeperError as error:
        notes.add("Java for Spark", State.FAILED, str(error), "see the message; only steps with Spark need Java")
    else:
        notes.add("Java for Spark", State.OK, f"Java {java_version(home)} in {home}")
    return notes.findings


def room_finding(notes: Notes, folder: Path, purposes: list[str]) -> None:
    """Add how much room the disk of a folder has."""
    check = f"free disk for {', '.join(purposes)}"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        notes.add(check, State.UNKNOWN, f"{folder}: {error.strerror}", "look on the machine itself")
        return
    state = State.OK
    if usage.free < FREE_BYTES_FAILURE:
        state = State.FAILED
    elif usage.free < FREE_SHARE_WARNING * usage.total:
        state = State.WARNING
    notes.add(
        check,
        state,
        f"{figures.size(usage.free)} of {figures.size(usage.total)} at {folder}",
        "free some, or name another folder (QUEUEKEEPER_HOME, _REPORTS_DIR, _UNDO_DIR, _ARCHIVES_DIR)",
    )


def _present(folder: Path) -> Path:
    """Return the folder, or the nearest existing folder above it."""
    folder = folder.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder
