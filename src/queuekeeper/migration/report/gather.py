"""Gathers what a migration left behind into one record and writes it as files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

from queuekeeper import __version__
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.store import Approval
from queuekeeper.migration.ledger.ledger import (
    MigrationLedger,
    QuarantineCount,
    Step,
)
from queuekeeper.migration.ledger.model import CohortState, CopyReport, Difference, LedgerRow, MigrationPlan
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.ledger.throughput import ThroughputSample, spans
from queuekeeper.migration.report.memory import estimate_memory
from queuekeeper.migration.report.model import (
    FORMAT,
    ApprovalFacts,
    CohortLine,
    DifferenceLine,
    Differences,
    Event,
    LedgerLine,
    MemoryFacts,
    MigrationReport,
    PlanFacts,
    QuarantineLine,
    StepThroughput,
    ThroughputPoint,
    Verdict,
)
from queuekeeper.migration.report.page import render
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.files import ReportFiles, ReportKind, write_rendered
from queuekeeper.report.servers import ServerMemory, measure_servers
from queuekeeper.sessions.judge import Reason
from queuekeeper.wording import number_of

T = TypeVar("T")
DIFFERENCES_SHOWN = 200
POINTS_PER_STEP = 400
STEPS: tuple[Step, ...] = ("copy", "verify")
_ASSIGN = "--assign-packet-ids"


def _by_sql(column: str, meaning: str) -> tuple[str, str, str]:
    return meaning, f"Correct {column} of the rows in queuekeeper.quarantine by SQL, then replay.", ""


GUIDE: dict[Reason, tuple[str, str, str]] = {
    Reason.CLIENT_ID_EMPTY: _by_sql(
        "client_id",
        "The client id is empty. No MQTT session has such an id, and its keys would fall outside every session.",
    ),
    Reason.CLIENT_ID_SCATTERED: (
        "The client id begins with a closing brace: its keys lie in several hash slots, and no cluster serves that.",
        "Migrate to a single server, or correct client_id in queuekeeper.quarantine by SQL, then replay.",
        "",
    ),
    Reason.PACKET_ID_DUPLICATE: (
        "A newer pending message of the same client has this packet id: the ids wrapped around at 65,535.",
        "Replay under a packet id that is free. The message keeps its place in the order.",
        _ASSIGN,
    ),
    Reason.PACKET_ID_OUT_OF_RANGE: (
        "The packet id is missing, 0, negative or over 65,535, which no MQTT packet can carry.",
        "Replay under a packet id that is free. The message keeps its place in the order.",
        _ASSIGN,
    ),
    Reason.PACKET_TYPE_UNKNOWN: _by_sql("packet_type", "The packet type is neither PUBLISH nor PUBREL."),
    Reason.QOS_OUT_OF_RANGE: _by_sql(
        "qos", "The quality of service is neither 1 nor 2. Only those two are stored for a session."
    ),
    Reason.SERIAL_OUT_OF_RANGE: _by_sql(
        "serial_number",
        "The serial number is negative or over 2^53 - 1, so a sorted set would not keep its place exactly.",
    ),
    Reason.TIME_OUT_OF_RANGE: _by_sql(
        "time", "The time is negative, or so far ahead that the expiry cannot be expressed."
    ),
    Reason.TOPIC_EMPTY: _by_sql("topic", "The topic is empty. A message needs a topic to be delivered."),
    Reason.TOPIC_INVALID: _by_sql("topic", "The topic has more than 65,535 bytes, the most that MQTT carries."),
    Reason.PAYLOAD_FORMAT_INVALID: (
        "The payload format indicator is neither 0 nor 1. Clients close the connection over such a message.",
        "Set payload_format_indicator to 0, 1 or NULL in queuekeeper.quarantine by SQL, then replay.",
        "",
    ),
    Reason.CONTENT_TYPE_INVALID: _by_sql(
        "content_type", "The content type has more than 65,535 bytes, the most that MQTT carries."
    ),
    Reason.RESPONSE_TOPIC_INVALID: _by_sql(
        "response_topic", "The response topic has more than 65,535 bytes, the most that MQTT carries."
    ),
    Reason.CORRELATION_DATA_TOO_LONG: _by_sql(
        "correlation_data", "The correlation data have more than 65,535 bytes, the most that MQTT carries."
    ),
    Reason.PACKET_TOO_LARGE: _by_sql(
        "payload", "Payload, topic and properties together have more than the 268,435,455 bytes of an MQTT packet."
    ),
    Reason.USER_PROPERTIES_INVALID: (
        "The user properties are not the JSON that TBMQ writes, or hold a text that MQTT cannot carry.",
        "Correct user_properties in queuekeeper.quarantine by SQL, or replay without them.",
        "--drop-user-properties",
    ),
    Reason.LAST_PACKET_ID_OUT_OF_RANGE: (
        "The session row's last packet id is no valid packet id. The session's messages are not touched by this.",
        "Nothing has to be done: the counter in Redis was taken from the session's newest message.",
        "",
    ),
}
"""Reason -> what it means, how to repair it, options of the replay command."""


def client_label(client_id: str, *, show_client_ids: bool = False) -> str:
    """Return what stands for a client id in a report: a hash that tells ids apart but does not show them."""
    if show_client_ids:
        return client_id
    return hashlib.sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def replay_command(plan_id: str, reason: str, *, mode: Mode) -> str:
    """Return the command that replays the repaired rows of one reason."""
    command = f"queuekeeper migrate replay {plan_id}" if mode is Mode.OFFLINE else "queuekeeper sessions replay"
    options = guide(reason, mode=mode)[2]
    return " ".join(part for part in (command, "--reason", reason, options) if part)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a report is composed of, as read from the control schema and the servers.

    :param found: the first differences.
    :param difference_counts: all of them by kind, most frequent first.
    :param samples: running counts by step.
    """

    plan: MigrationPlan
    states: dict[int, CohortState]
    throttle: int | None
    approval: Approval | None
    rows: tuple[LedgerRow, ...]
    verified_at_ms: int | None
    found: tuple[Difference, ...]
    difference_counts: Mapping[str, int]
    quarantine: tuple[QuarantineCount, ...]
    samples: dict[Step, tuple[ThroughputSample, ...]]
    copy_reports: tuple[CopyReport, ...]
    memory: MemoryFacts


def build_report(
    ledger: MigrationLedger,
    client: RedisClient,
    *,
    plan_id: str,
    now_ms: int,
    show_client_ids: bool = False,
    differences_shown: int = DIFFERENCES_SHOWN,
) -> MigrationReport:
    """Gather all that is known of a migration; reads only.

    :param client: target; when it cannot be asked the report says so instead of failing.
    :param now_ms: instant of the report.
    :param show_client_ids: name clients as they are instead of by hash.
    :param differences_shown: how many differences to list.
    :raises UsageError: when the plan is not known.
    """
    plan = ledger.load_plan(plan_id)
    rows = ledger.ledger(plan_id)
    copy_reports = tuple(ledger.copy_reports(plan_id))
    evidence = Evidence(
        plan=plan,
        states=ledger.cohort_states(plan_id),
        throttle=ledger.throttle(plan_id),
        approval=ledger.approval(plan_id),
        rows=rows,
        verified_at_ms=ledger.verified_at_ms(plan_id),
        found=tuple(ledger.differences(plan_id, limit=differences_shown)),
        difference_counts=ledger.difference_counts(plan_id),
        quarantine=tuple(ledger.quarantine_counts(plan_id)),
        samples={step: tuple(ledger.throughput(plan_id, step)) for step in STEPS},
        copy_reports=copy_reports,
        memory=measure_memory(client, plan=plan, totals=total_line(rows), copy_reports=copy_reports),
    )
    return compose_report(evidence, now_ms=now_ms, show_client_ids=show_client_ids, differences_shown=differences_shown)


def compose_report(
    evidence: Evidence,
    *,
    now_ms: int,
    show_client_ids: bool = False,
    differences_shown: int = DIFFERENCES_SHOWN,
) -> MigrationReport:
    """Work out what the evidence says; parameters as for :func:`build_report`."""
    plan, rows = evidence.plan, evidence.rows
    summaries = (summarise_throughput(step, evidence.samples.get(step, ())) for step in STEPS)
    throughput = tuple(step for step in summaries if step is not None)
    totals = total_line(rows)
    differences = summarise_differences(
        evidence.found,
        counts=evidence.difference_counts,
        total=totals.differences,
        shown=differences_shown,
        show_client_ids=show_client_ids,
    )
    missing = _cohorts_missing(plan, rows, evidence.states)
    verdict = judge(rows=rows, differences=differences.total, missing=missing)
    approval = None
    if evidence.approval is not None:
        approval = ApprovalFacts(
            approved_by=evidence.approval.approved_by,
            approved_at_ms=round(evidence.approval.approved_at.timestamp() * 1_000),
        )
    return MigrationReport(
        format=FORMAT,
        generated_at_ms=now_ms,
        generated_by=f"queuekeeper {__version__}",
        verdict=verdict,
        explanation=explain(verdict, totals=totals, differences=differences.total, missing=missing, plan=plan),
        plan=_plan_facts(plan, throttle=evidence.throttle),
        approval=approval,
        verified_at_ms=evidence.verified_at_ms,
        totals=totals,
        digest=_digest(rows),
        cohorts_missing=missing,
        cohorts=_cohort_lines(plan, rows, evidence.states),
        differences=differences,
        quarantine=quarantine_lines(plan, evidence.quarantine),
        throughput=throughput,
        memory=evidence.memory,
        copy_reports=evidence.copy_reports,
        timeline=_timeline(
            plan, approval=approval, throughput=throughput, verified_at_ms=evidence.verified_at_ms, now_ms=now_ms
        ),
    )


def quarantine_lines(plan: MigrationPlan, counts: Sequence[QuarantineCount]) -> tuple[QuarantineLine, ...]:
    """Return how many rows wait for repair, by reason, with what to do."""

    def line(count: QuarantineCount) -> QuarantineLine:
        mode = plan.parameters.mode
        meaning, repair, _ = guide(count.reason, mode=mode)
        command = replay_command(plan.plan_id, count.reason, mode=mode)
        return _made_of(QuarantineLine, count, meaning=meaning, repair=repair, command=command)

    return tuple(map(line, counts))


def guide(reason: str, *, mode: Mode) -> tuple[str, str, str]:
    """Return what a reason means, how to repair such rows, and the options of the command that replays them.

    With devices connected a row is set aside when its session moves, and comes back behind all others.
    """
    unknown = ("This release does not know the reason.", "Look at the column detail of queuekeeper.quarantine.", "")
    meaning, repair, options = GUIDE[Reason(reason)] if reason in set(Reason) else unknown
    if mode is Mode.ONLINE and options == _ASSIGN:
        repair, options = "Replay. The message gets the next packet id, and comes behind all others.", ""
    elif mode is Mode.ONLINE:
        repair = repair.replace("queuekeeper.quarantine", "queuekeeper.session_quarantine")
    return meaning, repair, options


def _made_of(made: Callable[..., T], source: object, **more: Any) -> T:
    """Return a record of which the source has all fields but those that are given."""
    names = {each.name for each in fields(cast(Any, made))} - more.keys()
    return made(**{name: getattr(source, name) for name in names}, **more)


def total_line(rows: Sequence[LedgerRow]) -> LedgerLine:
    """Return the sum of all cohorts' lines."""
    lines = [asdict(_made_of(LedgerLine, row)) for row in rows]
    # Without signs: a row counted twice in one cohort is no consolation for one that is missing in another.
    return LedgerLine(**{each.name: sum(abs(line[each.name]) for line in lines) for each in fields(LedgerLine)})


def judge(*, rows: Sequence[LedgerRow], differences: int, missing: Sequence[int]) -> Verdict:
    """Say whether the ledger balances: cohort by cohort, so that two errors cannot cancel each other out.

    :param differences: differences found.
    :param missing: chosen cohorts that are not verified as they now stand.
    """
    if not rows:
        return Verdict.NOT_VERIFIED
    if differences or any(row.unaccounted or row.differences for row in rows):
        return Verdict.NOT_BALANCED
    return Verdict.INCOMPLETE if missing else Verdict.BALANCED


def explain(
    verdict: Verdict, *, totals: LedgerLine, differences: int, missing: Sequence[int], plan: MigrationPlan
) -> str:
    """Return the verdict in a sentence or two, with what to do next."""
    match verdict:
        case Verdict.BALANCED:
            return (
                f"All {totals.rows_seen:,} messages of the source are accounted for, and nothing differs. "
                f"{totals.copied:,} are in Redis, in order."
            )
        case Verdict.NOT_BALANCED:
            return (
                f"{number_of(totals.unaccounted, 'message')} unaccounted for and "
                f"{number_of(differences, 'difference')} found. Do not start the broker on this data: see the "
                "differences below, copy again, verify again."
            )
        case Verdict.INCOMPLETE:
            return (
                f"What was verified is in order, but {len(missing):,} of {len(plan.chosen):,} chosen cohorts are "
                f"not verified as they now stand. Run: queuekeeper migrate verify {plan.plan_id}"
            )
        case Verdict.NOT_VERIFIED:
            return (
                f"Source and target have not been compared yet; the plan is {plan.state.value}. "
                f"After the copy run: queuekeeper migrate verify {plan.plan_id}"
            )


def _cohorts_missing(plan: MigrationPlan, rows: Sequence[LedgerRow], states: dict[int, CohortState]) -> tuple[int, ...]:
    # A cohort that was copied again after its verification is back in state copied: its ledger row is old news.
    verified = {row.cohort for row in rows}
    settled = (CohortState.VERIFIED, CohortState.FAILED)
    return tuple(
        number
        for number in plan.chosen
        if number not in verified or states.get(number, CohortState.PLANNED) not in settled
    )


def _digest(rows: Sequence[LedgerRow]) -> str | None:
    if not rows:
        return None
    # As the verification prints it.
    text = "".join(row.digest for row in sorted(rows, key=lambda row: row.cohort))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan_facts(plan: MigrationPlan, *, throttle: int | None) -> PlanFacts:
    told = plan.facts() | {
        "state": plan.state.value,
        "parameters": asdict(plan.parameters) | {"throttle_messages_per_s": throttle},
        "chosen": len(plan.chosen),
    }
    return PlanFacts(**{each.name: told[each.name] for each in fields(PlanFacts)})


def _cohort_lines(
    plan: MigrationPlan, rows: Sequence[LedgerRow], states: dict[int, CohortState]
) -> tuple[CohortLine, ...]:
    chosen = set(plan.chosen)
    by_number = {row.cohort: row for row in rows}
    lines = []
    for cohort in plan.cohorts:
        row = by_number.get(cohort.cohort)
        lines.append(
            _made_of(
                CohortLine,
                cohort,
                chosen=cohort.cohort in chosen,
                state=states.get(cohort.cohort, CohortState.PLANNED).value,
                ledger=None if row is None else _made_of(LedgerLine, row),
                digest=None if row is None else row.digest,
            )
        )
    return tuple(lines)


def summarise_differences(
    found: Sequence[Difference], *, counts: Mapping[str, int], total: int, shown: int, show_client_ids: bool
) -> Differences:
    """Say how many differences there are of each kind, and keep the first ones.

    :param total: how many the ledger has; a count that is higher prevails, as nothing may be played down.
    """
    return Differences(
        total=max(total, sum(counts.values())),
        by_kind=dict(counts),
        shown=tuple(
            _made_of(DifferenceLine, each, client=client_label(each.client_id, show_client_ids=show_client_ids))
            for each in found[:shown]
        ),
    )


def summarise_throughput(step: Step, samples: Sequence[ThroughputSample]) -> StepThroughput | None:
    """Turn running counts into speeds; a pause or a count that starts again begins a new run.

    :returns: none when there are too few samples for a speed.
    """
    points: list[ThroughputPoint] = []
    run, elapsed_ms, messages = 0, 0, 0
    for span in spans(samples):
        if not span.worked_ms:
            run += 1
            continue
        elapsed_ms += span.worked_ms
        messages += span.messages
        points.append(
            ThroughputPoint(
                run=run,
                at_ms=span.sample.at_ms,
                elapsed_s=elapsed_ms / 1_000,
                done=span.sample.done,
                messages_per_s=span.messages_per_s,
            )
        )
    if not points:
        return None
    return StepThroughput(
        step=step,
        runs=len({point.run for point in points}),
        first_ms=samples[0].at_ms,
        last_ms=samples[-1].at_ms,
        messages=messages,
        seconds=elapsed_ms / 1_000,
        messages_per_s=messages * 1_000 / elapsed_ms,
        peak_messages_per_s=max(point.messages_per_s for point in points),
        points=_thinned(points),
    )


def _thinned(points: list[ThroughputPoint]) -> tuple[ThroughputPoint, ...]:
    """Average neighbours of a run until a chart can hold the points; the area under the curve stays."""
    stride = -(-len(points) // POINTS_PER_STEP)
    if stride == 1:
        return tuple(points)
    result: list[ThroughputPoint] = []
    start = 0
    while start < len(points):
        group = [point for point in points[start : start + stride] if point.run == points[start].run]
        last, begun_s = group[-1], points[start - 1].elapsed_s if start else 0.0
        weights = [after - before for before, after in pairwise([begun_s, *(point.elapsed_s for point in group)])]
        moved = sum(point.messages_per_s * weight for point, weight in zip(group, weights, strict=True))
        result.append(replace(last, messages_per_s=moved / sum(weights)))
        start += len(group)
    return tuple(result)


def measure_memory(
    client: RedisClient, *, plan: MigrationPlan, totals: LedgerLine, copy_reports: Sequence[CopyReport]
) -> MemoryFacts:
    """Set what the migrated sessions take in Redis beside the forecast."""
    forecast = plan.total("forecast_bytes")
    messages = totals.copied or sum(report.messages_written for report in copy_reports)
    sessions = totals.sessions_copied or sum(report.sessions_written for report in copy_reports)
    servers: tuple[ServerMemory, ...] = ()
    estimate, remark = None, "Nothing has been copied yet."
    try:
        servers = measure_servers(client)
        if messages or sessions:
            estimate = estimate_memory(
                client, prefix=plan.parameters.key_prefix, messages=messages, sessions=sessions,
                layout=plan.parameters.layout,
            )  # fmt: skip
            remark = "" if estimate else "No key of a session was met in the sample."
    except QueuekeeperError as error:
        remark = str(error)
    return MemoryFacts(
        forecast_bytes=forecast,
        estimate=estimate,
        error_ratio=estimate.bytes / forecast - 1 if estimate and forecast else None,
        servers=servers,
        remark=remark,
    )


def _timeline(
    plan: MigrationPlan,
    *,
    approval: ApprovalFacts | None,
    throughput: Sequence[StepThroughput],
    verified_at_ms: int | None,
    now_ms: int,
) -> tuple[Event, ...]:
    events = [Event(at_ms=plan.as_of_ms, what="Source read", detail=f"plan {plan.plan_id}")]
    if approval is not None:
        events.append(Event(at_ms=approval.approved_at_ms, what="Approved", detail=f"by {approval.approved_by}"))
    names = {"copy": ("Copy began", "Copy ended"), "verify": ("Verification began", "Verification ended")}
    for step in throughput:
        began, ended = names[step.step]
        runs = f"{step.runs} runs" if step.runs > 1 else ""
        events.append(Event(at_ms=step.first_ms, what=began, detail=""))
        events.append(Event(at_ms=step.last_ms, what=ended, detail=runs))
    if verified_at_ms is not None:
        events.append(Event(at_ms=verified_at_ms, what="Ledger written", detail=""))
    events.append(Event(at_ms=now_ms, what="Report written", detail=""))
    return tuple(sorted(events, key=lambda event: event.at_ms))


def write_report(report: MigrationReport, directory: Path) -> ReportFiles:
    """Write the report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: made when it is not there.
    :raises RefusedError: when it cannot be written to.
    """
    return write_rendered(report, directory, kind=ReportKind.MIGRATION, subject_id=report.plan.plan_id, render=render)
