"""Every command in the documents is one that the command line takes, with its arguments, options and their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.main import get_command

from queuekeeper.cli import app

ROOT = Path(__file__).parents[2]
COMMAND = get_command(app)
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^ *```(?:sh|bash|console)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(queuekeeper [^`\n]+)`")
# A list of commands that share a beginning, and names that stand for others, are prose.
_PROSE = re.compile(r"[,…]|\.\.\.|\b[A-Z_]{3,}\b")
_INCOMPLETE = frozenset({"BadOptionUsage", "MissingParameter", "NoArgsIsHelpError"})


def lines_of(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the command lines of a page, continued lines as one, and whether each is whole: in a text it is a name."""
    text = page.read_text("utf-8")
    for block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            words = line.strip().removeprefix("$ ")
            if re.match(r"(?:[A-Z_]+=\S* )*queuekeeper ", words):
                yield re.sub(r"^(?:[A-Z_]+=\S* )*", "", words), True
    for line in _INLINE.findall(text):
        # An option of the command itself would be carried out by parsing it.
        if not _PROSE.search(line) and not line.startswith("queuekeeper --"):
            yield line, False


def check(line: str) -> None:
    """Parse a command line down to its command, and run nothing."""
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", ">", ">>", "<", "&&", "&", "2>&1"):
        if end in words:
            words = words[: words.index(end)]
    context = COMMAND.make_context("queuekeeper", list(words), resilient_parsing=False)
    while hasattr(context.command, "resolve_command"):
        left = [*context._protected_args, *context.args]  # what click's own runner reads
        if not left:
            return
        name, found, rest = context.command.resolve_command(context, left)
        assert found is not None
        context = found.make_context(name, rest, parent=context)


def test_commands_of_all_pages_parse() -> None:
    wrong: list[str] = []
    count = 0
    for page in PAGES:
        for line, is_whole in lines_of(page):
            count += 1
            try:
                check(line)
            except typer.Exit:
                continue  # --help
            except Exception as error:
                if is_whole or type(error).__name__ not in _INCOMPLETE:
                    wrong.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert wrong == []
    assert count > 100
