from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
ENTRY = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>.+))?")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PYTHONS = ("3.11", "3.12", "3.13")


class Entry:
    def __init__(self, name: str, version: str, marker: str | None, hashes: list[str]) -> None:
        self.name = name
        self.version = Version(version)
        self.marker = Marker(marker) if marker else None
        self.hashes = hashes

    def applies(self, environment: dict[str, str]) -> bool:
        return self.marker is None or self.marker.evaluate(environment)


def entries() -> Iterator[Entry]:
    for text in LOCK.read_text("utf-8").replace("\\\n", " ").splitlines():
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+(?=--)", text.strip())
        match = ENTRY.fullmatch(requirement)
        assert match is not None, f"not a pinned requirement: {requirement}"
        assert all(HASH.fullmatch(part) for part in hashes), f"{match['name']}: not a hash: {hashes}"
        yield Entry(match["name"], match["version"], match["marker"], hashes)


def environment(python: str) -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    texts = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        texts.extend(extra)
    # An extra may name others of our own.
    return [each for each in map(Requirement, texts) if each.name != "queuekeeper"]


def test_every_requirement_is_pinned_and_has_a_hash() -> None:
    locked = list(entries())

    assert len(locked) > 100
    assert [entry.name for entry in locked if not entry.hashes] == []


def test_the_lock_names_no_address() -> None:
    text = LOCK.read_text("utf-8")

    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links|[^ ]*@ ", text) == []


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_lock_satisfies_what_the_project_declares(requirement: Requirement, python: str) -> None:
    found = [
        entry
        for entry in entries()
        if entry.name == canonicalize_name(requirement.name) and entry.applies(environment(python))
    ]

    assert len(found) == 1, f"{requirement.name} is locked {len(found)} times for Python {python}"
    assert requirement.specifier.contains(found[0].version, prereleases=True), f"locked: {found[0].version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_locked_twice_for_one_environment(python: str) -> None:
    names = [entry.name for entry in entries() if entry.applies(environment(python))]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_pyspark_client_never_overwrites_files_of_pyspark() -> None:
    (override,) = [
        line for line in (ROOT / "overrides.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    assert override == "pyspark-client ; sys_platform == 'never'"
    clients = [entry for entry in entries() if entry.name == "pyspark-client"]

    assert all(entry.marker is not None for entry in clients)
    for platform in ("linux", "darwin", "win32"):
        assert not any(entry.applies(environment("3.11") | {"sys_platform": platform}) for entry in clients)
