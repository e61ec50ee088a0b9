"""An event loop in which time is a number, before real servers: one seed plays one history, as fast as servers answer.

Tasks run until all of them wait; then the clock jumps to what comes next. What goes between a client and a server takes
as long as the seed says, and may be cut off, come late, or never. A server is asked for real and at once: its answer is
there before anything else happens, and arrives when the seed says so. Connections to PostgreSQL are psycopg's own, and
what they bring is held back; those to Redis are a :class:`Link`, of which what was written may arrive after the client
has given it up.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import hiredis
import psycopg
import psycopg.waiting
from psycopg.waiting import Ready

from queuekeeper.postgres import Connection
from queuekeeper.redis_client import pack

BEGINS_MS = 2_000_000_000_000
"""When each simulation begins, for clients and servers."""

_SOCKETS = Path("/proc/net/tcp")
_REAL_LIMIT_S = 60.0
_LOOK_S = 0.002
_TICK_S = 0.001
_LATE_S = 1.0
_TIME, _OUR_TIME = b"redis.call('TIME')", b"redis.call('MGET', 'simulated:s', 'simulated:us')"

BACKENDS = """
SELECT
    activity.pid,
    activity.client_port AS port,
    CASE
        WHEN EXISTS (SELECT FROM pg_locks AS lock WHERE lock.pid = activity.pid AND NOT lock.granted) THEN 'held up'
        WHEN activity.wait_event = 'ClientRead' THEN 'idle'
        ELSE 'at work'
    END AS state
FROM pg_stat_activity AS activity
WHERE
    activity.datname = current_database()
    AND activity.pid <> pg_backend_pid()
    AND activity.backend_type = 'client backend'
ORDER BY activity.backend_start, activity.pid
"""
"""PostgreSQL's processes. One that has got its lock and does not know it yet is at work."""

CLOCK = """
CREATE SCHEMA simulated;
CREATE SEQUENCE simulated.clock_us;
SET allow_system_table_mods = on;
ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp;
CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS 'SELECT pg_catalog.to_timestamp(last_value / 1000000.0) FROM simulated.clock_us';
ALTER FUNCTION pg_catalog.set_config(text, text, boolean) RENAME TO real_set_config;
CREATE FUNCTION pg_catalog.set_config(text, text, boolean) RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS 'SELECT pg_catalog.real_set_config($1, CASE WHEN $1 LIKE ''%timeout'' THEN ''0'' ELSE $2 END, $3)';
GRANT USAGE ON SCHEMA simulated TO public;
GRANT SELECT ON SEQUENCE simulated.clock_us TO public;
RESET allow_system_table_mods;
"""
"""Gives a database a clock that :class:`Network` sets: a sequence, whose value all transactions see at once.

Limits of time are left out: PostgreSQL would measure them by its own clock, and on a busy machine a moment is long.
"""


class Network:
    """What lies between clients and servers, and what goes wrong there.

    :param dice: decides how long each thing takes.
    :param postgres: to the database of :data:`CLOCK`, outside of the simulation.
    :ivar history: what has happened, a line each.
    """

    def __init__(self, dice: random.Random, postgres: Connection) -> None:
        self.history: list[str] = []
        self.loop: SimulatedLoop
        self.parted_until_s = self.refused_until_s = 0.0
        self.jump_ms = 0
        self._dice = dice
        self._postgres = postgres
        self._told_s = -1.0
        self._links: list[Link] = []
        self._scripts: dict[bytes, bytes] = {}
        self._sockets: list[socket.socket] = []
        self._made = 0
        self.tell_time(0.0)

    def note(self, text: str) -> None:
        """Write down what happens at this moment."""
        self.history.append(f"{self.loop.time():.6f} {text}")

    def now_ms(self) -> int:
        """Return the time by which clients make messages."""
        return BEGINS_MS + int(1_000 * self.loop.time())

    # Time.

    def tell_time(self, now_s: float) -> None:
        """Set PostgreSQL's clock, as often as it matters."""
        if now_s - self._told_s >= _TICK_S:
            self._told_s = now_s
            self._postgres.execute(
                "SELECT setval('simulated.clock_us', %s)",
                [1_000 * (BEGINS_MS + self.jump_ms) + int(1_000_000 * now_s)],
            )

    def jump(self, by_ms: int) -> None:
        """Put PostgreSQL's clock forward or back."""
        self.note(f"PostgreSQL's clock jumps by {by_ms} ms")
        self.jump_ms += by_ms
        self._told_s = -1.0
        self.tell_time(self.loop.time())

    def delay_s(self) -> float:
        """Return how long the next thing takes: mostly a moment, at times much longer."""
        usual = self._dice.random() * 0.004
        return usual if self._dice.random() < 0.95 else 50 * usual

    def arrives_s(self) -> float:
        """Return when what is sent now arrives."""
        return max(self.loop.time(), self.parted_until_s) + self.delay_s()

    # Faults.

    def part(self, seconds: float) -> None:
        """Hold back all that goes to Redis or comes from there."""
        self.note(f"Redis is out of reach for {seconds:.3f} s")
        self.parted_until_s = self.loop.time() + seconds

    def refuse(self, seconds: float) -> None:
        """Refuse new connections to Redis, and end the others."""
        self.note(f"Redis refuses connections for {seconds:.3f} s")
        self.refused_until_s = self.loop.time() + seconds
        for link in list(self._links):
            link.cut(ConnectionResetError("reset by the network"))

    def cut(self) -> None:
        """End one connection to Redis."""
        if self._links:
            self._dice.choice(self._links).cut(ConnectionResetError("reset by the network"))

    def end_backend(self) -> None:
        """Have PostgreSQL end one of its processes, with the transaction that it has begun."""
        pids = [pid for pid, port, _ in self._backends() if self.loop.is_open(port)]
        if pids:
            place = self._dice.randrange(len(pids))
            self.note(f"PostgreSQL ends connection {place} of {len(pids)}")
            self._postgres.execute("SELECT pg_terminate_backend(%s, 10000)", [pids[place]])

    def cancel(self, pid: int) -> None:
        """Have PostgreSQL end the statement that a process waits with for another one; nothing if it waits for none."""
        self._postgres.execute("SELECT pg_cancel_backend(%s)", [pid])
        while any(each == pid and state == "held up" for each, _, state in self._backends()):
            pass

    def lose_answer(self) -> None:
        """Lose an answer of PostgreSQL that is on its way, and its connection with it."""
        held = self.loop.held_back()
        if held:
            place = self._dice.randrange(len(held))
            self.note(f"PostgreSQL's answer {place} of {len(held)} is lost")
            port = _port(held[place])
            with socket.socket(fileno=held[place]) as there:
                with suppress(BlockingIOError):
                    while there.recv(1 << 20, socket.MSG_DONTWAIT):
                        pass
                with suppress(OSError):
                    there.shutdown(socket.SHUT_RDWR)
                there.detach()
            while any(each == port for _, each, _ in self._backends()):
                pass

    # For the loop.

    def held_up(self) -> int | None:
        """Return how many connections to PostgreSQL wait for each other; nothing while some are at work.

        At work is also a process that has not yet noticed what it was sent, or that its client is gone, so that it has
        to take back what it had begun.
        """
        backends = self._backends()
        states = [state if self.loop.is_open(port) else "at work" for _, port, state in backends]
        # One that waits for a lock has perhaps more to read, for later.
        if "at work" in states or _unread({port for _, port, state in backends if state == "idle"}):
            return None
        return states.count("held up")

    def _backends(self) -> list[tuple[int, int, str]]:
        return self._postgres.execute(BACKENDS).fetchall()

    async def connect(self, factory: Callable[[], asyncio.Protocol], address: tuple[str, int]) -> Link:
        """Open a connection to Redis."""
        await asyncio.sleep(self.arrives_s() - self.loop.time())
        if self.loop.time() < self.refused_until_s:
            raise ConnectionRefusedError("refused by the network")
        self._made += 1
        link = Link(self, self._made, factory(), address, random.Random(self._dice.random()))
        self._links.append(link)
        self._sockets.append(link.socket)
        link.protocol.connection_made(link)
        return link

    def by_our_clock(self, words: list[bytes]) -> list[bytes]:
        """Return a command that has scripts read the time of this loop."""
        if words[:2] == [b"SCRIPT", b"LOAD"]:
            changed = words[2].replace(_TIME, _OUR_TIME)
            self._scripts[sha1(words[2]).hexdigest().encode()] = sha1(changed).hexdigest().encode()
            return [*words[:2], changed]
        if words[0] == b"EVALSHA":
            return [words[0], self._scripts.get(words[1], words[1]), *words[2:]]
        return words

    def forget(self, link: Link) -> None:
        """Take a connection out that has ended."""
        self._links.remove(link)

    def close(self) -> None:
        """Close what is left open."""
        for each in self._sockets:
            each.close()


class Link(asyncio.Transport):
    """A connection of a client to Redis, both ways of which keep the order of what is sent."""

    def __init__(
        self,
        network: Network,
        number: int,
        protocol: asyncio.Protocol,
        address: tuple[str, int],
        dice: random.Random,
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self._network = network
        self._number = number
        self._dice = dice
        self.socket = socket.create_connection(address, timeout=_REAL_LIMIT_S)
        self._asked, self._told = hiredis.Reader(), hiredis.Reader()
        self._there_s = self._back_s = 0.0
        self._under_way: list[tuple[asyncio.TimerHandle, bytes]] = []
        self._gone = False

    # What a client does.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, which arrive later."""
        if not self._gone:
            self._there_s = max(self._there_s + 1e-6, self._network.arrives_s())
            self._send(self._there_s, bytes(data))

    def is_closing(self) -> bool:
        """Whether it has ended."""
        return self._gone

    def close(self) -> None:
        """End it."""
        self.cut(None)

    def abort(self) -> None:
        """End it."""
        self.cut(None)

    # What the network does.

    def cut(self, cause: Exception | None) -> None:
        """End it; some of what is on its way to the server still arrives, and no reply does."""
        if self._gone:
            return
        self._gone = True
        self._network.forget(self)
        self._network.note(f"link {self._number} ends: {cause or 'by its client'}")
        under_way, self._under_way = self._under_way, []
        for timer, _ in under_way:
            timer.cancel()
        at_s = self._network.arrives_s()
        for _, data in under_way[: self._dice.randint(0, len(under_way))]:
            at_s += self._dice.random() * _LATE_S
            self._send(at_s, data)
        if not self._under_way:
            self.socket.close()
        self._network.loop.call_soon(self.protocol.connection_lost, cause)

    def _send(self, at_s: float, data: bytes) -> None:
        self._under_way.append((self._network.loop.call_at(at_s, self._arrive), data))

    def _arrive(self) -> None:
        """Ask the server, and take its answer back."""
        _, data = self._under_way.pop(0)
        self._asked.feed(data)
        questions: list[list[bytes]] = []
        while (words := self._asked.gets()) is not False:
            questions.append(words)
        seconds, milliseconds = divmod(self._network.now_ms(), 1_000)
        time = [b"MSET", b"simulated:s", b"%d" % seconds, b"simulated:us", b"%d" % (1_000 * milliseconds)]
        asked = [time, *map(self._network.by_our_clock, questions)]
        self.socket.sendall(b"".join(pack(tuple(words)) for words in asked))
        answer, told = b"", 0
        while told < len(asked):
            some = self.socket.recv(1 << 16)
            if not some:
                raise AssertionError("Redis has closed a connection by itself")
            answer += some
            self._told.feed(some)
            while self._told.gets() is not False:
                told += 1
        answer = answer.partition(b"\r\n")[2]
        names = " ".join(words[0].decode() for words in questions)
        self._network.note(f"link {self._number}{' is late with' if self._gone else ':'} {names}")
        if self._gone:
            if not self._under_way:
                self.socket.close()
            return
        # As many rolls of the dice whatever its length, which instants in it may change.
        middle = int(self._dice.random() * len(answer))
        for part in (answer[:middle], answer[middle:]):
            self._back_s = max(self._back_s + 1e-6, self._network.arrives_s())
            self._network.loop.call_at(self._back_s, self._come_back, part)

    def _come_back(self, part: bytes) -> None:
        if not self._gone:
            self.protocol.data_received(part)


def _unread(ports: set[int]) -> bool:
    """Return whether a server has not read all that was sent from one of these ports."""
    for line in _SOCKETS.read_text("ascii").splitlines()[1:]:
        _, _, remote, _, queues, *_ = line.split()
        if int(remote.partition(":")[2], 16) in ports and int(queues.partition(":")[2], 16):
            return True
    return False


def _port(fd: int) -> int | None:
    """Return the port of this machine that a connection has."""
    try:
        there = socket.socket(fileno=fd)
    except OSError:
        return None
    name = there.getsockname()
    there.detach()
    return name[1] if isinstance(name, tuple) else None


def _is_whole(fd: int) -> bool:
    """Return whether an answer of PostgreSQL is there to its end, not only the first part of it."""
    with socket.socket(fileno=fd) as there:
        try:
            answer = there.recv(1 << 24, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            answer = b""
        there.detach()
    # A connection that has ended, or the server's word on encryption.
    if len(answer) < 2:
        return True
    at, kind, last = 0, b"", b""
    while at + 5 <= len(answer):
        end = at + 1 + int.from_bytes(answer[at + 1 : at + 5], "big")
        kind, last, at = answer[at : at + 1], answer[at:end], end
    return at == len(answer) and (kind in b"ZRG" or b"VFATAL\0" in last)


class _Selector(selectors.DefaultSelector):
    """Moves the clock when nothing is left to do, and holds back what real connections bring."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.now_s = 0.0
        self.own_fd = -1
        self._network = network
        self._order: dict[int, int] = {}
        self._fds: dict[int, int] = {}
        self._asked = 0
        self._due: dict[int, tuple[float, int]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a connection."""
        key = super().register(fileobj, events, data)
        self._begin(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch it for something else."""
        key = super().modify(fileobj, events, data)
        self._begin(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Watch it no longer."""
        key = super().unregister(fileobj)
        self._due.pop(key.fd, None)
        return key

    def is_open(self, port: int) -> bool:
        """Whether a port of this machine is that of a connection that has been watched and is open."""
        fd = self._fds.get(port)
        return fd is not None and _port(fd) == port

    def _begin(self, fd: int) -> None:
        self._asked += 1
        if (port := _port(fd)) is not None:
            self._fds[port] = fd
        self._order[fd] = self._asked
        self._due.pop(fd, None)

    def held_back(self) -> list[int]:
        """Return connections whose answers are on their way."""
        return sorted(self._due, key=self._order.__getitem__)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what has arrived; time stands still while there is something to do."""
        if timeout == 0:
            return []
        keys = {key.fd: key for key in self.get_map().values() if key.fd != self.own_fd}
        answers = self._answers(keys.keys() - self._due.keys())
        for fd in sorted(answers, key=self._order.__getitem__):
            self._due[fd] = (self.now_s + self._network.delay_s(), answers[fd])
        ends = [at_s for at_s, _ in self._due.values()]
        if timeout is not None:
            ends.append(self.now_s + timeout)
        if not ends:
            raise AssertionError("everybody waits, and nothing is left that could happen")
        self.now_s = max(self.now_s, min(ends))
        self._network.tell_time(self.now_s)
        arrived = [fd for fd in self.held_back() if self._due[fd][0] <= self.now_s]
        return [(keys[fd], self._due.pop(fd)[1]) for fd in arrived]

    def _answers(self, asked: set[int]) -> dict[int, int]:
        """Wait for servers, but not for those of whose transactions one waits for another."""
        if not asked:
            return {}
        ends_s = time.monotonic() + _REAL_LIMIT_S
        while time.monotonic() < ends_s:
            super().select(_LOOK_S)
            held_up = self._network.held_up()
            ready = {key.fd: events for key, events in super().select(0) if key.fd in asked}
            if held_up is not None and len(ready) + held_up >= len(asked):
                # What is answered while a question is written would be here now, or in a moment.
                found = {fd: events & selectors.EVENT_WRITE or events for fd, events in ready.items()}
                if all(events == selectors.EVENT_WRITE or _is_whole(fd) for fd, events in found.items()):
                    return found
        raise AssertionError(f"a server has not answered within {_REAL_LIMIT_S:g} s")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop; :func:`play` runs it."""

    def __init__(self, network: Network) -> None:
        self._simulated = _Selector(network)
        super().__init__(self._simulated)
        self._simulated.own_fd = self._ssock.fileno()  # type: ignore[attr-defined]
        self._clock_resolution = 1e-9
        self.network = network
        network.loop = self

    def time(self) -> float:
        """Return the seconds since the beginning."""
        return self._simulated.now_s

    def is_open(self, port: int) -> bool:
        """Whether a port is that of an open connection of the simulation."""
        return self._simulated.is_open(port)

    def held_back(self) -> list[int]:
        """Return real connections whose answers are on their way."""
        return self._simulated.held_back()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection to Redis through the network."""
        link = await self.network.connect(protocol_factory, (host, port))
        return link, link.protocol


async def _cancel(connection: psycopg.AsyncConnection[Any], **_: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.network.cancel(connection.pgconn.backend_pid)


def use_simulated_waits() -> None:
    """Have psycopg wait in this process for what the loop tells it, whatever time that really takes."""
    psycopg.waiting.MAX_BUSY_TIME = float("inf")
    psycopg.waiting._ready = lambda *_: Ready.W
    psycopg.AsyncConnection._try_cancel = _cancel  # type: ignore[method-assign,assignment]
