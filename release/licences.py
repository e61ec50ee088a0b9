"""Keeps docs/licences.md: under which licence each locked package is, and whether it is one of the allowed ones.

What a package's metadata says in words of SPDX is taken from there. What it leaves open ("BSD License") somebody looks
up in the package's files, and writes into the page; it stays.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing

from release.lock import DEVELOPMENT, installable, packages_by_extra, read_project

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/licences.md")
SPDX = get_spdx_licensing()
CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
    "License :: OSI Approved :: The Unlicense (Unlicense)": "Unlicense",
}
UNKNOWN = "unknown"
HEAD = """# Licences of what Queuekeeper comes with

Queuekeeper itself has no licence yet. Without one, copyright law gives nobody the right to use, change or hand on its
files: ask its authors first. This page is about what comes with it.

The wheel holds Queuekeeper alone; installing it brings packages of others, more of them with each extra. These are the
locked ones (`requirements.lock`), each with its licence as an [SPDX expression](https://spdx.org/licenses/). The same
list, without what is for development, travels in the wheel in the form of CycloneDX, as
`queuekeeper-VERSION.dist-info/sboms/queuekeeper.cdx.json` ([PEP 770](https://peps.python.org/pep-0770/)).

`make licences` writes this page, and fails when a licence is not among `licences` of `[tool.queuekeeper]` in
`pyproject.toml`; a test does the same. Packages that only Windows installs are left out: Queuekeeper does not run
there.

| package | licence | comes with |
| --- | --- | --- |
"""


def declared(package: Distribution) -> str | None:
    """Return the licence that a package's metadata says in words of SPDX, or without doubt."""
    metadata = package.metadata
    for field in ("License-Expression", "License"):
        # Where the backport importlib_metadata has been imported, what is absent raises KeyError.
        said = str(metadata[field] or "").strip() if field in metadata else ""
        if said and "\n" not in said and not SPDX.validate(said).errors:
            return said
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    return CLASSIFIERS.get(classifiers[0]) if len(classifiers) == 1 else None


def read_page(root: Path = ROOT) -> dict[str, str]:
    """Return the licences that the page names."""
    text = (root / PAGE).read_text("utf-8")
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+?) \| .+ \|$", text, re.MULTILINE))


def licences(root: Path = ROOT) -> dict[str, str]:
    """Return the licence of each package: that of its metadata, else that of the page."""
    known = read_page(root)
    found = {}
    for name in sorted({each.name for each in installable(root)}):
        try:
            said = declared(distribution(name))
        except PackageNotFoundError:
            said = None
        found[name] = said or known.get(name, UNKNOWN)
    return found


def page(root: Path = ROOT) -> str:
    """Return what the page shall say."""
    brought = packages_by_extra(root)
    rows = []
    for name, expression in licences(root).items():
        extras = [extra for extra, names in brought.items() if name in names and extra not in DEVELOPMENT]
        where = "every installation" if "" in extras else ", ".join(extras) or "development"
        rows.append(f"| {name} | {expression} | {where} |\n")
    return HEAD + "".join(rows)


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Tell whether a licence is an allowed one, or leaves the choice of one."""

    def judge(part: LicenseExpression) -> bool:
        if isinstance(part, SPDX.AND):
            return all(map(judge, part.args))
        if isinstance(part, SPDX.OR):
            return any(map(judge, part.args))
        return str(part) in allowed

    try:
        return judge(SPDX.parse(expression, validate=True))
    except ExpressionError:
        return False


def refused(root: Path = ROOT) -> dict[str, str]:
    """Return the packages whose licence is not allowed."""
    allowed = frozenset(read_project(root)["tool"]["queuekeeper"]["licences"])
    return {name: each for name, each in licences(root).items() if not is_allowed(each, allowed)}


def main() -> int:
    """Write the page, and say which licences are not allowed."""
    (ROOT / PAGE).write_text(page(), "utf-8")
    wrong = refused()
    for name, expression in wrong.items():
        print(
            f"{name}: licence {expression} is not allowed: look it up and write its SPDX expression into {PAGE}, "
            "or allow it in pyproject.toml, or do without the package",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
