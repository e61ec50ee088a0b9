"""``queuekeeper sessions``: look at a session, save it, restore it, end it; bring back what stores have set aside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from queuekeeper import audit, sessions
from queuekeeper.cli import context
from queuekeeper.cli.command import CONFIRMS, PLANS, Call, OnBoth, OnPostgres, command, group
from queuekeeper.cli.input import STANDARD_STREAM, ClientId, opened
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, headed, instant, listing, pairs, parts, printable, screen, table, told
from queuekeeper.errors import UsageError
from queuekeeper.facts import plain
from queuekeeper.jobs.common import SessionRules
from queuekeeper.sessions import quarantine as aside
from queuekeeper.sessions import transfer
from queuekeeper.sessions.jsonl import message_facts
from queuekeeper.sessions.judge import check_reason
from queuekeeper.sessions.model import MessageView, SessionView
from queuekeeper.sessions.quarantine import AsideMessage, SessionQuarantine, Stores
from queuekeeper.sessions.transfer import SessionStore

app = group()

StoreName = Annotated[Literal["redis", "postgres"], typer.Option("--store", help="Store that holds the session.")]
StoreChoice = Literal["owner", "redis", "postgres"]
_TOLD_LIFE = takes(lambda: SessionRules, only=["default_ttl_s"])


def _store(call: OnBoth, name: str, told: SessionRules | None = None) -> SessionStore:
    """Open one store; only its server has to run."""
    rules = transfer.rules() if told is None else transfer.rules(default_ttl_s=told.default_ttl_s)
    if name == "postgres":
        return sessions.PostgresSessionStore(call.connection, rules=rules)
    return sessions.RedisSessionStore(call.client, call.key_prefix, rules)


def _product(store: str) -> str:
    return {"postgres": "PostgreSQL", "redis": "Redis"}[store]


@command(app)
def inspect(
    call: OnBoth,
    client_id: ClientId,
    *,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
) -> Shown:
    """Show one session in both stores. It lists message by message, without content.

    Example: `queuekeeper sessions inspect meter-17 --limit 50`

    :param offset: Number of messages to skip before the first one shown.
    :param limit: Number of messages to show.
    """
    stores = [_store(call, name) for name in ("postgres", "redis")]
    source, target = (store.inspect(client_id, offset=offset, limit=limit) for store in stores)
    facts = {"client_id": client_id, "postgres": _whole(source), "redis": _whole(target)}
    return Shown(facts, lambda: _side_by_side(source, target))


@command(app, asks=_TOLD_LIFE)
def peek(
    call: OnBoth,
    client_id: ClientId,
    packet_id: Annotated[int, typer.Argument(metavar="PACKET_ID")],
    *,
    parameters: SessionRules,
    content: Annotated[bool, typer.Option("--payload")] = False,
    store: StoreName = "redis",
) -> Shown:
    """Show one message and change nothing. Its content is shown only when asked for.

    Example: `queuekeeper sessions peek meter-17 1042 --payload`

    :param packet_id: The MQTT packet id of the message.
    :param content: Also show payload, correlation data and user properties.
    """
    message = _store(call, store, parameters).peek(client_id, packet_id=packet_id)
    if message is None:
        raise UsageError(
            f"{_product(store)} holds no message of {client_id!r} with packet id {packet_id}: "
            "`queuekeeper sessions inspect` lists those that are there"
        )
    facts = {"client_id": client_id, "store": store} | message_facts(message, content=content)
    return Shown(facts, f"Packet {packet_id} of {client_id} in {_product(store)}")


@command(app, "export", also=CONFIRMS, asks=_TOLD_LIFE)
def export_session(
    call: OnBoth,
    client_id: ClientId,
    *,
    parameters: SessionRules,
    output: Annotated[str, typer.Option(metavar="FILE")] = STANDARD_STREAM,
    store: StoreName = "redis",
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
    held = _store(call, store, parameters)
    if output == STANDARD_STREAM:
        report = transfer.export_session(held, client_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        screen(stderr=True).print(f"{report.messages:,} messages exported")
    else:
        report = transfer.export_session_to_file(held, client_id, path, replace=True)
    left_out = f"{report.unreadable:,} records of {report.client_id!r} cannot be read and were left out"
    return Shown(
        plain(report) | {"store": store, "output": output},
        # The session itself is there.
        list if output == STANDARD_STREAM else "Export",
        failed=f"the export is not whole: {left_out}" if report.unreadable else None,
    )


@command(app, "import", asks=_TOLD_LIFE)
def import_session(
    call: OnBoth,
    client_id: ClientId,
    *,
    parameters: SessionRules,
    source: Annotated[str, typer.Option("--input", metavar="FILE")],
    store: StoreName = "redis",
) -> Shown:
    """Store an exported session for a client that has none. Order, packet ids and expiry stay.

    All lines are checked before anything is written, so it needs no dry run.

    Example: `queuekeeper sessions import meter-17 --input meter-17.jsonl --store redis`

    :param source: File to read; - is stdin.
    """
    with opened(source) as lines:
        report = _store(call, store, parameters).import_session(client_id, lines)
    return Shown(plain(report) | {"store": store}, "Import")


@command(app, also=PLANS)
def purge(call: OnBoth, client_id: ClientId, *, store: StoreName = "redis") -> Shown:
    """Remove one session with all its messages.

    A question says first how many messages are removed. Messages that are saved while it runs stay.

    Example: `queuekeeper sessions purge meter-17 --dry-run`
    """
    held = _store(call, store)
    report = call.carry_out(
        lambda only_count: held.purge_session(client_id, dry_run=only_count),
        lambda found: (
            f"The session of {printable(client_id)} will be removed from {_product(store)}, with "
            f"{found.messages:,} messages."
        ),
    )
    return Shown(plain(report) | {"store": store}, call.title("Purge"))


AsideReason = Annotated[str | None, typer.Option("--reason", help="Only messages of this reason.")]
AsideClient = Annotated[str | None, typer.Option("--client", help="Only messages of this client.")]


@command(app)
def quarantine(
    call: OnPostgres,
    row: Annotated[int | None, typer.Argument(metavar="ROW")] = None,
    *,
    reason: AsideReason = None,
    client_id: AsideClient = None,
    replayed: bool = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
) -> Shown:
    """List messages that stores have set aside, or show one.

    It shows why each message is still there, and no content.

    Example: `queuekeeper sessions quarantine --reason topic_empty`

    :param row: Number of a row, to show it alone.
    :param replayed: Also list messages that came back.
    :param limit: Most messages to list.
    """
    check_reason(reason)
    opened = SessionQuarantine(call.connection)
    if row is not None:
        facts = _aside_facts(opened.get(row))
        return Shown(facts, f"Message {row} of the quarantine")
    status = None if replayed else "open"
    rows = [_aside_facts(each) for each in opened.rows(status=status, reason=reason, client_id=client_id, limit=limit)]
    counts = [dict(zip(("reason", "open", "replayed"), each, strict=True)) for each in opened.counts()]
    columns = {"row": "quarantine_id", "client": "client_id", "serial": "serial_number", "reason": "reason"}
    columns |= {"status": "status", "what keeps it from coming back": "fault"}

    def pretty() -> Iterator[Any]:
        yield listing("Set aside", counts, headed("reason", "open", "replayed"), nothing="No message was set aside.")
        if counts:
            yield listing(f"Messages, at most {limit:,}", rows, columns)

    return Shown({"counts": counts, "rows": rows}, pretty)


def _aside_facts(row: AsideMessage) -> dict[str, Any]:
    """Return what may be shown of a message that was set aside: of its content only the sizes."""
    content = ("payload", "correlation_data", "user_properties")
    facts = {name: value for name, value in plain(row).items() if name not in content}
    sizes = {f"{name}_bytes": None if (value := getattr(row, name)) is None else len(value) for name in content}
    return facts | sizes | {"fault": row.fault}


def owners_stores(call: Call, *, key_prefix: str, default_ttl_s: int, choice: StoreChoice) -> Stores:
    """Return the stores of a call, of which each session's owner takes its new messages."""
    rules = transfer.rules(default_ttl_s=default_ttl_s)
    at_redis = router = None
    if choice != "postgres":
        at_redis = sessions.RedisSessionStore(call.client, key_prefix, rules)
        address = context.postgres_address(call.postgres_url)
        router = call.opened.enter_context(sessions.SessionRouter(call.client, address, key_prefix, rules))
    at_postgres = sessions.PostgresSessionStore(call.connection, rules=rules)
    return Stores(call.connection, postgres=at_postgres, redis=at_redis, router=router, choice=choice)


@command(app, also=PLANS, asks=_TOLD_LIFE)
def replay(
    call: OnBoth,
    rows: Annotated[list[int] | None, typer.Argument(metavar="ROW")] = None,
    *,
    parameters: SessionRules,
    reason: AsideReason = None,
    client_id: AsideClient = None,
    drop_user_properties: bool = False,
    store: StoreChoice = "owner",
) -> Shown:
    """Put messages that stores have set aside into their sessions.

    Each becomes the newest message of its session.

    Without a choice it takes all open rows. Rows that still break a rule stay. Rows of clients that no cluster can hold
    stay too, unless they are named.

    Example: `queuekeeper sessions replay --client meter-17 --dry-run`

    :param rows: Numbers of rows, as `sessions quarantine` lists them.
    :param drop_user_properties: Leave user properties out where they cannot be read.
    :param store: The broker's store, for sessions of which no owner is on record; postgres needs no Redis.
    """
    check_reason(reason)
    connection, default_ttl_s = call.connection, parameters.default_ttl_s
    stores = owners_stores(call, key_prefix=call.key_prefix, default_ttl_s=default_ttl_s, choice=store)

    def act(dry_run: bool) -> aside.ReplayReport:
        return aside.replay(
            connection,
            stores,
            person=context.person(),
            quarantine_ids=rows or None,
            reason=reason,
            client_id=client_id,
            drop_user_properties=drop_user_properties,
            default_ttl_s=default_ttl_s,
            dry_run=dry_run,
        )

    done = call.carry_out(
        act,
        lambda found: f"{found.replayed:,} messages will be put behind all others of their sessions.",
        needed=lambda found: found.replayed,
        note=partial(audit.record_answer, connection, subject=aside.SUBJECT, kind="quarantine_replay"),
    )
    if not done.dry_run:
        effect = {"kind": "quarantine_replay"} | {
            name: value for name, value in plain(done).items() if isinstance(value, int) and name != "dry_run"
        }
        audit.record(
            connection, actor=context.person(), action=audit.Action.APPLY, subject=aside.SUBJECT, effect=effect
        )
    return replay_shown(call, done)


def replay_shown(call: Call, done: Any) -> Shown:
    """Return what became of rows of a quarantine, and of some of them why."""
    facts = plain(done)
    return Shown(facts, lambda: parts(call.title("Replay"), facts, headings={"why": "Not replayed"}))


def _whole(view: SessionView) -> dict[str, Any]:
    facts: dict[str, Any] = plain(view)
    return facts | {
        "next_offset": view.next_offset,
        "payload_bytes": view.payload_bytes,
        "problems": plain(view.problems),
    }


def _side_by_side(source: SessionView, target: SessionView) -> Iterator[Any]:
    names = ("exists", "messages", "last_packet_id", "last_serial", "delivered_serial", "owner", "epoch")
    counts = ("trimmed", "expired", "refused", "quarantined")
    at_source, at_target = (
        told(
            {name: getattr(view, name) for name in names} | {name: getattr(view.counts, name, None) for name in counts}
        )
        for view in (source, target)
    )
    rows = [(name, value, at_target[name]) for name, value in at_source.items()]
    yield table(f"Session {source.client_id}", ("", "PostgreSQL", "Redis"), rows)
    if target.imported is not None:
        yield pairs("Import", plain(target.imported))
    by_serial: dict[int, list[MessageView | None]] = {}
    for side, view in enumerate((source, target)):
        for message in view.page:
            by_serial.setdefault(message.serial, [None, None])[side] = message
    if by_serial:
        columns = ("serial", "packet id", "type", "QoS", "topic", "bytes", "expires (PostgreSQL)", "expires (Redis)")
        lines = [_line(serial, *both) for serial, both in sorted(by_serial.items())]
        yield table("Messages", (*columns, ""), lines)
    more = source.next_offset or target.next_offset
    if more is not None:
        yield f"\nMore: --offset {more}"


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
        None if one.packet_id is None else str(one.packet_id),
        one.packet_type,
        one.qos,
        one.topic,
        one.payload_bytes,
        instant(source.expires_at_ms) if source else None,
        instant(target.expires_at_ms) if target else None,
        remark,
    )
