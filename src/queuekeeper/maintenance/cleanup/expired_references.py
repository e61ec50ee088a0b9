"""Removes expired data from sessions in Redis while brokers use them: SCAN finds candidates, scripts decide again.

What is removed, and what only gets an expiry:

- references whose message is gone, and messages that no reference names and that are old enough, are removed;
- messages of packed sessions are removed when their lives are over;
- messages without expiry get the expiry that their own fields give;
- packet ids and fields of sessions in which no message waits get an expiry, which the next message removes again, and
  so do packed sessions that were imported.

A live message with a reference is never removed: the scripts, which declare all their keys, decide again when they
write. Other faults are counted and left to the remedies.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from queuekeeper.errors import NotAllowed
from queuekeeper.jobs.keys import KeyPages
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.model import Plan, Step, Words, World
from queuekeeper.jobs.shares import check_rights, check_servers
from queuekeeper.keyspace import session_scan_pattern
from queuekeeper.maintenance.cleanup.model import (
    KIND,
    CleanupCounts,
    CleanupFound,
    CleanupParameters,
    CrowdedQueue,
    UndoReport,
)
from queuekeeper.maintenance.cleanup.sweep import Sweep
from queuekeeper.maintenance.cleanup.undo import undo_cleanup
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.figures import number
from queuekeeper.wording import number_of

_READING = (
    "exists", "get", "hget", "hmget", "memory|usage", "mget", "pexpiretime", "type", "zcard", "zmscore", "zrange",
    "zscore",
)  # fmt: skip
_WRITING = ("hincrby", "hset", "pexpireat", "unlink", "zrem")
# A cleanup adds no message, so that its user need not have them.
_PUTTING_BACK = ("persist", "zadd")
# Asked for only where sessions are packed.
_OF_PACKED = ("hdel", "hlen", "hscan")
_GROUNDWORK = (
    "ping", "info", "time", "scan", "evalsha", "script|load", "command", "cluster|nodes", "cluster|slots",
    "client|setname",
)  # fmt: skip


CleanupPlan = Plan[CleanupParameters, CleanupCounts, CleanupFound]


class Cleanup(KeyPages[CleanupParameters, CleanupCounts, CleanupFound]):
    """Remove expired messages and orphaned references from sessions."""

    kind = KIND
    asks = True
    undoes = True
    words = Words(
        noun="cleanup",
        title="Cleanup",
        about="expired references",
        command="cleanup plan",
        go_on="cleanup apply {run_id}",
        planned="{count:change} to be made to keys and references, nothing was written",
        left="done; {count:,} more to clean since then",
        clean="clean: a second look finds nothing to do",
        footer="Clients are named by a keyed hash.",
    )

    def __init__(self, world: World[CleanupParameters]) -> None:
        super().__init__(world)
        self._sweep = Sweep(world)

    @classmethod
    def check(cls, client: RedisClient, parameters: CleanupParameters, *, writing: bool) -> None:
        """Check the servers and the user's rights."""
        prefix = parameters.key_prefix
        with _named_rules(prefix):
            check_servers(client)
            commands = _READING + (_WRITING if writing else ())
            check_rights(client, key_prefix=prefix, commands=commands, rules=acl_rules(prefix))

    def pattern(self) -> str:
        """Return the pattern of all keys of sessions."""
        return session_scan_pattern(self.world.parameters.key_prefix)

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield pages of keys of a share's sessions."""
        with _named_rules(self.world.parameters.key_prefix):
            yield from super().find(share, after)

    def apply(self, step: Step) -> CleanupCounts:
        """Clean a page of keys."""
        with _named_rules(self.world.parameters.key_prefix):
            self.begun = counts = CleanupCounts()
            self._sweep.page(step.work, counts)
        return counts

    def found(self) -> CleanupFound:
        """Return the queues with most dead references."""
        prefix = self.world.parameters
        return CleanupFound(
            worst=tuple(
                CrowdedQueue(
                    client_hash=self.world.name_client(_client_id(stem, prefix)), references=references, dead=dead
                )
                for dead, references, stem in self._sweep.worst
            )
        )

    def undo(self, run_id: str, files: Sequence[Path]) -> UndoReport:
        """Put dead references back and remove expiries again; removed messages do not come back."""
        prefix = self.world.parameters.key_prefix
        rules = " ".join([acl_rules(prefix), *(f"+{command}" for command in _PUTTING_BACK)])
        commands = _READING + _WRITING + _PUTTING_BACK
        check_rights(self.world.client, key_prefix=prefix, commands=commands, rules=rules)
        return undo_cleanup(self.world, run_id=run_id, files=files)

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def question(cls, run_id: str, plan: CleanupPlan) -> str:
        """Return the question that a person is asked before anything changes."""
        return (
            f"References and messages to be removed: {plan.counts.removed:,}; keys to be given an expiry: "
            f"{plan.counts.repaired:,}. Clean?"
        )

    @classmethod
    def undo_words(cls, counted: UndoReport) -> str:
        """Return a sentence that says what an undo would do."""
        return (
            f"{number_of(counted.references, 'dead reference')} will be put back and "
            f"{number_of(counted.expiries, 'expiry')} removed, where nobody has written since."
        )

    @classmethod
    def plan_rows(cls, plan: CleanupPlan) -> list[tuple[str, str]]:
        """Return the plan as pairs of name and text, without client ids, for the person who approves it."""
        worst = ", ".join(
            f"{each.client_hash or 'a queue'}: {number(each.dead)} of {number(each.references)} dead"
            for each in plan.found.worst[:3]
        )
        return [
            *super().plan_rows(plan),
            ("Worst queues", worst or "none"),
            ("Live messages that may be changed", "0: every script decides again when it writes"),
            (
                "Way back",
                "dead references and expiries can be restored from the undo file; removed messages cannot",
            ),
        ]

    @classmethod
    def tables(cls, plan: CleanupPlan) -> list[Table]:
        """Return the queues with most dead references."""
        rows = tuple((one.client_hash, number(one.references), number(one.dead)) for one in plan.found.worst)
        return [
            Table(
                heading="Queues with most dead references",
                heads=("Client", "References", "Dead"),
                rows=rows,
                empty="No queue has dead references.",
            )
        ]


def acl_rules(key_prefix: str) -> str:
    """Return the command that gives a user the rights of a cleanup, without any command that adds a message."""
    keys = (f"~{key_prefix}{{*}}_{kind}" for kind in ("messages*", "last_packet_id", "session", "packed"))
    commands = (*_GROUNDWORK, *_READING, *_WRITING, *_OF_PACKED)
    return " ".join(["ACL SETUSER <user>", *keys, *(f"+{command}" for command in commands)])


# --- inside ----------------------------------------------------------------------------------------------------------


@contextmanager
def _named_rules(key_prefix: str) -> Iterator[None]:
    """Add all rules that a cleanup needs to an error about a missing right."""
    try:
        yield
    except NotAllowed as error:
        raise NotAllowed(f"{error}. All that a cleanup needs: {acl_rules(key_prefix)}") from error


def _client_id(stem: bytes, parameters: CleanupParameters) -> str:
    return stem[len(parameters.key_prefix.encode()) + 1 : -1].decode("utf-8", "surrogateescape")
