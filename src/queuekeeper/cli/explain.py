"""``queuekeeper explain``: what became of each message of one queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import OnBoth
from queuekeeper.cli.input import ClientId, LayoutName
from queuekeeper.cli.output import Shown, cell, listing, pairs, picked, screen
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError
from queuekeeper.sessions.pages import DEFAULT_EXPLAINED, MAX_PAGE, STORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuekeeper.quality.explain import Explanation, SerialLine

_STYLES = {
    "unknown": "bold red",
    "undeliverable": "yellow",
    "quarantined": "yellow",
    "trimmed": "yellow",
    "expired": "dim",
    "acked": "dim",
}


def explain(
    call: OnBoth,
    client_id: ClientId,
    *,
    gaps: bool = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE)] = DEFAULT_EXPLAINED,
    layout: LayoutName = None,
) -> Shown:
    """Tell what became of each message of one queue.

    It goes serial by serial through what both stores hold, changes nothing, and shows neither payloads nor topics. A
    store that is down is named, and the other one is read. The exit code is 1 when a message is unaccounted for.

    Example: `queuekeeper explain meter-17 --gaps`

    :param gaps: Show only messages that will not be delivered any more.
    :param limit: Number of messages to read from each store.
    """
    from queuekeeper.identity import hash_key
    from queuekeeper.quality.explain import explain as judge
    from queuekeeper.quality.explain import read_queue

    problems: dict[str, str] = {}

    def reached(product: str, opened: Callable[[], Any]) -> Any:
        try:
            return opened()
        except RefusedError as error:
            problems[product] = context.redact(str(error))
            return None

    with screen(stderr=True).status("Reading both stores"):
        reading = read_queue(
            client_id,
            connection=reached("PostgreSQL", lambda: call.connection),
            client=reached("Redis", lambda: call.client),
            key_prefix=call.key_prefix,
            limit=limit,
            layout=layout,
            problems=problems,
        )
    found = judge(client_id, reading=reading, hash_key=hash_key(context.settings()), now_ms=system_clock())
    failed = "" if found.unknown or found.problems else None
    facts = _facts(found, gaps=gaps)
    return Shown(facts, lambda: _pretty(client_id, found, facts["lines"]), failed=failed)


def _facts(found: Explanation, *, gaps: bool) -> dict[str, Any]:
    names = ("client_hash", "as_of_ms", "served_from", "counts", "complete", "problems", "advice", "aside")
    lines = [_line(each) for each in found.lines if each.fate.is_gap or not gaps]
    return picked(found, *names) | {"evidence_sha256": found.evidence_hash(), "lines": lines}


def _line(line: SerialLine) -> dict[str, Any]:
    side = line.target or line.source
    return picked(line, "first_serial", "last_serial", "fate", "why") | {
        "packet_id": side.packet_id if side else None,
        "expires_at_ms": side.expires_at_ms if side else None,
        "in_postgres": line.source is not None,
        "in_redis": line.target is not None,
    }


def _serials(line: dict[str, Any]) -> str:
    first, last = line["first_serial"], line["last_serial"]
    return f"{first:,}" + (f" – {last:,}" if last > first else "")


def _holders(line: dict[str, Any]) -> str | None:
    held = {"PostgreSQL": line["in_postgres"], "Redis": line["in_redis"]}
    return " and ".join(name for name, holds in held.items() if holds) or None


def _pretty(client_id: str, found: Explanation, lines: list[dict[str, Any]]) -> Iterator[Any]:
    columns: dict[str, Any] = {
        "serial": _serials,
        "fate": lambda line: cell(line["fate"], style=_STYLES.get(line["fate"], "green")),
        "packet id": "packet_id",
        "expires": "expires_at_ms",
        "held by": _holders,
        "why": "why",
    }
    yield listing(f"Queue of {client_id}", lines, columns)
    served = STORES.get(found.served_from or "", "neither store")
    yield pairs(
        "In sum",
        {"served from": served, **dict(sorted(found.counts.items()))}
        | {f"{store} not reached": why for store, why in found.problems.items()}
        | {"everything read": found.complete, "evidence (SHA-256)": found.evidence_hash()},
    )
    yield ""
    yield cell(found.advice)
