"""``queuekeeper events``: publish, look at and dispatch events."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any

import typer

from queuekeeper import events
from queuekeeper.cli import context, jobs
from queuekeeper.cli.command import PLANS, OnPostgres, command, group, options
from queuekeeper.cli.input import Due, lines_of
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import SHOWN_CHARACTERS, Column, Shown, headed, listing, screen
from queuekeeper.cli.stores import StoreCommands
from queuekeeper.errors import UsageError
from queuekeeper.events.model import MAX_PAGE
from queuekeeper.facts import plain
from queuekeeper.jobs.parameters import Parameters

MENDS = ("reenqueue_events", "quarantine_subscription", "freeze_partition")
"""Jobs that mend what quality finds in the broker."""

app = group()

OneGroup = Annotated[str | None, typer.Option("--group", help="Show one group only. Without it, all groups.")]
Content = Annotated[bool, typer.Option("--content", help="Also show payloads and metadata.")]


class OnBroker(OnPostgres):
    """A call of a command that works on the event broker."""

    @cached_property
    def store(self) -> events.EventBroker:
        """The event broker of the database."""
        return events.EventBroker(self.connection)


broker = StoreCommands(group=app, path="queuekeeper events", on=OnBroker)


@command(app)
def publish(
    call: OnBroker,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    *,
    payload: str = "null",
    metadata: str | None = None,
    delay_ms: int | None = None,
    due: Due = None,
    to: str | None = None,
    source: Annotated[str | None, typer.Option("--input", metavar="FILE")] = None,
) -> Shown:
    """Publish one event, or those of a file: all of them or none.

    Example: `queuekeeper events publish orders.paid --payload '{"order": 17}'`

    :param topic: Topic of the event.
    :param payload: Payload of the event as JSON.
    :param metadata: Metadata of the event as JSON.
    :param delay_ms: Publish the event after this time.
    :param due: Publish the event at this time; a time zone is required.
    :param to: Publish to this subscription only.
    :param source: Publish each line of a file, or of stdin with -: {"topic": .., "payload": .., "metadata": ..} for
        each.
    """
    if (topic is None) == (source is None):
        raise UsageError("name either a topic or a file (--input)")
    if source is not None:
        if any(each is not None for each in (delay_ms, due, metadata)) or payload != "null":
            raise UsageError(
                "--payload, --metadata, --delay and --due are about one event: put them into the lines of the file"
            )
        with lines_of(source) as lines:
            return Shown({"published": call.store.publish_many(_lines(lines), subscription_id=to)}, "Published")
    meaning = None if metadata is None else _parsed("metadata", metadata)
    event = events.NewEvent(topic=str(topic), payload=_parsed("payload", payload), metadata=meaning)
    when = {name: value for name, value in (("due", due), ("delay_ms", delay_ms)) if value is not None}
    if when:
        event_id = call.store.schedule(event, due_at=due, delay_ms=delay_ms, subscription_id=to)
    else:
        (event_id,) = call.store.publish([event]) if to is None else call.store.send(to, [event])
    return Shown({"id": event_id, **when}, "Published")


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; text stands between double quotes") from None
    except RecursionError as error:
        raise UsageError(f"{name} cannot be read: {error}") from None


def _lines(stream: Iterable[bytes]) -> Iterator[events.NewEvent]:

    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} is not JSON: {error}; nothing was published") from None
        if not isinstance(fields, dict) or not {"topic"} <= fields.keys() <= {"topic", "payload", "metadata"}:
            raise UsageError(
                f"line {number} must be an object with topic and, if wanted, payload and metadata; nothing is published"
            )
        try:
            event = events.NewEvent(
                topic=fields["topic"], payload=fields.get("payload"), metadata=fields.get("metadata")
            )
        except UsageError as error:
            raise UsageError(f"line {number} cannot be published: {error}; nothing was published") from None
        yield event


@command(app)
def read(
    call: OnBroker,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    *,
    cursor: str | None = None,
    limit: Annotated[int, typer.Option(help=f"Number of events to show, up to {MAX_PAGE:,}.")] = 20,
    content: Content = False,
) -> Shown:
    """Show the events that a group reads next. Its consumers still get them.

    Example: `queuekeeper events read billing --limit 5 --content`

    :param group: Name of the consumer group.
    :param cursor: Event id after which to begin. Without it, the group's cursor.
    """
    page = call.store.read(group, cursor=cursor, limit=limit, peek=True)
    if not page.items and not call.store.has_group(group):
        raise UsageError(f"there is no group {group}: `queuekeeper events subscriptions` shows those that subscribe")

    columns = {"event": "event.id", "published": "event.published_at"} | headed("event.topic") | _payload(content)
    columns |= {"subscriptions": lambda each: len(each.subscription_ids)}
    nothing = f"Group {group} has read everything that was dispatched to it."
    events = [
        _event_facts(item.event, content=content) | {"subscription_ids": list(item.subscription_ids)}
        for item in page.items
    ]
    return Shown(
        {"events": events, "next_cursor": page.next_cursor},
        lambda: [listing(f"Group {group}", page.items, columns, nothing=nothing)],
        then=f"Next: --cursor {page.next_cursor}" if page.items else "",
    )


def _payload(content: bool) -> dict[str, Column]:
    """Return the column of payloads where content is asked for."""
    return headed(payload=lambda each: _short(each.event.payload)) if content else {}


def _event_facts(event: events.Event, *, content: bool) -> dict[str, Any]:
    facts = {"id": event.id, "topic": event.topic, "published_at": event.published_at}
    return facts | ({"payload": event.payload, "metadata": event.metadata} if content else {})


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


@command(app, more=options(events.DispatchRules, "poll_interval_s", "statement_timeout_s", "condition_timeout_s"))
def dispatch(call: OnPostgres, *, once: bool = False, **given: Any) -> Shown:
    """Dispatch published events to subscriptions.

    It works until SIGTERM or Ctrl-C. Several dispatchers may run; one of them works.

    Example: `queuekeeper events dispatch --postgres-url postgresql://broker@db/app`

    :param once: Dispatch what waits, then exit.
    """
    rules = events.DispatchRules(**given)
    dispatcher = events.Dispatcher(context.postgres_address(call.postgres_url), rules=rules, once=once)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    if not once:
        screen(stderr=True).print("Dispatching; end it with Ctrl-C or SIGTERM.")
    return Shown(dispatcher.run(), "Dispatched")


def _letters(
    _: OnBroker,
    letters: Any,
    *,
    group_id: OneGroup = None,
    limit: Annotated[int, typer.Option(help=f"Number of dead letters to show, up to {MAX_PAGE:,}.")] = 50,
    content: Content = False,
) -> Shown:
    columns = {"number": "dead_letter_id", "died": "died_at", "group": "group_id"} | headed("handler", "event.topic")
    columns |= headed("attempts", "reason") | _payload(content)
    facts = [plain(letter) | {"event": _event_facts(letter.event, content=content)} for letter in letters]
    return Shown(
        {"dead_letters": facts},
        lambda: [listing("Dead letters", letters, columns, nothing="There are no dead letters.")],
        then=f"Next: queuekeeper events replay {letters[0].dead_letter_id}" if letters else "",
    )


broker.command(events.EventBroker.dead_letters, _letters, "--group billing", more=["after"])


@command(app, also=PLANS)
def replay(
    call: OnBroker,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[NUMBER]...")] = None,
    *,
    group: str | None = None,
    to: str | None = None,
) -> Shown:
    """Deliver dead letters to their handlers again.

    They get all of their attempts again.

    Example: `queuekeeper events replay --group billing --dry-run`

    :param numbers: Numbers of dead letters, as `events dead-letters` shows them.
    :param group: Take all dead letters of this group.
    :param to: Subscription to redeliver to, when their own is gone.
    """
    if bool(numbers) == (group is not None):
        raise UsageError("name either numbers of dead letters or a group (--group)")
    chosen = list(numbers or _numbers(call.store, group))
    replayed = call.carry_out(
        lambda only_count: 0 if only_count else call.store.replay_dead_letters(chosen, subscription_id=to),
        lambda _: f"{len(chosen):,} dead letters will be delivered again.",
        needed=lambda _: chosen,
    )
    return Shown({"chosen": len(chosen), "replayed": replayed, "dry_run": call.dry_run}, call.title("Replay"))


def _numbers(broker: events.EventBroker, group: str | None) -> Iterator[int]:
    after = 0
    while page := broker.dead_letters(group_id=group, after=after, limit=1_000):
        yield from (letter.dead_letter_id for letter in page)
        after = page[-1].dead_letter_id


@command(app)
def subscriptions(
    call: OnBroker, *, group: OneGroup = None, release: Annotated[str | None, typer.Option(metavar="ID")] = None
) -> Shown:
    """Show subscriptions, and which of them are in quarantine.

    A subscription is put into quarantine when its condition fails.

    Example: `queuekeeper events subscriptions --group billing`

    :param release: Take this subscription out of quarantine, and dispatch what it has missed.
    """
    if release is not None:
        report = call.store.release_subscription(release)
        return Shown(plain(report) | {"subscription_id": release}, "Released")
    views = call.store.subscriptions(group_id=group)
    columns = {"subscription": "subscription_id", "group": "group_id"} | headed("condition")
    columns |= {"params": lambda view: _short(view.params), "last active": "last_active_at"}
    columns |= {"quarantine": "quarantine_reason"}
    return Shown({"subscriptions": views}, lambda: [listing("Subscriptions", views, columns)])


@command(app, also=PLANS, asks=takes(lambda: jobs.model_of("reenqueue_events")))
def mend(
    call: OnPostgres,
    remedy: Annotated[str, typer.Argument(metavar="REMEDY", help=f"{', '.join(MENDS[:-1])} or {MENDS[-1]}.")],
    *,
    parameters: Parameters,
    go_on: jobs.GoOn = None,
    report_directory: jobs.ReportDirectory = None,
) -> Shown:
    """Mend what a quality run found.

    These are events that were never dispatched, conditions that fail, and tables that are too old.

    It plans first, and asks.

    Example: `queuekeeper events mend reenqueue_events --dry-run`
    """
    if remedy not in MENDS:
        raise UsageError(f"there is no remedy {remedy!r} for events: one of {', '.join(MENDS)}")
    return jobs.carry_out(call, remedy, parameters, go_on=go_on, report_directory=report_directory)


UPKEEP = """Keep the event broker in order.

It removes expired subscriptions, dispatches events that were never dispatched, and says what needs a look.

It plans first, and asks. Exit code 1 when something must not wait.

Example: `queuekeeper events upkeep --dry-run`
"""
app.command("upkeep", cls=JobCommand)(jobs.command_of("event_upkeep", UPKEEP, on=OnPostgres))
