"""Builds the documentation site into ``var/docs/site``: the pages of ``docs/``, and a reference made of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import reference

ROOT = reference.ROOT
PLACE = ROOT / "var" / "docs"
BESIDES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
"""Pages of the site that are no files of ``docs/``."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")

_FOREIGN = re.compile(r"https?://(?!www\.w3\.org/)[\w.-]+/")
"""Where the theme's scripts load parts that no page here has, such as diagrams; ``w3.org`` names formats only."""


def relink(text: str, *, page: Path, places: dict[Path, Path]) -> str:
    """Return a page with links to the site's own pages; what is elsewhere is only named.

    :param page: the file that the text comes from.
    :param places: file -> its place in the site.
    """

    def link(match: re.Match[str]) -> str:
        target = places.get((page.parent / match[2]).resolve())
        if target is None:
            return match[1]
        return f"[{match[1]}]({os.path.relpath(target, places[page].parent)}{match[3] or ''})"

    parts = _FENCE.split(text)
    return "".join(part if at % 2 else _LINK.sub(link, part) for at, part in enumerate(parts))


def gather(folder: Path) -> None:
    """Write all pages of the site, and their images, into a folder."""
    docs = ROOT / "docs"
    places = {
        path: path.relative_to(docs) for path in sorted(docs.rglob("*")) if path.suffix in {".md", ".png", ".json"}
    }
    places |= {ROOT / name: Path(place) for place, name in BESIDES.items()}
    reference.write(folder / "reference")
    for path, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(relink(path.read_text("utf-8"), page=path, places=places), encoding="utf-8")
        else:
            shutil.copyfile(path, target)


def run(place: Path) -> tuple[int, str]:
    """Run Zensical on the configuration in a folder; return its exit code, 1 for a broken link, and its output."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(place / "zensical.toml")]
    done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, _COLOUR.sub("", done.stdout)


def build(place: Path) -> tuple[int, str]:
    """Build the site into ``site`` within a folder; return the exit code and output of Zensical.

    :param place: folder of the build, made anew.
    """
    shutil.rmtree(place, ignore_errors=True)
    gather(place / "pages")
    shutil.copyfile(ROOT / "docs" / "zensical.toml", place / "zensical.toml")
    done = run(place)
    for script in (place / "site").rglob("*.js"):
        script.write_text(_FOREIGN.sub("./", script.read_text("utf-8")), encoding="utf-8")
    return done


if __name__ == "__main__":
    code, said = build(PLACE)
    if code:
        sys.exit(said)
    print(f"the documentation is {PLACE.relative_to(ROOT)}/site/index.html")
