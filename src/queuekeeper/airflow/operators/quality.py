"""Profiles, checks, reports and publishes the quality of queues as tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from queuekeeper.airflow.assets import SESSION_QUALITY
from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.notifiers import Event, notifiers
from queuekeeper.airflow.operators.asked import AskedOperator, AsksOperator, argument
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.run_index import forms_url, publish
from queuekeeper.airflow.settings import task_settings
from queuekeeper.clock import system_clock
from queuekeeper.facts import brief
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.resources import POSTGRES_CONNECTION
from queuekeeper.quality.judge.gate import standing_failures
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import (
    PROFILED,
    READ,
    ProfileParameters,
    ProfilePlace,
    ProfileRules,
    QualityWish,
    profile_folder,
    turn_of,
)
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context


def id_of(context: Context, *more: str) -> str:
    """Return an id of 16 hex digits that stays the same when a task of a run is retried."""
    run = context["dag_run"]
    return hashlib.sha256(json.dumps([run.dag_id, run.run_id, *more]).encode()).hexdigest()[:16]


def turn_at(context: Context, wish: QualityWish) -> int:
    """Return the turn that a fast run reads: that of the form, or that of the run's time."""
    run = context["dag_run"]
    return turn_of(run.logical_date or run.run_after) if wish.turn is None else wish.turn


def subjects_of(wish: QualityWish) -> tuple[str, ...]:
    """Return the stores and the kinds of queues that a run judges."""
    return (*PROFILED.get(wish.stores, ()), *READ.get(wish.stores, ()))


class ProfileQueuesOperator(AskedOperator, QueuekeeperSparkOperator):
    """Read the queues of one store and write a row of numbers for each; nothing is written to the store.

    :param store: ``redis`` or ``postgres`` (templated).
    """

    models = (QualityWish, ProfileRules)
    job = "profile_queues.py"
    store: str = argument()

    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Return the store, and the parameters of the profile."""
        wish, rules = self.read(QualityWish), self.read(ProfileRules)
        if wish.parquet_directory:
            # What cannot be opened is told before Spark starts.
            profile_folder(wish.parquet_directory)
        place = ProfilePlace.of_texts(
            {
                "store": self.store,
                # A task that is retried replaces the profile of the earlier try.
                "profile_id": id_of(context, self.store),
                "parquet_directory": wish.parquet_directory,
            }
        )
        chosen: dict[str, Any] = {"mode": wish.suite, "turn": turn_at(context, wish)}
        return place, ProfileParameters(**asdict(rules), **chosen)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Return the totals of the profile."""
        reject_unknown_of(context)
        wish = self.read(QualityWish)
        if self.store not in PROFILED.get(wish.stores, ()):
            raise AirflowSkipException(f"this run judges {wish.stores}")
        # Great Expectations takes seconds to import, which no other task should pay for.
        from queuekeeper.quality.judge.run import judging  # noqa: PLC0415

        # Checked before the stores are read: a store that cannot be judged need not be profiled.
        judging(subjects_of(wish), compare=wish.compare)
        return super().execute(context)


class RunQualityOperator(AskedOperator, StoresOperator):
    """Judge the profiles of a run by the suites and record the findings; a later task fails the run.

    :param profiles: return values of the profile tasks; ``None`` for a task that was skipped (templated).
    :param postgres_conn_id: connection of the control database (templated).
    :param redis_conn_id: connection of the Redis servers, whose settings are read if the run judges Redis (templated).
    """

    models = (QualityWish, ProfileRules)
    operator_extra_links = (ReportLink(ReportKind.QUALITY),)
    ui_color = "#d9e9d9"
    profiles: Sequence[Any] = argument()

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the verdict and the checks that did not pass, without any client."""
        # Great Expectations takes seconds to import, which no other task should pay for.
        from queuekeeper.quality.judge.run import judging, run_quality  # noqa: PLC0415

        profiles: list[Mapping[str, Any]] = [profile for profile in self.profiles if profile]
        wish, rules = self.read(QualityWish), self.read(ProfileRules)
        subjects = subjects_of(wish)
        suites, on_redis = judging(subjects, compare=wish.compare)
        self.log.info("Judging %s by %s", ", ".join(subjects) or wish.stores, ", ".join(suites))
        turn = turn_at(context, wish) if wish.stores in READ and wish.suite == "fast" else None
        report = run_quality(
            postgres_url=self.postgres_hook.url,
            profile_ids=[profile["profile_id"] for profile in profiles],
            suites=suites,
            quality_run_id=id_of(context),
            now=datetime.fromtimestamp(system_clock() / 1_000, UTC),
            redis_url=self.redis_hook.url if on_redis else None,
            key_prefix=rules.key_prefix,
            turn=turn,
            throttle_references_per_s=rules.throttle_references_per_s,
            data_docs=Path(wish.data_docs) if wish.data_docs else None,
        )
        if wish.data_docs:
            self.log.info("Data Docs: %s", Path(wish.data_docs) / "index.html")
        connections = {"postgres_conn_id": self.postgres_conn_id, "redis_conn_id": self.redis_conn_id}
        forms = forms_url()
        told = brief(
            replace(report, results=tuple(each.with_form(connections, forms_url=forms) for each in report.results))
        )
        for finding in told["findings"]:
            self.log.warning("%(priority)s %(check)s %(status)s: %(description)s (%(unexpected)s found)", finding)
        for issue in report.overdue:
            self.log.warning("The known issue of %s ended on %s; owner: %s", issue.check_id, issue.ends_on, issue.owner)
        self.log.info(
            "Quality run %s: %s; %s queues, %s messages", report.quality_run_id, report.verdict, report.queues,
            report.messages,
        )  # fmt: skip
        return told


class ReportQualityOperator(StoresOperator):
    """Write the report of a quality run, passed or failed, as HTML and JSON.

    :param quality_run_id: id of the quality run (templated).
    :param postgres_conn_id: connection of the control database; also filled into forms of remedies (templated).
    :param redis_conn_id: connection that is filled into forms of remedies (templated).
    """

    operator_extra_links = (ReportLink(ReportKind.QUALITY),)
    quality_run_id: str = argument()

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the verdict and the places of the files."""
        # Only this task draws charts.
        from queuekeeper.quality.report.gather import build_report, write_report  # noqa: PLC0415

        with self.postgres_hook.connect() as connection:
            report = build_report(
                connection,
                quality_run_id=self.quality_run_id,
                now_ms=system_clock(),
                forms_url=forms_url(),
                form_values={"postgres_conn_id": self.postgres_conn_id, "redis_conn_id": self.redis_conn_id},
            )
        where = publish(write_report(report, task_settings().reports), context)
        self.log.info("Quality run %s: %s; report %s", self.quality_run_id, report.verdict, where["html"])
        return report.summary() | where


class PublishQualityOperator(AsksOperator):
    """Publish that the queues are in order, or fail so that dependent DAGs wait.

    A critical finding fails the task; so does a critical finding of an earlier fast run whose cohorts no run has read
    again. A run that judges only events, partitions, compacted or fan-out queues says nothing about sessions: without a
    critical finding, the task is skipped.

    :param judgement: return value of :class:`RunQualityOperator` (templated).
    :param postgres_conn_id: connection of the control database (templated).
    """

    operator_extra_links = (ReportLink(ReportKind.QUALITY),)
    judgement: Mapping[str, Any] = argument()
    postgres_conn_id: str = argument(POSTGRES_CONNECTION)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(outlets=[SESSION_QUALITY], **kwargs)
        told = [each for each in notifiers(Event.QUALITY_GATE) if each not in self.on_failure_callback]
        self.on_failure_callback = [*self.on_failure_callback, *told]

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the verdict that dependents get."""
        verdict, findings = Verdict(self.judgement["verdict"]), self.judgement["findings"]
        if verdict is Verdict.FAILED:
            worst = [
                f"{finding['check']} {finding['status']}, {finding['unexpected']:,} found; it expects: "
                f"{finding['description']}"
                for finding in findings
                if finding["priority"] == "P0" or finding["status"] == "broken"
            ]
            raise AirflowFailException(
                f"The queues are not in order; dependents of {SESSION_QUALITY.uri} wait. "
                f"{' '.join(worst)} The report of this run says how to repair them"
            )
        if not self.judgement["stores"]:
            raise AirflowSkipException(f"this run has not judged sessions: {SESSION_QUALITY.uri} stays as it is")
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection:
            now = datetime.fromtimestamp(system_clock() / 1_000, UTC)
            standing = standing_failures(QualityStore(connection), now=now)
        if standing:
            names = ", ".join(failure.quality_run_id for failure in standing[:5])
            raise AirflowFailException(
                f"This run is in order, but cohorts that failed in {len(standing)} earlier runs ({names}) have not "
                f"been read since as thoroughly; dependents of {SESSION_QUALITY.uri} wait. Repair them and make a full "
                "run of all queues with the same stores, contents and comparison"
            )
        told = {
            "quality_run_id": self.judgement["quality_run_id"],
            "verdict": str(verdict),
            "warnings": sum(finding["priority"] == "P1" for finding in findings),
        }
        if verdict is Verdict.WARNED:
            self.log.warning("Passed with warnings: %s", ", ".join(sorted({each["check"] for each in findings})))
        context["outlet_events"][SESSION_QUALITY].extra = told
        return told
