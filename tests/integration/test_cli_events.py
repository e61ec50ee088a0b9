"""``queuekeeper events`` on a real server: published, shown, dispatched, replayed, released, and refused in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from queuekeeper import postgres, schema_migrations
from queuekeeper.cli import app
from queuekeeper.events import schema
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.model import Delivery, Interest, NewEvent
from queuekeeper.postgres import Connection
from tests.event_samples import subscribe
from tests.integration.command_line import CommandLine
from tests.original_pgmb import OriginalPgmb

pytestmark = pytest.mark.integration

commands = CommandLine(group="events")
run, as_json, fails = commands.run, commands.as_json, commands.fails

DEEP = "[" * 100_000 + "]" * 100_000
"""JSON that is nested deeper than programs read it."""


@pytest.fixture
def connection(named_postgres: str) -> Iterator[Connection]:
    """A connection to a database with the broker in it, named by the environment."""
    with postgres.connect(named_postgres, autocommit=True) as opened:
        schema.install(opened)
        yield opened


@pytest.fixture
def broker(connection: Connection) -> EventBroker:
    return EventBroker(connection)


def test_published_event_is_dispatched_and_shown_without_being_taken(broker: EventBroker) -> None:
    broker.subscribe("billing", Interest.topics("orders"))
    event_id = as_json("publish", "orders", "--payload", '{"order": 17}')["id"]
    report = as_json("dispatch", "--once")
    assert (report["matches"], report["quarantined"]) == (1, [])

    for _ in range(2):
        (shown,) = as_json("read", "billing")["events"]
        assert (shown["id"], shown["topic"]) == (event_id, "orders")
        assert "payload" not in shown
    (shown,) = as_json("read", "billing", "--content")["events"]
    assert shown["payload"] == {"order": 17}
    text = run("read", "billing", "--content").stdout
    assert event_id in text
    assert '{"order": 17}' in text
    cursor = as_json("read", "billing")["next_cursor"]
    assert "has read everything" in run("read", "billing", "--cursor", cursor).stdout


def test_file_of_events_is_published_as_a_whole_or_not_at_all(
    broker: EventBroker, connection: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"topic": "orders", "payload": number}) for number in range(3_000)]
    path.write_text("\n".join(lines), "utf-8")
    assert as_json("publish", "--input", str(path)) == {"published": 3_000}
    line = '{"topic": "a", "metadata": {"b": 1}}\n\n'
    assert as_json("publish", "--input", "-", given=line) == {"published": 1}

    fails("publish", "--input", "-", given='{"topic": "a"}\n{', code=2, words="line 2 is not JSON")
    fails("publish", "--input", "-", given='{"topic": "a"}\n[]', code=2, words="line 2 must be an object")
    fails(
        "publish", "--input", "-", given='{"topic": "a"}\n\n{"topic": ""}', code=2, words="line 3 .*: topic is empty;"
    )
    deep = f'{{"topic": "a"}}\n{{"topic": "b", "payload": {DEEP}}}'
    fails("publish", "--input", "-", given=deep, code=2, words="line 2 is not JSON: maximum recursion depth")
    assert connection.execute("SELECT count(*) FROM pgmb.events").fetchone() == (3_001,)


def test_event_is_published_later_and_for_one_subscription(broker: EventBroker, connection: Connection) -> None:
    chosen = broker.subscribe("billing", Interest(condition="FALSE"))
    as_json("publish", "orders", "--due", "2100-01-01T00:00:00+0000", "--to", chosen.subscription_id)
    as_json("publish", "orders", "--to", chosen.subscription_id)
    rows = connection.execute("SELECT due_at::date::text, subscription_id FROM pgmb.scheduled_events").fetchall()
    assert rows == [("2100-01-01", chosen.subscription_id)]
    assert as_json("dispatch", "--once")["matches"] == 1

    assert as_json("publish", "orders", "--delay", "2h", "--to", chosen.subscription_id)["delay_ms"] == 7_200_000
    assert as_json("dispatch", "--once")["matches"] == 0
    fails(
        *("publish", "orders", "--delay", "2h", "--due", "2100-01-01T00:00Z"),
        code=2,
        words="due_at and delay_ms say when the event is due: name one of them",
    )


def test_dead_letters_are_shown_and_replayed_after_a_question(broker: EventBroker) -> None:
    subscription = broker.subscribe("billing", Interest())
    events = broker.find(_published(broker, 2))
    delivery = Delivery(subscription_id=subscription.subscription_id, events=events, attempt=3)
    broker.fail(delivery, handler="bill", reason="ValueError: no such account")

    letters = as_json("dead-letters", "--group", "billing")["dead_letters"]
    assert [(one["handler"], one["attempts"], one["reason"]) for one in letters] == [
        ("bill", 3, "ValueError: no such account")
    ] * 2
    assert "payload" not in letters[0]["event"]
    assert "no such account" in run("dead-letters").stdout
    assert as_json("replay", "--group", "billing", "--dry-run") == {"chosen": 2, "replayed": 0, "dry_run": True}
    fails("replay", "--group", "billing", code=4, words="2 dead letters will be delivered again.*--yes")
    number = str(letters[0]["dead_letter_id"])
    assert as_json("replay", number, "--yes") == {"chosen": 1, "replayed": 1, "dry_run": False}
    assert as_json("replay", "--group", "billing", "--yes") == {"chosen": 1, "replayed": 1, "dry_run": False}
    assert "There are no dead letters" in run("dead-letters").stdout


def _published(broker: EventBroker, count: int) -> tuple[str, ...]:
    return broker.publish([NewEvent(topic="orders", payload=number) for number in range(count)])


def test_quarantined_subscription_is_shown_and_released_with_what_it_has_missed(broker: EventBroker) -> None:
    subscription = broker.subscribe("billing", Interest(condition="e.payload > '5'"))
    broker.quarantine_condition("e.payload > '5'", reason="it was slow")
    (view,) = as_json("subscriptions", "--group", "billing")["subscriptions"]
    assert (view["subscription_id"], view["quarantine_reason"]) == (subscription.subscription_id, "it was slow")
    assert "it was slow" in run("subscriptions").stdout
    _published(broker, 10)
    as_json("dispatch", "--once")
    assert as_json("read", "billing")["events"] == []

    released = as_json("subscriptions", "--release", subscription.subscription_id)
    assert released == {"redelivered": 4, "failed_event_ids": [], "subscription_id": subscription.subscription_id}
    assert len(as_json("read", "billing")["events"]) == 4


def test_what_quality_finds_in_the_broker_is_mended_by_the_command_that_it_shows(
    broker: EventBroker, connection: Connection
) -> None:
    def judge(*, code: int) -> Result:
        result = CliRunner().invoke(app, ["quality", "run", "--store", "events", "--run-id", "events"])
        assert result.exit_code == code, result.output
        return result

    schema_migrations.migrate(connection)
    broker.subscribe("billing", Interest())
    _published(broker, 2)
    # As after a crash of a broker that does not log what it has yet to dispatch.
    connection.execute("UPDATE pgmb.dispatch_state SET dispatched = pg_current_snapshot()")

    shown = judge(code=1).stdout
    assert re.search(r"Q31 +P0 +failed", shown), shown
    (command,) = re.findall(r"^Next for Q31: queuekeeper events (.*) --dry-run$", shown, re.MULTILINE)
    assert re.search(r"to mend +2\b", run(*command.split(), "--dry-run").stdout)
    assert as_json(*command.split(), "--yes")["done"] == 2
    assert as_json("dispatch", "--once")["matches"] == 2
    judge(code=0)
    assert len(as_json("read", "billing")["events"]) == 2


def test_upkeep_asks_and_leaves_a_run_on_record_that_says_what_must_not_wait(
    broker: EventBroker, connection: Connection, tmp_path: Path
) -> None:
    subscribe(connection, "left", group="billing")
    subscribe(connection, "stays", group="billing", params={"stays": True})
    connection.execute(
        "UPDATE pgmb.subscriptions SET expiry_interval = '1 s', last_active_at = now() - interval '1 hour'"
        " WHERE id = 'left'"
    )
    fails(
        "upkeep", code=4, words="1 change to be made. Go on.* Nobody can be asked here: repeat the command with --yes"
    )
    assert as_json("upkeep", "--dry-run")["expiry"] == {"found": 1, "removed": 0}
    done = as_json("upkeep", "--yes", "--max-operations-per-s", "100", "--report-directory", str(tmp_path))
    assert (done["expiry"], done["clean"], done["trouble"]) == ({"found": 1, "removed": 1}, True, "")
    assert done["watch"]["subscriptions"] == 1
    (page,) = tmp_path.glob("events-*.html")
    assert "pgmb.subscriptions" in page.read_text("utf-8")

    runs = CliRunner().invoke(app, ["run", "list", "--kind", "event_upkeep", "--json"])
    newest = json.loads(runs.stdout)[0]
    assert (newest["run"], newest["state"]) == (done["maintenance_run_id"], "done")
    refused = CliRunner().invoke(app, ["run", "undo", newest["run"], "--yes"])
    assert (refused.exit_code, "upkeep of the event broker has no undo" in refused.output) == (2, True)

    connection.execute("UPDATE pgmb.dispatch_state SET polled_at = now() - interval '10 minutes'")
    result = run("upkeep", "--yes")
    assert result.exit_code == 1, result.output
    assert "must not wait: dispatching: the last poll was 10 min " in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mend", "freeze"], "there is no remedy 'freeze' for events: one of reenqueue_events, quarantine_subscr"),
        (["publish"], "name either a topic or a file"),
        (["publish", "a", "--input", "-"], "name either a topic or a file"),
        (["publish", "--input", "-", "--payload", "1"], "put them into the lines of the file"),
        (["publish", "--input", "-", "--delay", "1h"], "put them into the lines of the file"),
        (["publish", "a", "--delay", "soon"], "delay is 'soon': it must be a duration"),
        (["publish", "--input", "/nowhere/events.jsonl"], "/nowhere/events.jsonl cannot be read: No such file"),
        (["publish", "a", "--payload", "nonsense"], "payload is not JSON.*between double quotes"),
        (["publish", "a", "--payload", '{"a": NaN}'], "payload is not JSON: it holds NaN or an infinity"),
        (["publish", "a", "--payload", '{"a": ["\\u0000"]}'], r"payload holds a zero character \(U\+0000\), which"),
        (["publish", "a", "--payload", DEEP], "payload cannot be read: maximum recursion depth"),
        (["publish", "a", "--metadata", "1e999"], "metadata is not JSON: it holds NaN or an infinity"),
        (["read", "billing", "--limit", "0"], "limit is 0: it must be 1 to 10000"),
        (["read", "nobody"], "there is no group nobody: `queuekeeper events subscriptions` shows"),
        (["read", "billing", "--cursor", "42"], "cursor 42 is not one of this broker"),
        (["replay"], "name either numbers of dead letters or a group"),
        (["dispatch", "--once", "--poll-interval-s", "-1"], "poll_interval_s is -1"),
        (["subscriptions", "--release", "su-nobody"], "there is no subscription su-nobody"),
    ],
)
def test_wrong_use_is_refused_in_words(connection: Connection, arguments: list[str], words: str) -> None:
    fails(*arguments, code=2, words=words)


def test_database_without_the_broker_is_told_so(connection: Connection) -> None:
    schema.uninstall(connection)
    fails("publish", "a", code=4, words="run `queuekeeper events install`")
    fails("dispatch", "--once", code=4, words="run `queuekeeper events install`")


def test_an_installation_that_lacks_a_privilege_shows_the_grant_that_helps(connection: Connection) -> None:
    schema.uninstall(connection)
    database = connection.info.dbname
    connection.execute(
        f"CREATE ROLE tenant LOGIN PASSWORD 'let-me-in'; GRANT CREATE ON DATABASE {database} TO tenant".encode()
    )
    try:
        url = f"postgresql://tenant:let-me-in@{connection.info.host}:{connection.info.port}/{database}"
        fails(
            *("install", "--postgres-url", url),
            code=4,
            words=r"may not give functions to role pgmb_reader: As a superuser: .*; GRANT pgmb_reader TO tenant$",
        )
    finally:
        connection.execute(f"REVOKE ALL ON DATABASE {database} FROM tenant; DROP ROLE tenant".encode())


def test_an_installed_pgmb_is_taken_over_after_a_dry_run(connection: Connection) -> None:
    schema.uninstall(connection)
    original = OriginalPgmb(connection)
    subscribe(connection, "all", group="billing")
    original.dispatch({"all": original.publish(1, 2)})
    original.read("billing", 1)
    fails("install", code=4, words=r"take it over \(queuekeeper events install --from-pgmb --dry-run\)")
    fails("install", "--dry-run", code=2, words="--dry-run and --redispatch-unmatched go with --from-pgmb")

    shown = run("install", "--from-pgmb", "--dry-run").stdout
    assert re.search(r"deliveries +2 +1 read before, 1 unread +0\b", shown), shown
    assert "Nothing was changed. Next: queuekeeper events install --from-pgmb" in shown
    fails("install", "--from-pgmb", code=4, words="publishers wait meanwhile.* repeat the command with --yes")
    done = as_json("install", "--from-pgmb", "--yes")
    assert (done["unaccounted"], done["set_aside"]) == (0, "pgmb_original")

    assert [event["topic"] for event in as_json("read", "billing")["events"]] == ["topic"]
    assert as_json("status")["installed"] is True
    fails("install", "--from-pgmb", "--yes", code=4, words="is Queuekeeper's already: there is nothing to take over")
