"""What the plans of all migrations have in common: the target, its cohorts, the record, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from queuekeeper import keyspace
from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.keyspace import Cohort
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState, code_version, plan_id
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.ledger.progress import warn
from queuekeeper.redis_client import RedisClient, clocks_ms, is_cluster, shards


@dataclass(frozen=True, kw_only=True)
class Target:
    """The Redis for which a migration is planned.

    :param cohorts: all cohorts, in order.
    :param chosen: numbers of those to move.
    :param now_ms: its present time; on a cluster that of the slowest clock, so that a message that only some masters
        take for expired is planned, and the master that gets it decides.
    """

    parameters: MigrationParameters
    cohorts: tuple[Cohort, ...]
    chosen: tuple[int, ...]
    clustered: bool
    now_ms: int

    @classmethod
    def of(cls, client: RedisClient, parameters: MigrationParameters) -> Target:
        """Look at a server.

        :raises UsageError: when a chosen cohort does not exist.
        """
        found = tuple(keyspace.cohorts(count=parameters.cohort_count, shards=shards(client)))
        return cls(
            parameters=parameters,
            cohorts=found,
            chosen=tuple(keyspace.parse_cohorts(parameters.cohorts, count=len(found))),
            clustered=is_cluster(client),
            now_ms=min(clocks_ms(client)),
        )

    def plan(self, cohorts: Iterable[CohortPlan], *, source_fingerprint: str, as_of_ms: int) -> MigrationPlan:
        """Return a plan with its id, as this version of the code makes it."""
        identity = plan_id(
            parameters=self.parameters,
            source_fingerprint=source_fingerprint,
            version=code_version(),
            target_clustered=self.clustered,
        )
        return MigrationPlan(
            plan_id=identity,
            parameters=self.parameters,
            source_fingerprint=source_fingerprint,
            code_version=code_version(),
            as_of_ms=as_of_ms,
            cohorts=tuple(cohorts),
            chosen=self.chosen,
            target_clustered=self.clustered,
        )


def judged(plan: MigrationPlan, client: RedisClient, *checks: Callable[[], object]) -> MigrationPlan:
    """Return a plan; as refused, with the reason, when one of the checks or the target's memory refuses it.

    :raises ServerUnavailable: which says nothing of the plan; a next try makes it.
    """
    try:
        for check in checks:
            check()
        forecast = preflight.forecast_by_master(client, plan.chosen_cohorts)
        warn(preflight.check_target(client, forecast_bytes=forecast))
    except ServerUnavailable:
        raise
    except RefusedError as error:
        return replace(plan, state=PlanState.REFUSED, state_reason=str(error))
    return plan
