"""Lua scripts: bundle includes, read header contracts, call by digest, recover lost scripts.

``python -m queuekeeper.lua --bundle DIRECTORY`` writes every bundled script to a directory, for a linter to read.
The format of a header is described in ``lua/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, cast

import hiredis
import redis
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from queuekeeper import assets
from queuekeeper.errors import LUA_ERRORS, QueuekeeperError, ScatteredClient, ScriptError, UsageError, from_lua
from queuekeeper.keyspace import check_served, key_owner
from queuekeeper.redis_client import REPLY_TIMEOUT_S, RedisClient, address_of, from_redis, lost, redis_errors

Value: TypeAlias = str | bytes | int
"""What a key or an argument may be; never a float, whose text differs between languages."""

Reply: TypeAlias = Any
"""What a script returned: integers, bytes, none, and lists of these."""

FLAGS = frozenset({"allow-oom", "no-writes", "allow-stale", "no-cluster", "allow-cross-slot-keys"})
"""Flags that a server knows; ``#!lua flags=a,b`` declares them."""

RETRY_FOR_S = 30.0
"""How long a script that has not run is sent again: longer than a failover takes by a cluster's defaults."""

REPLICA_TIMEOUT_MS = 1_000
"""How long replicas get by default to confirm a write."""

LONGEST_WAIT_S = 10.0
"""How long one blocking command waits at most; a lost connection is noticed within this time."""

_WRITE_BYTES = 65_536
_NOT_RUN = (NoScriptError, AskError, TryAgainError, ClusterDownError, BusyLoadingError, ReadOnlyError)
_SERVER_WORDS = frozenset({"OOM"})
# Said by the server before a script runs, and unknown to redis-py.
_SERVER_REFUSALS = frozenset({"BUSY", "MISCONF", "NOREPLICAS"})
_pack = cast(Callable[[tuple[Value, ...]], bytes], hiredis.pack_command)
_INCLUDE = re.compile(r'\s*--- @include "([^"]*)"\s*')
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

    @property
    def writes(self) -> bool:
        """Whether it may write."""
        return "no-writes" not in self.flags

    @property
    def bundle(self) -> _Lines:
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
        flags=_read_flags(lines),
        lines=tuple(line for _, line in lines),
    )
    _counting_forms[script.sha1] = found
    return found


_CALLED = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_CONTAINERS = frozenset({"MEMORY", "OBJECT"})
_ASKED_INSTEAD = {
    "del": "exists", "expire": "exists", "hdel": "hmget", "hincrby": "hget", "hset": "hmget", "lpop": "lrange",
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
    source = "".join(text for text, _ in lines)
    flags = _read_flags(lines)
    header = _read_header(lines)
    return Script(
        name=name,
        source=source,
        sha1=_sha1(source),
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


def _sha1(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


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


class Call(NamedTuple):
    """A script with its keys and arguments.

    :param keys: every key that the script touches.
    """

    script: Script
    keys: Sequence[Value] = ()
    args: Sequence[Value] = ()

    @property
    def command(self) -> tuple[Value, ...]:
        """Command that runs the script."""
        return command(self.script, self.keys, self.args)

    @property
    def client_id(self) -> bytes:
        """What :func:`client_id` says of its keys."""
        return client_id(self.keys)


def command(script: Script, keys: Sequence[Value], args: Sequence[Value]) -> tuple[Value, ...]:
    """Return the command that runs a script."""
    return ("EVALSHA", script.sha1, len(keys), *keys, *args)


def client_id(keys: Sequence[Value]) -> bytes:
    """Return what all keys of a client or queue have in common: calls with the same are kept in order."""
    return key_owner(keys[0]) if keys else b""


def refused_by_cluster(calls: Sequence[Call], client_ids: Sequence[bytes]) -> dict[bytes, QueuekeeperError]:
    """Return why a cluster does not serve some of the calls, by client id.

    :param client_ids: what :func:`client_id` says of each call.
    """
    refused: dict[bytes, QueuekeeperError] = {}
    for call, name in zip(calls, client_ids, strict=True):
        if b"{}" in name and name not in refused:
            try:
                check_served(call.keys)
            except ScatteredClient as error:
                refused[name] = error
    return refused


class Replies(list[Reply]):
    """Replies in the order of their calls. Where a call failed, its exception stands.

    :ivar replicated: for each call, whether as many replicas as asked for have what it wrote; none where none were
        asked for, and where the call failed or its script only reads.
    """

    def __init__(self, count: int) -> None:
        super().__init__([None] * count)
        self.replicated: list[bool | None] = [None] * count

    def or_raise(self) -> Replies:
        """Return the replies themselves, or raise the first exception among them."""
        for reply in self:
            if isinstance(reply, QueuekeeperError):
                raise reply
        return self


def has_not_run(reply: Reply) -> bool:
    """Return whether a reply says that the script was not begun and will be if it is sent again, soon or elsewhere.

    NOSCRIPT, MOVED, ASK, TRYAGAIN, CLUSTERDOWN, MASTERDOWN, LOADING, READONLY (a demoted master) and BUSY.
    """
    return isinstance(reply, _NOT_RUN) or (type(reply) is ResponseError and str(reply).startswith("BUSY "))


def pause_s(reply: Reply, attempt: int) -> float:
    """Return how long to wait before a script that has not run is sent again.

    :param attempt: how often it was sent again before; what is first sent elsewhere needs no wait, and what has to be
        loaded must not wait, as somebody may flush the scripts again meanwhile.
    """
    if isinstance(reply, NoScriptError) or (attempt == 0 and isinstance(reply, AskError)):
        return 0.0
    return float(min(0.5, 0.01 * 2 ** min(attempt, 6)))


def as_ours(error: BaseException, script: Script, address: str) -> QueuekeeperError:
    """Return our exception for an error reply or a failed exchange."""
    text = str(error)
    word = text.partition(" ")[0].lstrip("-")
    if word in script.errors:
        return from_lua(error)
    # redis-py gives errors that it knows a class of their own and takes the word away.
    if type(error) is not ResponseError or word in _SERVER_REFUSALS:
        return from_redis(error, address)
    if word in LUA_ERRORS:
        return ScriptError(f"{script.name} answered {word}, which its header does not declare: {text}")
    return ScriptError(f"{script.name}: {script.locate(text)}")


def check_replicas(replicas: int, replica_timeout_ms: int) -> None:
    """Check how many replicas are to be waited for, and for how long.

    :raises UsageError: when a number is out of range; WAIT would never end with 0 ms.
    """
    most_ms = REPLY_TIMEOUT_S * 500
    if replicas < 0 or not 1 <= replica_timeout_ms <= most_ms:
        raise UsageError(
            f"cannot wait {replica_timeout_ms} ms for {replicas} replicas: 0 or more replicas, 1 to {most_ms} ms"
        )


class ScriptCaller:
    """Calls scripts on a single server or a cluster; ``redis_async.AsyncScriptCaller`` does the same for asyncio.

    A script whose answer says that it has not run is sent again, for a bounded time: it is loaded where it is not
    known, follows its slot through a cluster that is being resharded, and waits for a server that is loading. After a
    lost connection or a timeout nobody knows whether it has run: that is the call's error, and the caller decides.

    Calls that share a client id (the part of the first key up to its last closing brace) are never in flight
    together: a second one is sent when the first has been answered. So neither a script that has to be loaded in
    between nor a slot that moves can change their order.

    :param replicas: how many replicas to wait for after the calls of an ``execute``, once per server; 0 waits for none.
    :param replica_timeout_ms: how long to wait for them.
    :param retry_for_s: how long a script that has not run is sent again.
    :param counts_only: scripts answer what they would do, and write nothing: see :func:`counting`.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        replicas: int = 0,
        replica_timeout_ms: int = REPLICA_TIMEOUT_MS,
        retry_for_s: float = RETRY_FOR_S,
        counts_only: bool = False,
    ) -> None:
        check_replicas(replicas, replica_timeout_ms)
        self.counts_only = counts_only
        self._client = client
        self._replicas = replicas
        self._replica_timeout_ms = replica_timeout_ms
        self._retry_for_s = retry_for_s

    def call(self, script: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> Reply:
        """Run one script and return its reply.

        :param keys: every key that the script touches.
        :raises QueuekeeperError: the exception that ``errors.LUA_ERRORS`` names for the script's error word;
            ``ScriptError`` for an error that the header does not declare; ``ServerUnavailable``.
        """
        return self.execute([Call(script, keys, args)]).or_raise()[0]

    def execute(self, calls: Sequence[Call]) -> Replies:
        """Run many calls in few round trips and return their replies in order.

        Exceptions, as :meth:`call` raises them, take the places of replies. After a failed call the later calls of its
        client id are not sent; they hold the same exception.
        """
        if self.counts_only:
            calls = [call._replace(script=counting(call.script)) for call in calls]
        replies = Replies(len(calls))
        client_ids = [call.client_id for call in calls]
        is_cluster = isinstance(self._client, redis.RedisCluster)
        failed = refused_by_cluster(calls, client_ids) if is_cluster else {}
        with _Lanes(self._client, replicas=self._replicas) as lanes:
            for wave in _waves(client_ids):
                sendable: list[int] = []
                for index in wave:
                    earlier = failed.get(client_ids[index])
                    if earlier is None:
                        sendable.append(index)
                    else:
                        replies[index] = earlier
                self._send(lanes, calls, sendable, replies)
                for index in sendable:
                    if isinstance(replies[index], QueuekeeperError):
                        failed[client_ids[index]] = replies[index]
            if self._replicas:
                lanes.confirm(timeout_ms=self._replica_timeout_ms, replies=replies)
        return replies

    def still_there(self, count: int) -> int:
        """Return how many of what calls say to have removed is there yet: where a next page begins behind it."""
        return count if self.counts_only else 0

    def await_wake(self, key: str | bytes, *, timeout_s: float) -> bool:
        """Take a member of a sorted set as soon as it has one, on a connection of its own.

        :param timeout_s: how long to wait at most.
        :returns: whether there was one.
        :raises ServerUnavailable: when the connection is lost; a member may have been taken by then.
        """
        give_up_at = time.monotonic() + timeout_s
        slice_s = longest_wait_s(_reply_timeout_s(self._client))
        with redis_errors(address_of(self._client)):
            while (left_s := give_up_at - time.monotonic()) > 0:
                if self._client.bzpopmin(key, timeout=wait_s(min(slice_s, left_s))) is not None:
                    return True
        return False

    def _send(self, lanes: _Lanes, calls: Sequence[Call], wave: list[int], replies: Replies) -> None:
        """Send calls of different client ids until each has run or failed, and store their replies."""
        give_up_at = time.monotonic() + self._retry_for_s
        # Position -> the server that ASK named; none is the one that holds the slot.
        targets: dict[int, str | None] = dict.fromkeys(wave)
        attempt = 0
        while targets:
            lanes.exchange(calls, targets, replies)
            again: dict[int, str | None] = {}
            wait_s = 0.0
            for index, target in targets.items():
                reply = replies[index]
                if not isinstance(reply, BaseException):
                    continue
                if has_not_run(reply) and time.monotonic() < give_up_at:
                    again[index] = target_of(reply, target)
                    wait_s = max(wait_s, pause_s(reply, attempt))
                else:
                    replies[index] = as_ours(reply, calls[index].script, lanes.asked.get(index, lanes.address))
            if again and any(isinstance(replies[index], MovedError | ClusterDownError) for index in again):
                lanes.refresh()
            if wait_s:
                time.sleep(wait_s)
            targets = again
            attempt += 1


def longest_wait_s(reply_timeout_s: float | None) -> float:
    """Return how long one blocking command may wait on a connection whose replies are waited for so long."""
    return LONGEST_WAIT_S if reply_timeout_s is None else min(LONGEST_WAIT_S, reply_timeout_s / 2)


def wait_s(seconds: float) -> float:
    """Return a timeout as a blocking command takes it: the server reads 0 as for ever."""
    return max(0.001, round(seconds, 3))


def _reply_timeout_s(client: RedisClient) -> float | None:
    if isinstance(client, redis.RedisCluster):
        timeout_s = client.nodes_manager.connection_kwargs.get("socket_timeout")
    else:
        timeout_s = client.connection_pool.connection_kwargs.get("socket_timeout")
    return None if timeout_s is None else float(timeout_s)


def target_of(reply: Reply, target: str | None) -> str | None:
    """Return the server, as ``host:port``, that a script which has not run is to be sent to under ASKING.

    :param target: the one that it was sent to so.
    :returns: none for the server that holds the slot.
    """
    if isinstance(reply, NoScriptError):
        return target
    if isinstance(reply, AskError) and not isinstance(reply, MovedError):
        return f"{reply.host}:{reply.port}"
    return None


@dataclass
class _Lane:
    """The one connection of an ``execute`` to a server: WAIT speaks of what its own connection has written.

    :ivar unknown: scripts that the server does not know, to be loaded by the next exchange.
    :ivar written: positions of calls that have written.
    """

    pool: redis.ConnectionPool
    connection: Any
    address: str
    unknown: dict[str, Script] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)

    def send(self, commands: Sequence[tuple[Value, ...]]) -> None:
        self.connection.send_packed_command(_packed(commands))

    def read(self) -> Reply:
        """Return a reply or an error reply; what is raised means that the connection is lost."""
        try:
            return self.connection.read_response(disconnect_on_error=False)
        except (ResponseError, BusyLoadingError) as error:
            return error


class _Lanes:
    """The connections of one ``execute``, opened when first needed and given back at its end.

    :ivar asked: position of a call -> address of the server that was asked last.
    """

    def __init__(self, client: RedisClient, *, replicas: int) -> None:
        self.address = address_of(client)
        self.asked: dict[int, str] = {}
        self._client = client
        self._replicas = replicas
        self._lanes: dict[str, _Lane] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for lane in list(self._lanes.values()):
            # Whoever is interrupted leaves replies unread, and they are not to be taken for another call's.
            self._give_back(lane, usable=kind is None)

    def exchange(self, calls: Sequence[Call], targets: dict[int, str | None], replies: Replies) -> None:
        """Send calls, to all servers before the first reply is read; a call without an answer holds what went wrong."""
        sent: list[tuple[_Lane, list[Script], list[int]]] = []
        for address, indexes in self._by_server(calls, targets, replies).items():
            self.asked.update(dict.fromkeys(indexes, address))
            lane = self._open(address, indexes, replies)
            if lane is None:
                continue
            scripts, lane.unknown = list(lane.unknown.values()), {}
            commands: list[tuple[Value, ...]] = [("SCRIPT", "LOAD", script.source) for script in scripts]
            for index in indexes:
                if targets[index] is not None:
                    commands.append(("ASKING",))
                commands.append(calls[index].command)
            try:
                lane.send(commands)
            except (RedisError, OSError) as error:
                self._lose(lane, error, indexes, replies)
            else:
                sent.append((lane, scripts, indexes))
        for lane, scripts, indexes in sent:
            self._read(lane, scripts, indexes, calls, targets, replies)

    def confirm(self, *, timeout_ms: int, replies: Replies) -> None:
        """Wait once per server until replicas have what was written there, and note whether they do."""
        waiting = [lane for lane in self._lanes.values() if lane.written]
        # Sent to all servers at once, so that the waits overlap.
        for lane in list(waiting):
            try:
                lane.send([("WAIT", self._replicas, timeout_ms)])
            except (RedisError, OSError) as error:
                self._lose(lane, error, [], replies)
                waiting.remove(lane)
        for lane in waiting:
            try:
                confirmed = lane.read()
            except (RedisError, OSError) as error:
                self._lose(lane, error, [], replies)
            else:
                for index in lane.written:
                    replies.replicated[index] = isinstance(confirmed, int) and confirmed >= self._replicas

    def refresh(self) -> None:
        """Read again which server holds which slot; when nobody answers, what is known stays."""
        if isinstance(self._client, redis.RedisCluster):
            with suppress(RedisError, RedisClusterException, OSError):
                self._client.nodes_manager.initialize()

    def _by_server(
        self, calls: Sequence[Call], targets: dict[int, str | None], replies: Replies
    ) -> dict[str, list[int]]:
        if not isinstance(self._client, redis.RedisCluster):
            return {self.address: list(targets)}
        groups: dict[str, list[int]] = {}
        for index, target in targets.items():
            keys = calls[index].keys
            try:
                address = target or str(self._holder(self._client, keys).name)
            except (RedisError, RedisClusterException, AttributeError):
                replies[index] = ClusterDownError("no node serves the slot")
            else:
                groups.setdefault(address, []).append(index)
        return groups

    @staticmethod
    def _holder(cluster: redis.RedisCluster, keys: Sequence[Value]) -> Any:
        if keys:
            return cluster.get_node_from_key(keys[0])  # type: ignore[no-untyped-call]
        return cluster.get_default_node()  # type: ignore[no-untyped-call]

    def _open(self, address: str, indexes: list[int], replies: Replies) -> _Lane | None:
        lane = self._lanes.get(address)
        if lane is not None:
            return lane
        try:
            pool = self._server(address).connection_pool
            lane = _Lane(pool, pool.get_connection(), address)
        except (RedisError, RedisClusterException, OSError) as error:
            for index in indexes:
                replies[index] = error
                if isinstance(self._client, redis.RedisCluster):
                    # Another server may take the slots over.
                    replies[index] = ClusterDownError(f"{address} cannot be reached: {error}")
        else:
            self._lanes[address] = lane
        return lane

    def _server(self, address: str) -> redis.Redis:
        if not isinstance(self._client, redis.RedisCluster):
            return self._client
        node = self._client.get_node(node_name=address)  # type: ignore[no-untyped-call]
        if node is None:
            self.refresh()
            node = self._client.get_node(node_name=address)  # type: ignore[no-untyped-call]
        if node is None:
            raise ClusterDownError(f"the cluster does not list {address}")
        return self._client.get_redis_connection(node)

    def _read(
        self,
        lane: _Lane,
        scripts: list[Script],
        indexes: list[int],
        calls: Sequence[Call],
        targets: dict[int, str | None],
        replies: Replies,
    ) -> None:
        remaining = list(indexes)
        refusals: dict[str, Reply] = {}
        try:
            for script in scripts:
                refusals[script.sha1] = lane.read()
            for index in indexes:
                if targets[index] is not None:
                    lane.read()
                reply = lane.read()
                script = calls[index].script
                if isinstance(reply, NoScriptError):
                    refusal = refusals.get(script.sha1)
                    if isinstance(refusal, BaseException) and not has_not_run(refusal):
                        # It could not be loaded: the reason says more than NOSCRIPT does.
                        reply = refusal
                    lane.unknown[script.sha1] = script
                elif self._replicas and not isinstance(reply, BaseException) and script.writes:
                    lane.written.append(index)
                replies[index] = reply
                remaining.remove(index)
        except (RedisError, OSError) as error:
            self._lose(lane, error, remaining, replies)

    def _lose(self, lane: _Lane, error: BaseException, indexes: list[int], replies: Replies) -> None:
        for index in indexes:
            replies[index] = lost(error, lane.address)
        for index in lane.written:
            replies.replicated[index] = False
        self._give_back(lane, usable=False)

    def _give_back(self, lane: _Lane, *, usable: bool) -> None:
        del self._lanes[lane.address]
        if not usable:
            lane.connection.disconnect()
        lane.pool.release(lane.connection)


def _packed(commands: Sequence[tuple[Value, ...]]) -> list[bytes]:
    """Return commands as they are written, in few pieces; redis-py's own packing takes twice the time for it."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    size_bytes = 0
    try:
        for words in commands:
            text = _pack(words)
            piece.append(text)
            size_bytes += len(text)
            if size_bytes >= _WRITE_BYTES:
                pieces.append(b"".join(piece))
                piece = []
                size_bytes = 0
    except TypeError as error:
        raise redis.DataError(str(error)) from None
    pieces.append(b"".join(piece))
    return pieces


def _waves(client_ids: Sequence[bytes]) -> list[list[int]]:
    """Split calls so that no wave holds two of one client id, and each client id keeps its order."""
    waves: list[list[int]] = []
    seen: dict[bytes, int] = {}
    for index, name in enumerate(client_ids):
        number = seen.get(name, 0)
        seen[name] = number + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(index)
    return waves


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
