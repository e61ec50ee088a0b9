"""The kinds of runs, by name: of every distribution that is installed. One is imported when it is asked for."""

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
"""Entry points of this group name a job's class, or the record of a kind that keeps a sequence of its own."""

_added: dict[str, type[AnyJob]] = {}


@cache
def _declared_on(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    # No other distribution takes a name of ours.
    ours_last = sorted(
        entry_points(group=GROUP), key=lambda each: each.dist is not None and each.dist.name == "queuekeeper"
    )
    found = {each.name: each for each in ours_last}
    if checkout := assets.checkout():
        # What is installed of a checkout is as old as its installation.
        project = tomllib.loads((checkout / assets.PROJECT).read_text("utf-8"))["project"]
        found |= {name: EntryPoint(name, place, GROUP) for name, place in project["entry-points"][GROUP].items()}
    return found


def _declared() -> Mapping[str, EntryPoint]:
    """Return where kinds are to be found, by name."""
    return _declared_on(tuple(sys.path))


def add_job(job: type[AnyJob]) -> type[AnyJob]:
    """Make a job known in this process, also one that no distribution names; used as a decorator."""
    _added[job.kind] = job
    return job


def kinds() -> list[str]:
    """Return the names of all kinds of runs that are put on record."""
    return sorted({*_declared(), *_added})


def check_kind(kind: str) -> None:
    """Refuse a name under which no run is put on record.

    :raises UsageError: naming it and those that there are.
    """
    if kind not in (known := kinds()):
        raise UsageError(f"there is no job {kind!r}: there are {', '.join(known)}")


def kind_of(kind: str) -> RunKind:
    """Return what is to be known of runs of a kind.

    :raises UsageError: when there is none of this name; names those that there are.
    """
    found = _found(kind)
    return found if isinstance(found, RunKind) else found.run_kind()


def job_of(kind: str) -> type[AnyJob]:
    """Return a job.

    :raises UsageError: when there is none of this name, or runs of this kind are not the engine's.
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
