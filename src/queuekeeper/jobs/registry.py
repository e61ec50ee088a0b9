"""The kinds of runs of all installed distributions, by name; a kind is imported when it is used."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
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


def overview_of(dag: str) -> str:
    """Return the page of the site that shows what runs of a DAG have led to; empty for none.

    :raises UsageError: when a kind of runs cannot be loaded.
    """
    return next((of.overview for of in map(kind_of, kinds()) if of.dag == dag and of.overview), "")


def job_of(kind: str) -> type[AnyJob]:
    """Return a job.

    :raises UsageError: when there is no such kind, or its runs are outside the engine.
    """
    found = _found(kind)
    if isinstance(found, RunKind):
        how = f": `queuekeeper {found.command}` starts its runs" if found.command else ""
        raise UsageError(f"{kind} is no job of the engine{how}")
    return found


def jobs_in_short() -> dict[str, str]:
    """Return the first sentence about each job of the engine, by kind; importing the jobs would take half a second."""
    added = {kind: _sentence(job.__doc__) for kind, job in _added.items()}
    return dict(sorted({**_declared_in_short(tuple(sys.path)), **added}.items()))


@cache
def _declared_in_short(path: tuple[str, ...]) -> Mapping[str, str]:
    declared = _declared_on(path)
    sources = {module: _statements(module) for module in {place.module for place in declared.values()}}
    found = {kind: _in_short(kind, place, sources[place.module]) for kind, place in declared.items()}
    return {kind: words for kind, words in found.items() if words is not None}


def _in_short(kind: str, place: EntryPoint, source: list[ast.stmt]) -> str | None:
    """Return the first sentence about a job as its module's source has it; none for runs outside the engine."""
    for node in source:
        if isinstance(node, ast.ClassDef) and node.name == place.attr:
            return _sentence(ast.get_docstring(node))
        if isinstance(node, ast.Assign) and place.attr in map(ast.unparse, node.targets):
            return None
    try:
        found = _found(kind)
    except UsageError as error:
        return str(error)
    return None if isinstance(found, RunKind) else _sentence(found.__doc__)


def _statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module's source; none where it cannot be read."""
    try:
        source = find_spec(module).loader.get_source(module)  # type: ignore[union-attr]
        return ast.parse(source or "").body
    except (ImportError, AttributeError, SyntaxError):
        return []


def _sentence(text: str | None) -> str:
    words = " ".join((text or "").split("\n\n")[0].split())
    return f"{words.partition('. ')[0].rstrip('.')}."


def _found(kind: str) -> RunKind | type[AnyJob]:
    if kind in _added:
        return _added[kind]
    check_kind(kind)
    try:
        found: RunKind | type[AnyJob] = _declared()[kind].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{kind} cannot be loaded: {error}") from error
    return found
