"""Takes back what a cleanup has changed, from the undo files of its shards."""

from __future__ import annotations

from pathlib import Path

from redis.exceptions import ResponseError

from queuekeeper import lua
from queuekeeper.maintenance.cleanup_model import KIND, UndoReport
from queuekeeper.maintenance.undo_file import read_undo_file, undo_paths
from queuekeeper.redis_client import RedisClient, address_of, redis_errors


def undo_cleanup(client: RedisClient, *, run_id: str, directory: Path, dry_run: bool) -> UndoReport:
    """Put dead references back and take expiries off again. Messages that were removed do not come back.

    A reference that is there by now belongs to a newer message, an expiry that is another by now to somebody else, and
    a set that is of another type by now to another program: all are left as they are.

    :param directory: folder of the undo files.
    :param dry_run: only count what the files hold.
    :raises UsageError: when there is no file of this run on this machine.
    """
    paths = undo_paths(directory, run_id=run_id)
    caller, script = lua.ScriptCaller(client), lua.load("maintenance/persist_keys")
    references = expiries = wrong_type_keys = 0
    for path in paths:
        _, lines = read_undo_file(path, kind=KIND)
        for line in lines:
            if "references" in line:
                members = {raw_of(member): score for member, score in line["references"]}
                if dry_run:
                    references += len(members)
                    continue
                pairs = (each for pair in members.items() for each in pair[::-1])
                with redis_errors(address_of(client)):
                    try:
                        references += int(
                            client.execute_command(  # type: ignore[no-untyped-call]
                                "ZADD", raw_of(line["messages"]), "NX", *pairs
                            )
                        )
                    except ResponseError as error:
                        if not str(error).startswith("WRONGTYPE"):
                            raise
                        wrong_type_keys += 1
            else:
                keys = [raw_of(name) for name, _ in line["expiries"]]
                instants = [str(expires_at_ms) for _, expires_at_ms in line["expiries"]]
                expiries += len(keys) if dry_run else int(caller.call(script, keys, instants))
    return UndoReport(
        maintenance_run_id=run_id,
        dry_run=dry_run,
        files=len(paths),
        references=references,
        expiries=expiries,
        wrong_type_keys=wrong_type_keys,
    )


def name_of(raw: bytes) -> str:
    """Return the name of a key as JSON can hold it; :func:`raw_of` gives the bytes back."""
    return raw.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """Return the bytes that :func:`name_of` was given."""
    return name.encode("utf-8", "surrogateescape")
