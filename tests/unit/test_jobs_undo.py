"""What is about to be changed is on disk before, whole lines only, for its owner alone, and in no other run's file."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

import pytest

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.undo import UndoFile, read_undo_file

pytestmark = pytest.mark.unit

HEADER = {"kind": "repair_ttl", "run_id": "1"}


def test_lines_come_back_in_order_behind_their_header(tmp_path: Path) -> None:
    path = tmp_path / "new" / "undo.jsonl"
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}, {"b": "\udcff"}])
        header, lines = read_undo_file(path)
        assert list(lines) == [{"a": 1}, {"b": "\udcff"}], "they are on disk while the run goes on"
    assert (header["kind"], header["run_id"]) == ("repair_ttl", "1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


def test_file_of_another_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "undo.jsonl"
    with UndoFile(path, HEADER):
        pass
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="is the undo file of something else: name another file"):
        UndoFile(path, {**HEADER, "run_id": "2"})
    assert path.read_bytes() == before


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
