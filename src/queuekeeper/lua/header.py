"""What a script's first line and its header say; ``lua/README.md`` has the form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from queuekeeper.errors import LUA_ERRORS, ScriptError

FLAGS = frozenset({"allow-oom", "no-writes", "allow-stale", "no-cluster", "allow-cross-slot-keys"})
"""Flags that a server knows; ``#!lua flags=a,b`` declares them."""

_SERVER_WORDS = frozenset({"OOM"})
_SHEBANG = re.compile(r"#!lua(?: flags=([a-z,-]+))?")
_SECTIONS = ("Purpose", "KEYS", "ARGV", "Returns", "Errors", "Cost")
_PARAMETER = re.compile(r"\[(\d+)(\+?)\]\s+([a-z_]+)\s+(\S.*)")
_NAMES = re.compile(r"\[(\d+)-(\d+)\]\s+([a-z_]+(?:, [a-z_]+)+)")
_FORM = re.compile(
    r"(?:(?P<name>[a-z_]+) as )?"
    r'(?:"(?P<text>[a-z_]+(?::[a-z_]+)+)"|doubles\((?P<doubles>[a-z_]+(?:, [a-z_]+)*)\))'
)
_ERROR = re.compile(r"([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*)\s+(\S.*)")


class Line(NamedTuple):
    """Where a line of a bundle comes from."""

    file: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Form:
    """How several values are written as one.

    :param name: empty for that of a whole argument.
    :param parts: names of the values.
    :param is_text: they are a text with colons between them; otherwise big-endian doubles.
    """

    name: str
    parts: tuple[str, ...]
    is_text: bool


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One declared key or argument.

    :param index: position, from 1.
    :param repeats: whether more of the same kind follow it.
    """

    index: int
    repeats: bool
    name: str
    text: str

    @property
    def forms(self) -> tuple[Form, ...]:
        """Forms that its text declares; one at its beginning is its own: of each, under its name, where it repeats."""
        return tuple(
            Form(
                name=found["name"] or (self.name if self.repeats else ""),
                parts=tuple(found["text"].split(":") if found["text"] else found["doubles"].split(", ")),
                is_text=bool(found["text"]),
            )
            for found in _FORM.finditer(self.text)
            if found["name"] or found.start() == 0
        )


Lines: TypeAlias = list[tuple[str, Line]]
"""Lines of a bundle, each with its origin."""


def fail_at(line: Line, reason: str) -> ScriptError:
    """Return the exception that names a line."""
    return ScriptError(f"{line.file}:{line.number}: {reason}")


def read_flags(lines: Lines) -> frozenset[str]:
    """Return the flags of a script's first line."""
    text, line = lines[0]
    match = _SHEBANG.fullmatch(text.rstrip("\n"))
    if match is None:
        raise fail_at(line, "the first line of a script is '#!lua' or '#!lua flags=a,b'")
    flags = frozenset((match[1] or "").split(",")) - {""}
    unknown = sorted(flags - FLAGS)
    if unknown:
        raise fail_at(line, f"unknown flag {', '.join(unknown)}: one of {', '.join(sorted(FLAGS))}")
    return flags


def read_header(lines: Lines) -> dict[str, list[tuple[str, Line]]]:
    """Return the entries of each section; a line that is indented deeper than an entry continues it."""
    if len(lines) < 2 or lines[1][0].rstrip() != "--[[":
        raise fail_at(lines[0][1], "the header, a comment from --[[ to ]], has to follow the first line")
    sections: dict[str, list[tuple[str, Line]]] = {}
    current: list[tuple[str, Line]] | None = None
    indent = 0
    for raw, line in lines[2:]:
        text = raw.rstrip()
        if text == "]]":
            missing = [section for section in _SECTIONS if not sections.get(section)]
            if missing:
                raise fail_at(line, f"the header has no {', '.join(missing)}")
            return sections
        if not text:
            continue
        depth = len(text) - len(text.lstrip())
        if depth == 0:
            position = len(sections)
            if position >= len(_SECTIONS) or text != _SECTIONS[position]:
                expected = _SECTIONS[position] if position < len(_SECTIONS) else "]]"
                raise fail_at(line, f"the header goes on with {expected!r}, not with {text!r}")
            current = sections.setdefault(text, [])
            continue
        if current is None:
            raise fail_at(line, "the header begins with 'Purpose'")
        if current and depth > indent:
            current[-1] = (f"{current[-1][0]} {text.strip()}", current[-1][1])
        else:
            indent = depth
            current.append((text.strip(), line))
    raise fail_at(lines[1][1], "the header is not closed with ]]")


def _is_none(entries: list[tuple[str, Line]]) -> bool:
    return len(entries) == 1 and entries[0][0] == "none"


def read_parameters(entries: list[tuple[str, Line]]) -> tuple[Parameter, ...]:
    """Return the keys or arguments that a section declares; those that are only named have no text."""
    if _is_none(entries):
        return ()
    result: list[Parameter] = []
    for text, line in entries:
        several = _NAMES.fullmatch(text)
        if several and not (result and result[-1].repeats):
            first, names = len(result) + 1, several[3].split(", ")
            if several.group(1, 2) != (str(first), str(len(result) + len(names))):
                raise fail_at(line, f"{several[1]}-{several[2]} does not number {len(names)} names from {first} on")
            result += (
                Parameter(index=index, repeats=False, name=name, text="") for index, name in enumerate(names, first)
            )
            continue
        match = _PARAMETER.fullmatch(text)
        if match is None:
            raise fail_at(line, f"a key or argument is written '[1] name  text' or '[4+] name  text', not {text!r}")
        if int(match[1]) != len(result) + 1 or (result and result[-1].repeats):
            raise fail_at(line, f"[{match[1]}] is out of order: positions go 1, 2, 3 and only the last may repeat")
        result.append(Parameter(index=int(match[1]), repeats=bool(match[2]), name=match[3], text=match[4]))
    return tuple(result)


def read_errors(entries: list[tuple[str, Line]]) -> dict[str, str]:
    """Return the error words that a section declares, each with when it is answered."""
    if _is_none(entries):
        return {}
    result: dict[str, str] = {}
    for text, line in entries:
        match = _ERROR.fullmatch(text)
        if match is None:
            raise fail_at(line, f"an error is written 'WORD  when', not {text!r}")
        for word in match[1].split(", "):
            if word not in LUA_ERRORS or word in _SERVER_WORDS:
                raise fail_at(line, f"error word {word} is not one that a script may declare")
            if word in result:
                raise fail_at(line, f"error word {word} is declared twice")
            result[word] = match[2]
    return result
