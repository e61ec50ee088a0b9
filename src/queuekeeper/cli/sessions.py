"""``queuekeeper sample`` and ``queuekeeper sessions``: make sessions; look at one, save it, restore it, end it."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queuekeeper.cli import context
from queuekeeper.cli.input import KeyPrefix, prefix
from queuekeeper.cli.output import instant, pairs, plain, printable, record, screen, show, table
from queuekeeper.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from queuekeeper.sessions.model import MessageView, SessionView
    from queuekeeper.sessions.transfer import ExportReport, SessionStore

app = typer.Typer(no_args_is_help=True, help="Look at DEVICE sessions, move one by a file, end one.")

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")]
StoreName = Annotated[Literal["redis", "postgres"], typer.Option("--store", help="Store that holds the session.")]
DefaultTtl = Annotated[
    int, typer.Option(help="Seconds after which a message without an expiry expires, as set in the broker.")
]
DEFAULT_TTL_S = 604_800
STANDARD_STREAM = "-"


@app.callback()
def _group() -> None:
    """Look at DEVICE sessions, move one by a file, end one."""


@contextmanager
def _opened(
    name: str,
    *,
    postgres_url: str | None,
    redis_url: str | None,
    key_prefix: str | None,
    default_ttl_s: int = DEFAULT_TTL_S,
) -> Iterator[SessionStore]:
    """Open one store for the block; only its server has to run."""
    from queuekeeper.sessions import transfer
    from queuekeeper.sessions.postgres_store import PostgresSessionStore
    from queuekeeper.sessions.redis_store import RedisSessionStore

    rules = transfer.rules(default_ttl_s=default_ttl_s)
    if name == "postgres":
        with context.postgres_connection(postgres_url) as connection:
            yield PostgresSessionStore(connection, rules=rules)
    else:
        with context.redis_connection(redis_url) as client:
            yield RedisSessionStore(client, prefix(key_prefix), rules)


def _product(store: str) -> str:
    return {"postgres": "PostgreSQL", "redis": "Redis"}[store]


def sample(
    *,
    messages: Annotated[int, typer.Option(help="Number of healthy messages. --hostile adds more rows.")] = 200_000,
    sessions: Annotated[
        int, typer.Option(help="Number of healthy sessions. A fifth of them have no messages.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers. The same seed makes the same rows.")] = 1,
    long_queues: Annotated[int, typer.Option(help="Number of sessions with a very long queue.")] = 3,
    long_queue_messages: Annotated[int, typer.Option(help="Number of messages in each very long queue.")] = 12_000,
    hostile: Annotated[
        bool, typer.Option("--hostile", help="Add bad rows of every kind that old databases hold.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Empty the tables first. Without it, tables with rows are refused.")
    ] = False,
    postgres_url: context.PostgresUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Fill a source database with realistic sessions. Tables of TBMQ 1.4 are made where they are missing.

    Example: `queuekeeper sample --messages 1000000 --sessions 50000 --hostile`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.postgres import address
    from queuekeeper.sessions.sample import SampleParameters, fill

    parameters = SampleParameters(
        messages=messages,
        sessions=sessions,
        seed=seed,
        now_ms=system_clock(),
        long_queues=long_queues,
        long_queue_messages=long_queue_messages,
        hostile=hostile,
        replace=replace,
        create_schema=True,
    )
    with context.postgres_connection(postgres_url, autocommit=False) as connection:
        if replace:
            context.confirm(
                f"All sessions and messages in {address(connection)} will be replaced by made-up ones.",
                yes=yes,
                as_json=as_json,
            )
        with screen(stderr=True).status(f"Filling in {messages:,} messages"):
            report = fill(connection, parameters)

    def pretty(out: Console) -> None:
        out.print(record("Sample", report))
        if report.hostile:
            out.print(table("Hostile rows", ("kind", "rows"), report.hostile.items()))

    show(report, as_json=as_json, pretty=pretty)


@app.command()
def inspect(
    client_id: ClientId,
    *,
    offset: Annotated[int, typer.Option(min=0, help="Number of messages to skip before the first one shown.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of messages to show.")] = 20,
    key_prefix: KeyPrefix = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show one session in both stores. It lists message by message, without content.

    Example: `queuekeeper sessions inspect meter-17 --limit 50`
    """
    from queuekeeper.sessions.postgres_store import PostgresSessionStore
    from queuekeeper.sessions.redis_store import RedisSessionStore

    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        source = PostgresSessionStore(connection).inspect(client_id, offset=offset, limit=limit)
        target = RedisSessionStore(client, prefix=prefix(key_prefix)).inspect(client_id, offset=offset, limit=limit)

    show(
        {"client_id": client_id, "postgres": _whole(source), "redis": _whole(target)},
        as_json=as_json,
        pretty=lambda out: _side_by_side(out, source, target),
    )


@app.command()
def peek(
    client_id: ClientId,
    packet_id: Annotated[int, typer.Argument(metavar="PACKET_ID", help="The MQTT packet id of the message.")],
    *,
    content: Annotated[
        bool, typer.Option("--payload", help="Also show payload, correlation data and user properties.")
    ] = False,
    store: StoreName = "redis",
    default_ttl_s: DefaultTtl = DEFAULT_TTL_S,
    key_prefix: KeyPrefix = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show one message and change nothing. Its content is shown only when asked for.

    Example: `queuekeeper sessions peek meter-17 1042 --payload`
    """
    from queuekeeper.sessions.jsonl import message_facts

    with _opened(
        store, postgres_url=postgres_url, redis_url=redis_url, key_prefix=key_prefix, default_ttl_s=default_ttl_s
    ) as opened:
        message = opened.peek(client_id, packet_id=packet_id)
    if message is None:
        raise UsageError(
            f"{_product(store)} holds no message of {client_id!r} with packet id {packet_id}: "
            "`queuekeeper sessions inspect` lists those that are there"
        )
    facts = message_facts(message, content=content)

    def pretty(out: Console) -> None:
        shown = {
            name.removesuffix("_ms").replace("_", " "): instant(value) if name.endswith("_ms") else _text(value)
            for name, value in facts.items()
        }
        out.print(pairs(f"Packet {packet_id} of {client_id} in {_product(store)}", shown))

    show({"client_id": client_id, "store": store} | facts, as_json=as_json, pretty=pretty)


@app.command("export")
def export_session(
    client_id: ClientId,
    *,
    output: Annotated[str, typer.Option(help="File to write; - is stdout.", metavar="FILE")] = STANDARD_STREAM,
    store: StoreName = "redis",
    default_ttl_s: DefaultTtl = DEFAULT_TTL_S,
    key_prefix: KeyPrefix = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Write one session with its content as JSON Lines. The session stays as it is.

    A file appears when it is complete. One that is there is replaced after a question, or with --yes.

    Example: `queuekeeper sessions export meter-17 --output meter-17.jsonl`
    """
    from queuekeeper.sessions import transfer

    if as_json and output == STANDARD_STREAM:
        raise UsageError("--json and the session both want stdout: name a file by --output")
    path = Path(output)
    if output != STANDARD_STREAM and path.is_file():
        context.confirm(f"{printable(output)} exists and will be replaced.", yes=yes, as_json=as_json)
    with _opened(
        store, postgres_url=postgres_url, redis_url=redis_url, key_prefix=key_prefix, default_ttl_s=default_ttl_s
    ) as opened:
        if output == STANDARD_STREAM:
            report = transfer.export_session(opened, client_id, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            screen(stderr=True).print(f"{report.messages:,} messages exported")
        else:
            report = transfer.export_session_to_file(opened, client_id, path, replace=True)
            facts = plain(report) | {"store": store, "output": output}
            show(facts, as_json=as_json, pretty=lambda out: out.print(_report("Export", facts)))
    _check_whole(report)


def _check_whole(report: ExportReport) -> None:
    if report.unreadable:
        raise CheckFailed(
            f"the export is not whole: {report.unreadable:,} records of {report.client_id!r} cannot be read and were "
            "left out"
        )


@app.command("import")
def import_session(
    client_id: ClientId,
    *,
    source: Annotated[str, typer.Option("--input", help="File to read; - is stdin.", metavar="FILE")],
    store: StoreName = "redis",
    default_ttl_s: DefaultTtl = DEFAULT_TTL_S,
    key_prefix: KeyPrefix = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Store an exported session where none of this client is. Order, packet ids and expiry stay.

    All lines are checked before anything is written, so it needs no dry run.

    Example: `queuekeeper sessions import meter-17 --input meter-17.jsonl --store redis`
    """
    from queuekeeper.sessions import transfer

    with _opened(
        store, postgres_url=postgres_url, redis_url=redis_url, key_prefix=key_prefix, default_ttl_s=default_ttl_s
    ) as opened:
        if source == STANDARD_STREAM:
            report = opened.import_session(client_id, sys.stdin.buffer)
        else:
            report = transfer.import_session_from_file(opened, client_id, Path(source))
    facts = plain(report) | {"store": store}
    show(facts, as_json=as_json, pretty=lambda out: out.print(_report("Import", facts)))


@app.command()
def purge(
    client_id: ClientId,
    *,
    store: StoreName = "redis",
    key_prefix: KeyPrefix = None,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Remove one session with all its messages.

    A question says first how many they are. Messages that are saved while it runs stay.

    Example: `queuekeeper sessions purge meter-17 --dry-run`
    """
    with _opened(store, postgres_url=postgres_url, redis_url=redis_url, key_prefix=key_prefix) as opened:
        report = opened.purge_session(client_id, dry_run=True)
        if not dry_run:
            context.confirm(
                f"The session of {printable(client_id)} will be removed from {_product(store)}, with "
                f"{report.messages:,} messages.",
                yes=yes,
                as_json=as_json,
            )
            report = opened.purge_session(client_id)
    facts = plain(report) | {"store": store}
    title = "Dry run" if dry_run else "Purge"
    show(facts, as_json=as_json, pretty=lambda out: out.print(_report(title, facts)))


def _report(title: str, facts: dict[str, Any]) -> Table:
    shown = {name.replace("_", " "): value for name, value in facts.items()}
    if "last packet id" in shown:
        shown["last packet id"] = _text(shown["last packet id"])
    return pairs(title, shown)


def _whole(view: SessionView) -> dict[str, Any]:
    facts: dict[str, Any] = plain(view)
    return facts | {
        "next_offset": view.next_offset,
        "payload_bytes": view.payload_bytes,
        "problems": plain(view.problems),
    }


def _side_by_side(out: Console, source: SessionView, target: SessionView) -> None:
    names = ("exists", "messages", "last_packet_id", "last_serial", "delivered_serial", "owner", "epoch")
    rows: list[tuple[Any, ...]] = [
        (name.replace("_", " "), _text(getattr(source, name)), _text(getattr(target, name))) for name in names
    ]
    rows += (
        (name, *(_text(getattr(view.counts, name, None)) for view in (source, target)))
        for name in ("trimmed", "expired", "refused", "quarantined")
    )
    out.print(table(f"Session {source.client_id}", ("", "PostgreSQL", "Redis"), rows))
    if target.imported is not None:
        out.print(pairs("Import", plain(target.imported)))
    by_serial: dict[int, list[MessageView | None]] = {}
    for side, view in enumerate((source, target)):
        for message in view.page:
            by_serial.setdefault(message.serial, [None, None])[side] = message
    if by_serial:
        columns = (
            "serial",
            "packet id",
            "type",
            "QoS",
            "topic",
            "bytes",
            "expires (PostgreSQL)",
            "expires (Redis)",
            "",
        )
        lines = [_line(serial, *both) for serial, both in sorted(by_serial.items())]
        out.print(table("Messages", columns, lines))
    more = source.next_offset or target.next_offset
    if more is not None:
        out.print(f"\nMore: --offset {more}")


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _line(serial: int, source: MessageView | None, target: MessageView | None) -> tuple[Any, ...]:
    one = source or target
    assert one is not None
    if source is None:
        remark = "only in Redis"
    elif target is None:
        remark = "only in PostgreSQL"
    elif target.problem is not None:
        remark = target.problem.value
    else:
        same = ("packet_id", "packet_type", "qos", "topic", "payload_bytes")
        differing = [name.replace("_", " ") for name in same if getattr(source, name) != getattr(target, name)]
        remark = f"differs: {', '.join(differing)}" if differing else ""
    return (
        str(serial),
        _text(one.packet_id),
        one.packet_type,
        _text(one.qos),
        None if one.topic is None else printable(one.topic),
        one.payload_bytes,
        instant(source.expires_at_ms) if source else None,
        instant(target.expires_at_ms) if target else None,
        remark,
    )
