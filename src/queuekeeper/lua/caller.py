"""Calls scripts by their digest on a single server or a cluster, and recovers lost scripts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.lua.bundle import Script, counting
from queuekeeper.lua.call import (
    REPLICA_TIMEOUT_MS,
    Call,
    Replies,
    Reply,
    Value,
    as_ours,
    check_waits,
    has_not_run,
    longest_wait_s,
    pause_s,
    refused_by_cluster,
    target_of,
    wait_s,
)
from queuekeeper.redis_client import RETRY_FOR_S, RedisClient, address_of, lost, pack, redis_errors

_WRITE_BYTES = 65_536


class ScriptCaller:
    """Calls scripts on a single server or a cluster; ``redis_async.AsyncScriptCaller`` does the same for asyncio.

    A script whose answer says that it has not run is sent again, for a bounded time: it is loaded where it is not
    known, follows its slot through a cluster that is being resharded, and waits for a server that is loading. So is, in
    a cluster, one that only reads whose connection was lost: a replica may take over. Of any other script nobody knows
    then, or after a timeout, whether it has run: that is the call's error, and the caller decides.

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
        check_waits(replicas, replica_timeout_ms, retry_for_s)
        self.counts_only = counts_only
        self._client = client
        self._replicas = replicas
        self._replica_timeout_ms = replica_timeout_ms
        self._retry_for_s = retry_for_s

    @property
    def address(self) -> str:
        """Server that was named when the client was made."""
        return address_of(self._client)

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
        """Return how many of the items that calls reported as removed still exist: all in a dry run, else none."""
        return count if self.counts_only else 0

    def await_wake(self, key: str | bytes, *, timeout_s: float) -> bool:
        """Take a member of a sorted set as soon as it has one, on a connection of its own.

        :param timeout_s: how long to wait at most.
        :returns: whether there was one.
        :raises ServerUnavailable: when the connection is lost; a member may have been taken by then.
        """
        return self._wait(lambda slice_s: self._client.bzpopmin(key, timeout=slice_s), timeout_s)

    def await_entry(self, streams: Mapping[str, int], *, timeout_s: float) -> bool:
        """Wait until a stream has an entry behind the given one, on a connection of its own.

        :param streams: streams of one slot, each with the first part of an entry's id.
        :param timeout_s: how long to wait at most.
        :returns: whether there was one.
        :raises ServerUnavailable: when the connection is lost.
        """
        behind: dict[Any, Any] = dict(streams)
        # Of no more than one entry, since its content does not matter.
        return self._wait(
            lambda slice_s: self._client.xread(behind, count=1, block=math.ceil(1_000 * slice_s)) or None, timeout_s
        )

    def _wait(self, ask: Callable[[float], object], timeout_s: float) -> bool:
        """Repeat a blocking command, which is given the seconds to block, until it has an answer or time is over."""
        give_up_at = time.monotonic() + timeout_s
        slice_s = longest_wait_s(_reply_timeout_s(self._client))
        with redis_errors(address_of(self._client)):
            while (left_s := give_up_at - time.monotonic()) > 0:
                try:
                    if ask(wait_s(min(slice_s, left_s))) is not None:
                        return True
                except ReadOnlyError:
                    # The address may lead to another server by now.
                    if isinstance(self._client, redis.Redis):
                        self._client.connection_pool.disconnect(inuse_connections=False)
                    raise
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
                    replies[index] = as_ours(
                        reply, calls[index].script, lanes.asked.get(index, lanes.address), keys=calls[index].keys
                    )
            if any(isinstance(replies[index], MovedError | ClusterDownError) for index in again):
                lanes.refresh()
            lanes.renew([index for index in again if isinstance(replies[index], ReadOnlyError)], replies)
            if wait_s:
                time.sleep(wait_s)
            targets = again
            attempt += 1


def _reply_timeout_s(client: RedisClient) -> float | None:
    if isinstance(client, redis.RedisCluster):
        timeout_s = client.nodes_manager.connection_kwargs.get("socket_timeout")
    else:
        timeout_s = client.connection_pool.connection_kwargs.get("socket_timeout")
    return None if timeout_s is None else float(timeout_s)


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

    def send(self, commands: Sequence[bytes]) -> None:
        self.connection.send_packed_command(_pieces(commands))

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
            commands = [pack(("SCRIPT", "LOAD", script.source)) for script in scripts]
            written: list[int] = []
            for index in indexes:
                try:
                    command = pack(calls[index].command)
                except UsageError as error:
                    replies[index] = error
                    continue
                if targets[index] is not None:
                    commands.append(pack(("ASKING",)))
                commands.append(command)
                written.append(index)
            try:
                lane.send(commands)
            except (RedisError, OSError) as error:
                self._lose(lane, error, written, replies, calls)
            else:
                sent.append((lane, scripts, written))
        for lane, scripts, indexes in sent:
            self._read(lane, scripts, indexes, calls, targets, replies)

    def confirm(self, *, timeout_ms: int, replies: Replies) -> None:
        """Wait once per server until replicas have what was written there, and note whether they do."""
        waiting = [lane for lane in self._lanes.values() if lane.written]
        # Sent to all servers at once, so that the waits overlap.
        for lane in list(waiting):
            try:
                lane.send([pack(("WAIT", self._replicas, timeout_ms))])
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

    def renew(self, indexes: Sequence[int], replies: Replies) -> None:
        """Connect anew to what was asked last: the address may lead to another server by now."""
        for address in {self.asked[index] for index in indexes}:
            if (lane := self._lanes.get(address)) is not None:
                self._lose(lane, ReadOnlyError("renewed"), [], replies)

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
            self._lose(lane, error, remaining, replies, calls)

    def _lose(
        self, lane: _Lane, error: BaseException, indexes: list[int], replies: Replies, calls: Sequence[Call] = ()
    ) -> None:
        is_cluster = isinstance(self._client, redis.RedisCluster)
        for index in indexes:
            if is_cluster and not calls[index].script.writes:
                replies[index] = ClusterDownError(f"{lane.address} was lost: {error}")
            else:
                replies[index] = lost(error, lane.address)
        for index in lane.written:
            replies.replicated[index] = False
        self._give_back(lane, usable=False)

    def _give_back(self, lane: _Lane, *, usable: bool) -> None:
        del self._lanes[lane.address]
        if not usable:
            lane.connection.disconnect()
        lane.pool.release(lane.connection)


def _pieces(commands: Sequence[bytes]) -> list[bytes]:
    """Return commands in the few pieces in which they are written."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    size_bytes = 0
    for command in commands:
        piece.append(command)
        size_bytes += len(command)
        if size_bytes >= _WRITE_BYTES:
            pieces.append(b"".join(piece))
            piece = []
            size_bytes = 0
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
