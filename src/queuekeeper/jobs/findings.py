"""A finding: one record of what is wrong with queues, partitions or the event broker, and of the form that mends it.

Quality judgements, maintenance of partitions and upkeep of the event broker make findings. ``quality_results`` stores
them; ``--json``, tables, XCom, pages and reports show them unchanged.
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

_BROKEN = "The check could not be made and proves nothing: mend the cause named above, then run queue_quality again."


class Status(StrEnum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"  # failed, and a person has accepted the fault until a day
    BROKEN = "broken"  # the check could not be made: it proves nothing


_FOUND = {Status.FAILED, Status.KNOWN}

_FIRST_COLUMNS = ("client_hash", "client_id", "cohort")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check.

    :param check_id: number of the check, see :mod:`queuekeeper.jobs.checks`; empty for a finding of no check.
    :param description: what should hold; for partitions and the event broker, what is wrong and what to do.
    :param suite: suite with the expectation; empty for a finding of no suite.
    :param expectation: number of the expectation in the suite, from 1.
    :param kind: which fault it is, where a check finds several.
    :param subject: partition, range, table or condition; empty for a finding about many queues.
    :param unexpected_count: rows, most often queues, that break the expectation.
    :param observed: what was observed, in words; for a broken check, why it could not be made.
    :param examples: hashed client ids with the values that were checked; never a payload. A client's own id is never
        stored, also where a person asked to see it.
    :param remedy: DAG that mends the fault; empty where a person has to look.
    :param remedy_conf: the DAG's form, filled in; where no DAG mends the fault, what its command needs to know.
    :param place: servers and key prefix that were checked.
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
        """Return a finding of a partition, a table or a condition.

        :param checks: check and severity of each kind; a kind that is left out is a warning of no check.
        :param words: what is wrong, and what to do.
        """
        check_id, severity = checks.get(kind, ("", Severity.WARNING))
        return cls(check_id=check_id, severity=severity, kind=kind, subject=subject, description=words)

    @property
    def check(self) -> Check | None:
        """The check of the finding; none for a finding of no check."""
        return check(self.check_id) if self.check_id else None

    @property
    def title(self) -> str:
        """Title of the check."""
        return self.check.title if self.check else self.kind.replace("_", " ").capitalize()

    @property
    def priority(self) -> Priority:
        """How urgent a failure is."""
        of_check = self.check.priority_of(self.severity) if self.check else None
        return of_check if of_check and of_check.severity is self.severity else Priority.of(self.severity)

    @property
    def example_columns(self) -> list[str]:
        """Names of the values of its examples: queue and cohort first; stored examples have lost their order."""
        names = {name for row in self.examples for name in row}
        return [name for name in _FIRST_COLUMNS if name in names] + sorted(names - {*_FIRST_COLUMNS})

    @property
    def passed(self) -> bool:
        """Whether the check passed; false for a broken check."""
        return self.status is Status.PASSED

    @property
    def broken(self) -> str:
        """Why the check could not be made; empty where it was made."""
        return self.observed if self.status is Status.BROKEN else ""

    @property
    def words(self) -> str:
        """What is wrong and what to do; another name of ``description``."""
        return self.description

    @property
    def urgent(self) -> bool:
        """Whether the finding must not wait."""
        return self.severity is Severity.CRITICAL

    @property
    def urgency(self) -> tuple[int, int]:
        """Key that sorts findings: those that fail a run first, passed checks last."""
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
        """Whether a DAG mends the fault; never for a broken check."""
        return bool(self.remedy) and self.status in _FOUND

    @property
    def remedy_name(self) -> str:
        """Name of the remedy."""
        return str(self.remedy_conf.get("remedy", self.remedy))

    @property
    def trigger(self) -> str:
        """Airflow command that starts the remedy with its filled-in form; empty where there is no remedy."""
        if not self.is_mendable:
            return ""
        conf = json.dumps(self.remedy_conf, ensure_ascii=False)
        return f"airflow dags trigger {shlex.quote(self.remedy)} --conf {shlex.quote(conf)}"

    def command(self, *, shell_prefix: str = "") -> str:
        """Return the command of ``queuekeeper`` that plans, and then begins, to mend the fault; empty for none.

        :param shell_prefix: key prefix that the shell's environment sets for commands.
        """
        if self.status not in _FOUND:
            return ""
        if self.check and self.check.command:
            named = (str(row["client_id"]) for row in self.examples if "client_id" in row)
            return self.check.command_line(self.remedy_conf, client_id=next(named, None), shell_prefix=shell_prefix)
        remedy = self._remedy if self.remedy else None
        return remedy.command_line(self.remedy_conf, shell_prefix=shell_prefix) if remedy else ""

    def with_remedy(self, *, besides: Mapping[str, Any] | None = None, **values: Any) -> Finding:
        """Return the finding with its remedy and the filled-in form; without a DAG, with what its command needs.

        :param besides: further fields of the form.
        :param values: values for the form; fields without a value keep their default.
        """
        remedy = self._remedy
        if remedy is None:
            return replace(self, remedy_conf=self.check.form_of(**values)) if self.check else self
        return replace(self, remedy=remedy.dag_id, remedy_conf=remedy.filled(**values) | dict(besides or {}))

    def with_form(self, values: Mapping[str, Any], *, forms_url: str) -> Finding:
        """Return the finding with the address of its remedy's form.

        :param values: connections, for forms that name connections.
        :param forms_url: address below which Airflow opens the forms of DAGs; empty for none.
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
        """Return the finding without client ids."""
        hashed = tuple({name: row[name] for name in row if name != "client_id"} for row in self.examples)
        return replace(self, examples=hashed)

    def facts(self) -> dict[str, Any]:
        """Return the finding as JSON values, for ``--json``, XCom and reports."""
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
        """Return the finding without client ids, for XCom; ``check`` and ``unexpected`` are names of old releases."""
        return self.without_client_ids().facts() | {"check": self.check_id, "unexpected": self.unexpected_count}

    @property
    def _remedy(self) -> Remedy | None:
        return self.check.remedy_of(self.severity) if self.check else None
