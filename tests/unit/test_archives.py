"""An archive counts from its manifest on, on a disk as in an object store; what cannot be read or written is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from queuekeeper.errors import CheckFailed, RefusedError, UsageError
from queuekeeper.maintenance.partitions.manifest import (
    FORMAT,
    ArchivedColumn,
    ArchivedFile,
    Manifest,
    TableContent,
    archive_exists,
    archive_place,
    check_files,
    read_manifest,
    sum_file,
    write_manifest,
)
from queuekeeper.maintenance.partitions.wishes import PartitionWish
from queuekeeper.places import names, remove_folder
from tests.object_store import hide

pytestmark = pytest.mark.unit

CONTENT = TableContent(rows=1, rows_hash="0" * 32, key_first="1", key_last="é")


@pytest.fixture(params=["a disk", "an object store"])
def archives(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of archives, in which is nothing yet."""
    if request.param == "an object store":
        return archive_place(f"memory://{tmp_path.name}/archives")
    (tmp_path / "archives").mkdir()
    return tmp_path / "archives"


def manifest_of(*files: ArchivedFile) -> Manifest:
    return Manifest(
        format=FORMAT,
        system_identifier="1",
        database="d",
        parent="public.log",
        table="public.log_1",
        table_oid=7,
        key="at",
        bounds="DEFAULT",
        content=CONTENT,
        files_hash="",
        columns=(ArchivedColumn(name="at", type_name="bigint", parquet_type="bigint"),),
        files=files,
        ddl=("CREATE TABLE",),
        archived_at_ms=1,
        generated_by="test",
    )


def written(archive: Path, *contents: bytes) -> Manifest:
    """Write files of rows, and return the manifest that belongs to them."""
    files = []
    for number, content in enumerate(contents):
        path = archive / "rows" / f"part-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        size_bytes, sha256 = sum_file(path)
        files.append(ArchivedFile(name=path.name, rows=1, size_bytes=size_bytes, sha256=sha256))
    return manifest_of(*files)


def refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("could not connect to the endpoint")


def test_rows_without_a_manifest_are_no_archive(archives: Path) -> None:
    archive = archives / "log_1-7-00"
    assert not archive_exists(archive)
    manifest = written(archive, b"first", b"second")
    assert not archive_exists(archive)
    with pytest.raises(RefusedError, match=r"^there is no archive in .*: it has no manifest\.json$"):
        read_manifest(archive)
    write_manifest(archive, manifest)
    assert archive_exists(archive)
    assert read_manifest(archive) == manifest
    check_files(archive, manifest)


def test_what_is_unfinished_goes_and_its_neighbours_stay(archives: Path) -> None:
    written(archives / "log_1-7-00", b"first", b"second")
    written(archives / "log_1-7-001", b"other")
    remove_folder(archives / "log_1-7-00", what="archives")
    remove_folder(archives / "log_1-7-00", what="archives")
    assert names(archives, what="archives") == ["log_1-7-001"]
    assert names(archives / "log_1-7-001" / "rows", what="archives") == ["part-0.parquet"]
    assert names(archives / "log_1-7-00", what="archives") == []


def test_a_file_that_is_missing_or_differs_is_named(archives: Path) -> None:
    archive = archives / "log_1-7-00"
    manifest = written(archive, b"first", b"second")
    (archive / "rows" / "part-1.parquet").write_bytes(b"secand")
    with pytest.raises(CheckFailed, match=r"part-1\.parquet differs from the manifest: 6 bytes"):
        check_files(archive, manifest)
    (archive / "rows" / "part-1.parquet").unlink()
    with pytest.raises(CheckFailed, match=r"part-1\.parquet of the archive cannot be read: it is not there"):
        check_files(archive, manifest)


def test_a_manifest_that_is_damaged_or_of_another_release_is_refused(archives: Path) -> None:
    archive = archives / "log_1-7-00"
    write_manifest_anyway(archive, b'{"format": 1')
    with pytest.raises(RefusedError, match=r"manifest\.json cannot be read: "):
        read_manifest(archive)
    write_manifest_anyway(archive, b'{"format": 2, "generated_by": "queuekeeper 9"}')
    with pytest.raises(RefusedError, match=r"has format 2, and this release knows 1: .*queuekeeper 9"):
        read_manifest(archive)


def write_manifest_anyway(archive: Path, content: bytes) -> None:
    archive.mkdir(exist_ok=True)
    (archive / "manifest.json").write_bytes(content)


def test_a_manifest_that_is_not_kept_leaves_no_half_of_it(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archives / "log_1-7-00"
    manifest = written(archive, b"first")
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        patched.setattr(MemoryFileSystem, "open", refuse)
        with pytest.raises(RefusedError, match=r"manifest\.json cannot be written: (No space|could not connect)"):
            write_manifest(archive, manifest)
    assert names(archive, what="archives") == ["rows"]
    assert not archive_exists(archive)


@pytest.mark.parametrize(
    ("does", "act", "words"),
    [
        ("ls", archive_exists, r"^archives cannot be looked for in memory://"),
        ("open", read_manifest, r"manifest\.json cannot be read: "),
    ],
)
def test_a_store_that_refuses_is_told_in_words(
    does: str, act: Callable[[Path], Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_place(f"memory://{tmp_path.name}/archives/one")
    write_manifest(archive, manifest_of())
    monkeypatch.setattr(MemoryFileSystem, does, refuse)
    with pytest.raises(RefusedError, match=rf"{words}.*could not connect to the endpoint; let this user read it"):
        act(archive)


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("s3://bucket/archives", "s3fs"),
        ("s3a://bucket/archives", "s3fs"),
        ("gs://bucket/archives", "gcsfs"),
        ("abfss://container@account.dfs.core.windows.net/archives", "adlfs"),
    ],
)
def test_what_to_install_for_a_store_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(package, monkeypatch)
    with pytest.raises(
        UsageError, match=rf"^archives are in an object store .* universal-pathlib and {package} .*install both"
    ):
        archive_place(url)


@pytest.mark.parametrize("user", ["aws_default", "key:geheim"])
def test_a_place_of_archives_is_named_without_a_user(user: str) -> None:
    with pytest.raises(UsageError, match=r"^the folder of archives names a user or a connection of Airflow") as caught:
        archive_place(f"s3://{user}@bucket/archives")
    assert "geheim" not in str(caught.value)
    with pytest.raises(UsageError, match=r"with a password") as caught:
        archive_place("abfss://container:geheim@account.dfs.core.windows.net/archives")
    assert "geheim" not in str(caught.value)


def test_a_name_that_a_store_takes_for_a_pattern_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    place = archive_place(f"memory://{tmp_path.name}/archives[1]")
    for act in (names, remove_folder):
        with pytest.raises(UsageError, match=r"^archives cannot be in .* taken for a pattern"):
            act(place, what="archives")


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        ("/srv/archives", True),
        ("file:///srv/archives", True),
        ("s3://bucket/archives", True),
        ("abfss://container@account.dfs.core.windows.net/archives", True),
        ("archives", False),
        ("s3:/bucket", False),
        ("s3://bucket/{x}", False),
    ],
)
def test_a_form_takes_a_path_or_a_url(place: str, fits: bool) -> None:
    if fits:
        assert PartitionWish(archive_directory=place).archive_directory == place
    else:
        with pytest.raises((UsageError, ValueError), match="it must be an absolute path or an object store's URL"):
            PartitionWish(archive_directory=place)
