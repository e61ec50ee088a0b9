"""Puts together what Redis should hold, queue by queue, from rows whose fates are decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.migration.offline.source import MESSAGE_COLUMNS
from queuekeeper.migration.offline.transforms import MESSAGE

# PostgreSQL hashes the long columns itself, so their content never leaves it.
HASHED_COLUMNS = MESSAGE_COLUMNS | {"payload_bytes": "int", "correlation_data_bytes": "int"}
HASHED_EXPRESSIONS = {
    "payload": "sha256(payload)",
    "correlation_data": "sha256(correlation_data)",
    # The rules judge by these whether a value is missing.
    "payload_bytes": "octet_length(payload)",
    "correlation_data_bytes": "octet_length(correlation_data)",
}

COPIED_COLUMNS = MESSAGE_COLUMNS | {"expires_at_ms": "bigint"}
"""What is compared of a message that ought to be in Redis."""

FATES = ("copied", "expired", "trimmed", "quarantined")
"""Fates of messages, by the numbers that rows have."""

_COPIED, _QUARANTINED = FATES.index("copied"), FATES.index("quarantined")

_ROW = np.dtype([("client", "i4"), ("serial", "i8"), ("fate", "i1"), ("place", "i8")])
"""A message of the source: number of its client, and its place among the messages that ought to be in Redis, or -1."""

_CLIENT = np.dtype([("cohort", "i4"), ("counter", "i8"), ("has_session", "?"), ("own_counter", "i8")])
"""A client: packet id given out last by its messages, and by its session row; -1 for none."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Quarantined messages that were mended and imported.

    :param mended: messages under the client id and serial of their source row.
    :param moved: messages that got another client id or serial, so that no source row has their place.
    :param counters: client id -> last packet id that a replay has moved.
    """

    mended: pa.RecordBatch
    moved: pa.RecordBatch
    counters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Queues:
    """Queues of the source.

    :param names: ids of their clients.
    :param clients: what else is known of these, in the same order.
    :param rows: all messages, client by client.
    :param copied: content of those that ought to be in Redis, in the same order.
    :param is_moved: which of these have no row in the source; they come last.
    """

    names: list[str]
    clients: NDArray[Any]
    rows: NDArray[Any]
    copied: pa.RecordBatch
    is_moved: NDArray[np.bool_]

    @classmethod
    def of(cls, batch: pa.RecordBatch, mended: Mapping[tuple[str, int], int], content: pa.RecordBatch) -> Queues:
        """Take apart rows whose fates were decided.

        :param mended: client id and serial of replayed rows -> number in ``content``, which replaces what they were.
        """
        runs = pc.run_end_encode(batch.column("client_id"))
        names, ends = runs.values.to_pylist(), runs.run_ends.to_numpy().astype(np.int64)
        run = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        is_message = pc.equal(batch.column("kind"), MESSAGE).to_numpy(zero_copy_only=False)
        fate = _numbers(pc.index_in(batch.column("fate"), pa.array(FATES)), null=-1)
        serial = _numbers(batch.column("serial_number"), null=-1)
        found = batch.select(list(COPIED_COLUMNS))
        chosen = np.arange(batch.num_rows)
        if mended:
            for at in np.flatnonzero(fate == _QUARANTINED).tolist():
                if (number := mended.get((names[run[at]], int(serial[at])))) is not None:
                    fate[at], chosen[at] = _COPIED, batch.num_rows + number
            found = pa.concat_batches([found, content])
        is_copied = is_message & (fate == _COPIED)
        counter = _numbers(batch.column("last_packet_id"), null=-1)
        clients = np.zeros(len(names), _CLIENT)
        clients["cohort"] = _numbers(batch.column("cohort"), null=-1)[ends - 1]
        clients["counter"] = clients["own_counter"] = -1
        np.maximum.at(clients["counter"], run[is_copied], counter[is_copied])
        clients["own_counter"][run[~is_message]] = counter[~is_message]
        clients["has_session"][run[~is_message]] = True
        rows = np.zeros(int(is_message.sum()), _ROW)
        rows["client"], rows["serial"], rows["fate"] = run[is_message], serial[is_message], fate[is_message]
        places = np.cumsum(is_copied) - 1
        rows["place"] = np.where(is_copied, places, -1)[is_message]
        copied = found.take(pa.array(chosen[is_copied]))
        return cls(names=names, clients=clients, rows=rows, copied=copied, is_moved=np.zeros(len(copied), np.bool_))

    def followed_by(self, others: Queues) -> Queues:
        """Return these and the following ones, of which the first may continue the last of these."""
        same = int(self.names[-1] == others.names[0])
        clients = np.concatenate([self.clients, others.clients[same:]])
        if same:
            for name in ("counter", "own_counter", "has_session"):
                clients[name][len(self.names) - 1] = max(self.clients[name][-1], others.clients[name][0])
        rows = others.rows.copy()
        rows["client"] += len(self.names) - same
        rows["place"][rows["place"] >= 0] += len(self.copied)
        return Queues(
            names=self.names + others.names[same:],
            clients=clients,
            rows=np.concatenate([self.rows, rows]),
            copied=pa.concat_batches([self.copied, others.copied]),
            is_moved=np.concatenate([self.is_moved, others.is_moved]),
        )

    def cut(self, first: int, last: int) -> Queues:
        """Return the queues from one client to before another."""
        rows = self.rows[slice(*np.searchsorted(self.rows["client"], [first, last]))].copy()
        places = rows["place"][rows["place"] >= 0]
        start = int(places[0]) if len(places) else 0
        rows["client"] -= first
        rows["place"][rows["place"] >= 0] -= start
        return Queues(
            names=self.names[first:last],
            clients=self.clients[first:last],
            rows=rows,
            copied=self.copied.slice(start, len(places)),
            is_moved=self.is_moved[start : start + len(places)],
        )

    def with_moved(self, numbers: Mapping[str, Sequence[int]], content: pa.RecordBatch) -> Queues:
        """Return the queues with the messages that were moved into them.

        :param numbers: client id -> numbers of its messages in ``content``.
        """
        wanted = [(client, at) for client, name in enumerate(self.names) for at in numbers.get(name, ())]
        if not wanted:
            return self
        moved = content.take(pa.array([at for _, at in wanted]))
        rows = np.zeros(len(wanted), _ROW)
        rows["client"] = [client for client, _ in wanted]
        rows["serial"] = _numbers(moved.column("serial_number"), null=-1)
        rows["fate"] = _COPIED
        rows["place"] = np.arange(len(self.copied), len(self.copied) + len(wanted))
        return Queues(
            names=self.names,
            clients=self.clients,
            rows=np.concatenate([self.rows, rows]),
            copied=pa.concat_batches([self.copied, moved]),
            is_moved=np.append(self.is_moved, np.ones(len(wanted), np.bool_)),
        )


def queues_of(batches: Iterator[pa.RecordBatch], replayed: Replayed) -> Iterator[Queues]:
    """Put rows together so that each client's queue is whole.

    :param batches: see :func:`queuekeeper.migration.offline.fates.decided`.
    """
    mended = {place: at for at, place in enumerate(zip(*_places(replayed.mended), strict=True))}
    moved: dict[str, list[int]] = {}
    for at, (name, _) in enumerate(zip(*_places(replayed.moved), strict=True)):
        moved.setdefault(name, []).append(at)
    rest: Queues | None = None
    for batch in batches:
        if batch.num_rows:
            some = Queues.of(batch, mended, replayed.mended)
            some = some if rest is None else rest.followed_by(some)
            last = len(some.names) - 1
            if last:
                yield some.cut(0, last).with_moved(moved, replayed.moved)
            rest = some.cut(last, last + 1)
    if rest is not None:
        yield rest.with_moved(moved, replayed.moved)


def _places(messages: pa.RecordBatch) -> tuple[list[str], list[int]]:
    return messages.column("client_id").to_pylist(), messages.column("serial_number").to_pylist()


def _numbers(values: pa.Array, *, null: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = pc.fill_null(pc.cast(values, pa.int64()), null).to_numpy(zero_copy_only=False).copy()
    return found
