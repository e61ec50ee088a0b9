"""Hides from a process what is installed, as if only one extra of ours were: an environment of its own takes long."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "queuekeeper"


def extras_of(extra: str) -> set[str]:
    """Return the extras of ours that are installed with one of them, or with none ("")."""
    return {its_extra for name, its_extra in _installed_with(extra) if name == OURS}


def _installed_with(extra: str) -> set[tuple[str, str]]:
    """Return the distributions that are installed with an extra of ours, each with its own extras."""
    needed: set[tuple[str, str]] = set()
    found = {(OURS, ""), (OURS, extra)}
    while found - needed:
        name, its_extra = (found - needed).pop()
        needed.add((name, its_extra))
        try:
            requirements = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:  # for another platform or Python
            continue
        for each in requirements:
            if each.marker is None or each.marker.evaluate({"extra": its_extra}):
                found |= {(canonicalize_name(each.name), wanted) for wanted in ("", *each.extras)}
    return needed


class _Hiding:
    """A finder that finds none of some modules, and is another one in all else."""

    def __init__(self, finder: MetaPathFinder, hidden: set[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if name.partition(".")[0] in self._hidden else self._finder.find_spec(name, path, target)


def install_only(extra: str) -> None:
    """Hide from this process every module that neither we need nor an extra of ours brings."""
    kept = {name for name, _ in _installed_with(extra)}
    hide({
        module
        for module, distributions in packages_distributions().items()
        if not kept & {canonicalize_name(each) for each in distributions}
    })  # fmt: skip


def hide(modules: set[str]) -> None:
    """Hide modules from this process, as if they were not installed."""
    sys.meta_path[:] = [_Hiding(finder, modules) for finder in sys.meta_path]  # type: ignore[arg-type]
