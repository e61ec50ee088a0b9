"""Lua scripts: bundle includes, read header contracts, call by digest, recover lost scripts; what they do is theirs.

``python -m queuekeeper.lua --bundle DIRECTORY`` writes every bundled script to a directory, for a linter to read.
The format of a header is described in ``lua/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from queuekeeper import assets
from queuekeeper.errors import LUA_ERRORS, QueuekeeperError, ScriptError, from_lua
from queuekeeper.redis_client import RedisClient, address_of, from_redis, redis_errors

Value: TypeAlias = str | bytes | int
"""What a key or an argument may be; never a float, whose text differs between languages."""

Reply: TypeAlias = Any
"""What a script returned: integers, bytes, none, and lists of these."""

FLAGS = frozenset({"allow-oom", "no-writes", "allow-stale", "no-cluster", "allow-cross-slot-keys"})
"""Flags that a server knows; ``#!lua flags=a,b`` declares them."""

_SERVER_WORDS = frozenset({"OOM"})
_INCLUDE = re.compile(r'--- @include "([^"]*)"\s*')
_INCLUDE_LIKE = re.compile(r"\s*-{2,}\s*@include\b")
_SHEBANG = re.compile(r"#!lua(?: flags=([a-z,-]+))?")
_SECTIONS = ("Purpose", "KEYS", "ARGV", "Returns", "Errors", "Cost")
_PARAMETER = re.compile(r"\[(\d+)(\+?)\]\s+([a-z_]+)\s+(\S.*)")
_ERROR = re.compile(r"([A-Z][A-Z_]*)\s+(\S.*)")
_SCRIPT_LINE = re.compile(r"(?:@ ?)?user_script:(\d+)")
_NAME = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")


class Line(NamedTuple):
    """Where a line of a bundle comes from."""

    file: str
    number: int


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


@dataclass(frozen=True, kw_only=True)
class Script:
    """A bundled script and the contract in its header.

    :param name: for example ``sessions/import_session``.
    :param source: text that the server gets.
    :param sha1: digest by which the server knows it.
    :param flags: of the first line.
    :param errors: error word -> when it is answered; ``OOM`` goes without saying unless ``allow-oom`` is a flag.
    :param lines: origin of each line of ``source``.
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
    source = "".join(text for text, _ in lines)
    flags = _read_flags(lines)
    header = _read_header(lines)
    return Script(
        name=name,
        source=source,
        sha1=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        flags=flags,
        purpose=" ".join(text for text, _ in header["Purpose"]),
        keys=_read_parameters(header["KEYS"]),
        args=_read_parameters(header["ARGV"]),
        returns=tuple(text for text, _ in header["Returns"]),
        errors=_read_errors(header["Errors"]),
        cost=" ".join(text for text, _ in header["Cost"]),
        lines=tuple(line for _, line in lines),
    )


_Lines: TypeAlias = list[tuple[str, Line]]


def _bundle(root: Path, name: str) -> _Lines:
    """Return the lines of a script with every include in the place where it is first named."""
    lines: _Lines = []
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


def _fail_at(line: Line, reason: str) -> ScriptError:
    return ScriptError(f"{line.file}:{line.number}: {reason}")


def _read_flags(lines: _Lines) -> frozenset[str]:
    text, line = lines[0]
    match = _SHEBANG.fullmatch(text.rstrip("\n"))
    if match is None:
        raise _fail_at(line, "the first line of a script is '#!lua' or '#!lua flags=a,b'")
    flags = frozenset((match[1] or "").split(",")) - {""}
    unknown = sorted(flags - FLAGS)
    if unknown:
        raise _fail_at(line, f"unknown flag {', '.join(unknown)}: one of {', '.join(sorted(FLAGS))}")
    return flags


def _read_header(lines: _Lines) -> dict[str, list[tuple[str, Line]]]:
    """Return the entries of each section; a line that is indented deeper than an entry continues it."""
    if len(lines) < 2 or lines[1][0].rstrip() != "--[[":
        raise _fail_at(lines[0][1], "the header, a comment from --[[ to ]], has to follow the first line")
    sections: dict[str, list[tuple[str, Line]]] = {}
    current: list[tuple[str, Line]] | None = None
    indent = 0
    for raw, line in lines[2:]:
        text = raw.rstrip()
        if text == "]]":
            missing = [section for section in _SECTIONS if not sections.get(section)]
            if missing:
                raise _fail_at(line, f"the header has no {', '.join(missing)}")
            return sections
        if not text:
            continue
        depth = len(text) - len(text.lstrip())
        if depth == 0:
            position = len(sections)
            if position >= len(_SECTIONS) or text != _SECTIONS[position]:
                expected = _SECTIONS[position] if position < len(_SECTIONS) else "]]"
                raise _fail_at(line, f"the header goes on with {expected!r}, not with {text!r}")
            current = sections.setdefault(text, [])
            continue
        if current is None:
            raise _fail_at(line, "the header begins with 'Purpose'")
        if current and depth > indent:
            current[-1] = (f"{current[-1][0]} {text.strip()}", current[-1][1])
        else:
            indent = depth
            current.append((text.strip(), line))
    raise _fail_at(lines[1][1], "the header is not closed with ]]")


def _is_none(entries: list[tuple[str, Line]]) -> bool:
    return len(entries) == 1 and entries[0][0] == "none"


def _read_parameters(entries: list[tuple[str, Line]]) -> tuple[Parameter, ...]:
    if _is_none(entries):
        return ()
    result: list[Parameter] = []
    for text, line in entries:
        match = _PARAMETER.fullmatch(text)
        if match is None:
            raise _fail_at(line, f"a key or argument is written '[1] name  text' or '[4+] name  text', not {text!r}")
        if int(match[1]) != len(result) + 1 or (result and result[-1].repeats):
            raise _fail_at(line, f"[{match[1]}] is out of order: positions go 1, 2, 3 and only the last may repeat")
        result.append(Parameter(index=int(match[1]), repeats=bool(match[2]), name=match[3], text=match[4]))
    return tuple(result)


def _read_errors(entries: list[tuple[str, Line]]) -> dict[str, str]:
    if _is_none(entries):
        return {}
    result: dict[str, str] = {}
    for text, line in entries:
        match = _ERROR.fullmatch(text)
        if match is None:
            raise _fail_at(line, f"an error is written 'WORD  when', not {text!r}")
        if match[1] not in LUA_ERRORS or match[1] in _SERVER_WORDS:
            raise _fail_at(line, f"error word {match[1]} is not one that a script may declare")
        if match[1] in result:
            raise _fail_at(line, f"error word {match[1]} is declared twice")
        result[match[1]] = match[2]
    return result


@dataclass(frozen=True)
class _Call:
    script: Script
    keys: Sequence[Value]
    args: Sequence[Value]

    def command(self, *, whole: bool = False) -> tuple[Value, ...]:
        """Return the command that runs the script: by digest, or with its whole text, which no server can miss."""
        head: tuple[Value, ...] = ("EVAL", self.script.source) if whole else ("EVALSHA", self.script.sha1)
        return (*head, len(self.keys), *self.keys, *self.args)

    @property
    def client_id(self) -> bytes:
        """What stands between the braces of the first key: calls with the same are kept in order."""
        if not self.keys:
            return b""
        key = self.keys[0]
        raw = key if isinstance(key, bytes) else str(key).encode()
        start = raw.find(b"{")
        end = raw.find(b"}", start + 1)
        return raw[: end + 1] if 0 <= start < end else raw


class ScriptCaller:
    """Calls scripts on a single server or a cluster, and loads a script again that the server does not know.

    A script that was answered with NOSCRIPT, MOVED, ASK or TRYAGAIN has not run, so it is sent again. After a lost
    connection or a timeout nobody knows whether it has run: that is raised, and the caller decides.
    """

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def call(self, script: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> Reply:
        """Run one script and return its reply.

        :param keys: every key that the script touches.
        :raises QueuekeeperError: the exception that ``errors.LUA_ERRORS`` names for the script's error word;
            ``ScriptError`` for an error that the header does not declare; ``ServerUnavailable``.
        """
        reply = self._alone(_Call(script, keys, args))
        if isinstance(reply, QueuekeeperError):
            raise reply
        return reply

    def pipeline(self) -> Pipeline:
        """Return an empty pipeline for many calls in few round trips."""
        return Pipeline(self._client, self._alone)

    def _alone(self, call: _Call) -> Reply:
        """Run one call; errors of the script are returned, not raised."""
        address = address_of(self._client)
        execute: Callable[..., Reply] = self._client.execute_command
        try:
            try:
                return execute(*call.command())
            except NoScriptError:
                # EVAL stores the script as well, so that the next call finds it by its digest.
                return execute(*call.command(whole=True))
        except (RedisError, RedisClusterException, OSError) as error:
            return _as_ours(error, call.script, address)


class Pipeline:
    """Calls that are sent together.

    Calls that share a client id (the part of the first key up to the closing brace) are never in flight together: a
    second one is sent when the first has been answered. So a script that has to be loaded in between, or a slot that
    moves, cannot change their order; and after a failed call the later calls of its client id are not sent at all.
    """

    def __init__(self, client: RedisClient, alone: Callable[[_Call], Reply]) -> None:
        self._client = client
        self._alone = alone
        self._calls: list[_Call] = []

    def __len__(self) -> int:
        """Return how many calls wait to be sent."""
        return len(self._calls)

    def call(self, script: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> int:
        """Add a call and return the position of its reply in what :meth:`execute` returns."""
        self._calls.append(_Call(script, keys, args))
        return len(self._calls) - 1

    def execute(self, *, raise_on_error: bool = True) -> list[Reply]:
        """Send all calls and return their replies in the order in which the calls were added.

        :param raise_on_error: raise the first error after everything was sent; otherwise exceptions take the places
            of replies, and a call that was not sent because an earlier one of its client id failed holds the same.
        :raises QueuekeeperError: as :meth:`ScriptCaller.call` does.
        """
        calls, self._calls = self._calls, []
        replies: list[Reply] = [None] * len(calls)
        failed: dict[bytes, QueuekeeperError] = {}
        for wave in _waves(calls):
            sendable: list[int] = []
            for index in wave:
                earlier = failed.get(calls[index].client_id)
                if earlier is None:
                    sendable.append(index)
                else:
                    replies[index] = earlier
            self._send(calls, sendable, replies)
            for index in sendable:
                if isinstance(replies[index], QueuekeeperError):
                    failed[calls[index].client_id] = replies[index]
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, QueuekeeperError):
                    raise reply
        return replies

    def _send(self, calls: list[_Call], wave: list[int], replies: list[Reply]) -> None:
        """Send calls of different client ids and store their replies."""
        for node, address, indexes in self._by_node(calls, wave):
            self._exchange(node, address, calls, indexes, replies)
            lost = [index for index in indexes if isinstance(replies[index], NoScriptError)]
            if lost:
                scripts = {calls[index].script.sha1: calls[index].script for index in lost}
                with redis_errors(address):
                    for script in scripts.values():
                        node.script_load(script.source)
                self._exchange(node, address, calls, lost, replies)
            for index in indexes:
                reply = replies[index]
                if isinstance(reply, NoScriptError | AskError | MovedError | TryAgainError):
                    replies[index] = self._alone(calls[index])
                elif isinstance(reply, BaseException):
                    replies[index] = _as_ours(reply, calls[index].script, address)

    def _exchange(
        self, node: redis.Redis, address: str, calls: list[_Call], indexes: list[int], replies: list[Reply]
    ) -> None:
        """Write the commands to one server and read its replies; a lost connection fails every call without a reply."""
        pipe = node.pipeline(transaction=False)
        for index in indexes:
            pipe.execute_command(*calls[index].command())  # type: ignore[no-untyped-call]
        try:
            answers = pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            # Earlier replies are lost with the connection: nobody knows which of these calls ran.
            answers = [from_redis(error, address)] * len(indexes)
        for index, answer in zip(indexes, answers, strict=True):
            replies[index] = answer

    @staticmethod
    def _node(cluster: redis.RedisCluster, keys: Sequence[Value]) -> Any:
        if keys:
            return cluster.get_node_from_key(keys[0])  # type: ignore[no-untyped-call]
        return cluster.get_default_node()  # type: ignore[no-untyped-call]

    def _by_node(self, calls: list[_Call], wave: list[int]) -> Iterable[tuple[redis.Redis, str, list[int]]]:
        if not isinstance(self._client, redis.RedisCluster):
            return [(self._client, address_of(self._client), wave)] if wave else []
        groups: dict[str, tuple[redis.Redis, str, list[int]]] = {}
        for index in wave:
            keys = calls[index].keys
            try:
                node = self._node(self._client, keys)
            except (RedisError, RedisClusterException) as error:
                raise from_redis(error, address_of(self._client)) from error
            if node is None:
                raise from_redis(ClusterDownError("no node serves the slot"), address_of(self._client))
            name = str(node.name)
            if name not in groups:
                groups[name] = (self._client.get_redis_connection(node), name, [])
            groups[name][2].append(index)
        return groups.values()


def _waves(calls: list[_Call]) -> list[list[int]]:
    """Split calls so that no wave holds two of one client id, and each client id keeps its order."""
    waves: list[list[int]] = []
    seen: dict[bytes, int] = {}
    for index, call in enumerate(calls):
        number = seen.get(call.client_id, 0)
        seen[call.client_id] = number + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(index)
    return waves


def _as_ours(error: BaseException, script: Script, address: str) -> QueuekeeperError:
    """Return our exception for an error reply or a failed exchange."""
    if isinstance(error, QueuekeeperError):
        return error
    text = str(error)
    word = text.partition(" ")[0].lstrip("-")
    if word in script.errors:
        return from_lua(error)
    # redis-py gives errors that it knows a class of their own and takes the word away.
    if type(error) is not ResponseError:
        return from_redis(error, address)
    if word in LUA_ERRORS:
        return ScriptError(f"{script.name} answered {word}, which its header does not declare: {text}")
    return ScriptError(f"{script.name}: {script.locate(text)}")


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


if __name__ == "__main__":
    raise SystemExit(main())
