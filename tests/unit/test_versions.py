"""The changelog has the form of Keep a Changelog; what a version promises, and which one gets mends, is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from queuekeeper import __version__

ROOT = Path(__file__).parents[2]
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def defects(page: str) -> list[str]:
    """Return in what a changelog departs from the form of Keep a Changelog 1.1.0 and SemVer."""
    found = []
    if not re.match(r"# Changelog\n\n(?:.+\n)*.*https://keepachangelog\.com/en/1\.1\.0/", page):
        found.append("it does not begin by saying what it is")
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    if heads[:1] != ["[Unreleased]"]:
        found.append("the first section is not [Unreleased]")
    numbers, days = [], []
    for head in heads[1:]:
        release = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})(?: \[YANKED\])?", head)
        if release is None:
            found.append(f"not [VERSION] - YYYY-MM-DD: {head}")
        else:
            numbers.append(Version(release[1]))
            days.append(release[2])
    if numbers != sorted(set(numbers), reverse=True) or days != sorted(days, reverse=True):
        found.append("releases do not stand newest first")
    for head, section in zip(heads, re.split(r"^## .*\n", page, flags=re.MULTILINE)[1:], strict=True):
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        found += [f"{head}: not a kind of change: {kind}" for kind in kinds if kind not in KINDS]
        found += [f"{head}: twice: {kind}" for kind in KINDS if kinds.count(kind) > 1]
        for kind, entries in zip(kinds, re.split(r"^### .*\n", section, flags=re.MULTILINE)[1:], strict=True):
            if not entries.startswith("\n- "):
                found.append(f"{head}: {kind}: no list")
            # An entry goes on in lines that are indented, and those of a list in it as well.
            found += [
                f"{head}: {kind}: neither entry nor part of one: {line}"
                for line in entries.splitlines()
                if line and not line.startswith(("- ", "  "))
            ]
    return found


WELL = """# Changelog

The format follows [Keep a Changelog](https://keepachangelog.com/en/1.1.0/).

## [Unreleased]

## [0.2.0] - 2026-12-01

### Added

- One thing,
  in two lines.

## [0.1.0] - 2026-11-27

### Fixed

- Another.
"""


def test_the_changelog_keeps_its_form() -> None:
    assert defects((ROOT / "CHANGELOG.md").read_text("utf-8")) == []


def test_a_well_formed_changelog_is_found_to_be_so() -> None:
    assert defects(WELL) == []


@pytest.mark.parametrize(
    ("well", "ill", "said"),
    [
        ("## [Unreleased]\n\n", "", "the first section is not [Unreleased]"),
        ("https://keepachangelog.com/en/1.1.0/", "elsewhere", "it does not begin by saying what it is"),
        ("[0.2.0] - 2026-12-01", "[0.2.0]", "not [VERSION] - YYYY-MM-DD: [0.2.0]"),
        ("[0.2.0] - 2026-12-01", "0.2 - 2026-12-01", "not [VERSION] - YYYY-MM-DD: 0.2 - 2026-12-01"),
        ("[0.2.0]", "[0.0.9]", "releases do not stand newest first"),
        ("2026-12-01", "2026-10-01", "releases do not stand newest first"),
        ("### Added", "### New", "[0.2.0] - 2026-12-01: not a kind of change: New"),
        ("- Another.\n", "- Another.\n\n### Fixed\n\n- More.\n", "[0.1.0] - 2026-11-27: twice: Fixed"),
        ("- Another.", "Another.", "[0.1.0] - 2026-11-27: Fixed: no list"),
        ("- One thing,\n", "- One thing,\nand\n", "[0.2.0] - 2026-12-01: Added: neither entry nor part of one: and"),
    ],
)
def test_a_departure_from_the_form_is_found(well: str, ill: str, said: str) -> None:
    assert said in defects(WELL.replace(well, ill))


def test_every_front_page_is_named_among_what_is_public() -> None:
    page = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
    [public] = re.findall(r"^\| Python \| (.*?) \|", page, re.MULTILINE)
    fronts = {f"queuekeeper.{path.parent.name}" for path in (ROOT / "src" / "queuekeeper").glob("*/__init__.pyi")}

    named = set(re.findall(r"`(queuekeeper\.[\w.]+)`", public))

    assert fronts
    assert fronts - named == set()
    for name in named:
        place = ROOT / "src" / name.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_the_security_policy_names_this_version_and_no_address_but_the_repository() -> None:
    policy = (ROOT / "SECURITY.md").read_text("utf-8")
    [mended] = re.findall(r"^\| (\d+\.\d+)\.x.* \| yes \|$", policy, re.MULTILINE)

    assert __version__.startswith(f"{mended}.")
    assert re.findall(r"\S+@\S+|https?://\S+", policy) == []
