"""``queuekeeper events``: publish, look, dispatch, and what goes with them."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import pairs, plain, printable, record, screen, show, table
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.events.broker import EventBroker
    from queuekeeper.events.model import Event, NewEvent

app = typer.Typer(no_args_is_help=True, help="Publish, dispatch and follow events in PostgreSQL.")

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
OneGroup = Annotated[str | None, typer.Option("--group", help="Show one group only. Without it, all groups.")]
STANDARD_STREAM = "-"
SHOWN_CHARACTERS = 60


@app.callback()
def _group() -> None:
    """Publish, dispatch and follow events in PostgreSQL."""


@contextmanager
def _opened(postgres_url: str | None) -> Iterator[EventBroker]:
    from queuekeeper.events.broker import EventBroker

    with context.postgres_connection(postgres_url) as connection:
        yield EventBroker(connection)


@app.command()
def publish(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Topic of the event.")] = None,
    *,
    payload: Annotated[str, typer.Option(help="Payload of the event as JSON.")] = "null",
    metadata: Annotated[str | None, typer.Option(help="Metadata of the event as JSON.")] = None,
    due: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z"],
            help="Publish the event at this time; a time zone is required.",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Publish to this subscription only.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Publish each line of a file, or of stdin with -: {"topic": .., "payload": .., "metadata": ..} '
            "for each.",
        ),
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Publish one event, or those of a file: all of them or none.

    Example: `queuekeeper events publish orders.paid --payload '{"order": 17}'`
    """
    from queuekeeper.events.model import NewEvent

    if (topic is None) == (source is None):
        raise UsageError("name either a topic or a file (--input)")
    if source is not None and (due is not None or payload != "null" or metadata is not None):
        raise UsageError("--payload, --metadata and --due are about one event: put them into the lines of the file")
    with _opened(postgres_url) as broker:
        if source is None:
            assert topic is not None
            meaning = None if metadata is None else _parsed("metadata", metadata)
            event = NewEvent(topic=topic, payload=_parsed("payload", payload), metadata=meaning)
            if due is not None:
                facts: dict[str, Any] = {"id": broker.schedule(event, due_at=due, subscription_id=to), "due": due}
            else:
                (event_id,) = broker.publish([event]) if to is None else broker.send(to, [event])
                facts = {"id": event_id}
        elif source == STANDARD_STREAM:
            facts = {"published": broker.publish_many(_lines(sys.stdin.buffer), subscription_id=to)}
        else:
            with Path(source).open("rb") as opened:
                facts = {"published": broker.publish_many(_lines(opened), subscription_id=to)}
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Published", facts)))


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; text stands between double quotes") from None


def _lines(stream: BinaryIO) -> Iterator[NewEvent]:
    from queuekeeper.events.model import NewEvent

    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise UsageError(f"line {number} is not JSON: {error}; nothing was published") from None
        if not isinstance(fields, dict) or not {"topic"} <= fields.keys() <= {"topic", "payload", "metadata"}:
            raise UsageError(
                f"line {number} must be an object with topic and, if wanted, payload and metadata; nothing is published"
            )
        yield NewEvent(topic=fields["topic"], payload=fields.get("payload"), metadata=fields.get("metadata"))


@app.command()
def read(
    group: GroupId,
    *,
    cursor: Annotated[
        str | None, typer.Option(help="Event id after which to begin. Without it, the group's cursor.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of events to show, up to 10,000.")] = 20,
    content: Annotated[bool, typer.Option("--content", help="Also show payloads and metadata.")] = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show what a group has to read next. Nothing is taken: its consumers get it all the same.

    Example: `queuekeeper events read billing --limit 5 --content`
    """
    with _opened(postgres_url) as broker:
        page = broker.read(group, cursor=cursor, limit=limit, peek=True)
        if not page.items and not broker.has_group(group):
            raise UsageError(
                f"there is no group {group}: `queuekeeper events subscriptions` shows those that subscribe"
            )
    facts = {
        "events": [
            _event_facts(item.event, content=content) | {"subscription_ids": list(item.subscription_ids)}
            for item in page.items
        ],
        "next_cursor": page.next_cursor,
    }

    def pretty(out: Console) -> None:
        if not page.items:
            out.print(f"Group {printable(group)} has read everything that was dispatched to it.")
            return
        columns = ["event", "published", "topic", "subscriptions", *(["payload"] if content else [])]
        rows = [
            [
                item.event.id,
                f"{item.event.published_at:%Y-%m-%d %H:%M:%S} UTC",
                item.event.topic,
                len(item.subscription_ids),
                *([_short(item.event.payload)] if content else []),
            ]
            for item in page.items
        ]
        out.print(table(f"Group {group}", columns, rows))
        out.print(f"\nNext: --cursor {page.next_cursor}")

    show(facts, as_json=as_json, pretty=pretty)


def _event_facts(event: Event, *, content: bool) -> dict[str, Any]:
    facts = {"id": event.id, "topic": event.topic, "published_at": event.published_at}
    return facts | ({"payload": event.payload, "metadata": event.metadata} if content else {})


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


@app.command()
def dispatch(
    *,
    once: Annotated[bool, typer.Option("--once", help="Dispatch what waits, then exit.")] = False,
    poll_interval_s: Annotated[
        float, typer.Option(help="Seconds after which to poll even without a notification, up to 86,400.")
    ] = 1.0,
    statement_timeout_s: Annotated[float, typer.Option(help="Seconds after which the server cancels a poll.")] = 10.0,
    condition_timeout_s: Annotated[
        float,
        typer.Option(
            help="Seconds that one condition may take for the newest events, measured after a poll that took too long."
        ),
    ] = 1.0,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Dispatch published events to subscriptions.

    Until SIGTERM or Ctrl-C. Several may run; one works.

    Example: `queuekeeper events dispatch --postgres-url postgresql://broker@db/app`
    """
    import logging

    from queuekeeper.events.dispatcher import Dispatcher, DispatchRules

    rules = DispatchRules(
        poll_interval_s=poll_interval_s,
        statement_timeout_s=statement_timeout_s,
        condition_timeout_s=condition_timeout_s,
    )
    dispatcher = Dispatcher(context.postgres_address(postgres_url), rules=rules, once=once)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    if not once:
        screen(stderr=True).print("Dispatching; end it with Ctrl-C or SIGTERM.")
    report = dispatcher.run()
    show(report, as_json=as_json, pretty=lambda out: out.print(record("Dispatched", report)))


@app.command("dead-letters")
def dead_letters(
    *,
    group: OneGroup = None,
    after: Annotated[
        int, typer.Option(help="Show dead letters after this number: the last one of the page before.")
    ] = 0,
    limit: Annotated[int, typer.Option(help="Number of dead letters to show, up to 10,000.")] = 50,
    content: Annotated[bool, typer.Option("--content", help="Also show payloads and metadata.")] = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show events on which a handler has given up, and why. Replayed ones are left out.

    Example: `queuekeeper events dead-letters --group billing`
    """
    with _opened(postgres_url) as broker:
        letters = broker.dead_letters(group_id=group, after=after, limit=limit)
    facts = [plain(letter) | {"event": _event_facts(letter.event, content=content)} for letter in letters]

    def pretty(out: Console) -> None:
        if not letters:
            out.print("There are no dead letters.")
            return
        columns = (
            "number",
            "died",
            "group",
            "handler",
            "topic",
            "attempts",
            "reason",
            *(["payload"] if content else []),
        )
        rows = [
            [
                str(letter.dead_letter_id),
                f"{letter.died_at:%Y-%m-%d %H:%M:%S} UTC",
                letter.group_id,
                letter.handler,
                letter.event.topic,
                letter.attempts,
                letter.reason,
                *([_short(letter.event.payload)] if content else []),
            ]
            for letter in letters
        ]
        out.print(table("Dead letters", columns, rows))
        out.print("\nNext: queuekeeper events replay NUMBER...")

    show({"dead_letters": facts}, as_json=as_json, pretty=pretty)


@app.command()
def replay(
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[NUMBER]...", help="Numbers of dead letters, as `events dead-letters` shows them."),
    ] = None,
    *,
    group: Annotated[str | None, typer.Option("--group", help="Take all dead letters of this group.")] = None,
    to: Annotated[str | None, typer.Option(help="Subscription to redeliver to, when their own is gone.")] = None,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Deliver dead letters to their handlers again.

    With all attempts before them.

    Example: `queuekeeper events replay --group billing --dry-run`
    """
    if bool(numbers) == (group is not None):
        raise UsageError("name either numbers of dead letters or a group (--group)")
    with _opened(postgres_url) as broker:
        chosen = list(numbers or _numbers(broker, group))
        replayed = 0
        if not dry_run and chosen:
            context.confirm(f"{len(chosen):,} dead letters will be delivered again.", yes=yes, as_json=as_json)
            replayed = broker.replay_dead_letters(chosen, subscription_id=to)
    facts = {"chosen": len(chosen), "replayed": replayed, "dry_run": dry_run}
    title = "Dry run" if dry_run else "Replay"
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs(title, facts)))


def _numbers(broker: EventBroker, group: str | None) -> Iterator[int]:
    after = 0
    while page := broker.dead_letters(group_id=group, after=after, limit=1_000):
        yield from (letter.dead_letter_id for letter in page)
        after = page[-1].dead_letter_id


@app.command()
def subscriptions(
    *,
    group: OneGroup = None,
    release: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Take this subscription out of quarantine, and dispatch what it has missed."),
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show who wants what, and what is in quarantine.

    A condition comes there by failing.

    Example: `queuekeeper events subscriptions --group billing`
    """
    with _opened(postgres_url) as broker:
        if release is not None:
            report = broker.release_subscription(release)
            facts = plain(report) | {"subscription_id": release}
            show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Released", facts)))
            return
        views = broker.subscriptions(group_id=group)

    def pretty(out: Console) -> None:
        columns = ("subscription", "group", "condition", "params", "last active", "quarantine")
        rows = [
            (
                view.subscription_id,
                view.group_id,
                view.condition,
                _short(view.params),
                f"{view.last_active_at:%Y-%m-%d %H:%M:%S} UTC",
                view.quarantine_reason,
            )
            for view in views
        ]
        out.print(table("Subscriptions", columns, rows))

    show({"subscriptions": views}, as_json=as_json, pretty=pretty)


@app.command()
def mend(
    remedy: Annotated[
        str,
        typer.Argument(metavar="REMEDY", help="reenqueue_events, quarantine_subscription or freeze_partition."),
    ],
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Mend what a quality run found.

    Events never dispatched, conditions that fail, tables too old.

    It plans first, and asks.

    Example: `queuekeeper events mend reenqueue_events --dry-run`
    """
    from queuekeeper.audit import record_answer
    from queuekeeper.maintenance.events.remedies import (
        KIND,
        REMEDIES,
        apply_event_remedy,
        note_upkeep,
        plan_event_remedy,
    )

    with context.postgres_connection(postgres_url) as connection:
        plan = plan_event_remedy(connection, remedy=remedy)
        facts = {"remedy": plan.remedy, "what it does": REMEDIES[plan.remedy], "to mend": len(plan.subjects)}

        def pretty(out: Console) -> None:
            out.print(pairs("Plan", facts))
            if plan.subjects:
                out.print(table("Some of them", ("subject",), [(subject,) for subject in plan.examples]))
            else:
                out.print("\nThere is nothing to do.")

        if dry_run or not plan.subjects:
            show(plan, as_json=as_json, pretty=pretty)
            return
        if not as_json:
            pretty(screen(stderr=True))
        note = partial(record_answer, connection, subject=remedy, kind=KIND)
        question = f"{remedy} will be applied to {len(plan.subjects):,} of them."
        context.confirm(question, yes=yes, as_json=as_json, note=note)
        report = apply_event_remedy(connection, plan)
        note_upkeep(connection, subject=remedy, done=report.done, actor=context.person())
    show(report, as_json=as_json, pretty=lambda out: out.print(record("Done", report)))
