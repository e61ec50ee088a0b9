"""The kinds of runs of all installed distributions, by name; a kind is imported when it is used."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from queuekeeper import assets
from queuekeeper.errors import UsageError
from queuekeeper.jobs.kinds import RunKind

if TYPE_CHECKING:
    from queuekeeper.jobs.model import AnyJob

GROUP = "queuekeeper.jobs"
"""Group of entry points that name a job's class, or the :class:`RunKind` of runs outside the engine."""

_added: dict[str, type[AnyJob]] = {}


@cache
def _declared_on(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    # Another distribution cannot take a name of ours.
    ours_last = sorted(
        entry_points(group=GROUP), key=lambda each: each.dist is not None and each.dist.name == "queuekeeper"
    )
    found = {each.name: each for each in ours_last}
    if checkout := assets.checkout():
        # The installed metadata of a checkout are as old as its installation.
        project = tomllib.loads((checkout / assets.PROJECT).read_text("utf-8"))["project"]
        found |= {name: EntryPoint(name, place, GROUP) for name, place in project["entry-points"][GROUP].items()}
    return found


def _declared() -> Mapping[str, EntryPoint]:
    """Return the entry points of all kinds, by name."""
    return _declared_on(tuple(sys.path))


def add_job(job: type[AnyJob]) -> type[AnyJob]:
    """Register a job in this process, without an entry point; used as a decorator."""
    _added[job.kind] = job
    return job


def kinds() -> list[str]:
    """Return the names of all kinds of runs."""
    return sorted({*_declared(), *_added})


def check_kind(kind: str) -> None:
    """Refuse a name of no kind.

    :raises UsageError: when there is no such kind; names the known kinds.
    """
    if kind not in (known := kinds()):
        raise UsageError(f"there is no job {kind!r}: there are {', '.join(known)}")


def kind_of(kind: str) -> RunKind:
    """Return the record of a kind of runs.

    :raises UsageError: when there is no such kind; names the known kinds.
    """
    found = _found(kind)
    return found if isinstance(found, RunKind) else found.run_kind()


def job_of(kind: str) -> type[AnyJob]:
    """Return a job.

    :raises UsageError: when there is no such kind, or its runs are outside the engine.
    """
    found = _found(kind)
    if isinstance(found, RunKind):
        raise UsageError(f"{kind} is no job of the engine")
    return found


def _found(kind: str) -> RunKind | type[AnyJob]:
    if kind in _added:
        return _added[kind]
    check_kind(kind)
    try:
        found: RunKind | type[AnyJob] = _declared()[kind].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{kind} cannot be loaded: {error}") from error
    return found
