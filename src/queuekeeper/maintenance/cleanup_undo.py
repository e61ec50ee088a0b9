"""Takes back what a cleanup has changed, from the undo files of its shards, and removes files that are old."""

from __future__ import annotations

import re
from pathlib import Path

from redis.exceptions import ResponseError

from queuekeeper import lua
from queuekeeper.errors import UsageError
from queuekeeper.maintenance.cleanup_model import KIND, UndoReport
from queuekeeper.maintenance.undo_file import read_undo_file
from queuekeeper.redis_client import RedisClient, address_of, redis_errors

_SUFFIX = ".undo.jsonl"


def undo_path(directory: Path, *, run_id: str, shard: str) -> Path:
    """Return the undo file of one shard of a run.

    :param shard: any text.
    """
    return directory / f"{run_id}.{re.sub(r'[^A-Za-z0-9.-]+', '_', shard)}{_SUFFIX}"


def undo_cleanup(client: RedisClient, *, run_id: str, directory: Path, dry_run: bool) -> UndoReport:
    """Put dead references back and take expiries off again. Messages that were removed do not come back.

    A reference that is there by now belongs to a newer message, an expiry that is another by now to somebody else, and
    a set that is of another type by now to another program: all are left as they are.

    :param directory: folder of the undo files.
    :param dry_run: only count what the files hold.
    :raises UsageError: when there is no file of this run on this machine.
    """
    paths = sorted(directory.glob(f"{run_id}.*{_SUFFIX}"))
    if not paths:
        raise UsageError(
            f"run {run_id} has no undo file in {directory}: it changed nothing, ran on another machine, or its file "
            "was removed after its retention"
        )
    caller, script = lua.ScriptCaller(client), lua.load("maintenance/persist_keys")
    references = expiries = wrong_type_keys = 0
    for path in paths:
        header, lines = read_undo_file(path)
        if header.get("kind") != KIND:
            raise UsageError(f"{path} is the undo file of a {header.get('kind')}, not of a cleanup")
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


def remove_old_undo_files(directory: Path, *, days: int, now_ms: int) -> int:
    """Remove the files of cleanups that nobody has written to for so long, and return how many."""
    removed = 0
    for path in directory.glob(f"*{_SUFFIX}"):
        if path.stat().st_mtime * 1000 < now_ms - days * 86_400_000 and _is_of_a_cleanup(path):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _is_of_a_cleanup(path: Path) -> bool:
    """Tell whether a file is ours to remove: remedies keep theirs in the same folder."""
    try:
        header, _ = read_undo_file(path)
    except UsageError:
        return False
    return header.get("kind") == KIND


def name_of(raw: bytes) -> str:
    """Return the name of a key as JSON can hold it; :func:`raw_of` gives the bytes back."""
    return raw.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """Return the bytes that :func:`name_of` was given."""
    return name.encode("utf-8", "surrogateescape")
