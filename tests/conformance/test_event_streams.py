"""Server-sent events over HTTP, as a browser reads them, from blocking and from asyncio consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from queuekeeper import postgres
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.consumer import EventConsumer
from queuekeeper.events.model import Interest, NewEvent, ResumeRefused
from queuekeeper.events.sse import HEADERS, NO_RESUME, POSITION, StreamRules, open_stream
from tests.conformance.event_worlds import Consumer, World, both, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a browser's EventSource hands on."""

    id: str
    name: str
    data: str


class Site:
    """A web server with one page of events."""

    def __init__(self, consumer: Consumer, *, interest: Interest, rules: StreamRules) -> None:
        self._consumer = consumer
        self._interest = interest
        self._rules = rules
        self.open_streams = 0
        self._answers: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request in a task that can be waited for: before Python 3.12 a server forgets its connections."""
        task = asyncio.current_task()
        assert task is not None
        self._answers.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._answers.discard(task)

    async def close(self) -> None:
        """Wait until all connections are closed."""
        if self._answers:
            await asyncio.wait(self._answers, timeout=PATIENCE_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        lower = {name.lower(): value for name, value in fields.items()}
        try:
            async with self._consumer.stream(
                self._interest, last_event_id=lower.get("last-event-id"), rules=self._rules
            ) as chunks:
                headers = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
                writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n".encode())
                self.open_streams += 1
                try:
                    async for chunk in chunks:
                        writer.write(chunk)
                        await writer.drain()
                except ConnectionError:
                    pass
                finally:
                    self.open_streams -= 1
        except ResumeRefused:
            writer.write(f"HTTP/1.1 {NO_RESUME} No Content\r\nconnection: close\r\n\r\n".encode())


@asynccontextmanager
async def site(
    world: World, *, interest: Interest | None = None, rules: StreamRules | None = None, **options: Any
) -> AsyncIterator[tuple[Site, str, Consumer]]:
    """Serve a group's events on a free port."""
    async with world.dispatching():
        async with world.consumer(**options) as consumer:
            served = Site(consumer, interest=interest or Interest.topics("news"), rules=rules or StreamRules())
            async with await asyncio.start_server(served.accept, "127.0.0.1", 0) as server:
                yield served, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", consumer
        # The end of the consumer is the end of its streams.
        await served.close()


class Browser:
    """One connection of an EventSource."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.last_event_id = ""

    async def next(self) -> Message | None:
        """Return the next message; none at the end of the stream."""
        async with asyncio.timeout(PATIENCE_S):
            fields: dict[str, list[str]] = {}
            async for line in self._lines:
                if line:
                    name, _, value = line.partition(": ")
                    fields.setdefault(name, []).append(value)
                elif "data" in fields:
                    self.last_event_id = fields.get("id", [self.last_event_id])[-1]
                    return Message(id=self.last_event_id, name=fields["event"][-1], data="\n".join(fields["data"]))
                else:
                    fields = {}
        return None

    async def next_event(self) -> Message | None:
        """Return the next message that is an event: before it may come the place, while nothing new is dispatched."""
        while (message := await self.next()) is not None and message.name == POSITION:
            pass
        return message


@asynccontextmanager
async def browser(url: str, *, last_event_id: str | None = None) -> AsyncIterator[Browser]:
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client, client.stream("GET", url, headers=headers) as response:
        yield Browser(response)


def news(*numbers: int) -> list[NewEvent]:
    return [NewEvent(topic="news", payload={"number": number}) for number in numbers]


@both
async def test_browser_gets_events_with_their_place_and_leaves_no_listener_behind(world: World) -> None:
    rules = StreamRules(keep_alive_s=0.2)
    async with site(world, rules=rules) as (served, url, _):
        async with browser(url) as page:
            assert page.response.headers["content-type"].startswith("text/event-stream")
            first = await page.next()
            assert first is not None
            assert first.name == POSITION
            (event_id,) = await world.broker.publish(news(1))
            await world.broker.publish([NewEvent(topic="other", payload=0)])
            message = await page.next()
            assert message is not None
            assert (message.name, message.data) == ("news", '{"number":1}')
            assert message.id.startswith(event_id)
            assert served.open_streams == 1
        # A server notices that a reader has left when it writes, and it writes signs of life.
        await until(lambda: served.open_streams == 0, what="the end of the stream")


@both
async def test_browser_that_comes_back_gets_what_it_has_missed_once(world: World) -> None:
    async with site(world, rules=StreamRules(keep_alive_s=0.1)) as (_, url, _):
        async with browser(url) as page:
            await page.next()
            await world.broker.publish(news(1))
            await page.next()
        await world.broker.publish(news(2, 3))
        async with browser(url, last_event_id=page.last_event_id) as again:
            read = [await again.next_event() for _ in range(2)]
            await world.broker.publish(news(4))
            read.append(await again.next_event())
        assert [one and one.data for one in read] == [f'{{"number":{number}}}' for number in (2, 3, 4)]
        async with browser(url, last_event_id=again.last_event_id) as nothing_missed:
            position = await nothing_missed.next()
            assert position is not None
            assert (position.name, position.id) == (POSITION, again.last_event_id)


@both
async def test_browser_whose_subscription_was_removed_is_told_not_to_come_back(world: World) -> None:
    async with site(world) as (_, url, consumer):
        async with browser(url) as page:
            await page.next()
            await world.broker.publish(news(1))
            await page.next()
            subscription_id = world.rows("SELECT id FROM pgmb.subscriptions")[0][0]
            assert await consumer.unsubscribe(subscription_id)
            end = await page.next()
            assert end is not None
            assert (end.name, "was removed" in end.data) == ("error", True)
            assert await page.next() is None
        async with browser(url, last_event_id=page.last_event_id) as again:
            assert again.response.status_code == NO_RESUME


@both
@pytest.mark.parametrize(
    ("rules", "last_event_id", "words"),
    [
        (StreamRules(), "42", "is not an id of the event broker"),
        (StreamRules(), "pm0000000000001000000000-su1", "events are replayed for 300 s only"),
        (StreamRules(replay_events=0), "pm0000000000001000000000-su1", "this stream cannot be resumed"),
    ],
)
async def test_place_from_which_nothing_goes_on_is_refused(
    world: World, rules: StreamRules, last_event_id: str, words: str
) -> None:
    async with world.consumer() as consumer:
        with pytest.raises(ResumeRefused, match=words):
            async with consumer.stream(Interest(), last_event_id=last_event_id, rules=rules):
                pass
        assert await world.broker.subscriptions() == ()


@both
async def test_reader_who_has_missed_too_much_is_refused(world: World) -> None:
    async with site(world, rules=StreamRules(replay_events=2, keep_alive_s=0.1)) as (_, url, _):
        async with browser(url) as page:
            await page.next()
        await world.broker.publish(news(1, 2, 3))
        await until(lambda: world.rows("SELECT count(*) FROM pgmb.dispatches") == [(1,)], what="the dispatch")
        async with browser(url, last_event_id=page.last_event_id) as again:
            assert again.response.status_code == NO_RESUME


@both
async def test_stream_that_falls_behind_ends_and_goes_on_when_its_reader_comes_back(world: World) -> None:
    async with (
        world.dispatching(),
        world.consumer(page=10, listener_events=25) as consumer,
    ):
        async with consumer.stream(Interest.topics("news")) as chunks:
            read = await anext(chunks)
            await world.broker.publish(news(*range(100)))
            await until(lambda: world.rows("SELECT count(*) FROM pgmb.dispatches") == [(1,)], what="a dispatch")
            latest = world.rows("SELECT id FROM pgmb.dispatches")[0][0]
            await until(lambda: world.cursor() > f"{latest[:15]}000000063", what="all pages to be read")
            async for chunk in chunks:
                read += chunk
        assert read.count(b"event: news") == 20
        assert b"event: error" in read
        last = [line for line in read.decode().splitlines() if line.startswith("id: ")][-1]
        async with consumer.stream(Interest.topics("news"), last_event_id=last.removeprefix("id: ")) as chunks:
            assert (await anext(chunks)).count(b"event: news") == 80


def test_event_that_is_dispatched_while_a_stream_opens_is_not_lost_with_the_link(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        postgres.connect(broker_url, autocommit=True) as connection,
        EventConsumer(broker_url, group_id="g") as consumer,
    ):
        broker, ask = EventBroker(connection), consumer._ask
        dispatched: list[int] = []

        def asked_late(operation: Any) -> Any:
            if consumer.operations.listeners and not dispatched:
                broker.publish(news(1))
                dispatched.append(broker.poll())
            return ask(operation)

        monkeypatch.setattr(consumer, "_ask", asked_late)
        stream = open_stream(consumer, Interest.topics("news"))
        opening = next(iter(stream))
        stream.close()
        assert dispatched == [1]
        assert f"event: {POSITION}" in opening.decode()

        (place,) = [line.removeprefix("id: ") for line in opening.decode().splitlines() if line.startswith("id: ")]
        again = open_stream(consumer, Interest.topics("news"), last_event_id=place)
        assert b"event: news" in next(iter(again))
        again.close()
