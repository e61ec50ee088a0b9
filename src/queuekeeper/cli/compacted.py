"""``queuekeeper compacted``: fill, read, look at and mend the compacted queue of a client."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queuekeeper.cli import context
from queuekeeper.cli.input import STANDARD_STREAM, KeyPrefix, content, named_pairs, prefix
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
from queuekeeper.errors import CheckFailed, UnknownQueue, UnreadableRecord, UsageError
from queuekeeper.service.signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.compacted.model import CompactedMessage
    from queuekeeper.compacted.queue import CompactedQueues

app = typer.Typer(no_args_is_help=True)

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="Client id that owns the queue.")]
KeyEncoding = Annotated[Literal["utf-8", "base64"], typer.Option(help="Encoding of KEY on the command line.")]
ShowValues = Annotated[bool, typer.Option("--show-values", help="Also show values and user properties.")]
MaxKeys = Annotated[int, typer.Option(help="Largest number of keys in a queue; 0 is no limit.")]
MaxBytes = Annotated[int, typer.Option(help="Largest size of a queue's keys and values in bytes; 0 is no limit.")]
WhenFullName = Annotated[
    Literal["reject", "drop_oldest"],
    typer.Option("--when-full", help="What an append does when --max-keys or --max-bytes is reached."),
]
_PLACES = frozenset({"acked", "acked_up_to", "epoch", "incarnation", "new_acked", "old_acked", "sent"})
"""Numbers that name something and count nothing."""


@app.callback()
def _group() -> None:
    """Keep the newest value of each key, for one consumer."""


@contextmanager
def _opened(redis_url: str | None, key_prefix: str | None, **rules: Any) -> Iterator[CompactedQueues]:
    from queuekeeper.compacted.model import QueueRules
    from queuekeeper.compacted.queue import CompactedQueues

    bounds = QueueRules(**rules)
    with context.redis_connection(redis_url) as client:
        yield CompactedQueues(client, prefix=prefix(key_prefix), rules=bounds)


def _key(text: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return os.fsencode(text)
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise UsageError("KEY is not base64, as --key-encoding says") from None


@app.command()
def append(
    client_id: ClientId,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Key of the value. It may contain slashes.")
    ] = None,
    *,
    value: Annotated[
        str | None,
        typer.Option(help="The value as text. Other users of this machine can see it in the list of processes."),
    ] = None,
    value_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to read the value from; - is stdin.")
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Delete the key. The consumer gets the deletion as a message.")
    ] = False,
    key_encoding: KeyEncoding = "utf-8",
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=TEXT",
            help="User property of the value. Repeat the option for more, also with the same name.",
        ),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="MQTT content type of the value, such as application/json.")
    ] = None,
    expected_sequence: Annotated[
        int | None,
        typer.Option(
            help="Append only if the key's newest value has this sequence number; 0: only if the key has no value."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Append each line of a file, or of stdin with -: {"key": .., "value": ..}, as `consume --json '
            "--show-values` writes them.",
        ),
    ] = None,
    producer: Annotated[
        str | None, typer.Option(help="Name of the producer. With --number, a repeated append stores nothing.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            help="The producer's number of this append, or of the first 200 lines. It must grow with each append."
        ),
    ] = None,
    max_keys: MaxKeys = 0,
    max_bytes: MaxBytes = 0,
    when_full: WhenFullName = "reject",
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Store a value, or the lines of a file.

    Each takes the place of its key's value before. Of a file, 200 lines at a time are stored as a whole or not at all.

    Examples: `queuekeeper compacted append meter-17 valve/1 --value open`

    `jq -c '{key: .id, value: .state}' states.json | queuekeeper compacted append meter-17 --input -`
    """
    from queuekeeper.compacted.jsonl import append_file, append_lines, gone_on
    from queuekeeper.compacted.model import Append, Properties

    if (key is None) == (source is None):
        raise UsageError("name either a key or a file (--input)")
    about_one = (value, value_file, content_type, expected_sequence)
    if source is not None and (tombstone or properties or any(each is not None for each in about_one)):
        raise UsageError("what is said about one value goes into the lines of the file, with --input")
    if key is not None and (value is not None) + (value_file is not None) + tombstone != 1:
        raise UsageError("say what is to be stored: one of --value, --value-file and --tombstone")
    with _opened(redis_url, key_prefix, max_keys=max_keys, max_bytes=max_bytes, when_full=when_full) as queues:
        if key is not None:
            entry = Append(
                key=_key(key, key_encoding),
                value=b"" if tombstone else content(value, value_file),
                tombstone=tombstone,
                properties=Properties(named_pairs("property", properties)),
                content_type=content_type,
                expected_sequence=expected_sequence,
            )
            one = queues.append(client_id, [entry], producer=producer, number=number)
            if one.is_forgotten:
                raise gone_on(producer)
            facts = {"client_id": client_id, "sequence": one.last_sequence} | {
                name: fact for name, fact in plain(one).items() if name not in ("sequences", "replaced")
            }
            if one.replaced:
                facts["replaced"] = one.replaced[0]
        elif source == STANDARD_STREAM:
            facts = plain(append_lines(queues, client_id, sys.stdin.buffer, producer=producer, number=number))
        else:
            assert source is not None
            facts = plain(append_file(queues, client_id, Path(source), producer=producer, number=number))
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Appended", _shown(facts))))


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as people read them: instants as dates, and numbers of messages without commas."""
    shown: dict[str, Any] = {}
    for name, value in facts.items():
        label = name.removesuffix("_ms").replace("_", " ")
        if name == "acked_ms":
            shown["acked last"] = instant(value)
        elif name in ("appended_ms", "published_ms"):
            shown[label] = instant(value)
        elif name.endswith("_ms") and value is not None:
            shown[label] = duration(value)
        elif name.endswith("sequence") or name in _PLACES:
            shown[label] = None if value is None else str(value)
        else:
            shown[label] = value
    return shown


@app.command()
def consume(
    client_id: ClientId,
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of messages after which to end. Without it, all that wait.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more messages until SIGTERM or Ctrl-C.")] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take the queue over from a consumer that is at work.")
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Name of this consumer that others see. Without it, a random name.")
    ] = None,
    window: Annotated[int, typer.Option(help="Largest number of unacknowledged messages, up to 500.")] = 5,
    show_values: ShowValues = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write a line of JSON for each message.")] = False,
) -> None:
    """Consume messages as the queue's one consumer.

    Each is acknowledged once its line is written. Those that were fetched and are beyond --limit come again.

    Example: `queuekeeper compacted consume meter-17 --show-values --json --follow`
    """
    from queuekeeper.compacted.consumer import CompactedConsumer, ConsumerRules

    rules = ConsumerRules(window=window if limit is None else min(window, limit), takeover=takeover)
    count = 0
    with _opened(redis_url, key_prefix) as queues:
        consumer = CompactedConsumer(
            queues, client_id, rules=rules, session=session, auto_ack=True, idle_timeout_s=None if follow else 0
        )
        with stopped_by_signals(consumer.stop), consumer:
            for message in consumer:
                sys.stdout.buffer.write(_line(message, content=show_values, as_json=as_json))
                sys.stdout.buffer.flush()
                count += 1
                if count == limit:
                    break
    screen(stderr=True).print(f"{count:,} messages consumed")


def _line(message: CompactedMessage, *, content: bool, as_json: bool) -> bytes:
    from queuekeeper.compacted.jsonl import message_line

    if as_json:
        return message_line(message, content=content)
    sequence, key, appended, *_, remark = _row(message, content=False)
    shown = "" if message.tombstone else shown_bytes(message.value) if content else f"{len(message.value):,} bytes"
    fields = (sequence, appended, printable(key), remark, printable(shown))
    return ("\t".join(fields).rstrip() + "\n").encode()


@app.command()
def inspect(
    client_id: ClientId,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show where a queue stands.

    What waits and for how long, who consumes, and what was lost. Nothing is changed.

    Example: `queuekeeper compacted inspect meter-17`
    """
    with _opened(redis_url, key_prefix) as queues:
        view = queues.inspect(client_id)

    def pretty(out: Console) -> None:
        facts = plain(view)
        counters, retention = facts.pop("counters"), facts.pop("retention")
        out.print(pairs(f"Queue {client_id}", _shown(facts)))
        if retention is not None:
            out.print(pairs("Retention of its own", _shown(retention)))
        if counters:
            out.print(pairs("Since it was made", {name.replace("_", " "): count for name, count in counters.items()}))

    show(view, as_json=as_json, pretty=pretty)


@app.command()
def peek(
    client_id: ClientId,
    *,
    after_sequence: Annotated[
        int, typer.Option("--after", metavar="SEQUENCE", help="Show messages after this sequence number.")
    ] = 0,
    limit: Annotated[int, typer.Option(help="Number of messages to show, up to 500.")] = 20,
    show_values: ShowValues = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show messages in order, and consume nothing.

    Acknowledged ones are there, too, until retention or a newer value of their key removes them.

    Example: `queuekeeper compacted peek meter-17 --limit 5 --show-values`
    """
    from queuekeeper.compacted.jsonl import message_facts

    with _opened(redis_url, key_prefix) as queues:
        messages = queues.peek(client_id, after_sequence=after_sequence, limit=limit)
    facts = {
        "client_id": client_id,
        "messages": [message_facts(message, content=show_values) for message in messages],
        "next_after": messages[-1].sequence if messages else None,
    }

    def pretty(out: Console) -> None:
        if not messages:
            out.print(f"There is nothing in the queue of {printable(client_id)} behind {after_sequence}.")
            return
        columns = ("sequence", "key", "appended", "bytes", "type", "", *(("value",) if show_values else ()))
        rows = [_row(message, content=show_values) for message in messages]
        out.print(table(f"Queue {client_id}", columns, rows))
        if len(messages) == limit:
            out.print(f"\nMore: --after {messages[-1].sequence}")

    show(facts, as_json=as_json, pretty=pretty)


def _row(message: CompactedMessage, *, content: bool) -> list[Any]:
    remark = "deleted" if message.tombstone else "again" if message.redelivered else ""
    if not message.is_readable:
        remark = "unreadable"
    return [
        str(message.sequence),
        shown_bytes(message.key),
        instant(message.appended_ms),
        len(message.value),
        message.content_type,
        remark,
        *([shown_bytes(message.value)] if content else []),
    ]


@app.command()
def get(
    client_id: ClientId,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the value; '' is a key like any other.")],
    *,
    key_encoding: KeyEncoding = "utf-8",
    show_values: ShowValues = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the value.")] = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show the value that a key has now.

    It is not consumed. What is in it is shown only when asked for.

    Examples: `queuekeeper compacted get meter-17 valve/1 --show-values`

    `queuekeeper compacted get meter-17 firmware --raw > firmware.bin`
    """
    from queuekeeper.compacted.jsonl import message_facts

    if raw and as_json:
        raise UsageError("--raw and --json both want stdout: --json --show-values has the value, too")
    with _opened(redis_url, key_prefix) as queues:
        message = queues.get(client_id, key=_key(key, key_encoding))
    if message is None or (raw and message.tombstone):
        raise UsageError(
            f"the queue of {client_id!r} holds no value of {key!r}: `queuekeeper compacted peek` lists what is there"
        )
    if raw and not message.is_readable:
        raise UnreadableRecord(
            f"what is stored for {key!r} in the queue of {client_id!r} cannot be read: "
            "--json --show-values has its bytes; append the key anew"
        )
    if raw:
        sys.stdout.buffer.write(message.value)
        sys.stdout.buffer.flush()
        return
    facts = {"client_id": client_id} | message_facts(message, content=show_values)
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs(f"Key {key}", _shown(facts))))


@app.command()
def rewind(
    client_id: ClientId,
    to: Annotated[
        str,
        typer.Argument(
            metavar="POSITION",
            help="Where to read on: earliest, latest, a sequence number, or a time with a time zone.",
        ),
    ],
    *,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Let the consumer begin again elsewhere.

    Back, for what it has had, or forward, past what it has not. A consumer at work is fenced off, and subscribes again.
    It asks first.

    Example: `queuekeeper compacted rewind meter-17 2026-11-22T08:00:00Z`
    """
    from queuekeeper.compacted import forms
    from queuekeeper.compacted.jsonl import rewind_facts

    position = forms.position(to)
    with _opened(redis_url, key_prefix) as queues:
        view = queues.inspect(client_id)
        if not view.exists:
            raise UnknownQueue(f"{printable(client_id)} has no compacted queue: there is nothing to begin again")
        context.confirm(
            f"The consumer of {printable(client_id)} will begin again at {to}. It has acknowledged up to {view.acked}, "
            f"and the newest message is {view.sequence}.",
            yes=yes,
            as_json=as_json,
        )
        report = queues.rewind(client_id, to=position)
    facts = rewind_facts(client_id, report)

    def pretty(out: Console) -> None:
        out.print(pairs("Rewound", _shown(facts)))
        if report.is_clamped:
            out.print("\nThe queue has nothing there: it was set to the nearest place that it has.")

    show(facts, as_json=as_json, pretty=pretty)


@app.command()
def skip(
    client_id: ClientId,
    sequence: Annotated[
        int, typer.Argument(metavar="SEQUENCE", help="Sequence number of the message that blocks the others.")
    ],
    *,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Acknowledge a message that its consumer cannot.

    It stays in the queue. It asks first.

    Example: `queuekeeper compacted skip meter-17 4711`
    """
    with _opened(redis_url, key_prefix) as queues:
        context.confirm(
            f"Message {sequence} of {printable(client_id)} will count as handled, though its consumer has not said so.",
            yes=yes,
            as_json=as_json,
        )
        report = queues.skip(client_id, sequence=sequence)
    facts = {"client_id": client_id} | plain(report)
    show(facts, as_json=as_json, pretty=lambda out: out.print(pairs("Skipped", _shown(facts))))


@app.command()
def purge(
    client_id: ClientId,
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="What to remove: all, acked, or every message up to a sequence number."),
    ],
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Remove messages of a queue.

    Its numbers, its cursor and what is appended meanwhile stay. A question says first how many messages go, and how
    many of them nobody has acknowledged.

    Example: `queuekeeper compacted purge meter-17 acked --dry-run`
    """
    from queuekeeper.compacted import forms

    chosen = forms.purge(what)
    with _opened(redis_url, key_prefix) as queues:
        report = queues.purge(client_id, what=chosen, dry_run=True)
        if not dry_run:
            context.confirm(
                f"{report.messages:,} messages of {printable(client_id)} will be removed, {report.unacked:,} of which "
                "nobody has acknowledged.",
                yes=yes,
                as_json=as_json,
            )
            report = queues.purge(client_id, what=chosen)
    title = "Dry run" if dry_run else "Purge"
    show(report, as_json=as_json, pretty=lambda out: out.print(record(title, report)))


@app.command()
def drop(
    client_id: ClientId,
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Remove a queue as a whole.

    With its numbers and its cursor: whoever appends then makes another one. A question says first what goes with it.

    Example: `queuekeeper compacted drop meter-17 --dry-run`
    """
    with _opened(redis_url, key_prefix) as queues:
        report = queues.drop(client_id, dry_run=True)
        if not dry_run and report.existed:
            context.confirm(
                f"The queue of {printable(client_id)} will be removed, with {report.messages:,} messages, "
                f"{report.lag + report.in_flight:,} of which nobody has acknowledged.",
                yes=yes,
                as_json=as_json,
            )
            # Not one that was made while somebody thought about it.
            report = queues.drop(client_id, incarnation=report.incarnation)
    title = "Dry run" if dry_run else "Drop"
    show(report, as_json=as_json, pretty=lambda out: out.print(record(title, report)))


@app.command()
def verify(
    client_id: ClientId,
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Check that the keys of a queue agree.

    Nothing is changed. The exit code is 1 when they do not.

    Example: `queuekeeper compacted verify meter-17`
    """
    from queuekeeper.compacted.jsonl import verify_facts

    with _opened(redis_url, key_prefix) as queues:
        report = queues.verify(client_id)

    def pretty(out: Console) -> None:
        out.print(record(f"Queue {client_id}", report))
        if report.violations:
            rows = [
                (
                    each.rule,
                    None if each.key is None else shown_bytes(each.key),
                    None if each.sequence is None else str(each.sequence),
                )
                for each in report.violations
            ]
            out.print(table("Violations", ("rule", "key", "sequence"), rows))
            out.print("\nNext: queuekeeper compacted repair CLIENT --dry-run")

    show(verify_facts(report), as_json=as_json, pretty=pretty)
    if report.found:
        raise CheckFailed(
            f"the keys of {client_id!r} disagree in {report.found:,} places: `queuekeeper compacted repair` mends them"
        )


@app.command()
def repair(
    client_id: ClientId,
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Put right what `verify` finds.

    What leads nowhere is dropped, and numbers are counted again.

    Example: `queuekeeper compacted repair meter-17 --dry-run`
    """
    with _opened(redis_url, key_prefix) as queues:
        report = queues.repair(client_id, dry_run=True)
        if not dry_run and report.found:
            context.confirm(
                f"{report.found:,} places in the keys of {printable(client_id)} will be put right.",
                yes=yes,
                as_json=as_json,
            )
            report = queues.repair(client_id, dry_run=False)
    title = "Dry run" if dry_run else "Repair"
    show(report, as_json=as_json, pretty=lambda out: out.print(record(title, report)))
    if not dry_run and report.remaining:
        raise CheckFailed(f"{report.remaining:,} places in the keys of {client_id!r} could not be put right")


@app.command()
def configure(
    client_id: ClientId,
    *,
    policy: Annotated[
        Literal["delete", "acked_only", "compact"] | None,
        typer.Option(help="Which messages the collector may remove once they are older than --retention."),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(help="Age at which a message may be removed: 10s, 30m, 1h, 7d, or a number of milliseconds."),
    ] = None,
    tombstone_life: Annotated[
        str | None, typer.Option(help="Age at which an acknowledged tombstone may be removed.")
    ] = None,
    inherit: Annotated[
        bool, typer.Option("--inherit", help="Drop the queue's own retention. The collector's applies again.")
    ] = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Give a queue a retention of its own.

    What is left out stays as it was. It is `gc` that acts on it.

    Example: `queuekeeper compacted configure meter-17 --policy compact --tombstone-life 3d`
    """
    from queuekeeper.compacted import forms

    given = (policy, retention, tombstone_life)
    if inherit is any(each is not None for each in given):
        raise UsageError(
            "say either what is to hold for this queue (--policy, --retention, --tombstone-life) or --inherit"
        )
    with _opened(redis_url, key_prefix) as queues:
        before = queues.inspect(client_id).retention
        after = (
            None
            if inherit
            else forms.retention(before, policy=policy, retention=retention, tombstone_life=tombstone_life)
        )
        queues.configure(client_id, retention=after)
    facts = {"client_id": client_id, "before": before, "after": after}

    def pretty(out: Console) -> None:
        if after is None:
            out.print(f"The queue of {printable(client_id)} has the collector's retention now.")
        else:
            out.print(pairs(f"Retention of {client_id}", _shown(plain(after))))

    show(facts, as_json=as_json, pretty=pretty)
