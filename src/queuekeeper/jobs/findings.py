"""A finding: one record of what is wrong with queues, partitions or the event broker, and of the form that mends it.

Judgements of quality, maintenance of partitions and upkeep of the event broker make it. ``quality_results`` keeps it as
it stands; ``--json``, tables, XCom, pages and reports show it and add nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlencode

from queuekeeper.jobs.checks import Check, Priority, Remedy, Severity, check

K = TypeVar("K", bound=StrEnum)

_BROKEN = "The check could not be made, so nothing is known: mend what stands above, then run queue_quality again."


class Status(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"  # failed, and somebody answers for it until a day
    BROKEN = "broken"  # the check could not be made: it proves nothing


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What became of one check.

    :param check_id: number of the check, see :mod:`queuekeeper.jobs.checks`; empty for what none is about.
    :param description: what should hold; of partitions and of the event broker, what is wrong and what to do.
    :param suite: suite that judged it; empty for what none has judged.
    :param expectation: its number in the suite, from 1.
    :param kind: what exactly is wrong, where a check finds several things.
    :param subject: partition, range, table or condition; empty for what is about many queues.
    :param unexpected_count: rows that break it, most often queues.
    :param observed: the same in words; for a broken check, why it could not be made.
    :param examples: hashed client ids with the values that were looked at; never a payload. The client's own id, where
        somebody asked for it, is not stored.
    :param remedy: DAG that mends it, empty where a person has to look.
    :param remedy_conf: its form, filled in.
    :param place: servers and prefix of keys that were looked at.
    :param remedy_url: address that opens the form; empty where no Airflow is known.
    """

    check_id: str
    severity: Severity
    description: str
    status: Status = Status.FAILED
    suite: str = ""
    expectation: int = 0
    kind: str = ""
    subject: str = ""
    unexpected_count: int = 0
    observed: str = ""
    examples: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    remedy: str = ""
    remedy_conf: Mapping[str, Any] = field(default_factory=dict, hash=False)
    place: str = ""
    remedy_url: str = ""

    @classmethod
    def of_kind(cls, kind: K, checks: Mapping[K, tuple[str, Severity]], *, subject: str, words: str) -> Finding:
        """Return what a look at one thing has found.

        :param checks: check and severity of a kind; a kind that is left out is a warning of no check.
        :param words: what it is, and what to do.
        """
        check_id, severity = checks.get(kind, ("", Severity.WARNING))
        return cls(check_id=check_id, severity=severity, kind=kind, subject=subject, description=words)

    @property
    def check(self) -> Check | None:
        """The check that it is part of; none for what no check is about."""
        return check(self.check_id) if self.check_id else None

    @property
    def title(self) -> str:
        """What is checked, in few words."""
        return self.check.title if self.check else self.kind.replace("_", " ").capitalize()

    @property
    def priority(self) -> Priority:
        """How urgent a failure is."""
        of_check = self.check.priority_of(self.severity) if self.check else None
        return of_check if of_check and of_check.severity is self.severity else Priority.of(self.severity)

    @property
    def passed(self) -> bool:
        """Whether it holds; false where nobody could look."""
        return self.status is Status.PASSED

    @property
    def broken(self) -> str:
        """Why the check could not be made; empty where it was."""
        return self.observed if self.status is Status.BROKEN else ""

    @property
    def words(self) -> str:
        """What it is, as findings of partitions and of the event broker call it."""
        return self.description

    @property
    def urgent(self) -> bool:
        """Whether it must not wait."""
        return self.severity is Severity.CRITICAL

    @property
    def urgency(self) -> tuple[int, int]:
        """Sorts findings: what fails a run first, what passed last."""
        order = (Status.BROKEN, Status.FAILED, Status.KNOWN, Status.PASSED)
        return order.index(self.status), list(Priority).index(self.priority)

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        if self.status is Status.BROKEN:
            return _BROKEN
        return "" if self.passed or self.check is None else self.check.advice

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
        if self.check and self.check.command:
            return f"queuekeeper {self.check.command}"
        remedy = self._remedy if self.remedy else None
        return remedy.command_line(self.remedy_conf, shell_prefix=shell_prefix) if remedy else ""

    def with_remedy(self, *, besides: Mapping[str, Any] | None = None, **values: Any) -> Finding:
        """Return it with the DAG that mends it and its form, filled in; unchanged where a person has to look.

        :param besides: further fields of the form.
        :param values: what the forms of remedies are filled in with; the form keeps its default where one is missing.
        """
        remedy = self._remedy
        if remedy is None:
            return self
        return replace(self, remedy=remedy.dag_id, remedy_conf=remedy.filled(**values) | dict(besides or {}))

    def with_form(self, values: Mapping[str, Any], *, forms_url: str) -> Finding:
        """Return it with the address of its remedy's form.

        :param values: connections, for forms that take them.
        :param forms_url: address below which forms of DAGs are opened; empty for none.
        """
        if not self.is_mendable:
            return self
        remedy = self._remedy
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
        """Return it as JSON, for ``--json``, XCom and reports."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        return stored | {
            "severity": str(self.severity),
            "status": str(self.status),
            "kind": str(self.kind),
            "examples": [dict(each) for each in self.examples],
            "remedy_conf": dict(self.remedy_conf),
            "title": self.title,
            "priority": str(self.priority),
            "advice": self.advice,
            "command": self.command(),
            "trigger": self.trigger,
            "words": self.words,
            "urgent": self.urgent,
        }

    def summary(self) -> dict[str, Any]:
        """Return it without any client's id, for XCom; ``check`` and ``unexpected`` are names of earlier releases."""
        return self.without_client_ids().facts() | {"check": self.check_id, "unexpected": self.unexpected_count}

    @property
    def _remedy(self) -> Remedy | None:
        return self.check.remedy_of(self.severity) if self.check else None
