"""``queuekeeper online``: a migration while devices are connected, step by step, and the way back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from queuekeeper.audit import record_answer
from queuekeeper.cli import context, runs
from queuekeeper.cli.command import CONFIRMS, PLANS, OnPostgres, OnServers, command, group
from queuekeeper.cli.options import Taken, takes
from queuekeeper.cli.output import Shown, cell, instant, listing, pairs, show_result, table
from queuekeeper.cli.progress import followed
from queuekeeper.cli.run_control import PlanId
from queuekeeper.facts import plain
from queuekeeper.migration.ledger.parameters import BadRows, StepWish
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.reports import StepReport, staying
from queuekeeper.migration.online.states import BEGINS, MIRRORED, ends
from queuekeeper.service.signals import stopped_by_signals
from queuekeeper.sessions.model import OWNER_WORDS
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.migration.online.driver import OnlineDriver

app = group()


_TONES = {"on_redis": "green", "soaking": "green", "committed": "green", "verified": "green", "rolling_back": "yellow"}


class OnPlan(OnServers):
    """A call of a command that works on the clients of a plan."""

    def driver(self, plan_id: str, wish: StepWish) -> OnlineDriver:
        """Return what does the steps."""
        from queuekeeper.migration.online.driver import OnlineDriver

        source, target = context.reachable(self.postgres_url, self.redis_url)
        self.opened.enter_context(followed())
        return OnlineDriver(
            postgres_url=source,
            redis_url=target,
            plan_id=plan_id,
            actor=context.person(),
            lease_ms=wish.lease_ms,
            count=wish.movers,
            tell=lambda line: print(line, file=sys.stderr if self.as_json else sys.stdout, flush=True),
        )

    def chosen(self, plan_id: str, wish: StepWish) -> list[int] | None:
        """Return the cohorts to work on; None means all that have reached this step."""
        return self.ledger.load_plan(plan_id).choose(wish.cohorts) if wish.cohorts else None

    def agree(self, plan_id: str, question: str, *, kind: str) -> None:
        """Ask, and put the answer on record.

        :param kind: of the question, as the audit has it.
        """
        self.confirm(question, note=partial(record_answer, self.connection, subject=plan_id, kind=kind))


def _asks(*names: str) -> Taken:
    """Return what lets the command of a step take the cohorts that it works on, and parameters of these names."""
    return takes(lambda: StepWish, only=["cohorts", *names])


def _done(report: StepReport) -> Shown:
    def pretty() -> Iterator[Any]:
        facts: dict[str, Any] = {
            "cohorts": len(report.cohorts),
            "clients": report.clients,
            **report.outcomes,
            "messages written": report.written,
            "messages removed": report.removed,
            "set aside": report.set_aside or None,
            "fenced": report.fenced_words or None,
            "seconds": report.seconds,
        }
        yield pairs(f"{report.step.capitalize()} of plan {report.plan_id}", facts)
        if report.examples:
            yield table("Not moved, or different", ("client", "why"), report.examples)

    failed = f"{report.left_words}: run the command again" if report.left else None
    return Shown(report, pretty, failed=failed)


def _longest(report: StepReport) -> str | None:
    return None if report.fenced_longest_ms is None else f"{report.fenced_longest_ms:,.1f} ms"


@command(app, asks=_asks("require_trigger"))
def arm(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Have writers look up who owns a client. Nothing moves yet.

    Example: `queuekeeper online arm 0123456789abcdef --cohorts 0-3`
    """
    driver, chosen = call.driver(plan_id, parameters), call.chosen(plan_id, parameters)
    return _done(driver.arm(chosen, require_trigger=parameters.require_trigger))


@command(app, "catch-up", asks=_asks("movers"))
def catch_up(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Make the copies equal to the source, without a fence.

    Example: `queuekeeper online catch-up 0123456789abcdef`
    """
    return _done(call.driver(plan_id, parameters).catch_up(call.chosen(plan_id, parameters)))


@command(app, asks=_asks("movers"))
def verify(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Compare every client in both stores. A copy that is behind is made good first.

    Example: `queuekeeper online verify 0123456789abcdef --json`
    """
    return _done(call.driver(plan_id, parameters).verify(call.chosen(plan_id, parameters)))


@command(
    app,
    also=CONFIRMS,
    asks=takes(lambda: StepWish, only=["canary_percent"], names={"canary_percent": ["--percent"]}),
)
def rehearse(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Move a few clients, the canary, there and back as a test.

    Example: `queuekeeper online rehearse 0123456789abcdef --percent 1`
    """
    driver = call.driver(plan_id, parameters)
    percent = parameters.canary_percent
    question = f"Cohorts with at least {percent} % of the clients will go to the target and back."
    call.agree(plan_id, question, kind="online_rehearsal")
    driver.choose_canary(percent)
    reports = driver.rehearse()
    columns: dict[str, Any] = {"step": "step", "clients": "clients", "messages written": "written"}
    columns |= {"longest fence": _longest, "seconds": "seconds"}
    return Shown(reports, lambda: [listing("Rehearsal", reports, columns)])


@command(app, "cut-over", also=PLANS, asks=_asks("movers", "lease_ms"))
def cut_over(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Give the clients of verified cohorts to the target.

    Example: `queuekeeper online cut-over 0123456789abcdef --cohorts 0-3 --lease-ms 500`
    """
    chosen = call.chosen(plan_id, parameters)
    if call.dry_run:
        return _would(call, plan_id, parameters, "cut over", "would be given to the target")
    call.agree(plan_id, "Clients of verified cohorts will be the target's.", kind="online_cut_over")
    return _done(call.driver(plan_id, parameters).cut_over(chosen))


@command(app, "roll-back", also=PLANS, asks=_asks("movers", "lease_ms", "max_lag_s", "mirror_wait_minutes"))
def roll_back(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Give clients back, with all that the target holds.

    Example: `queuekeeper online roll-back 0123456789abcdef --dry-run`
    """
    chosen = call.chosen(plan_id, parameters)
    if call.dry_run:
        return _would(call, plan_id, parameters, "roll back", "would go back to the source")
    driver = call.driver(plan_id, parameters)
    stay = staying(driver.committed_before(chosen))
    call.agree(plan_id, f"Clients will be the source's again.{stay}", kind="online_roll_back")
    return _done(
        driver.roll_back(chosen, max_lag_s=parameters.max_lag_s, mirror_wait_minutes=parameters.mirror_wait_minutes)
    )


@command(app, also=("dry_run",), asks=_asks())
def mirror(call: OnPlan, plan_id: PlanId, *, parameters: StepWish, follow: bool = False) -> Shown | None:
    """Write to the source what has changed in the target.

    Example: `queuekeeper online mirror 0123456789abcdef --follow`

    :param follow: Go on until a signal ends it.
    """
    chosen, driver = call.chosen(plan_id, parameters), call.driver(plan_id, parameters)
    if not follow:
        return Shown(driver.mirror(chosen, dry_run=call.dry_run), "Mirror")
    going = True

    def stop() -> None:
        nonlocal going
        going = False

    with stopped_by_signals(stop):
        while going:
            report = driver.mirror(chosen, dry_run=call.dry_run)
            show_result(Shown(report, partial(list[Any], [f"mirror: {report.words}"])), as_json=call.as_json)
            time.sleep(0.5)
    return None


@command(app, asks=_asks("soak_minutes"))
def soak(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """Watch cohorts for a while, with the mirror at work.

    You can interrupt and repeat it: the time counts from the moment in which the cohorts began to soak.

    Example: `queuekeeper online soak 0123456789abcdef --soak-minutes 60`
    """
    driver, chosen = call.driver(plan_id, parameters), call.chosen(plan_id, parameters)
    return Shown(driver.soak(chosen, minutes=parameters.soak_minutes), "Soak")


@command(app, also=PLANS, asks=_asks())
def commit(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """End a migration for good. The mirror ends, and there is no way back.

    Example: `queuekeeper online commit 0123456789abcdef --dry-run`
    """
    chosen = call.chosen(plan_id, parameters)
    if call.dry_run:
        return _would(call, plan_id, parameters, "commit", "would stay the target's for good")
    question = (
        "The mirror will end: there is no way back but a new migration. Unless the plan leaves them, messages of "
        "clients that no cluster can hold go into quarantine. Copies of a source in Redis are removed."
    )
    call.agree(plan_id, question, kind="online_commit")
    return _done(call.driver(plan_id, parameters).commit(chosen))


@command(app, asks=_asks())
def disarm(call: OnPlan, plan_id: PlanId, *, parameters: StepWish) -> Shown:
    """End a migration whose clients are all in the source. Writers no longer look up owners.

    Example: `queuekeeper online disarm 0123456789abcdef`
    """
    call.driver(plan_id, parameters).disarm(call.chosen(plan_id, parameters))
    source = call.ledger.load_plan(plan_id).parameters.source_owner
    words = f"Plan {plan_id}: {OWNER_WORDS[source]} serves, nobody looks for owners any more."
    return Shown({"plan_id": plan_id, "disarmed": True}, lambda: [words])


@command(app)
def status(call: OnPostgres, plan_id: PlanId) -> Shown:
    """Say where cohorts stand and who owns their clients.

    Example: `queuekeeper online status 0123456789abcdef`
    """
    online = OnlineCohorts(call.connection)
    control, found = online.control(plan_id), online.load(plan_id)
    counts = {each.cohort: each for each in online.owner_counts(plan_id)}

    def pretty() -> Iterator[Any]:
        facts = {
            "paused": control.paused,
            "throttle": f"{control.clients_per_s:,} clients/s" if control.clients_per_s else "none",
            "held back": control.held_back or None,
            "canary": ", ".join(map(str, control.canary)) or None,
            "rehearsed": None if control.rehearsed_at is None else f"{control.rehearsed_at:%Y-%m-%d %H:%M} UTC",
        }
        yield pairs(f"Plan {plan_id}", facts)
        if any(each.state in MIRRORED for each in found):
            # The target alone knows, and this command asks PostgreSQL alone.
            yield f"How far the mirror is behind: queuekeeper online mirror {plan_id} --dry-run"
        columns: dict[str, Any] = {
            "cohort": "cohort",
            "state": lambda each: cell(str(each.state), style=_TONES.get(str(each.state), "")),
            "PostgreSQL's": lambda each: counts[each.cohort].postgres,
            "Redis's": lambda each: counts[each.cohort].redis,
            "packed": lambda each: counts[each.cohort].packed,
            "fenced": lambda each: counts[each.cohort].fenced,
            "verified": lambda each: instant(each.verified_at_ms),
            "to be verified again": lambda each: each.dirty_reason or None,
        }
        yield listing("Cohorts", found, columns)

    cohorts = [plain(each) | {"owners": plain(counts[each.cohort])} for each in found]
    return Shown({"plan_id": plan_id, "control": control, "cohorts": cohorts}, pretty)


runs.add_aliases(app, "online_migration", {name: name for name in ("pause", "resume", "throttle")})


def _would(call: OnPlan, plan_id: str, wish: StepWish, verb: str, words: str) -> Shown:
    """Return what a step would work on; it is refused as the step would be."""
    online, cohorts = OnlineCohorts(call.connection), call.chosen(plan_id, wish)
    chosen_plan = call.ledger.load_plan(plan_id).parameters
    leaves_clients = chosen_plan.bad_rows is BadRows.LEAVE
    done = ends(verb, leaves_clients=leaves_clients)
    chosen = online.chosen(plan_id, cohorts, BEGINS[verb], verb=verb, done=done)
    found = [each for each in chosen if each.state not in done]
    if verb == "cut over" and leaves_clients:
        # Those that were left behind come when no other has to.
        found = found or chosen
    counts = {each.cohort: each for each in online.owner_counts(plan_id)}
    owner = chosen_plan.source_owner if verb == "cut over" else chosen_plan.target_owner
    here = [counts[each.cohort] for each in found]
    clients = sum(each.mirrored if verb == "roll back" else each.of(owner) for each in here)
    would: dict[str, Any] = {"plan_id": plan_id, "cohorts": found, "clients": clients, "dry_run": True}
    if verb == "commit":
        aside = call.driver(plan_id, wish).without_place(cohorts)
        would["set_aside"] = sum(aside.values())
        words += (
            f", {number_of(would['set_aside'], 'message')} of {number_of(len(aside), 'client')} that no cluster can "
            "hold would be put aside"
        )
    stay = ""
    if verb == "roll back":
        would["committed"] = sum(each.committed_to(owner) for each in here)
        stay = staying(would["committed"])
    told = f"{number_of(clients, 'client')} of {number_of(len(found), 'cohort')} {words}; nothing was changed.{stay}"
    return Shown(would, lambda: [told])
