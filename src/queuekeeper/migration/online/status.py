"""Reports the state of an online migration at this moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.postgres import Connection
from queuekeeper.wording import number_of

_AHEAD = {
    OnlineState.COPYING: "the catch-up",
    OnlineState.CAUGHT_UP: "the verification",
    OnlineState.VERIFIED: "the cut over",
    OnlineState.CUTTING_OVER: "the end of the cut over",
    OnlineState.ON_REDIS: "the soak",
    OnlineState.SOAKING: "the commit after the soak",
    OnlineState.ROLLING_BACK: "the end of the roll-back",
}
"""State of a cohort -> what it waits for; cohorts that are planned or committed wait for nothing."""


@dataclass(frozen=True, kw_only=True)
class OnlineStatus:
    """Where the clients of a plan are.

    :param states: how many armed cohorts are in each state.
    :param on_postgres: clients that PostgreSQL owns.
    :param on_redis: clients that Redis owns in TBMQ's layout.
    :param packed: clients that Redis owns in the packed layout.
    :param fenced: clients that change over at this moment.
    :param dirty: reason by cohort why it has to be verified again.
    :param clients_per_s: most clients to move per second; none for no limit.
    :param held_back: what slows the migration down; empty when nothing does.
    :param canary: cohorts that go first.
    :param rehearsed_at: when the canary had gone to the target and back; none before.
    """

    states: Mapping[OnlineState, int]
    on_postgres: int
    on_redis: int
    packed: int
    fenced: int
    dirty: Mapping[int, str]
    paused: bool
    clients_per_s: int | None
    held_back: str
    canary: tuple[int, ...]
    rehearsed_at: datetime | None

    @property
    def is_final(self) -> bool:
        """Whether nothing changes any more unless somebody starts a new step."""
        return not self.ahead

    @property
    def ahead(self) -> str:
        """What the cohorts wait for, such as ``the catch-up of 2 cohorts``; empty where nothing changes any more."""
        counts = [(_AHEAD[state], count) for state, count in self.states.items() if state in _AHEAD]
        return " and ".join(f"{what} of {number_of(count, 'cohort')}" for what, count in counts)

    @property
    def in_words(self) -> str:
        """What a migration at which no step is at work waits for, who owns the clients, and what held it back."""
        held = f"; held back: {self.held_back}" if self.held_back else ""
        packed = f", {self.packed:,} packed" if self.packed else ""
        clients = f"PostgreSQL has {number_of(self.on_postgres, 'client')}, Redis {self.on_redis:,}{packed}"
        return f"it waits for {self.ahead or 'nothing'}; {clients}{held}"


def online_status(connection: Connection, plan_id: str) -> OnlineStatus | None:
    """Return the state of a plan; none when none of its cohorts was ever armed."""
    online = OnlineCohorts(connection)
    cohorts = online.load(plan_id)
    if not cohorts:
        return None
    counts = online.owner_counts(plan_id)
    control = online.control(plan_id)
    return OnlineStatus(
        states=dict(sorted(Counter(each.state for each in cohorts).items())),
        on_postgres=sum(each.postgres for each in counts),
        on_redis=sum(each.redis for each in counts),
        packed=sum(each.packed for each in counts),
        fenced=sum(each.fenced for each in counts),
        dirty={each.cohort: each.dirty_reason for each in cohorts if each.dirty_reason},
        paused=control.paused,
        clients_per_s=control.clients_per_s,
        held_back=control.held_back,
        canary=control.canary,
        rehearsed_at=control.rehearsed_at,
    )
