"""``queuekeeper sessions``: look at a session, save it, restore it, end it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from queuekeeper import sessions
from queuekeeper.cli.command import CONFIRMS, PLANS, OnBoth, command, group
from queuekeeper.cli.input import STANDARD_STREAM, ClientId, LayoutName, lines_of
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, instant, pairs, printable, screen, table, told
from queuekeeper.errors import UsageError
from queuekeeper.facts import plain
from queuekeeper.jobs.common import SessionRules
from queuekeeper.sessions import transfer
from queuekeeper.sessions.jsonl import message_facts
from queuekeeper.sessions.pages import MAX_PAGE, STORES, Layout
from queuekeeper.sessions.reports import MessageView, SessionView
from queuekeeper.sessions.transfer import SessionStore
from queuekeeper.wording import number_of

app = group()

StoreName = Annotated[Literal["redis", "postgres"], typer.Option("--store", help="Store that holds the session.")]
TOLD_LIFE = takes(lambda: SessionRules, only=["default_ttl_s"])


def _store(
    call: OnBoth, name: str, told: SessionRules | None = None, *, client_id: str, layout: Layout | None = None
) -> SessionStore:
    """Open one store; only its server has to run.

    :param layout: in Redis; none for that in which the session is there.
    """
    rules = transfer.rules() if told is None else transfer.rules(default_ttl_s=told.default_ttl_s)
    if name == "postgres":
        return sessions.PostgresSessionStore(call.connection, rules=rules)
    found = layout or sessions.layout_of(call.client, client_id, prefix=call.key_prefix)
    return sessions.RedisSessionStore(call.client, call.key_prefix, rules, layout=found)


@command(app)
def inspect(
    call: OnBoth,
    client_id: ClientId,
    *,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE)] = 20,
    store: Annotated[Literal["both", "redis", "postgres"], typer.Option(help="Store to look into.")] = "both",
    layout: LayoutName = None,
) -> Shown:
    """Show one session in both stores or in one. It lists message by message, without content.

    Example: `queuekeeper sessions inspect meter-17 --store redis`

    :param offset: Number of messages to skip before the first one shown.
    :param limit: Number of messages to show.
    """
    views, facts = dict[str, SessionView](), dict[str, Any]()
    for name in ("redis", "postgres") if store == "both" else (store,):
        if name == "redis":
            layout = layout or sessions.layout_of(call.client, client_id, prefix=call.key_prefix)
            facts[name] = {"layout": layout.value}
        held = _store(call, name, client_id=client_id, layout=layout)
        views[name] = held.inspect(client_id, offset=offset, limit=limit)
        facts[name] = _whole(views[name]) | facts.get(name, {})
    return Shown({"client_id": client_id} | facts, lambda: _side_by_side(client_id, views, facts))


@command(app, asks=TOLD_LIFE)
def peek(
    call: OnBoth,
    client_id: ClientId,
    packet_id: Annotated[int, typer.Argument(metavar="PACKET_ID")],
    *,
    parameters: SessionRules,
    content: Annotated[bool, typer.Option("--payload")] = False,
    store: StoreName = "redis",
    layout: LayoutName = None,
) -> Shown:
    """Show one message and change nothing. Its content is shown only when asked for.

    Example: `queuekeeper sessions peek meter-17 1042 --payload`

    :param packet_id: The MQTT packet id of the message.
    :param content: Also show payload, correlation data and user properties.
    """
    held = _store(call, store, parameters, client_id=client_id, layout=layout)
    message = held.peek(client_id, packet_id=packet_id)
    if message is None:
        raise UsageError(
            f"{STORES[store]} holds no message of {client_id!r} with packet id {packet_id}: "
            f"`queuekeeper sessions inspect {quote(client_id)}` lists those that are there"
        )
    facts = {"client_id": client_id, "store": store} | message_facts(message, content=content)
    return Shown(facts, f"Packet {packet_id} of {client_id} in {STORES[store]}")


@command(app, "export", also=CONFIRMS, asks=TOLD_LIFE)
def export_session(
    call: OnBoth,
    client_id: ClientId,
    *,
    parameters: SessionRules,
    output: Annotated[str, typer.Option(metavar="FILE")] = STANDARD_STREAM,
    store: StoreName = "redis",
    layout: LayoutName = None,
) -> Shown:
    """Write one session with its content as JSON Lines. The session stays as it is.

    A file appears when it is complete. One that is there is replaced after a question, or with --yes.

    Example: `queuekeeper sessions export meter-17 --output meter-17.jsonl`

    :param output: File to write; - is stdout.
    """
    if call.as_json and output == STANDARD_STREAM:
        raise UsageError("--json and the session both want stdout: name a file by --output")
    path = Path(output)
    if output != STANDARD_STREAM and path.is_file():
        call.confirm(f"{printable(output)} exists and will be replaced.")
    held = _store(call, store, parameters, client_id=client_id, layout=layout)
    if output == STANDARD_STREAM:
        report = transfer.export_session(held, client_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        screen(stderr=True).print(f"{number_of(report.messages, 'message')} exported")
    else:
        report = transfer.export_session_to_file(held, client_id, path, replace=True)
    left_out = f"{number_of(report.unreadable, 'record')} of {report.client_id!r} cannot be read and were left out"
    return Shown(
        plain(report) | {"store": store, "output": output},
        # The session itself is there.
        list if output == STANDARD_STREAM else "Export",
        failed=f"the export is not whole: {left_out}" if report.unreadable else None,
    )


@command(app, "import", asks=TOLD_LIFE)
def import_session(
    call: OnBoth,
    client_id: ClientId,
    *,
    parameters: SessionRules,
    source: Annotated[str, typer.Option("--input", metavar="FILE")],
    store: StoreName = "redis",
    layout: LayoutName = None,
) -> Shown:
    """Store an exported session for a client that has none. Order, packet ids and expiry stay.

    All lines are checked before anything is written, so it needs no dry run.

    Example: `queuekeeper sessions import meter-17 --input meter-17.jsonl --store redis`

    :param source: File to read; - is stdin.
    """
    with lines_of(source) as lines:
        held = _store(call, store, parameters, client_id=client_id, layout=layout)
        report = held.import_session(client_id, lines)
    return Shown(plain(report) | {"store": store}, "Import")


@command(app, also=PLANS)
def purge(call: OnBoth, client_id: ClientId, *, store: StoreName = "redis", layout: LayoutName = None) -> Shown:
    """Remove one session with all its messages.

    A question says first how many messages are removed. Messages that are saved while it runs stay.

    Example: `queuekeeper sessions purge meter-17 --dry-run`
    """
    held = _store(call, store, client_id=client_id, layout=layout)
    report = call.carry_out(
        lambda only_count: held.purge_session(client_id, dry_run=only_count),
        lambda found: (
            f"The session of {printable(client_id)} will be removed from {STORES[store]}, with "
            f"{number_of(found.messages, 'message')}."
        ),
    )
    return Shown(plain(report) | {"store": store}, call.title("Purge"))


def _whole(view: SessionView) -> dict[str, Any]:
    facts: dict[str, Any] = plain(view)
    return facts | {
        "next_offset": view.next_offset,
        "payload_bytes": view.payload_bytes,
        "problems": plain(view.problems),
    }


def _side_by_side(client_id: str, views: Mapping[str, SessionView], facts: Mapping[str, Any]) -> Iterator[Any]:
    names = ("exists", "messages", "last_packet_id", "last_serial", "delivered_serial", "owner", "epoch")
    counts = ("trimmed", "expired", "refused", "quarantined")
    views = dict(sorted(views.items()))
    told_of = [
        told(
            {name: getattr(view, name) for name in names}
            | {name: getattr(view.counts, name, None) for name in counts}
            | {"layout": facts[store].get("layout")}
        )
        for store, view in views.items()
    ]
    rows = [(name, *(each[name] for each in told_of)) for name in told_of[0]]
    yield table(f"Session {client_id}", ("", *(STORES[store] for store in views)), rows)
    for view in views.values():
        if view.imported is not None:
            yield pairs("Import", plain(view.imported))
    by_serial: dict[int, dict[str, MessageView]] = {}
    for store, view in views.items():
        for message in view.page:
            by_serial.setdefault(message.serial, {})[store] = message
    if by_serial:
        ends = (f"expires ({STORES[store]})" for store in views)
        columns = ("serial", "packet id", "type", "QoS", "topic", "bytes", *ends, "")
        lines = [_line(serial, found, stores=tuple(views)) for serial, found in sorted(by_serial.items())]
        yield table("Messages", columns, lines)
    more = next((view.next_offset for view in views.values() if view.next_offset is not None), None)
    if more is not None:
        yield f"\nMore: --offset {more}"


def _line(serial: int, found: Mapping[str, MessageView], *, stores: tuple[str, ...]) -> tuple[Any, ...]:
    one, *others = found.values()
    last = others[-1] if others else one
    if len(found) < len(stores):
        (store,) = found
        remark = f"only in {STORES[store]}"
    elif last.problem is not None:
        remark = last.problem.value
    else:
        same = ("packet_id", "packet_type", "qos", "topic", "payload_bytes")
        differing = [name.replace("_", " ") for name in same if getattr(one, name) != getattr(last, name)]
        remark = f"differs: {', '.join(differing)}" if differing else ""
    return (
        str(serial),
        None if one.packet_id is None else str(one.packet_id),
        one.packet_type,
        one.qos,
        one.topic,
        one.payload_bytes,
        *(instant(found[store].expires_at_ms) if store in found else None for store in stores),
        remark,
    )
