"""Every page of the plugin as people meet it: by route, what is asked for, and what the page may complain of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from queuekeeper.audit import Action, Answer
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.control import set_waiting
from queuekeeper.jobs.store import Runs
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, PlanState
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.report.gather import Evidence, compose_report, write_report
from queuekeeper.postgres import Connection
from queuekeeper.quality.report.gather import compose_report as compose_quality
from queuekeeper.quality.report.gather import write_report as write_quality
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import quality_samples, report_samples
from tests.plugin_world import RUN_ID, fill_all, fill_migration
from tests.run_kinds import planned

DAGS = Path(__file__).parents[1] / "dags"
WAITS = "manual__waits"
"""A run in Airflow that asks a person."""
CLIENT = "meter-17"
"""A client with messages in Redis alone."""
PLANNED, COPYING, VERIFIED, ONLINE = (digits * 8 for digits in ("a1", "b2", "c3", "d4"))


@dataclass(frozen=True, kw_only=True)
class View:
    """A page in one state.

    :param name: of its pictures.
    :param path: address below the site, with ``{places}`` that :func:`fill` returns.
    :param form: what is sent to it; none for a page that is opened by its address.
    :param alert: what every alert on the page says; empty for a page without any.
    """

    name: str
    path: str
    form: Mapping[str, str] | None = None
    status: int = 200
    alert: str = ""


_ASKED = {"client_id": CLIENT}
VIEWS: dict[str, tuple[View, ...]] = {
    "GET /": (View(name="overview", path="/"),),
    "GET /migration": (View(name="migrations", path="/migration"),),
    "GET /migration/{plan_id}": (
        View(name="migration", path=f"/migration/{report_samples.PLAN_ID}"),
        View(name="migration-asks", path=f"/migration/{PLANNED}"),
        View(name="migration-copies", path=f"/migration/{COPYING}"),
        View(name="migration-verified", path=f"/migration/{VERIFIED}"),
        View(name="migration-online", path=f"/migration/{ONLINE}"),
        View(name="migration-unknown", path=f"/migration/{'0' * 16}", status=404, alert="there is no plan"),
    ),
    "GET /migration/{plan_id}/cohorts/{cohort}": (
        View(name="cohort", path=f"/migration/{report_samples.PLAN_ID}/cohorts/7"),
        View(name="cohort-equal", path=f"/migration/{VERIFIED}/cohorts/7"),
        View(name="cohort-planned", path=f"/migration/{PLANNED}/cohorts/7"),
    ),
    "GET /migration/{plan_id}/cohorts/{cohort}/clients/{name}": (
        View(name="client", path=f"/migration/{report_samples.PLAN_ID}/cohorts/7/clients/{{client}}"),
    ),
    "GET /runs": (
        View(name="runs", path="/runs"),
        View(name="runs-none", path="/runs?kind=event_upkeep&state=failed"),
    ),
    "GET /runs/{kind}/{run_id}": (
        View(name="run", path="/runs/fanout_repair/{run}"),
        View(name="run-paused", path="/runs/expired_reference_cleanup/{paused_run}"),
        View(name="run-rejected", path="/runs/compacted_queue_gc/{rejected_run}"),
        View(name="run-of-partitions", path="/runs/partition_creation/{partition_run}"),
    ),
    "GET /queue": (View(name="queue-asked", path="/queue"),),
    "POST /queue": (
        View(name="queue", path="/queue", form=_ASKED),
        View(name="queue-without-gaps", path="/queue", form=_ASKED | {"gaps": "true"}),
        View(name="queue-refused", path="/queue", form={"client_id": ""}, status=422, alert="client id"),
    ),
    "GET /queue/{name}": (View(name="queue-by-hash", path="/queue/{by_hash}"),),
    "POST /queue/reveal": (
        View(
            name="payload",
            path="/queue/reveal",
            form=_ASKED | {"store": "redis", "packet_id": "{packet_id}", "reason": "the device says it is damaged"},
        ),
    ),
    "GET /search": (View(name="search", path="/search"),),
    "POST /search": (
        View(name="found", path="/search", form={"text": CLIENT}),
        View(name="found-run", path="/search", form={"text": report_samples.PLAN_ID}),
        View(name="found-nothing", path="/search", form={"text": "no such thing"}),
    ),
    "GET /partitions": (View(name="partitions", path="/partitions"),),
    "GET /quality": (View(name="quality", path="/quality"),),
    "GET /audit": (
        View(name="audit", path="/audit"),
        View(name="audit-verified", path="/audit?verify=true"),
        View(name="audit-none", path="/audit?actor=nobody"),
    ),
    "GET /reports": (View(name="reports", path="/reports"),),
    "GET /reports/{name}": (
        View(name="report-of-migration", path="/reports/{migration_report}"),
        View(name="report-of-quality", path="/reports/{quality_report}"),
    ),
    "GET /run": (View(name="no-report", path="/run?dag_id=session_migration&run_id=none", status=404),),
    "GET /run/progress": (View(name="no-plan", path="/run/progress?dag_id=session_migration&run_id=none", status=404),),
    "GET /task": (
        View(name="task", path=f"/task?dag_id=session_migration&run_id={WAITS}&task_id=approve"),
        View(name="task-without-entries", path="/task?dag_id=event_upkeep&run_id=done&task_id=plan&map_index=2"),
    ),
    "GET /trigger/{dag_id}": (
        *(View(name=f"form-{each.stem}", path=f"/trigger/{each.stem}") for each in sorted(DAGS.glob("*.py"))),
        View(
            name="form-filled",
            path="/trigger/session_rollback?conf=%7B%22plan_id%22%3A%220123456789abcdef%22%2C%22old%22%3A1%7D",
            alert="no parameter old",
        ),
    ),
    "POST /trigger/{dag_id}": (
        View(
            name="form-refused",
            path="/trigger/queue_quality",
            form={"default_ttl_s": "soon"},
            status=422,
            alert="The run was not started",
        ),
    ),
    "GET /started": (
        View(name="started", path=f"/started?dag_id=queue_quality&run_id={WAITS}"),
        View(name="started-done", path="/started?dag_id=queue_quality&run_id=done"),
    ),
    "GET /{path:path}": (View(name="nothing", path="/nothing", status=404, alert="There is no such page"),),
}
"""By method and path of the route, as the application has it."""

NO_PAGES = {
    "GET /migration/{plan_id}/data": "figures for the script of the plan's page",
    "POST /migration/{plan_id}/answer": "leads back to the plan's page",
    "POST /runs/{kind}/{run_id}/throttle": "leads back to the run's page",
    "POST /runs/{kind}/{run_id}/pause": "leads back to the run's page",
    "GET /audit/export": "a file",
    "GET /static/{name}": "style sheet and script, which every page asks for",
}
"""Routes that show nothing, and what they are for."""

EMPTY = ("overview", "migrations", "runs", "partitions", "quality", "audit-verified", "reports")
"""Views that a stranger sees first, on servers without any history."""


def fill(connection: Connection, client: RedisClient, home: Path) -> dict[str, str]:
    """Give empty stores a history in which every page has something to show, and return the places of addresses."""
    now_ms = system_clock()
    settings = Settings(home=home)
    fill_all(connection, messages=500, sessions=50)
    differing, ledger = report_samples.unbalanced(), MigrationLedger(connection)
    # In the samples they are markup, which a walk would take for what a template has left over.
    found = tuple(replace(each, expected="2 references", found="1 reference") for each in differing.found)
    differing = replace(differing, found=found)
    counts = {(7, kind): count for kind, count in differing.difference_counts.items()}
    ledger.replace_differences(report_samples.PLAN_ID, [7], found, counts=counts)
    _plan(connection, report_samples.unverified(), PLANNED, now_ms=now_ms, run_id=WAITS)
    copying = report_samples.balanced()
    states = {at: CohortState.COPIED if at < 40 else CohortState.PLANNED for at in copying.states}
    _plan(
        connection,
        replace(copying, plan=replace(copying.plan, state=PlanState.COPYING), states=states, rows=()),
        COPYING,
        now_ms=now_ms,
    )
    _plan(connection, report_samples.balanced(), VERIFIED, now_ms=now_ms)
    connected = report_samples.unverified()
    parameters = replace(connected.plan.parameters, mode=Mode.ONLINE)
    _plan(connection, replace(connected, plan=replace(connected.plan, parameters=parameters)), ONLINE, now_ms=now_ms)
    online = OnlineCohorts(connection)
    online.arm(ledger.load_plan(ONLINE), [0, 1], actor="operator")
    connection.execute(
        "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch)"
        " SELECT 'c' || n, n, CASE WHEN n < 3 THEN 'redis' ELSE 'postgres' END, 1 FROM generate_series(0, 9) AS n"
    )
    online.hold_back(ONLINE, "Redis answers within 30 ms, the limit is 20 ms")
    messages = tuple(
        NewMessage(topic="valves/1", payload=b'{"valve": "open"}', qos=1, time_ms=now_ms, expiry_interval_s=3_600)
        for _ in range(4)
    )
    (saved,) = RedisSessionStore(client).save_messages([SessionSave(client_id=CLIENT, messages=messages)])
    undo = home / "undo"
    paused = planned(connection, "expired_reference_cleanup", undo, has_work=True)
    set_waiting(Runs(connection), paused, True, actor="operator")
    rejected = planned(connection, "compacted_queue_gc", undo, has_work=True)
    Runs(connection).note_answer(rejected, Answer(action=Action.REJECT, actor="operator"))
    migration = write_report(compose_report(differing, now_ms=report_samples.NOW_MS), settings.reports)
    quality = write_quality(
        compose_quality(quality_samples.failed(), now_ms=quality_samples.NOW_MS, forms_url="/queuekeeper/trigger"),
        settings.reports,
    )
    return {
        "client": client_hash("meter/17", key=hash_key(settings)),
        "by_hash": f"{1:016x}",
        "run": planned(connection, "fanout_repair", undo, has_work=True),
        "paused_run": paused,
        "rejected_run": rejected,
        "partition_run": planned(connection, "partition_creation", undo),
        "migration_report": migration.html.name,
        "quality_report": quality.html.name,
        "packet_id": str(saved.packet_ids[0]),
    }


def _plan(connection: Connection, evidence: Evidence, plan_id: str, *, now_ms: int, run_id: str = RUN_ID) -> None:
    evidence = replace(evidence, plan=replace(evidence.plan, plan_id=plan_id))
    fill_migration(connection, evidence, now_ms=now_ms, run_id=run_id)
