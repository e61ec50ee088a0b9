"""Calls that a task can make to one session or one queue, each with the arguments of the functions behind it.

Airflow stores arguments and results in its database, so contents of messages are in files of the worker instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_type_hints

from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.compacted import forms as compacted_forms
from queuekeeper.compacted import jsonl as compacted_lines
from queuekeeper.compacted.model import QueueRules, WhenFull
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.durations import duration_ms
from queuekeeper.errors import CheckFailed, UsageError
from queuekeeper.facts import plain
from queuekeeper.fanout import forms as fanout_forms
from queuekeeper.fanout import jsonl as fanout_lines
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.fanout.reports import ConsumerView
from queuekeeper.jobs.common import SessionRules
from queuekeeper.jobs.parameters import MAX_DIGITS, Declaration, Described, Kind, described, refusal, shown, unknown
from queuekeeper.jsonl import open_file
from queuekeeper.sessions import transfer
from queuekeeper.sessions.jsonl import message_facts
from queuekeeper.sessions.pages import STORES
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.transfer import SessionStore
from queuekeeper.wording import number_of, sentence

SHOWN = 20
"""Largest number of messages of a session, and of findings, in a result, which Airflow stores in its database."""

SHOWN_CONSUMERS = 100
"""Number of consumers in a result: those that owe the most acks."""


@dataclass(frozen=True)
class StoreCall:
    """A call, whose arguments are those of its functions without the first one.

    :param opens: opens the store for a ``with`` block.
    :param subject: format of the subject in the log, filled with arguments.
    :param does: makes the call to the store and returns the result.
    :param told: format of the result in the log, filled with arguments and result.
    :param options: function or record whose arguments ``does`` takes, too.
    """

    opens: Callable[..., AbstractContextManager[Any]]
    subject: str
    does: Callable[..., Any]
    told: str
    options: Callable[..., Any] | None = None

    @cached_property
    def arguments(self) -> Mapping[str, Described]:
        """Arguments by name. A call with the argument ``dry_run`` has the default ``True``."""
        found = {}
        for function in filter(None, (self.does, self.options, self.opens)):
            hints = get_type_hints(function)
            for name, each in list(inspect.signature(function).parameters.items())[1:]:
                if each.kind is not each.VAR_KEYWORD:
                    default = True if name == "dry_run" else each.default
                    said = Declaration(title=name, help="", needed=default is each.empty)
                    found[name] = described(name, hints[name], default=default, said=said)
        return found

    def check_names(self, given: Collection[str]) -> None:
        """Check the names of the given arguments.

        :raises UsageError: when an argument is unknown or missing; the message names it.
        """
        if wrong := sorted(set(given) - set(self.arguments)):
            raise UsageError(unknown(wrong, self.arguments, owner="this call"))
        if missing := [name for name, each in self.arguments.items() if each.said.needed and name not in given]:
            raise UsageError(f"this call needs {', '.join(missing)}")

    def run(self, task: StoresOperator, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Make the call, and return its result and the line for the log.

        :param given: arguments by name, which may be texts from templates.
        :raises UsageError: when a text is not a valid value; other errors are those of the store.
        """
        self.check_names(given)
        values = {
            name: _read(each, given.get(name, each.default))
            for name, each in self.arguments.items()
            if name in given or name == "dry_run"
        }
        of_store = inspect.signature(self.opens).parameters
        with self.opens(task, **{name: value for name, value in values.items() if name in of_store}) as store:
            result = self.does(store, **{name: value for name, value in values.items() if name not in of_store})
        facts = plain(values | {"changed": result} if isinstance(result, bool) else result)
        known = {name: each.default for name, each in self.arguments.items()} | values | facts
        told = sentence(f"{self.subject}: {self.told}", **known)
        return facts, f"only counted: {told}" if values.get("dry_run") else told


def _read(argument: Described, value: Any) -> Any:
    """Return the value of a text; a number for an argument of type text becomes a text.

    :raises UsageError: when it is of another type, or missing: a task that was skipped has returned nothing; and when
        a template was rendered as nothing where a value may be left out.
    """
    if value is None and not argument.optional:
        raise argument.refuse(value)
    if value == "" and argument.optional and argument.kind is not Kind.LIST:
        # Without a value a call may reach further: a pause without a consumer stops all of them.
        words = "leave it out for none, since an empty text may be a mistake"
        raise UsageError(refusal(argument.name, value, kind=argument.kind, rule=words))
    if argument.kind is Kind.LIST and value is not None and not isinstance(value, str | list | tuple):
        raise argument.refuse(value)
    if argument.kind is Kind.TEXT and type(value) is int:
        return str(value)
    read = argument.of_text(value) if isinstance(value, str) else value
    if isinstance(read, str) and argument.kind is not Kind.TEXT:
        raise argument.refuse(value)
    return read


@contextmanager
def _sessions(
    task: StoresOperator,
    *,
    store: str = "redis",
    key_prefix: str = "",
    default_ttl_s: int = SessionRules().default_ttl_s,
) -> Iterator[SessionStore]:
    if store not in STORES:
        raise UsageError(f"the store is {store!r}: it must be {' or '.join(STORES)}")
    rules = transfer.rules(default_ttl_s=SessionRules(default_ttl_s=default_ttl_s).default_ttl_s)
    if store == "postgres":
        with task.postgres_hook.connect() as connection:
            yield PostgresSessionStore(connection, rules=rules)
    else:
        with task.redis_hook.connect() as client:
            yield RedisSessionStore(client, key_prefix, rules)


def _inspect_session(store: SessionStore, *, client_id: str, offset: int = 0, limit: int = SHOWN) -> Any:
    return store.inspect(client_id, offset=offset, limit=limit)


def _peek(
    store: SessionStore, *, client_id: str, packet_id: int, content_path: str = "", replace: bool = False
) -> dict[str, Any]:
    """Describe a message; if a file is named, the content is written to it, readable only by its owner."""
    message = store.peek(client_id, packet_id=packet_id)
    if message is None:
        held_by = "redis" if isinstance(store, RedisSessionStore) else "postgres"
        raise UsageError(
            f"{held_by} holds no message of {client_id!r} with packet id {packet_id}: it may have been "
            "acknowledged or have expired; sessions.inspect describes the messages that are there"
        )
    if content_path:
        transfer.peek_into_file(message, Path(content_path), replace=replace)
    return message_facts(message, content=False) | {"content_path": content_path or None}


def _purge_session(store: SessionStore, *, client_id: str, dry_run: bool) -> Any:
    return store.purge_session(client_id, dry_run=dry_run)


def _export_session(store: SessionStore, *, client_id: str, path: str, replace: bool = False) -> dict[str, Any]:
    """Write a session to a file; fail if a record cannot be read, so that a later task does not purge the session."""
    report = transfer.export_session_to_file(store, client_id, Path(path), replace=replace)
    if report.unreadable:
        raise CheckFailed(
            f"{path} is not the whole session: {number_of(report.unreadable, 'record')} of {client_id!r} cannot be "
            "read and were left out"
        )
    return {**plain(report), "path": path}


def _import_session(store: SessionStore, *, client_id: str, path: str) -> Any:
    with open_file(Path(path)) as lines:
        return store.import_session(client_id, lines)


def _compacted(task: StoresOperator, *, key_prefix: str = "") -> AbstractContextManager[CompactedQueues]:
    return task.redis_hook.compacted_queues(key_prefix=key_prefix)


def _bounded(
    task: StoresOperator,
    *,
    key_prefix: str = "",
    max_keys: int = QueueRules.max_keys,
    max_bytes: int = QueueRules.max_bytes,
    when_full: WhenFull = QueueRules.when_full,
) -> AbstractContextManager[CompactedQueues]:
    rules = QueueRules(max_keys=max_keys, max_bytes=max_bytes, when_full=when_full)
    return task.redis_hook.compacted_queues(key_prefix=key_prefix, rules=rules)


def _append(
    queues: CompactedQueues, *, client_id: str, path: str, producer: str | None = None, number: int | None = None
) -> Any:
    with open_file(Path(path)) as lines:
        return compacted_lines.append_lines(queues, client_id, lines, producer=producer, number=number)


def _rewind(queues: CompactedQueues, *, client_id: str, to: str) -> dict[str, Any]:
    return compacted_lines.rewind_facts(client_id, queues.rewind(client_id, to=compacted_forms.position(to)))


def _configure(queues: CompactedQueues, *, client_id: str, **changes: Any) -> dict[str, Any]:
    before = queues.inspect(client_id).retention
    after = compacted_forms.retention(before, **changes)
    queues.configure(client_id, retention=after)
    return {"client_id": client_id, "before": before, "after": after}


def _purge(queues: CompactedQueues, *, client_id: str, what: str, dry_run: bool) -> Any:
    return queues.purge(client_id, what=compacted_forms.purge(what), dry_run=dry_run)


def _verify_compacted(queues: CompactedQueues, *, client_id: str) -> dict[str, Any]:
    report = queues.verify(client_id)
    if report.found:
        rules = ", ".join(sorted({each.rule for each in report.violations[:SHOWN]}))
        raise CheckFailed(f"the keys of {client_id!r} disagree in {number_of(report.found, 'place')}: {rules}")
    return compacted_lines.verify_facts(report)


def _fanout(task: StoresOperator, *, key_prefix: str = "") -> AbstractContextManager[FanoutQueues]:
    return task.redis_hook.fanout_queues(key_prefix=key_prefix)


def _inspect_fanout(queues: FanoutQueues, *, queue: str) -> dict[str, Any]:
    view = queues.inspect(queue)

    def owed(consumer: ConsumerView) -> int:
        return consumer.ready + consumer.leased + consumer.delayed + consumer.dead

    return {
        **plain(view),
        "consumers": plain(sorted(view.consumers, key=owed, reverse=True)[:SHOWN_CONSUMERS]),
        "consumer_count": len(view.consumers),
        "dead": sum(each.dead for each in view.consumers),
    }


def _publish(
    queues: FanoutQueues,
    *,
    queue: str,
    path: str,
    deduplicate_as: str | None = None,
    to: str | None = None,
    ttl: str = "1d",
) -> Any:
    with open_file(Path(path)) as lines:
        return fanout_lines.publish_lines(
            queues, queue, lines, to=to, ttl_ms=duration_ms("ttl", ttl), deduplicate_as=deduplicate_as
        )


def _register(queues: FanoutQueues, *, queue: str, consumer: str, start: str = "new", **options: Any) -> Any:
    wanted = fanout_forms.consumer_options(**options)
    return queues.register(queue, consumer=consumer, options=wanted, start=fanout_forms.start(start))


Ids = tuple[str, ...]
"""Numbers of dead letters: of a list, or of a text, whose template may be rendered as nothing."""


def _retry_dead(queues: FanoutQueues, *, queue: str, consumer: str, ids: Ids | None = None) -> Any:
    return queues.retry_dead(queue, consumer=consumer, ids=_numbers(ids))


def _purge_dead(queues: FanoutQueues, *, queue: str, consumer: str, dry_run: bool, ids: Ids | None = None) -> Any:
    return queues.purge_dead(queue, consumer=consumer, ids=_numbers(ids), dry_run=dry_run)


def _numbers(ids: Ids | None) -> list[int] | None:
    """Return the numbers of dead letters; an empty text names none of them, and not all as no value does.

    :raises UsageError: when one is no number.
    """
    if ids is None:
        return None
    words = [word for each in ids for word in str(each).replace(",", " ").split()]
    for word in words:
        if not word.isdecimal() or len(word) > MAX_DIGITS:
            raise UsageError(f"ids is {shown(word)}: write the numbers of dead letters, with commas between them")
    return [int(word) for word in words]


def _verify_fanout(queues: FanoutQueues, *, queue: str) -> dict[str, Any]:
    facts = fanout_lines.verify_facts(queue, queues.verify(queue, findings=SHOWN))
    if facts["found"]:
        kinds = ", ".join(f"{problem} {count}" for problem, count in sorted(facts["counts"].items()))
        places = number_of(facts["found"], "place")
        raise CheckFailed(f"the keys of {queue!r} disagree in {places}: {kinds}")
    return facts


_session = partial(StoreCall, _sessions, "Session {client_id!r}")
_OF_CLIENT = "Queue of {client_id!r}"
_compact = partial(StoreCall, _compacted, _OF_CLIENT)
_queue = partial(StoreCall, _fanout, "Queue {queue!r}")

CALLS: Mapping[str, StoreCall] = {
    "sessions.inspect": _session(_inspect_session, "exists {exists}, {messages:message}"),
    "sessions.peek": _session(_peek, "packet id {packet_id}, serial {serial}, {payload_bytes} bytes"),
    "sessions.purge_session": _session(_purge_session, "{messages:message} removed, {kept:,} kept"),
    "sessions.export_session": _session(_export_session, "{messages:message} written"),
    "sessions.import_session": _session(_import_session, "{stored:message} stored, {expired:,} expired"),
    "compacted.inspect": _compact(CompactedQueues.inspect, "exists {exists}, {live} keys, {in_flight} in flight"),
    "compacted.append": StoreCall(
        _bounded, _OF_CLIENT, _append, "{appended} appended, {replayed} stored before, {evicted} evicted"
    ),
    "compacted.rewind": _compact(_rewind, "cursor from {old_acked} to {new_acked}, {to_deliver} to deliver"),
    "compacted.configure": _compact(_configure, "retention {after}", compacted_forms.retention),
    "compacted.purge": _compact(_purge, "{messages:message} removed, {unacked:,} of them not acknowledged"),
    "compacted.drop": _compact(CompactedQueues.drop, "dropped with {messages:message}, {lag:,} not delivered"),
    "compacted.verify": _compact(_verify_compacted, "{checked} looked at, {found} wrong"),
    "compacted.repair": _compact(CompactedQueues.repair, "{found:,} wrong, {dropped:key} dropped, {remaining:,} left"),
    "fanout.inspect": _queue(
        _inspect_fanout,
        "exists {exists}, {messages:message}, {held:,} held, {consumer_count:consumer}, {dead:dead letter}",
    ),
    "fanout.publish": _queue(
        _publish, "{published} published, {duplicates} published before, {held} held, {dropped} dropped"
    ),
    "fanout.register": _queue(
        _register, "{consumer!r} registered, new {created}, adopts {adopted}", fanout_forms.consumer_options
    ),
    "fanout.unregister": _queue(FanoutQueues.unregister, "{consumer!r} removed, with {released:message}"),
    "fanout.retry_dead": _queue(_retry_dead, "{retried:dead letter} of {consumer!r} put back in line"),
    "fanout.purge_dead": _queue(_purge_dead, "{released:dead letter} of {consumer!r} removed"),
    "fanout.pause": _queue(FanoutQueues.pause, "paused for {consumer!r}, changed {changed}"),
    "fanout.resume": _queue(FanoutQueues.resume, "resumed for {consumer!r}, changed {changed}"),
    "fanout.verify": _queue(_verify_fanout, "{checked} looked at, {found} wrong"),
}
"""All calls by name: the store, and the verb that the store itself uses."""


def call_of(name: str) -> StoreCall:
    """Return a call.

    :raises UsageError: when there is no such call; the message names all calls.
    """
    if name not in CALLS:
        raise UsageError(f"there is no call {name!r}: name one of {', '.join(CALLS)}")
    return CALLS[name]
