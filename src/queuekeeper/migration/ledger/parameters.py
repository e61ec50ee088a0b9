"""Parameters of a migration: of its plan, its copy, and its online steps."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Any, Self

from pydantic import model_validator

from queuekeeper.errors import UsageError
from queuekeeper.jobs import common
from queuekeeper.jobs.common import SessionRules
from queuekeeper.jobs.parameters import MAX_RATE_PER_S, Parameters, Section, minutes, needed, parameter, seconds
from queuekeeper.report.files import RUN_ID
from queuekeeper.sessions.model import OWNER_OF, Owner
from queuekeeper.sessions.pages import Layout


class Mode(StrEnum):
    """Whether the broker serves devices while sessions move."""

    OFFLINE = "offline"  # the broker is stopped
    ONLINE = "online"  # every writer asks who owns a session


class Source(StrEnum):
    """Where sessions are before they move."""

    POSTGRES = "postgres"  # the tables of TBMQ 1.x
    TBMQ = "tbmq"  # the keys of TBMQ 2.x in Redis
    PACKED = "packed"  # one hash per session in the same Redis


class BadRows(StrEnum):
    """What an online migration does with rows that nobody can deliver."""

    QUARANTINE = "quarantine"  # the rows go to queuekeeper.session_quarantine, and their client moves
    LEAVE = "leave"  # the rows and their client stay in PostgreSQL until the rows are mended


def percent_of_share(share: Any) -> Any:
    """Return a share of 0 to 1 in percent; ``quarantine_cap``, the old name of ``quarantine_cap_percent``, was one."""
    return 100 * share if isinstance(share, int | float) else share


class MigrationParameters(SessionRules):
    """Parameters that the person who starts a migration chooses."""

    mode: Mode = parameter(
        Mode.OFFLINE,
        title="Mode",
        help="offline: the broker is stopped from the plan to the end, and nobody else writes to either store. online: "
        "clients change over one by one, fenced for milliseconds; every writer has to be a SessionRouter, or the "
        "trigger for other writers has to be installed.",
        choices={
            "offline": "offline: the broker is stopped",
            "online": "online: devices are connected, writers ask who owns a session",
        },
    )
    from_store: Source = parameter(
        Source.POSTGRES,
        title="Where sessions are",
        help="Where the sessions are. postgres: the tables of TBMQ 1.x. tbmq or packed: this layout of the same Redis, "
        "from which sessions move to the other layout; online only, and PostgreSQL records the owners.",
        section=Section.RULES,
        choices={
            "postgres": "postgres: the tables of TBMQ 1.x",
            "tbmq": "tbmq: the keys of TBMQ 2.x in Redis",
            "packed": "packed: one hash per session in Redis",
        },
    )
    layout: Layout = parameter(
        Layout.TBMQ,
        title="Layout in Redis",
        help="How sessions are laid out in Redis. tbmq: the keys that TBMQ 2.x reads and writes. packed: one hash per "
        "session, which takes half of the memory, for brokers that use Queuekeeper's store with this layout.",
        section=Section.RULES,
        choices={
            "tbmq": "tbmq: the keys that TBMQ 2.x reads and writes",
            "packed": "packed: one hash per session, for brokers with Queuekeeper's store",
        },
    )
    bad_rows: BadRows = parameter(
        BadRows.QUARANTINE,
        title="Rows that nobody can deliver (online)",
        help="What an online migration does with rows that nobody can deliver; the plan counts them by reason. "
        "quarantine moves each row whole to queuekeeper.session_quarantine, and its client moves to Redis. leave "
        "keeps the row and its client in PostgreSQL: to move the client, repair the row and cut over again. A client "
        "that no cluster can hold, since its id begins with }, is served from PostgreSQL either way; with quarantine "
        "the commit moves its messages to queuekeeper.session_quarantine.",
        section=Section.RULES,
        choices={
            "quarantine": "quarantine: the rows are put aside in PostgreSQL, and their client moves",
            "leave": "leave: the rows and their client stay in PostgreSQL",
        },
    )
    cohorts: str = common.cohorts(what="Which cohorts to copy. The plan always counts all of them.")
    cohort_count: int = common.cohort_count(note="More cohorts are smaller steps to copy, verify and repeat.")
    quarantine_cap_percent: float = parameter(
        1.0,
        title="Quarantine limit (percent of rows)",
        help="The plan is refused when more than this percent of the rows is unfit for copying.",
        section=Section.RULES,
        least=0,
        most=100,
        examples=[0, 1, 5.5],
        aliases={"quarantine_cap": percent_of_share},
    )
    throttle_messages_per_s: int | None = parameter(
        None,
        title="Throttle (messages per second)",
        help="Messages copied per second, over all tasks. Online, it counts clients per second once they change over. "
        "`queuekeeper run throttle PLAN RATE` changes it while the run works.",
        unset="as fast as the servers allow",
        section=Section.PACE,
        least=1,
        most=MAX_RATE_PER_S,
        examples=[None, 5_000, 50_000],
    )

    @model_validator(mode="after")
    def _moves_to_another_store(self) -> Self:
        if not self.inside_redis:
            return self
        if self.from_store.value == self.layout.value:
            other = Layout.PACKED if self.layout is Layout.TBMQ else Layout.TBMQ
            raise UsageError(
                f"from_store and layout are both {self.layout.value!r}: there is nothing to move; choose the layout "
                f"{other}"
            )
        if self.mode is Mode.OFFLINE:
            raise UsageError(
                f"from_store is {self.from_store.value!r}, and the mode is offline: sessions move from one layout of "
                "Redis to the other client by client, with devices connected or not; choose the mode online"
            )
        if self.bad_rows is BadRows.LEAVE:
            raise UsageError(
                f"bad_rows is 'leave', and from_store is {self.from_store.value!r}: a message in Redis that nobody can "
                "read is put aside, as by a fetch; choose quarantine"
            )
        return self

    @model_validator(mode="after")
    def _nobody_stays_where_nobody_serves(self) -> Self:
        if self.bad_rows is BadRows.LEAVE and self.mode is Mode.OFFLINE:
            raise UsageError(
                "bad_rows is 'leave', and the mode is offline: PostgreSQL serves no client after an offline migration, "
                "so no client can stay there; choose quarantine, or the mode online"
            )
        return self

    @property
    def inside_redis(self) -> bool:
        """Whether sessions move from one layout of Redis to the other."""
        return self.from_store is not Source.POSTGRES

    @property
    def source_owner(self) -> Owner:
        """Store that owns sessions before they move."""
        return OWNER_OF[Layout(self.from_store.value)] if self.inside_redis else "postgres"

    @property
    def target_owner(self) -> Owner:
        """Store that owns them afterwards."""
        return OWNER_OF[self.layout]

    def identity(self) -> dict[str, Any]:
        """Return the parameters that identify a plan: all but the throttle, which may change while a copy runs."""
        return {name: value for name, value in asdict(self).items() if name != "throttle_messages_per_s"}


class CopyGroups(Parameters):
    """How many tasks share the copy."""

    copy_groups: int = parameter(
        1,
        title="Copy groups",
        help="How many tasks share the chosen cohorts. Each starts a Spark driver of its own (10 to 20 seconds) and "
        "reads the whole source; a failed group is repeated without the others.",
        section=Section.PACE,
        least=1,
        most=1_024,
        examples=[1, 2, 8],
    )


class Lease(Parameters):
    """How long a client is fenced."""

    lease_ms: int = parameter(
        1_000,
        title="Lease of a fence (milliseconds)",
        help="Longest time in milliseconds for which nobody can write to a client while an online migration moves it. "
        "A client whose queue takes longer stays where it is, and the report names it.",
        section=Section.PACE,
        least=50,
        most=1_000,
        examples=[200, 1_000],
    )


def in_minutes(value: Any) -> Any:
    """Return seconds in minutes; ``seconds``, the old name of the soak's ``soak_minutes``, counted seconds."""
    return value / 60 if isinstance(value, int | float) else value


def steps_of(text: str) -> tuple[int, ...]:
    """Return the percentages that a text such as ``1,10,50,100`` names.

    :raises ValueError: when they do not rise or do not end with 100.
    """
    found = tuple(int(part) for part in text.split(","))
    if list(found) != sorted(set(found)) or not 1 <= found[0] <= found[-1] == 100:
        raise ValueError(text)
    return found


class OnlineWish(Lease):
    """Parameters of an online migration alone."""

    require_trigger: bool = parameter(
        False,
        title="Other writers are refused",
        help="Online: go on only if PostgreSQL refuses writers that do not ask who owns a session (queuekeeper migrate "
        "trigger install). Needed when one of them is not a SessionRouter.",
        section=Section.RULES,
    )
    canary_percent: int = parameter(
        1,
        title="Canary (percent of clients)",
        help="Online: this percent of the clients goes to Redis, back to PostgreSQL and to Redis again before the "
        "other clients move.",
        section=Section.PACE,
        least=1,
        most=100,
        examples=[1, 5],
    )
    canary_steps_percent: str = parameter(
        "1,10,50,100",
        title="Steps (percent of clients)",
        help="Online: rising percentages of the clients, up to 100. The cut over stops and checks after each.",
        section=Section.PACE,
        pattern=r"^\d{1,3}(,\d{1,3})*$",
        rule="it must be rising percentages that end with 100, such as 1,10,50,100",
        check=steps_of,
        examples=["1,10,50,100", "5,100"],
    )
    soak_minutes: float = minutes(
        60.0,
        title="Soak time",
        help="Online: minutes for which all clients are watched on Redis, with a way back, before a person is asked to "
        "commit.",
        section=Section.PACE,
        least=0,
        examples=[10, 60, 1_440],
        aliases={"seconds": in_minutes},
    )
    approval_limit_minutes: int = common.approval_minutes(
        title="Life of an approval",
        help="Online: age from which an approval no longer counts when the cut over begins.",
    )


class PlanChoice(Parameters):
    """The plan to work on."""

    plan_id: str = needed(
        title="Plan",
        help="Id of the plan, as its migration page shows it. Only cohorts that are on Redis can go back.",
        pattern=f"^{RUN_ID}$",
        rule="it must be the id of a plan: 16 hex digits",
        examples=["0123456789abcdef"],
    )


class CohortChoice(Parameters):
    """The cohorts that a copy or a verification works on."""

    cohorts: str = common.cohorts(what="Which of the plan's cohorts.", default="", unset="all of them")


class AuditWish(Parameters):
    """Files in which an audit finds what Redis held when the migration was finished."""

    rdb: tuple[str, ...] = common.rdb(
        help="RDB file of the target Redis, which SAVE or BGSAVE has written after the copy. It is read once, from its "
        "beginning to its end, and no server but PostgreSQL is asked anything.",
        needed=True,
        rule="name a file that Redis has written by BGSAVE after the copy",
    )
    rdb_database: int = common.rdb_database()


class CopyManner(Parameters):
    """What a copy does when the migration is paused, and which cohorts it leaves out."""

    gives_way: bool = parameter(
        False,
        title="Give way",
        help="End when the migration is paused. What is done stays on record, and the copy goes on from there when it "
        "is started again. Without this option the copy waits, checks source and servers again and goes on.",
    )
    only_missing: bool = parameter(
        False,
        title="Only what is missing",
        help="Leave out cohorts that are copied already. A copy that goes on after a pause always leaves them out.",
    )


class PlanRequest(Parameters):
    """Who asks for a plan."""

    run_id: str = common.run_id(
        help="Name of this request; a later step can find the plan by this name.",
        unset="no name",
        examples=["nightly"],
    )


class PlanWish(PlanRequest, MigrationParameters):
    """Options of the command that plans."""


class RollbackWish(Lease):
    """Parameters of a roll-back to PostgreSQL."""

    cohorts: str = common.cohorts(what="Which cohorts go back.", default="", unset="all that are on Redis")
    max_lag_s: float = seconds(
        10.0,
        title="Mirror may be behind",
        help="Seconds that the mirror may be behind. While it is further behind, no client goes back, since PostgreSQL "
        "may be unable to take writes.",
        section=Section.RULES,
        least=0,
        most=3_600,
        examples=[1, 10],
    )
    mirror_wait_minutes: float = minutes(
        10.0,
        title="Wait for the mirror",
        help="Minutes to bring a mirror that is further behind up to date. After that, or at once with 0, the "
        "roll-back is refused.",
        section=Section.RULES,
        least=0,
        most=1_440,
        examples=[0, 10],
    )


class StepWish(OnlineWish, RollbackWish):
    """Options of the commands for single online steps."""

    cohorts: str = common.cohorts(
        what="Which of the plan's cohorts.", default="", unset="all that have reached this step"
    )
    movers: int = parameter(
        8, title="Movers", help="Clients that are moved at the same time.", section=Section.PACE, least=1, most=64
    )
