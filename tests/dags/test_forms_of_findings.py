"""Every finding with a remedy leads to a form that takes its values, and so does the task behind the form."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from queuekeeper.airflow.forms import reject_unknown
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.plugin.forms import Field, fields
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.jobs.checks import CHECKS, Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.maintenance.events import watch
from queuekeeper.maintenance.partitions import findings as partitions
from tests.dags.test_plugin_pages import FORM, Airflow, Browser
from tests.plugin_world import open_guards

pytestmark = pytest.mark.dags

FORMS = "http://airflow/queuekeeper/trigger"
TABLE = "pgmb.events"
CONNECTIONS = {"postgres_conn_id": "control", "redis_conn_id": "target"}


def _findings() -> Iterator[Finding]:
    """Yield a finding of every kind that a DAG mends.

    Those of queues come of a run over all of them, and of one over some; others of a look at partitions or the event
    broker.
    """
    for check in CHECKS.values():
        for severity in Severity:
            of_check = severity in {check.severity, check.milder and check.milder.severity}
            if not of_check or check.remedy_of(severity) is None:
                continue
            for key_prefix, cohorts in ((None, "all"), ("tbmq:", "0-3,7")):
                found = Finding(
                    suite="made_up", expectation=1, check_id=check.id, severity=severity, status=Status.FAILED,
                    description="Made up.",
                )  # fmt: skip
                filled = found.with_remedy(
                    quality_run_id="0123456789abcdef", key_prefix=key_prefix, cohorts=cohorts, limit=1_234,
                    default_ttl_s=86_400,
                )  # fmt: skip
                yield filled.with_form(CONNECTIONS, forms_url=FORMS)
    looked = [
        *(partitions.finding(kind, table=TABLE, subject=f"{TABLE}_p1", words="w") for kind in partitions.FindingKind),
        *(watch.finding(kind, TABLE, "w") for kind in watch.FindingKind),
    ]
    yield from (each.with_form(CONNECTIONS, forms_url=FORMS) for each in looked if each.is_mendable)


FINDINGS = [*_findings()]


def _sent(shown: tuple[Field, ...]) -> dict[str, str]:
    """Return what a browser sends of a form that nobody has touched: a flag that is off is left out."""
    return {each.name: each.text for each in shown if each.kind != "flag" or each.text == "true"}


@pytest.mark.parametrize(
    "finding",
    FINDINGS,
    ids=lambda each: f"{each.check_id}-{each.severity}-{each.kind or each.remedy_conf.get('key_prefix') or 'all'}",
)
def test_form_behind_the_link_of_a_finding_takes_what_is_filled_in(dag_bag: DagBag, finding: Finding) -> None:
    dag = copy.deepcopy(dag_bag.dags[finding.remedy])
    airflow = Airflow()
    airflow.params = {name: dag.params.get_param(name).dump() for name in dag.params}
    browser = Browser(pages(guards=open_guards(), api=airflow.api()))
    link = urlsplit(finding.remedy_url)
    path = link.path.removeprefix("/queuekeeper")

    page = browser.get(f"{path}?{link.query}")

    assert page.status_code == 200, page.text
    assert "has no parameter" not in page.text
    sections = [param["schema"].get("section") for param in airflow.params.values()]
    assert re.findall(r"<h2>(.+)</h2>", page.text) == list(dict.fromkeys(filter(None, sections)))
    [conf] = parse_qs(link.query)["conf"]
    assert conf != "{}"
    told = set(re.findall(r"<code>(\w+)</code>[^\n]*Filled in by the link", unescape(page.text)))
    defaults = dag.params.dump()
    assert told == {name for name, value in finding.remedy_conf.items() if value != defaults[name]}

    answer = browser.send(
        "POST", path, data=_sent(fields(airflow.params, finding.remedy_conf)), headers={"Origin": FORM["Origin"]}
    )

    assert answer.status_code == 303, answer.text
    [started] = [
        body["conf"] for method, asked, body in airflow.asked if (method, asked) == ("POST", f"{dag.dag_id}/dagRuns")
    ]
    assert started == {**defaults, **finding.remedy_conf}
    reject_unknown(started, dag.params)
    _take(dag, started)


def _take(dag: DAG, started: dict[str, object]) -> None:
    """Hand a run's values to the task that is asked: first by Airflow's own check, then by the models."""
    for name, value in started.items():
        dag.params[name] = value
    dag.params.validate()
    asked = [task for task in dag.tasks if isinstance(task, AskedOperator)]
    assert asked
    for task in asked:
        task.parameters = task.render_template(task.parameters, {"params": dag.params.dump()})
        for model in task.models:
            wish = task.read(model)
            for name in type(wish).model_fields:
                if name in started and started[name] is not None:
                    value = getattr(wish, name)
                    assert (list(value) if isinstance(value, tuple) else value) == started[name], name


def test_remedies_of_every_dag_that_mends_are_among_the_findings() -> None:
    assert {each.remedy for each in FINDINGS} == {
        remedy.dag_id for check in CHECKS.values() for remedy in (check.remedy, check.milder_remedy) if remedy
    }
    assert len(FINDINGS) > 30


def test_what_is_wrong_with_partitions_and_the_event_broker_is_mended_by_the_dag_of_its_table() -> None:
    mended = {each.kind: (each.remedy, each.remedy_conf) for each in FINDINGS if each.kind}

    maintained = ("partition_maintenance", {"dry_run": True, "tables": [TABLE], "postgres_conn_id": "control"})
    assert mended == {
        "gap": maintained,
        "short": maintained,
        "cut_short": maintained,
        "default_rows": maintained,
        "drain_left": maintained,
        "pending_detach": maintained,
        "overflow": maintained,
        "never_dispatched": ("event_upkeep", {"dry_run": True, "postgres_conn_id": "control"}),
    }
