from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from queuekeeper import assets

ROOT = Path(__file__).parents[2]
PROBE = "from queuekeeper import assets; print(assets.directory('lua')); print(assets.read('lua', 'probe.lua'))"


@pytest.mark.parametrize("area", assets.AREAS)
def test_a_checkout_serves_its_own_folders(area: str) -> None:
    assert assets.directory(area) == ROOT / area


def test_a_file_is_read_as_text_by_its_path() -> None:
    assert assets.read("sql", "sessions/vendor_schema.sql") == (ROOT / "sql/sessions/vendor_schema.sql").read_text()


def test_an_unknown_area_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        FileNotFoundError, match="unknown asset area 'pictures': one of lua, sql, expectations, policies"
    ):
        assets.directory("pictures")


def test_a_missing_file_is_an_error_that_names_it() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_file"):
        assets.read("sql", "no_such_file.sql")


def package_in(folder: Path) -> Path:
    package = folder / "src" / "queuekeeper"
    package.mkdir(parents=True)
    for name in ("__init__.py", "assets.py", "errors.py", "extras.py"):
        shutil.copy(ROOT / "src" / "queuekeeper" / name, package)
    return package


def probe(package: Path) -> subprocess.CompletedProcess[str]:
    # -S keeps the editable install of this checkout out; the environment keeps PYTHONPATH out.
    return subprocess.run(
        [sys.executable, "-S", "-c", PROBE], cwd="/", env={"PYTHONPATH": str(package.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_installed_package_prefers_the_files_that_came_with_it(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    for folder, text in ((package / "_assets" / "lua", "installed"), (tmp_path / "lua", "stranger")):
        folder.mkdir(parents=True)
        (folder / "probe.lua").write_text(text)

    result = probe(package)

    assert result.stdout.splitlines() == [str(package / "_assets" / "lua"), "installed"], result.stderr


@pytest.mark.parametrize("project", [None, '[project]\nname = "somebody-else"\n'])
def test_a_folder_that_merely_lies_nearby_is_not_taken_for_a_checkout(tmp_path: Path, project: str | None) -> None:
    package = package_in(tmp_path)
    (tmp_path / "lua").mkdir()
    (tmp_path / "lua" / "probe.lua").write_text("stranger")
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)

    result = probe(package)

    assert result.returncode != 0
    assert "FileNotFoundError: lua/ is neither in the installed package" in result.stderr
