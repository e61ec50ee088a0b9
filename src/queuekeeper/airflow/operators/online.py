"""Runs the steps of a migration with connected devices as tasks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.forms import reject_unknown_of, template
from queuekeeper.airflow.operators.approval import AnswerOperator
from queuekeeper.airflow.operators.asked import Ask, argument
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.waits import ENDED, PausableOperator, count_tasks
from queuekeeper.audit import record_answer
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed, ServerUnavailable
from queuekeeper.facts import brief
from queuekeeper.jobs.pace import control_of
from queuekeeper.keyspace import parse_cohorts
from queuekeeper.migration.ledger.parameters import Lease, Mode, OnlineWish, RollbackWish, steps_of
from queuekeeper.migration.online.checks import check_approval_age
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.reports import StepReport, staying
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class OnlineOperator(PausableOperator, StoresOperator):
    """A step of a migration with connected devices; it is skipped when the broker is stopped.

    While the migration is paused, the task finishes the clients that it has begun, gives its worker slot back, and
    checks again once a minute. After the pause, a step that changes owners continues with the clients that are left,
    and any other step starts again with all.

    :cvar rests: whether the step does nothing while the migration is paused.

    :param plan_id: id of the plan (templated).
    :param mode: mode of the migration, which says whether devices are connected (templated).
    :param cohorts: cohorts to work on; if empty, all that have reached this step (templated).
    :param postgres_conn_id: connection of source and control database (templated).
    :param redis_conn_id: connection of the target (templated).
    """

    rests = False
    plan_id: str = argument()
    mode: str = argument(template("mode"))
    cohorts: str = argument("")
    lease_ms = Ask(Lease)

    def work(self, context: Context) -> Any:
        """Do the step, or the rest of it after a pause, or skip it.

        :raises RunPaused: when the migration is paused.
        """
        if self.mode != Mode.ONLINE:
            raise AirflowSkipException("the broker is stopped: no client has to change its owner")
        if self.rests:
            with self.postgres_hook.ledger() as ledger:
                control_of(ledger, self.plan_id, paused=lambda: None, stays=False)
        run = context["dag_run"]
        driver = OnlineDriver(
            postgres_url=self.postgres_hook.url,
            redis_url=self.redis_hook.url,
            plan_id=self.plan_id,
            actor=f"{run.triggering_user_name or 'a schedule'} (run {run.run_id})",
            lease_ms=self.read(Lease).lease_ms,
            tell=self.log.info,
            # A paused task gives its worker slot back.
            stays=False,
        )
        return self.step(driver)

    @abstractmethod
    def step(self, driver: OnlineDriver) -> Any:
        """Do the step and return what was done since the last pause."""

    def chosen(self) -> list[int] | None:
        """Return the cohorts to work on; ``None`` means all that have reached this step."""
        if not self.cohorts:
            return None
        with self.postgres_hook.ledger() as ledger:
            return list(parse_cohorts(self.cohorts, count=len(ledger.load_plan(self.plan_id).cohorts)))

    def told(self, report: StepReport) -> dict[str, Any]:
        """Write a report to the log and return it; only the step's own log names clients.

        :raises CheckFailed: when clients could not be moved.
        """
        self.log.info("%s", report.words)
        if report.left:
            raise CheckFailed(f"{report.left_words}: clear this task to try again")
        return brief(report)


class ArmCohortsOperator(OnlineOperator):
    """Make every writer check who owns a client; with the broker stopped nobody writes, and the task does nothing."""

    require_trigger = Ask(OnlineWish)

    def execute(self, context: Context) -> Any:
        """Arm the chosen cohorts of the plan."""
        if self.mode != Mode.ONLINE:
            self.log.info("The broker is stopped: no writer has to check who owns a session")
            return None
        return super().execute(context)

    def step(self, driver: OnlineDriver) -> Any:
        """Arm the cohorts."""
        return self.told(driver.arm(self.chosen(), require_trigger=self.read(OnlineWish).require_trigger))


class CatchUpOperator(OnlineOperator):
    """Bring the copies up to date with the source, then compare every client."""

    rests = True

    def step(self, driver: OnlineDriver) -> Any:
        """Copy what has changed since the first copy, and compare."""
        self.told(driver.catch_up(self.chosen()))
        return self.told(driver.verify(self.chosen()))


class RehearseOperator(OnlineOperator):
    """Move the canary to Redis and back, before any other client is moved."""

    rests = True
    canary_percent = Ask(OnlineWish)

    def step(self, driver: OnlineDriver) -> Any:
        """Move the canary to Redis and back."""
        canary = driver.choose_canary(self.read(OnlineWish).canary_percent)
        self.log.info("The canary: cohorts %s", ", ".join(map(str, canary)))
        return [self.told(report) for report in driver.rehearse()]


class CutOverOperator(OnlineOperator):
    """Move clients to Redis, a share of the cohorts at a time, the canary first."""

    rests = True
    steps_percent = Ask(OnlineWish, name="canary_steps_percent")
    approval_limit_minutes = Ask(OnlineWish)

    def execute(self, context: Context) -> Any:
        """Check the approval first; a later pause does not make it expire."""
        if self.mode == Mode.ONLINE and not self.looks_again:
            minutes = self.read(OnlineWish).approval_limit_minutes
            with self.postgres_hook.ledger() as ledger:
                check_approval_age(ledger, self.plan_id, limit_s=60 * minutes)
        return super().execute(context)

    def step(self, driver: OnlineDriver) -> Any:
        """Move the clients step by step; the mirror is brought up to date after each step."""
        found = []
        for percent in steps_of(self.read(OnlineWish).canary_steps_percent):
            report = driver.cut_over_share(percent)
            if report is None:
                self.log.info("%s %%: is on Redis already", percent)
                continue
            found.append(self.told(report))
            mirrored = driver.mirror()
            self.log.info("%s %%: on Redis; the mirror was %.1f s behind", percent, mirrored.lag_s)
        return found


class SoakOperator(OnlineOperator):
    """Watch all cohorts on Redis for the soak time while the mirror works.

    While it waits, the task holds no worker slot: the triggerer resumes it once a minute. The database records when the
    soak began, so a task that is retried or cleared continues. A pause stops neither the soak time nor the mirror;
    clients are compared after the pause.
    """

    soak_minutes = Ask(OnlineWish)

    def step(self, driver: OnlineDriver) -> Any:
        """Check the mirror and wait for the next check; compare every client at the end."""
        report = driver.look_at_soak(minutes=self.read(OnlineWish).soak_minutes)
        if not report.is_over:
            self.log.info("%.0f s left; mirror: %s", report.left_s, report.words)
            self.park(at_most_s=report.left_s)
        self.told(driver.verify())
        return brief(report)


class MirrorOperator(OnlineOperator):
    """Keep the mirror up to date, once a minute, until another task of the run has ended, and once more then.

    In between the task holds no worker slot. A server that is away is asked again a minute later.

    :param until: id of the other task: one that asks a person whether the mirror is to end.
    :ivar is_last: whether the other task has ended, so that this pass is the last one.
    """

    until: str = argument()
    is_last = True

    def work(self, context: Context) -> Any:
        """Bring the mirror up to date, and defer unless the other task has ended before."""
        self.is_last = count_tasks(context, self.until, states=ENDED, run_ids=[context["dag_run"].run_id]) > 0
        try:
            return super().work(context)
        except ServerUnavailable as error:
            if self.is_last:
                raise
            self.log.warning("the mirror stands still: %s", error)
            self.park()

    def step(self, driver: OnlineDriver) -> Any:
        """Write what has changed in the target to the source."""
        report = driver.mirror()
        self.log.info("mirror: %s", report.words)
        if not self.is_last:
            self.park()
        return brief(report)


class AnsweredOnlineOperator(AnswerOperator, OnlineOperator):
    """A step that needs a person's approval."""

    def take_answer(self, context: Context, *, kind: str, store: str = "Redis") -> None:
        """Record the answer of a person.

        :param kind: kind of the question, for the audit.
        :param store: store named in messages as not written to.
        :raises RefusedError: unless a person has approved.
        """
        with self.postgres_hook.connect() as connection:
            self.answer(
                context,
                subject=self.plan_id,
                note=lambda answer: record_answer(connection, answer, subject=self.plan_id, kind=kind),
                store=store,
            )


class CommitOperator(AnsweredOnlineOperator):
    """End the mirror after a person has approved that there is no way back."""

    def execute(self, context: Context) -> Any:
        """Check the answer first."""
        if self.mode == Mode.ONLINE:
            self.take_answer(context, kind="online_commit")
        return super().execute(context)

    def step(self, driver: OnlineDriver) -> Any:
        """End the mirror."""
        return self.told(driver.commit())


class LookAtCohortsOperator(OnlineOperator):
    """Report what a rollback would return to PostgreSQL, and how far the mirror is; nothing is changed."""

    mode: str = argument(str(Mode.ONLINE))

    def execute(self, context: Context) -> Any:
        """Refuse parameters that the form does not have, then do the step."""
        reject_unknown_of(context)
        return super().execute(context)

    def step(self, driver: OnlineDriver) -> Any:
        """Return the number of clients, the question to a person, and the facts as Markdown."""
        found = driver.on_redis(self.chosen())
        lag = driver.mirror(found, dry_run=True)
        committed = driver.committed_before(found)
        stay = staying(committed)
        markdown = (
            f"Plan {self.plan_id}: Redis has {number_of(lag.clients, 'client')} of {number_of(len(found), 'cohort')}. "
            f"The mirror is {lag.lag_s:,.1f} s behind for {lag.behind:,} of them. A fence lasts at most "
            f"{driver.lease_ms:,} ms.{stay}"
        )
        self.log.info("%s", markdown)
        question = f"Give {number_of(lag.clients, 'client')} back to PostgreSQL?{stay}"
        looked = {"clients": lag.clients, "committed": committed, "cohorts": len(found), "lag_s": lag.lag_s}
        return {**looked, "question": question, "markdown": markdown}


class RollBackOperator(AnsweredOnlineOperator):
    """Return the clients of cohorts to PostgreSQL, with all that Redis holds of them.

    While the mirror is too far behind, the task holds no worker slot; once a minute it brings the mirror up to date.
    """

    rests = True
    mode: str = argument(str(Mode.ONLINE))
    max_lag_s = Ask(RollbackWish)
    mirror_wait_minutes = Ask(RollbackWish, default=RollbackWish().mirror_wait_minutes)

    def execute(self, context: Context) -> Any:
        """Check the answer first, once."""
        if not self.looks_again:
            self.take_answer(context, kind="online_roll_back", store="either store")
        return super().execute(context)

    def step(self, driver: OnlineDriver) -> Any:
        """Bring the mirror up to date, or wait until the source accepts the changes; then return the clients."""
        wish, chosen = self.read(RollbackWish), self.chosen()
        now_ms = system_clock()
        since_ms = self.waits_since_ms or now_ms
        left_s = 60 * wish.mirror_wait_minutes - (now_ms - since_ms) / 1_000
        mirrored = driver.mirror(chosen)
        if left_s > 0 and (words := driver.too_far_behind(chosen, max_lag_s=wish.max_lag_s)):
            why = f"; the source does not take the changes of {mirrored.reason}" if mirrored.refused else ""
            self.log.info("%s are allowed; it waits for %.0f s more at most%s", words, left_s, why)
            self.park(at_most_s=left_s, since_ms=since_ms)
        return self.told(driver.roll_back(chosen, max_lag_s=wish.max_lag_s))
