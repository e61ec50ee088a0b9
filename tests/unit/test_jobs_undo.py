"""What is about to be changed is kept before, whole lines only, for its owner alone, and in no other run's file."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from upath import UPath

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs import undo as undo_module
from queuekeeper.jobs.undo import (
    UndoFile,
    read_undo_file,
    remove_old_undo_files,
    undo_file_exists,
    undo_path,
    undo_paths,
    undo_paths_of,
)
from tests.object_store import hide

pytestmark = pytest.mark.unit

HEADER = {"kind": "repair_ttl", "run_id": "1"}
AT_MS = 1_800_000_000_000


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A folder of an object store, in which nothing is yet."""
    return cast(Path, UPath(f"memory://{tmp_path.name}/undo"))


@pytest.fixture(params=["a disk", "an object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, bucket: Path) -> Path:
    return tmp_path / "new" if request.param == "a disk" else bucket


def parts_of(path: Any) -> list[str]:
    return sorted(path.fs.ls(path.path, detail=False))


def test_lines_come_back_in_order_behind_their_header(folder: Path) -> None:
    path = folder / "undo.jsonl"
    assert not undo_file_exists(path)
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}, {"b": "\udcff"}])
        header, lines = read_undo_file(path)
        assert list(lines) == [{"a": 1}, {"b": "\udcff"}], "they are kept while the run goes on"
    assert (header["kind"], header["run_id"]) == ("repair_ttl", "1")
    assert undo_file_exists(path)


def test_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    with UndoFile(tmp_path / "undo.jsonl", HEADER):
        assert stat.S_IMODE((tmp_path / "undo.jsonl").stat().st_mode) == 0o600


def test_file_that_all_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "undo.jsonl"
    with UndoFile(path, HEADER):
        path.chmod(0o644)
    with UndoFile(path, HEADER):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_full_disk_is_said_in_words_and_leaves_whole_lines_behind(tmp_path: Path) -> None:
    path = tmp_path / "undo.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def overfill() -> None:
        with UndoFile(path, HEADER) as undo:
            undo.write([{"a": 1}])
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
            undo.write([{"b": "too long"}])

    try:
        with pytest.raises(RefusedError, match=r"cannot be written: .*; make room"):
            overfill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with UndoFile(path, HEADER) as undo:
        undo.write([{"c": 3}])
    assert list(read_undo_file(path)[1]) == [{"a": 1}, {"c": 3}]


def test_run_that_goes_on_appends_behind_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"half": ')
    with UndoFile(path, HEADER) as undo:
        undo.write([{"b": 2}])
    assert list(read_undo_file(path)[1]) == [{"a": 1}, {"b": 2}]


def cut_in_its_first_line(path: Any, size: int) -> None:
    """Leave of a new undo file so many bytes, as a full disk or a killed server of files does."""
    with UndoFile(path, HEADER):
        pass
    if isinstance(path, UPath):
        (part,) = parts_of(path)
        path.fs.pipe_file(part, path.fs.cat_file(part)[:size])
    else:
        os.truncate(path, size)


@pytest.mark.parametrize("size", [0, 1, 20, -1])
def test_file_that_was_broken_off_in_its_first_line_is_begun_again(folder: Path, size: int) -> None:
    path = folder / "1.a.undo.jsonl"
    line = json.dumps({"format": undo_module.FORMAT, **HEADER}, separators=(",", ":")) + "\n"
    cut_in_its_first_line(path, size % len(line))
    with pytest.raises(UsageError, match=r"run 1 has no undo file in .*: it changed nothing"):
        undo_paths(folder, run_id="1")
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
    header, lines = read_undo_file(path)
    assert (header["run_id"], list(lines)) == ("1", [{"a": 1}])
    assert undo_paths(folder, run_id="1") == [path]


def test_file_of_another_run_that_was_broken_off_in_its_first_line_is_refused(folder: Path) -> None:
    path = folder / "undo.jsonl"
    cut_in_its_first_line(path, 60)
    with pytest.raises(RefusedError, match="is the undo file of something else: name another file"):
        UndoFile(path, {**HEADER, "kind": "cleanup"})


def test_parts_behind_a_broken_first_line_are_kept(bucket: Path) -> None:
    path: Any = bucket / "1.a.undo.jsonl"
    cut_in_its_first_line(path, 20)
    path.fs.pipe_file(f"{path.path}/00000002-1800000000000-00000000.jsonl", b'{"a":1}\n')
    with pytest.raises(RefusedError, match="is the undo file of something else: name another file"):
        UndoFile(path, HEADER)
    assert undo_paths(bucket, run_id="1") == [path]
    assert len(parts_of(path)) == 2


def test_file_of_another_run_is_refused_and_stays_as_it_is(folder: Path) -> None:
    path = folder / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
    with pytest.raises(RefusedError, match="is the undo file of something else: name another file"):
        UndoFile(path, {**HEADER, "run_id": "2"})
    assert list(read_undo_file(path)[1]) == [{"a": 1}]


def test_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"cannot be written: .*; name another"):
        UndoFile(tmp_path, HEADER)


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "no json\n", json.dumps({"format": "queuekeeper-undo-9"}) + "\n"])
def test_other_file_is_no_undo_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match="is no undo file of this release"):
        read_undo_file(path)
    with pytest.raises(UsageError, match=f"cannot be read: {os.strerror(2)}"):
        read_undo_file(tmp_path / "none")


def test_run_that_goes_on_from_another_machine_writes_behind_what_is_there(folder: Path) -> None:
    path = folder / "undo.jsonl"
    for run in range(3):
        with UndoFile(path, HEADER) as undo:
            for step in range(40):
                undo.write([{"run": run, "step": step}])
    assert [(line["run"], line["step"]) for line in read_undo_file(path)[1]] == [
        (run, step) for run in range(3) for step in range(40)
    ]


def test_parts_put_together_are_an_undo_file(bucket: Path, tmp_path: Path) -> None:
    path: Any = bucket / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
        undo.write([{"b": 2}, {"c": 3}])
    assert len(parts_of(path)) == 3
    (tmp_path / "copy").write_bytes(b"".join(path.fs.cat_file(part) for part in parts_of(path)))
    header, lines = read_undo_file(tmp_path / "copy")
    assert (header["run_id"], list(lines)) == ("1", [{"a": 1}, {"b": 2}, {"c": 3}])


def test_writer_that_is_thought_dead_never_overwrites_a_part(bucket: Path) -> None:
    path = bucket / "undo.jsonl"
    with UndoFile(path, HEADER) as dead, UndoFile(path, HEADER) as next_one:
        dead.write([{"a": 1}])
        next_one.write([{"b": 2}])
    assert sorted(map(str, read_undo_file(path)[1])) == ["{'a': 1}", "{'b': 2}"]


def test_half_a_part_is_passed_over(bucket: Path) -> None:
    path: Any = bucket / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
        undo.write([{"b": 2}])
    # A server of files may be left with half of one.
    path.fs.pipe_file(parts_of(path)[1], b'{"a": 1}\n{"half": ')
    assert list(read_undo_file(path)[1]) == [{"a": 1}, {"b": 2}]


def test_store_that_wants_a_folder_first_gets_one(tmp_path: Path) -> None:
    path: Any = UPath(f"local://{tmp_path}") / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
    assert len(list((tmp_path / "undo.jsonl").iterdir())) == 2
    assert list(read_undo_file(path)[1]) == [{"a": 1}]


@pytest.mark.parametrize("does", ["ls", "pipe_file", "cat"])
def test_store_that_refuses_is_told_in_words(does: str, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bucket / "undo.jsonl"
    if does == "cat":
        with UndoFile(path, HEADER):
            pass

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("could not connect to the endpoint")

    monkeypatch.setattr(MemoryFileSystem, does, refuse)
    with pytest.raises(
        RefusedError, match=r"undo.*: could not connect to the endpoint; .*name another place by QUEUEKEEPER_UNDO_DIR$"
    ):
        UndoFile(path, HEADER)


def test_store_without_its_driver_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide("s3fs", monkeypatch)
    path = cast(Path, UPath("s3://bucket/undo/undo.jsonl"))
    with pytest.raises(RefusedError, match=r"cannot be opened: Install s3fs .*; install its driver, in Airflow its"):
        UndoFile(path, HEADER)


def test_name_that_a_store_takes_for_a_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match=r"would be taken for a pattern: name another"):
        undo_paths(cast(Path, UPath("memory://bucket/undo[1]")), run_id="1")


def test_files_are_found_by_run_and_by_kind(folder: Path) -> None:
    for run, kind in (("1", "repair_ttl"), ("2", "cleanup"), ("11", "cleanup")):
        for shard in ("b", "a"):
            with UndoFile(undo_path(folder, run_id=run, shard=shard), {"kind": kind}):
                pass
    found = undo_paths(folder, run_id="1")
    assert [path.name for path in found] == ["1.a.undo.jsonl", "1.b.undo.jsonl"]
    assert found[0] == undo_path(folder, run_id="1", shard="a")
    assert found[0] in undo_paths_of(found[0].parent, kind="repair_ttl")
    assert [path.name[:2] for path in undo_paths_of(folder, kind="cleanup")] == ["11", "11", "2.", "2."]


def test_file_that_was_broken_off_in_its_first_line_goes_when_it_is_old(folder: Path) -> None:
    with UndoFile(undo_path(folder, run_id="1", shard="a"), {"kind": "cleanup"}):
        pass
    cut = [undo_path(folder, run_id=f"{size}", shard="a") for size in (0, 20, 60)]
    for path, size in zip(cut, (0, 20, 60), strict=True):
        cut_in_its_first_line(path, size)

    def removed(now_ms: int) -> int:
        return remove_old_undo_files(folder, kind="repair_ttl", days=1, now_ms=now_ms)

    assert removed(0) == 0
    assert removed(2**53) == 3
    assert [path.name for path in undo_paths_of(folder, kind="cleanup")] == ["1.a.undo.jsonl"]
    assert [path for path in cut if undo_file_exists(path)] == []


def test_only_old_parts_go_and_the_first_of_them_last(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(AT_MS, AT_MS + 100))
    monkeypatch.setattr(undo_module, "system_clock", lambda: next(now))
    path: Any = undo_path(bucket, run_id="1", shard="a")
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
        undo.write([{"b": 2}])
    with UndoFile(undo_path(bucket, run_id="2", shard="a"), {"kind": "cleanup"}):
        pass

    def removed(now_ms: int) -> int:
        return remove_old_undo_files(bucket, kind="repair_ttl", days=1, now_ms=now_ms)

    # The last part was written two milliseconds after the first.
    assert removed(AT_MS + 86_400_002) == 0
    remove = MemoryFileSystem.rm

    def broken_off(store: Any, path: Any, **options: Any) -> None:
        remove(store, path, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "rm", broken_off)
        with pytest.raises(KeyboardInterrupt):
            removed(AT_MS + 86_400_003)
    assert read_undo_file(path)[0]["kind"] == "repair_ttl"
    assert removed(AT_MS + 86_400_003) == 1
    assert [each.name for each in bucket.iterdir()] == ["2.a.undo.jsonl"]
    assert removed(AT_MS + 86_400_003) == 0
