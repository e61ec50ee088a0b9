"""Which files a reload watches, while editors and tools change them."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from queuekeeper.service.processes import Processes

pytestmark = pytest.mark.unit


def test_files_and_folders_that_come_and_go_meanwhile_end_no_reload(tmp_path: Path) -> None:
    (tmp_path / "billing.py").touch()
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for number in range(20):
                folder = tmp_path / f"package_{number}" / "inner"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "bill.py").touch()
            for number in range(20):
                shutil.rmtree(tmp_path / f"package_{number}", ignore_errors=True)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        processes = Processes([], count=1, watched=[tmp_path])
        for _ in range(200):
            assert tmp_path / "billing.py" in processes._state()
    finally:
        over.set()
        thread.join()


def test_files_of_environments_and_hidden_folders_are_not_watched(tmp_path: Path) -> None:
    for name in ("billing", "environment/lib", ".venv/lib", ".git"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "bill.py").touch()
    (tmp_path / "environment" / "pyvenv.cfg").touch()

    assert list(Processes([], count=1, watched=[tmp_path])._state()) == [tmp_path / "billing" / "bill.py"]
