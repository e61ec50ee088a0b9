"""Sends commands of many tasks in few writes over one asyncio connection to one server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import hiredis
import redis
import redis.asyncio
from redis.connection import DefaultParser
from redis.exceptions import AuthenticationError, InvalidResponse, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queuekeeper.checks import check_integer
from queuekeeper.clock import Backoff
from queuekeeper.errors import QueuekeeperError, ServerUnavailable, UsageError
from queuekeeper.redis_client import DEFAULTS, Words, from_redis, pack, read_url, unknown_option

_ASYNCIO_CLASSES = {
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}
_POOL_OPTIONS = frozenset({"connection_class", "max_connections", "timeout"})
_REOPENING = Backoff(first_s=0.05, longest_s=1.0)

MAX_FLUSHES = 10_000
MAX_FLUSH_COMMANDS = 1_000_000
MAX_BYTES = 2**40

_parse_error = cast(Callable[[str], Exception], DefaultParser.parse_error)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address of a server, and the credentials for it.

    :param path: path of a Unix socket, which replaces host and port.
    """

    host: str
    port: int
    path: str | None
    username: str | None
    password: str | None = field(repr=False)
    database: int
    client_name: str | None
    tls: ssl.SSLContext | None
    connect_timeout_s: float | None
    reply_timeout_s: float | None

    @property
    def address(self) -> str:
        """``host:port`` or the path, for messages."""
        return self.path or f"{self.host}:{self.port}"

    def at(self, host: str, port: int) -> Endpoint:
        """Return the endpoint of another node of the same cluster."""
        return replace(self, host=host, port=port, path=None)

    @property
    def greeting(self) -> list[Words]:
        """Commands that begin a connection."""
        words: list[Words] = []
        if self.password is not None:
            words.append(("AUTH", *([self.username] if self.username else []), self.password))
        if self.client_name:
            words.append(("CLIENT", "SETNAME", self.client_name))
        if self.database:
            words.append(("SELECT", self.database))
        return words


def endpoint(url: str) -> Endpoint:
    """Return the endpoint of a URL, which may be any that :func:`redis_client.connect` takes.

    :raises UsageError: when the URL does not parse or has an unknown option.
    """
    address, _, options = read_url(url)
    kind: Any = _ASYNCIO_CLASSES.get(options.get("connection_class", redis.Connection), redis.asyncio.Connection)
    try:
        # This client is never connected; it only gives redis-py's options and defaults, such as those of TLS.
        read: Any = kind(**DEFAULTS | {name: options[name] for name in options.keys() - _POOL_OPTIONS})
        tls = read.ssl_context.get() if isinstance(read, redis.asyncio.SSLConnection) else None
    except TypeError as error:
        raise unknown_option(error, address) from None
    except (RedisError, OSError) as error:
        raise from_redis(error, address) from error
    return Endpoint(
        host=getattr(read, "host", "localhost"),
        port=int(getattr(read, "port", 6379)),
        path=getattr(read, "path", None),
        username=read.username,
        password=read.password,
        database=int(read.db or 0),
        client_name=read.client_name,
        tls=tls,
        connect_timeout_s=read.socket_connect_timeout,
        reply_timeout_s=read.socket_timeout,
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a connection; commands beyond them wait unpacked, and so do their senders.

    :param flushes: number of writes that may await their replies at once; meanwhile commands gather for the next write.
    :param flush_commands: largest number of commands in a write.
    :param flush_bytes: size in bytes at which a write is complete.
    :param large_flushes: number of writes at once when replies will have ``large_bytes`` or more, judged by the latest
        replies. A server replies only after it has done all commands that it has read, so with several smaller writes
        a client gets some of its replies while the server works on the others.
    :raises UsageError: when a number is out of range.
    """

    flushes: int = 2
    flush_commands: int = 1_000
    flush_bytes: int = 1_000_000
    large_flushes: int = 8
    large_bytes: int = 64_000

    def __post_init__(self) -> None:
        check_integer("flushes", self.flushes, 1, MAX_FLUSHES)
        check_integer("flush_commands", self.flush_commands, 1, MAX_FLUSH_COMMANDS)
        check_integer("flush_bytes", self.flush_bytes, 1, MAX_BYTES)
        check_integer("large_flushes", self.large_flushes, 1, MAX_FLUSHES)
        check_integer("large_bytes", self.large_bytes, 1, MAX_BYTES)


class Sent(Protocol):
    """Object that awaits a reply; one of its methods is called."""

    def answered(self, reply: Any) -> None:
        """Take the reply, or the error reply as redis-py's exception."""

    def lost(self, cause: BaseException) -> None:
        """Handle the loss of the connection before the reply came."""


class Command(Sent, Protocol):
    """Command that a connection sends."""

    replicated: bool | None
    future: asyncio.Future[Any]

    @property
    def words(self) -> Words:
        """Words of the command."""

    @property
    def writes(self) -> bool:
        """Whether replicas must confirm the command."""

    def dropped(self) -> None:
        """Handle that the command was not written because its future was done."""

    def unsent(self, error: QueuekeeperError, *, may_heal: bool) -> None:
        """Handle that the command was not written because there is no connection or it cannot be packed.

        :param may_heal: whether the command may succeed a little later.
        """


class Question:
    """A command whose future results in the reply, or in the exception, which is not raised."""

    writes = False
    replicated: bool | None = None

    def __init__(self, words: Words) -> None:
        self.words = words
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(self, reply: Any) -> None:
        """Settle the future."""
        if not self.future.done():
            self.future.set_result(reply)

    def lost(self, cause: BaseException) -> None:
        """Settle the future."""
        self.answered(cause)

    def dropped(self) -> None:
        """Do nothing: nobody waits any more."""

    def unsent(self, error: QueuekeeperError, *, may_heal: bool) -> None:
        """Settle the future."""
        del may_heal
        self.answered(error)


class _Wire(asyncio.Protocol):
    """One socket, from its connection to its loss.

    :ivar in_flight: commands that were written and have no reply yet, in order.
    :ivar flushes: for each write without all its replies: the number of its last command, and when it was written.
    :ivar reply_bytes: average size of the latest replies.
    :ivar heard_at_s: when bytes last came.
    """

    transport: asyncio.Transport

    def __init__(self, settled: Callable[[], None], ended: Callable[[_Wire, BaseException], None]) -> None:
        self.in_flight: deque[Sent] = deque()
        self.flushes: deque[tuple[int, float]] = deque()
        self.written = 0
        self.reply_bytes = 0.0
        self.heard_at_s = 0.0
        self._answered = 0
        self._unread_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_parse_error)
        self._settled = settled
        self._ended = ended
        self._cause: BaseException | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and enable keep-alive, so that the system notices a dead peer."""
        self.transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def write(self, commands: list[bytes], now_s: float) -> None:
        """Write packed commands at once; their senders are in flight already."""
        self.written += len(commands)
        self.flushes.append((self.written, now_s))
        self.transport.write(b"".join(commands))

    def data_received(self, data: bytes) -> None:
        """Give replies to their commands."""
        self.heard_at_s = self._loop.time()
        self._reader.feed(data)
        next_reply = self._reader.gets
        next_command = self.in_flight.popleft
        answered = self._answered
        try:
            # False is not a reply in RESP2: it means that the next reply has not arrived completely.
            while (reply := next_reply()) is not False:
                answered += 1
                next_command().answered(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.abort(InvalidResponse(str(error)))
            return
        self._unread_bytes += len(data)
        if answered > self._answered:
            self.reply_bytes = self._unread_bytes / (answered - self._answered)
            self._unread_bytes = 0
        self._answered = answered
        flushes = self.flushes
        while flushes and flushes[0][0] <= answered:
            flushes.popleft()
        self._settled()

    def abort(self, cause: BaseException) -> None:
        """End the connection at once."""
        self._cause = self._cause or cause
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report why the connection ended."""
        self._ended(self, self._cause or exc or RedisConnectionError("Connection closed by server."))


class _Held:
    """A write whose reply waits until the replicas have confirmed it."""

    __slots__ = ("_command", "_confirmation")

    def __init__(self, command: Command, confirmation: _Confirmation) -> None:
        self._command = command
        self._confirmation = confirmation

    def answered(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._command.answered(reply)
        else:
            self._confirmation.held.append((self._command, reply))

    def lost(self, cause: BaseException) -> None:
        self._command.lost(cause)


class _Confirmation:
    """A WAIT after the commands of a write."""

    def __init__(self, replicas: int) -> None:
        self.held: list[tuple[Command, Any]] = []
        self._replicas = replicas

    def answered(self, reply: Any) -> None:
        enough = isinstance(reply, int) and reply >= self._replicas
        for command, own_reply in self.held:
            command.replicated = enough
            command.answered(own_reply)

    def lost(self, cause: BaseException) -> None:
        del cause
        # The scripts have run, and their replies have come.
        self.answered(None)


class Connection:
    """A connection that is opened again after a loss, and then sends the commands that were not yet written.

    Commands of one tick of the event loop are sent in one write. At most ``limits.flushes`` writes, and some more if
    replies are large, await their replies; meanwhile commands gather, so that batches grow with the load without a
    timer. Replies come in the order of the commands.

    :param replicas: number of replicas that each write with a writing command waits for; 0 waits for none.
    :param lacking: called when the connection could not be opened.
    """

    def __init__(
        self,
        target: Endpoint,
        *,
        limits: Limits,
        replicas: int = 0,
        replica_timeout_ms: int = 0,
        lacking: Callable[[], None] = lambda: None,
    ) -> None:
        self.endpoint = target
        self.address = target.address
        self._limits = limits
        self._replicas = replicas
        self._wait: Words = ("WAIT", replicas, replica_timeout_ms)
        self._lacking = lacking
        self._patience_s: float | None = None
        if target.reply_timeout_s is not None:
            flushes = max(limits.flushes, limits.large_flushes)
            self._patience_s = target.reply_timeout_s + flushes * replica_timeout_ms / 1_000 * bool(replicas)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Command] = deque()
        self._wire: _Wire | None = None
        self._wires: set[_Wire] = set()
        self._opening: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._failures = 0
        self._scheduled = False
        self._stale = False
        self._closed = False

    @property
    def _closing_error(self) -> ServerUnavailable:
        return ServerUnavailable(f"the connection to Redis at {self.address} was closed by us: nothing was sent")

    @property
    def is_open(self) -> bool:
        """Whether commands can be written now."""
        return self._wire is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written or answered."""
        return not self._queue and (self._wire is None or not self._wire.in_flight)

    def send(self, command: Command) -> None:
        """Send a command at the end of this tick, or as soon as a write is possible."""
        self._queue.append(command)
        if not self._scheduled:
            self._schedule()

    async def ask(self, *words: str | bytes | int) -> Any:
        """Send any command and return its reply.

        :raises QueuekeeperError: for an error reply, and when the server cannot be reached.
        """
        question = Question(words)
        self.send(question)
        reply = await question.future
        if isinstance(reply, BaseException):
            raise from_redis(reply, self.address)
        return reply

    def renew(self) -> None:
        """Connect again before anything else is written, since the address may now belong to another server."""
        self._stale = True
        self._schedule()

    async def close(self) -> None:
        """Close the connection; commands without a reply fail."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._return_queue(self._closing_error, may_heal=False)
        for wire in list(self._wires):
            self._end(wire, ServerUnavailable(f"the connection to Redis at {self.address} was closed by us"))
            wire.transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        # The transports close their sockets in the next tick.
        await asyncio.sleep(0)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        queue = self._queue
        if not queue:
            return
        wire = self._wire
        if wire is not None and self._stale:
            if wire.in_flight:
                return
            self._end(wire, RedisConnectionError("renewed"))
            wire.transport.abort()
            wire = None
        if wire is None:
            self._reopen()
            return
        if wire.transport.is_closing():
            # The loss is reported soon; commands that are not written can still be sent elsewhere.
            return
        limits = self._limits
        flushes = wire.flushes
        while queue and (
            len(flushes) < limits.flushes
            or (len(flushes) < limits.large_flushes and len(queue) * wire.reply_bytes >= limits.large_bytes)
        ):
            packed = self._take(wire, limits)
            if packed:
                wire.write(packed, self._loop.time())
        if flushes and self._watch is None and self._patience_s is not None:
            self._watch = self._loop.call_later(self._patience_s / 4, self._look)

    def _take(self, wire: _Wire, limits: Limits) -> list[bytes]:
        """Move commands from the queue to those in flight, and return their bytes."""
        queue = self._queue
        next_command = queue.popleft
        sent = wire.in_flight.append
        replicas = self._replicas
        most = limits.flush_commands
        most_bytes = limits.flush_bytes
        packed: list[bytes] = []
        size_bytes = 0
        confirmation: _Confirmation | None = None
        while queue and len(packed) < most and size_bytes < most_bytes:
            command = next_command()
            if command.future.done():
                command.dropped()
                continue
            try:
                text = pack(command.words)
            except UsageError as error:
                command.unsent(error, may_heal=False)
                continue
            packed.append(text)
            size_bytes += len(text)
            if replicas and command.writes:
                confirmation = confirmation or _Confirmation(replicas)
                sent(_Held(command, confirmation))
            else:
                sent(command)
        if confirmation is not None:
            packed.append(pack(self._wait))
            sent(confirmation)
        return packed

    def _look(self) -> None:
        """Close a connection that owes a reply and has been silent too long; a large reply may take longer to come."""
        self._watch = None
        wire = self._wire
        if wire is None or not wire.flushes or self._patience_s is None:
            return
        left_s = max(wire.flushes[0][1], wire.heard_at_s) + self._patience_s - self._loop.time()
        if left_s <= 0:
            error = RedisTimeoutError("no reply in time")
            self._end(wire, error)
            wire.abort(error)
        else:
            self._watch = self._loop.call_later(max(left_s, self._patience_s / 4), self._look)

    def _reopen(self) -> None:
        if self._closed:
            self._return_queue(self._closing_error, may_heal=False)
        elif self._opening is None:
            self._opening = self._loop.create_task(self._open_wire())

    async def _open_wire(self) -> None:
        """Connect and log in; on failure, return the queue to its senders, which decide whether to send again."""
        try:
            await asyncio.sleep(_REOPENING.after(self._failures - 1) if self._failures else 0.0)
            async with asyncio.timeout(self.endpoint.connect_timeout_s):
                wire = await self._greeted()
        except Exception as error:
            # Any exception is caught: without an answer, senders would wait for ever.
            self._failures += 1
            self._opening = None
            refused = isinstance(error, AuthenticationError | ResponseError | ssl.SSLError)
            refused = refused or not isinstance(error, RedisError | OSError)
            self._return_queue(
                from_redis(error, self.address, secret=self.endpoint.password or ""), may_heal=not refused
            )
            self._lacking()
        else:
            self._failures = 0
            self._opening = None
            self._stale = False
            if not wire.transport.is_closing():
                self._wire = wire
            self._schedule()

    async def _greeted(self) -> _Wire:
        target = self.endpoint
        wire = _Wire(self._schedule, self._end)
        if target.path is not None:
            await self._loop.create_unix_connection(lambda: wire, target.path)
        else:
            name = target.host if target.tls is not None else None
            await self._loop.create_connection(
                lambda: wire, target.host, target.port, ssl=target.tls, server_hostname=name
            )
        self._wires.add(wire)
        greeting = [Question(words) for words in target.greeting]
        wire.in_flight.extend(greeting)
        try:
            wire.write([pack(question.words) for question in greeting], self._loop.time())
            for question in greeting:
                reply = await question.future
                if isinstance(reply, BaseException):
                    raise reply
        except BaseException:
            wire.transport.abort()
            raise
        return wire

    def _end(self, wire: _Wire, cause: BaseException) -> None:
        """Fail commands without a reply on a lost connection, and connect again if commands wait."""
        if wire not in self._wires:
            return
        self._wires.remove(wire)
        if self._wire is wire:
            self._wire = None
        while wire.in_flight:
            wire.in_flight.popleft().lost(cause)
        if self._queue:
            self._schedule()

    def _return_queue(self, error: QueuekeeperError, *, may_heal: bool) -> None:
        queue, self._queue = self._queue, deque()
        for command in queue:
            if command.future.done():
                command.dropped()
            else:
                # Each command gets its own exception, because raising adds a traceback to it.
                command.unsent(type(error)(str(error)), may_heal=may_heal)
