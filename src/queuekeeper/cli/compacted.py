"""``queuekeeper compacted``: fill, read, look at and mend the compacted queue of a client."""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from functools import cached_property
from operator import attrgetter
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from queuekeeper import compacted
from queuekeeper.cli.command import CONFIRMS, PLANS, OnRedis, command, group, options
from queuekeeper.cli.input import Content, EndAfter, Follow, JsonLines, content, lines_of, named_pairs
from queuekeeper.cli.output import Shown, headed, instant, line, listing, parts, printable, screen, shown_bytes
from queuekeeper.cli.stores import StoreCommands
from queuekeeper.compacted import forms
from queuekeeper.compacted.jsonl import append_lines, gone_on, message_facts, message_line, rewind_facts, verify_facts
from queuekeeper.compacted.model import MAX_PAGE
from queuekeeper.errors import UnknownQueue, UnreadableRecord, UsageError
from queuekeeper.facts import plain
from queuekeeper.service.signals import stopped_by_signals
from queuekeeper.wording import number_of

app = group()

CLIENT = typer.Argument(metavar="CLIENT", help="Client id that owns the queue.")
ClientId = Annotated[str, CLIENT]
KeyEncoding = Annotated[Literal["utf-8", "base64"], typer.Option(help="Encoding of KEY on the command line.")]
ShowValues = Annotated[bool, typer.Option("--show-values", help="Also show values and user properties.")]

BOUNDS = options(compacted.QueueRules, "max_keys", "max_bytes", "when_full")


class OnQueues(OnRedis):
    """A call of a command that works on compacted queues."""

    @cached_property
    def store(self) -> compacted.CompactedQueues:
        """The queues below the prefix."""
        return compacted.CompactedQueues(self.client, prefix=self.key_prefix)


queues = StoreCommands(
    group=app,
    path="queuekeeper compacted",
    on=OnQueues,
    arguments={
        "client_id": CLIENT,
        "sequence": typer.Argument(metavar="SEQUENCE", help="Sequence number of the message that blocks the others."),
        "what": typer.Argument(
            metavar="WHAT",
            parser=forms.purge,
            help="What to remove: all, acked, or every message up to a sequence number.",
        ),
    },
)


def _key(given: bytes, encoding: str) -> bytes:
    if encoding == "utf-8":
        return given
    try:
        return b64decode(given, validate=True)
    except ValueError:
        raise UsageError("KEY is not base64, as --key-encoding says") from None


@command(app, more={**options(compacted.Append, "tombstone", "content_type", "expected_sequence"), **BOUNDS})
def append(
    call: OnQueues,
    client_id: ClientId,
    key: Annotated[bytes | None, typer.Argument(metavar="[KEY]", parser=os.fsencode)] = None,
    *,
    value: Content = None,
    value_file: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    key_encoding: KeyEncoding = "utf-8",
    properties: Annotated[list[str] | None, typer.Option("--property", metavar="NAME=TEXT")] = None,
    source: Annotated[str | None, typer.Option("--input", metavar="FILE")] = None,
    producer: str | None = None,
    number: int | None = None,
    **given: Any,
) -> Shown:
    """Store a value, or the lines of a file.

    Each value replaces the earlier value of its key. Lines of a file are stored 200 at a time, all of them or none.

    Examples: `queuekeeper compacted append meter-17 valve/1 --value open`

    `jq -c '{key: .id, value: .state}' states.json | queuekeeper compacted append meter-17 --input -`

    :param key: Key of the value. It may contain slashes.
    :param value: The value as text. Other users of this machine can see it in the list of processes.
    :param value_file: File to read the value from; - is stdin.
    :param properties: User property of the value. Repeat the option for more, also with the same name.
    :param source: Append each line of a file, or of stdin with -: {"key": .., "value": ..}, as `consume --json
        --show-values` writes them.
    :param producer: Name of the producer. With --number, a repeated append stores nothing.
    :param number: The producer's number of this append, or of the first 200 lines. It must grow with each append.
    """
    if (key is None) == (source is None):
        raise UsageError("name either a key or a file (--input)")
    about_one = {name: value for name, value in given.items() if name not in BOUNDS}
    # A condition may be 0, and a value empty.
    is_about_one = any(
        each is not None and each is not False for each in (value, value_file, properties, *about_one.values())
    )
    if source is not None and is_about_one:
        raise UsageError("options about one value go into the lines of the file: leave them out with --input")
    tombstone = given["tombstone"]
    if key is not None and (value is not None) + (value_file is not None) + tombstone != 1:
        raise UsageError("say what is to be stored: one of --value, --value-file and --tombstone")
    store = compacted.CompactedQueues(
        call.client, call.key_prefix, compacted.QueueRules(**{name: given[name] for name in BOUNDS})
    )
    if source is not None:
        with lines_of(source) as lines:
            return Shown(append_lines(store, client_id, lines, producer=producer, number=number), "Appended")
    assert key is not None
    entry = compacted.Append(
        key=_key(key, key_encoding),
        value=b"" if tombstone else content(value, value_file),
        properties=compacted.Properties(named_pairs("property", properties)),
        **about_one,
    )
    report = store.append(client_id, [entry], producer=producer, number=number)
    if report.is_forgotten:
        raise gone_on(producer)
    facts = plain(report) | {"replaced": report.replaced[0]} if report.replaced else plain(report)
    del facts["sequences"]
    return Shown({"client_id": client_id, "sequence": report.last_sequence} | facts, "Appended")


@command(app)
def consume(
    call: OnQueues,
    client_id: ClientId,
    *,
    limit: EndAfter = None,
    follow: Follow = False,
    takeover: bool = False,
    session: str | None = None,
    window: int = 5,
    show_values: ShowValues = False,
    as_json: JsonLines = False,
) -> None:
    """Consume messages as the queue's one consumer.

    Each message is acknowledged once its line is written. Messages that were fetched and are beyond --limit come again.

    Example: `queuekeeper compacted consume meter-17 --show-values --json --follow`

    :param takeover: Take the queue over from a consumer that is at work.
    :param session: Name of this consumer that others see. Without it, a random name.
    :param window: Largest number of unacknowledged messages, up to 500.
    """
    rules = compacted.ConsumerRules(window=window if limit is None else min(window, limit), takeover=takeover)
    count = 0
    consumer = compacted.CompactedConsumer(
        call.store, client_id, rules=rules, session=session, auto_ack=True, idle_timeout_s=None if follow else 0
    )
    with stopped_by_signals(consumer.stop), consumer:
        for message in consumer:
            sys.stdout.buffer.write(_line(message, content=show_values, as_json=as_json))
            sys.stdout.buffer.flush()
            count += 1
            if count == limit:
                break
    screen(stderr=True).print(f"{number_of(count, 'message')} consumed")


def _line(message: compacted.CompactedMessage, *, content: bool, as_json: bool) -> bytes:
    if as_json:
        return message_line(message, content=content)
    shown = "" if message.tombstone else shown_bytes(message.value) if content else f"{len(message.value):,} bytes"
    return line(message.sequence, instant(message.appended_ms), shown_bytes(message.key), _remark(message), shown)


def _remark(message: compacted.CompactedMessage) -> str:
    if not message.is_readable:
        return "unreadable"
    return "deleted" if message.tombstone else "again" if message.redelivered else ""


def _standing(_: OnQueues, view: compacted.QueueView, client_id: str) -> Shown:
    headings = {"retention": "Retention of its own", "counters": "Since it was made"}
    return Shown(view, lambda: parts(f"Queue {client_id}", view, headings=headings))


queues.command(compacted.CompactedQueues.inspect, _standing, "meter-17")

WAITING = headed("sequence", key=lambda each: shown_bytes(each.key), appended="appended_ms")
WAITING |= {"bytes": lambda each: len(each.value), "type": "content_type", "": _remark}


def _waiting(
    call: OnQueues,
    messages: Any,
    client_id: str,
    *,
    after_sequence: Annotated[
        int, typer.Option("--after", metavar="SEQUENCE", help="Show messages after this sequence number.")
    ] = 0,
    limit: Annotated[int, typer.Option(help=f"Number of messages to show, up to {MAX_PAGE:,}.")] = 20,
    show_values: ShowValues = False,
) -> Shown:
    next_after: Any = messages[-1].sequence if messages else None
    # Large ones come a few at a time.
    goes_on = messages and call.store.peek(client_id, after_sequence=next_after, limit=1)
    value = headed(value=lambda each: shown_bytes(each.value)) if show_values else {}
    nothing = f"There is nothing in the queue of {client_id} behind {after_sequence}."
    facts = [message_facts(message, content=show_values) for message in messages]
    return Shown(
        {"client_id": client_id, "messages": facts, "next_after": next_after},
        lambda: [listing(f"Queue {client_id}", messages, WAITING | value, nothing=nothing)],
        then=f"More: --after {next_after}" if goes_on else "",
    )


queues.command(compacted.CompactedQueues.peek, _waiting, "meter-17 --limit 5 --show-values")


@command(app)
def get(
    call: OnQueues,
    client_id: ClientId,
    key: Annotated[bytes, typer.Argument(metavar="KEY", parser=os.fsencode)],
    *,
    key_encoding: KeyEncoding = "utf-8",
    show_values: ShowValues = False,
    raw: bool = False,
) -> Shown | None:
    """Show the value that a key has now, and do not consume it.

    The value itself is shown only when asked for.

    Examples: `queuekeeper compacted get meter-17 valve/1 --show-values`

    `queuekeeper compacted get meter-17 firmware --raw > firmware.bin`

    :param key: Key of the value; '' is a key like any other.
    :param raw: Write only the bytes of the value.
    """
    if raw and call.as_json:
        raise UsageError("--raw and --json both want stdout: --json --show-values has the value, too")
    message = call.store.get(client_id, key=_key(key, key_encoding))
    if message is None or (raw and message.tombstone):
        raise UsageError(
            f"the queue of {client_id!r} holds no value of {os.fsdecode(key)!r}: "
            f"`queuekeeper compacted peek {quote(client_id)}` lists what is there"
        )
    if raw and not message.is_readable:
        raise UnreadableRecord(
            f"what is stored for {os.fsdecode(key)!r} in the queue of {client_id!r} cannot be read: "
            "--json --show-values has its bytes; append the key anew"
        )
    if raw:
        sys.stdout.buffer.write(message.value)
        sys.stdout.buffer.flush()
        return None
    facts = {"client_id": client_id} | message_facts(message, content=show_values)
    properties = {name: str(fact) for name, fact in facts.items() if name == "properties"}
    return Shown(facts, lambda: parts(f"Key {os.fsdecode(key)}", facts | properties))


@command(app, also=CONFIRMS)
def rewind(call: OnQueues, client_id: ClientId, to: Annotated[str, typer.Argument(metavar="POSITION")]) -> Shown:
    """Move the consumer to another place in its queue. It asks first.

    Move it back to deliver messages again, or forward to skip messages. A consumer at work is fenced off, and
    subscribes again.

    Example: `queuekeeper compacted rewind meter-17 2026-11-22T08:00:00Z`

    :param to: Where to read on: earliest, latest, a sequence number, or a time with a time zone.
    """
    position = forms.position(to)
    view = call.store.inspect(client_id)
    if not view.exists:
        raise UnknownQueue(f"{printable(client_id)} has no compacted queue: there is nothing to begin again")
    call.confirm(
        f"The consumer of {printable(client_id)} will begin again at {to}. It has acknowledged up to {view.acked}, "
        f"and the newest message is {view.sequence}."
    )
    report = call.store.rewind(client_id, to=position)
    clamped = "The queue has nothing there: it was set to the nearest place that it has."
    return Shown(rewind_facts(client_id, report), "Rewound", then=clamped if report.is_clamped else "")


queues.command(
    compacted.CompactedQueues.skip,
    lambda _, report, client_id: Shown({"client_id": client_id} | plain(report), "Skipped"),
    "meter-17 4711",
    asks="Message {sequence} of {client_id} will count as handled, though its consumer has not said so.",
)
queues.command(
    compacted.CompactedQueues.purge,
    "Purge",
    "meter-17 acked --dry-run",
    asks="{found.messages:message} of {client_id} will be removed, {found.unacked:,} of which nobody has acknowledged.",
)


@command(app, also=PLANS)
def drop(call: OnQueues, client_id: ClientId) -> Shown:
    """Remove a queue as a whole, with its numbers and its cursor.

    A later append makes a new queue. A question says first what is removed.

    Example: `queuekeeper compacted drop meter-17 --dry-run`
    """
    report = call.store.drop(client_id, dry_run=True)
    if not call.dry_run and report.existed:
        call.confirm(
            f"The queue of {printable(client_id)} will be removed, with {number_of(report.messages, 'message')}, "
            f"{report.lag + report.in_flight:,} of which nobody has acknowledged."
        )
        # Not one that was made while somebody thought about it.
        report = call.store.drop(client_id, incarnation=report.incarnation)
    return Shown(report, call.title("Drop"))


def _verified(_: OnQueues, report: compacted.VerifyReport, client_id: str) -> Shown:
    columns = headed("rule", key=lambda each: each.key and shown_bytes(each.key), sequence="sequence")
    mends = f"`queuekeeper compacted repair {quote(client_id)}` mends them"
    words = f"the keys of {client_id!r} disagree in {number_of(report.found, 'place')}: {mends}"
    return Shown(
        verify_facts(report),
        lambda: parts(f"Queue {client_id}", report, violations=columns),
        failed=words if report.found else None,
    )


def _repaired(call: OnQueues, report: compacted.RepairReport, client_id: str) -> Shown:
    left = f"{number_of(report.remaining, 'place')} in the keys of {client_id!r} could not be put right"
    return Shown(report, call.title("Repair"), failed=left if report.remaining and not call.dry_run else None)


queues.command(
    compacted.CompactedQueues.verify, _verified, "meter-17", words="The exit code is 1 when they do not agree."
)
queues.command(
    compacted.CompactedQueues.repair,
    _repaired,
    "meter-17 --dry-run",
    asks="{found.found:place} in the keys of {client_id} will be put right.",
    needed=attrgetter("found"),
)


@command(app, more=options(forms.retention, "policy", "retention", "tombstone_life"))
def configure(call: OnQueues, client_id: ClientId, *, inherit: bool = False, **given: Any) -> Shown:
    """Give a queue a retention of its own.

    Options that are left out stay as they were. `gc` acts on the retention.

    Example: `queuekeeper compacted configure meter-17 --policy compact --tombstone-life 3d`

    :param inherit: Drop the queue's own retention. The collector's applies again.
    """
    if inherit is any(each is not None for each in given.values()):
        raise UsageError(
            "say either what is to hold for this queue (--policy, --retention, --tombstone-life) or --inherit"
        )
    before = call.store.inspect(client_id).retention
    after = None if inherit else forms.retention(before, **given)
    call.store.configure(client_id, retention=after)
    inherits = f"The queue of {printable(client_id)} has the collector's retention now."
    return Shown(
        {"client_id": client_id, "before": before, "after": after},
        lambda: [inherits] if after is None else parts(f"Retention of {client_id}", after),
    )
