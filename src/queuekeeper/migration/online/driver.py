"""Leads cohorts to the target and back, client by client, with several movers side by side.

A driver first takes its cohorts over, and stops at its next write when another driver has taken them. Every step can be
repeated; a repetition finds what is done already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from queuekeeper import audit
from queuekeeper.clock import Clock
from queuekeeper.errors import CheckFailed, MovedOn, NotOwner, RefusedError, StaleEpoch
from queuekeeper.keyspace import client_slot
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, LedgerRow, MigrationPlan, PlanState
from queuekeeper.migration.ledger.parameters import BadRows, Lease, StepWish
from queuekeeper.migration.online.brake import Limits
from queuekeeper.migration.online.checks import (
    check_clean,
    check_servers,
    check_skew,
    check_trigger,
    servers_clock,
    servers_of,
)
from queuekeeper.migration.online.clients import clients_of
from queuekeeper.migration.online.cohorts import OnlineCohort, OnlineCohorts, check_armed
from queuekeeper.migration.online.crew import PUT_ASIDE, Crew, all_clients, pages
from queuekeeper.migration.online.inside_redis import clients_to_move
from queuekeeper.migration.online.mover import SessionMover, rules_of
from queuekeeper.migration.online.reports import MirrorReport, SoakReport, StepReport, Tally, check_moved, joined
from queuekeeper.migration.online.states import BEGINS, MIRRORED, OnlineState, ends
from queuekeeper.postgres import Connection, connect
from queuekeeper.redis_client import RedisClient, clocks_ms, is_cluster
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.judge import client_defect
from queuekeeper.sessions.owners import Ownership, OwnerStore
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.snapshot import empty_snapshot
from queuekeeper.wording import number_of

_USUAL = StepWish()
_ON_THE_WAY_BACK = (OnlineState.ROLLING_BACK, OnlineState.COPYING, OnlineState.CAUGHT_UP)


class OnlineDriver:
    """Leads the cohorts of one plan.

    :param actor: person or program that asked for it, for the audit.
    :param lease_ms: longest time that a client is fenced, 50 to 1,000 milliseconds.
    :param count: movers that work side by side.
    :param clock: clock that tells whether a message has expired; none for the clock of the servers.
    :param tell: prints a line of progress.
    :param stays: whether a step waits while the migration is paused; otherwise it raises
        :class:`~queuekeeper.jobs.pace.RunPaused`, and continues where it stopped when it is called again.
    """

    def __init__(
        self,
        *,
        postgres_url: str,
        redis_url: str,
        plan_id: str,
        actor: str,
        lease_ms: int = _USUAL.lease_ms,
        count: int = _USUAL.movers,
        limits: Limits | None = None,
        clock: Clock | None = None,
        tell: Callable[[str], None] = print,
        stays: bool = True,
    ) -> None:
        self._postgres_url = postgres_url
        self._redis_url = redis_url
        self._plan_id = plan_id
        self._actor = actor
        self.lease_ms = Lease(lease_ms=lease_ms).lease_ms
        self._count = count
        self._limits = limits or Limits()
        self._clock = clock
        self._tell = tell
        self._stays = stays

    # --- steps on the way --------------------------------------------------------------------------------------

    def arm(self, cohorts: Sequence[int] | None = None, *, require_trigger: bool = False) -> StepReport:
        """Have every write to these cohorts' clients check who owns them; the source stays the owner.

        Waits until all writers that began before this have ended.

        :param require_trigger: refuse to arm unless PostgreSQL refuses writers that do not ask who owns a session.
        :raises RefusedError: when the clocks of the servers differ too much, another plan moves the same slots, the
            trigger for other writers is required and missing, or a message makes a value too large for Redis.
        """
        begun = time.monotonic()
        with self._opened() as (connection, client, online, plan):
            check_skew(connection, client)
            if require_trigger:
                check_trigger(connection)
            wanted = online.to_arm(plan) if cohorts is None else list(cohorts)
            self._check_values(connection, client, plan, wanted)
            online.arm(plan, wanted, actor=self._actor)
            owners = OwnerStore(connection)
            owners.wait_for_writers()
            if plan.parameters.inside_redis:
                made = owners.make_owners(clients_to_move(client, plan, wanted))
            else:
                with connect(self._postgres_url) as reader:
                    made = owners.make_owners(clients_of(reader, plan, wanted))
            # From here on all their clients are on record; a driver at work goes on.
            if new := [each.cohort for each in online.load(self._plan_id, wanted) if not each.driver]:
                online.take(self._plan_id, new)
        tally = Tally(clients=made)
        return tally.report(self._plan_id, "arm", wanted, seconds=time.monotonic() - begun)

    def catch_up(self, cohorts: Sequence[int] | None = None) -> StepReport:
        """Make the copies in the target equal to what the source holds, without a fence.

        :raises RefusedError: when a message that has come since makes a value too large for Redis.
        """
        with self._opened() as (connection, client, online, plan):
            states = (OnlineState.COPYING, OnlineState.CAUGHT_UP, OnlineState.VERIFIED)
            found = online.chosen(self._plan_id, cohorts, states, verb="catch up")
            check_armed(found, self._plan_id)
            numbers = [each.cohort for each in found]
            self._check_values(connection, client, plan, numbers)
            driver = online.take(self._plan_id, numbers)
            # This step repairs the copies, so only a failover while it works matters.
            online.note_servers(self._plan_id, numbers, driver=driver, servers=servers_of(connection, client))
            online.move(self._plan_id, numbers, driver=driver, after=OnlineState.COPYING, actor=self._actor)
            report = self._crew(plan, driver).each(
                "catch up",
                online,
                found,
                owner=plan.parameters.source_owner,
                work=SessionMover.sync,
                count=Tally.compared,
            )
            online.move(self._plan_id, numbers, driver=driver, after=OnlineState.CAUGHT_UP, actor=self._actor)
        return report

    def verify(self, cohorts: Sequence[int] | None = None) -> StepReport:
        """Compare every client in both stores; cohorts without a difference may be cut over.

        A copy that is behind is brought up to date before it is compared, since its client may be at work.

        :raises CheckFailed: when clients differ; the cohorts keep their state.
        """
        with self._opened() as (connection, client, online, plan):
            states = (OnlineState.COPYING, OnlineState.CAUGHT_UP, OnlineState.VERIFIED, *MIRRORED)
            found = online.chosen(self._plan_id, cohorts, states, verb="verify")
            check_armed(found, self._plan_id)
            numbers = [each.cohort for each in found]
            driver = online.take(self._plan_id, numbers)
            # The servers are noted first, so that a failover during the comparison shows.
            online.note_servers(self._plan_id, numbers, driver=driver, servers=servers_of(connection, client))
            tally = Tally()
            report = self._crew(plan, driver).each(
                "verify",
                online,
                found,
                owner=None,
                work=SessionMover.compare,
                count=Tally.verified,
                tally=tally,
            )
            different = report.clients - report.outcomes.get("equal", 0) - report.kept
            if different:
                example, reason = report.examples[0]
                mirrored = any(each.state in MIRRORED for each in found)
                step, back = ("roll-back", "roll back") if mirrored else ("catch-up", "catch up again")
                advice = f"{back} by `queuekeeper online {step} {self._plan_id}`"
                raise CheckFailed(
                    f"{different:,} of {number_of(report.clients, 'client')} differ, the first {example!r}: {reason}; "
                    f"{advice}, and look into it when they still differ"
                )
            for client_id, messages in self._counted(connection, client, online, plan, found).items():
                tally.quarantined[client_slot(client_id)] += messages
            now_ms = self._now_ms(connection, client)
            online.clean(self._plan_id, numbers, driver=driver, at_ms=now_ms)
            _write_ledger(MigrationLedger(connection), plan, found, tally, now_ms=now_ms)
            caught_up = [each.cohort for each in found if each.state is OnlineState.CAUGHT_UP]
            online.move(self._plan_id, caught_up, driver=driver, after=OnlineState.VERIFIED, actor=self._actor)
        return report

    def cut_over(self, cohorts: Sequence[int] | None = None) -> StepReport:
        """Give the clients of verified cohorts to the target, the quietest first; those that it has stay.

        :raises RefusedError: when a cohort is not verified, has to be verified again, or the canary was not rehearsed
            yet.
        """
        with self._opened() as (connection, client, online, plan):
            states = BEGINS["cut over"]
            done = ends("cut over", leaves_clients=plan.parameters.bad_rows is BadRows.LEAVE)
            chosen = online.chosen(self._plan_id, cohorts, states, verb="cut over", done=done)
            found = [each for each in chosen if each.state not in done]
            if not found:
                return self._cut_over_kept(connection, client, online, chosen, plan)
            check_clean(found)
            numbers = [each.cohort for each in found]
            self._check_canary(online, numbers)
            driver = online.take(self._plan_id, numbers)
            check_servers(connection, client, self._plan_id, numbers, driver)
            online.move(self._plan_id, numbers, driver=driver, after=OnlineState.CUTTING_OVER, actor=self._actor)
            report = self._cut_over_each(plan, online, found, driver=driver)
            if report.left:
                return report
            # Clients that connect for the first time belong to the target from here on; some may have connected before.
            online.set_default_owner(self._plan_id, numbers, driver=driver, owner=plan.parameters.target_owner)
            late = self._cut_over_each(plan, online, found, driver=driver)
            if not late.left:
                self._tell_redis(found)
                online.move(self._plan_id, numbers, driver=driver, after=OnlineState.ON_REDIS, actor=self._actor)
        return joined(report, late)

    def _cut_over_kept(
        self,
        connection: Connection,
        client: RedisClient,
        online: OnlineCohorts,
        cohorts: Sequence[OnlineCohort],
        plan: MigrationPlan,
    ) -> StepReport:
        """Give Redis the clients that were kept in PostgreSQL and whose rows have been mended since."""
        numbers = [each.cohort for each in cohorts]
        if plan.parameters.bad_rows is not BadRows.LEAVE:
            return Tally().report(self._plan_id, "cut over", numbers, seconds=0.0)
        check_clean(cohorts)
        driver = online.take(self._plan_id, numbers)
        check_servers(connection, client, self._plan_id, numbers, driver)
        return self._cut_over_each(plan, online, cohorts, driver=driver)

    def _cut_over_each(
        self, plan: MigrationPlan, online: OnlineCohorts, cohorts: Sequence[OnlineCohort], *, driver: int
    ) -> StepReport:
        """Give the source's clients of cohorts to the target."""
        owner = plan.parameters.source_owner
        crew = self._crew(plan, driver)
        return crew.each("cut over", online, cohorts, owner=owner, work=SessionMover.cut_over, count=Tally.moved)

    def _tell_redis(self, cohorts: Sequence[OnlineCohort]) -> None:
        """Tell the target which clients it owns: a driver that died may not have done so."""
        with self._opened() as (connection, client, online, plan):
            owners = OwnerStore(connection)
            store = _target(client, plan)
            for each in cohorts:
                for page in pages(online, each, plan.parameters.target_owner):
                    settled = [known for known in owners.look_up(page).values() if known.fenced_until_ms is None]
                    # Redis refuses a smaller epoch than it has: another caller has told it a newer owner.
                    store.answer([store.operations.set_owner_call(known) for known in settled])

    def cut_over_share(self, percent: int) -> StepReport | None:
        """Give clients to the target until at least this percent of the chosen clients is there, the canary first.

        :returns: what was done; none when as many are there already.
        :raises RefusedError: when somebody else has rolled back clients of that share meanwhile.
        """
        with self._opened() as (_, _, online, plan):
            canary = online.control(self._plan_id).canary
            found = online.load(self._plan_id, share_of(plan, percent, first=canary))
            waiting = [each.cohort for each in found if each.state in BEGINS["cut over"]]
            if back := [str(each.cohort) for each in found if each.state in _ON_THE_WAY_BACK]:
                raise RefusedError(
                    f"cohorts {', '.join(back)} of plan {self._plan_id} are going back to the source, or have gone, "
                    "so no further client is given to the target: to cut over again, finish the way back, catch up and "
                    "verify"
                )
        return self.cut_over(waiting) if waiting else None

    def soak(self, cohorts: Sequence[int] | None = None, *, minutes: float) -> SoakReport:
        """Watch cohorts in the target until their soak is over, and keep the mirror up to date meanwhile.

        A soak counts from the moment at which its cohort began it, so an interrupted call may be repeated.

        :param minutes: length of the soak of each cohort.
        :raises CheckFailed: when the source still does not take a client's changes at the end.
        """
        while True:
            report = self.look_at_soak(cohorts, minutes=minutes)
            if report.is_over:
                return report
            self._tell(
                f"soak: {report.left_s:,.0f} s left, {number_of(report.clients, 'client')} mirrored, "
                f"{report.behind:,} behind by {report.lag_s:.1f} s"
            )
            time.sleep(min(1.0, report.left_s))

    def look_at_soak(self, cohorts: Sequence[int] | None = None, *, minutes: float) -> SoakReport:
        """Begin a soak, or see how far it is; bring the mirror up to date once.

        :param minutes: length of the soak of each cohort.
        :raises RefusedError: when a cohort is not in the target, or on its way back.
        :raises CheckFailed: when the time is over and the source does not take a client's changes.
        """
        with self._opened() as (connection, client, online, _plan):
            found = online.chosen(self._plan_id, cohorts, (OnlineState.ON_REDIS, OnlineState.SOAKING), verb="soak")
            numbers = [each.cohort for each in found]
            waiting = [each.cohort for each in found if each.state is OnlineState.ON_REDIS]
            if waiting:
                driver = online.take(self._plan_id, waiting)
                online.move(self._plan_id, waiting, driver=driver, after=OnlineState.SOAKING, actor=self._actor)
            # The soak ends with the cohort that began last.
            begun_at = max(each.step_at for each in online.load(self._plan_id, numbers))
            mirrored = self.mirror(numbers)
            now_ms = self._now_ms(connection, client)
        begun_ms, whole_s = round(1_000 * begun_at.timestamp()), 60 * minutes
        # Another server's clock may have noted the beginning: the soak must not become longer by that.
        left_s = min(whole_s, max(0.0, (begun_ms - now_ms) / 1_000 + whole_s))
        report = SoakReport(**vars(mirrored), begun_ms=begun_ms, left_s=left_s)
        if report.is_over and report.refused:
            raise CheckFailed(
                f"the source does not take the changes of {number_of(report.refused, 'client')}, such as "
                f"{report.reason}: mend the cause, or roll back by `queuekeeper online roll-back {self._plan_id}`"
            )
        return report

    def commit(self, cohorts: Sequence[int] | None = None) -> StepReport:
        """End the mirror; from here on only a new migration leads back. A repeated call finishes an interrupted one.

        Clients that no cluster can hold were served from PostgreSQL until now; their messages go to the quarantine.
        Nothing reads or writes TBMQ's tables in PostgreSQL from here on. Copies of a source in Redis are removed.

        :raises RefusedError: when a cohort is not soaking, or has to be verified again.
        """
        begun = time.monotonic()
        with self._opened() as (connection, client, online, plan):
            found = self._to_commit(online, cohorts)
            check_clean(found)
            numbers = [each.cohort for each in found]
            driver = online.take(self._plan_id, numbers)
            online.move(self._plan_id, numbers, driver=driver, after=OnlineState.COMMITTED, actor=self._actor)
            owners = OwnerStore(connection)
            store = _target(client, plan)
            source = _source(client, plan)
            tally = Tally()
            for each in found:
                for client_id in all_clients(online, each, plan.parameters.target_owner):
                    ended = owners.end_mirror(client_id)
                    if ended is not None and ended.epoch is not None:
                        _tell(store, ended)
                        if source is not None:
                            _remove_copy(source, ended, driver=driver)
                    tally.clients += 1
            sessions = PostgresSessionStore(connection, rules=rules_of(plan))
            emptied = 0
            try:
                for client_id in self._without_place(client, online, plan, found):
                    put_aside = sessions.set_aside_unreadable(client_id, clustered=True)
                    emptied += put_aside > 0
                    tally.set_aside += put_aside
                    tally.stays(client_id, PUT_ASIDE)
            finally:
                if emptied:
                    effect = {"kind": "online_set_aside", "set_aside": tally.set_aside, "clients": emptied}
                    audit.record(
                        connection, actor=self._actor, action=audit.Action.APPLY, subject=self._plan_id, effect=effect
                    )
        return tally.report(self._plan_id, "commit", numbers, seconds=time.monotonic() - begun)

    def _to_commit(self, online: OnlineCohorts, cohorts: Sequence[int] | None) -> list[OnlineCohort]:
        states, done = BEGINS["commit"], ends("commit", leaves_clients=False)
        found = online.chosen(self._plan_id, cohorts, states, verb="commit", done=done)
        others = online.moving_plans(self._plan_id)
        if others and all(each.state in done for each in found):
            # The other plan may own these clients now and have them mirrored.
            raise RefusedError(
                f"plan {self._plan_id} is committed, and plan {others[0]} is at work on the same slots: commit plan "
                f"{others[0]} to end the mirror of its clients"
            )
        return [each for each in found if not others or each.state not in done]

    def without_place(self, cohorts: Sequence[int] | None = None) -> dict[str, int]:
        """Return the clients that no cluster can hold, with how many of their messages the commit puts aside.

        :raises RefusedError: as :meth:`commit`.
        """
        with self._opened() as (connection, client, online, plan):
            found = self._to_commit(online, cohorts)
            return self._counted(connection, client, online, plan, found)

    # --- steps back --------------------------------------------------------------------------------------------

    def roll_back(
        self,
        cohorts: Sequence[int] | None = None,
        *,
        max_lag_s: float = _USUAL.max_lag_s,
        mirror_wait_minutes: float = 0,
    ) -> StepReport:
        """Give the clients of cohorts back to the source, with everything that the target holds of them.

        Clients that an earlier migration has committed stay the target's.

        :param max_lag_s: seconds that the mirror may be behind when the way back begins.
        :param mirror_wait_minutes: how long to bring a mirror that is further behind up to date before giving up.
        :raises RefusedError: when a cohort is committed, or the mirror is still further behind after that.
        """
        numbers = self.on_redis(cohorts)
        ends_s = time.monotonic() + 60 * mirror_wait_minutes
        while words := self.too_far_behind(numbers, max_lag_s=max_lag_s):
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise RefusedError(
                    f"{words} are allowed: run queuekeeper online mirror {self._plan_id}, see that the source takes "
                    "writes, then roll back again"
                )
            self._tell(f"roll back: {words} are allowed; the mirror is brought up to date for at most {left_s:,.0f} s")
            if self.mirror(numbers).refused:
                time.sleep(min(1.0, left_s))
        with self._opened() as (_, _, online, plan):
            found = online.chosen(self._plan_id, numbers, BEGINS["roll back"], verb="roll back")
            driver = online.take(self._plan_id, numbers)
            online.move(self._plan_id, numbers, driver=driver, after=OnlineState.ROLLING_BACK, actor=self._actor)
            online.set_default_owner(self._plan_id, numbers, driver=driver, owner=plan.parameters.source_owner)
            report = self._roll_back_each(plan, online, found, driver=driver)
            if report.left:
                return report
            late = self._roll_back_each(plan, online, found, driver=driver)
            if not late.left:
                online.move(self._plan_id, numbers, driver=driver, after=OnlineState.COPYING, actor=self._actor)
        return joined(report, late)

    def _roll_back_each(
        self, plan: MigrationPlan, online: OnlineCohorts, cohorts: Sequence[OnlineCohort], *, driver: int
    ) -> StepReport:
        """Give the target's clients of cohorts back to the source."""
        owner = plan.parameters.target_owner
        crew = self._crew(plan, driver)
        return crew.each("roll back", online, cohorts, owner=owner, work=SessionMover.roll_back, count=Tally.moved)

    def too_far_behind(self, cohorts: Sequence[int] | None = None, *, max_lag_s: float) -> str:
        """Return how far the mirror is behind, as the beginning of a sentence; empty where ``max_lag_s`` allows it."""
        lag = self.mirror(cohorts, dry_run=True)
        if lag.lag_s <= max_lag_s:
            return ""
        behind = f"{lag.behind:,} of {number_of(lag.clients, 'client')}"
        return f"the mirror is {lag.lag_s:,.0f} s behind for {behind}, at most {max_lag_s:,.0f} s"

    def on_redis(self, cohorts: Sequence[int] | None = None) -> list[int]:
        """Return the cohorts that can be rolled back.

        :raises RefusedError: when one of the named cohorts cannot, or no cohort can.
        """
        with self._opened() as (_, _, online, _plan):
            found = online.chosen(self._plan_id, cohorts, BEGINS["roll back"], verb="roll back")
            return [each.cohort for each in found]

    def committed_before(self, cohorts: Sequence[int] | None = None) -> int:
        """Return how many of the target's clients an earlier migration has committed: a roll-back leaves them."""
        with self._opened() as (_, _, online, plan):
            return online.committed_before(self._plan_id, cohorts, owner=plan.parameters.target_owner)

    def disarm(self, cohorts: Sequence[int] | None = None) -> None:
        """End the check of owners; the source owns all clients.

        Copies in Redis stay as they are, unless the source is in Redis, too: then they are removed.
        """
        states = (OnlineState.COPYING, OnlineState.CAUGHT_UP, OnlineState.VERIFIED)
        with self._opened() as (connection, client, online, plan):
            found = online.chosen(self._plan_id, cohorts, states, verb="disarm")
            numbers = [each.cohort for each in found]
            driver = online.take(self._plan_id, numbers)
            if plan.parameters.inside_redis:
                owners, store = OwnerStore(connection), _target(client, plan)
                for each in found:
                    for page in pages(online, each, plan.parameters.source_owner):
                        for known in owners.look_up(page).values():
                            _remove_copy(store, known, driver=driver)
            online.disarm(self._plan_id, numbers, driver=driver, actor=self._actor)

    # --- canary ------------------------------------------------------------------------------------------------

    def choose_canary(self, percent: int) -> tuple[int, ...]:
        """Choose the cohorts that go first, which hold at least this percent of the clients; note and return them."""
        with self._opened() as (_, _, online, plan):
            chosen = online.control(self._plan_id).canary
            if not chosen:
                chosen = share_of(plan, percent)
                online.choose_canary(self._plan_id, chosen)
        return chosen

    def rehearse(self) -> list[StepReport]:
        """Take the canary to the target and back, and verify it again; only then may other cohorts be cut over.

        A repeated call continues an interrupted one.
        """
        with self._opened() as (_, _, online, _plan):
            control = online.control(self._plan_id)
            canary = control.canary
            if not canary:
                raise RefusedError("no canary was chosen: say which percent of the clients goes first")
            states = {each.state for each in online.load(self._plan_id, canary)}
        # A canary that has been rehearsed is not taken back by a second rehearsal.
        begun = states & MIRRORED if control.rehearsed_at is None else set()
        reports = [] if begun else [self.catch_up(canary), self.verify(canary)]
        if not begun or OnlineState.CUTTING_OVER in begun:
            reports.append(self.cut_over(canary))
            check_moved(reports[-1])
        if OnlineState.ROLLING_BACK not in begun:
            self.mirror(canary)
            reports.append(self.verify(canary))
        reports.append(self.roll_back(canary))
        check_moved(reports[-1])
        reports += [self.catch_up(canary), self.verify(canary)]
        with self._opened() as (_, _, online, _plan):
            online.rehearsed(self._plan_id)
        return reports

    # --- the mirror --------------------------------------------------------------------------------------------

    def mirror(self, cohorts: Sequence[int] | None = None, *, dry_run: bool = False) -> MirrorReport:
        """Write the changes in the target since the last pass to the source, once for all clients.

        :param dry_run: write nothing; only report how far the source is behind.
        """
        with self._opened() as (_, client, online, plan):
            found = [each for each in online.load(self._plan_id, cohorts) if each.state in MIRRORED]
            store = _target(client, plan)
            clients = behind = 0
            oldest_ms: int | None = None
            now_ms = min(clocks_ms(client))
            # PostgreSQL takes changes of a copy only from the cohort's driver, so the mirror uses the driver's number.
            waiting: dict[int, list[str]] = {}
            for each in found:
                for page in pages(online, each, plan.parameters.target_owner, mirrored=True):
                    clients += len(page)
                    for client_id, outbox in store.read_outboxes(page).items():
                        behind += 1
                        oldest_ms = min(oldest_ms or outbox.since_ms, outbox.since_ms)
                        waiting.setdefault(each.driver, []).append(client_id)
            tally = Tally()
            if not dry_run:
                for driver, client_ids in waiting.items():
                    self._crew(plan, driver).mirror(client_ids, tally)
        lag_s = 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1_000)
        return MirrorReport(
            plan_id=self._plan_id,
            clients=clients,
            behind=behind,
            lag_s=lag_s,
            written=tally.written,
            refused=tally.outcomes["refused"],
            reason=f"{tally.examples[0][0]!r}: {tally.examples[0][1]}" if tally.examples else "",
        )

    # --- common parts ------------------------------------------------------------------------------------------

    def _crew(self, plan: MigrationPlan, driver: int) -> Crew:
        return Crew(
            postgres_url=self._postgres_url,
            redis_url=self._redis_url,
            plan=plan,
            driver=driver,
            count=self._count,
            lease_ms=self.lease_ms,
            limits=self._limits,
            clock=self._clock,
            tell=self._tell,
            stays=self._stays,
        )

    def _check_canary(self, online: OnlineCohorts, cohorts: Sequence[int]) -> None:
        control = online.control(self._plan_id)
        if control.canary and control.rehearsed_at is None and set(cohorts) - set(control.canary):
            raise RefusedError(
                f"the canary, cohorts {', '.join(map(str, control.canary))}, has not gone to the target and back yet: "
                f"rehearse it first (queuekeeper online rehearse {self._plan_id})"
            )

    def _check_values(
        self, connection: Connection, client: RedisClient, plan: MigrationPlan, cohorts: Sequence[int]
    ) -> None:
        """Check that Redis takes the largest message that the source holds now; one in Redis, it has taken before."""
        if plan.parameters.inside_redis:
            return
        now_ms = self._now_ms(connection, client)
        preflight.check_values(client, largest_bytes=preflight.largest_value(connection, plan, cohorts, now_ms=now_ms))

    @staticmethod
    def _without_place(
        client: RedisClient,
        online: OnlineCohorts,
        plan: MigrationPlan,
        cohorts: Sequence[OnlineCohort],
    ) -> Iterator[str]:
        """Yield the clients that this Redis cannot hold, unless the plan leaves them in PostgreSQL."""
        leaves = plan.parameters.bad_rows is BadRows.LEAVE
        if leaves or plan.parameters.inside_redis or not is_cluster(client):
            return
        for each in cohorts:
            for client_id in all_clients(online, each, plan.parameters.source_owner):
                if client_defect(client_id, clustered=True) is not None:
                    yield client_id

    def _counted(
        self,
        connection: Connection,
        client: RedisClient,
        online: OnlineCohorts,
        plan: MigrationPlan,
        cohorts: Sequence[OnlineCohort],
    ) -> dict[str, int]:
        """Return how many messages those clients have."""
        sessions = PostgresSessionStore(connection, rules=rules_of(plan))
        without = self._without_place(client, online, plan, cohorts)
        return {client_id: len(sessions.find_unreadable(client_id, clustered=True)) for client_id in without}

    def _now_ms(self, connection: Connection, client: RedisClient) -> int:
        return (self._clock or servers_clock(connection, client))()

    @contextmanager
    def _opened(self) -> Iterator[tuple[Connection, RedisClient, OnlineCohorts, MigrationPlan]]:
        with connect(self._postgres_url, autocommit=True) as connection:
            plan = MigrationLedger(connection).load_plan(self._plan_id)
            client = connect_redis(self._redis_url)
            try:
                preflight.check_same_target(client, plan)
                yield connection, client, OnlineCohorts(connection), plan
            finally:
                client.close()


def _target(client: RedisClient, plan: MigrationPlan) -> RedisSessionStore:
    """Return the store to which the sessions of a plan move."""
    chosen = plan.parameters
    return RedisSessionStore(client, chosen.key_prefix, rules_of(plan), layout=chosen.layout)


def _source(client: RedisClient, plan: MigrationPlan) -> RedisSessionStore | None:
    """Return the store in Redis from which the sessions of a plan move; none when they come from PostgreSQL."""
    chosen = plan.parameters
    if not chosen.inside_redis:
        return None
    return RedisSessionStore(client, chosen.key_prefix, rules_of(plan), layout=Layout(chosen.from_store.value))


def _tell(store: RedisSessionStore, owned: Ownership) -> None:
    store.answer([store.operations.set_owner_call(owned)])


def _remove_copy(store: RedisSessionStore, owned: Ownership, *, driver: int) -> None:
    """Remove the copy of a session that another store owns; what says so stays, for writers that have not heard."""
    # A session that somebody has used here, or that a later plan has given back, is no copy.
    with suppress(MovedOn, NotOwner, StaleEpoch):
        _tell(store, owned)
        store.apply_snapshot(owned.client_id, empty_snapshot(owned.client_id), epoch=owned.epoch or 0, driver=driver)


def _write_ledger(
    ledger: MigrationLedger, plan: MigrationPlan, cohorts: Sequence[OnlineCohort], tally: Tally, *, now_ms: int
) -> None:
    """Record what was found equal and what Redis cannot hold, for the report and the pages."""
    rows = []
    for each in cohorts:
        slots = range(each.slot_first, each.slot_last + 1)
        messages = sum(tally.equal_messages[slot] for slot in slots)
        clients = sum(tally.equal_clients[slot] for slot in slots)
        quarantined = sum(tally.quarantined[slot] for slot in slots)
        rows.append(
            LedgerRow(
                cohort=each.cohort,
                rows_seen=messages + quarantined,
                copied=messages,
                expired=0,
                trimmed=0,
                superseded=0,
                quarantined=quarantined,
                sessions_seen=clients,
                sessions_copied=clients,
                differences=0,
                digest="",
            )
        )
    ledger.replace_ledger(plan.plan_id, rows, now_ms)
    ledger.set_cohort_state(plan.plan_id, [each.cohort for each in cohorts], CohortState.VERIFIED)
    states = ledger.cohort_states(plan.plan_id)
    if all(states[cohort] is CohortState.VERIFIED for cohort in plan.chosen):
        ledger.set_plan_state(plan.plan_id, PlanState.VERIFIED)


def share_of(plan: MigrationPlan, percent: int, *, first: Sequence[int] = ()) -> tuple[int, ...]:
    """Return as many chosen cohorts as are needed to hold at least this percent of the chosen clients.

    :param first: cohorts to take before the others.
    """
    total = sum(each.sessions for each in plan.chosen_cohorts)
    found: list[int] = []
    held = 0
    for each in sorted(plan.chosen_cohorts, key=lambda cohort: cohort.cohort not in set(first)):
        if found and percent < 100 and 100 * held >= percent * total:
            break
        found.append(each.cohort)
        held += each.sessions
    return tuple(found)
