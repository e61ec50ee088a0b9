"""Folders of the settings are folders; what would silently become one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuekeeper.config import Settings
from queuekeeper.errors import UsageError

pytestmark = pytest.mark.unit

VARIABLES = [f"QUEUEKEEPER_{name}" for name in ("HOME", "REPORTS_DIR", "UNDO_DIR", "ARCHIVES_DIR")]


@pytest.mark.parametrize("variable", VARIABLES)
def test_an_object_store_is_no_folder(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "s3://key:geheim@bucket/reports")
    with pytest.raises(
        UsageError, match=rf"^{variable} names an object store \(s3://\), and a folder is needed"
    ) as caught:
        Settings()
    assert "name a folder that all machines share" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_file_url_and_a_path_name_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", "file:///srv/our%20reports")
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", "/srv/undo")
    assert (Settings().reports, Settings().undo) == (Path("/srv/our reports"), Path("/srv/undo"))
