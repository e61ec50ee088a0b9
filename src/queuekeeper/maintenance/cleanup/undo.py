"""Undoes the changes of a cleanup from the undo files of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from queuekeeper import lua
from queuekeeper.jobs.model import World
from queuekeeper.jobs.undo import read_undo_file
from queuekeeper.keyspace import raw_session_keys
from queuekeeper.lua import scripts
from queuekeeper.maintenance.cleanup.model import KIND, CleanupParameters, UndoReport

REFERENCES_PER_CALL = 1_000
"""References of a set, or expiries of keys, in one call and in one line of an undo file."""

_NEVER = -1


def undo_cleanup(world: World[CleanupParameters], *, run_id: str, files: Sequence[Path]) -> UndoReport:
    """Put dead references back and give keys their old expiries, mostly none. Removed messages do not come back.

    Three things are left as they are, and counted: a reference that exists again, since it belongs to a newer message;
    an expiry that somebody has changed since; a key that another program has given another type.

    :param world: world of the undo; in a dry run the scripts decide in the same way and only count.
    :param files: undo files of the run.
    :raises UsageError: when one of them is not an undo file of a cleanup.
    """
    references = expiries = noted = 0
    wrong_type_keys: set[bytes] = set()
    # A cleanup that was killed may have noted a change twice.
    known: set[bytes] = set()

    def is_new(*change: bytes) -> bool:
        digest = blake2b(b"\0".join(change), digest_size=16).digest()
        before = len(known)
        known.add(digest)
        return len(known) > before

    def ask(call: lua.Call) -> int:
        world.pace(len(call.keys))
        return int(world.writer.execute([call]).or_raise()[0])

    for path in files:
        _, lines = read_undo_file(path, kind=KIND)
        for line in lines:
            if "references" in line:
                messages = raw_of(line["messages"])
                members = {raw_of(member): score for member, score in line["references"]}
                members = {member: score for member, score in members.items() if is_new(messages, member)}
                noted += len(members)
                session = raw_session_keys(messages.removesuffix(b"_messages"))
                for batch in world.batches(members.items(), REFERENCES_PER_CALL):
                    pairs: list[lua.Value] = [each for member, score in batch for each in (repr(score), member)]
                    restored = ask(scripts.maintenance.restore_references(session, references=pairs))
                    references += max(0, restored)
                    if restored < 0:
                        wrong_type_keys.add(messages)
            else:
                # Nearly no key had an expiry before, and where it had none, none is noted.
                fresh = [(raw_of(name), at_ms, *(had or (_NEVER,))) for name, at_ms, *had in line["expiries"]]
                fresh = [each for each in fresh if is_new(each[0], str(each[1]).encode())]
                noted += len(fresh)
                for some in world.batches(fresh, REFERENCES_PER_CALL):
                    keys = [key for key, _, _ in some]
                    instants: list[lua.Value] = [at_ms for _, *both in some for at_ms in both]
                    expiries += ask(scripts.maintenance.persist_keys(keys=keys, instants_ms=instants))
    return UndoReport(
        maintenance_run_id=run_id,
        dry_run=world.counts_only,
        files=len(files),
        noted=noted,
        references=references,
        expiries=expiries,
        left=noted - references - expiries,
        wrong_type_keys=len(wrong_type_keys),
    )


def name_of(raw: bytes) -> str:
    """Return a key's name as text for JSON; :func:`raw_of` returns the bytes again."""
    return raw.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """Return the bytes of a name that :func:`name_of` returned."""
    return name.encode("utf-8", "surrogateescape")
