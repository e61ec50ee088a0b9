"""``queuekeeper sample`` and ``queuekeeper sessions``: make sessions, and look at one in both stores."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import instant, pairs, plain, printable, record, screen, show, table

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.sessions.model import MessageView, SessionView

app = typer.Typer(no_args_is_help=True, help="Look at DEVICE sessions.")


@app.callback()
def _group() -> None:
    """Look at DEVICE sessions."""


def sample(
    *,
    messages: Annotated[int, typer.Option(help="Healthy messages; hostile rows come on top.")] = 200_000,
    sessions: Annotated[int, typer.Option(help="Healthy sessions, a fifth of them without messages.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 1,
    long_queues: Annotated[int, typer.Option(help="Sessions with a very long queue.")] = 3,
    long_queue_messages: Annotated[int, typer.Option(help="Messages in each of those.")] = 12_000,
    hostile: Annotated[bool, typer.Option("--hostile", help="Add the bad rows that an old database holds.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Empty tables that hold rows first.")] = False,
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
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")],
    *,
    offset: Annotated[int, typer.Option(min=0, help="Messages to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Messages to show.")] = 20,
    key_prefix: Annotated[str | None, typer.Option(help="Prefix of the Redis keys.")] = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show one session in both stores. It lists message by message, without content.

    Example: `queuekeeper sessions inspect meter-17 --limit 50`
    """
    from queuekeeper.sessions.postgres_store import PostgresSessionStore
    from queuekeeper.sessions.redis_store import RedisSessionStore

    prefix = context.settings().key_prefix if key_prefix is None else key_prefix
    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        source = PostgresSessionStore(connection).inspect(client_id, offset=offset, limit=limit)
        target = RedisSessionStore(client, prefix=prefix).inspect(client_id, offset=offset, limit=limit)

    show(
        {"client_id": client_id, "postgres": _whole(source), "redis": _whole(target)},
        as_json=as_json,
        pretty=lambda out: _side_by_side(out, source, target),
    )


def _whole(view: SessionView) -> dict[str, Any]:
    facts: dict[str, Any] = plain(view)
    return facts | {
        "next_offset": view.next_offset,
        "payload_bytes": view.payload_bytes,
        "problems": plain(view.problems),
    }


def _side_by_side(out: Console, source: SessionView, target: SessionView) -> None:
    names = ("exists", "messages", "last_packet_id", "last_serial", "owner", "epoch")
    rows: list[tuple[Any, ...]] = [
        (name.replace("_", " "), _text(getattr(source, name)), _text(getattr(target, name))) for name in names
    ]
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
