"""Puts scripts together from their files, and gives each the form in which it only counts."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from queuekeeper import assets
from queuekeeper.errors import ScriptError
from queuekeeper.lua.header import Line, Lines, Parameter, read_errors, read_flags, read_header, read_parameters
from queuekeeper.lua.reply import Read, reader

_INCLUDE = re.compile(r'\s*--- @include "([^"]*)"\s*')
_INCLUDE_LIKE = re.compile(r"\s*-{2,}\s*@include\b")
_KEYS = "--- @keys\n"
_SCRIPT_LINE = re.compile(r"(?:@ ?)?user_script:(\d+)")
_NAME = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A bundled script and the contract in its header.

    :param name: for example ``sessions/import_session``.
    :param source: text that the server gets.
    :param sha1: digest by which the server knows it.
    :param flags: of the first line.
    :param errors: error word -> when it is answered; ``OOM`` goes without saying unless ``allow-oom`` is a flag.
    :param lines: origin of each line of ``source``.
    :param read: makes a record of a reply: see :func:`queuekeeper.lua.reply.reader`.
    """

    name: str
    source: str
    sha1: str
    flags: frozenset[str]
    purpose: str
    keys: tuple[Parameter, ...]
    args: tuple[Parameter, ...]
    returns: tuple[str, ...]
    errors: dict[str, str]
    cost: str
    lines: tuple[Line, ...]
    read: Read = field(compare=False, repr=False)

    @property
    def writes(self) -> bool:
        """Whether it may write."""
        return "no-writes" not in self.flags

    @property
    def bundle(self) -> Lines:
        """Its lines, each with its origin."""
        return list(zip(self.source.splitlines(keepends=True), self.lines, strict=True))

    def locate(self, text: str) -> str:
        """Return a server's message with the lines of the bundle replaced by file and line of the source."""

        def place(match: re.Match[str]) -> str:
            number = int(match[1])
            if 1 <= number <= len(self.lines):
                return "{}:{}".format(*self.lines[number - 1])
            return match[0]

        return _SCRIPT_LINE.sub(place, text)


@cache
def load(name: str) -> Script:
    """Return a script by name, for example ``load("sessions/import_session")``; it is read once per process.

    :raises ScriptError: when the file or an include is missing, or its header breaks the rules.
    """
    return load_from(assets.directory("lua"), name)


def reading(command: str) -> Script:
    """Return a command of the server that only reads as what a call can have in place of a script.

    Its values are not passed through Lua, which takes four to eight times as long.

    :param command: for example ``HMGET``; a call gives its keys and arguments.
    """
    return Script(
        name=command, source="", sha1="", flags=frozenset({"no-writes"}), purpose="", keys=(), args=(), returns=(),
        errors={}, cost="", lines=(), read=lambda reply: reply,
    )  # fmt: skip


_counting_forms: dict[str, Script] = {}


def counting(script: Script) -> Script:
    """Return the form of a script that answers what it would do, by the same decisions, and writes nothing.

    The server refuses every write of it, and needs no right to write from who calls it. One call does not see what
    another one would have changed.
    """
    if not script.writes:
        return script
    known = _counting_forms.get(script.sha1)
    if known is not None:
        return known
    header_end = next(at for at, (text, _) in enumerate(script.bundle) if text.rstrip() == "]]")
    first = (f"#!lua flags={','.join(sorted(script.flags - {'allow-oom'} | {'no-writes'}))}\n", script.lines[0])
    stand_in = _bundle(assets.directory("lua"), "includes/count_only")
    lines = [first, *script.bundle[1 : header_end + 1], *stand_in, *script.bundle[header_end + 1 :]]
    source = "".join(text for text, _ in lines)
    found = replace(
        script,
        source=source,
        sha1=_sha1(source),
        flags=read_flags(lines),
        lines=tuple(line for _, line in lines),
    )
    _counting_forms[script.sha1] = found
    return found


_CALLED = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_CONTAINERS = frozenset({"MEMORY", "OBJECT"})
_ASKED_INSTEAD = {
    "del": "exists", "expire": "exists", "hdel": "hmget", "hincrby": "hget", "hset": "hmget", "hsetnx": "hmget",
    "lpop": "lrange",
    "lpush": "llen", "lrem": "lpos", "lset": None, "ltrim": None, "persist": "pexpiretime", "pexpire": "exists",
    "pexpireat": "exists", "rename": None, "rpush": "llen", "set": None, "unlink": "exists", "zadd": "zmscore",
    "zincrby": "zscore", "zrem": "zmscore", "zremrangebyscore": "zcount",
}  # fmt: skip
"""Writes, and what the server is asked in their place by ``includes/count_only``; none for nothing."""


def commands_called(script: Script, *, counts_only: bool = False) -> frozenset[str]:
    """Return the commands that a script calls, as access rules name them: ``zadd``, ``memory|usage``.

    :param counts_only: those of the form that only counts.
    """
    called = frozenset(
        f"{command}|{part}".lower() if command in _CONTAINERS else command.lower()
        for command, part in _CALLED.findall(script.source)
    )
    if not counts_only:
        return called
    return frozenset(asked for each in called if (asked := _ASKED_INSTEAD.get(each, each)) is not None)


def names(root: Path | None = None) -> list[str]:
    """Return the names of all scripts, includes left out."""
    root = root or assets.directory("lua")
    found = (path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.lua"))
    return sorted(name for name in found if not name.startswith("includes/"))


def load_from(root: Path, name: str) -> Script:
    """Return a script of another directory than our own.

    :param root: directory that ``name`` and the includes are relative to.
    """
    lines = _bundle(root, name)
    flags = read_flags(lines)
    header = read_header(lines)
    keys = read_parameters(header["KEYS"])
    lines = [(put, line) for text, line in lines for put in (_table_of(keys) if text == _KEYS else [text])]
    source = "".join(text for text, _ in lines)
    return Script(
        name=name,
        source=source,
        sha1=_sha1(source),
        flags=flags,
        purpose=" ".join(text for text, _ in header["Purpose"]),
        keys=keys,
        args=read_parameters(header["ARGV"]),
        returns=tuple(text for text, _ in header["Returns"]),
        errors=read_errors(header["Errors"]),
        cost=" ".join(text for text, _ in header["Cost"]),
        lines=tuple(line for _, line in lines),
        read=reader(name, header["Returns"]),
    )


def _table_of(keys: Sequence[Parameter]) -> list[str]:
    """Return the lines of Lua that give each key of a header its name."""
    places = (f"{{ unpack(KEYS, {key.index}) }}" if key.repeats else f"KEYS[{key.index}]" for key in keys)
    return [
        "local keys = {\n",
        *(f"    {key.name} = {place},\n" for key, place in zip(keys, places, strict=True)),
        "}\n",
    ]


def _sha1(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def _bundle(root: Path, name: str) -> Lines:
    """Return the lines of a script with every include in the place where it is first named."""
    lines: Lines = []
    included: set[str] = set()

    def fail(reason: str, stack: Sequence[Line]) -> ScriptError:
        trail = "".join(f"\n  included from {line.file}:{line.number}" for line in reversed(stack[:-1]))
        return ScriptError(f"{stack[-1].file}:{stack[-1].number}: {reason}{trail}")

    def read(wanted: str, stack: list[Line], open_files: tuple[str, ...]) -> None:
        path = root / f"{wanted}.lua"
        if _NAME.fullmatch(wanted) is None or not path.is_file():
            if not stack:
                raise ScriptError(f"there is no Lua script {wanted!r} in {root}: one of {', '.join(names(root))}")
            raise fail(f'include "{wanted}" is missing: there is no {wanted}.lua', stack)
        shown = f"lua/{wanted}.lua"
        here: dict[str, int] = {}
        for number, text in enumerate(path.read_text("utf-8").splitlines(), start=1):
            line = Line(shown, number)
            if _INCLUDE_LIKE.match(text) is None:
                if number == 1 and stack and text.startswith("#!"):
                    raise fail("an include has no #! line: only a script has", [*stack, line])
                lines.append((f"{text}\n", line))
                continue
            match = _INCLUDE.fullmatch(text)
            place = [*stack, line]
            if match is None:
                raise fail('an include is written --- @include "includes/name", alone on its line', place)
            target = match[1]
            if target in here:
                raise fail(f'duplicate include "{target}": line {here[target]} has it already', place)
            here[target] = number
            if target in open_files:
                cycle = " -> ".join([*open_files[open_files.index(target) :], target])
                raise fail(f'include "{target}" closes a cycle: {cycle}', place)
            if target not in included:
                read(target, place, (*open_files, target))
                included.add(target)

    read(name, [], (name,))
    if not lines:
        raise ScriptError(f"lua/{name}.lua is empty")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Write every bundled script to a directory and print the paths."""
    parser = argparse.ArgumentParser(prog="python -m queuekeeper.lua", description=main.__doc__)
    parser.add_argument("--bundle", metavar="DIRECTORY", type=Path, required=True, help="where to write the bundles")
    directory: Path = parser.parse_args(argv).bundle
    for name in names():
        path = directory / f"{name}.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(load(name).source, "utf-8")
        sys.stdout.write(f"{path}\n")
    return 0
