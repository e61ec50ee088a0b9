"""Queues are judged, a finding is followed to its remedy, and the queues are judged again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from queuekeeper.clock import system_clock
from queuekeeper.demo.day import Day, Outcome, Waiting
from queuekeeper.demo.follow import follow
from queuekeeper.keyspace import session_keys
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore

DAG_ID = "queue_quality"
REMEDY_DAG_ID = "session_repair"
CONF = {"suite": "full", "stores": "all_redis"}

COUNTER_BEHIND = "Q11"
WITHOUT_TTL = "Q13"
PLANTED: Mapping[str, str] = {
    COUNTER_BEHIND: "defect-counter-behind",
    WITHOUT_TTL: "defect-without-expiry",
}
"""Check -> client whose queue is broken so that the check finds it."""


def plant_defects(redis: RedisClient) -> None:
    """Break two queues as releases of TBMQ 2.x are known to break them (docs/reliability.md, "Defects of others")."""
    store = RedisSessionStore(redis)
    for client_id in PLANTED.values():
        messages = tuple(
            NewMessage(topic="demo/defects", payload=b"message %d" % number, qos=1, time_ms=system_clock())
            for number in range(3)
        )
        store.save_messages([SessionSave(client_id=client_id, messages=messages)])
    # An expiry of 0 stops the script that adds messages before it moves the counter.
    redis.set(session_keys(PLANTED[COUNTER_BEHIND]).last_packet_id, 1)
    # PUBREC rewrites a message without its expiry.
    keys = session_keys(PLANTED[WITHOUT_TTL])
    redis.persist(f"{keys.messages}_2")


def judge_and_mend(day: Day) -> Waiting[None]:
    """Judge broken queues, follow one finding to its remedy, and judge them again."""
    plant_defects(day.redis)
    # Something critical is found, so that the DAGs that depend on these queues are kept waiting.
    planted = " and ".join(f"{client} ({check})" for check, client in PLANTED.items())
    note = f"Fails on purpose: the demo has broken the queues {planted}, so that this run finds them."
    page, _, found = yield from _judge(day, note=note, may_fail=["publish"])
    titles = [f"{each} ({found[each]['title']})" for each in PLANTED if each in found]
    day.show(
        Outcome(
            step="Finding",
            line=f"{len(PLANTED)} queues were broken on purpose, and found by {' and '.join(titles) or 'no check'}",
            page=page,
            sound=len(titles) == len(PLANTED),
        )
    )
    if COUNTER_BEHIND in found:
        yield from _mend(day, found[COUNTER_BEHIND])
    note = f"Judges again what the demo has broken: {COUNTER_BEHIND} is mended, {WITHOUT_TTL} is left for you to mend."
    page, state, found = yield from _judge(day, note=note)
    day.client.pause(DAG_ID)
    is_sound = state == "success" and COUNTER_BEHIND not in found
    critical = "something critical was found; the run's report names the queues and the remedy"
    day.show(
        Outcome(step="Quality", line="nothing critical was found" if is_sound else critical, page=page, sound=is_sound)
    )


def _mend(day: Day, finding: Mapping[str, Any]) -> Waiting[None]:
    """Follow a finding's link to the form of its remedy, and start the remedy with the values of the form."""
    [conf] = parse_qs(urlsplit(finding["remedy_url"]).query)["conf"]
    # The form opens as a dry run: unticking that is all that a person would change.
    values = json.loads(conf) | {"dry_run": False}
    note = f"The demo has followed the link of {finding['check']}, which a run of {DAG_ID} found."
    run_id = day.trigger(REMEDY_DAG_ID, conf=values, note=note)
    state = yield from follow(day, REMEDY_DAG_ID, run_id, asks=True)
    day.show(
        Outcome(
            step="Remedy",
            line=f"the link of {finding['check']} filled in the form of {REMEDY_DAG_ID}, and {values['remedy']} "
            "mended what was found",
            page=day.run_page(REMEDY_DAG_ID, run_id),
            sound=state == "success",
        )
    )


def _judge(
    day: Day, *, note: str, may_fail: Collection[str] = ()
) -> Waiting[tuple[str, str, Mapping[str, Mapping[str, Any]]]]:
    """Run the DAG; return the page of the run, its state, and what it found, by check."""
    run_id = day.trigger(DAG_ID, conf=CONF, note=note)
    state = yield from follow(day, DAG_ID, run_id, may_fail=may_fail)
    findings = day.client.returned(DAG_ID, run_id, "check")["findings"]
    return day.run_page(DAG_ID, run_id), state, {finding["check"]: finding for finding in findings}
