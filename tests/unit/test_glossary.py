"""One word for one thing: what the glossary says is not used stands on no page, in no form and in no help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from scripts import reference

ROOT = reference.ROOT
PACKAGE = ROOT / "src" / "queuekeeper"

OTHERS = {"docs/comparison.md", "docs/glossary.md"}
"""Pages that have the words of others on purpose."""

ALLOWED = {
    "execution": ("adaptive execution",),  # of Spark
    "maximum": ("Receive Maximum", "Maximum Packet Size"),  # of MQTT
    "taken back": ("one that has run out is taken back",),  # a lease, which is no undo
    "time to live": ("TBMQ 2.x's time to live",),
}
"""Names that others have given, by the word that is in them."""


def words() -> dict[str, tuple[str, ...]]:
    """Return each word of the glossary with those that are not used for it."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE
    )
    return {word: tuple(re.findall(r"\*([^*]+)\*", instead)) for word, instead in rows if word not in {"word", "---"}}


UNUSED = {each: word for word, instead in words().items() for each in instead}


def surfaces() -> Iterator[tuple[str, str]]:
    """Yield what a user reads, with its name: pages, help, forms, texts of DAGs, templates of pages and reports."""
    decisions = ROOT / "docs" / "adr"
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = path.relative_to(ROOT).as_posix()
        if decisions not in path.parents and name not in OTHERS:
            yield name, path.read_text("utf-8")
    for page in (*reference.commands(), *reference.forms()):
        yield f"reference/{page.path}", page.text
    for path in sorted((ROOT / "dags").glob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    for path in sorted(PACKAGE.rglob("*.j2")):
        text = re.sub(
            r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|<(style|script)\b.*?</\1>|<[^>]+>",
            " ",
            path.read_text("utf-8"),
            flags=re.DOTALL,
        )
        yield path.relative_to(ROOT).as_posix(), text


@cache
def prose() -> tuple[tuple[str, str], ...]:
    """Return the texts without code and the targets of links."""

    def bare(text: str) -> str:
        text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "`", text)))

    return tuple((name, bare(text)) for name, text in surfaces())


def uses(word: str) -> Iterator[str]:
    """Yield each place that uses a word, but for names that are allowed."""
    for name, text in prose():
        rest = text
        for allowed in ALLOWED.get(word, ()):
            rest = rest.replace(allowed, "")
        for match in re.finditer(rf"(?<![-\w]){re.escape(word)}s?(?![-\w])", rest, re.IGNORECASE):
            yield f"{name}: {rest[max(0, match.start() - 40) : match.end() + 30]}"


@pytest.mark.parametrize("word", UNUSED)
def test_word_that_the_glossary_does_not_use_stands_nowhere(word: str) -> None:
    found = list(uses(word))
    assert found == [], f"say {UNUSED[word]}"


def test_names_that_are_allowed_are_needed() -> None:
    texts = " ".join(text for _, text in prose())
    assert [each for names in ALLOWED.values() for each in names if each not in texts] == []
    assert set(ALLOWED) <= set(UNUSED)


@pytest.mark.parametrize("entry", words())
def test_word_of_the_glossary_is_used(entry: str) -> None:
    for word in re.sub(r"\*|\(.*?\)", "", entry).split(", "):
        assert any(uses(word.strip())), word


def test_steps_of_an_online_migration_stand_in_the_glossary() -> None:
    """Its commands have the names of the steps, and nobody knows them from elsewhere."""
    rows = {word.strip().replace("-", " ") for entry in words() for word in entry.split(",")}
    (group,) = (page.text for page in reference.commands() if page.path == "commands/online.md")
    steps = {name.replace("-", " ") for name in re.findall(r"^## ([\w-]+)$", group, re.MULTILINE)}
    assert len(steps) > 8
    assert steps - rows == {"status"}


def test_the_glossary_has_one_word_for_each() -> None:
    rows = [word for entry in words() for word in re.sub(r"\(.*?\)", "", entry).split(", ")]
    assert len(UNUSED) > 30
    assert {"run", "share", "limit", "plan"} <= set(rows)
    assert set(rows) & set(UNUSED) == set()
