"""Calls Lua scripts from asyncio, on a single server or a cluster."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import ClusterDownError, MovedError, NoScriptError, ReadOnlyError, ResponseError

from queuekeeper.checks import checked_but, shown
from queuekeeper.closing import AsyncClosing, Opening
from queuekeeper.errors import QueuekeeperError, ServerUnavailable, UsageError
from queuekeeper.keyspace import SLOTS, hash_slot
from queuekeeper.lua.bundle import Script
from queuekeeper.lua.call import (
    REPLICA_TIMEOUT_MS,
    Call,
    Replies,
    Reply,
    Value,
    as_ours,
    check_waits,
    client_id,
    command,
    has_not_run,
    longest_wait_s,
    pause_s,
    refused_by_cluster,
    target_of,
    wait_s,
)
from queuekeeper.lua.caller import ScriptCaller
from queuekeeper.redis_client import CONNECT_TIMEOUT_S, RETRY_FOR_S, Words, from_redis, lost
from queuekeeper.redis_connection import Connection, Endpoint, Limits, Question, endpoint

_REFRESH_PAUSE_S = 0.1


def check_caller(caller: Any) -> None:
    """Refuse an object that asyncio stores cannot make calls by; drivers like :class:`AsyncScriptCaller` are accepted.

    :raises UsageError: when it lacks a needed method; the message names the object.
    """
    if isinstance(caller, ScriptCaller) or not callable(getattr(caller, "execute", None)):
        raise UsageError(f"caller is {shown(caller)}: it must be an AsyncScriptCaller, as redis_async.connect opens it")


@checked_but("replicas", "replica_timeout_ms")  # which check_waits refuses
def connect(
    url: str,
    *,
    replicas: int = 0,
    replica_timeout_ms: int = REPLICA_TIMEOUT_MS,
    retry_for_s: float = RETRY_FOR_S,
    limits: Limits | None = None,
) -> Opening[AsyncScriptCaller]:
    """Open a connection to a single server, or to the cluster that the server belongs to.

    ``async with connect(url) as caller:`` also closes it; after ``caller = await connect(url)``, close it yourself.

    :param url: address as for :func:`redis_client.connect`; ``socket_timeout`` is the time limit of a reply in seconds.
    :param replicas: number of replicas to wait for after each write with a writing call; 0 waits for none.
    :param replica_timeout_ms: time limit of the wait for replicas.
    :param retry_for_s: time for which a script that has not run is sent again.
    :raises UsageError: when the URL does not parse or names a database that a cluster does not have.
    :raises ServerUnavailable: when the server cannot be reached or refuses us, with the cause and what to do.
    """
    check_waits(replicas, replica_timeout_ms, retry_for_s)
    where = endpoint(url)

    async def opened() -> AsyncScriptCaller:
        caller = AsyncScriptCaller(
            where,
            replicas=replicas,
            replica_timeout_ms=replica_timeout_ms,
            retry_for_s=retry_for_s,
            limits=limits or Limits(),
        )
        try:
            await caller.open()
        except BaseException:
            await caller.close()
            raise
        return caller

    return Opening(opened)


class _Batch:
    """The calls of one ``execute``, or the call of one ``call``.

    :ivar single: whether the future's result is one reply, and its exception the error instead of that reply.
    """

    __slots__ = ("caller", "failed", "future", "remaining", "replies", "single")

    def __init__(self, caller: AsyncScriptCaller, count: int, future: asyncio.Future[Any], *, single: bool) -> None:
        self.caller = caller
        self.replies = Replies(count)
        self.remaining = count
        self.failed: dict[bytes, QueuekeeperError] = {}
        self.future = future
        self.single = single

    def end(self) -> None:
        """Give the replies to the caller that waits for them."""
        if self.future.done():
            return
        if not self.single:
            self.future.set_result(self.replies)
        elif isinstance(self.replies[0], QueuekeeperError):
            self.future.set_exception(self.replies[0])
        else:
            self.future.set_result(self.replies[0])


class _Request:
    """A call that has no reply yet.

    :ivar future: future of the batch that the call belongs to.
    :ivar target: server that an ASK error named, if any.
    :ivar attempts: number of times that the call was sent again.
    :ivar since_s: when the call began to wait for the one before it, if it did.
    :ivar give_up_at: when it is no longer sent again; counts from the first attempt that failed, its own or that of a
        call that it waited for.
    """

    __slots__ = (
        "attempts",
        "batch",
        "call",
        "client_id",
        "connection",
        "future",
        "give_up_at",
        "index",
        "replicated",
        "since_s",
        "target",
    )

    connection: Connection | None

    def __init__(self, batch: _Batch, call: Call, index: int) -> None:
        self.batch = batch
        self.future = batch.future
        self.call = call
        self.client_id = client_id(call.keys)
        self.index = index
        self.replicated: bool | None = None
        self.target: str | None = None
        self.attempts = 0
        self.since_s = 0.0
        self.give_up_at: float | None = None

    @property
    def words(self) -> Words:
        """Words of the command, which are made when it is sent."""
        call = self.call
        return command(call.script, call.keys, call.args)

    def settle(self, reply: Reply) -> None:
        """Give the reply, or the exception, to the batch."""
        batch = self.batch
        if isinstance(reply, QueuekeeperError):
            batch.failed[self.client_id] = reply
        batch.replies[self.index] = reply
        if self.replicated is not None:
            batch.replies.replicated[self.index] = self.replicated
        batch.remaining -= 1
        if not batch.remaining:
            batch.end()

    def finish(self, reply: Reply) -> None:
        """Settle the call and send the next call of its client id."""
        self.settle(reply)
        caller = self.batch.caller
        waiting = caller.busy.pop(self.client_id)
        if waiting:
            caller.send_next(waiting)

    def answered(self, reply: Any) -> None:
        """Take the reply, or handle the error."""
        if isinstance(reply, Exception):
            self.batch.caller.refused(self, reply)
        else:
            self.finish(reply)

    def lost(self, cause: BaseException) -> None:
        """Fail, since the call may have run; in a cluster, a call that only reads is sent again."""
        caller = self.batch.caller
        if caller.is_cluster and not self.writes:
            caller.send_again(self, ClusterDownError(f"{self.address} was lost: {cause}"))
            caller.refresh()
        else:
            self.finish(lost(cause, self.address))

    def dropped(self) -> None:
        """Send the next call, since nobody waits for this one any more."""
        self.finish(None)

    def unsent(self, error: QueuekeeperError, *, may_heal: bool) -> None:
        """Send the call again a little later, or fail."""
        if may_heal:
            self.batch.caller.send_again(self, error)
        elif isinstance(error, UsageError):
            self.finish(error)
        else:
            self.batch.caller.give_up(self, error, since_s=math.inf)

    @property
    def writes(self) -> bool:
        """Whether the script may write."""
        return self.call.script.writes

    @property
    def address(self) -> str:
        """Server that the call was sent to."""
        return self.connection.address if self.connection is not None else self.batch.caller.address


class AsyncScriptCaller(AsyncClosing):
    """Calls scripts as :class:`lua.ScriptCaller` does, for many tasks at once over one connection per master.

    Make it with :func:`connect`, use it in the same event loop, and close it, or use it with ``async with``.

    Calls of one client id are never in flight together, whichever task makes them: the next call is sent after the
    reply to the one before. When a connection is lost, a call that was written fails, since it may have run; a call
    that was not yet written is sent on the next connection.
    """

    def __init__(
        self, target: Endpoint, *, replicas: int, replica_timeout_ms: int, retry_for_s: float, limits: Limits
    ) -> None:
        self.address = target.address
        self.busy: dict[bytes, deque[_Request] | None] = {}
        self._endpoint = target
        self._replicas = replicas
        self._replica_timeout_ms = replica_timeout_ms
        self._retry_for_s = retry_for_s
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._first = self._connection(target)
        self._connections = {target.address: self._first}
        # Slot -> its master's connection; empty on a single server.
        self._slots: list[Connection | None] | None = None
        self._told_by: Connection | None = None
        # A call that is sent after SCRIPT LOAD on the same connection finds the script.
        self._loading: set[tuple[str, str]] = set()
        # Connections for blocking commands, and the free ones among them, by server.
        self._waiting: set[Connection] = set()
        self._idle: dict[str, list[Connection]] = {}
        self._refusals: dict[tuple[str, str], QueuekeeperError] = {}
        self._later: dict[_Request, asyncio.TimerHandle] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at_s = 0.0
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over servers by their hash slots."""
        return self._slots is not None

    @property
    def _closing_error(self) -> ServerUnavailable:
        return ServerUnavailable(f"the connection to Redis at {self.address} was closed by us")

    async def open(self) -> None:
        """Connect, and read the slots if the server is a cluster."""
        facts = await self._first.ask("INFO", "cluster")
        if b"cluster_enabled:1" in facts:
            self._take_slots(await self._first.ask("CLUSTER", "SLOTS"), self._first)

    async def ping(self) -> None:
        """Return when every master has answered.

        Unlike a call, this is not tried again: a fault is raised at once.

        :raises ServerUnavailable: when a master cannot be reached or does not serve.
        """
        masters: set[Connection | None] = {self._first} if self._slots is None else set(self._slots)
        if None in masters:
            self.refresh()
            raise from_redis(ClusterDownError("some slots are served by no node"), self.address)
        answers = await asyncio.gather(
            *(connection.ask("PING") for connection in masters if connection is not None), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, ServerUnavailable):
                raise answer

    async def close(self) -> None:
        """Close the connections; calls without a reply fail."""
        self._closed = True
        await asyncio.gather(*(connection.close() for connection in self._waiting))
        for request, timer in list(self._later.items()):
            timer.cancel()
            request.finish(self._closing_error)
        self._later.clear()
        tasks = [*self._retiring, *([self._refreshing] if self._refreshing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def call(self, script: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> asyncio.Future[Reply]:
        """Run one script; await its reply.

        :param keys: every key that the script touches.
        :raises QueuekeeperError: when awaited, as :meth:`lua.ScriptCaller.call` does.
        :raises UsageError: in another event loop than the caller's.
        """
        self._check_loop()
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._submit(_Request(_Batch(self, 1, future, single=True), Call(script, keys, args), 0))
        return future

    def execute(self, calls: Sequence[Call]) -> asyncio.Future[Replies]:
        """Run many calls; await their replies, in order, as :meth:`lua.ScriptCaller.execute` returns them.

        :raises UsageError: in another event loop than the caller's.
        """
        self._check_loop()
        future: asyncio.Future[Replies] = self._loop.create_future()
        batch = _Batch(self, len(calls), future, single=False)
        if not calls:
            batch.end()
        for index, call in enumerate(calls):
            self._submit(_Request(batch, call, index))
        return future

    async def await_wake(self, key: str | bytes, *, timeout_s: float) -> bool:
        """Take a member of a sorted set as soon as it has one, as :meth:`lua.ScriptCaller.await_wake` does.

        A waiting task has its own connection, which is kept for the next task that waits at the same server.
        """
        return await self._wait(key, lambda slice_s: ("BZPOPMIN", key, f"{slice_s:.3f}"), timeout_s)

    async def await_entry(self, streams: Mapping[str, int], *, timeout_s: float) -> bool:
        """Wait for an entry of a stream, as :meth:`lua.ScriptCaller.await_entry` does.

        A waiting task has its own connection, which is kept for the next task that waits at the same server.
        """
        words = ("STREAMS", *streams, *(f"{number}-0" for number in streams.values()))
        return await self._wait(
            next(iter(streams)),
            lambda slice_s: ("XREAD", "COUNT", 1, "BLOCK", math.ceil(1_000 * slice_s), *words),
            timeout_s,
        )

    async def _wait(self, key: str | bytes, command_of: Callable[[float], tuple[Value, ...]], timeout_s: float) -> bool:
        """Repeat a blocking command, made for the seconds to block, until it has an answer or time is over."""
        self._check_loop()
        give_up_at = self._loop.time() + timeout_s
        slice_s = longest_wait_s(self._endpoint.reply_timeout_s)
        target: str | None = None
        while (left_s := give_up_at - self._loop.time()) > 0:
            reply = await self._wait_at_master(key, command_of(wait_s(min(slice_s, left_s))), target)
            target = target_of(reply, None)
            if isinstance(reply, MovedError):
                self._move(reply, self.address)
            elif target is not None:
                continue
            elif isinstance(reply, BaseException):
                raise from_redis(reply, self.address)
            elif reply is not None:
                return True
        return False

    async def _wait_at_master(self, key: str | bytes, command: tuple[Value, ...], target: str | None) -> Any:
        """Return the reply, or the exception in its place, of one blocking command.

        :param target: server that an ASK error named, if any.
        """
        if self._closed:
            return self._closing_error
        master = self._first if self._slots is None else self._slots[hash_slot(key)]
        if target is not None:
            master = self._at(target, self.address)
        if master is None:
            self.refresh()
            return ClusterDownError("no node serves the slot")
        idle = self._idle.setdefault(master.address, [])
        connection = idle.pop() if idle else Connection(master.endpoint, limits=self._limits)
        self._waiting.add(connection)
        question = Question(command)
        if target is not None:
            connection.send(Question(("ASKING",)))
        connection.send(question)
        try:
            reply = await question.future
        except BaseException:
            # Otherwise the server would continue to wait, and take the wake-up of another task.
            self._waiting.discard(connection)
            await connection.close()
            raise
        if isinstance(reply, ReadOnlyError):
            connection.renew()
        idle.append(connection)
        return reply

    def _check_loop(self) -> None:
        """Refuse another event loop: a call would be sent some time, and nobody could await its reply.

        :raises UsageError: with what to do.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"the connection to Redis at {self.address} belongs to another event loop, and nothing was sent: open "
                "one with redis_async.connect in each event loop"
            )

    def _submit(self, request: _Request) -> None:
        if self._closed:
            request.settle(self._closing_error)
            return
        busy = self.busy
        name = request.client_id
        if self._slots is not None and (refused := refused_by_cluster([request.call], [name])):
            request.settle(refused[name])
        elif name not in busy:
            busy[name] = None
            self._dispatch(request)
        else:
            request.since_s = self._loop.time()
            if (waiting := busy[name]) is None:
                busy[name] = deque((request,))
            else:
                waiting.append(request)

    def _dispatch(self, request: _Request) -> None:
        connection: Connection | None
        if request.target is not None:
            connection = self._at(request.target, request.address)
            connection.send(Question(("ASKING",)))
        elif self._slots is None or not request.client_id:
            connection = self._first
        else:
            connection = self._slots[hash_slot(request.call.keys[0])]
        request.connection = connection
        if connection is None:
            self.send_again(request, ClusterDownError("no node serves the slot"))
            self.refresh()
        else:
            connection.send(request)

    def send_next(self, waiting: deque[_Request]) -> None:
        """Send the next call of a client id; calls that nobody waits for or that cannot be sent are skipped."""
        while waiting:
            request = waiting.popleft()
            error: QueuekeeperError | None = self._closing_error if self._closed else None
            if error is None:
                error = request.batch.failed.get(request.client_id)
            if error is None and not request.future.done():
                self.busy[request.client_id] = waiting
                self._dispatch(request)
                return
            request.settle(error)

    def refused(self, request: _Request, error: Exception) -> None:
        """Handle an error reply: pass it on, or send the call again."""
        if not has_not_run(error):
            request.finish(as_ours(error, request.call.script, request.address, keys=request.call.keys))
            return
        request.target = target_of(error, request.target)
        if isinstance(error, NoScriptError):
            refusal = self._load(request)
            if refusal is not None:
                request.finish(refusal)
                return
        elif isinstance(error, MovedError):
            self._move(error, request.address)
        elif isinstance(error, ReadOnlyError) and request.connection is not None:
            request.connection.renew()
        elif isinstance(error, ClusterDownError):
            self.refresh()
        self.send_again(request, error)

    def send_again(self, request: _Request, error: Exception) -> None:
        """Send a call that has not run again after a pause, unless its time limit has passed."""
        now_s = self._loop.time()
        if request.give_up_at is None:
            request.give_up_at = now_s + self._retry_for_s
        if self._closed or now_s > request.give_up_at:
            cause = self._closing_error if self._closed else error
            ours = as_ours(cause, request.call.script, request.address)
            self.give_up(request, ours, since_s=now_s - self._retry_for_s)
            return
        wait_s = pause_s(error, request.attempts)
        request.attempts += 1
        if wait_s:
            self._later[request] = self._loop.call_later(wait_s, self._send_late, request)
        else:
            self._dispatch(request)

    def give_up(self, request: _Request, error: QueuekeeperError, *, since_s: float) -> None:
        """Fail a call that has not run, and those behind it that have waited since then; the others wait no longer.

        Otherwise each of them would begin to wait anew, and the last of many for a multiple of the time limit.
        """
        waiting = self.busy[request.client_id]
        late: list[_Request] = []
        while waiting and (waiting[0].since_s <= since_s or waiting[0].future.done()):
            late.append(waiting.popleft())
        if waiting:
            waiting[0].give_up_at = waiting[0].since_s + self._retry_for_s
        request.finish(error)
        for each in late:
            # Each has its own exception, because raising adds a traceback to it.
            each.settle(each.batch.failed.get(each.client_id) or type(error)(str(error)))

    def _send_late(self, request: _Request) -> None:
        del self._later[request]
        if request.future.done():
            request.dropped()
        else:
            self._dispatch(request)

    def _load(self, request: _Request) -> QueuekeeperError | None:
        """Load a script on a server where it is missing, or return the error."""
        connection, script = request.connection, request.call.script
        assert connection is not None
        key = (connection.address, script.sha1)
        if request.attempts and key in self._refusals:
            return self._refusals[key]
        if key in self._loading:
            return None
        loading = Question(("SCRIPT", "LOAD", script.source))
        self._loading.add(key)

        def loaded(future: asyncio.Future[Any]) -> None:
            self._loading.discard(key)
            self._refusals.pop(key, None)
            reply = future.result()
            if isinstance(reply, ResponseError) and not has_not_run(reply):
                self._refusals[key] = as_ours(reply, script, connection.address)

        loading.future.add_done_callback(loaded)
        connection.send(loading)
        return None

    def _connection(self, target: Endpoint) -> Connection:
        return Connection(
            target,
            limits=self._limits,
            replicas=self._replicas,
            replica_timeout_ms=self._replica_timeout_ms,
            lacking=self.refresh,
        )

    def _at(self, address: str, asked: str) -> Connection:
        """Return the connection to a node; a node without a host name is on the host that was asked."""
        host, _, port = address.rpartition(":")
        host = host or asked.rpartition(":")[0]
        address = f"{host}:{port}"
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._connection(self._endpoint.at(host, int(port)))
        return connection

    def _move(self, error: MovedError, asked: str) -> None:
        if self._slots is not None:
            self._slots[error.slot_id] = self._at(f"{error.host}:{error.port}", asked)
            self.refresh()

    def refresh(self) -> None:
        """Start to read again which master holds which slot."""
        idle = self._refreshing is None or self._refreshing.done()
        if self._slots is not None and not self._closed and idle:
            self._refreshing = self._loop.create_task(self._read_slots())

    async def _read_slots(self) -> None:
        await asyncio.sleep(max(0.0, self._refreshed_at_s + _REFRESH_PAUSE_S - self._loop.time()))
        fullest: tuple[int, list[Any], Connection] | None = None
        # Another node than the last time: that one may have left the cluster, or hear no others.
        for connection in sorted(
            self._connections.values(), key=lambda each: (each is self._told_by, not each.is_open)
        ):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    answer = await connection.ask("CLUSTER", "SLOTS")
            except (QueuekeeperError, TimeoutError):
                continue
            served = _served(answer)
            if fullest is None or served > fullest[0]:
                fullest = (served, answer, connection)
            if served == SLOTS:
                break
        if fullest is not None:
            self._take_slots(fullest[1], fullest[2])
        self._refreshed_at_s = self._loop.time()

    def _take_slots(self, answer: list[Any], asked: Connection) -> None:
        self._told_by = asked
        slots: list[Connection | None] = [None] * SLOTS
        masters = {self._first}
        for first, last, master, *_ in answer:
            connection = self._at(f"{(master[0] or b'').decode()}:{master[1]}", asked.address)
            slots[first : last + 1] = [connection] * (last - first + 1)
            masters.add(connection)
        self._slots = slots
        if _served(answer) < SLOTS:
            # Who is not named may still serve, and may know more.
            return
        for address, connection in list(self._connections.items()):
            if connection not in masters and connection.is_idle:
                del self._connections[address]
                task = self._loop.create_task(connection.close())
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)


def _served(answer: list[Any]) -> int:
    """Return how many slots a node names a master for."""
    return sum(int(last) - int(first) + 1 for first, last, *_ in answer)
