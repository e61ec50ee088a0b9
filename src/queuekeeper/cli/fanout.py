"""``queuekeeper fanout``: fill, read, look at and mend fan-out queues and their consumers."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queuekeeper.cli import context
from queuekeeper.cli.input import STANDARD_STREAM, KeyPrefix, content, named_texts, prefix
from queuekeeper.cli.output import (
    duration,
    instant,
    pairs,
    plain,
    printable,
    record,
    screen,
    show,
    shown_bytes,
    table,
)
from queuekeeper.errors import CheckFailed, QueuekeeperError, UnknownConsumer, UsageError
from queuekeeper.service.signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.fanout.model import ConsumerView, FanoutMessage, QueueView
    from queuekeeper.fanout.queue import FanoutQueues

app = typer.Typer(no_args_is_help=True)
dead = typer.Typer(no_args_is_help=True, help="Look at dead letters, retry them, give them up.")

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
ConsumerName = Annotated[str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.")]
ConsumerOrAll = Annotated[
    str | None, typer.Argument(metavar="[CONSUMER]", help="Name of the consumer. Without it, the whole queue.")
]
DeadIds = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of dead letters, as `fanout dead list` shows them.")
]
AllDead = Annotated[bool, typer.Option("--all", help="Take all dead letters of the consumer.")]
Offset = Annotated[int, typer.Option(help="Number of messages to skip before the first one shown.")]
ShowBodies = Annotated[bool, typer.Option("--show-bodies", help="Show bodies and headers too.")]
ModeName = Annotated[
    Literal["fifo", "ordered"] | None,
    typer.Option(
        "--mode",
        help="fifo: workers handle many messages at once. ordered: each lane hands out one message at a time. "
        "[default: fifo]",
    ),
]
WhenFailedName = Annotated[
    Literal["skip", "halt"] | None,
    typer.Option(
        "--when-failed",
        help="What an ordered consumer does after a message has become a dead letter: go on, or stop until it "
        "is retried or purged. [default: skip]",
    ),
]
Lanes = Annotated[
    int | None, typer.Option(help="Number of lanes of an ordered consumer, 1 to 64. The order key chooses the "
    "lane. [default: 1]")
]  # fmt: skip
MaxLength = Annotated[
    int | None, typer.Option(help="Largest number of messages that may wait in a lane; 0 is no limit. [default: 0]")
]
WhenFullName = Annotated[
    Literal["reject", "drop_oldest"] | None,
    typer.Option("--when-full", help="What a publish does when --max-length is reached. [default: reject]"),
]
DeadRetention = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Time after which a dead letter is deleted, such as 1h or 7d. [default: 7d]"),
]
IdleExpiry = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Time without a sign of life after which upkeep may remove the consumer; none is never. [default: none]",
    ),
]
_DURATIONS = frozenset({"dead_retention_ms", "deduplication_ms", "idle_expiry_ms"})
_NAMES = frozenset({"id", "last_id", "version"})
"""Numbers that name something and count nothing."""


@app.callback()
def _group() -> None:
    """Publish once for many consumers: fan-out queues in Redis."""


@contextmanager
def _opened(redis_url: str | None, key_prefix: str | None) -> Iterator[FanoutQueues]:
    from queuekeeper.fanout.queue import FanoutQueues

    with context.redis_connection(redis_url) as client:
        yield FanoutQueues(client, prefix=prefix(key_prefix))


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as people read them: instants as dates, numbers of messages without commas, no lists."""
    shown: dict[str, Any] = {}
    for name, value in facts.items():
        label = name.removesuffix("_ms").replace("_", " ")
        if isinstance(value, dict | list):
            continue
        if value is None:
            shown[label] = None
        elif name in _DURATIONS:
            shown[label] = duration(value)
        elif name.endswith("_ms"):
            shown[label] = instant(value)
        elif name in _NAMES:
            shown[label] = str(value)
        else:
            shown[label] = value
    return shown


@app.command()
def publish(
    queue: QueueName,
    *,
    body: Annotated[
        str | None,
        typer.Option(help="The payload as text. Other users of this machine can see it in the list of processes."),
    ] = None,
    body_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to read the payload from; - is stdin.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Publish each line of a file, or of stdin with -: {"body": .., "content_type": .., "order_key": ..}, '
            "as `consume --json --show-bodies` writes it.",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="CONSUMER", help="Publish to this consumer only.")] = None,
    ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="Time after which the message expires, such as 10s, 30m, 1h or 7d.")
    ] = "1d",
    content_type: Annotated[
        str | None, typer.Option(help="Content type of the payload, such as application/json.")
    ] = None,
    order_key: Annotated[str | None, typer.Option(help="Order key. Messages with the same key stay in order.")] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=TEXT", help="Header of the message. Repeat the option for more."),
    ] = None,
    deduplication_id: Annotated[
        str | None, typer.Option(help="Deduplication id. A second publish with the same id stores nothing.")
    ] = None,
    deduplicate_as: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --input: name under which the lines are remembered. Publishing the file again under "
            "this name stores nothing twice.",
        ),
    ] = None,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Publish a message, or the lines of a file.

    Every consumer gets it, or nobody does. While none is registered it is held for one that adopts it.

    Examples: `queuekeeper fanout publish orders --body '{"order": 17}' --content-type application/json`

    `queuekeeper fanout publish orders --input orders.jsonl --deduplicate-as orders-2026-11-22`
    """
    from queuekeeper.durations import duration_ms
    from queuekeeper.fanout.jsonl import publish_file, publish_lines
    from queuekeeper.fanout.model import NewMessage
    from queuekeeper.fanout.producer import FanoutProducer

    if (body is not None) + (body_file is not None) + (source is not None) != 1:
        raise UsageError("say what is to be published: one of --body, --body-file and --input")
    if source is not None and (headers or content_type or order_key is not None or deduplication_id):
        raise UsageError("what is said about one message goes into the lines of the file, with --input")
    if source is None and deduplicate_as is not None:
        raise UsageError("--deduplicate-as is about a file: one message has --deduplication-id")
    ttl_ms = duration_ms("ttl", ttl)
    with _opened(redis_url, key_prefix) as queues:
        if source is None:
            message = NewMessage(
                body=content(body, body_file),
                content_type=content_type,
                order_key=order_key,
                ttl_ms=ttl_ms,
                deduplication_id=deduplication_id,
                headers=named_texts("header", headers),
            )
            report = FanoutProducer(queues).publish(queue, message, to=to)
            facts = {"queue": queue} | {name: fact for name, fact in vars(report).items() if name != "error"}
        elif source == STANDARD_STREAM:
            lines = sys.stdin.buffer
            facts = plain(publish_lines(queues, queue, lines, to=to, ttl_ms=ttl_ms, deduplicate_as=deduplicate_as))
        else:
            facts = plain(
                publish_file(queues, queue, Path(source), to=to, ttl_ms=ttl_ms, deduplicate_as=deduplicate_as)
            )
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Published", _shown(facts))))


@app.command()
def consume(
    queue: QueueName,
    consumer: ConsumerName,
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of messages after which to end. Without it, all that wait.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more messages until SIGTERM or Ctrl-C.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=1_000, help="Largest number of messages to claim at once.")] = 10,
    lease: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Time for which claimed messages belong to this worker. When it is over, another worker gets them.",
        ),
    ] = "30s",
    show_bodies: ShowBodies = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write a line of JSON for each message.")] = False,
) -> None:
    """Consume messages as one of a consumer's workers.

    Each is acknowledged once its line is written; those whose line could not be written come again.

    Example: `queuekeeper fanout consume orders billing --show-bodies --json --follow`
    """
    from queuekeeper.durations import duration_ms

    count = stale = 0
    lease_ms = duration_ms("lease", lease)
    stopped = threading.Event()
    with _opened(redis_url, key_prefix) as queues, stopped_by_signals(stopped.set):
        while not stopped.is_set() and count != limit:
            room = batch if limit is None else min(batch, limit - count)
            claimed = queues.claim(queue, consumer=consumer, count=room, lease_ms=lease_ms)
            ids = [message.id for message in claimed.messages]
            if ids:
                try:
                    sys.stdout.buffer.write(
                        b"".join(_line(each, content=show_bodies, as_json=as_json) for each in claimed.messages)
                    )
                    sys.stdout.buffer.flush()
                except BaseException:
                    with suppress(QueuekeeperError):
                        queues.return_claimed(queue, consumer=consumer, token=claimed.token, ids=ids)
                    raise
                stale += queues.ack(queue, consumer=consumer, token=claimed.token, ids=ids).stale
                count += len(ids)
            elif claimed.more:
                continue
            elif follow:
                # A second is how long a signal, or a retry that falls due, may wait.
                queues.await_wake(queue, consumer=consumer, timeout_s=1)
            else:
                break
    out = screen(stderr=True)
    out.print(f"{count:,} messages consumed")
    if stale:
        out.print(f"{stale:,} of them were acknowledged too late, and come again: --lease was shorter than the writing")


def _line(message: FanoutMessage, *, content: bool, as_json: bool) -> bytes:
    from queuekeeper.fanout.jsonl import message_line

    if as_json:
        return message_line(message, content=content)
    identity, published, *_ = _row(message, content=False)
    shown = shown_bytes(message.body) if content else f"{len(message.body):,} bytes"
    remark = f"attempt {message.attempt}" if message.attempt > 1 else ""
    fields = (identity, published, printable(message.order_key or ""), remark, printable(shown))
    return ("\t".join(fields).rstrip() + "\n").encode()


def _row(message: FanoutMessage, *, content: bool) -> list[Any]:
    return [
        str(message.id),
        instant(message.published_ms),
        message.order_key,
        len(message.body),
        message.content_type,
        message.attempt,
        message.stalls,
        *([shown_bytes(message.body)] if content else []),
    ]


def _columns(*, content: bool) -> tuple[str, ...]:
    columns = ("id", "published", "order key", "bytes", "type", "attempts", "stalls")
    return (*columns, "body") if content else columns


@app.command()
def inspect(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show where a queue and its consumers stand.

    What waits and since when, who works on what, what has failed, and what only one consumer keeps from being freed.
    Nothing is changed.

    Examples: `queuekeeper fanout inspect orders`

    `queuekeeper fanout inspect orders billing`
    """
    with _opened(redis_url, key_prefix) as queues:
        view = queues.inspect(queue)
    if consumer is not None:
        found = _consumer_of(view, consumer)
        show(found, as_json=as_json, pretty=lambda out: _print_consumer(out, queue, found))
        return

    def pretty(out: Console) -> None:
        facts = plain(view)
        out.print(pairs(f"Queue {queue}", _shown(facts | facts["options"])))
        _print_counters(out, facts)
        if view.consumers:
            columns = ("consumer", "mode", "ready", "leased", "delayed", "dead", "oldest ready", "last seen", "")
            out.print(table("Consumers", columns, [_consumer_row(each) for each in view.consumers]))

    show(view, as_json=as_json, pretty=pretty)


def _consumer_of(view: QueueView, consumer: str) -> ConsumerView:
    for each in view.consumers:
        if each.consumer == consumer:
            return each
    raise UnknownConsumer(
        f"no consumer {consumer!r} is registered with the queue {view.queue!r}: "
        "`queuekeeper fanout inspect` lists those that are"
    )


def _consumer_row(view: ConsumerView) -> tuple[Any, ...]:
    options = view.options
    remarks = [
        *(["leaving"] if options is None else []),
        *(["paused"] if view.paused else []),
        *(["adopting"] if view.adopting else []),
        *(["blocked"] if view.blocked_until_ms is not None else []),
        *([f"{view.overdue:,} overdue"] if view.overdue else []),
        *([f"alone holds {view.only_holder:,} of {view.sampled:,}"] if view.only_holder else []),
    ]
    mode = None if options is None else f"{options.mode}, {options.lanes} lanes" if options.lanes > 1 else options.mode
    return (
        view.consumer,
        mode,
        view.ready,
        view.leased,
        view.delayed,
        view.dead,
        instant(view.oldest_ready_ms),
        instant(view.last_seen_ms),
        ", ".join(remarks),
    )


def _print_consumer(out: Console, queue: str, view: ConsumerView) -> None:
    facts = plain(view)
    out.print(pairs(f"Consumer {view.consumer} of {queue}", _shown(facts | (facts["options"] or {"mode": "leaving"}))))
    _print_counters(out, facts)


def _print_counters(out: Console, facts: dict[str, Any]) -> None:
    if facts["counters"]:
        out.print(pairs("So far", facts["counters"]))


@app.command()
def peek(
    queue: QueueName,
    consumer: ConsumerName,
    *,
    offset: Offset = 0,
    limit: Annotated[int, typer.Option(help="Number of messages to show, up to 1,000.")] = 20,
    lane: Annotated[
        int, typer.Option(help="Lane to show, for an ordered consumer that has several; the first is 0.")
    ] = 0,
    show_bodies: ShowBodies = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show messages that wait, and take none.

    Next in line first.

    Example: `queuekeeper fanout peek orders billing --limit 5 --show-bodies`
    """
    from queuekeeper.fanout.jsonl import message_facts

    with _opened(redis_url, key_prefix) as queues:
        messages = queues.peek(queue, consumer=consumer, offset=offset, limit=limit, lane=lane)
    facts = {
        "queue": queue,
        "consumer": consumer,
        "messages": [message_facts(message, content=show_bodies) for message in messages],
    }

    def pretty(out: Console) -> None:
        if not messages:
            out.print(f"Nothing waits for {printable(consumer)} there.")
            return
        rows = [_row(message, content=show_bodies) for message in messages]
        out.print(table(f"Waiting for {consumer}", _columns(content=show_bodies), rows))

    show(facts, as_json=as_json, pretty=pretty)


@app.command()
def size(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Count messages, all or those of a consumer.

    All that are stored, or those that a consumer has yet to acknowledge. The number stands alone on its line. Dead
    letters of a consumer are not in it.

    Example: `queuekeeper fanout size orders billing`
    """
    with _opened(redis_url, key_prefix) as queues:
        count = queues.size(queue, consumer=consumer)
    show(
        {"queue": queue, "consumer": consumer, "messages": count},
        as_json=as_json,
        pretty=lambda out: out.print(str(count)),
    )


@dead.command("list")
def list_dead(
    queue: QueueName,
    consumer: ConsumerName,
    *,
    offset: Offset = 0,
    limit: Annotated[int, typer.Option(help="Number of dead letters to show, up to 1,000.")] = 20,
    show_bodies: ShowBodies = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show a consumer's dead letters and why they died, oldest first.

    Example: `queuekeeper fanout dead list orders billing`
    """
    from queuekeeper.fanout.jsonl import letter_facts

    with _opened(redis_url, key_prefix) as queues:
        page = queues.list_dead(queue, consumer=consumer, offset=offset, limit=limit)
    facts = {
        "queue": queue,
        "consumer": consumer,
        "total": page.total,
        "next_offset": page.next_offset,
        "letters": [letter_facts(letter, content=show_bodies) for letter in page.letters],
    }

    def pretty(out: Console) -> None:
        if not page.letters:
            out.print(f"There are no dead letters of {printable(consumer)} there.")
            return
        columns = ("id", "died", "reason", "attempts", "stalls", "bytes", *(("body",) if show_bodies else ()))
        rows = [
            (
                str(each.id),
                instant(each.died_ms),
                each.reason,
                each.attempts,
                each.stalls,
                None if each.message is None else len(each.message.body),
                *([None if each.message is None else shown_bytes(each.message.body)] if show_bodies else []),
            )
            for each in page.letters
        ]
        out.print(table(f"Dead letters of {consumer}: {page.total:,}", columns, rows))
        if page.next_offset is not None:
            out.print(f"\nMore: --offset {page.next_offset}")

    show(facts, as_json=as_json, pretty=pretty)


def _wanted(ids: list[int] | None, *, everything: bool) -> list[int] | None:
    """Return the dead letters that a command names; none for all of them."""
    if bool(ids) is everything:
        raise UsageError("name either dead letters by their numbers or --all")
    return ids or None


@dead.command("retry")
def retry_dead(
    queue: QueueName,
    consumer: ConsumerName,
    ids: DeadIds = None,
    *,
    everything: AllDead = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Put dead letters back in line, with their counts at zero.

    Examples: `queuekeeper fanout dead retry orders billing 17 18`

    `queuekeeper fanout dead retry orders billing --all`
    """
    wanted = _wanted(ids, everything=everything)
    with _opened(redis_url, key_prefix) as queues:
        report = queues.retry_dead(queue, consumer=consumer, ids=wanted)
    show(report, as_json=as_json, pretty=lambda out: out.print(record("Retried", report)))


@dead.command("purge")
def purge_dead(
    queue: QueueName,
    consumer: ConsumerName,
    ids: DeadIds = None,
    *,
    everything: AllDead = False,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Give dead letters up for good.

    A question says first how many.

    Example: `queuekeeper fanout dead purge orders billing --all --dry-run`
    """
    wanted = _wanted(ids, everything=everything)
    with _opened(redis_url, key_prefix) as queues:
        report = queues.purge_dead(queue, consumer=consumer, ids=wanted, dry_run=True)
        if not dry_run:
            context.confirm(
                f"{report.released:,} dead letters of {printable(consumer)} will be removed.", yes=yes, as_json=as_json
            )
            report = queues.purge_dead(queue, consumer=consumer, ids=wanted)
    title = "Dry run" if dry_run else "Purge"
    show(report, as_json=as_json, pretty=lambda out: out.print(record(title, report)))


@app.command()
def register(
    queue: QueueName,
    consumer: ConsumerName,
    *,
    start: Annotated[
        Literal["new", "held", "retained"],
        typer.Option(
            help="Which earlier messages the consumer gets: none, those held because nobody was registered, or "
            "all that are stored."
        ),
    ] = "new",
    mode: ModeName = None,
    when_failed: WhenFailedName = None,
    lanes: Lanes = None,
    max_length: MaxLength = None,
    when_full: WhenFullName = None,
    dead_retention: DeadRetention = None,
    idle_expiry: IdleExpiry = None,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Register a consumer.

    It gets all that is published from then on. One that is registered already stays as it is; `configure` gives it
    other options.

    Examples: `queuekeeper fanout register orders billing --start held`

    `queuekeeper fanout register orders ledger --mode ordered --lanes 8 --when-failed halt`
    """
    from queuekeeper.fanout import forms

    options = forms.consumer_options(
        mode=mode,
        when_failed=when_failed,
        lanes=lanes,
        max_length=max_length,
        when_full=when_full,
        dead_retention=dead_retention,
        idle_expiry=idle_expiry,
    )
    with _opened(redis_url, key_prefix) as queues:
        report = queues.register(queue, consumer=consumer, options=options, start=forms.start(start))

    def pretty(out: Console) -> None:
        facts = plain(report)
        out.print(pairs("Registered", _shown(facts | facts["options"])))
        if not report.created and report.options != options:
            out.print("\nIt was registered before, and keeps the options that it has: `configure` changes them.")

    show(report, as_json=as_json, pretty=pretty)


@app.command()
def unregister(
    queue: QueueName,
    consumer: Annotated[
        str | None, typer.Argument(metavar="[CONSUMER]", help="Name of the consumer. Leave it out with --idle.")
    ] = None,
    *,
    idle: Annotated[bool, typer.Option("--idle", help="Remove every consumer whose idle expiry is over.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove the consumer even while a worker holds messages of it.")
    ] = False,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Remove a consumer with all that waits for it.

    Dead letters go too. A question says first how much that is. Other consumers keep what is theirs.

    Examples: `queuekeeper fanout unregister orders billing --dry-run`

    `queuekeeper fanout unregister orders --idle`
    """
    if (consumer is None) is not idle:
        raise UsageError("name either a consumer or --idle")
    if idle and force:
        raise UsageError("--force is for one consumer: --idle removes nobody who works on messages")
    with _opened(redis_url, key_prefix) as queues:

        def reports(*, only_count: bool) -> list[Any]:
            if consumer is None:
                return queues.unregister_idle(queue, dry_run=only_count)
            return [queues.unregister(queue, consumer=consumer, force=force, dry_run=only_count)]

        found = reports(only_count=True)
        if not dry_run and found:
            names = ", ".join(printable(each.consumer) for each in found)
            context.confirm(
                f"{names} will be removed from {printable(queue)}, with "
                f"{sum(each.released for each in found):,} messages that are not acknowledged.",
                yes=yes,
                as_json=as_json,
            )
            found = reports(only_count=False)

    def pretty(out: Console) -> None:
        if not found:
            out.print("No consumer was unseen for as long as its options allow.")
            return
        rows = [(each.consumer, each.released, each.freed) for each in found]
        out.print(table("Dry run" if dry_run else "Unregistered", ("consumer", "released", "freed"), rows))

    show({"queue": queue, "dry_run": dry_run, "consumers": found}, as_json=as_json, pretty=pretty)


@app.command()
def touch(
    queue: QueueName,
    consumer: ConsumerName,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Note that a consumer is alive.

    So it is not removed as idle. Whoever consumes does so with every claim.

    Example: `queuekeeper fanout touch orders nightly-export`
    """
    with _opened(redis_url, key_prefix) as queues:
        seen_ms = queues.touch(queue, consumer=consumer)
    facts = {"queue": queue, "consumer": consumer, "last_seen_ms": seen_ms}
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Touched", _shown(facts))))


@app.command()
def configure(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    mode: ModeName = None,
    when_failed: WhenFailedName = None,
    lanes: Lanes = None,
    max_length: MaxLength = None,
    when_full: WhenFullName = None,
    dead_retention: DeadRetention = None,
    idle_expiry: IdleExpiry = None,
    when_nobody: Annotated[
        Literal["hold", "refuse"] | None,
        typer.Option(help="What a publish to the queue does while no consumer is registered."),
    ] = None,
    max_held: Annotated[
        int | None,
        typer.Option(help="Largest number of messages that the queue holds while no consumer is registered."),
    ] = None,
    deduplication_window: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for which the queue remembers deduplication ids.")
    ] = None,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Give a consumer, or the queue itself, other options.

    What is left out stays as it was. Mode and lanes can only change while nothing waits.

    Examples: `queuekeeper fanout configure orders billing --max-length 100000 --when-full drop_oldest`

    `queuekeeper fanout configure orders --when-nobody refuse`
    """
    from queuekeeper.fanout import forms

    of_consumer: dict[str, Any] = {
        "mode": mode,
        "when_failed": when_failed,
        "lanes": lanes,
        "max_length": max_length,
        "when_full": when_full,
        "dead_retention": dead_retention,
        "idle_expiry": idle_expiry,
    }
    of_queue: dict[str, Any] = {
        "when_nobody": when_nobody,
        "max_held": max_held,
        "deduplication_window": deduplication_window,
    }
    wanted, others = (of_queue, of_consumer) if consumer is None else (of_consumer, of_queue)
    if any(each is not None for each in others.values()) or all(each is None for each in wanted.values()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in wanted)
        raise UsageError(f"{'a queue' if consumer is None else 'a consumer'} is configured by {names}")
    before: Any
    after: Any
    with _opened(redis_url, key_prefix) as queues:
        view = queues.inspect(queue)
        if consumer is None:
            before, after = view.options, forms.queue_options(view.options, **of_queue)
        else:
            before = _consumer_of(view, consumer).options
            after = forms.consumer_options(before, **of_consumer)
        queues.configure(queue, consumer=consumer, options=after)
    facts = {"queue": queue, "consumer": consumer, "before": before, "after": after}
    title = f"Options of {queue if consumer is None else consumer}"
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs(title, _shown(plain(after)))))


@app.command()
def pause(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Hand no more messages out, to one consumer or to any.

    What is handed out can be finished, and publishes go on.

    Example: `queuekeeper fanout pause orders billing`
    """
    with _opened(redis_url, key_prefix) as queues:
        changed = queues.pause(queue, consumer=consumer)
    _show_pause(queue, consumer, paused=True, changed=changed, as_json=as_json)


@app.command()
def resume(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Hand messages out again.

    Also to a consumer that has halted at a dead letter.

    Example: `queuekeeper fanout resume orders billing`
    """
    with _opened(redis_url, key_prefix) as queues:
        changed = queues.resume(queue, consumer=consumer)
    _show_pause(queue, consumer, paused=False, changed=changed, as_json=as_json)


def _show_pause(queue: str, consumer: str | None, *, paused: bool, changed: bool, as_json: bool) -> None:
    state = f"{'is' if changed else 'was'} {'paused' if paused else 'at work'}{' now' if changed else ' before'}"
    show(
        {"queue": queue, "consumer": consumer, "paused": paused, "changed": changed},
        as_json=as_json,
        pretty=lambda out: out.print(f"{printable(queue if consumer is None else consumer)} {state}."),
    )


@app.command()
def purge(
    queue: QueueName,
    consumer: ConsumerOrAll = None,
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Remove what waits, for one consumer or for all.

    For all, what is held goes, too. What somebody works on stays, and so do dead letters. A question says first how
    much goes.

    Example: `queuekeeper fanout purge orders billing --dry-run`
    """
    with _opened(redis_url, key_prefix) as queues:
        report = queues.purge(queue, consumer=consumer, dry_run=True)
        if not dry_run:
            whose = "all consumers" if consumer is None else printable(consumer)
            context.confirm(
                f"{report.released:,} messages that wait for {whose} will be removed.", yes=yes, as_json=as_json
            )
            report = queues.purge(queue, consumer=consumer)
    title = "Dry run" if dry_run else "Purge"
    show(report, as_json=as_json, pretty=lambda out: out.print(record(title, report)))


@app.command()
def verify(
    queue: QueueName,
    *,
    findings: Annotated[int, typer.Option(help="Largest number of findings to list.")] = 100,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Check that the keys of a queue agree.

    Nothing is changed, and others go on meanwhile. The exit code is 1 when they do not.

    Example: `queuekeeper fanout verify orders`
    """
    from queuekeeper.fanout.jsonl import verify_facts

    with _opened(redis_url, key_prefix) as queues:
        facts = verify_facts(queue, queues.verify(queue, findings=findings))

    def pretty(out: Console) -> None:
        out.print(pairs(f"Queue {queue}", _shown(facts)))
        if facts["findings"]:
            columns = ("problem", "id", "consumer", "found", "expected")
            rows = [
                (each["problem"], str(each["id"]), each["consumer"], each["found"], each["expected"])
                for each in facts["findings"]
            ]
            out.print(table("Findings", columns, rows))
            out.print("\nNext: queuekeeper fanout repair QUEUE --dry-run")

    show(facts, as_json=as_json, pretty=pretty)
    if facts["found"]:
        raise CheckFailed(
            f"the keys of {queue!r} disagree in {facts['found']:,} places: `queuekeeper fanout repair` mends them"
        )


@app.command()
def repair(
    queue: QueueName,
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Put right what `verify` finds.

    Messages that nobody owes an acknowledgement are freed, what leads nowhere is dropped, counts are set right.

    Example: `queuekeeper fanout repair orders --dry-run`
    """
    with _opened(redis_url, key_prefix) as queues:
        report = queues.repair(queue, dry_run=True)
        found = sum(report.repaired.values())
        if not dry_run and found:
            context.confirm(
                f"{found:,} places in the keys of {printable(queue)} will be put right.", yes=yes, as_json=as_json
            )
            report = queues.repair(queue, dry_run=False)

    def pretty(out: Console) -> None:
        out.print(record("Dry run" if dry_run else "Repair", report))
        if report.repaired:
            out.print(table("Found", ("problem", "places"), list(plain(report.repaired).items())))

    show(report, as_json=as_json, pretty=pretty)


app.add_typer(dead, name="dead")
