"""Makes one call to a store as a task: for one session, one compacted queue or one fan-out queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators._store_calls import call_of
from queuekeeper.airflow.operators.stores import StoresOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class StoreCallOperator(StoresOperator):
    """Make one call to a store for one session or queue, and return its result, without contents of messages.

    For example::

        StoreCallOperator(
            task_id="purge",
            call="sessions.purge_session",
            arguments={"client_id": "{{ params.client }}", "dry_run": "{{ params.dry_run }}"},
        )

    A call with the argument ``dry_run`` only counts, unless the argument is ``False``.

    :param call: such as ``fanout.publish``; any other name is refused with the names of all calls.
    :param arguments: arguments of the call by name, as values or texts (templated). All calls take ``key_prefix``, the
        prefix of every Redis key; calls of sessions also take ``store``, ``redis`` (the default) or ``postgres``.
    :param postgres_conn_id: connection of the database with sessions of TBMQ 1.x (templated).
    :param redis_conn_id: connection of the Redis with sessions of TBMQ 2.x and with queues (templated).
    """

    template_fields: Sequence[str] = ("arguments",)

    def __init__(self, *, call: str, arguments: Mapping[str, Any], **kwargs: Any) -> None:
        self.check({"call": call, "arguments": arguments})
        super().__init__(**kwargs)
        self.call = call
        self.arguments = arguments

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check the name of the call, and those of its arguments."""
        super().check(given)
        if isinstance(given.get("call"), str):
            found = call_of(given["call"])
            if isinstance(given.get("arguments"), Mapping):  # otherwise it is the return value of another task
                found.check_names(given["arguments"])

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the result of the call."""
        self.log.info("%s: %s", self.call, ", ".join(f"{name} {value!r}" for name, value in self.arguments.items()))
        facts, told = call_of(self.call).run(self, self.arguments)
        self.log.info("%s", told)
        return facts
