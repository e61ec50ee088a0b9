"""A load on session stores that keeps books: what was acknowledged as saved must be found, once and in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from queuekeeper import redis_async, redis_client
from queuekeeper.errors import ServerUnavailable
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage, Refusal
from queuekeeper.sessions.writer import MessageRefused, SessionWriter
from tests.chaos.support import refusals
from tests.patience import PATIENCE_S

Kind: TypeAlias = Literal["blocking", "asyncio", "writer", "packed-blocking", "packed-asyncio", "packed-writer"]
"""How messages are saved, and in which layout; ``writer`` fetches and acknowledges by the asyncio store."""

SHORT_LIFE_S = 1
THREADS = 16
_FEW_ACKS = 15
_PENDING = 150
_READ_PAUSE_S = 0.1


class Threaded:
    """A blocking store whose calls are made in threads, so that the same load drives it."""

    def __init__(self, store: Any, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        def called(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(self._pool, partial(method, *args, **kwargs))

        return called


def is_packed(kind: Kind) -> bool:
    """Return whether sessions are in the packed layout."""
    return kind.startswith("packed-")


def is_writer(kind: Kind) -> bool:
    """Return whether a writer saves."""
    return kind.endswith("writer")


@asynccontextmanager
async def redis_store(kind: Kind, url: str, **options: Any) -> AsyncIterator[Any]:
    """Open a store, whose methods are awaited whatever its kind.

    :param options: ``replicas``, ``replica_timeout_ms``, ``retry_for_s``.
    """
    layout = Layout.PACKED if is_packed(kind) else Layout.TBMQ
    if kind.endswith("blocking"):
        with redis_client.connect(url) as client, ThreadPoolExecutor(THREADS) as pool:
            yield Threaded(RedisSessionStore(client, layout=layout, **options), pool)
    else:
        async with await redis_async.connect(url, **options) as caller:
            yield AsyncRedisSessionStore(caller, layout=layout)


def now_ms() -> int:
    """Return the time."""
    return time.time_ns() // 1_000_000


def message(number: int, *, payload_bytes: int = 0, expiry_interval_s: int | None = None) -> NewMessage:
    """Return a message that says its number."""
    return NewMessage(
        topic="t",
        payload=b"%d " % number + b"x" * payload_bytes,
        qos=1,
        time_ms=now_ms(),
        expiry_interval_s=expiry_interval_s,
    )


def number_of(found: PendingMessage) -> int:
    """Return the number that :func:`message` gave."""
    return int(found.payload.split()[0])


async def read_all(store: Any, client_id: str, *, limit: int = 100) -> list[PendingMessage]:
    """Read all pages of a session."""
    found: list[PendingMessage] = []
    page = await store.fetch_pending(client_id, limit=limit)
    found += page.messages
    while page.more:
        page = await store.fetch_pending(
            client_id, limit=limit, after_serial=page.after_serial, backlog_serial=page.backlog_serial
        )
        found += page.messages
    assert page.unreadable == 0
    return found


class Acknowledged(NamedTuple):
    """When a message was acknowledged as saved, and whether replicas had it."""

    at_s: float
    replicated: bool | None


@dataclass
class Session:
    """The books of one client.

    :ivar next: number of the next message.
    :ivar saved: what was acknowledged as saved, but for messages of a short life.
    :ivar confirmed: numbers whose acknowledgement by the client has been noted by the store.
    """

    client_id: str
    next: int = 0
    offset: int = 0
    saved: dict[int, Acknowledged] = field(default_factory=dict)
    short: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)


@dataclass
class Outcome:
    """What a load came to.

    :param lost: messages that were acknowledged as saved and are not there, with when that was.
    :param longest_save_s: longest wait for an acknowledgement.
    """

    saved: int
    confirmed: int
    pending: int
    replayed: int
    unavailable: int
    not_replicated: int
    longest_save_s: float
    lost: list[Acknowledged] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"saved {self.saved}, confirmed {self.confirmed}, pending {self.pending}, lost {len(self.lost)}, "
            f"replayed batches {self.replayed}, calls repeated {self.unavailable}, "
            f"saved without replica {self.not_replicated}, longest save {self.longest_save_s:.2f} s"
        )


class Load:
    """Saves, fetches and acknowledges for many clients at once, until it is stopped.

    What is read is compared with the books all the time: in order, nothing twice, nothing that was confirmed.

    :param writer: saves instead of the store.
    :param repeats: whether calls are repeated when the server is lost; else any failed call fails the test.
    :param keeps: whether a read must show all that was acknowledged before; false where a crash may lose some.
    :param short_lives: every fifth message lives for a second.
    :param pause_s: of each client between two batches.
    :param reopened: gives another store when the connection of the one before is lost for good.
    """

    def __init__(
        self,
        store: Any,
        dice: random.Random,
        *,
        clients: Sequence[str],
        writer: SessionWriter | None = None,
        repeats: bool = False,
        keeps: bool = True,
        short_lives: bool = False,
        payload_bytes: int = 50,
        pause_s: float = 0.02,
        reopened: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.sessions = [Session(client_id) for client_id in clients]
        self._store = store
        self._dice = dice
        self._writer = writer
        self._repeats = repeats
        self._keeps = keeps
        self._short_lives = short_lives
        self._payload_bytes = payload_bytes
        self._pause_s = pause_s
        self._reopened = reopened
        self._opening = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._replayed = self._unavailable = 0
        self._longest_save_s = 0.0

    @property
    def saved(self) -> int:
        """Messages acknowledged as saved so far."""
        return sum(len(session.saved) for session in self.sessions)

    async def fill(self, *, messages: int) -> None:
        """Save so many messages for each client."""
        for session in self.sessions:
            for _ in range(0, messages, 100):
                await self.save(session, count=min(100, messages))

    @asynccontextmanager
    async def running(self, *, reading: bool = True) -> AsyncIterator[None]:
        """Load the store during the block; what fails in the load ends the block."""
        begun = self.saved
        self._stopped.clear()
        async with asyncio.TaskGroup() as group:
            for session in self.sessions:
                group.create_task(self._until_stopped(self._publish, session))
                if reading:
                    group.create_task(self._until_stopped(self._consume, session))
            try:
                yield
            finally:
                self._stopped.set()
        assert self.saved > begun, "there was no load"

    async def proceeds(self, *, messages: int = 50) -> None:
        """Return when so many further messages of every session have been saved."""
        wanted = [session.next + messages for session in self.sessions]
        give_up_at = time.monotonic() + PATIENCE_S
        while any(session.next < least for session, least in zip(self.sessions, wanted, strict=True)):
            assert time.monotonic() < give_up_at, "the load stands still"
            await asyncio.sleep(0.02)

    async def settle(self) -> Outcome:
        """Compare all that is in the store with the books."""
        lost: list[Acknowledged] = []
        pending = 0
        for session in self.sessions:
            found = [number_of(one) for one in await self._read(session)]
            pending += len(found)
            unknown = set(found) - session.saved.keys() - session.short
            assert not unknown, f"{session.client_id} has messages that nobody was told of: {unknown}"
            missing = session.saved.keys() - session.confirmed - set(found)
            lost += (session.saved[number] for number in missing)
            if self._keeps:
                assert not missing, f"{session.client_id} lacks {sorted(missing)[:10]} of {len(session.saved)}"
        acknowledged = [one for session in self.sessions for one in session.saved.values()]
        outcome = Outcome(
            saved=len(acknowledged),
            confirmed=sum(len(session.confirmed) for session in self.sessions),
            pending=pending,
            replayed=self._replayed,
            unavailable=self._unavailable,
            not_replicated=sum(one.replicated is False for one in acknowledged),
            longest_save_s=self._longest_save_s,
            lost=lost,
        )
        print(outcome)
        return outcome

    async def _until_stopped(self, work: Callable[[Session], Awaitable[None]], session: Session) -> None:
        while not self._stopped.is_set():
            await work(session)

    async def _publish(self, session: Session) -> None:
        await self.save(session, count=self._dice.randint(1, 8))
        await asyncio.sleep(self._pause_s)

    async def save(self, session: Session, *, count: int) -> None:
        """Save some messages for one client, which has no other save under way."""
        numbers = range(session.next, session.next + count)
        session.next = numbers.stop
        short = {number for number in numbers if self._short_lives and number % 5 == 4}
        session.short |= short
        messages = [
            message(
                number,
                payload_bytes=self._payload_bytes,
                expiry_interval_s=SHORT_LIFE_S if number in short else None,
            )
            for number in numbers
        ]
        began_s = time.monotonic()
        if self._writer is None:
            replicated = await self._save_batch(session, tuple(messages), short)
        else:
            replicated = await self._write(session, numbers, messages, short)
        ended_s = time.monotonic()
        self._longest_save_s = max(self._longest_save_s, ended_s - began_s)
        for number, confirmed in zip(numbers, replicated, strict=True):
            if number not in short:
                session.saved[number] = Acknowledged(ended_s, confirmed)

    async def _save_batch(
        self, session: Session, messages: tuple[NewMessage, ...], short: set[int]
    ) -> list[bool | None]:
        offset, session.offset = session.offset, session.offset + 1
        save = SessionSave(client_id=session.client_id, messages=messages, source="load", offset=offset)

        async def attempt() -> Any:
            (report,) = await self._store.save_messages([save])
            if report.error is not None:
                raise report.error
            return report

        report = await self._repeated(attempt)
        self._replayed += report.replayed
        assert not report.forgotten
        assert not report.trimmed
        assert set(report.refused.values()) <= ({Refusal.EXPIRED} if short else set())
        return [report.replicated] * len(messages)

    async def _write(
        self, session: Session, numbers: range, messages: list[NewMessage], short: set[int]
    ) -> list[bool | None]:
        assert self._writer is not None
        calls = [self._writer.save(session.client_id, one) for one in messages]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for number, result in zip(numbers, results, strict=True):
            if isinstance(result, BaseException) and not (number in short and isinstance(result, MessageRefused)):
                raise result
        return [None if isinstance(result, BaseException) else result.replicated for result in results]

    async def _consume(self, session: Session) -> None:
        before = session.saved.keys() - session.confirmed if self._keeps else set()
        gone = set(session.confirmed) if self._keeps else set()
        found = await self._read(session)
        numbers = {number_of(one) for one in found}
        assert not before - numbers, f"{session.client_id} does not show {sorted(before - numbers)[:10]}"
        assert not gone & numbers, f"{session.client_id} shows {sorted(gone & numbers)[:10]} again"
        # Sessions stay at about the same length.
        acked = found[: self._dice.randint(0, max(_FEW_ACKS, len(found) - _PENDING))]
        if acked:
            acks = [Ack(packet_id=one.packet_id, serial=one.serial) for one in acked]
            await self._repeated(lambda: self._store.ack(session.client_id, acks))
            session.confirmed |= {number_of(one) for one in acked} - session.short
        await asyncio.sleep(_READ_PAUSE_S)

    async def _read(self, session: Session) -> list[PendingMessage]:
        found: list[PendingMessage] = await self._repeated(lambda: read_all(self._store, session.client_id))
        in_order(found)
        return found

    async def _repeated(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat what a lost server has not answered, if the load may do so."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            store = self._store
            try:
                return await attempt()
            except ServerUnavailable:
                if not self._repeats or time.monotonic() > give_up_at:
                    raise
            self._unavailable += 1
            await asyncio.sleep(0.05)
            if self._reopened is not None:
                async with self._opening:
                    if store is self._store:
                        self._store = await self._reopened()


def in_order(found: Sequence[PendingMessage]) -> None:
    """Check that messages are in the order in which they were saved, each once, under a packet id of its own."""
    numbers = [number_of(one) for one in found]
    assert numbers == sorted(set(numbers)), "twice, or in another order"
    serials = [one.serial for one in found]
    assert serials == sorted(set(serials))
    assert len({one.packet_id for one in found}) == len(found)


@asynccontextmanager
async def redis_load(
    kind: Kind, url: str, dice: random.Random, *, clients: Sequence[str], store_options: Any = None, **options: Any
) -> AsyncIterator[Load]:
    """Open a store and load it.

    :param store_options: of :func:`redis_store`.
    :param options: of :class:`Load`.
    """
    async with redis_store(kind, url, **(store_options or {})) as store:
        if not is_writer(kind):
            yield Load(store, dice, clients=clients, **options)
            return
        async with SessionWriter(store, source="load", first_offset=0) as writer:
            yield Load(store, dice, clients=clients, writer=writer, **options)


@contextmanager
def clients_of(url: str) -> Iterator[list[Any]]:
    """Open a plain client to every master."""
    with redis_client.connect(url) as client:
        yield [node for _, node in redis_client.nodes(client)]


MOVING = frozenset({"ASK", "MOVED", "TRYAGAIN"})
"""How a cluster refuses calls while a slot moves; calls of one key meet the first two."""


def met_a_moving_slot(url: str, *, refused: Set[str] = MOVING) -> bool:
    """Return whether calls have met a slot that moves between the servers of a cluster, in each of these ways."""
    with clients_of(url) as nodes:
        return refused <= refusals(nodes)
