"""``queuekeeper online``: a migration while devices are connected, step by step, and the way back."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from queuekeeper.cli import context, jobs
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import cell, instant, pairs, plain, record, show, table
from queuekeeper.errors import CheckFailed, UsageError
from queuekeeper.service.signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.migration.model import Lease, OnlineWish, RollbackWish
    from queuekeeper.migration.online.cohorts import OnlineCohort
    from queuekeeper.migration.online.driver import OnlineDriver
    from queuekeeper.migration.online.reports import StepReport

app = typer.Typer(no_args_is_help=True, help="Move sessions while devices are connected.")

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="Id of the plan.")]
Cohorts = Annotated[
    str | None, typer.Option("--cohorts", help="Such as 0-3,7; all that are so far if left out.", metavar="CHOICE")
]
Movers = Annotated[int, typer.Option("--movers", min=1, max=64, help="Clients that are worked on side by side.")]

_TONES = {"on_redis": "green", "soaking": "green", "committed": "green", "verified": "green", "rolling_back": "yellow"}


@app.callback()
def _group() -> None:
    """Move sessions while devices are connected."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What commands on a plan are asked alike."""

    plan_id: str
    postgres_url: str | None
    redis_url: str | None
    as_json: bool
    cohorts: str | None = None
    movers: int = 8
    yes: bool = False
    dry_run: bool = False

    def driver(self, lease: Lease | None = None) -> OnlineDriver:
        """Return what does the steps."""
        from queuekeeper.migration.model import Lease
        from queuekeeper.migration.online.driver import OnlineDriver

        source, target = context.reachable(self.postgres_url, self.redis_url)
        out = sys.stderr if self.as_json else sys.stdout
        return OnlineDriver(
            postgres_url=source,
            redis_url=target,
            plan_id=self.plan_id,
            actor=context.person(),
            lease_ms=(lease or Lease()).lease_ms,
            count=self.movers,
            tell=lambda line: print(line, file=out, flush=True),
        )

    def chosen(self) -> list[int] | None:
        """Return the cohorts to work on; none for all that are so far."""
        if self.cohorts is None:
            return None
        with context.open_ledger(self.postgres_url) as ledger:
            return ledger.load_plan(self.plan_id).choose(self.cohorts)

    def agree(self, question: str, *, kind: str) -> None:
        """Ask, and put the answer on record.

        :param kind: of the question, as the audit has it.
        """
        from queuekeeper.audit import record_answer

        with context.postgres_connection(self.postgres_url) as connection:
            note = partial(record_answer, connection, subject=self.plan_id, kind=kind)
            context.confirm(question, yes=self.yes, as_json=self.as_json, note=note)

    def only_looks(self, chosen: list[int] | None, state: str, words: str) -> bool:
        """Show what a step would work on, and tell whether that is all that was asked for."""
        if self.dry_run:
            _plan_step(self.plan_id, chosen, state, words, self.postgres_url, as_json=self.as_json)
        return self.dry_run


_ASKED: dict[str, tuple[Any, Any]] = {
    "cohorts": (Cohorts, None),
    "movers": (Movers, 8),
    "yes": (context.Yes, False),
    "dry_run": (context.DryRun, False),
    "postgres_url": (context.PostgresUrl, None),
    "redis_url": (context.RedisUrl, None),
    "as_json": (context.AsJson, False),
}


def _step(*asks: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command on a plan be asked what such commands are asked; it is called with all of that as one.

    :param asks: names of what it is asked besides plan, servers and JSON.
    """
    names = (*asks, "postgres_url", "redis_url", "as_json")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(plan_id: str, **given: Any) -> None:
            command(_Call(plan_id=plan_id, **{name: given.pop(name) for name in names}), **given)

        own = [each for each in signature(command).parameters.values() if each.name != "call"]
        # The model's own name is known to the type checker only.
        called.__annotations__ = {each.name: each.annotation for each in own if each.name != "parameters"}
        hints = get_type_hints(called, include_extras=True)
        own = [each.replace(annotation=hints.get(each.name, each.annotation)) for each in own]
        plan = Parameter("plan_id", Parameter.POSITIONAL_OR_KEYWORD, annotation=PlanId)
        asked = [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=_ASKED[name][0], default=_ASKED[name][1])
            for name in names
        ]
        vars(called)["__signature__"] = Signature([plan, *own, *asked])
        called.__annotations__ = {each.name: each.annotation for each in (plan, *own, *asked)}
        return called

    return decorate


def _show(report: StepReport, *, as_json: bool) -> None:
    def pretty(out: Console) -> None:
        facts: dict[str, Any] = {
            "cohorts": f"{len(report.cohorts):,}",
            "clients": report.clients,
            **report.outcomes,
            "messages written": report.written,
            "messages removed": report.removed,
            "set aside": report.set_aside or None,
            "fenced": None
            if report.fenced_p50_ms is None
            else f"p50 {report.fenced_p50_ms:,.1f} ms, p99 {report.fenced_p99_ms:,.1f} ms, "
            f"longest {report.fenced_longest_ms:,.1f} ms",
            "seconds": f"{report.seconds:,.1f}",
        }
        out.print(pairs(f"{report.step.capitalize()} of plan {report.plan_id}", facts))
        if report.examples:
            out.print(table("Not moved, or different", ("client", "why"), report.examples))

    show(report, as_json=as_json, pretty=pretty)
    if report.left:
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in report.left.items())
        raise CheckFailed(f"not all clients are done: {words}; they stay where they are, run the command again")


@app.command()
@_step("cohorts")
def arm(
    call: _Call,
    *,
    require_trigger: Annotated[
        bool, typer.Option("--require-trigger", help="Refuse unless PostgreSQL refuses writers that do not ask.")
    ] = False,
) -> None:
    """Have writers look who owns a client. Nothing moves yet.

    Example: `queuekeeper online arm 0123456789abcdef --cohorts 0-3`
    """
    _show(call.driver().arm(call.chosen(), require_trigger=require_trigger), as_json=call.as_json)


@app.command("catch-up")
@_step("cohorts", "movers")
def catch_up(call: _Call) -> None:
    """Make the copies in Redis equal to PostgreSQL, without a fence.

    Example: `queuekeeper online catch-up 0123456789abcdef`
    """
    _show(call.driver().catch_up(call.chosen()), as_json=call.as_json)


@app.command()
@_step("cohorts", "movers")
def verify(call: _Call) -> None:
    """Compare every client in both stores. A copy that is behind is made good first.

    Example: `queuekeeper online verify 0123456789abcdef --json`
    """
    _show(call.driver().verify(call.chosen()), as_json=call.as_json)


def _online() -> type[OnlineWish]:
    from queuekeeper.migration.model import OnlineWish

    return OnlineWish


def _rollback() -> type[RollbackWish]:
    from queuekeeper.migration.model import RollbackWish

    return RollbackWish


@app.command(cls=JobCommand)
@takes(_online, only=["canary_percent"], names={"canary_percent": ["--percent"]})
@_step("yes")
def rehearse(call: _Call, *, parameters: OnlineWish) -> None:
    """Take the canary to Redis and back before all others.

    Example: `queuekeeper online rehearse 0123456789abcdef --percent 1`
    """
    driver = call.driver()
    call.agree(
        f"Cohorts with at least {parameters.canary_percent} % of the clients will go to Redis and back.",
        kind="online_rehearsal",
    )
    driver.choose_canary(parameters.canary_percent)
    reports = driver.rehearse()

    def pretty(out: Console) -> None:
        rows = [(each.step, each.clients, each.written, _longest(each), f"{each.seconds:,.1f}") for each in reports]
        out.print(table("Rehearsal", ("step", "clients", "messages written", "longest fence", "seconds"), rows))

    show([plain(each) for each in reports], as_json=call.as_json, pretty=pretty)


def _longest(report: StepReport) -> str | None:
    return None if report.fenced_longest_ms is None else f"{report.fenced_longest_ms:,.1f} ms"


@app.command("cut-over", cls=JobCommand)
@takes(_online, only=["lease_ms"])
@_step("cohorts", "movers", "dry_run", "yes")
def cut_over(call: _Call, *, parameters: OnlineWish) -> None:
    """Give the clients of verified cohorts to Redis.

    Example: `queuekeeper online cut-over 0123456789abcdef --cohorts 0-3 --lease-ms 500`
    """
    chosen = call.chosen()
    if call.only_looks(chosen, "verified", "would be given to Redis"):
        return
    call.agree("Clients of verified cohorts will be Redis's.", kind="online_cut_over")
    _show(call.driver(parameters).cut_over(chosen), as_json=call.as_json)


@app.command("roll-back", cls=JobCommand)
@takes(_rollback, only=["lease_ms", "max_lag_s"])
@_step("cohorts", "movers", "dry_run", "yes")
def roll_back(call: _Call, *, parameters: RollbackWish) -> None:
    """Give clients back to PostgreSQL, with all that Redis holds.

    Example: `queuekeeper online roll-back 0123456789abcdef --dry-run`
    """
    chosen = call.chosen()
    if call.only_looks(chosen, "on_redis", "would go back to PostgreSQL"):
        return
    call.agree("Clients will be PostgreSQL's again.", kind="online_roll_back")
    report = call.driver(parameters).roll_back(chosen, max_lag_s=parameters.max_lag_s)
    _show(report, as_json=call.as_json)


@app.command()
@_step("cohorts", "dry_run")
def mirror(
    call: _Call,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until a signal ends it.")] = False,
) -> None:
    """Write to PostgreSQL what has changed in Redis since.

    Example: `queuekeeper online mirror 0123456789abcdef --follow`
    """
    chosen, driver = call.chosen(), call.driver()
    if not follow:
        report = driver.mirror(chosen, dry_run=call.dry_run)
        show(report, as_json=call.as_json, pretty=lambda out: out.print(record("Mirror", report)))
        return
    going = True

    def stop() -> None:
        nonlocal going
        going = False

    with stopped_by_signals(stop):
        while going:
            report = driver.mirror(chosen, dry_run=call.dry_run)
            words = (
                f"mirror: {report.behind:,} of {report.clients:,} clients were behind, by {report.lag_s:,.1f} s; "
                f"{report.written:,} written, {report.refused:,} refused"
            )
            show(report, as_json=call.as_json, pretty=partial(_print, words))
            time.sleep(0.5)


def _print(words: str, out: Console) -> None:
    out.print(words)


@app.command()
@_step("cohorts")
def soak(
    call: _Call,
    *,
    seconds: Annotated[float, typer.Option(min=0, help="How long to watch, from the beginning of the soak.")] = 600.0,
) -> None:
    """Watch cohorts on Redis for a while, with the mirror at work.

    Interrupted and repeated, it goes on: the time counts from when the cohorts began to soak.

    Example: `queuekeeper online soak 0123456789abcdef --seconds 3600`
    """
    report = call.driver().soak(call.chosen(), seconds=seconds)
    show(report, as_json=call.as_json, pretty=lambda out: out.print(record("Soak", report)))


@app.command()
@_step("cohorts", "dry_run", "yes")
def commit(call: _Call) -> None:
    """End the mirror. There is no way back after this.

    Example: `queuekeeper online commit 0123456789abcdef --dry-run`
    """
    chosen = call.chosen()
    if call.only_looks(chosen, "soaking", "would stay Redis's for good"):
        return
    call.agree("The mirror will end: there is no way back but a new migration.", kind="online_commit")
    _show(call.driver().commit(chosen), as_json=call.as_json)


@app.command()
@_step("cohorts")
def disarm(call: _Call) -> None:
    """Have nobody look for owners any more; all are PostgreSQL's.

    Example: `queuekeeper online disarm 0123456789abcdef`
    """
    call.driver().disarm(call.chosen())
    show(
        {"plan_id": call.plan_id, "disarmed": True},
        as_json=call.as_json,
        pretty=lambda out: out.print(f"Plan {call.plan_id}: PostgreSQL serves, nobody looks for owners any more."),
    )


@app.command()
def status(
    plan_id: PlanId,
    *,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Say where the cohorts stand, whose clients are whose.

    Example: `queuekeeper online status 0123456789abcdef`
    """
    from queuekeeper.migration.online.cohorts import OnlineCohorts

    with context.postgres_connection(postgres_url) as connection:
        online = OnlineCohorts(connection)
        control = online.control(plan_id)
        found = online.load(plan_id)
        counts = {each.cohort: each for each in online.owner_counts(plan_id)}

    def pretty(out: Console) -> None:
        out.print(
            pairs(
                f"Plan {plan_id}",
                {
                    "paused": "yes" if control.paused else "no",
                    "throttle": f"{control.clients_per_s:,} clients/s" if control.clients_per_s else "none",
                    "held back": control.held_back or None,
                    "canary": ", ".join(map(str, control.canary)) or None,
                    "rehearsed": None if control.rehearsed_at is None else f"{control.rehearsed_at:%Y-%m-%d %H:%M} UTC",
                },
            )
        )
        out.print(table("Cohorts", _HEADS, [_row(each, counts) for each in found]))

    facts = {
        "plan_id": plan_id,
        "control": plain(control),
        "cohorts": [plain(each) | {"owners": plain(counts[each.cohort])} for each in found],
    }
    show(facts, as_json=as_json, pretty=pretty)


_HEADS = ("cohort", "state", "PostgreSQL's", "Redis's", "fenced", "verified", "to be verified again")


def _row(each: OnlineCohort, counts: dict[int, Any]) -> tuple[Any, ...]:
    owners = counts[each.cohort]
    state = cell(str(each.state), style=_TONES.get(str(each.state), ""))
    verified = None if each.verified_at_ms is None else instant(each.verified_at_ms)
    return each.cohort, state, owners.postgres, owners.redis, owners.fenced, verified, each.dirty_reason or None


jobs.add_aliases(app, "online_migration", {name: name for name in ("pause", "resume", "throttle")})


def _plan_step(
    plan_id: str, cohorts: list[int] | None, state: str, words: str, postgres_url: str | None, *, as_json: bool
) -> None:
    """Show what a step would work on."""
    from queuekeeper.migration.online.cohorts import OnlineCohorts

    with context.postgres_connection(postgres_url) as connection:
        online = OnlineCohorts(connection)
        found = [each for each in online.load(plan_id, cohorts) if cohorts is not None or str(each.state) == state]
        counts = {each.cohort: each for each in online.owner_counts(plan_id)}
    if not found:
        raise UsageError(f"no cohort of plan {plan_id} is {state}: queuekeeper online status {plan_id} shows them all")
    clients = sum(counts[each.cohort].postgres + counts[each.cohort].redis for each in found)
    show(
        {"plan_id": plan_id, "cohorts": [plain(each) for each in found], "clients": clients, "dry_run": True},
        as_json=as_json,
        pretty=lambda out: out.print(f"{clients:,} clients of {len(found):,} cohorts {words}; nothing was changed."),
    )
