"""Rules of the tree that no linter knows."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import __version__, schema_migrations
from tests.conftest import LONGEST_FIRST, TOGETHER

ROOT = Path(__file__).parents[2]
CODE = ("benchmarks", "dags", "plugins", "release", "scripts", "spark_jobs", "src", "tests")
BINARY = {".gif", ".ico", ".jpg", ".jpeg", ".png", ".rdb", ".webp", ".woff2"}

# Written in pieces: this file is part of the tree that it reads.
FORBIDDEN = {
    "a folder of one machine": r"(?<![\w.$}/])/(?:" + "work|root|home/[a-z]" + r")/\w",
    "a package registry": r"(?:py" + r"pi|pythonhosted|npmjs|" + r"deb\.debian|security\.debian)\.(?:org|com)",
    "a tracker's shorthand": r"(?i:\bissue" + r"s?\s+[A-Z0-9]\b)",
    "an unfinished place": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a test that does not run": r"\b(?:pytest\.mark\.(?:skip|x" + r"fail)|pytest\.x" + r"fail)\b",
    "an editor's conflict": r"^(?:<{7}|>{7}) ",
}


@cache
def tree() -> tuple[Path, ...]:
    """Files that are, or after `git add` would be, part of the project."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0 and (ROOT / ".git").exists():
        found = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        outside = {".git", ".venv", "var", "dist", "__pycache__"}
        found = [path for path in ROOT.rglob("*") if not outside & set(path.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in found if path.is_file()))


def under(folder: str, pattern: str) -> list[Path]:
    return [path for path in tree() if (ROOT / folder) in path.parents and path.match(pattern)]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def texts() -> Iterator[tuple[Path, str]]:
    for path in tree():
        if path.suffix not in BINARY:
            yield path, path.read_text("utf-8")


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)

    found = [
        f"{shown(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in texts()
        for match in pattern.finditer(text)
    ]

    assert found == []


def test_text_files_end_with_one_line_feed_and_have_no_carriage_returns() -> None:
    wrong = [shown(path) for path, text in texts() if text and ("\r" in text or not text.endswith("\n"))]

    assert wrong == []


def test_every_module_says_in_its_docstring_what_it_is_for() -> None:
    docstrings = {shown(path): ast.get_docstring(parsed(path)) for path in under("src", "*.py")}

    assert docstrings
    assert {
        name: docstring
        for name, docstring in docstrings.items()
        if not docstring or not docstring.splitlines()[0].endswith((".", ":"))
    } == {}


def test_every_docstring_of_a_value_stands_below_one() -> None:
    orphans = [
        f"{shown(path)}:{here.lineno}"
        for path in under("src", "*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Module | ast.ClassDef)
        for before, here in itertools.pairwise(node.body)
        if isinstance(here, ast.Expr)
        and isinstance(here.value, ast.Constant)
        and isinstance(here.value.value, str)
        and not isinstance(before, ast.Assign | ast.AnnAssign)
    ]

    assert orphans == []


@pytest.mark.parametrize("folder", CODE)
def test_python_files_postpone_annotations(folder: str) -> None:
    missing = [
        shown(path)
        for path in under(folder, "*.py")
        if (body := _code_of(path)) and "from __future__ import annotations" not in body
    ]

    assert missing == []


def _code_of(path: Path) -> str:
    """Return a file's text; nothing for a package's front page, which only gathers names."""
    text = path.read_text("utf-8")
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign) for node in parsed(path).body)
    return text if defines else ""


def test_every_folder_with_python_is_type_checked() -> None:
    with_python = {folder for folder in CODE if under(folder, "*.py")}

    assert with_python <= set(project()["tool"]["mypy"]["files"])


def test_every_test_folder_has_its_marker() -> None:
    lanes = {path.relative_to(ROOT / "tests").parts[0] for path in under("tests", "test_*.py")}
    markers = {line.split(":")[0] for line in project()["tool"]["pytest"]["ini_options"]["markers"]}

    assert lanes <= markers
    unmarked = [
        lane
        for lane in sorted(lanes)
        if f"mark.{lane}" not in "".join(path.read_text("utf-8") for path in under(f"tests/{lane}", "*.py"))
    ]
    assert unmarked == []


def test_files_that_the_order_of_tests_names_exist() -> None:
    named = [*LONGEST_FIRST, *itertools.chain(*TOGETHER.values())]

    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_every_dag_has_a_runbook_and_its_file_is_its_name() -> None:
    dags = {path.stem for path in under("dags", "*.py")}

    assert dags - {path.stem for path in under("docs/runbooks", "*.md")} == set()
    for path in under("dags", "*.py"):
        source = path.read_text("utf-8")
        assert "**of_file(__file__, __doc__)" in source or f'"{path.stem}"' in source, shown(path)
        assert "### If it fails" in (ast.get_docstring(ast.parse(source)) or ""), shown(path)


def test_every_spark_job_is_thin() -> None:
    for path in under("spark_jobs", "*.py"):
        functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
        assert len(functions) <= 3, f"{shown(path)}: logic belongs in the package"


def test_a_lua_script_declares_itself_and_an_include_does_not() -> None:
    first = {path: path.read_text("utf-8").splitlines()[0] for path in under("lua", "*.lua")}
    includes = {path for path in first if path.parent.name == "includes"}

    # An include is no script of its own.
    assert [shown(path) for path in includes if first[path].startswith("#!")] == []
    assert {
        shown(path): line
        for path, line in first.items()
        if path not in includes and not re.fullmatch(r"#!lua(?: flags=[a-z-]+(?:,[a-z-]+)*)?", line)
    } == {}


def test_migrations_are_numbered_without_a_gap() -> None:
    names = [each.name for each in schema_migrations.migrations()]

    assert {path.name for path in under("sql/migrations", "*.sql")} <= set(names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert all(re.fullmatch(r"\d{4}(?:_[a-z0-9]+)+\.sql", name) for name in names)


def test_decisions_are_numbered_without_a_gap_and_say_where_they_stand() -> None:
    paths = under("docs/adr", "*.md")

    assert [path.name[:4] for path in paths] == [f"{number:04}" for number in range(1, len(paths) + 1)]
    for path in paths:
        lines = path.read_text("utf-8").splitlines()
        assert re.fullmatch(rf"# {path.name[:4]} \S.*", lines[0]), shown(path)
        assert any(line.startswith("Status: ") for line in lines[:5]), shown(path)


def test_the_changelog_has_a_section_for_this_version_or_what_comes_next() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)

    assert headings
    assert headings[0] in ("Unreleased", __version__)
    assert len(headings) == len(set(headings))


def test_the_version_stands_once_more_in_the_project_file_and_is_the_same() -> None:
    assert project()["project"]["version"] == __version__


LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)(?: \"[^\"]*\")?\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def anchor(heading: str) -> str:
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return text.replace(" ", "-")


def pages() -> list[Path]:
    return [path for path in tree() if path.suffix == ".md"]


def test_links_of_pages_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for path in pages():
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for match in LINK.finditer(text):
            target = match[1] or match[2]
            if re.match(r"[a-z]+:", target):
                continue
            name, _, fragment = target.partition("#")
            wanted = (path.parent / name).resolve() if name else path
            if not wanted.exists() or not wanted.is_relative_to(ROOT):
                broken.append(f"{shown(path)}: {target}")
            elif fragment and wanted.suffix == ".md":
                headings = re.findall(r"^#+ (.+)$", wanted.read_text("utf-8"), re.MULTILINE)
                if fragment not in map(anchor, headings):
                    broken.append(f"{shown(path)}: {target}")

    assert pages()
    assert broken == []


TEST_NAME = re.compile(r"`(tests/[\w/.]+\.py)(?:::(test_\w+))?`")
REPOSITORY_PATH = re.compile(
    r"`((?:benchmarks|dags|docs|expectations|lua|plugins|scripts|spark_jobs|sql|src|tests)/[\w./-]+)`"
)


def test_files_and_tests_that_pages_name_exist() -> None:
    missing = []
    for path in pages():
        text = path.read_text("utf-8")
        missing += [f"{shown(path)}: {name}" for name in REPOSITORY_PATH.findall(text) if not (ROOT / name).exists()]
        for file, function in TEST_NAME.findall(text):
            if function and f"def {function}(" not in (ROOT / file).read_text("utf-8"):
                missing.append(f"{shown(path)}: {file}::{function}")

    assert missing == []


WALKS = {
    "`lua/sessions/save_messages.lua`": 8,
    "`fanout/consumption.py`": 8,
    "`events/handlers.py`": 7,
    "`maintenance/cleanup/sweep.py`": 6,
    "`dags/session_repair.py`": 6,
    "`jobs/report.html.j2`": 6,
}
"""What a walk of ARCHITECTURE ends with, and how many files are too many for it."""

OTHER_WALK = 8
LINKED = {
    "`quality/report/report.html.j2`",
    "`airflow/plugin/pages.py`",
    "`dags/session_repair.py`",
    "`maintenance/cleanup/expired_references.py`",
    "`maintenance/remedies/job.py`",
}
"""What a walk reaches by a link of a page, or by a name in the registry of jobs, and by no import."""

PACKAGE = ROOT / "src" / "queuekeeper"


def walks() -> list[list[str]]:
    """Return the files of each walk: of a numbered list, and of a line of arrows."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    lists = re.findall(r"^1\. `(?:.+\n)+", text, re.MULTILINE)
    found = [re.findall(r"^\d+\. (`[^`]+`)", each, re.MULTILINE) for each in lists]
    step = r"`[\w/.]+\.(?:py|lua|sql|j2)`"
    chains = re.finditer(rf"{step}(?:\s\([^)]*\))?(?:\s→\s{step}(?:\s\([^)]*\))?)+", text)
    return found + [re.findall(step, re.sub(r"\([^)]*\)", "", chain[0])) for chain in chains]


def file_of(name: str) -> Path:
    """Return the file that a page calls by its path in the tree, or in the package."""
    path = ROOT / name.strip("`")
    return path if path.exists() else PACKAGE / name.strip("`")


def modules_of(path: Path) -> set[Path]:
    """Return the modules that a file imports, and those that a package's front page gathers for it."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        for name in names:
            place = ROOT / "src" / name.replace(".", "/")
            front = place / "__init__.py"
            found.add(front if front.exists() else place.with_suffix(".py"))
    return found.union(*(modules_of(each) for each in found if each.name == "__init__.py" and each.parent != PACKAGE))


def knows(one: Path, other: Path) -> bool:
    """Tell whether a module imports another, or calls a script, function or template by its name."""
    if one.suffix != ".py":
        return False
    if other.suffix == ".py":
        return other in modules_of(one)
    name = other.name if other.suffix == ".j2" else other.stem
    return re.search(rf"\.{name}\b|\"{name}\"", one.read_text("utf-8")) is not None


def kept_by(path: Path) -> set[str]:
    """Return the keys of a script, or the tables of a function and of those that it calls."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return set(re.findall(r"[a-z_]{4,}", text[text.index("\nKEYS\n") : text.index("\nARGV\n")]))
    called = [each for each in under("sql/events/functions", "*.sql") if f" {each.stem}(" in text]
    tables = {each.stem for each in under("sql/events/tables", "*.sql")}
    texts = [re.sub(r"--.*", "", each.read_text("utf-8")) for each in (path, *called)]
    return tables & set(re.findall(r"\w+", " ".join(texts)))


def test_files_of_every_walk_know_one_another_and_are_few() -> None:
    assert sorted(walk[-1] for walk in walks() if walk[-1] in WALKS) == sorted(WALKS)
    for walk in walks():
        files = [file_of(name) for name in walk]
        assert [shown(path) for path in files if not path.is_file()] == []
        assert len(walk) < WALKS.get(walk[-1], OTHER_WALK), walk
        for at, (last, path) in enumerate(itertools.pairwise(files), start=1):
            is_known = any(knows(each, path) or knows(path, each) for each in files[:at])
            is_shared = {last.suffix, path.suffix} in ({".lua"}, {".sql"}) and kept_by(last) & kept_by(path)
            assert is_known or is_shared or walk[at] in LINKED, f"{walk}: nothing leads to {walk[at]}"


def test_a_value_of_a_form_is_named_by_its_declaration_and_by_what_acts_on_it_alone() -> None:
    folders = ("src", "dags", "lua", "spark_jobs")
    naming = [path for folder in folders for path in under(folder, "*") if path.suffix in {".py", ".lua", ".j2"}]
    named = {shown(path) for path in naming if re.search(r"\bidle_days\b", path.read_text("utf-8"))}

    cleanup = "src/queuekeeper/maintenance/cleanup"
    assert named == {f"{cleanup}/model.py", f"{cleanup}/sweep.py"}


def test_the_job_that_shows_how_to_add_one_is_quoted_whole_and_has_thirty_lines() -> None:
    sample = (ROOT / "tests" / "sample_job.py").read_text("utf-8")

    assert f"```python\n{sample}```" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert len([line for line in sample.splitlines() if line]) <= 30


def test_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *under("docs", "*.md")]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lanes = {line.split(":")[0] for line in project()["tool"]["pytest"]["ini_options"]["markers"]}
    targets |= {f"test-{lane}" for lane in lanes}

    named = {
        (shown(page), target)
        for page in pages
        for target in re.findall(r"(?:`|^)(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)", page.read_text("utf-8"), re.MULTILINE)
    }

    assert {(page, target) for page, target in named if target not in targets} == set()


def test_the_readme_fits_two_screens() -> None:
    text = (ROOT / "README.md").read_text("utf-8")

    assert len(text.splitlines()) <= 100
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1


def test_continuous_integration_runs_the_test_command_and_is_executable() -> None:
    script = ROOT / ".ci" / "run"

    assert script.stat().st_mode & 0o111
    assert re.fullmatch(r"exec timeout \S+ \S+ \d+m make test", script.read_text("utf-8").splitlines()[-1])


@pytest.mark.parametrize(
    "stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.relative_to(PACKAGE).as_posix()
)
def test_name_that_is_loaded_when_it_is_asked_for_is_not_that_of_a_module_beside_it(stub: Path) -> None:
    """Python would give the module instead, once anybody has imported that."""
    names = re.findall(r"\bas (\w+)", stub.read_text("utf-8"))
    modules = {path.stem for path in stub.parent.iterdir() if path.suffix == ".py" or path.is_dir()}

    assert names
    assert set(names) & modules == set()


def test_layers_of_the_page_are_those_that_the_linter_checks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = [each for each in project["tool"]["importlinter"]["contracts"] if each["id"] == "layers"]
    [picture] = re.findall(
        r"^Downwards only\..*?^```\n(.*?)^```$",
        (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    shown = re.sub(r"none .*$", "", picture, flags=re.MULTILINE).split()

    checked = {name for layer in contract["layers"] for name in re.findall(r"\w+", layer)}
    assert checked == {name for name in shown if not name.endswith("/")}
    assert len(shown) == len(set(shown))
