"""A broker in a process of its own, which publishes and delivers by a router and writes down all that it was told.

It may be killed at any moment. What it has noted is there, since each note is one write to a file; the next process of
the same name goes on from it. What the notes come to is ``online_checker``'s business.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import orjson

from queuekeeper import redis_async, redis_client
from queuekeeper.errors import NotOwner, ServerUnavailable, SessionFenced, StaleEpoch
from queuekeeper.sessions.model import Ack, NewMessage, Release, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.router import AsyncSessionRouter, SessionRouter
from tests.chaos.session_load import THREADS, Threaded, now_ms
from tests.chaos.trace_recorder import read_journal, record_router
from tests.patience import PATIENCE_S

SHORT_LIFE_S = 2
LONG_LIFE_S = 3_600
PAGE = 40
MOST_PER_BATCH = 4
_CONNECTIONS = 8
_FORKED = get_context("forkserver")
_PRELOADED = (
    "queuekeeper.migration.online.driver",
    "queuekeeper.sessions.router",
    "tests.chaos.online_load",
    "tests.chaos.trace_recorder",
    "tests.chaos.online_world",
    # Each process imports the program that has started it.
    "pytest",
)


def qos_of(number: int) -> int:
    """Return how a message is to be delivered: each third exactly once."""
    return 2 if number % 3 == 2 else 1


def life_s(number: int) -> int | None:
    """Return how long a message lives; none for as long as the store's rules say."""
    if number % 7 == 6:
        return SHORT_LIFE_S
    return LONG_LIFE_S if number % 5 == 4 else None


def is_short(number: int) -> bool:
    """Return whether a message may be gone at any moment, since its life is over."""
    return life_s(number) == SHORT_LIFE_S


def payload_of(number: int) -> bytes:
    """Return a payload that says its number."""
    return b"%d " % number + b"x" * (number % 50)


def new_message(number: int, *, time_ms: int) -> NewMessage:
    """Return a message that says its number; a repeated one is the same in each respect."""
    return NewMessage(
        topic="plant/line",
        payload=payload_of(number),
        qos=qos_of(number),
        time_ms=time_ms,
        expiry_interval_s=life_s(number),
        user_properties=(("number", str(number)),) if number % 4 == 0 else (),
    )


# Notes.


class Journal:
    """What a process has been told, in order; a killed process's notes are there, as each is one write.

    A crash of the machine could lose some, but no test crashes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)

    def note(self, event: str, client_id: str, **facts: Any) -> None:
        """Write down that something has happened; the clock is the same in all processes of a machine."""
        self._file.write(
            orjson.dumps({"at_s": time.monotonic(), "event": event, "client_id": client_id} | facts) + b"\n"
        )

    def close(self) -> None:
        """End the file."""
        self._file.close()


# What a broker's process remembers of a client.


@dataclass
class Publisher:
    """The numbers of a client's messages.

    :ivar next: number of the next message.
    :ivar offset: of the next batch.
    :ivar waiting: batch whose fate is not known: offset, numbers, and time of the messages.
    """

    next: int = 0
    offset: int = 0
    waiting: tuple[int, range, int] | None = None

    def recall(self, note: dict[str, Any]) -> None:
        """Learn what a process before this one has noted."""
        if note["event"] == "offered":
            first, end = note["numbers"]
            self.next, self.offset = end, note["offset"] + 1
            self.waiting = (note["offset"], range(first, end), note["time_ms"])
        elif note["event"] == "saved":
            self.waiting = None


@dataclass
class Device:
    """What a client has received, which outlives the broker.

    :ivar numbers: number of each message by its serial, as a released message has no content.
    :ivar purging: a purge was asked for, and its answer has not come.
    """

    numbers: dict[int, int] = field(default_factory=dict)
    purging: int | None = None

    def recall(self, note: dict[str, Any]) -> None:
        """Learn what a process before this one has noted."""
        if note["event"] == "sent":
            self.numbers |= {serial: number for number, serial, _, _, kind in note["messages"] if kind == "PUBLISH"}
        elif note["event"] == "purging":
            self.purging = note["below"]
        elif note["event"] == "purged":
            self.purging = None
            self.numbers.clear()


# The broker.


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """What one broker does.

    :param folder: for its journal.
    :param publishes: clients to whom it saves messages, with the seconds after which it begins.
    :param consumes: clients that are connected to it.
    :param sleepy: those of them that are away for a while again and again.
    :param cleans: clients to whom it saves, that are connected to it, and that begin with a clean session at times.
    :param batches_per_s: for each client.
    :param blocking: whether it calls the router from threads.
    :param home: layout in Redis of the sessions that nobody has moved; none when they are in PostgreSQL.
    """

    name: str
    folder: Path
    postgres_url: str
    redis_url: str
    publishes: dict[str, float]
    consumes: tuple[str, ...]
    sleepy: frozenset[str] = frozenset()
    cleans: tuple[str, ...] = ()
    batches_per_s: float = 4.0
    blocking: bool = False
    seed: int = 0
    patience_s: float = 3.0
    owner_age_s: float = 60.0
    home: Layout | None = None

    @property
    def journal(self) -> Path:
        """Where it notes what it was told."""
        return self.folder / f"{self.name}.jsonl"


class Broker:
    """One life of a broker's process."""

    def __init__(self, settings: BrokerSettings, store: Any) -> None:
        self._settings = settings
        self._store = store
        self._publishers = {each: Publisher() for each in (*settings.publishes, *settings.cleans)}
        self._devices = {each: Device() for each in (*settings.consumes, *settings.cleans)}
        if settings.journal.exists():
            for note in read_journal(settings.journal):
                for known in (self._publishers, self._devices):
                    if note["client_id"] in known:
                        known[note["client_id"]].recall(note)
        self._journal = Journal(settings.journal)
        self._dice = random.Random(f"{settings.seed} {settings.name} {time.monotonic_ns()}")
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Work until a signal ends it; whatever fails for good ends it too, with an error."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopped.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        self._journal.note("began", "")
        try:
            async with asyncio.TaskGroup() as group:
                for client_id, after_s in self._settings.publishes.items():
                    group.create_task(self._publish(client_id, after_s))
                for client_id in self._settings.consumes:
                    group.create_task(self._consume(client_id))
                for client_id in self._settings.cleans:
                    group.create_task(self._begin_clean(client_id))
                group.create_task(self._die_with_parent())
        finally:
            self._journal.close()

    async def _die_with_parent(self) -> None:
        parent = os.getppid()
        while not self._stopped.is_set():
            if os.getppid() != parent:
                os._exit(3)
            await self._pause(0.5)

    async def _pause(self, seconds: float) -> None:
        """Wait; the end of the load ends it."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    # Publishing.

    async def _publish(self, client_id: str, after_s: float) -> None:
        await self._pause(after_s + self._dice.random() / self._settings.batches_per_s)
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            await self._save(client_id)
            await self._pause(max(0.0, 1 / self._settings.batches_per_s - (time.monotonic() - begun_s)))
        await self._finish(client_id)

    async def _finish(self, client_id: str) -> None:
        """Save the batch that a killed process has left, though no time was left for another."""
        if self._publishers[client_id].waiting is not None:
            await self._save(client_id)

    async def _save(self, client_id: str) -> None:
        """Save the next batch, or the one whose fate is not known."""
        publisher = self._publishers[client_id]
        if publisher.waiting is None:
            numbers = range(publisher.next, publisher.next + self._dice.randint(1, MOST_PER_BATCH))
            publisher.waiting = (publisher.offset, numbers, now_ms())
            publisher.next, publisher.offset = numbers.stop, publisher.offset + 1
            offset, numbers, time_ms = publisher.waiting
            self._journal.note(
                "offered", client_id, offset=offset, numbers=[numbers.start, numbers.stop], time_ms=time_ms
            )
        offset, numbers, time_ms = publisher.waiting
        save = SessionSave(
            client_id=client_id,
            messages=tuple(new_message(number, time_ms=time_ms) for number in numbers),
            source=self._settings.name,
            offset=offset,
        )

        async def attempt() -> Any:
            (report,) = await self._store.save_messages([save])
            if report.error is not None:
                raise report.error
            return report

        report, _ = await self._repeated("save", client_id, attempt)
        if report.trimmed:
            self._journal.note("violation", client_id, text=f"{report.trimmed} messages were trimmed below the limit")
        publisher.waiting = None
        self._journal.note("saved", client_id, offset=offset, replayed=report.replayed)

    # Delivering.

    async def _consume(self, client_id: str) -> None:
        """Connect, receive and answer for a while, and connect again."""
        while not self._stopped.is_set():
            waiting = await self._connect(client_id)
            for _ in range(self._dice.randint(3, 10)):
                waiting = await self._answer(client_id, waiting)
                await self._pause(0.1 + self._dice.random() / 5)
                if self._stopped.is_set():
                    return
                waiting += await self._receive(client_id, after_serial=max((m.serial for m in waiting), default=None))
            if client_id in self._settings.sleepy:
                await self._pause(self._dice.random() * 3)

    async def _begin_clean(self, client_id: str) -> None:
        """Publish, receive and answer in turn, and forget all at times."""
        device, publisher = self._devices[client_id], self._publishers[client_id]
        if device.purging is not None:
            await self._purge(client_id, device.purging)
        await self._finish(client_id)
        while not self._stopped.is_set():
            for _ in range(self._dice.randint(2, 8)):
                await self._save(client_id)
                waiting = await self._connect(client_id)
                await self._answer(client_id, waiting)
                await self._pause(1 / self._settings.batches_per_s)
                if self._stopped.is_set():
                    return
            await self._purge(client_id, publisher.next)

    async def _purge(self, client_id: str, below: int) -> None:
        device = self._devices[client_id]
        device.purging = below
        self._journal.note("purging", client_id, below=below)
        await self._repeated("purge", client_id, lambda: self._store.purge_session(client_id))
        device.purging = None
        device.numbers.clear()
        self._journal.note("purged", client_id, below=below)

    async def _connect(self, client_id: str) -> list[PendingMessage]:
        """Receive all that waits, and note what that was."""
        begun_s = time.monotonic()
        found = await self._receive(client_id, after_serial=None)
        numbers = [self._number(client_id, one) for one in found]
        self._journal.note("read", client_id, begun_s=begun_s, numbers=numbers)
        return found

    async def _receive(self, client_id: str, *, after_serial: int | None) -> list[PendingMessage]:
        found: list[PendingMessage] = []

        async def pages() -> list[PendingMessage]:
            after = -1 if after_serial is None else after_serial
            backlog: int | None = None
            read: list[PendingMessage] = []
            while True:
                page = await self._store.fetch_pending(
                    client_id, limit=PAGE, after_serial=after, backlog_serial=backlog
                )
                read += page.messages
                if page.unreadable:
                    self._journal.note("violation", client_id, text=f"{page.unreadable} records are unreadable")
                if not page.more:
                    return read
                after, backlog = page.after_serial, page.backlog_serial

        found, _ = await self._repeated("fetch", client_id, pages)
        if not found:
            return []
        serial = found[-1].serial
        # Noted first, so that whatever is sent twice says so the second time.
        await self._repeated("mark", client_id, lambda: self._store.mark_delivered(client_id, serial=serial))
        for one in found:
            if one.packet_type == "PUBLISH":
                self._devices[client_id].numbers[one.serial] = int(one.payload.split()[0])
        self._journal.note(
            "sent",
            client_id,
            messages=[
                (self._number(client_id, one), one.serial, one.packet_id, one.redelivery, one.packet_type)
                for one in found
            ],
        )
        return found

    def _number(self, client_id: str, message: PendingMessage) -> int:
        return self._devices[client_id].numbers.get(message.serial, -1)

    async def _answer(self, client_id: str, waiting: list[PendingMessage]) -> list[PendingMessage]:
        """Have the client answer the first few messages; return what waits for an answer still."""
        count = self._dice.randint(0, max(3, len(waiting) - 20))
        done: list[PendingMessage] = []
        for one in waiting[:count]:
            if one.qos == 2 and one.packet_type == "PUBLISH":
                await self._release(client_id, one)
            done.append(one)
        if done:
            await self._acknowledge(client_id, done)
        return waiting[count:]

    async def _release(self, client_id: str, one: PendingMessage) -> None:
        number = self._number(client_id, one)
        self._journal.note("releasing", client_id, number=number)
        release, tries = await self._repeated(
            "release",
            client_id,
            lambda: self._store.mark_released(client_id, packet_id=one.packet_id, serial=one.serial),
        )
        if release is not Release.RELEASED and tries == 1 and not is_short(number):
            self._journal.note("violation", client_id, text=f"PUBREC of {number} met {release}")
        self._journal.note("released", client_id, number=number)

    async def _acknowledge(self, client_id: str, done: Sequence[PendingMessage]) -> None:
        numbers = [self._number(client_id, one) for one in done]
        self._journal.note("acking", client_id, numbers=numbers)
        acks = [Ack(packet_id=one.packet_id, serial=one.serial) for one in done]
        report, tries = await self._repeated("ack", client_id, lambda: self._store.ack(client_id, acks))
        missed = len(done) - report.removed
        if tries == 1 and missed > sum(map(is_short, numbers)):
            self._journal.note("violation", client_id, text=f"{missed} of the acknowledged {numbers} were not there")
        self._journal.note("acked", client_id, numbers=numbers)

    # Failures.

    async def _repeated(self, call: str, client_id: str, attempt: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """Repeat what was not answered, as a broker would; return the answer and the number of tries."""
        begun_s = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                found = await attempt()
            except (ServerUnavailable, SessionFenced, NotOwner, StaleEpoch) as error:
                self._journal.note("failed", client_id, call=call, kind=type(error).__name__, text=str(error))
                if time.monotonic() - begun_s > PATIENCE_S:
                    raise
            else:
                seconds = time.monotonic() - begun_s
                if seconds > 0.1:
                    self._journal.note("waited", client_id, call=call, seconds=seconds, tries=tries)
                return found, tries
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _router(settings: BrokerSettings) -> AsyncIterator[Any]:
    options: dict[str, Any] = {
        "connections": _CONNECTIONS,
        "patience_s": settings.patience_s,
        "owner_age_s": settings.owner_age_s,
        "home": settings.home,
    }
    if settings.blocking:
        with (
            redis_client.connect(settings.redis_url) as client,
            ThreadPoolExecutor(THREADS) as pool,
            SessionRouter(client, settings.postgres_url, **options) as blocking,
        ):
            yield Threaded(blocking, pool)
    else:
        async with (
            await redis_async.connect(settings.redis_url) as caller,
            AsyncSessionRouter(caller, settings.postgres_url, **options) as router,
        ):
            yield router


async def _work(settings: BrokerSettings) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with _router(settings) as store:
                return await Broker(settings, store).run()
        except ServerUnavailable:
            # A broker that is started while a server is away tries again.
            if time.monotonic() > give_up_s:
                raise
            await asyncio.sleep(0.1)


def run_broker(settings: BrokerSettings) -> None:
    """Be a broker until SIGTERM; the entry of its process."""
    record_router(settings.folder, settings.name)
    # One that comes early is taken when there is somebody to end what was begun.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    asyncio.run(_work(settings))


class Child:
    """A function in a process of its own that can be killed; a forked one is there within milliseconds."""

    def __init__(self, function: Callable[..., None], *args: Any, said: Path) -> None:
        _FORKED.set_forkserver_preload(list(_PRELOADED))
        self.said = said
        self._process: ForkServerProcess = _FORKED.Process(target=_told, args=(said, function, args), daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    @property
    def text(self) -> str:
        """All that it has written."""
        return self.said.read_text("utf-8", "replace") if self.said.exists() else ""

    def kill(self) -> None:
        """Kill it at once, as the out-of-memory killer would."""
        # Another process may have the number of one that has ended.
        if self.running:
            self._process.kill()
        self._process.join()

    def end(self) -> None:
        """Ask it to end, and see that it ended well."""
        self._process.terminate()
        assert self.wait(PATIENCE_S) == 0, f"a process has failed:\n{self.text}"

    def wait(self, seconds: float) -> int:
        """Return its exit code."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self.kill()
            raise AssertionError(f"a process has not ended within {seconds:g} s:\n{self.text}")
        return code


def _told(said: Path, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    with said.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function(*args)
