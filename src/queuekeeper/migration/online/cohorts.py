"""Records of the cohorts that move while devices are connected: states, drivers, servers.

Every change names the driver that makes it. A driver that takes cohorts over gets a higher number, and the next write
of the driver before is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from queuekeeper import audit
from queuekeeper.errors import RefusedError, StaleDriver, UsageError
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.online.states import ON_POSTGRES, OnlineState, check_states, edge
from queuekeeper.postgres import Connection, records, translated_errors
from queuekeeper.sessions.model import Owner
from queuekeeper.sql_statements import statement

_QUERIES = "queuekeeper/queries/"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class OnlineCohort:
    """Where a cohort stands.

    :param default_owner: store that owns a client that connects for the first time.
    :param driver: number of the driver that may change the cohort; 0 before the first one, until it is armed.
    :param dirty_reason: why the cohort has to be verified again first; empty if it need not be.
    :param servers: text that identified the servers when the cohort was last worked on; none before.
    """

    cohort: int
    slot_first: int
    slot_last: int
    state: OnlineState
    step_at: datetime
    default_owner: str
    driver: int
    dirty_reason: str
    servers: str | None
    verified_at_ms: int | None


@dataclass(frozen=True, kw_only=True)
class OwnerCounts:
    """How many clients of a cohort each store owns.

    :param redis: in TBMQ's layout.
    :param packed: in the packed layout.
    :param fenced: clients of any store that change over at this moment.
    :param mirrored: clients of the target that this migration can give back; an earlier one has committed the others.
    """

    cohort: int
    postgres: int
    redis: int
    packed: int
    fenced: int
    mirrored: int

    def of(self, owner: Owner) -> int:
        """Return how many clients a store owns."""
        return {"postgres": self.postgres, "redis": self.redis, "packed": self.packed}[owner]

    def committed_to(self, target: Owner) -> int:
        """Return how many of the target's clients an earlier migration has committed."""
        return self.of(target) - self.mirrored


@dataclass(frozen=True, kw_only=True)
class Control:
    """What people have asked of a migration, and what the migration reports.

    :param clients_per_s: most clients to move per second; none for no limit.
    :param held_back: what slows the migration down at this moment; empty when nothing does.
    :param canary: cohorts that go first; empty before the first cut over.
    :param rehearsed_at: when the canary had gone to the target and back; none before.
    """

    paused: bool
    clients_per_s: int | None
    held_back: str
    canary: tuple[int, ...]
    rehearsed_at: datetime | None


class OnlineCohorts:
    """Reads and writes the records of cohorts; every method is one transaction.

    :param connection: a connection with ``autocommit``.
    :raises UsageError: when the connection has no ``autocommit``.
    """

    def __init__(self, connection: Connection) -> None:
        if not connection.autocommit:
            raise UsageError("records of an online migration need a connection with autocommit=True")
        self._connection = connection

    def load(self, plan_id: str, cohorts: Sequence[int] | None = None) -> list[OnlineCohort]:
        """Return cohorts of a plan in order; cohorts that were never armed are planned.

        :param cohorts: only these.
        """
        wanted = None if cohorts is None else list(cohorts)
        found = self._records(OnlineCohort, "online_cohorts", {"plan_id": plan_id, "cohorts": wanted})
        return [replace(each, state=OnlineState(each.state)) for each in found]

    def chosen(
        self,
        plan_id: str,
        cohorts: Sequence[int] | None,
        allowed: Iterable[OnlineState],
        *,
        verb: str,
        done: Iterable[OnlineState] = (),
    ) -> list[OnlineCohort]:
        """Return the cohorts to work on.

        :param done: states in which a cohort may be when the step is done, or almost done.
        :raises RefusedError: when a named cohort, or every cohort, has not reached this step.
        """
        states, ended = tuple(allowed), tuple(done)
        found = self.load(plan_id, cohorts)
        check_same_plan(found, plan_id)
        for cohort in sorted(set(cohorts or ()) - {each.cohort for each in found}):
            raise RefusedError(
                f"cohort {cohort} of plan {plan_id} was never armed: arm it first "
                f"(queuekeeper online arm {plan_id} --cohorts {cohort})"
            )
        if cohorts is None:
            # Without a choice, all cohorts that have reached this step.
            found = [each for each in found if each.state in (*states, *ended)] or found
        check_states(((each.cohort, each.state) for each in found if each.state not in ended), states, verb=verb)
        return found

    def to_arm(self, plan: MigrationPlan) -> list[int]:
        """Return the cohorts of a plan that can still be armed; all where there is none, so that arming is refused."""
        past = {each.cohort for each in self.load(plan.plan_id) if each.state not in ON_POSTGRES}
        return [cohort for cohort in plan.choose() if cohort not in past] or plan.choose()

    def arm(self, plan: MigrationPlan, cohorts: Sequence[int], *, actor: str) -> list[OnlineCohort]:
        """Record the owner of every client of cohorts and have writers check it; the source stays the owner.

        Writers that began before this have to end first: see ``sessions.owners``. Once the clients are on record, the
        first :meth:`take` says so.

        :param actor: person or program that asked for it, for the audit.
        :raises RefusedError: when a cohort is past this step, or another plan moves its slots.
        """
        try:
            with self._transaction():
                # Before anything is written: a cohort that is armed here and not told to the caller would be taken for
                # one whose clients are all on record.
                check_states(
                    ((each.cohort, each.state) for each in self.load(plan.plan_id, cohorts)), ON_POSTGRES, verb="arm"
                )
                for each in plan.cohorts:
                    if each.cohort in set(cohorts):
                        slots = {"slot_first": each.slot_first, "slot_last": each.slot_last}
                        names = {"plan_id": plan.plan_id, "cohort": each.cohort, "source": plan.parameters.source_owner}
                        self._rows("arm_online_cohort", names | slots)
                self._rows("make_online_control", {"plan_id": plan.plan_id})
                self._record(plan.plan_id, list(cohorts), OnlineState.COPYING, actor=actor)
        except psycopg.errors.ExclusionViolation:
            others = self.moving_plans(plan.plan_id)
            raise RefusedError(
                f"plan {' and '.join(others) or 'of somebody else'} moves the same slots: commit it, or roll it back "
                "and disarm it (queuekeeper online status shows where it stands), then arm this one"
            ) from None
        return self.load(plan.plan_id, cohorts)

    def moving_plans(self, plan_id: str) -> list[str]:
        """Return the other plans that have cohorts which move, or may move, at this moment."""
        return [str(row[0]) for row in self._rows("moving_plans", {"plan_id": plan_id})]

    def hindrances(self, plan: MigrationPlan) -> list[str]:
        """Return why a plan cannot be made anew or armed now, each reason with the next step."""
        found = []
        moving = [
            each for each in self.load(plan.plan_id) if each.state not in (OnlineState.PLANNED, OnlineState.COMMITTED)
        ]
        if moving:
            found.append(
                f"plan {plan.plan_id} cannot be made anew, since {len(moving)} of its {len(plan.cohorts)} cohorts are "
                "armed: to plan anew, roll back what is on Redis, then disarm them (queuekeeper online "
                f"disarm {plan.plan_id})"
            )
        if plan.parameters.mode is Mode.ONLINE and (others := self.moving_plans(plan.plan_id)):
            found.append(
                f"cohorts of plan {' and '.join(others)} are armed: plan {plan.plan_id} cannot be armed over the same "
                "slots before they are committed, or rolled back and disarmed (queuekeeper online status)"
            )
        return found

    def take(self, plan_id: str, cohorts: Sequence[int]) -> int:
        """Become the driver of cohorts; the driver before is refused from now on.

        :returns: the driver's number.
        """
        rows = self._rows("take_online_cohorts", {"plan_id": plan_id, "cohorts": list(cohorts)})
        if not rows:
            raise UsageError(f"plan {plan_id} has no armed cohorts among those that were named: {_arm(plan_id)}")
        return int(rows[0][0])

    def move(self, plan_id: str, cohorts: Sequence[int], *, driver: int, after: OnlineState, actor: str) -> None:
        """Move cohorts to another state, all or none.

        :param actor: person or program that asked for it, for the audit.
        :raises RefusedError: when no step leads there from the state of one of them.
        :raises StaleDriver: when another driver has taken one of them over.
        """
        with self._transaction():
            before = {each.cohort: each.state for each in self.load(plan_id, cohorts)}
            moving = [cohort for cohort in cohorts if before[cohort] is not after]
            for cohort in moving:
                edge(before[cohort], after)
            if not moving:
                return
            values = {"plan_id": plan_id, "cohorts": moving, "driver": driver, "state": str(after)}
            self._check_all(moving, self._rows("set_online_state", values))
            self._record(plan_id, moving, after, actor=actor)

    def _record(self, plan_id: str, cohorts: Sequence[int], state: OnlineState, *, actor: str) -> None:
        effect = {"kind": "online_state", "state": str(state), "cohorts": len(cohorts), "first_cohort": cohorts[0]}
        audit.record(self._connection, actor=actor, action=audit.Action.APPLY, subject=plan_id, effect=effect)

    def set_default_owner(self, plan_id: str, cohorts: Sequence[int], *, driver: int, owner: Owner) -> None:
        """Set which store owns clients that come for the first time.

        :raises StaleDriver: when somebody else has taken a cohort over.
        """
        values = {"plan_id": plan_id, "cohorts": list(cohorts), "driver": driver, "owner": owner}
        self._check_all(cohorts, self._rows("set_online_default_owner", values))

    def note_servers(self, plan_id: str, cohorts: Sequence[int], *, driver: int, servers: str) -> list[int]:
        """Note which servers are at work; a cohort whose servers have changed has to be verified again.

        :param servers: replication ids and timeline, as text.
        :returns: cohorts that have to be verified again since this call.
        :raises StaleDriver: when somebody else has taken a cohort over.
        """
        values = {"plan_id": plan_id, "cohorts": list(cohorts), "driver": driver, "servers": servers}
        rows = self._rows("note_online_servers", values)
        self._check_all(cohorts, rows)
        return [cohort for cohort, changed in rows if changed]

    def clean(self, plan_id: str, cohorts: Sequence[int], *, driver: int, at_ms: int) -> None:
        """Note that cohorts were compared and found equal.

        :raises StaleDriver: when somebody else has taken a cohort over.
        """
        values = {"plan_id": plan_id, "cohorts": list(cohorts), "driver": driver, "at_ms": at_ms}
        self._check_all(cohorts, self._rows("clean_online_cohorts", values))

    def disarm(self, plan_id: str, cohorts: Sequence[int], *, driver: int, actor: str) -> None:
        """Forget the owners of cohorts whose clients are all PostgreSQL's.

        :param actor: person or program that asked for it, for the audit.
        :raises StaleDriver: when somebody else has taken a cohort over.
        """
        with self._transaction():
            self.move(plan_id, cohorts, driver=driver, after=OnlineState.PLANNED, actor=actor)
            self._rows("forget_online_owners", {"plan_id": plan_id, "cohorts": list(cohorts)})

    def clients(
        self,
        cohort: OnlineCohort,
        *,
        owner: Owner,
        mirrored: bool | None = None,
        after: tuple[int, str] = (-1, ""),
        limit: int = 1_000,
    ) -> list[tuple[int, str]]:
        """Return a page of a cohort's clients that belong to one store, as (slot, client id), in that order.

        :param mirrored: true: only clients whose changes also go to the store that they came from; false: only the
            other clients; none: both.
        :param after: the last client of the page before.
        """
        values = {
            "slot_first": cohort.slot_first,
            "slot_last": cohort.slot_last,
            "owner": owner,
            "mirrored": mirrored,
            "after_slot": after[0],
            "after_client_id": after[1],
            "limit": limit,
        }
        return [(slot, client_id) for slot, client_id in self._rows("owned_clients", values)]

    def quiet_clients(self, cohort: OnlineCohort) -> list[str]:
        """Return the clients of a cohort that belong to PostgreSQL; those quiet for longest come first."""
        values = {"slot_first": cohort.slot_first, "slot_last": cohort.slot_last}
        return [client_id for (client_id,) in self._rows("quiet_clients", values)]

    def owner_counts(self, plan_id: str) -> list[OwnerCounts]:
        """Return how many clients of each armed cohort each store owns."""
        return self._records(OwnerCounts, "online_owner_counts", {"plan_id": plan_id})

    def committed_before(self, plan_id: str, cohorts: Sequence[int] | None, *, owner: Owner) -> int:
        """Return how many clients of cohorts an earlier migration has left with an owner for good."""
        wanted = {each.cohort for each in self.load(plan_id, cohorts)}
        counts = [each for each in self.owner_counts(plan_id) if each.cohort in wanted]
        return sum(each.committed_to(owner) for each in counts)

    # --- control -----------------------------------------------------------------------------------------------

    def control(self, plan_id: str) -> Control:
        """Return what people have asked of a migration, and what the migration reports.

        :raises UsageError: when no cohort of the plan was ever armed.
        """
        found = self._records(Control, "online_control", {"plan_id": plan_id})
        if not found:
            raise UsageError(f"plan {plan_id} was never armed: arm it first (queuekeeper online arm {plan_id})")
        return replace(found[0], canary=tuple(found[0].canary))

    def hold_back(self, plan_id: str, reason: str) -> None:
        """Note what slows the work down at this moment."""
        self._rows("hold_back_online", {"plan_id": plan_id, "reason": reason})

    def choose_canary(self, plan_id: str, cohorts: Sequence[int]) -> None:
        """Note which cohorts go first."""
        self._rows("choose_online_canary", {"plan_id": plan_id, "cohorts": list(cohorts)})

    def rehearsed(self, plan_id: str) -> None:
        """Note that the canary has gone to the target and back."""
        self._rows("note_online_rehearsal", {"plan_id": plan_id})

    # --- common parts ------------------------------------------------------------------------------------------

    @staticmethod
    def _check_all(wanted: Sequence[int], changed: Sequence[tuple[Any, ...]]) -> None:
        refused = sorted(set(wanted) - {row[0] for row in changed})
        if refused:
            raise StaleDriver(
                f"another driver has taken over cohort {refused[0]}: this one stops; see which run is at work "
                "(queuekeeper online status), and start only one"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translated_errors(self._connection), self._connection.transaction():
            yield

    def _records(self, made: Callable[..., T], name: str, values: dict[str, Any]) -> list[T]:
        return records(self._connection, made, _QUERIES + name, values)

    def _rows(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        with translated_errors(self._connection):
            cursor = self._connection.execute(statement(_QUERIES + name), values)
            return cursor.fetchall() if cursor.description else []


def _arm(plan_id: str) -> str:
    return f"arm them first by `queuekeeper online arm {plan_id}`"


def check_armed(found: Sequence[OnlineCohort], plan_id: str) -> None:
    """Check that all clients of cohorts are on record: a client without a record would not be moved.

    :raises RefusedError: when the arming of one was interrupted.
    """
    for each in found:
        if not each.driver:
            raise RefusedError(
                f"cohort {each.cohort} of plan {plan_id} was not armed to the end, so not all of its clients are on "
                f"record: arm it again (queuekeeper online arm {plan_id} --cohorts {each.cohort})"
            )


def check_same_plan(found: Sequence[OnlineCohort], plan_id: str) -> None:
    """Check that cohorts were found.

    :raises RefusedError: when none of the cohorts is armed.
    """
    if not found:
        raise RefusedError(f"none of these cohorts of plan {plan_id} is armed: {_arm(plan_id)}")
