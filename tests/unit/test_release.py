"""What `make release` builds: the same bytes wherever it is built, with checksums and the list of parts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from queuekeeper import __version__
from release.licences import is_allowed, read_page
from release.lock import DEVELOPMENT, packages_by_extra, read_lock, read_project
from tests.unit.test_house import tree as files

ROOT = Path(__file__).parents[2]
AT = "1795000000"


def git(root: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=Release", "-c", "user.email=release@example.org", *words],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip


def release(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "release", *words],
        cwd=root, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": AT},
    )  # fmt: skip


def dated_changelog(root: Path) -> None:
    page = root / "CHANGELOG.md"
    page.write_text(
        f"# Changelog\n\n## [Unreleased]\n\n## [{__version__}] - 2026-11-21\n\n### Added\n\n- All.\n", "utf-8"
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree as a repository of its own, whose version the changelog has."""
    copy = tmp_path_factory.mktemp("release") / "tree"
    for path in files():
        place = copy / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    dated_changelog(copy)
    git(copy, "init", "--quiet")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message", "A release")
    return copy


@pytest.fixture(scope="module")
def released(tree: Path) -> Path:
    done = release(tree)

    assert (done.returncode, done.stderr) == (0, "")
    assert "gpg --armor --detach-sign dist/SHA256SUMS" in done.stdout
    return tree / "dist"


@pytest.fixture(scope="module")
def parts(released: Path) -> dict[str, Any]:
    with zipfile.ZipFile(released / f"queuekeeper-{__version__}-py3-none-any.whl") as wheel:
        document = wheel.read(f"queuekeeper-{__version__}.dist-info/sboms/queuekeeper.cdx.json")
    read: dict[str, Any] = json.loads(document)
    return read


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_build_in_another_place_has_the_same_bytes(released: Path, tmp_path: Path) -> None:
    other = tmp_path / "another place"
    git(tmp_path, "clone", "--quiet", str(released.parent), str(other))
    for number, path in enumerate(sorted(other.rglob("*"))):
        if ".git" not in path.parts and path.is_file():
            path.chmod(path.stat().st_mode & 0o700)
            os.utime(path, (number, number))

    # Modes of files are no change to git where it is told so.
    git(other, "config", "core.fileMode", "false")
    done = release(other)

    assert (done.returncode, done.stderr) == (0, "")
    assert contents(other / "dist") == contents(released)


def test_the_wheel_that_is_built_from_the_source_archive_is_the_one_that_is_handed_out(
    released: Path, tmp_path: Path
) -> None:
    with tarfile.open(released / f"queuekeeper-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=tmp_path / f"queuekeeper-{__version__}", check=True, capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": AT},
    )  # fmt: skip

    name = f"queuekeeper-{__version__}-py3-none-any.whl"
    assert (tmp_path / name).read_bytes() == (released / name).read_bytes()


def test_checksums_are_those_of_the_files_that_are_handed_out(released: Path) -> None:
    lines = (released / "SHA256SUMS").read_text("utf-8").splitlines()

    assert [line.split("  ") for line in lines] == [
        [hashlib.sha256(path.read_bytes()).hexdigest(), path.name]
        for path in sorted(released.iterdir())
        if path.name != "SHA256SUMS"
    ]
    assert len(lines) == 2


def test_a_tree_that_differs_from_its_commit_or_has_no_entry_in_the_changelog_is_not_released(tmp_path: Path) -> None:
    for name in ("release", "pyproject.toml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n", "utf-8")
    git(tmp_path, "init", "--quiet")

    done = release(tmp_path)

    assert done.returncode == 4
    assert "the tree differs from its commit: commit or remove\n" in done.stderr
    assert f"CHANGELOG.md has no section [{__version__}] with its date" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_the_list_of_parts_in_the_wheel_is_a_valid_cyclonedx_document(parts: dict[str, Any]) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(parts)) is None
    assert parts["metadata"]["component"]["purl"] == f"pkg:pypi/queuekeeper@{__version__}"


def test_the_list_of_parts_names_what_is_locked_but_for_development_alone(parts: dict[str, Any]) -> None:
    brought = packages_by_extra(ROOT)
    product = set().union(*(names for extra, names in brought.items() if extra not in DEVELOPMENT))

    listed = {(each["name"], each["version"]): each for each in parts["components"]}

    assert set(listed) == {(each.name, each.version) for each in read_lock(ROOT) if each.name in product}
    assert {name for (name, _), each in listed.items() if each["scope"] == "required"} == brought[""]
    assert "pytest" not in {name for name, _ in listed}


def test_the_list_of_parts_says_what_requires_what(parts: dict[str, Any]) -> None:
    required = {each["ref"]: set(each.get("dependsOn", [])) for each in parts["dependencies"]}
    known = {each["bom-ref"] for each in parts["components"]}
    queuekeeper = f"pkg:pypi/queuekeeper@{__version__}"

    reached, ahead = set(), {queuekeeper}
    while ahead:
        reached |= ahead
        ahead = set().union(*(required[ref] for ref in ahead)) - reached

    assert reached == known | {queuekeeper}


def test_each_part_has_its_licence(parts: dict[str, Any]) -> None:
    known = read_page()
    allowed = frozenset(read_project(ROOT)["tool"]["queuekeeper"]["licences"])

    for each in parts["components"]:
        [choice] = each["licenses"]
        said = choice.get("expression") or choice["license"]["id"]
        assert said == known[each["name"]]
        assert is_allowed(said, allowed)
