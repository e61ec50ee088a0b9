from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from queuekeeper import __version__, assets
from queuekeeper.jobs.registry import kinds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def kept_in_git(folder: str) -> set[Path]:
    """Files that are, or after `git add` would be, part of the project; in an export without history, all files."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode == 0 and (ROOT / ".git").exists():
        found = {ROOT / name for name in listing.stdout.split("\0") if name}
    else:
        found = {path for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts}
    return {path for path in found if path.is_file()}


@pytest.mark.parametrize("area", assets.AREAS)
def test_every_asset_travels_in_the_wheel_and_nothing_else(members: set[str], area: str) -> None:
    expected = {f"queuekeeper/_assets/{path.relative_to(ROOT).as_posix()}" for path in kept_in_git(area)}

    assert expected
    assert {name for name in members if name.startswith(f"queuekeeper/_assets/{area}/")} == expected


def test_the_wheel_holds_the_package_its_assets_and_nothing_else(members: set[str]) -> None:
    source = ROOT / "src"
    code = {path.relative_to(source).as_posix() for path in kept_in_git("src/queuekeeper")}

    rest = {name for name in members if not name.startswith("queuekeeper/_assets/")} - code

    assert {name.split("/")[0] for name in rest} == {f"queuekeeper-{__version__}.dist-info"}
    assert code <= members
    assert "queuekeeper/py.typed" in members


def test_an_installed_wheel_loads_its_scripts_statements_and_suites(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-deps", "--target", str(tmp_path), str(wheel)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # The checkout is installed in this environment by a path file: here the wheel comes first, and the checkout goes.
    code = f"""
import sys
sys.path = [{str(tmp_path)!r}] + [path for path in sys.path if not path.startswith({str(ROOT / "src")!r})]
import queuekeeper
from queuekeeper import assets, lua, postgres, sql_statements
from queuekeeper.events import schema
from queuekeeper.quality.judge import suites
assert queuekeeper.__file__.startswith({str(tmp_path)!r}), queuekeeper.__file__
print(len(lua.load("sessions/import_session").sha1))
print(len(sql_statements.statement("queuekeeper/queries/load_plan")) > 0)
print("CREATE FUNCTION pgmb.poll_for_events()" in schema.script())
print(suites.load("migration_ledger").name)
print(assets.directory("lua"))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.stdout.splitlines() == [
        "40",
        "True",
        "True",
        "migration_ledger",
        str(tmp_path / "queuekeeper" / "_assets" / "lua"),
    ], result.stderr


def test_an_installed_wheel_knows_every_kind_of_run_also_without_what_draws_pages(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-deps", "--target", str(tmp_path), str(wheel)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # Another distribution that names a job of ours changes nothing.
    facts = tmp_path / "later" / "another-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text("[queuekeeper.jobs]\nfanout_repair = nowhere:Nothing\n", "utf-8")
    # Neither the checkout nor what is installed of it says what there is.
    code = f"""
import sys
sys.path = [path for path in sys.path if not path.startswith({str(ROOT / "src")!r})]
sys.path[:0] = {[str(tmp_path), str(tmp_path / "later")]!r}
sys.modules["jinja2"] = sys.modules["vl_convert"] = None
from queuekeeper import assets
from queuekeeper.jobs.registry import kind_of, kinds
assert assets.checkout() is None
for kind in kinds():
    print(kind_of(kind).name)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.stdout.split() == [each for each in kinds() if each != "rename_keys"], result.stderr


def test_the_wheel_declares_the_command_and_the_version_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"queuekeeper-{__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()

    assert f"\nVersion: {__version__}\n" in metadata
    assert "queuekeeper = queuekeeper.__main__:main" in entry_points
