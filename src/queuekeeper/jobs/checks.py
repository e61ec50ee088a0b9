"""The catalogue of checks on queues, partitions and the event broker, with the meaning and the remedy of each.

A check's number never changes, since reports, known issues and trends name the check by it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from queuekeeper.errors import UsageError
from queuekeeper.sessions.pages import Layout


class Severity(StrEnum):
    """Severity of a failed expectation."""

    CRITICAL = "critical"  # the data is wrong: stop
    WARNING = "warning"  # somebody should look
    INFO = "info"  # good to know

    @property
    def rank(self) -> int:
        """Number by which severities are ordered; higher is worse."""
        return list(reversed(Severity)).index(self)


class Priority(StrEnum):
    """How urgent a finding is, in finer grades than the severity of Great Expectations."""

    P0 = "P0"  # messages are being lost, or come in the wrong order
    P1 = "P1"  # loss is likely
    P2 = "P2"  # memory or work is wasted
    P3 = "P3"  # good to know

    @property
    def severity(self) -> Severity:
        """Severity of this priority in a suite."""
        known = {Priority.P0: Severity.CRITICAL, Priority.P1: Severity.WARNING}
        return known.get(self, Severity.INFO)

    @classmethod
    def of(cls, severity: Severity) -> Priority:
        """Return the most urgent priority of a severity."""
        return next(each for each in cls if each.severity is severity)


class Area(StrEnum):
    """Subject of a check."""

    SESSIONS = "sessions"
    SERVERS = "servers"
    MIGRATION = "migration"
    COMPACTED = "compacted"
    FANOUT = "fanout"
    EVENTS = "events"
    PARTITIONS = "partitions"


class Store(StrEnum):
    """Store that a check reads."""

    REDIS = "redis"
    POSTGRES = "postgres"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A DAG that mends what a check found.

    :param conf: fields of the DAG's form; the run that found the fault fills in a value in braces.
    :param command: command of ``queuekeeper`` that does the same, without its options.
    :param options: options of the command, each with the field of the form that holds its value.
    :param connections: fields of the form that name connections.
    """

    dag_id: str
    command: str
    options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)
    connections: tuple[str, ...] = ("postgres_conn_id", "redis_conn_id")

    @property
    def name(self) -> str:
        """Name of the remedy, or else of the DAG."""
        return str(self.conf.get("remedy", self.dag_id))

    def filled(self, **values: Any) -> dict[str, Any]:
        """Return the form for one run.

        :param values: name in braces -> value to fill in; a field without a value keeps its default, and is left out.
        """
        filled = {}
        for name, value in self.conf.items():
            if not (isinstance(value, str) and value.startswith("{")):
                filled[name] = value
            elif (given := values.get(value[1:-1])) is not None:
                filled[name] = given
        return filled

    def command_line(self, form: Mapping[str, Any], *, shell_prefix: str = "") -> str:
        """Return the command that plans, and then begins, to mend a finding.

        A word in braces is taken from the form.

        :param form: the filled-in form; a finding of an older release may lack fields.
        :param shell_prefix: key prefix that the shell's environment sets for commands.
        """
        words = [
            "queuekeeper",
            *(str(form.get(word[1:-1], "")) if word[0] == "{" else word for word in self.command.split()),
        ]
        for option, name in self.options.items():
            if name in form:
                words += [option, str(form[name])]
        if form.get("dry_run") and self.command.split()[-1] != "plan":
            words.append("--dry-run")
        if "key_prefix" in self.conf:
            words += _prefix_option(form, shell_prefix)
        return shlex.join(words)


def _prefix_option(form: Mapping[str, Any], shell_prefix: str) -> list[str]:
    """Return the option that names the key prefix of a form; an empty one only where the shell sets another one."""
    prefix = form.get("key_prefix") or ""
    return ["--key-prefix", prefix] if prefix or shell_prefix else []


def _repair(remedy: str) -> Remedy:
    return Remedy(
        dag_id="session_repair",
        command="repair {remedy}",
        options={"--quality-run": "quality_run_id", "--cohorts": "cohorts"},
        conf={
            "remedy": remedy,
            "quality_run_id": "{quality_run_id}",
            "cohorts": "{cohorts}",
            "key_prefix": "{key_prefix}",
            "dry_run": True,
        },
    )


QUARANTINE = _repair("quarantine_messages")
REKEY = _repair("rekey_clients")
TTL = _repair("repair_ttl")

CLEANUP = Remedy(
    dag_id="expired_reference_cleanup",
    command="cleanup plan",
    options={"--limit": "limit", "--default-ttl-s": "default_ttl_s"},
    conf={
        "limit": "{limit}",
        "default_ttl_s": "{default_ttl_s}",
        "key_prefix": "{key_prefix}",
        "dry_run": True,
    },
)


PARTITIONS = Remedy(
    dag_id="partition_maintenance",
    command="partitions plan",
    conf={"dry_run": True},
    connections=("postgres_conn_id",),
)
UPKEEP = Remedy(
    dag_id="event_upkeep",
    command="events mend reenqueue_events",
    conf={"dry_run": True},
    connections=("postgres_conn_id",),
)

COLLECTION = Remedy(
    dag_id="compacted_queue_gc", command="compacted gc", conf={"key_prefix": "{key_prefix}", "dry_run": True}
)
FANOUT = Remedy(
    dag_id="fanout_repair", command="fanout repair-all", conf={"key_prefix": "{key_prefix}", "dry_run": True}
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One way in which a queue can be wrong.

    :param id: ``Q`` and a number.
    :param priority: priority of the worst finding.
    :param milder: priority of the milder finding, where the check has one.
    :param computation: what must hold, in a sentence.
    :param cost: what the check costs.
    :param remedy: remedy of the worst finding in Redis; none where a person has to look.
    :param milder_remedy: remedy of the milder finding.
    :param advice: what to do, in a sentence.
    :param command: command of ``queuekeeper`` that mends the finding where no DAG does; empty for none. It can be run
        as it is; where the check reads Redis, it takes ``--key-prefix``.
    :param command_of_client: command that mends the queue of one client instead, where the evidence names a client.
    :param senseless: layout of sessions in Redis for which the check makes no sense -> why.
    """

    id: str
    title: str
    stores: tuple[Store, ...]
    priority: Priority
    computation: str
    cost: str
    advice: str
    area: Area = Area.SESSIONS
    milder: Priority | None = None
    remedy: Remedy | None = None
    milder_remedy: Remedy | None = None
    command: str = ""
    command_of_client: str = ""
    senseless: Mapping[Layout, str] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """Severity of the worst finding."""
        return self.priority.severity

    def priority_of(self, severity: Severity) -> Priority:
        """Return the priority of a finding of this severity."""
        if self.milder is not None and self.milder.severity is severity:
            return self.milder
        return self.priority

    def remedy_of(self, severity: Severity) -> Remedy | None:
        """Return the remedy of a finding of this severity."""
        return self.milder_remedy if self.priority_of(severity) is self.milder else self.remedy

    def form_of(self, **values: Any) -> dict[str, Any]:
        """Return what the command of a check without a DAG needs to know of one run.

        :param values: as :meth:`Remedy.filled` takes them.
        """
        return {"key_prefix": prefix} if self._is_prefixed and (prefix := values.get("key_prefix")) else {}

    def command_line(self, form: Mapping[str, Any], *, client_id: str | None, shell_prefix: str = "") -> str:
        """Return the command that mends a finding where no DAG does.

        :param form: what :meth:`form_of` has returned; of a finding of an older release, nothing.
        :param client_id: client of the queue, where the evidence names it.
        :param shell_prefix: key prefix that the shell's environment sets for commands.
        """
        words = self.command.split()
        if self.command_of_client and client_id is not None:
            words = [word.format(client_id=client_id) for word in self.command_of_client.split()]
        return shlex.join(["queuekeeper", *words, *(_prefix_option(form, shell_prefix) if self._is_prefixed else ())])

    @property
    def _is_prefixed(self) -> bool:
        return bool(self.command) and Store.REDIS in self.stores


_PAGE = "one read-only script per queue and page of 500 references"
_CONTENTS = "decodes each message inside the server; numbers leave it, contents do not"
_ROWS = "one pass over the rows of a cohort"
_PROFILE = "none beside the profile"
_JOIN = "one join of two profiles"
_CATALOGUE = "catalogue only"
_BOTH = (Store.REDIS, Store.POSTGRES)
_REDIS = (Store.REDIS,)
_POSTGRES = (Store.POSTGRES,)

_ALL = (
    Check(id="Q1", title="Order", stores=_REDIS, priority=Priority.P0,
        computation="Scores of a set increase strictly and are whole numbers up to 2^53; two that tie have no order.",
        cost=_PAGE, remedy=_repair("reorder_from_source"),
        advice="Rebuild the set from the source's serials; the run asks first.",
        senseless={Layout.PACKED: "a serial is the name of a field, so that none is there twice; Q38 says which are "
            "out of place"}),
    Check(id="Q2", title="Serials", stores=_POSTGRES, priority=Priority.P0,
        computation="No two rows of a client have the same serial; the primary key holds it unless a restore lost it.",
        cost=_ROWS, advice="Remove the rows that are there twice, then restore the primary key."),
    Check(id="Q3", title="Packet id step", stores=_BOTH, priority=Priority.P1,
        computation="From one message to the next the packet id grows as the serial does, modulo 65,535.",
        cost=_PAGE, advice="Look at the queue: renumber only messages that were never sent."),
    Check(id="Q4", title="Packet id range", stores=_BOTH, priority=Priority.P1,
        computation="Each packet id is there and in 1 to 65,535.",
        cost=_ROWS, remedy=QUARANTINE,
        advice="Put the messages into quarantine; replay gives them a free packet id."),
    Check(id="Q5", title="Duplicate packet id", stores=_BOTH, priority=Priority.P0,
        computation="No two waiting messages of a client have the same packet id: an acknowledgement could remove the "
        "wrong one, and in TBMQ's layout one would overwrite the other.",
        cost=_ROWS, remedy=QUARANTINE,
        advice="Put all but the newest into quarantine; a migration does so by itself.",
        senseless={Layout.TBMQ: "a packet id is part of a key's name, so that none is there twice"}),
    Check(id="Q6", title="Serial gaps", stores=_BOTH, priority=Priority.P3,
        computation="Each serial from the lowest to the highest has a message; the missing ones were acknowledged "
        "out of order, have expired, or were lost.",
        cost=_PROFILE, advice="Watch the trend; a jump without deliveries is a loss."),
    Check(id="Q7", title="Size limit", stores=_BOTH, priority=Priority.P1, milder=Priority.P3,
        computation="Live messages of a queue do not exceed the broker's limit; PostgreSQL is trimmed once a night.",
        cost="one ZCARD per queue", remedy=_repair("trim_dead_first"),
        advice="Trim dead references first, then the oldest messages."),
    Check(id="Q8", title="Payload size", stores=_BOTH, priority=Priority.P2,
        computation="Each payload is at most as large as the broker accepts.",
        cost="one STRLEN per message, no content is read",
        advice="Ask the publisher; a broker with a smaller limit cannot send such a message."),
    Check(id="Q9", title="Reference without payload", stores=_REDIS, priority=Priority.P1, milder=Priority.P2,
        computation="Each reference names a payload that is there; worse when dead ones fill a queue to nine tenths, "
        "because the next trim then removes live messages. A packed session keeps no expired message.",
        cost=_PAGE, remedy=CLEANUP, milder_remedy=CLEANUP, advice="Remove the dead references."),
    Check(id="Q10", title="Payload without reference", stores=_REDIS, priority=Priority.P2,
        computation="Each payload key is a member of its client's set, looked up twice so that a write in between is "
        "no finding.",
        cost="one look-up per payload key", remedy=_repair("unlink_orphans"),
        advice="Unlink the orphans: nobody will ever send them.",
        senseless={Layout.PACKED: "a record is a field of its session, and needs no reference"}),
    Check(id="Q11", title="Last packet id", stores=_BOTH, priority=Priority.P0, milder=Priority.P1,
        computation="Where messages wait there is a last packet id, the newest message's is not ahead of it, and no "
        "live message has the next one: the next publish would overwrite a waiting message.",
        cost="one GET per queue", remedy=_repair("repair_counter"), advice="Move the counter forward, never back."),
    Check(id="Q12", title="Last packet id, source against target", stores=_BOTH, priority=Priority.P0,
        computation="The last packet id of each session is the same in PostgreSQL and in Redis, also without messages. "
        "If PostgreSQL's breaks Q11, Redis has the one that a migration puts in its place: moved forward, past packet "
        "ids in use.",
        cost=_JOIN,
        advice="Undo the import of these sessions and copy them again, before the broker starts."),
    Check(id="Q13", title="Payload without TTL", stores=_REDIS, priority=Priority.P2,
        computation="Each payload key expires; those rewritten without KEEPTTL never do.",
        cost=_PAGE, remedy=TTL, advice="Set the expiry again from each message's own time.",
        senseless={Layout.PACKED: "each record says when it ends, or cannot be read, which is Q17"}),
    Check(id="Q14", title="TTL against expiry", stores=_REDIS, priority=Priority.P1,
        computation="No payload key outlives the message's own expiry, counted from its time, or the default expiry.",
        cost=_CONTENTS, remedy=TTL,
        advice="Make the expiry earlier: expired commands must not reach a device."),
    Check(id="Q15", title="Expired rows", stores=_POSTGRES, priority=Priority.P2,
        computation="No row is still there after time plus the smaller of expiry and default expiry.",
        cost=_ROWS, advice="See that the broker's clean-up runs: it removes them once a night."),
    Check(id="Q16", title="Quality of service", stores=_BOTH, priority=Priority.P1, milder=Priority.P3,
        computation="Each message's quality of service is 0, 1 or 2; 0 need not have been stored.",
        cost=_CONTENTS, remedy=QUARANTINE, advice="Put the messages into quarantine."),
    Check(id="Q17", title="Packet type", stores=_BOTH, priority=Priority.P1,
        computation="Each message is a PUBLISH or a PUBREL, and a PUBREL has quality of service 2.",
        cost=_CONTENTS, remedy=QUARANTINE,
        advice="Put the messages into quarantine; look which release of the broker wrote them."),
    Check(id="Q18", title="Hash tag", stores=_BOTH, priority=Priority.P0, milder=Priority.P2,
        computation="The client id is not empty, does not begin with a closing brace (its keys lie in several slots, "
        "which a cluster cannot serve), shares its hash tag with no other client, and no earlier build has stored "
        "messages of an encoded id under it.",
        cost=_PROFILE, remedy=REKEY, milder_remedy=REKEY,
        advice="Move what an earlier build stored under an encoded id; on a cluster, connect the device under an id "
        "that does not begin with a brace."),
    Check(id="Q19", title="Key type and slot", stores=_REDIS, priority=Priority.P0,
        computation="Each key of a client has the Redis type it should have, and its references name its own keys.",
        cost="one TYPE per key", remedy=QUARANTINE,
        advice="Put what is not the client's own into quarantine; look who wrote the wrong type."),
    Check(id="Q20", title="Odd client id", stores=_BOTH, priority=Priority.P2,
        computation="The client id holds no glob, control or HTML characters, on which tools stumble.",
        cost=_PROFILE, advice="Escape the id in scripts that use MATCH; choose plainer ids."),
    Check(id="Q21", title="Duplicate message", stores=_BOTH, priority=Priority.P3,
        computation="No two messages of a client have the same topic, time and payload.",
        cost=_CONTENTS, remedy=_repair("remove_duplicates"), advice="See whether a publish was retried."),
    Check(id="Q22", title="Message without session", stores=_BOTH, priority=Priority.P1, milder=Priority.P3,
        computation="Messages wait only for clients that have a session, and sessions without messages leave no keys "
        "behind that never expire.",
        cost="one anti-join", milder_remedy=CLEANUP,
        advice="Ask whose messages these are; the clean-up removes keys of sessions that do not return."),
    Check(id="Q23", title="Compaction", stores=_REDIS, priority=Priority.P1, milder=Priority.P2, area=Area.COMPACTED,
        computation="Each key has one value with one sequence number, and there is nothing else; no number is sent "
        "before it is given out, or acknowledged before it is sent; the cursor never moves back without a rewind.",
        cost="each key of the queue once, by pages of 200",
        advice="Repair each queue: `queuekeeper quality run --store compacted --show-client-ids` names their clients, "
        "and `queuekeeper compacted repair CLIENT` takes one.",
        command="quality run --store compacted --show-client-ids",
        command_of_client="compacted repair {client_id} --dry-run"),
    Check(id="Q24", title="Retention", stores=_REDIS, priority=Priority.P2, area=Area.COMPACTED,
        computation="No message is kept for longer than retention and interval, the collector knows of each queue and "
        "has finished lately.",
        cost="one page of 200 per queue, as a rule", remedy=COLLECTION,
        advice="Run the collector and see why it stopped; `queuekeeper compacted gc-rebuild` registers queues that it "
        "does not know of."),
    Check(id="Q25", title="List and hash", stores=_REDIS, priority=Priority.P0, milder=Priority.P2, area=Area.FANOUT,
        computation="Each id that a consumer has is of a message that is there, each message is owed as many "
        "acknowledgements as consumers have it, and each consumer for which messages wait was seen lately.",
        cost="each id of the queue a few times, by pages of 1,000", remedy=FANOUT, milder_remedy=FANOUT,
        advice="Find out who else writes to these keys, or whether a server lost writes; the repair says first what it "
        "would do. A consumer that died is removed by a run that is asked to."),
    Check(id="Q26", title="Lock without TTL", stores=_REDIS, priority=Priority.P1, area=Area.FANOUT,
        computation="Each lease has a token and ends within a day, and one that has run out is taken back.",
        cost="one look per consumer", remedy=FANOUT,
        advice="The repair takes back what has run out or cannot be ended; let the one that is still held end, or "
        "unregister its consumer."),
    Check(id="Q27", title="Partition coverage", stores=_POSTGRES, priority=Priority.P0, milder=Priority.P1,
        area=Area.PARTITIONS,
        computation="Partitions reach an interval beyond the present, without gaps, and less than a step short of the "
        "policy.",
        cost=_CATALOGUE, remedy=PARTITIONS, milder_remedy=PARTITIONS,
        advice="Make the missing partitions, and see why maintenance did not."),
    Check(id="Q28", title="Default partition", stores=_POSTGRES, priority=Priority.P1, area=Area.PARTITIONS,
        computation="The default partition is empty, and so is the one behind the head-room.",
        cost="one row per such partition", remedy=PARTITIONS,
        advice="Move the rows to partitions of their own."),
    Check(id="Q29", title="Pending detach", stores=_POSTGRES, priority=Priority.P1, area=Area.PARTITIONS,
        computation="No partition waits for the end of its detachment, unless a session works on it.",
        cost=_CATALOGUE, remedy=PARTITIONS, advice="Finish the detachment."),
    Check(id="Q30", title="Retention against cursors", stores=_POSTGRES, priority=Priority.P0, milder=Priority.P1,
        area=Area.EVENTS,
        computation="No group's cursor stands before the oldest partition, and none leaves events unread for a day.",
        cost="one look along the primary key per group",
        advice="Stop what drops partitions past consumers; publish again what the group has missed. Of a group that "
        "nobody reads any more, remove the subscriptions."),
    Check(id="Q31", title="Event never dispatched", stores=_POSTGRES, priority=Priority.P0, area=Area.EVENTS,
        computation="Each stored event is in a dispatch, is due again, or a poll will still find it.",
        cost="an anti-join over the partitions that are kept", remedy=UPKEEP,
        advice="Have the events dispatched again."),
    Check(id="Q32", title="Subscription condition", stores=_POSTGRES, priority=Priority.P0, area=Area.EVENTS,
        computation="Polling goes on, each condition can be evaluated on the latest events, and none is in quarantine.",
        cost="a hundred events per distinct condition",
        advice="See that `queuekeeper events dispatch` runs. Put what fails into quarantine, mend the condition, then "
        "release the subscription: `queuekeeper events subscriptions` shows its id for --release.",
        command="events mend quarantine_subscription --dry-run"),
    Check(id="Q33", title="Wraparound", stores=_POSTGRES, priority=Priority.P1, area=Area.EVENTS,
        computation="Partitions and the broker's tables are far from the wraparound of transaction ids.",
        cost=_CATALOGUE, advice="Freeze the tables.",
        command="events mend freeze_partition --dry-run"),
    Check(id="Q34", title="Source against target", stores=_BOTH, priority=Priority.P0, area=Area.MIGRATION,
        computation="Sessions, live messages and lowest and highest serial are the same in both stores.",
        cost=_JOIN,
        advice="Verify the migration again: `queuekeeper migrate verify` compares every message."),
    Check(id="Q35", title="Replication slot", stores=_POSTGRES, priority=Priority.P1, area=Area.EVENTS,
        computation="The slot is healthy, keeps little WAL and does not lag.",
        cost="one row", advice="Pause or end the stream."),
    Check(id="Q36", title="Redis server", stores=_REDIS, priority=Priority.P1, milder=Priority.P3, area=Area.SERVERS,
        computation="Nothing is evicted, the append-only file is on and written, a replica follows, memory has room.",
        cost="INFO and CONFIG GET per master", advice="Change the server's configuration; add memory."),
    Check(id="Q37", title="Quarantine", stores=_POSTGRES, priority=Priority.P1, milder=Priority.P3, area=Area.MIGRATION,
        computation="Fewer rows wait in quarantine than in the run before, and none for longer than a month.",
        cost="a count by reason",
        advice="Repair and replay the rows, `queuekeeper migrate quarantine` lists them, or decide to give them up."),
    Check(id="Q38", title="Session state", stores=_REDIS, priority=Priority.P0, milder=Priority.P1,
        computation="What a packed session's state says holds for its messages: first and last serial, what is in use, "
        "counts, sizes and expiries. A message outside of these serials is never delivered, or overwritten.",
        cost="none beside the profile", remedy=_repair("repair_state"), milder_remedy=_repair("repair_state"),
        advice="Have the state worked out again; look who else writes to these keys.",
        senseless={Layout.TBMQ: "its sessions have no such state"}),
    Check(id="Q39", title="One layout", stores=_REDIS, priority=Priority.P0, milder=Priority.P1,
        computation="No client has a packed session and one in TBMQ's layout that both take messages: a broker finds "
        "one of them, and delivers nothing of the other. A copy that a migration makes takes none, and is no finding.",
        cost="one script for each client that has keys of both layouts",
        advice="Export both by `queuekeeper sessions export CLIENT --layout tbmq` and `--layout packed`, and compare "
        "them. Keep the one that your brokers use, and `sessions purge` the other with its `--layout`.",
        senseless={Layout.TBMQ: "a client with a session in both layouts is counted at its packed one"}),
)  # fmt: skip

CHECKS: Mapping[str, Check] = {check.id: check for check in _ALL}
"""Number of a check -> the check, in order."""


def check(check_id: str) -> Check:
    """Return a check by its number.

    :raises UsageError: when there is none.
    """
    found = CHECKS.get(check_id)
    if found is None:
        known = f"Q1 to Q{len(CHECKS)}, as `queuekeeper quality checks` lists them"
        raise UsageError(f"there is no check {check_id!r}: they are {known}")
    return found
