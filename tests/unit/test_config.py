"""Folders of the settings are folders; what would silently become one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuekeeper.cli.context import report_folder
from queuekeeper.config import Settings
from queuekeeper.doctor.machine import examine_machine
from queuekeeper.errors import UsageError
from queuekeeper.report.files import ReportKind, write_files
from tests.object_store import hide

pytestmark = pytest.mark.unit

NO_FOLDER = r"an object store \(s3://\), and a folder is needed.*name a folder of this machine"
UNSHARED = r"a user or a connection of Airflow before the @ \(s3://\).*leave it out"
SHOWN = r"an object store \(s3://\) with a password.*s3://CONNECTION@"


@pytest.mark.parametrize(
    ("variable", "words"),
    [("HOME", NO_FOLDER), ("ARCHIVES_DIR", UNSHARED), ("REPORTS_DIR", SHOWN), ("UNDO_DIR", SHOWN)],
)
def test_an_object_store_is_refused_where_a_folder_is_needed_or_its_url_has_a_password(
    variable: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"QUEUEKEEPER_{variable}", "s3://key:geheim@bucket/reports")
    with pytest.raises(UsageError, match=rf"^QUEUEKEEPER_{variable} names {words}") as caught:
        Settings()
    assert "geheim" not in str(caught.value)


def test_reports_may_be_in_an_object_store_whose_url_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", "memory://bucket/reports")
    files = write_files(
        Settings().reports, kind=ReportKind.QUALITY, subject_id="0" * 16, at_ms=0, text="{}", page=lambda *_: "<p>"
    )
    assert str(files.html) == "memory://bucket/reports/quality-0000000000000000-19700101T000000Z.html"
    assert (files.html.read_bytes(), files.json.read_bytes()) == (b"<p>", b"{}")
    assert "reports" not in str(examine_machine(Settings()))


@pytest.mark.parametrize(("kept", "setting"), [("undo files", "undo"), ("archives", "archives")])
def test_what_is_in_an_object_store_takes_no_room_on_this_machine(
    kept: str, setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_disk = Settings(home=tmp_path)
    monkeypatch.setenv(f"QUEUEKEEPER_{setting.upper()}_DIR", "memory://bucket/folder")
    assert str(getattr(Settings(), setting)) == "memory://bucket/folder"
    told = [str(examine_machine(settings)) for settings in (on_disk, Settings(home=tmp_path))]
    assert [kept in each for each in told] == [True, False]


@pytest.mark.parametrize(
    ("variable", "kept"), [("QUEUEKEEPER_REPORTS_DIR", "reports"), ("QUEUEKEEPER_UNDO_DIR", "undo files")]
)
@pytest.mark.parametrize("missing", ["upath", "s3fs"])
def test_an_object_store_that_nothing_opens_is_refused_with_what_to_install(
    variable: str, kept: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(missing, monkeypatch)
    monkeypatch.setenv(variable, "s3://bucket/folder")
    words = (
        rf"^{kept} are in an object store \(s3://\).* universal-pathlib .*{missing}.*install both, or let {variable} "
    )
    with pytest.raises(UsageError, match=words):
        _ = Settings().reports if kept == "reports" else Settings().undo


def test_an_option_takes_no_object_store() -> None:
    with pytest.raises(UsageError, match=r"^s3:// is an object store.*set QUEUEKEEPER_REPORTS_DIR"):
        report_folder(Path("s3://bucket/reports"))


def test_a_file_url_and_a_path_name_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", "file:///srv/our%20reports")
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", "/srv/undo")
    assert (Settings().reports, Settings().undo) == (Path("/srv/our reports"), Path("/srv/undo"))
