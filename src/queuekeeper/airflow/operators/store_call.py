"""One call of a store as a task: of one session, one compacted queue or one fan-out queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.store_calls import call_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class StoreCallOperator(StoresOperator):
    """Have a store do one thing with one session or queue, and return what it came to, without any content.

    For example::

        StoreCallOperator(
            task_id="purge",
            call="sessions.purge_session",
            arguments={"client_id": "{{ params.client }}", "dry_run": "{{ params.dry_run }}"},
        )

    A call that takes ``dry_run`` only counts unless it is ``False``.

    :param call: one of ``queuekeeper.airflow.store_calls.CALLS``, such as ``fanout.publish``.
    :param arguments: those of the call by name, as values or as texts (templated). All calls take ``key_prefix``, which
        is put before every Redis key, and those of sessions ``store``, ``redis`` or ``postgres``.
    :param postgres_conn_id: where sessions of TBMQ 1.x are (templated).
    :param redis_conn_id: where those of TBMQ 2.x and queues are (templated).
    """

    template_fields: Sequence[str] = ("arguments", *StoresOperator.template_fields)

    def __init__(self, *, call: str, arguments: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        found = call_of(call)
        if isinstance(arguments, Mapping):  # else it is what another task has returned
            found.check_names(arguments)
        self.call = call
        self.arguments = arguments

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what it came to."""
        self.log.info("%s: %s", self.call, ", ".join(f"{name} {value!r}" for name, value in self.arguments.items()))
        facts, told = call_of(self.call).run(self, self.arguments)
        self.log.info("%s", told)
        return facts
