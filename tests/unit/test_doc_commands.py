"""Every command in the documents is one that the command line takes, with its arguments, options and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer

import tests.sample_job  # noqa: F401 - which CONTRIBUTING starts
from tests.command_parser import COMMAND, check

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^ *```(?:sh|bash|console)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(queuekeeper [^`\n]+)`")
# A list of commands that share a beginning, and names that stand for others, are prose.
_PROSE = re.compile(r"[,…]|\.\.\.|\b[A-Z_]{3,}\b")
# "`copy` and `verify` take `--cohorts`", and "each step takes `--cohorts`", which names none.
_CLAIM = re.compile(
    r"(?P<names>(?:`[a-z-]+`(?:,\s+|\s+and\s+|\s+or\s+|\s+))+|\b(?:[Ee]ach|[Aa]ll|[Ee]very|[Bb]oth)\b[\w\s]{0,20}?)"
    r"takes?\s+`(?P<option>--[a-z-]+)"
)
_DAY = re.compile(r"\$UNTIL\b|\$\(date [^)]*\)")
_INCOMPLETE = frozenset({"BadOptionUsage", "MissingParameter", "NoArgsIsHelpError"})


def lines_of(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the command lines of a page, continued lines as one, and whether each is whole: in a text it is a name."""
    text = page.read_text("utf-8")
    for block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            # "RUN=$(queuekeeper run list ...)" keeps what a command prints.
            words = re.sub(r"^[A-Z]+=\$\((.*?)\)", r"\1", line.strip().removeprefix("$ "))
            if re.match(r"(?:[A-Z_]+=\S* )*queuekeeper ", words):
                yield re.sub(r"^(?:[A-Z_]+=\S* )*", "", words), True
    for line in _INLINE.findall(text):
        # An option of the command itself would be carried out by parsing it.
        if not _PROSE.search(line) and not line.startswith("queuekeeper --"):
            yield line, False


def groups_of(text: str) -> list[str]:
    """Return the groups of commands of the last block, such as ``online``."""
    blocks = _BLOCK.findall(text)
    words = [line.split() for line in (blocks[-1] if blocks else "").splitlines()]
    return list(dict.fromkeys(line[1] for line in words if len(line) > 2 and line[0] == "queuekeeper"))


def claims_of(page: Path) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield what the texts of a page claim of options: commands, the option, and the groups of which they are."""
    text = page.read_text("utf-8")
    for match in _CLAIM.finditer(text):
        before = text[: match.start()]
        if before.count("```") % 2 == 0:
            yield re.findall(r"`([a-z-]+)`", match["names"]), match["option"], groups_of(before)


def options_of(name: str, groups: list[str]) -> set[str] | None:
    """Return the options of a command of one of these groups; none when there is none of this name."""
    for group in groups:
        command = getattr(COMMAND.commands.get(group), "commands", {}).get(name)  # type: ignore[attr-defined]
        if command is not None:
            return {option for parameter in command.params for option in parameter.opts}
    return None


def test_commands_take_the_options_that_texts_say_they_take() -> None:
    wrong: list[str] = []
    count = 0
    for page in PAGES:
        for names, option, groups in claims_of(page):
            if not names:
                # Of all, by which a reader means those of the example before: each has to be named.
                wrong.append(f"{page.relative_to(ROOT)}: say which commands take {option}")
            for name in names:
                known = options_of(name, groups)
                if known is not None:
                    count += 1
                    if option not in known:
                        wrong.append(f"{page.relative_to(ROOT)}: {name} takes no {option}")
    assert wrong == []
    assert count > 10


def test_commands_of_all_pages_parse() -> None:
    wrong: list[str] = []
    count = 0
    for page in PAGES:
        for line, is_whole in lines_of(page):
            count += 1
            try:
                check(_DAY.sub("2100-01-01", line))
            except typer.Exit:
                continue  # --help
            except Exception as error:
                if is_whole or type(error).__name__ not in _INCOMPLETE:
                    wrong.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert wrong == []
    assert count > 100
