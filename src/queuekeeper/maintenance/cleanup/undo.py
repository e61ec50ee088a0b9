"""Takes back what a cleanup has changed, from the undo files of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from queuekeeper import lua
from queuekeeper.jobs.undo import read_undo_file
from queuekeeper.jobs.writer import Writer
from queuekeeper.keyspace import raw_session_keys
from queuekeeper.lua import scripts
from queuekeeper.maintenance.cleanup.model import KIND, UndoReport
from queuekeeper.redis_client import RedisClient


def undo_cleanup(client: RedisClient, *, run_id: str, files: Sequence[Path], dry_run: bool) -> UndoReport:
    """Put dead references back and take expiries off again. Messages that were removed do not come back.

    A reference that is there by now belongs to a newer message, an expiry that is another by now to somebody else, and
    a set that is of another type by now to another program: all are left as they are, and counted.

    :param files: undo files of the run.
    :param dry_run: the scripts decide all the same, and only count.
    :raises UsageError: when one of them is none of a cleanup.
    """
    writer = Writer(client, counts_only=dry_run)
    references = expiries = wrong_type_keys = noted = 0
    # A cleanup that was killed may have noted a change twice.
    known: set[bytes] = set()

    def is_new(*change: bytes) -> bool:
        digest = blake2b(b"\0".join(change), digest_size=16).digest()
        before = len(known)
        known.add(digest)
        return len(known) > before

    for path in files:
        _, lines = read_undo_file(path, kind=KIND)
        for line in lines:
            if "references" in line:
                messages = raw_of(line["messages"])
                members = {raw_of(member): score for member, score in line["references"]}
                members = {member: score for member, score in members.items() if is_new(messages, member)}
                noted += len(members)
                pairs: list[lua.Value] = [each for pair in members.items() for each in (repr(pair[1]), pair[0])]
                session = raw_session_keys(messages.removesuffix(b"_messages"))
                call = scripts.maintenance.restore_references(session, references=pairs)
                restored = int(writer.execute([call]).or_raise()[0]) if pairs else 0
                wrong_type_keys += restored < 0
                references += max(0, restored)
            else:
                fresh = [(raw_of(name), str(at_ms)) for name, at_ms in line["expiries"]]
                fresh = [(key, at_ms) for key, at_ms in fresh if is_new(key, at_ms.encode())]
                noted += len(fresh)
                if fresh:
                    keys, instants = zip(*fresh, strict=True)
                    call = scripts.maintenance.persist_keys(keys=keys, instants_ms=instants)
                    expiries += int(writer.execute([call]).or_raise()[0])
    return UndoReport(
        maintenance_run_id=run_id,
        dry_run=dry_run,
        files=len(files),
        noted=noted,
        references=references,
        expiries=expiries,
        left=noted - references - expiries,
        wrong_type_keys=wrong_type_keys,
    )


def name_of(raw: bytes) -> str:
    """Return the name of a key as JSON can hold it; :func:`raw_of` gives the bytes back."""
    return raw.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """Return the bytes that :func:`name_of` was given."""
    return name.encode("utf-8", "surrogateescape")
