from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.lock import PYTHONS, environment, packages_by_extra, read_lock, read_project

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
ELSEWHERE = {"httpx2-jsfetch"}
"""Packages for platforms where Queuekeeper does not run."""


def declared() -> list[Requirement]:
    project = read_project(ROOT)
    texts = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        texts.extend(extra)
    # An extra may name others of our own.
    return [each for each in map(Requirement, texts) if each.name != "queuekeeper"]


def test_every_requirement_is_pinned_and_has_a_hash() -> None:
    locked = list(read_lock(ROOT))

    assert len(locked) > 100
    assert [entry.name for entry in locked if not entry.hashes] == []


@pytest.mark.parametrize(
    "line",
    [
        "redis>=8 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via queuekeeper (pyproject.toml)\n",
        "redis==8.1.0\n    # via queuekeeper (pyproject.toml)\n",
        "redis==8.1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n",
    ],
    ids=["unpinned", "without a hash", "without its origin"],
)
def test_a_lock_that_says_less_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.lock").write_text(line, "utf-8")

    with pytest.raises(ValueError, match="not a pinned requirement with hashes: redis"):
        list(read_lock(tmp_path))


def test_each_extra_brings_what_it_names_and_what_that_requires() -> None:
    brought = packages_by_extra(ROOT)

    assert {"redis", "psycopg", "typing-extensions"} <= brought[""]
    assert {"typer", "rich"} <= brought["cli"] - brought[""]
    assert {"pyspark", "py4j"} <= brought["spark"] - brought["airflow"]
    assert "pytest" in brought["dev"]
    assert set().union(*brought.values()) == {each.name for each in read_lock(ROOT)} - {"pyspark-client"} - ELSEWHERE


def test_the_lock_names_no_address() -> None:
    text = LOCK.read_text("utf-8")

    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links|[^ ]*@ ", text) == []


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_lock_satisfies_what_the_project_declares(requirement: Requirement, python: str) -> None:
    found = [
        entry
        for entry in read_lock(ROOT)
        if entry.name == canonicalize_name(requirement.name) and entry.applies(environment(python))
    ]

    assert len(found) == 1, f"{requirement.name} is locked {len(found)} times for Python {python}"
    assert requirement.specifier.contains(found[0].version, prereleases=True), f"locked: {found[0].version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_locked_twice_for_one_environment(python: str) -> None:
    names = [entry.name for entry in read_lock(ROOT) if entry.applies(environment(python))]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_pyspark_client_never_overwrites_files_of_pyspark() -> None:
    (override,) = [
        line for line in (ROOT / "overrides.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    assert override == "pyspark-client ; sys_platform == 'never'"
    clients = [entry for entry in read_lock(ROOT) if entry.name == "pyspark-client"]

    assert all(entry.marker is not None for entry in clients)
    for platform in ("linux", "darwin", "win32"):
        assert not any(entry.applies(environment("3.11") | {"sys_platform": platform}) for entry in clients)
