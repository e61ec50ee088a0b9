"""``queuekeeper sessions quarantine`` and ``replay``: messages that stores have set aside, and their way back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper import sessions
from queuekeeper.cli import context
from queuekeeper.cli.command import PLANS, Call, OnBoth, OnPostgres, command
from queuekeeper.cli.output import Shown, headed, listing, parts
from queuekeeper.cli.sessions import TOLD_LIFE, app
from queuekeeper.facts import plain
from queuekeeper.jobs.common import SessionRules
from queuekeeper.sessions import transfer
from queuekeeper.sessions.judge import check_reason
from queuekeeper.sessions.model import StoreChoice
from queuekeeper.sessions.pages import Layout
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.sessions.quarantine import AsideMessage, ReplayReport, Stores

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
    from queuekeeper.sessions.quarantine import SessionQuarantine

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


def owners_stores(
    call: Call, *, key_prefix: str, default_ttl_s: int, choice: StoreChoice, layout: Layout | None = None
) -> Stores:
    """Return the stores of a call, of which each session's owner takes its new messages.

    :param layout: of sessions in Redis without a recorded owner; none for that in which each is there.
    """
    from queuekeeper.sessions.quarantine import Stores

    rules = transfer.rules(default_ttl_s=default_ttl_s)
    router = None

    def at_redis(client_id: str) -> sessions.RedisSessionStore:
        found = layout or sessions.layout_of(call.client, client_id, prefix=key_prefix)
        return sessions.RedisSessionStore(call.client, key_prefix, rules, layout=found)

    if choice != "postgres":
        address = context.postgres_address(call.postgres_url)
        router = call.opened.enter_context(sessions.SessionRouter(call.client, address, key_prefix, rules))
    at_postgres = sessions.PostgresSessionStore(call.connection, rules=rules)
    return Stores(call.connection, postgres=at_postgres, redis=at_redis, router=router, choice=choice)


@command(app, also=PLANS, asks=TOLD_LIFE)
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
    from queuekeeper import audit
    from queuekeeper.sessions import quarantine as aside

    check_reason(reason)
    connection, default_ttl_s = call.connection, parameters.default_ttl_s
    stores = owners_stores(call, key_prefix=call.key_prefix, default_ttl_s=default_ttl_s, choice=store)

    def act(dry_run: bool) -> ReplayReport:
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
        lambda found: f"{number_of(found.replayed, 'message')} will be put behind all others of their sessions.",
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
