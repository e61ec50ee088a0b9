"""Reads what requirements.lock and pyproject.toml say of the packages that Queuekeeper comes with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEVELOPMENT = frozenset({"dev", "docs"})
"""Extras for who works on Queuekeeper, not for who uses it."""

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = (("linux", "Linux"), ("darwin", "Darwin"))

ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\\n]+))? \\\n"
    r"(?P<hashes>(?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    r" {4}# via (?P<wanted_by>.+)\n"
)


@dataclass(frozen=True)
class Locked:
    """One pinned package."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]
    wanted_by: frozenset[str]
    """The locked packages that require it, and Queuekeeper where it does."""

    def applies(self, environment: dict[str, str]) -> bool:
        """Tell whether it is installed in an environment."""
        return self.marker is None or self.marker.evaluate(environment)


def environment(python: str, sys_platform: str = "linux", platform_system: str = "Linux") -> dict[str, str]:
    """Return what markers are evaluated by."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": sys_platform,
        "platform_system": platform_system,
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def read_lock(root: Path) -> Iterator[Locked]:
    """Yield what is locked.

    :raises ValueError: A line is no pinned requirement with hashes and origin.
    """
    text = (root / "requirements.lock").read_text("utf-8")
    at = 0
    while at < len(text):
        entry = ENTRY.match(text, at)
        if entry is None:
            raise ValueError(f"requirements.lock: not a pinned requirement with hashes: {text[at:].splitlines()[0]}")
        yield Locked(
            name=entry["name"],
            version=entry["version"],
            marker=Marker(entry["marker"]) if entry["marker"] else None,
            hashes=tuple(re.findall("[0-9a-f]{64}", entry["hashes"])),
            wanted_by=frozenset(re.findall(r"(?:^|, )([a-z0-9][a-z0-9-]*)", entry["wanted_by"])),
        )
        at = entry.end()


def installable(root: Path) -> list[Locked]:
    """Return what is installed on a platform where Queuekeeper runs: PyYAML for Windows, say, is not among it."""
    everywhere = [environment(python, *platform) for python, platform in product(PYTHONS, PLATFORMS)]
    return [each for each in read_lock(root) if any(map(each.applies, everywhere))]


def read_project(root: Path) -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))


def packages_by_extra(root: Path) -> dict[str, set[str]]:
    """Return the packages that each extra brings, with all that they require; those of every installation under "".

    What an extra takes from another one is named there alone.
    """
    locked = installable(root)
    requirements: dict[str, set[str]] = {}
    for each in locked:
        for parent in each.wanted_by:
            requirements.setdefault(parent, set()).add(each.name)
    project = read_project(root)["project"]
    found = {}
    for extra, texts in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        ahead = {str(canonicalize_name(Requirement(text).name)) for text in texts} - {project["name"]}
        reached: set[str] = set()
        while ahead:
            name = ahead.pop()
            reached.add(name)
            ahead |= requirements.get(name, set()) - reached
        found[extra] = reached
    return found
