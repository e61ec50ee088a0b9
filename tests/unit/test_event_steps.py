"""What consumers and dispatchers ask for, step by step, without a server: pauses, timeouts, wire forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import pytest

from queuekeeper.errors import QueuekeeperError, RefusedError, Rejected, ServerUnavailable, UsageError
from queuekeeper.events.consumer import AsyncEventConsumer, EventConsumer
from queuekeeper.events.consumption import Consumption
from queuekeeper.events.dispatcher import Dispatching, DispatchReport, DispatchRules
from queuekeeper.events.handlers import (
    Assignment,
    Checkpoint,
    Outcome,
    ReadAhead,
    ReliableHandler,
    awaited_attempt,
    blocking_attempt,
)
from queuekeeper.events.model import (
    Delivery,
    Event,
    Interest,
    LockTimeout,
    NewEvent,
    ReadRules,
    StatementTimeout,
    check_group,
    instant_of,
    json_of,
    retry_of,
)
from queuekeeper.events.operations import Query
from queuekeeper.events.producer import EventProducer
from queuekeeper.events.service import Open
from queuekeeper.events.sse import StreamRules, StreamWriter, payload_json
from queuekeeper.events.webhooks import AsyncWebhook, Webhook, WebhookRules
from queuekeeper.service.steps import Happened, Stop, Wait

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVENT_ID = "pm660d02d3e796d000000064"


# Dispatcher.


class SlowServer:
    """Answers a dispatcher's steps; polls take so long, and conditions so long each.

    :param plain_s: times that condition TRUE takes, one after the other; none after them.
    """

    def __init__(self, *, poll_s: float, conditions: dict[str, float], plain_s: Iterable[float] = ()) -> None:
        self.plain_s = iter(plain_s)
        self.conditions = conditions
        self.quarantined: dict[str, str] = {}
        self.limits_s: list[float] = []
        self.lock_limit_s: float | None = None
        self._poll_s = poll_s

    def answer(self, step: Any) -> Any:
        if isinstance(step, Open):
            return None
        if isinstance(step, Wait):
            return Happened(told=(), notified=False)
        assert isinstance(step, Query)
        return getattr(self, step.name)(**step.parameters)

    def limit_statements(self, *, timeout_ms: int) -> list[Any]:
        self.limits_s.append(timeout_ms / 1_000)
        return [(None,)]

    def limit_lock_waits(self, *, timeout_ms: int | None) -> list[Any]:
        self.lock_limit_s = None if timeout_ms is None else timeout_ms / 1_000
        return [(None,)]

    def listen_events(self) -> list[Any]:
        return []

    def poll_for_events(self) -> list[Any]:
        slow_s = sum(each for name, each in self.conditions.items() if name not in self.quarantined)
        if self._poll_s + slow_s > self.limits_s[-1]:
            raise StatementTimeout("canceling statement due to statement timeout")
        return [(0,)]

    def window_is_open(self) -> list[Any]:
        return [(False,)]

    def live_conditions(self) -> list[Any]:
        return [(name,) for name in self.conditions if name not in self.quarantined]

    def check_condition(self, *, condition: str, max_duration_ms: int) -> list[Any]:
        assert self.lock_limit_s is not None
        assert self.lock_limit_s < self.limits_s[-1]
        if condition == "TRUE":
            if (plain_s := next(self.plain_s, 0.0)) > self.lock_limit_s:
                raise LockTimeout("canceling statement due to lock timeout")
            return [(f"it took {plain_s * 1_000:g} ms" if plain_s > 0.1 else None,)]
        if self.conditions[condition] > min(self.limits_s[-1], max_duration_ms / 1_000):
            raise StatementTimeout("canceling statement due to statement timeout")
        return [("it fails on event pm1" if condition == "broken" else None,)]

    def quarantine_condition(self, *, condition: str, reason: str) -> list[Any]:
        self.quarantined[condition] = reason
        return [(f"su-{condition}",)]


def dispatch(
    server: SlowServer, *, rules: DispatchRules | None = None, once: bool = True, now_s: Callable[[], float] = float
) -> DispatchReport:
    operation = Dispatching(rules or DispatchRules(), once=once, began=lambda: None, now_s=now_s).run()
    try:
        step = next(operation)
        while True:
            try:
                answer = server.answer(step)
            except QueuekeeperError as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        found: DispatchReport = end.value
        return found


def test_only_slow_and_broken_conditions_are_quarantined_when_a_poll_takes_too_long() -> None:
    server = SlowServer(poll_s=1, conditions={"good": 0.1, "slow": 20, "broken": 0.1, "also good": 0.5})
    report = dispatch(server)
    assert server.quarantined == {
        "slow": "it takes too long for the latest events, 3 times in a row: "
        "canceling statement due to statement timeout",
        "broken": "it fails on event pm1",
    }
    assert report == DispatchReport(polls=1, matches=0, quarantined=("su-slow", "su-broken"))
    assert server.limits_s == [10, 1, 10]


def test_polls_get_more_time_when_no_single_condition_is_at_fault_and_no_longer_than_needed() -> None:
    server = SlowServer(poll_s=35, conditions={"good": 0.9})
    report = dispatch(server)
    assert server.quarantined == {}
    assert report.polls == 1
    assert server.limits_s == [10, 1, 20, 1, 40, 10]
    assert server.lock_limit_s is None


@pytest.mark.parametrize(("limit_s", "quarantined"), [(1.0, ("su-costly",)), (2.5, ("su-costly",)), (4.0, ())])
def test_condition_has_the_time_that_the_rules_give_it(limit_s: float, quarantined: tuple[str, ...]) -> None:
    server = SlowServer(poll_s=9, conditions={"costly": 3.0})
    assert dispatch(server, rules=DispatchRules(condition_timeout_s=limit_s)).quarantined == quarantined


@pytest.mark.parametrize(("late", "quarantined"), [(0, ()), (2, ()), (3, ("su-good",))])
def test_condition_is_quarantined_as_slow_only_when_it_is_each_time(late: int, quarantined: tuple[str, ...]) -> None:
    class LateServer(SlowServer):
        tries = 0

        def check_condition(self, *, condition: str, max_duration_ms: int) -> list[Any]:
            self.tries += condition != "TRUE"
            if condition != "TRUE" and self.tries <= late:
                raise StatementTimeout("canceling statement due to statement timeout")
            return super().check_condition(condition=condition, max_duration_ms=max_duration_ms)

    server = LateServer(poll_s=15, conditions={"good": 0.1})
    assert dispatch(server).quarantined == quarantined


@pytest.mark.parametrize("plain_s", [(20,), (0.2,), (0, 20), (0, 0.2)])
def test_nobody_is_blamed_while_a_condition_that_costs_nothing_takes_long_too(
    plain_s: tuple[float, ...], caplog: pytest.LogCaptureFixture
) -> None:
    server = SlowServer(poll_s=1, conditions={"slow": 20}, plain_s=plain_s)
    report = dispatch(server)
    assert report.quarantined == ("su-slow",), "it is found as soon as the server is well"
    assert server.limits_s == [10, 1, 20, 1, 20, 10]
    assert server.lock_limit_s is None
    assert "no condition is quarantined, as the server is slow or a lock is held" in caplog.text


class BusyServer(SlowServer):
    """Finds so many matches in one poll after the other; a pause takes as long as it is asked for.

    :param matches: of each poll.
    """

    def __init__(self, matches: Iterable[int]) -> None:
        super().__init__(poll_s=0, conditions={})
        self.now_s = 0.0
        self.pauses_s: list[float] = []
        self._matches = list(matches)

    def answer(self, step: Any) -> Any:
        if isinstance(step, Wait):
            if not self._matches:
                return Happened(told=(Stop(),), notified=False)
            if step.timeout_s > 0:
                # A notification during the pause would end it, and cost as much as a poll of a few events.
                assert not step.notifiable
                self.now_s += step.timeout_s
                self.pauses_s.append(step.timeout_s)
            return Happened(told=(), notified=False)
        return super().answer(step)

    def poll_for_events(self) -> list[Any]:
        return [(self._matches.pop(0),)]


@pytest.mark.parametrize(
    ("rules", "pauses_s"),
    [
        (DispatchRules(), [0.0106, 0.025, 0.04, 0.04]),
        (DispatchRules(pause_s=0.1), [0.1] * 4),
        (DispatchRules(pause_s=0.0, busy_pause_s=0.0), []),
    ],
)
def test_pause_between_polls_grows_with_what_they_find(rules: DispatchRules, pauses_s: list[float]) -> None:
    server = BusyServer([10, 250, 500, 20_000, 0])
    report = dispatch(server, rules=rules, once=False, now_s=lambda: server.now_s)
    assert report.matches == 20_760
    assert server.pauses_s == pytest.approx(pauses_s)


class NotifyingServer(BusyServer):
    """Finds so many matches in one poll after the other; a waiting dispatcher is notified, and in the end told to stop.

    :param gaps_s: from the beginning of each wait to its notification.
    """

    def __init__(self, matches: Iterable[int], gaps_s: Iterable[float]) -> None:
        super().__init__(matches)
        self._gaps_s = list(gaps_s)

    def answer(self, step: Any) -> Any:
        if isinstance(step, Wait) and step.notifiable and self._gaps_s:
            self.now_s += self._gaps_s.pop(0)
            return Happened(told=(), notified=True)
        return super().answer(step)


@pytest.mark.parametrize(
    ("matches", "gaps_s", "pauses_s"),
    [
        ([0, 0, 0, 0], [0.5, 0.004, 0.01], [0.006]),  # of events that match nothing
        ([0, 0, 0, 0], [0.0, 0.003, 0.004], [0.007, 0.006]),
        ([250, 0, 0], [0.001], [0.025]),  # the poll that finds nothing more asks for no pause
    ],
)
def test_event_is_dispatched_at_once_unless_it_comes_soon_after_another(
    matches: list[int], gaps_s: list[float], pauses_s: list[float]
) -> None:
    server = NotifyingServer(matches, gaps_s)
    dispatch(server, once=False, now_s=lambda: server.now_s)
    assert server.pauses_s == pytest.approx(pauses_s)


# Beginning of a consumer.


class Lateness:
    """Answers the steps of a consumer's beginnings, each of which ends by an error, or well; after a good one the
    connection breaks, and after the last it is told to stop.

    :param ends: of the beginnings: a step's name and the error it ends by, or none.
    """

    def __init__(self, *ends: tuple[str, QueuekeeperError] | None) -> None:
        self._ends = list(ends)
        self.begun = self.opened = 0
        self._now_s = 0.0

    def run(self) -> None:
        consumption = Consumption(
            group_id="group",
            rules=ReadRules(),
            attempt=blocking_attempt,
            began=self._note_begin,
            now_s=lambda: self._now_s,
        )
        consumption.admit(ReliableHandler(work=print, name="bill", interest=Interest()))
        operation = consumption.run()
        with suppress(StopIteration):
            step = next(operation)
            while True:
                try:
                    answer = self._answer(step)
                except QueuekeeperError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)

    def _note_begin(self) -> None:
        self.begun += 1

    def _answer(self, step: Any) -> Any:
        if isinstance(step, Wait):
            self._now_s += step.timeout_s
            return Happened(told=() if self._ends else (Stop(),), notified=False)
        if isinstance(step, Open):
            self.opened += 1
            self._end = self._ends.pop(0)
            return None
        name = step.name if isinstance(step, Query) else "subscribe"
        if self._end is not None and self._end[0] == name:
            raise self._end[1]
        if name == "read_next_events" and self._ends:
            raise ServerUnavailable("the connection broke")
        if name == "subscribe":
            return [[], [], [("su1", NOW)], []]
        return [(None, None)] if name == "subscription_quarantine" else []


LATE = ("subscribe", StatementTimeout("not tried in time"))


def test_consumer_that_never_began_gives_up_a_condition_that_is_too_slow_each_time() -> None:
    server = Lateness(LATE, LATE, LATE, None)
    with pytest.raises(StatementTimeout, match="not tried in time"):
        server.run()
    assert (server.opened, server.begun) == (3, 0)


@pytest.mark.parametrize(
    ("ends", "begun"),
    [
        ((LATE, LATE, None), 1),
        ((LATE, LATE, None, *[LATE] * 5, None), 2),
        # Another consumer has the group, or others hold locks.
        ((*[("pin_reader", StatementTimeout("not yet"))] * 5, LATE, LATE, None), 1),
        ((*[("subscribe", LockTimeout("not yet"))] * 5, LATE, LATE, None), 1),
    ],
)
def test_consumer_waits_for_what_may_yet_pass(
    ends: tuple[tuple[str, QueuekeeperError] | None, ...], begun: int
) -> None:
    server = Lateness(*ends)
    server.run()
    assert (server.opened, server.begun) == (len(ends), begun)


# Reading ahead.


def test_cursor_stands_behind_the_finished_pages_before_the_first_unfinished_one() -> None:
    ahead = ReadAhead(3)
    first, second, third = (ahead.add(cursor) for cursor in ("1", "2", "3"))
    first.unfinished = second.unfinished = 1
    assert (ahead.full, ahead.take_finished()) == (True, None)
    second.unfinished = 0
    assert ahead.take_finished() is None
    first.unfinished = 0
    assert (ahead.take_finished(), ahead.full) == ("3", False)
    fourth = ahead.add("4")
    ahead.abandon()
    assert (third.void, fourth.void, ahead.take_finished()) == (False, True, None)


# What anybody may have published.

RETRY = {"ids": [EVENT_ID], "retryNumber": 2, "handlerName": "bill"}


def test_retry_is_read_with_and_without_copies() -> None:
    plain = retry_of(Event(id=EVENT_ID, topic="pgmb-retry", payload=RETRY))
    assert plain is not None
    assert (plain.handler, plain.attempt, plain.event_ids, plain.events) == ("bill", 3, (EVENT_ID,), ())
    copy = {"id": EVENT_ID, "topic": "orders", "payload": None}
    with_copies = retry_of(Event(id=EVENT_ID, topic="pgmb-retry", payload={**RETRY, "events": [copy]}))
    assert with_copies is not None
    assert with_copies.events == (Event(id=EVENT_ID, topic="orders", payload=None),)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        {},
        {**RETRY, "ids": None},
        {**RETRY, "ids": [1]},
        {**RETRY, "ids": ["x" * 25]},
        {**RETRY, "retryNumber": -1},
        {**RETRY, "retryNumber": 10**12},
        {**RETRY, "retryNumber": True},
        {**RETRY, "handlerName": ""},
        {**RETRY, "handlerName": 7},
        {**RETRY, "events": [None]},
        {**RETRY, "events": [{"id": EVENT_ID}]},
        {**RETRY, "events": [{"topic": "orders"}]},
    ],
)
def test_event_that_only_claims_to_be_a_retry_is_an_event_like_any_other(payload: Any) -> None:
    assert retry_of(Event(id=EVENT_ID, topic="pgmb-retry", payload=payload)) is None


@pytest.mark.parametrize("event_id", ["", "42", "pm", "xx660d02d3e796d000000064", EVENT_ID + "0", "pmzzzzzzzzzzzzz"])
def test_what_is_no_id_is_refused(event_id: str) -> None:
    with pytest.raises(UsageError, match="is not an id of the event broker"):
        instant_of(event_id)


def test_instant_of_an_id_is_when_it_was_made() -> None:
    assert instant_of("pm0000000000001000000000") == datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NewEvent(topic="", payload=1), "topic is empty"),
        (lambda: NewEvent(topic="x" * 256, payload=1), "topic has 256 characters: at most 255"),
        (lambda: NewEvent(topic="a\0b", payload=1), "zero character"),
        (lambda: NewEvent(topic="a\ud83d", payload=1), r"topic holds half a character, '\\ud83d' at place 2"),
        (lambda: Interest.topics("\udc80"), "topic holds half a character"),
        (lambda: Interest(condition="e.topic = '\ud83d'"), "condition holds half a character"),
        (lambda: Interest(condition=None), "condition is None: it must be text"),  # type: ignore[arg-type]
        (lambda: check_group("\ud83d"), "group id holds half a character"),
        (lambda: Interest(params=[1]), "params is a list: it must be an object"),  # type: ignore[arg-type]
        (lambda: Interest(expires_after=timedelta(0)), "it must be longer than 0"),
        (Interest.topics, "no topic is named"),
        (lambda: ReadRules(page=0), "page is 0: it must be 1 to 10000"),
        (lambda: ReadRules(poll_interval_s=float("nan")), "poll_interval_s is nan"),
        (lambda: StreamRules(retry_ms=0), "retry_ms is 0"),
    ],
)
def test_wrong_values_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@dataclass(frozen=True)
class Reading:
    celsius: float


class Pair(NamedTuple):
    first: int


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-A": 5}, "headers is a dict: it must be a mapping of texts to texts"),
        ({5: "a"}, "headers is a dict: it must be a mapping of texts to texts"),
        ("X-A: 5", "headers is a str: it must be a mapping"),
        ({"X-A": "hidden\xe9"}, "header 'X-A' must be ASCII text"),
        ({"X-A": "hidden\r\nX-B: 5"}, "header 'X-A' must be ASCII text"),
        ({"X-A": "hidden\n"}, "header 'X-A' must be ASCII text"),
        ({"X-A": " hidden"}, "header 'X-A' must be ASCII text"),
        ({"X-\xc4": "hidden"}, "'X-\xc4' is no name of a header"),
        ({"X A": "hidden"}, "'X A' is no name of a header"),
        ({"": "hidden"}, "'' is no name of a header"),
    ],
)
def test_header_that_no_request_can_carry_is_refused_when_the_rules_are_made(headers: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        WebhookRules(headers=headers)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_headers_of_visible_ascii_are_taken() -> None:
    headers = {"X-A_1": "Bearer a\tb~!", "x": "", "Authorization": "Basic YTpi="}
    assert WebhookRules(headers=headers).headers == headers


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {"a": [None, -float("inf")]},
        ({"a": {"b": (1, float("nan"))}},),
        Reading(float("nan")),
    ],
)
def test_what_is_no_number_is_refused_and_not_made_null(value: Any) -> None:
    with pytest.raises(UsageError, match="payload is not JSON: it holds NaN or an infinity"):
        json_of("payload", value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, {"a": [1, (2**70, {"b": None})]}, [2**70, NOW]])
def test_integers_beyond_64_bits_keep_their_digits(value: Any) -> None:
    assert json.loads(json_of("payload", value)) == json.loads(json.dumps(value, default=datetime.isoformat))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": 2**70, "b": b"x"}, "bytes"),
        ({"a": 2**70, 2: 3}, "key must be str"),
        ([2**70, "\ud800"], "surrogates not allowed"),
        ([2**70, {"\ud800": 1}], "surrogates not allowed"),
        ([2**70, float("nan")], "NaN or an infinity"),
        ([2**70, {1}], "set"),
        ([2**70, object()], "object"),
        ([2**70, Pair(1)], "Pair"),
        ([10**5_000], "digits"),
    ],
)
def test_what_is_no_json_is_refused_beside_an_integer_beyond_64_bits(value: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=f"payload is not JSON: .*{reason}"):
        json_of("payload", value)


def test_list_within_itself_is_refused() -> None:
    value: list[Any] = [2**70]
    value.append(value)
    with pytest.raises(UsageError, match="payload is not JSON"):
        json_of("payload", value)


def test_webhook_posts_integers_beyond_64_bits() -> None:
    request = Webhook("http://receiver/")._request(delivery(Event(id=EVENT_ID, topic="a", payload={"n": 2**70})))
    assert json.loads(request.content) == {"items": [{"id": EVENT_ID, "payload": {"n": 2**70}, "topic": "a"}]}


def test_webhook_says_in_words_what_it_cannot_post() -> None:
    with pytest.raises(UsageError, match=r"a payload is not JSON: .*surrogates"):
        Webhook("http://receiver/")._request(delivery(Event(id=EVENT_ID, topic="a", payload="\ud800")))


@pytest.mark.parametrize("kind", [Webhook, AsyncWebhook])
@pytest.mark.parametrize("host", ["a..b", "user:hidden@" + "a" * 64])
def test_webhook_at_a_host_that_nobody_can_look_up_is_refused_when_it_is_made(
    kind: type[Webhook | AsyncWebhook], host: str
) -> None:
    with pytest.raises(
        UsageError, match="address of a webhook cannot be used: its host is no name of a host"
    ) as caught:
        kind(f"https://{host}/hidden")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("payload", [[float("inf")], [10**5_000], ["\ud800"]])
def test_what_no_request_can_hold_is_rejected(payload: Any) -> None:
    with pytest.raises(Rejected, match="no request to the webhook at receiver can hold these events: a payload is not"):
        Webhook("http://receiver/hidden")(delivery(Event(id=EVENT_ID, topic="a", payload=payload)))


def test_stream_goes_on_behind_what_it_cannot_send(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = (Event(id=EVENT_ID, topic="a", payload=payload) for payload in (float("inf"), 1))
    assert writer().chunk(delivery(bad, good)).count(b"event: a") == 1
    assert f"event {EVENT_ID} is left out: payload is not JSON" in caplog.text


def test_stream_sends_integers_beyond_64_bits() -> None:
    event = Event(id=EVENT_ID, topic="a", payload={"n": 2**70})
    assert b'data: {"n":1180591620717411303424}' in writer().chunk(delivery(event))


@pytest.mark.parametrize("value", ["a\0", {"a": [{"\0": 1}]}, ({"a": ("b", "\0")},)])
def test_a_zero_character_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(
        UsageError, match=r"metadata holds a zero character \(U\+0000\), which PostgreSQL does not store"
    ):
        json_of("metadata", value)


def test_text_that_only_reads_like_the_escape_of_a_zero_character_is_json() -> None:
    assert json_of("payload", {"a": "\\u0000"}) == '{"a":"\\\\u0000"}'


def test_null_and_the_word_are_json() -> None:
    assert json_of("payload", {"a": None, "b": ["null", 1.5, Reading(2.0)]}) == (
        '{"a":null,"b":["null",1.5,{"celsius":2.0}]}'
    )


# Streams.


def writer(*, replayed: tuple[Event, ...] = (), serialise: Any = payload_json) -> StreamWriter:
    return StreamWriter(StreamRules(), serialise, replayed=replayed, position=None, subscription_id="su1")


def delivery(*events: Event) -> Delivery:
    return Delivery(subscription_id="su1", events=events)


def test_delivery_is_not_done_when_its_handler_only_makes_a_coroutine() -> None:
    async def bill(_: Delivery) -> None:
        raise AssertionError("nobody awaits it")

    handler = ReliableHandler(work=bill, name="bill", interest=Interest())
    (failure,) = blocking_attempt(Assignment(handler, delivery(), Checkpoint("")))().failures
    assert isinstance(failure.error, UsageError)
    assert "a coroutine that nobody awaits here" in str(failure.error)


def test_plain_function_in_an_event_loop_works_once() -> None:
    seen: list[Delivery] = []
    handler = ReliableHandler(work=seen.append, name="bill", interest=Interest())

    async def attempt() -> Outcome:
        return await awaited_attempt(Assignment(handler, delivery(), Checkpoint("")))()

    assert asyncio.run(attempt()) == Outcome()
    assert len(seen) == 1


def test_hostile_topics_and_texts_cannot_forge_another_event() -> None:
    event = Event(id=EVENT_ID, topic="news\nevent: admin\r\u2028data: x", payload=None)
    chunk = writer(serialise=lambda _: "a\r\nid: 7\rb\n\nc").chunk(delivery(event))
    assert chunk.decode() == (
        f"id: {EVENT_ID}-su1\nevent: news event: admin  data: x\ndata: a\ndata: id: 7\ndata: b\ndata: \ndata: c\n\n"
    )


def test_event_that_was_replayed_is_not_sent_again() -> None:
    first, second = (Event(id=f"pm{number:022x}", topic="news", payload=number) for number in (1, 2))
    stream = writer(replayed=(first,))
    assert stream.opening().count(b"event: news") == 1
    assert stream.chunk(delivery(first)) == b""
    assert stream.chunk(delivery(first, second)).count(b"event: news") == 1
    assert stream.chunk(None) == b":\n\n"


def test_serialiser_may_leave_events_out_and_errors_reach_the_reader() -> None:
    stream = writer(serialise=lambda _: None)
    assert stream.chunk(delivery(Event(id=EVENT_ID, topic="news", payload=1))) == b""
    assert stream.closing(RefusedError("gone")) == b'event: error\ndata: {"message":"gone"}\n\n'


URL = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.mark.parametrize("kind", [EventConsumer, AsyncEventConsumer])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"work": None}, "work is None: it must be a Handler or a function"),
        ({"name": 5}, "name is 5: it must be text"),
        ({"interest": "topic"}, "interest is a str: it must be an Interest or None"),
        ({"retries_s": 5}, "retries_s is 5: it must be a list or tuple of numbers or None"),
        ({"split": 5}, "split is 5: it must be a function or None"),
    ],
)
def test_a_handler_of_wrong_types_is_refused_when_it_is_registered(
    kind: type[Any], arguments: dict[str, Any], words: str
) -> None:
    async def run() -> None:
        consumer = kind(URL, group_id="group")
        try:
            made = consumer.handle(**{"work": print, "name": "print"} | arguments)
            if made is not None:
                await made
        finally:
            closed = consumer.close(patient=False) if kind is EventConsumer else consumer.close()
            if closed is not None:
                await closed

    with pytest.raises(UsageError, match=words):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EventConsumer(cast(Any, None), group_id="group"), "url is None: it must be text"),
        (
            lambda: EventConsumer(URL, group_id="group", rules=cast(Any, "fast")),
            "rules is a str: it must be a ReadRules",
        ),
        (lambda: EventProducer(cast(Any, None)), "broker is None: it must be an EventBroker"),
        (lambda: Interest(expires_after=cast(Any, 5)), "expires_after is 5: it must be a timedelta or None"),
        (lambda: WebhookRules(secret=cast(Any, 5)), "secret is 5: it must be text or None"),
        (lambda: Webhook(cast(Any, 5)), "url is 5: it must be text"),
    ],
)
def test_what_is_made_of_wrong_types_is_refused_when_it_is_made(call: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()
