"""``queuekeeper fanout``: fill, read, look at and mend fan-out queues and their consumers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal

import typer

from queuekeeper import fanout
from queuekeeper.cli import jobs, runs, work
from queuekeeper.cli.command import PLANS, OnRedis, command, group, options
from queuekeeper.cli.input import Due, EndAfter, Follow, JsonLines, content, named_texts, opened
from queuekeeper.cli.options import JobCommand
from queuekeeper.cli.output import (
    Shown,
    instant,
    listing,
    pairs,
    plain,
    printable,
    record,
    screen,
    shown_bytes,
    table,
    told,
)
from queuekeeper.durations import duration_ms
from queuekeeper.errors import QueuekeeperError, UnknownConsumer, UsageError
from queuekeeper.fanout import forms
from queuekeeper.fanout.jsonl import letter_facts, message_facts, message_line, publish_lines, verify_facts
from queuekeeper.service.signals import stopped_by_signals

app = group()
dead = group("Look at dead letters, retry them, give them up.")
app.add_typer(dead, name="dead")

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


OF_CONSUMER = options(
    forms.consumer_options, "mode", "when_failed", "lanes", "max_length", "when_full", "dead_retention", "idle_expiry",
    dead_retention="DURATION", idle_expiry="DURATION",
)  # fmt: skip
OF_QUEUE = options(
    forms.queue_options, "when_nobody", "max_held", "deduplication_window", deduplication_window="DURATION"
)


class OnQueues(OnRedis):
    """A call of a command that works on fan-out queues."""

    @cached_property
    def queues(self) -> fanout.FanoutQueues:
        """The queues below the prefix."""
        return fanout.FanoutQueues(self.client, prefix=self.key_prefix)


@command(app)
def publish(
    call: OnQueues,
    queue: QueueName,
    *,
    body: str | None = None,
    body_file: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    source: Annotated[str | None, typer.Option("--input", metavar="FILE")] = None,
    to: Annotated[str | None, typer.Option(metavar="CONSUMER")] = None,
    ttl: Annotated[str, typer.Option(metavar="DURATION")] = "1d",
    delay: Annotated[str | None, typer.Option(metavar="DURATION")] = None,
    due: Due = None,
    content_type: str | None = None,
    order_key: str | None = None,
    headers: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=TEXT")] = None,
    deduplication_id: str | None = None,
    deduplicate_as: Annotated[str | None, typer.Option(metavar="NAME")] = None,
) -> Shown:
    """Publish a message, or the lines of a file.

    Every consumer gets it, or nobody does. While no consumer is registered, the queue holds it for one that adopts it.

    Examples: `queuekeeper fanout publish orders --body '{"order": 17}' --content-type application/json`

    `queuekeeper fanout publish orders --input orders.jsonl --deduplicate-as orders-2026-11-22`

    :param body: The payload as text. Other users of this machine can see it in the list of processes.
    :param body_file: File to read the payload from; - is stdin.
    :param source: Publish each line of a file, or of stdin with -: {"body": .., "content_type": .., "order_key": ..},
        as `consume --json --show-bodies` writes it.
    :param to: Publish to this consumer only.
    :param ttl: Time after which the message expires, such as 10s, 30m, 1h or 7d. It begins when the message is due.
    :param delay: Time for which nobody gets the message yet, such as 10s, 30m, 1h or 7d.
    :param due: Publish the message for this time; a time zone is required.
    :param content_type: Content type of the payload, such as application/json.
    :param order_key: Order key. Messages with the same key stay in order.
    :param headers: Header of the message. Repeat the option for more.
    :param deduplication_id: Deduplication id. A second publish with the same id stores nothing.
    :param deduplicate_as: With --input: name under which the lines are remembered. Publishing the file again under this
        name stores nothing twice.
    """
    if (body is not None) + (body_file is not None) + (source is not None) != 1:
        raise UsageError("say what is to be published: one of --body, --body-file and --input")
    about_one = (headers, content_type, deduplication_id, delay, due)
    if source is not None and (any(about_one) or order_key is not None):
        raise UsageError("what is said about one message goes into the lines of the file, with --input")
    if source is None and deduplicate_as is not None:
        raise UsageError("--deduplicate-as is about a file: one message has --deduplication-id")
    ttl_ms = duration_ms("ttl", ttl)
    facts: Any
    if source is None:
        message = fanout.NewMessage(
            body=content(body, body_file),
            content_type=content_type,
            order_key=order_key,
            ttl_ms=ttl_ms,
            deduplication_id=deduplication_id,
            delay_ms=None if delay is None else duration_ms("delay", delay),
            due_at=due,
            headers=named_texts("header", headers),
        )
        report = fanout.FanoutProducer(call.queues).publish(queue, message, to=to)
        facts = {"queue": queue} | {name: fact for name, fact in vars(report).items() if name != "error"}
    else:
        with opened(source) as lines:
            facts = publish_lines(call.queues, queue, lines, to=to, ttl_ms=ttl_ms, deduplicate_as=deduplicate_as)
    return Shown(facts, "Published")


@command(app)
def consume(
    call: OnQueues,
    queue: QueueName,
    consumer: ConsumerName,
    *,
    limit: EndAfter = None,
    follow: Follow = False,
    batch: Annotated[int, typer.Option(min=1, max=1_000)] = 10,
    lease: Annotated[str, typer.Option(metavar="DURATION")] = "30s",
    show_bodies: ShowBodies = False,
    as_json: JsonLines = False,
) -> None:
    """Consume messages as one of a consumer's workers.

    Each message is acknowledged once its line is written. A message whose line could not be written comes again.

    Example: `queuekeeper fanout consume orders billing --show-bodies --json --follow`

    :param batch: Largest number of messages to claim at once.
    :param lease: Time for which claimed messages belong to this worker. When it is over, another worker gets them.
    """
    count = stale = 0
    lease_ms = duration_ms("lease", lease)
    stopped = threading.Event()
    queues = call.queues
    with stopped_by_signals(stopped.set):
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


def _line(message: fanout.FanoutMessage, *, content: bool, as_json: bool) -> bytes:
    if as_json:
        return message_line(message, content=content)
    shown = shown_bytes(message.body) if content else f"{len(message.body):,} bytes"
    remark = f"attempt {message.attempt}" if message.attempt > 1 else ""
    order_key = printable(message.order_key or "")
    fields = (str(message.id), instant(message.published_ms) or "", order_key, remark, printable(shown))
    return ("\t".join(fields).rstrip() + "\n").encode()


@command(app)
def inspect(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None) -> Shown:
    """Show where a queue and its consumers stand.

    It shows what waits and since when, who works on what, what has failed, and what only one consumer keeps from being
    freed. Nothing is changed.

    Examples: `queuekeeper fanout inspect orders`

    `queuekeeper fanout inspect orders billing`
    """
    view = call.queues.inspect(queue)
    if consumer is not None:
        found = _consumer_of(view, consumer)
        options = found.options or {"mode": "leaving"}
        return Shown(found, lambda: _standing(f"Consumer {found.consumer} of {queue}", found, options))

    def pretty() -> Iterator[Any]:
        yield from _standing(f"Queue {queue}", view, view.options)
        if view.consumers:
            columns = ("consumer", "mode", "ready", "leased", "delayed", "dead", "oldest ready", "last seen", "")
            yield table("Consumers", columns, [_consumer_row(each) for each in view.consumers])

    return Shown(view, pretty)


def _standing(title: str, view: fanout.QueueView | fanout.ConsumerView, options: Any) -> Iterator[Any]:
    yield pairs(title, told(view) | told(options))
    if view.counters:
        yield pairs("So far", plain(view.counters))


def _consumer_of(view: fanout.QueueView, consumer: str) -> fanout.ConsumerView:
    for each in view.consumers:
        if each.consumer == consumer:
            return each
    raise UnknownConsumer(
        f"no consumer {consumer!r} is registered with the queue {view.queue!r}: "
        "`queuekeeper fanout inspect` lists those that are"
    )


def _consumer_row(view: fanout.ConsumerView) -> tuple[Any, ...]:
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
    counts = (view.ready, view.leased, view.delayed, view.dead)
    times = (instant(view.oldest_ready_ms), instant(view.last_seen_ms))
    return (view.consumer, mode, *counts, *times, ", ".join(remarks))


@command(app)
def peek(
    call: OnQueues,
    queue: QueueName,
    consumer: ConsumerName,
    *,
    offset: Offset = 0,
    limit: int = 20,
    lane: int = 0,
    show_bodies: ShowBodies = False,
) -> Shown:
    """Show messages that wait, and take none.

    The next in line comes first.

    Example: `queuekeeper fanout peek orders billing --limit 5 --show-bodies`

    :param limit: Number of messages to show, up to 1,000.
    :param lane: Lane to show, for an ordered consumer that has several; the first is 0.
    """
    messages = call.queues.peek(queue, consumer=consumer, offset=offset, limit=limit, lane=lane)
    columns: dict[str, Any] = {"id": "id", "published": "published_ms", "order key": "order_key"}
    columns |= {"bytes": lambda each: len(each.body), "type": "content_type", "attempts": "attempt", "stalls": "stalls"}
    if show_bodies:
        columns["body"] = lambda each: shown_bytes(each.body)
    nothing = f"Nothing waits for {printable(consumer)} there."
    return Shown(
        {
            "queue": queue,
            "consumer": consumer,
            "messages": [message_facts(message, content=show_bodies) for message in messages],
        },
        lambda: [listing(f"Waiting for {consumer}", messages, columns) if messages else nothing],
    )


@command(app)
def size(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None) -> Shown:
    """Count messages, all or those of a consumer.

    Counted are all that are stored, or those that a consumer has yet to acknowledge. The number stands alone on its
    line. A consumer's dead letters are not counted.

    Example: `queuekeeper fanout size orders billing`
    """
    count = call.queues.size(queue, consumer=consumer)
    return Shown({"queue": queue, "consumer": consumer, "messages": count}, lambda: [str(count)])


@command(dead, "list")
def list_dead(
    call: OnQueues,
    queue: QueueName,
    consumer: ConsumerName,
    *,
    offset: Offset = 0,
    limit: int = 20,
    show_bodies: ShowBodies = False,
) -> Shown:
    """Show a consumer's dead letters and why they died, oldest first.

    Example: `queuekeeper fanout dead list orders billing`

    :param limit: Number of dead letters to show, up to 1,000.
    """
    page = call.queues.list_dead(queue, consumer=consumer, offset=offset, limit=limit)

    def of_body(shown: Any) -> Any:
        def made(letter: fanout.DeadLetter) -> Any:
            return None if letter.message is None else shown(letter.message.body)

        return made

    columns = {"id": "id", "died": "died_ms", "reason": "reason", "attempts": "attempts", "stalls": "stalls"}
    columns |= {"bytes": of_body(len)} | ({"body": of_body(shown_bytes)} if show_bodies else {})
    title = f"Dead letters of {consumer}: {page.total:,}"
    nothing = f"There are no dead letters of {printable(consumer)} there."
    facts = {"queue": queue, "consumer": consumer, "total": page.total, "next_offset": page.next_offset}
    return Shown(
        facts | {"letters": [letter_facts(each, content=show_bodies) for each in page.letters]},
        lambda: [listing(title, page.letters, columns) if page.letters else nothing],
        then="" if page.next_offset is None else f"More: --offset {page.next_offset}",
    )


def _wanted(ids: list[int] | None, *, everything: bool) -> list[int] | None:
    """Return the dead letters that a command names; none for all of them."""
    if bool(ids) is everything:
        raise UsageError("name either dead letters by their numbers or --all")
    return ids or None


@command(dead, "retry")
def retry_dead(
    call: OnQueues, queue: QueueName, consumer: ConsumerName, ids: DeadIds = None, *, everything: AllDead = False
) -> Shown:
    """Put dead letters back in line, with their counts at zero.

    Examples: `queuekeeper fanout dead retry orders billing 17 18`

    `queuekeeper fanout dead retry orders billing --all`
    """
    wanted = _wanted(ids, everything=everything)
    return Shown(call.queues.retry_dead(queue, consumer=consumer, ids=wanted), "Retried")


@command(dead, "purge", also=PLANS)
def purge_dead(
    call: OnQueues, queue: QueueName, consumer: ConsumerName, ids: DeadIds = None, *, everything: AllDead = False
) -> Shown:
    """Give dead letters up for good. A question says first how many.

    Example: `queuekeeper fanout dead purge orders billing --all --dry-run`
    """
    wanted = _wanted(ids, everything=everything)
    report = call.carry_out(
        lambda only_count: call.queues.purge_dead(queue, consumer=consumer, ids=wanted, dry_run=only_count),
        lambda found: f"{found.released:,} dead letters of {printable(consumer)} will be removed.",
    )
    return Shown(report, call.title("Purge"))


@command(app, more=OF_CONSUMER)
def register(
    call: OnQueues,
    queue: QueueName,
    consumer: ConsumerName,
    *,
    start: Literal["new", "held", "retained"] = "new",
    **given: Any,
) -> Shown:
    """Register a consumer.

    It gets every message that is published from then on. A consumer that is registered already stays as it is;
    `configure` gives it other options.

    Examples: `queuekeeper fanout register orders billing --start held`

    `queuekeeper fanout register orders ledger --mode ordered --lanes 8 --when-failed halt`

    :param start: Which earlier messages the consumer gets: none, those held because nobody was registered, or all that
        are stored.
    """
    wanted: fanout.ConsumerOptions = forms.consumer_options(**given)
    report = call.queues.register(queue, consumer=consumer, options=wanted, start=forms.start(start))

    before = "It was registered before, and keeps the options that it has: `configure` changes them."
    return Shown(
        report,
        lambda: [pairs("Registered", told(report) | told(report.options))],
        then=before if not report.created and report.options != wanted else "",
    )


@command(app, also=PLANS)
def unregister(
    call: OnQueues,
    queue: QueueName,
    consumer: Annotated[str | None, typer.Argument(metavar="[CONSUMER]")] = None,
    *,
    idle: bool = False,
    force: bool = False,
) -> Shown:
    """Remove a consumer with all that waits for it.

    Its dead letters go too. A question says first how much that is. Other consumers keep what is theirs.

    Examples: `queuekeeper fanout unregister orders billing --dry-run`

    `queuekeeper fanout unregister orders --idle`

    :param consumer: Name of the consumer. Leave it out with --idle.
    :param idle: Remove every consumer whose idle expiry is over.
    :param force: Remove the consumer even while a worker holds messages of it.
    """
    if (consumer is None) is not idle:
        raise UsageError("name either a consumer or --idle")
    if idle and force:
        raise UsageError("--force is for one consumer: --idle removes nobody who works on messages")

    def remove(only_count: bool) -> list[Any]:
        if consumer is None:
            return call.queues.unregister_idle(queue, dry_run=only_count)
        return [call.queues.unregister(queue, consumer=consumer, force=force, dry_run=only_count)]

    def question(found: list[Any]) -> str:
        names = ", ".join(printable(each.consumer) for each in found)
        count = sum(each.released for each in found)
        return f"{names} will be removed from {printable(queue)}, with {count:,} messages that are not acknowledged."

    found = call.carry_out(remove, question, needed=bool)
    columns = {"consumer": "consumer", "released": "released", "freed": "freed"}
    nobody = "No consumer was unseen for as long as its options allow."
    return Shown(
        {"queue": queue, "dry_run": call.dry_run, "consumers": found},
        lambda: [listing(call.title("Unregistered"), found, columns) if found else nobody],
    )


@command(app)
def touch(call: OnQueues, queue: QueueName, consumer: ConsumerName) -> Shown:
    """Note that a consumer is alive.

    So it is not removed as idle. A consumer that claims messages does so with every claim.

    Example: `queuekeeper fanout touch orders nightly-export`
    """
    seen_ms = call.queues.touch(queue, consumer=consumer)
    return Shown({"queue": queue, "consumer": consumer, "last_seen_ms": seen_ms}, "Touched")


@command(app, more={**OF_CONSUMER, **OF_QUEUE})
def configure(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None, **given: Any) -> Shown:
    """Give a consumer, or the queue itself, other options.

    Options that are left out stay as they were. Mode and lanes can only change while nothing waits.

    Examples: `queuekeeper fanout configure orders billing --max-length 100000 --when-full drop_oldest`

    `queuekeeper fanout configure orders --when-nobody refuse`
    """
    wanted, others = ({name: given[name] for name in names} for names in (OF_CONSUMER, OF_QUEUE))
    if consumer is None:
        wanted, others = others, wanted
    if any(each is not None for each in others.values()) or all(each is None for each in wanted.values()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in wanted)
        raise UsageError(f"{'a queue' if consumer is None else 'a consumer'} is configured by {names}")
    before: Any
    after: Any
    view = call.queues.inspect(queue)
    if consumer is None:
        before, after = view.options, forms.queue_options(view.options, **wanted)
    else:
        before = _consumer_of(view, consumer).options
        after = forms.consumer_options(before, **wanted)
    call.queues.configure(queue, consumer=consumer, options=after)
    return Shown(
        {"queue": queue, "consumer": consumer, "before": before, "after": after},
        lambda: [record(f"Options of {queue if consumer is None else consumer}", after)],
    )


@command(app)
def pause(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None) -> Shown:
    """Hand no more messages out, to one consumer or to any.

    Messages that are handed out already can be finished, and publishes go on.

    Example: `queuekeeper fanout pause orders billing`
    """
    return _paused(queue, consumer, paused=True, changed=call.queues.pause(queue, consumer=consumer))


@command(app)
def resume(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None) -> Shown:
    """Hand messages out again.

    This also restarts a consumer that has halted at a dead letter.

    Example: `queuekeeper fanout resume orders billing`
    """
    return _paused(queue, consumer, paused=False, changed=call.queues.resume(queue, consumer=consumer))


def _paused(queue: str, consumer: str | None, *, paused: bool, changed: bool) -> Shown:
    state = f"{'is' if changed else 'was'} {'paused' if paused else 'at work'}{' now' if changed else ' before'}"
    return Shown(
        {"queue": queue, "consumer": consumer, "paused": paused, "changed": changed},
        lambda: [f"{printable(queue if consumer is None else consumer)} {state}."],
    )


@command(app, also=PLANS)
def purge(call: OnQueues, queue: QueueName, consumer: ConsumerOrAll = None) -> Shown:
    """Remove what waits, for one consumer or for all.

    For all, messages that the queue holds go too. Messages that a worker holds stay, and so do dead letters. A question
    says first how many messages go.

    Example: `queuekeeper fanout purge orders billing --dry-run`
    """
    whose = "all consumers" if consumer is None else printable(consumer)
    report = call.carry_out(
        lambda only_count: call.queues.purge(queue, consumer=consumer, dry_run=only_count),
        lambda found: f"{found.released:,} messages that wait for {whose} will be removed.",
    )
    return Shown(report, call.title("Purge"))


@command(app)
def verify(call: OnQueues, queue: QueueName, *, findings: int = 100) -> Shown:
    """Check that the keys of a queue agree. The exit code is 1 when they do not.

    Nothing is changed, and others go on meanwhile.

    Example: `queuekeeper fanout verify orders`

    :param findings: Largest number of findings to list.
    """
    facts = verify_facts(queue, call.queues.verify(queue, findings=findings))

    def pretty() -> Iterator[Any]:
        yield record(f"Queue {queue}", facts)
        if facts["findings"]:
            columns = {name: name for name in ("problem", "id", "consumer", "found", "expected")}
            yield listing("Findings", facts["findings"], columns)

    found = facts["found"]
    words = f"the keys of {queue!r} disagree in {found:,} places: `queuekeeper fanout repair` mends them"
    mend = "Next: queuekeeper fanout repair QUEUE --dry-run" if facts["findings"] else ""
    return Shown(facts, pretty, failed=words if found else None, then=mend)


@command(app, also=PLANS)
def repair(call: OnQueues, queue: QueueName) -> Shown:
    """Put right what `verify` finds.

    Messages that nobody owes an acknowledgement are freed, what leads nowhere is dropped, counts are set right.

    Example: `queuekeeper fanout repair orders --dry-run`
    """
    report = call.carry_out(
        lambda only_count: call.queues.repair(queue, dry_run=only_count),
        lambda found: f"{sum(found.repaired.values()):,} places in the keys of {printable(queue)} will be put right.",
        needed=lambda found: sum(found.repaired.values()),
    )

    def pretty() -> Iterator[Any]:
        yield record(call.title("Repair"), report)
        if report.repaired:
            yield table("Found", ("problem", "places"), list(plain(report.repaired).items()))

    return Shown(report, pretty)


REPAIR_ALL = """Set right what is wrong in fan-out queues.

What ran out, drifted or was left; then it looks again. Asks before anything changes. Exit code 1 when it was
stopped or a queue cannot be repaired; --go-on goes on.

Example: `queuekeeper fanout repair-all --dry-run`
"""
command(app, "work")(work.fanout_work)
app.command("repair-all", cls=JobCommand)(jobs.command_of("fanout_repair", REPAIR_ALL, argument="queues"))
runs.add_aliases(app, "fanout_repair", {f"repair-{name}": name for name in runs.STEERED})
