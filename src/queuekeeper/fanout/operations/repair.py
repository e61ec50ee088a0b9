"""Verification and repair of a fan-out queue, message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import MembershipChanged
from queuekeeper.fanout.model import DEFAULT_FINDINGS, Mode
from queuekeeper.fanout.operations.common import (
    BYTES_PER_CALL,
    IDS_PER_WALK,
    TRIES,
    CommonOperations,
    Membership,
    Reply,
    Steps,
    ask,
)
from queuekeeper.fanout.reports import Finding, Problem, RepairReport, VerifyReport
from queuekeeper.lua.bind import Bound
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation

SUSPECTS_PER_CALL = 100
ENTRIES_PER_CALL = 1_000_000
"""Largest number of list entries that one call compares with a message."""

KEYS_PER_CALL = 5_000
MAX_FINDINGS = 100_000


class _Walk(NamedTuple):
    """Result of reading all keys of a queue.

    :ivar messages: number of messages.
    :ivar suspects: ids of messages that look wrong.
    :ivar held: number of held messages.
    :ivar lengths: number of ids in the lists of each consumer.
    :ivar expired_references: number of ids in lists whose messages have expired.
    """

    messages: int
    suspects: list[int]
    held: int
    lengths: dict[str, int]
    expired_references: int


class _Verdict(NamedTuple):
    """Faults of one message.

    :ivar references: its stored count of references; less than 0 when there is none.
    :ivar owed: number of consumers that have it in each group, without the list of held messages.
    """

    id: int
    references: int
    owed: list[int]
    findings: tuple[Finding, ...]


class _Judged(NamedTuple):
    """Result of checking some messages.

    :ivar judged: number of messages that were checked, from the first on.
    :ivar groups: names of the consumers that each call checked together.
    :ivar wrong: verdicts on the messages with faults.
    """

    judged: int
    membership: Membership
    groups: list[list[str]]
    wrong: list[_Verdict]

    @property
    def findings(self) -> list[Finding]:
        """All faults."""
        return [finding for one in self.wrong for finding in one.findings]


class RepairOperations(CommonOperations):
    """Verify and repair a queue."""

    def verify(self, queue: str, *, findings: int = DEFAULT_FINDINGS) -> Operation[VerifyReport]:
        """Check that the keys of a queue agree.

        The call changes nothing, and the queue may be in use meanwhile: a message that looks wrong is checked again, in
        one step, before it is reported. A message that has expired and that consumers will skip is no finding.

        :param findings: largest number of findings to list.
        """
        check_integer("findings", findings, 0, MAX_FINDINGS)
        walk = yield from self._walk_through(queue)
        named: list[Finding] = []
        counts: Counter[Problem] = Counter()
        at = 0
        while at < len(walk.suspects):
            found = yield from self._judge(queue, walk, walk.suspects[at : at + self._size(SUSPECTS_PER_CALL)])
            at += found.judged
            counts.update(finding.problem for finding in found.findings)
            named += found.findings[: findings - len(named)]
        return VerifyReport(
            checked=walk.messages,
            findings=tuple(named),
            counts=dict(counts),
            expired_references=walk.expired_references,
        )

    def repair(self, queue: str, *, dry_run: bool = True, over_too: bool = True) -> Operation[RepairReport]:
        """Repair what `verify` finds.

        Messages for which no acknowledgement is due are removed, entries without a message are removed, and counts are
        corrected, in bounded steps.

        :param over_too: whether expired messages are repaired too; otherwise they are left to ``expire``.
        """
        membership = yield from self._membership(queue, fresh=True)
        over_ms = -1 if over_too else membership.now_ms if self._clock is None else self._clock()
        walk = yield from self._walk_through(queue)
        counts: Counter[Problem] = Counter()
        freed = at = tries = 0
        while at < len(walk.suspects):
            found = yield from self._judge(
                queue, walk, walk.suspects[at : at + self._size(SUSPECTS_PER_CALL)], over_ms=over_ms
            )
            try:
                freed += 0 if dry_run else (yield from self._mend(queue, found))
            except MembershipChanged:
                # The next try finds no fault where this one has repaired.
                tries += 1
                if tries > TRIES:
                    raise
                continue
            tries = 0
            at += found.judged
            counts.update(finding.problem for finding in found.findings)
        return RepairReport(checked=walk.messages, repaired=dict(counts), freed=freed, dry_run=dry_run)

    def _walk_through(self, queue: str) -> Steps[_Walk]:
        """Read all keys of a queue, and return the ids of messages that look wrong.

        The queue may change meanwhile, so a message that looks wrong may be right.
        """
        keys = self._keys(queue)
        facts = yield from self._queue_facts(queue)
        membership = yield from self._membership(queue, fresh=True)
        # The server reads the messages when it lists their ids, so large messages make short pages.
        most = max(1, min(IDS_PER_WALK, BYTES_PER_CALL * facts.messages // max(1, facts.stored_bytes)))
        messages = set((yield from self._walk_ids(keys.messages, most=most)))
        expiries = set((yield from self._walk_ids(keys.expiries)))
        references = yield from self._walk_values(keys.references)
        held = yield from self._walk_ids(keys.held)
        log = yield from self._walk_values(keys.log)
        owed = Counter(held)
        lengths: dict[str, int] = {}
        expired_references = 0
        suspects: set[int] = set()
        for name, member in membership.members.items():
            own = member.keys
            leased = yield from self._walk_ids(own.leases)
            ready: list[int] = []
            for key in own.ready:
                ready += yield from self._walk_ids(key)
            lengths[name] = len(ready)
            # Messages that were published since ``facts`` was read are left out.
            expired_references += sum(
                one <= facts.last_id and one not in messages and one not in references for one in ready
            )
            places = Counter(leased)
            places.update(ready)
            if member.cursor is not None:
                places.update(message_id for message_id, number in log.items() if int(number) > member.cursor)
            for key in (own.delayed, own.dead):
                places.update((yield from self._walk_ids(key)))
            notes = yield from self._walk_values(own.details)
            noted = {*notes, *(yield from self._walk_ids(own.details))}
            owed.update(places.keys())
            suspects |= {message_id for message_id, count in places.items() if count > 1}
            suspects |= {message_id for message_id in leased if notes.get(message_id, b"-").endswith(b"-")}
            suspects |= noted - places.keys()
        for message_id in messages:
            if references.get(message_id) != b"%d" % owed[message_id] or message_id not in expiries:
                suspects.add(message_id)
        suspects |= (expiries | references.keys()) - messages
        return _Walk(len(messages), sorted(suspects), len(held), lengths, expired_references)

    def _judge(self, queue: str, walk: _Walk, ids: Sequence[int], *, over_ms: int = -1) -> Steps[_Judged]:
        """Check messages in all keys, and return the faults.

        This is one call if it can be. If the lists are too long for one call, consumers are checked in groups, one call
        each; a message that changes from call to call is in use and not judged.

        :param over_ms: instant; messages that had expired by then have no faults. -1 for none.
        """
        for tries in range(TRIES + 1):
            membership = yield from self._membership(queue, fresh=bool(tries))
            # Half of what a call can do, since lists may grow until then.
            entries, keys = self._size(ENTRIES_PER_CALL // 2), self._size(KEYS_PER_CALL)
            groups = _groups(membership, walk, most_entries=entries, most_keys=keys)
            wanted = list(ids)
            answers: list[dict[int, Any]] = []
            try:
                for group in groups:
                    reply = yield from self._ask_group(queue, scripts.verify, membership, group, wanted)
                    answers.append({int(row.id): row for row in reply.rows})
                    # A reply may be about the first messages only.
                    wanted = wanted[: len(answers[-1])]
            except MembershipChanged:
                if tries == TRIES:
                    raise
                continue
            judged = [_judged(one, groups, [answer[one] for answer in answers], over_ms) for one in wanted]
            return _Judged(len(wanted), membership, groups, [one for one in judged if one is not None and one.findings])
        raise AssertionError("unreachable")

    def _mend(self, queue: str, found: _Judged) -> Steps[int]:
        """Repair faults, one group of consumers after the other; return the number of messages that were removed."""
        freed = 0
        for number, group in enumerate(found.groups):
            wrong = found.wrong
            is_last = number == len(found.groups) - 1
            while wrong:
                values: list[lua.Value] = []
                for one in wrong:
                    # The last group sets the count, which needs those of the groups before.
                    elsewhere: lua.Value = sum(one.owed) - one.owed[number] if is_last else "-"
                    values += (one.id, elsewhere, "" if len(found.groups) == 1 else one.references)
                reply = yield from self._ask_group(queue, scripts.repair, found.membership, group, values)
                wrong = wrong[reply.looked_at :]
                freed += reply.freed
        return freed

    def _ask_group(
        self, queue: str, script: Bound, membership: Membership, group: Sequence[str], values: Sequence[lua.Value]
    ) -> Steps[Reply]:
        """Make a call with the keys of several consumers, also of those that are being removed.

        :param script: ``verify`` or ``repair``.
        """
        keys = self._keys(queue)
        consumer_keys: list[str] = []
        named: list[lua.Value] = []
        for name in group:
            member = membership.members[name]
            own = member.keys
            consumer_keys += (own.leases, own.delayed, own.dead, own.details, *own.ready)
            is_fifo = member.options is None or member.options.mode is Mode.FIFO
            named += (name, 0 if is_fifo and len(own.ready) == 1 else len(own.ready))
        return (
            yield from ask(
                script(
                    keys,
                    consumer_keys=consumer_keys,
                    membership=membership.number,
                    now_ms=self._now(),
                    consumers=len(group),
                    values=[*named, *values],
                )
            )
        )


def _groups(membership: Membership, walk: _Walk, *, most_entries: int, most_keys: int) -> list[list[str]]:
    """Return the consumers in groups whose lists one call can check, by the lengths that the walk has seen."""
    groups: list[list[str]] = [[]]
    entries = keys = 0
    for name, member in membership.members.items():
        length, width = walk.lengths.get(name, 0), len(member.keys.ready) + 4
        if groups[-1] and (walk.held + entries + length > most_entries or keys + width > most_keys):
            groups.append([])
            entries = keys = 0
        groups[-1].append(name)
        entries += length
        keys += width
    return groups


def _judged(message_id: int, groups: Sequence[Sequence[str]], rows: Sequence[Any], over_ms: int) -> _Verdict | None:
    """Return the faults of one message; ``None`` when it has changed from call to call.

    :param rows: reply of the script for the message, one row per group. ``places`` has a word for each consumer that
        has the message: the consumer's position in the group, from 1, and a letter per place; ``0h`` for held.
    :param over_ms: instant; a message that had expired by then has no faults.
    """
    places: list[tuple[str | None, str]] = []
    owed: list[int] = []
    facts: set[tuple[Any, ...]] = set()
    for names, row in zip(groups, rows, strict=True):
        words = row.places.decode().split()
        is_held = "0h" in words
        facts.add((row.has_message, row.references, row.expires_at_ms, is_held))
        kinds = [(names[position - 1], kind) for position, kind in map(_place, words) if position]
        places += kinds
        owed.append(sum(kind != "n" for _, kind in kinds))
    if len(facts) > 1:
        return None
    [(has_message, references, expires_at_ms, is_held)] = facts
    if 0 <= float(expires_at_ms) <= over_ms:
        return _Verdict(message_id, references, owed, ())
    has_expiry = float(expires_at_ms) >= 0
    findings = tuple(_findings(message_id, bool(has_message), references, has_expiry, sum(owed) + is_held, places))
    return _Verdict(message_id, references, owed, findings)


def _place(word: str) -> tuple[int, str]:
    kind = word.lstrip("0123456789")
    return int(word[: -len(kind)]), kind


def _findings(
    message_id: int,
    has_message: bool,
    references: int,
    has_expiry: bool,
    owed: int,
    places: Sequence[tuple[str | None, str]],
) -> Iterator[Finding]:
    """Yield the faults of one message.

    :param references: stored number of consumers that owe an ack; less than 0 when there is none.
    :param owed: number of consumers that have the message, plus 1 when it is held.
    :param places: each consumer that has the message, with a letter per place: see ``lua/fanout/verify.lua``.
    """
    for consumer, kinds in places:
        if kinds == "n":
            yield Finding(problem=Problem.LEFT_NOTES, id=message_id, consumer=consumer)
        elif len(kinds) > 1:
            yield Finding(problem=Problem.DOUBLED, id=message_id, consumer=consumer)
        if "u" in kinds:
            yield Finding(problem=Problem.LOST_LEASE, id=message_id, consumer=consumer)
    counted = None if references < 0 else references
    if not has_message:
        if counted is not None:
            yield Finding(problem=Problem.MISSING_PAYLOAD, id=message_id, found=counted)
        elif has_expiry:
            yield Finding(problem=Problem.WRONG_EXPIRY, id=message_id)
    elif not owed:
        yield Finding(problem=Problem.UNREFERENCED_PAYLOAD, id=message_id, found=counted, expected=0)
    else:
        if counted != owed:
            yield Finding(problem=Problem.WRONG_COUNT, id=message_id, found=counted, expected=owed)
        if not has_expiry:
            yield Finding(problem=Problem.WRONG_EXPIRY, id=message_id)
