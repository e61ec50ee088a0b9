"""``queuekeeper fanout``: fill, read, look at and mend fan-out queues and their consumers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from shlex import quote
from typing import Annotated, Any

import typer

from queuekeeper import fanout
from queuekeeper.cli import jobs, runs, work
from queuekeeper.cli.command import PLANS, OnRedis, command, group, options
from queuekeeper.cli.input import Content, Due, EndAfter, Follow, JsonLines, content, lines_of, named_texts
from queuekeeper.cli.options import JobCommand
from queuekeeper.cli.output import Shown, headed, instant, line, listing, parts, printable, screen, shown_bytes
from queuekeeper.cli.stores import StoreCommands
from queuekeeper.clock import DAY_MS
from queuekeeper.errors import QueuekeeperError, UnknownConsumer, UsageError
from queuekeeper.fanout import forms
from queuekeeper.fanout.jsonl import letter_facts, message_facts, message_line, publish_lines, verify_facts
from queuekeeper.fanout.model import DEFAULT_LEASE_MS, MAX_CLAIM, MAX_PAGE
from queuekeeper.service.signals import stopped_by_signals
from queuekeeper.wording import number_of

app = group()
dead = group("Look at dead letters, retry them, give them up.")
app.add_typer(dead, name="dead")

QUEUE = typer.Argument(metavar="QUEUE", help="Name of the queue.")
CONSUMER = typer.Argument(metavar="CONSUMER", help="Name of the consumer.")
QueueName = Annotated[str, QUEUE]
ConsumerName = Annotated[str, CONSUMER]
ConsumerOrAll = Annotated[
    str | None, typer.Argument(metavar="CONSUMER", help="Name of the consumer. Without it, the whole queue.")
]
DeadIds = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of dead letters, as `fanout dead list` shows them.")
]
AllDead = Annotated[bool, typer.Option("--all", help="Take all dead letters of the consumer.")]
Limit = Annotated[int, typer.Option(help=f"Number of entries to show, up to {MAX_PAGE:,}.")]
ShowBodies = Annotated[bool, typer.Option("--show-bodies", help="Show bodies and headers too.")]

OF_MESSAGE = options(fanout.NewMessage, "delay_ms", "content_type", "order_key", "deduplication_id")
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
    def store(self) -> fanout.FanoutQueues:
        """The queues below the prefix."""
        return fanout.FanoutQueues(self.client, prefix=self.key_prefix)


queues = StoreCommands(
    group=app,
    path="queuekeeper fanout",
    on=OnQueues,
    arguments={"queue": QUEUE, "consumer": CONSUMER},
    whole="the whole queue",
)
letters = replace(queues, group=dead, path="queuekeeper fanout dead")


@command(app, more=OF_MESSAGE)
def publish(
    call: OnQueues,
    queue: QueueName,
    *,
    body: Content = None,
    body_file: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    source: Annotated[str | None, typer.Option("--input", metavar="FILE")] = None,
    to: Annotated[str | None, typer.Option(metavar="CONSUMER")] = None,
    ttl_ms: int = DAY_MS,
    due: Due = None,
    headers: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=TEXT")] = None,
    deduplicate_as: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    **about: Any,
) -> Shown:
    """Publish a message, or the lines of a file.

    Every consumer gets it, or nobody does. While no consumer is registered, the queue keeps it for
    one that registers with `--start held`.

    Examples: `queuekeeper fanout publish orders --body '{"order": 17}' --content-type application/json`

    `queuekeeper fanout publish orders --input orders.jsonl --deduplicate-as orders-2026-11-22`

    :param body: The payload as text. Other users of this machine can see it in the list of processes.
    :param body_file: File to read the payload from; - is stdin.
    :param source: Publish each line of a file, or of stdin with -: {"body": .., "content_type": .., "order_key": ..},
        as `consume --json --show-bodies` writes it.
    :param to: Publish to this consumer only.
    :param ttl_ms: Time after which the message expires, such as 10s, 30m, 1h or 7d. It begins when the message is due.
    :param due: Instant at which consumers get the message; a time zone is required.
    :param headers: Header of the message. Repeat the option for more.
    :param deduplicate_as: With --input: name under which the lines are remembered. Publishing the file again under this
        name stores nothing twice.
    """
    if (body is not None) + (body_file is not None) + (source is not None) != 1:
        raise UsageError("say what is to be published: one of --body, --body-file and --input")
    if source is not None and any(each is not None for each in (headers, due, *about.values())):
        raise UsageError("options about one message go into the lines of the file: leave them out with --input")
    if source is None and deduplicate_as is not None:
        raise UsageError("--deduplicate-as is about a file: one message has --deduplication-id")
    if source is not None:
        with lines_of(source) as lines:
            done = publish_lines(call.store, queue, lines, to=to, ttl_ms=ttl_ms, deduplicate_as=deduplicate_as)
        return Shown(done, "Published")
    texts = named_texts("header", headers)
    message = fanout.NewMessage(body=content(body, body_file), ttl_ms=ttl_ms, due_at=due, headers=texts, **about)
    report = fanout.FanoutProducer(call.store).publish(queue, message, to=to)
    return Shown({"queue": queue} | {name: fact for name, fact in vars(report).items() if name != "error"}, "Published")


@command(app)
def consume(
    call: OnQueues,
    queue: QueueName,
    consumer: ConsumerName,
    *,
    limit: EndAfter = None,
    follow: Follow = False,
    batch: Annotated[int, typer.Option(min=1, max=MAX_CLAIM)] = 10,
    lease_ms: int = DEFAULT_LEASE_MS,
    show_bodies: ShowBodies = False,
    as_json: JsonLines = False,
) -> None:
    """Consume messages as one of a consumer's workers.

    Each message is acknowledged once its line is written. A message whose line could not be written comes again.

    Example: `queuekeeper fanout consume orders billing --show-bodies --json --follow`

    :param batch: Largest number of messages to claim at once.
    :param lease_ms: Time for which claimed messages belong to this worker. When it is over, another worker gets them.
    """
    count = stale = 0
    stopped = threading.Event()
    store = call.store
    with stopped_by_signals(stopped.set):
        while not stopped.is_set() and count != limit:
            room = batch if limit is None else min(batch, limit - count)
            claimed = store.claim(queue, consumer=consumer, count=room, lease_ms=lease_ms)
            ids = [message.id for message in claimed.messages]
            if ids:
                try:
                    sys.stdout.buffer.writelines(
                        _line(each, content=show_bodies, as_json=as_json) for each in claimed.messages
                    )
                    sys.stdout.buffer.flush()
                except BaseException:
                    with suppress(QueuekeeperError):
                        store.return_claimed(queue, consumer=consumer, token=claimed.token, ids=ids)
                    raise
                stale += store.ack(queue, consumer=consumer, token=claimed.token, ids=ids).stale
                count += len(ids)
            elif claimed.more:
                continue
            elif follow:
                # A second is how long a signal, or a retry that falls due, may wait.
                store.await_wake(queue, consumer=consumer, timeout_s=1)
            else:
                break
    out = screen(stderr=True)
    out.print(f"{number_of(count, 'message')} consumed")
    if stale:
        out.print(f"{stale:,} of them were acknowledged too late, and come again: --lease was shorter than the writing")


def _line(message: fanout.FanoutMessage, *, content: bool, as_json: bool) -> bytes:
    if as_json:
        return message_line(message, content=content)
    shown = shown_bytes(message.body) if content else f"{len(message.body):,} bytes"
    remark = f"attempt {message.attempt}" if message.attempt > 1 else ""
    return line(message.id, instant(message.published_ms), message.order_key, remark, shown)


def _standing(_: OnQueues, view: fanout.QueueView, queue: str, consumer: ConsumerOrAll = None) -> Shown:
    if consumer is not None:
        return Shown(_consumer_of(view, consumer), f"Consumer {consumer} of {queue}")
    return Shown(view, lambda: parts(f"Queue {queue}", view, consumers=STANDING))


def _consumer_of(view: fanout.QueueView, consumer: str) -> fanout.ConsumerView:
    for each in view.consumers:
        if each.consumer == consumer:
            return each
    raise UnknownConsumer(
        f"no consumer {consumer!r} is registered with the queue {view.queue!r}: "
        f"`queuekeeper fanout inspect {quote(view.queue)}` lists those that are"
    )


def _mode(view: fanout.ConsumerView) -> str | None:
    options = view.options
    if options is None:
        return None
    return f"{options.mode}, {options.lanes} lanes" if options.lanes > 1 else options.mode


def _remarks(view: fanout.ConsumerView) -> str:
    remarks = {
        "leaving": view.options is None,
        "paused": view.paused,
        "adopting": view.adopting,
        "blocked": view.blocked_until_ms is not None,
        f"{view.overdue:,} overdue": view.overdue,
        f"alone holds {view.only_holder:,} of {view.sampled:,}": view.only_holder,
    }
    return ", ".join(remark for remark, holds in remarks.items() if holds)


STANDING = headed("consumer", mode=_mode) | headed("ready", "leased", "delayed", "dead", "oldest_ready_ms")
STANDING |= {"last seen": "last_seen_ms", "": _remarks}
WAITING = headed("id", "published_ms", "order_key", bytes=lambda each: len(each.body), type="content_type")
WAITING |= {"attempts": "attempt", "stalls": "stalls"}
LETTER = headed(
    "id", "died_ms", "reason", "attempts", "stalls", bytes=lambda each: each.message and len(each.message.body)
)

queues.command(fanout.FanoutQueues.inspect, _standing, "orders", "orders billing")


def _waiting(
    _: OnQueues, messages: Any, queue: str, consumer: str, *, limit: Limit = 20, show_bodies: ShowBodies = False
) -> Shown:
    facts = [message_facts(each, content=show_bodies) for each in messages]
    body = headed(body=lambda each: shown_bytes(each.body)) if show_bodies else {}
    nothing = f"Nothing waits for {consumer} there."
    return Shown(
        {"queue": queue, "consumer": consumer, "messages": facts},
        lambda: [listing(f"Waiting for {consumer}", messages, WAITING | body, nothing=nothing)],
    )


queues.command(fanout.FanoutQueues.peek, _waiting, "orders billing --limit 5 --show-bodies", more=["offset", "lane"])
queues.command(
    fanout.FanoutQueues.size,
    lambda _, count, **names: Shown(names | {"messages": count}, lambda: [str(count)]),
    "orders billing",
    words="The number stands alone on its line.",
)


def _letters(
    _: OnQueues, page: fanout.DeadPage, queue: str, consumer: str, *, limit: Limit = 20, show_bodies: ShowBodies = False
) -> Shown:
    facts = {"queue": queue, "consumer": consumer, "total": page.total, "next_offset": page.next_offset}
    body = headed(body=lambda each: each.message and shown_bytes(each.message.body)) if show_bodies else {}
    title, nothing = f"Dead letters of {consumer}: {page.total:,}", f"There are no dead letters of {consumer} there."
    return Shown(
        facts | {"letters": [letter_facts(each, content=show_bodies) for each in page.letters]},
        lambda: [listing(title, page.letters, LETTER | body, nothing=nothing)],
        then="" if page.next_offset is None else f"More: --offset {page.next_offset}",
    )


letters.command(fanout.FanoutQueues.list_dead, _letters, "orders billing", name="list", more=["offset"])


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
    return Shown(call.store.retry_dead(queue, consumer=consumer, ids=wanted), "Retried")


@command(dead, "purge", also=PLANS)
def purge_dead(
    call: OnQueues, queue: QueueName, consumer: ConsumerName, ids: DeadIds = None, *, everything: AllDead = False
) -> Shown:
    """Give dead letters up for good. A question says first how many they are.

    Example: `queuekeeper fanout dead purge orders billing --all --dry-run`
    """
    wanted = _wanted(ids, everything=everything)
    report = call.carry_out(
        lambda dry_run: call.store.purge_dead(queue, consumer=consumer, ids=wanted, dry_run=dry_run),
        lambda found: f"{found.released:,} dead letters of {printable(consumer)} will be removed.",
    )
    return Shown(report, call.title("Purge"))


@command(app, more=OF_CONSUMER)
def register(
    call: OnQueues, queue: QueueName, consumer: ConsumerName, *, start: fanout.Start = fanout.Start.NEW, **given: Any
) -> Shown:
    """Register a consumer.

    It gets every message that is published from then on. A consumer that is registered already stays as it is;
    `configure` gives it other options.

    Examples: `queuekeeper fanout register orders billing --start held`

    `queuekeeper fanout register orders ledger --mode ordered --lanes 8 --when-failed halt`

    :param start: Which earlier messages the consumer gets: none, those held because nobody was registered, or all that
        are stored.
    """
    wanted = forms.consumer_options(**given)
    report = call.store.register(queue, consumer=consumer, options=wanted, start=start)
    before = "It was registered before, and keeps the options that it has: `configure` changes them."
    return Shown(
        report,
        "Registered",
        then=before if not report.created and report.options != wanted else "",
    )


@command(app, also=PLANS)
def unregister(
    call: OnQueues,
    queue: QueueName,
    consumer: str | None = None,
    *,
    idle: bool = False,
    force: bool = False,
) -> Shown:
    """Remove a consumer with all messages that wait for it.

    Its dead letters are removed too. A question says first how many messages that are. Other consumers keep their
    messages.

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

    def remove(dry_run: bool) -> list[fanout.UnregisterReport]:
        if consumer is None:
            return call.store.unregister_idle(queue, dry_run=dry_run)
        return [call.store.unregister(queue, consumer=consumer, force=force, dry_run=dry_run)]

    def question(found: list[fanout.UnregisterReport]) -> str:
        names = ", ".join(printable(each.consumer) for each in found)
        count = sum(each.released for each in found)
        return f"{names} will be removed from {printable(queue)}, with {number_of(count, 'message')} not acknowledged."

    found = call.carry_out(remove, question, needed=bool)
    columns = {"consumer": "consumer", "released": "released", "freed": "freed"}
    nobody = "No consumer was unseen for as long as its options allow."
    return Shown(
        {"queue": queue, "dry_run": call.dry_run, "consumers": found},
        lambda: [listing(call.title("Unregistered"), found, columns, nothing=nobody)],
    )


@command(app, also=PLANS)
def take_over(call: OnQueues, queue: QueueName) -> Shown:
    """Let consumers of an earlier version read the log.

    A publish then costs the same for any number of them. Update all workers and publishers first: an earlier version
    finds nothing in the log. Nothing is moved, and what is in their lists comes first. A question says first which
    consumers that are.

    Examples: `queuekeeper fanout take-over orders --dry-run`
    """

    def question(found: tuple[str, ...]) -> str:
        return f"{', '.join(map(printable, found))} of {printable(queue)} will read the log."

    found = call.carry_out(lambda dry_run: call.store.take_over(queue, dry_run=dry_run), question, needed=bool)
    nobody = "Every consumer reads the log, or has a max_length and so lists of its own."
    return Shown(
        {"queue": queue, "dry_run": call.dry_run, "consumers": found},
        lambda: [listing(call.title("Taken over"), found, {"consumer": str}, nothing=nobody)],
    )


queues.command(
    fanout.FanoutQueues.touch,
    lambda _, seen_ms, **names: Shown(names | {"last_seen_ms": seen_ms}, "Touched"),
    "orders nightly-export",
)


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
    view = call.store.inspect(queue)
    if consumer is None:
        before, after = view.options, forms.queue_options(view.options, **wanted)
    else:
        before = _consumer_of(view, consumer).options
        after = forms.consumer_options(before, **wanted)
    call.store.configure(queue, consumer=consumer, options=after)
    return Shown(
        {"queue": queue, "consumer": consumer, "before": before, "after": after},
        lambda: parts(f"Options of {consumer or queue}", after),
    )


def _turned(state: str, *, paused: bool) -> Callable[..., Shown]:
    def shown(_: OnQueues, changed: bool, queue: str, consumer: str | None) -> Shown:
        words = f"is {state} now" if changed else f"was {state} before"
        return Shown(
            {"queue": queue, "consumer": consumer, "paused": paused, "changed": changed},
            lambda: [f"{printable(consumer or queue)} {words}."],
        )

    return shown


queues.command(fanout.FanoutQueues.pause, _turned("paused", paused=True), "orders billing")
queues.command(fanout.FanoutQueues.resume, _turned("at work", paused=False), "orders billing")
queues.command(
    fanout.FanoutQueues.purge,
    "Purge",
    "orders billing --dry-run",
    asks="{found.released:message} of {consumer} will be removed.",
)


def _verified(_: OnQueues, report: fanout.VerifyReport, queue: str) -> Shown:
    mends = f"`queuekeeper fanout repair {quote(queue)}` mends them"
    words = f"the keys of {queue!r} disagree in {number_of(report.found, 'place')}: {mends}"
    return Shown(
        verify_facts(queue, report),
        f"Queue {queue}",
        failed=words if report.found else None,
    )


queues.command(
    fanout.FanoutQueues.verify,
    _verified,
    "orders",
    words="The exit code is 1 when they do not agree.",
    more=["findings"],
)
queues.command(
    fanout.FanoutQueues.repair,
    "Repair",
    "orders --dry-run",
    asks="{found.found:place} in the keys of {queue} will be put right.",
    needed=attrgetter("found"),
)

REPAIR_ALL = """Find and repair faults in all fan-out queues.

It ends leases that ran out, corrects counts, removes leftovers, and looks again. It asks before anything changes.
Exit code 1 when it was stopped or a queue cannot be repaired; --go-on goes on.

Example: `queuekeeper fanout repair-all --dry-run`
"""
command(app, "work")(work.fanout_work)
app.command("repair-all", cls=JobCommand)(jobs.command_of("fanout_repair", REPAIR_ALL, argument="queues"))
runs.add_aliases(app, "fanout_repair", {f"repair-{name}": name for name in runs.STEERED})
