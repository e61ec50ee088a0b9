"""A finding: one record of what an expectation came to, from the judgement to the form that mends it.

It is kept in ``quality_results`` as it stands. ``--json``, the tables, XCom and the report show it and add nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from queuekeeper.quality.judge.checks import Check, Priority, Severity, check

_BROKEN = "The check could not be made, so nothing is known: mend what stands above, then run queue_quality again."


class Status(StrEnum):
    """What became of an expectation."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"  # failed, and somebody answers for it until a day
    BROKEN = "broken"  # the check could not be made: it proves nothing


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What became of one expectation.

    :param expectation: its number in the suite, from 1.
    :param unexpected_count: rows that break it, most often queues.
    :param observed: the same in words; for a broken check, why it could not be made.
    :param examples: hashed client ids with the values that were looked at; never a payload. The client's own id, where
        somebody asked for it, is not stored.
    :param remedy: DAG that mends it, empty where a person has to look.
    :param remedy_conf: its form, filled in.
    :param place: servers and prefix of keys that were looked at.
    :param remedy_url: address that opens the form; empty where no Airflow is known.
    """

    suite: str
    expectation: int
    check_id: str
    severity: Severity
    status: Status
    description: str
    unexpected_count: int = 0
    observed: str = ""
    examples: tuple[Mapping[str, Any], ...] = ()
    remedy: str = ""
    remedy_conf: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    remedy_url: str = ""

    @property
    def check(self) -> Check:
        """The check that it is part of."""
        return check(self.check_id)

    @property
    def title(self) -> str:
        """What is checked, in few words."""
        return self.check.title

    @property
    def priority(self) -> Priority:
        """How urgent a failure is."""
        return self.check.priority_of(self.severity)

    @property
    def urgency(self) -> tuple[int, int]:
        """Sorts findings: what fails a run first, what passed last."""
        order = (Status.BROKEN, Status.FAILED, Status.KNOWN, Status.PASSED)
        return order.index(self.status), list(Priority).index(self.priority)

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        if self.status is Status.PASSED:
            return ""
        if self.status is Status.BROKEN:
            return _BROKEN
        return self.check.advice

    @property
    def is_mendable(self) -> bool:
        """Whether a DAG mends what was found: nobody mends what could not be looked at."""
        return bool(self.remedy) and self.status in {Status.FAILED, Status.KNOWN}

    @property
    def remedy_name(self) -> str:
        """The remedy as a person calls it."""
        return str(self.remedy_conf.get("remedy", self.remedy))

    @property
    def trigger(self) -> str:
        """Command of Airflow that starts the remedy with its form filled in; empty where there is none."""
        if not self.is_mendable:
            return ""
        conf = json.dumps(self.remedy_conf, ensure_ascii=False)
        return f"airflow dags trigger {shlex.quote(self.remedy)} --conf {shlex.quote(conf)}"

    def command(self, *, shell_prefix: str = "") -> str:
        """Return the command of ``queuekeeper`` that begins to mend it, and plans first; empty where there is none.

        :param shell_prefix: prefix of keys that the shell would add by itself.
        """
        if self.check.command:
            return f"queuekeeper {self.check.command}"
        remedy = self.check.remedy_of(self.severity)
        return remedy.command_line(self.remedy_conf, shell_prefix=shell_prefix) if remedy and self.remedy else ""

    def with_remedy(self, **values: Any) -> Finding:
        """Return it with the DAG that mends it and its form, filled in; unchanged where a person has to look.

        :param values: what the forms of remedies are filled in with.
        """
        remedy = self.check.remedy_of(self.severity)
        if remedy is None:
            return self
        return replace(self, remedy=remedy.dag_id, remedy_conf=remedy.filled(**values))

    def with_form(self, values: Mapping[str, Any], *, forms_url: str) -> Finding:
        """Return it with the address of its remedy's form.

        :param values: connections, for forms that take them.
        :param forms_url: address below which forms of DAGs are opened; empty for none.
        """
        if not self.is_mendable:
            return self
        remedy = self.check.remedy_of(self.severity)
        taken = {name: values[name] for name in (remedy.connections if remedy else ()) if name in values}
        conf = {**self.remedy_conf, **taken}
        text = json.dumps(conf, ensure_ascii=False)
        url = f"{forms_url}/{self.remedy}?{urlencode({'conf': text})}" if forms_url else ""
        return replace(self, remedy_conf=conf, remedy_url=url)

    def without_client_ids(self) -> Finding:
        """Return it as whoever may not know who the clients are may read it."""
        hashed = tuple({name: row[name] for name in row if name != "client_id"} for row in self.examples)
        return replace(self, examples=hashed)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON, for ``--json`` and the report."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        return stored | {
            "title": self.title,
            "priority": str(self.priority),
            "advice": self.advice,
            "command": self.command(),
            "trigger": self.trigger,
        }

    def summary(self) -> dict[str, Any]:
        """Return it without any client, for XCom."""
        return {
            "check": self.check_id,
            "priority": str(self.priority),
            "status": str(self.status),
            "description": self.description,
            "unexpected": self.unexpected_count,
            "remedy": self.remedy,
        }
