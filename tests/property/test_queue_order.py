"""Queues that are read in the order of their keys: their rows meet the fates of the rules, however batches cut them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.errors import RefusedError
from queuekeeper.migration.offline.fates import decided
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.migration.offline.source import SESSION_COLUMNS, _none, _Sessions
from queuekeeper.migration.offline.transforms import MESSAGE, SESSION
from tests.property.generated_clients import RULES, Client, clients
from tests.property.migration_rules import Decision, Message, Session, decide
from tests.property.test_fates import MESSAGE_TYPES, SESSION_TYPES

JUDGING = Judging(default_ttl_s=RULES.default_ttl_s, clustered=RULES.clustered)
STEP = JUDGING.fragments(prefix="", as_of_ms=RULES.as_of_ms)


@cache
def generated() -> list[Client]:
    """Return clients in the reverse order of their ids; every run of tests reads this file, and few need them."""
    return sorted(clients(200), key=lambda client: client.client_id, reverse=True)


@cache
def messages() -> list[Message]:
    """Return their messages, newest first."""
    return [
        message
        for client in generated()
        for message in sorted(client.messages, key=lambda message: message.serial_number, reverse=True)
    ]


@cache
def expected() -> dict[str, Decision]:
    """Return what the rules say of them."""
    return {client.client_id: decide(client.messages, client.session, RULES) for client in generated()}


cuts = st.deferred(lambda: st.lists(st.integers(1, len(messages())), max_size=60, unique=True).map(sorted))


def _batch(rows: Sequence[Message] | Sequence[Session], types: dict[str, pa.DataType]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {name: pa.array([getattr(row, name) for row in rows], types[name]) for name in types}
    )


def _in_order(edges: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Read all queues as one range does, in batches that end at these messages."""
    found = [client.session for client in generated() if client.session is not None]
    judged = JUDGING.sessions(SESSION_COLUMNS).work(_batch(sorted(found), SESSION_TYPES))
    sessions = _Sessions(judged, _none(STEP.columns))
    for first, last in itertools.pairwise([0, *edges, len(messages())]):
        yield sessions.behind(STEP.work(_batch(messages()[first:last], MESSAGE_TYPES)))
    yield sessions.rest()


def _decided(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    found = decided(batches, limit=RULES.limit, as_of_ms=RULES.as_of_ms)
    return [row for batch in found for row in batch.to_pylist()]


@cache
def _whole() -> list[dict[str, Any]]:
    """Return the rows of one batch, in the order of their words."""
    return sorted(_decided(_in_order([])), key=str)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(cuts)
def test_rows_meet_the_same_fates_whatever_batches_they_come_in(edges: list[int]) -> None:
    rows = _decided(_in_order(edges))

    # In one batch each fate is what the rules say: the test below.
    assert sorted(rows, key=str) == _whole()


def test_rows_in_one_batch_meet_the_fates_of_the_rules() -> None:
    rows = _whole()

    of_messages = {(row["client_id"], row["serial_number"]): row for row in rows if row["kind"] == MESSAGE}
    assert {key: (row["fate"], row["reason"], row["expires_at_ms"]) for key, row in of_messages.items()} == {
        (client_id, serial): tuple(outcome)
        for client_id, decision in expected().items()
        for serial, outcome in decision.messages.items()
    }
    of_sessions = {row["client_id"]: row for row in rows if row["kind"] == SESSION}
    assert {name: row["reason"] for name, row in of_sessions.items()} == {
        client.client_id: expected()[client.client_id].session_reason
        for client in generated()
        if client.session is not None
    }


def test_a_session_comes_behind_the_last_message_of_its_client() -> None:
    for edges in ([], list(range(1, len(messages())))):
        rows = _decided(_in_order(edges))
        assert len(rows) == len(messages()) + sum(client.session is not None for client in generated())
        for client_id, own in itertools.groupby(rows, key=lambda row: row["client_id"]):
            kinds = [row["kind"] for row in own]
            assert kinds == sorted(kinds), client_id


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["b", "a", "b"], "do not lie together"),
        (["a 1", "a 2"], "newest first"),
        (["a 1", "a 1"], "newest first"),
        (["a session", "a 1"], "newest first"),
    ],
)
def test_a_wrong_order_is_refused_and_its_remedy_named(order: list[str], words: str, in_one_batch: bool) -> None:
    rows = [
        {
            "client_id": client, "kind": SESSION if serial == "session" else MESSAGE,
            "serial_number": None if serial == "session" else int(serial or 0), "packet_id": 1, "reason": None,
            "expires_at_ms": 1, "last_serial_number": None, "last_packet_id": None,
        }
        for client, _, serial in (each.partition(" ") for each in order)
    ]  # fmt: skip
    types = [
        ("client_id", pa.string()), ("kind", pa.string()), ("serial_number", pa.int64()), ("packet_id", pa.int32()),
        ("reason", pa.string()), ("expires_at_ms", pa.int64()), ("last_serial_number", pa.int64()),
        ("last_packet_id", pa.int32()),
    ]  # fmt: skip
    whole = pa.RecordBatch.from_pylist(rows, schema=pa.schema(types))
    batches = [whole] if in_one_batch else [whole.slice(at, 1) for at in range(len(rows))]
    with pytest.raises(RefusedError, match=f"{words}.*REINDEX"):
        _decided(iter(batches))
