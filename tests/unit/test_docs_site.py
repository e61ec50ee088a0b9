"""The documentation site is built without a broken link, leads to every page, and loads nothing from another host."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from scripts import build_docs
from scripts.build_docs import ROOT, relink
from tests.pictures import OF_DOCUMENTS, PICTURE_PX, png_size

pytestmark = pytest.mark.unit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("form", "action")}
"""Elements whose address a browser asks for by itself."""


class Page(HTMLParser):
    """Addresses and names of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif (tag, name) in LOADS and value:
                self.loads.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


def test_pictures_are_those_that_the_walk_of_the_pages_takes_and_fit_on_a_screen() -> None:
    """``make pictures`` takes them."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+\.png)\)", page.read_text("utf-8"))}
    assert shown == {f"{name}.png" for name in OF_DOCUMENTS}
    assert {each.name: png_size(each) for each in (ROOT / "docs" / "images").iterdir()} == dict.fromkeys(
        shown, PICTURE_PX
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    place = tmp_path_factory.mktemp("docs")
    return place, *build_docs.build(place)


@pytest.fixture(scope="module")
def site(built: tuple[Path, int, str]) -> Path:
    return built[0] / "site"


def text_of(site: Path, page: str) -> str:
    """Return the text of a page, as a reader sees it."""
    html = (site / page).read_text("utf-8")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html.partition("<article")[2]))


def test_site_is_built_without_a_warning(built: tuple[Path, int, str]) -> None:
    _, code, said = built
    assert code == 0, said
    assert "Warning" not in said


def test_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("[away](nowhere.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\ndocs_dir = "pages"\n')
    code, said = build_docs.run(tmp_path)
    assert code != 0
    assert "(nowhere.md)" in said


def test_links_lead_to_pages_and_headings_of_the_site(site: Path) -> None:
    page_of = cache(Page)
    broken = []
    count = 0
    for path in sorted(site.rglob("*.html")):
        for link in page_of(path).links:
            name, _, fragment = unquote(link).partition("#")
            if re.match(r"[a-z]+:", name):
                continue
            count += 1
            target = Path(os.path.normpath(site / name.lstrip("/") if name.startswith("/") else path.parent / name))
            target = path if not name else target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                fragment and target.suffix == ".html" and fragment not in page_of(target).names
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert count > 1000


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    foreign = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*.html"))
        for address in Page(path).loads
        if re.match(r"(?:[a-z]+:)?//", address)
    ]
    for path in sorted(site.rglob("*.css")):
        foreign += [
            f"{path.name}: {each}"
            for each in re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", path.read_text("utf-8"))
        ]
    for path in sorted(site.rglob("*.js")):
        hosts = set(re.findall(r"https?://([\w.-]+)", path.read_text("utf-8"))) - {"www.w3.org"}
        foreign += [f"{path.name}: {host}" for host in sorted(hosts)]
    assert foreign == []


def leaves(nav: Any) -> Iterator[str]:
    """Yield the files of a navigation."""
    if isinstance(nav, str):
        yield nav
    for each in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from leaves(each)


def test_navigation_leads_to_every_page_once(built: tuple[Path, int, str]) -> None:
    place, *_ = built
    nav = list(leaves(tomllib.loads((ROOT / "docs" / "zensical.toml").read_text("utf-8"))["project"]["nav"]))
    pages = {path.relative_to(place / "pages").as_posix() for path in (place / "pages").rglob("*.md")}
    assert pages - set(nav) == set()
    assert set(nav) - pages == set()
    assert len(nav) == len(set(nav))
    assert {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} <= pages


def test_each_of_the_four_readers_finds_where_to_begin(site: Path) -> None:
    text = text_of(site, "index.html")
    for reader in (
        "the operator of a TBMQ 1.x",
        "an SRE with queues in Redis",
        "a DBA with queue or event tables",
        "a Python developer",
    ):
        assert reader in text
    nav = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    readers = {"Operator of TBMQ", "SRE with queues in Redis", "DBA with queue or event tables", "Python developer"}
    assert readers <= {name for part in nav for name in part}


def test_reference_of_python_shows_calls_with_their_results_and_parameters(site: Path) -> None:
    page = site / "reference" / "python" / "fanout.html"
    assert "FanoutQueues.publish" in Page(page).names
    text = text_of(site, "reference/python/fanout.html")
    assert "acked: messages that this consumer is done with" in text
    assert "Operation[" not in text
    assert not re.search(r":(?:param|class|func|meth|returns|raises)\b", text)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("reference/commands/fanout.html", "queuekeeper fanout publish [OPTIONS] {QUEUE}"),
        ("reference/commands/index.html", "queuekeeper explain"),
        ("reference/forms/session_migration.html", "default_ttl_s"),
        ("reference/forms/session_repair.html", "repair_ttl (Let messages expire"),
        (
            "reference/scripts/sessions.html",
            "Add messages to the end of a session; a repeated call adds them only once.",
        ),
        ("reference/tables/queuekeeper.html", "instant at which rows were judged live or expired"),
        ("reference/tables/pgmb.html", "null when the subscription was gone by then"),
        ("reference/python/errors.html", "StalePlan"),
    ],
)
def test_reference_says_what_the_code_says(site: Path, page: str, words: str) -> None:
    assert words in text_of(site, page).replace("&lt;", "<")


def test_link_out_of_the_site_becomes_its_words() -> None:
    page = ROOT / "docs" / "cli.md"
    text = "[there](servers.md#x), [code](../src/queuekeeper/cli/application.py), [log](../CHANGELOG.md)\n"
    places = {
        page: Path("cli.md"),
        ROOT / "docs" / "servers.md": Path("servers.md"),
        ROOT / "CHANGELOG.md": Path("changelog.md"),
    }
    assert relink(text, page=page, places=places) == "[there](servers.md#x), code, [log](changelog.md)\n"
