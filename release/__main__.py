"""Builds what a release hands out: source, wheel and their checksums, the same bytes from the same commit."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from release.licences import ROOT
from release.lock import read_project

SUMS = "SHA256SUMS"


def build(root: Path, folder: Path, *, at: int) -> list[Path]:
    """Build source and wheel.

    :param at: Seconds since 1970 that the files in both carry.
    """
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=root, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": str(at)},
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return sorted(path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".whl")))


def checksums(files: list[Path]) -> str:
    """Return what `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def reasons_against(root: Path, version: str) -> list[str]:
    """Return what keeps a tree from being released."""
    found = []
    if changed := _git(root, "status", "--porcelain"):
        found.append(f"the tree differs from its commit: commit or remove\n{changed}")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section [{version}] with its date: turn [Unreleased] into it")
    return found


def main(root: Path = ROOT) -> int:
    """Build into dist/, or say why not."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--trial", action="store_true", help="build what is not fit for a release, too, and say so")
    trial = parser.parse_args().trial
    version = read_project(root)["project"]["version"]
    reasons = reasons_against(root, version)
    for reason in reasons:
        print(f"not fit for a release: {reason}", file=sys.stderr)
    if reasons and not trial:
        print("make release ARGS=--trial builds it all the same, to look at", file=sys.stderr)
        return 4

    folder = root / "dist"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    files = build(root, folder, at=int(os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct")))
    (folder / SUMS).write_text(checksums(files), "utf-8")
    print((folder / SUMS).read_text("utf-8"), end="")
    print(f"sign:   gpg --armor --detach-sign {folder.name}/{SUMS}")
    print(f"verify: gpg --verify {SUMS}.asc {SUMS} && sha256sum --check {SUMS}")
    return 0


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
