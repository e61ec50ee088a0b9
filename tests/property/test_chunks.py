"""Cutting rows into script calls: however Arrow's batches fall, each client's calls say the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.keyspace import safe_counter
from queuekeeper.migration.offline import importer, transforms
from queuekeeper.migration.offline.importer import Chunk, chunks

MESSAGES_PER_CALL = 4
BYTES_PER_CALL = 60


class Client(NamedTuple):
    """One client's rows as the import gets them.

    :param sizes: bytes of each message's arguments, the newest first.
    :param packet_ids: likewise, for as many messages as there may be.
    """

    sizes: list[int]
    packet_ids: list[int]
    has_session: bool
    last_packet_id: int | None
    last_serial: int | None


SCHEMA = pa.schema(
    [
        ("client_id", pa.string()),
        ("cohort", pa.int32()),
        ("kind", pa.string()),
        ("packet_id", pa.int32()),
        ("last_packet_id", pa.int32()),
        ("last_serial", pa.int64()),
        ("keys_part", pa.string()),
        ("args_part", pa.string()),
    ]
)

clients = st.lists(
    st.builds(
        Client,
        st.lists(st.integers(1, 80), max_size=14),
        st.lists(st.sampled_from([*range(1, 16), *range(65_531, 65_536)]), min_size=14, max_size=14, unique=True),
        st.booleans(),
        st.one_of(st.none(), st.integers(1, 65_535), st.integers(1, 16), st.integers(65_530, 65_535)),
        st.one_of(st.none(), st.integers(0, 2**53 - 1)),
    ).filter(lambda client: client.sizes or client.has_session),
    max_size=6,
)
cuts = st.lists(st.integers(0, 60), max_size=8)


def _table(found: list[Client]) -> pa.Table:
    rows: list[tuple[str, int, str, int | None, int | None, int | None, str, str]] = []
    for number, client in enumerate(found):
        name = f"client-{number}"
        given = client.last_packet_id, client.last_serial
        for message, size in enumerate(client.sizes):
            # What a row holds tells where it comes from; a character of two bytes keeps offsets honest.
            text = f"é{number}.{message}|".ljust(size, "x")
            packet_id = client.packet_ids[message]
            rows.append((name, number, transforms.MESSAGE, packet_id, *given, f"k{number}.{message}|", text))
        if client.has_session:
            rows.append((name, number, transforms.SESSION, None, *given, "", ""))
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * len(SCHEMA), schema=SCHEMA)


def _batches(table: pa.Table, edges: list[int]) -> list[pa.RecordBatch]:
    """Cut a table into batches that share its buffers, so that offsets do not begin at 0."""
    bounds = sorted({0, table.num_rows, *(edge for edge in edges if edge < table.num_rows)})
    whole = table.combine_chunks().to_batches()
    cut = [whole[0].slice(first, last - first) for first, last in itertools.pairwise(bounds)] if whole else []
    return [*cut, pa.RecordBatch.from_pylist([], schema=SCHEMA)]


@pytest.fixture(autouse=True, scope="module")
def small_calls() -> Iterator[None]:
    """Make calls so small that generated clients need several."""
    patch = pytest.MonkeyPatch()
    patch.setattr(importer, "CHUNK_MESSAGES", MESSAGES_PER_CALL)
    patch.setattr(importer, "CHUNK_BYTES", BYTES_PER_CALL)
    yield
    patch.undo()


@settings(max_examples=400, derandomize=True, database=None)
@given(clients, cuts)
def test_calls_carry_each_client_whole_in_order_and_within_bounds(found: list[Client], edges: list[int]) -> None:
    table = _table(found)
    calls = list(chunks(iter(_batches(table, edges))))

    assert [call.client_id for call in calls if call.last] == [f"client-{number}" for number in range(len(found))]
    for number, client in enumerate(found):
        own = [call for call in calls if call.client_id == f"client-{number}"]
        rows = table.filter(pa.compute.equal(table["client_id"], f"client-{number}"))
        assert b"".join(call.keys for call in own) == "".join(rows["keys_part"].to_pylist()).encode()
        assert b"".join(call.args for call in own) == "".join(rows["args_part"].to_pylist()).encode()
        assert [call.number for call in own] == list(range(len(own)))
        assert [call.last for call in own] == [False] * (len(own) - 1) + [True]
        assert sum(call.count for call in own) == len(client.sizes)
        safe = safe_counter(client.last_packet_id, client.packet_ids[: len(client.sizes)][::-1])
        assert own[-1].last_packet_id == ("" if safe is None else str(safe))
        assert own[-1].last_serial == ("" if client.last_serial is None else str(client.last_serial))
        for call in own:
            assert call.cohort == number
            assert call.count <= MESSAGES_PER_CALL
            assert call.count == call.keys.count(b"|") == call.args.count(b"|")
            assert len(call.args) <= BYTES_PER_CALL or call.count == 1
            assert call.count > 0 or own == [call]


@settings(max_examples=200, derandomize=True, database=None)
@given(clients)
def test_calls_are_as_few_as_the_bounds_allow_when_a_client_lies_in_one_batch(found: list[Client]) -> None:
    calls = list(chunks(iter(_batches(_table(found), []))))
    for before, after in itertools.pairwise(calls):
        if before.client_id == after.client_id and before.count < MESSAGES_PER_CALL:
            # The next message would not have fitted.
            assert len(before.args) + _first_message_bytes(after) > BYTES_PER_CALL


def _first_message_bytes(call: Chunk) -> int:
    parts = call.args.decode().split("é")
    return len(f"é{parts[1]}".encode())
