"""``queuekeeper fanout`` on a real server: published, consumed, looked at, mended, and refused in words."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from queuekeeper import keyspace, redis_client
from queuekeeper.fanout.model import ConsumerOptions, Mode, NewMessage
from queuekeeper.fanout.queue import FanoutQueues
from tests.integration.command_line import CommandLine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

Q = "orders"
A = "billing"
B = "shipping"
SECRET = "secret-order"

commands = CommandLine(group="fanout", secret=SECRET)
run, as_json, consumed, fails = commands.run, commands.as_json, commands.consumed, commands.fails


@pytest.fixture
def queues(client: redis_client.RedisClient) -> FanoutQueues:
    return FanoutQueues(client)


@pytest.fixture
def both(queues: FanoutQueues) -> FanoutQueues:
    """A queue with two consumers and three messages."""
    for consumer in (A, B):
        queues.register(Q, consumer=consumer)
    fill(queues)
    return queues


def fill(queues: FanoutQueues, count: int = 3) -> None:
    queues.publish(Q, [NewMessage(body=SECRET.encode(), order_key=f"key-{number}") for number in range(1, count + 1)])


def bury(queues: FanoutQueues, count: int = 1) -> list[int]:
    """Make dead letters of a consumer's next messages."""
    claimed = queues.claim(Q, consumer=A, count=count)
    for each in claimed.messages:
        queues.nack(
            Q, consumer=A, token=claimed.token, message_id=each.id, max_attempts=1, reason="\x1b[31mprinter on fire"
        )
    return [each.id for each in claimed.messages]


def test_message_is_published_once_for_every_consumer(both: FanoutQueues) -> None:
    report = as_json("publish", Q, "--body", "{}", "--content-type", "application/json", "--header", "by=plc=4")
    assert report == {"queue": Q, "id": 4, "consumers": 2, "held": False, "duplicate": False, "dropped": 0}
    alone = as_json("publish", Q, "--body", "x", "--to", B, "--order-key", "k", "--ttl", "1h")
    assert (alone["id"], alone["consumers"]) == (5, 1)
    assert "Published" in run("publish", Q, "--body", "x").stdout

    assert [each["id"] for each in consumed(Q, A)] == [1, 2, 3, 4, 6]
    found = consumed(Q, B, "--show-bodies")
    assert [each["id"] for each in found] == [1, 2, 3, 4, 5, 6]
    assert found[3]["headers"] == {"by": "plc=4"}
    assert found[3]["content_type"] == "application/json"
    assert found[4]["expires_at_ms"] - found[4]["published_ms"] == 3_600_000
    assert both.size(Q) == 0, "the last acknowledgement frees the payload"


def test_bytes_that_are_no_text_go_in_and_come_out_as_they_are(queues: FanoutQueues, tmp_path: Path) -> None:
    body = b"\x00\xff\x1b[31m\n"
    (tmp_path / "body").write_bytes(body)
    queues.register(Q, consumer=A)
    as_json("publish", Q, "--body-file", str(tmp_path / "body"))
    as_json("publish", Q, "--body-file", "-", given=body)

    shown = run("peek", Q, A, "--show-bodies").stdout
    assert "base64:" in shown
    assert "\x1b" not in shown
    found = consumed(Q, A, "--show-bodies")
    assert [each["body"] for each in found] == [b64encode(body).decode()] * 2
    assert {each["body_encoding"] for each in found} == {"base64"}


def test_bodies_are_shown_only_when_asked_for(both: FanoutQueues) -> None:
    as_json("publish", Q, "--body", SECRET, "--header", f"h={SECRET}")
    bury(both)

    for arguments in (("inspect", Q), ("inspect", Q, A), ("peek", Q, A), ("dead", "list", Q, A), ("verify", Q)):
        for extra in ((), ("--json",)):
            assert SECRET not in run(*arguments, *extra).output, arguments
    assert SECRET in run("peek", Q, A, "--show-bodies").stdout
    assert SECRET in run("dead", "list", Q, A, "--show-bodies").stdout
    assert SECRET not in run("consume", Q, A).output
    assert SECRET in run("consume", Q, B, "--show-bodies").stdout


def test_file_is_published_in_order_and_again_without_a_second_message(queues: FanoutQueues, tmp_path: Path) -> None:
    lines = [json.dumps({"body": f"{number}", "order_key": "k"}) for number in range(250)]
    lines += ["", json.dumps({"body": "AAE=", "body_encoding": "base64", "headers": {"n": "v"}, "ttl_ms": 5_000})]
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(lines))
    queues.register(Q, consumer=A)
    command = ("publish", Q, "--input", str(file), "--deduplicate-as", "import")

    first = as_json(*command)
    assert first == {"queue": Q, "published": 251, "duplicates": 0, "held": 0, "dropped": 0, "last_id": 251}
    again = as_json(*command)
    assert (again["published"], again["duplicates"], again["last_id"]) == (0, 251, 251)

    queues.register("copy", consumer=A)
    piped = run("consume", Q, A, "--batch", "100", "--show-bodies", "--json").stdout_bytes
    assert as_json("publish", "copy", "--input", "-", given=piped)["published"] == 251
    copied = queues.peek("copy", consumer=A, limit=300)
    assert [each.body for each in copied[:250]] == [b"%d" % number for number in range(250)]
    assert (copied[-1].body, copied[-1].headers) == (b"\x00\x01", {"n": "v"})


def test_message_and_lines_are_published_for_later(queues: FanoutQueues) -> None:
    queues.register(Q, consumer=A)
    for option in (("--delay", "2h"), ("--due", "2100-01-01T00:00:00+0000")):
        assert as_json("publish", Q, "--body", "x", *option)["consumers"] == 1
    lines = b'{"body": "", "delay_ms": 7200000}\n{"body": "", "due_at": "2100-01-01T01:00:00+01:00"}\n'
    lines += b'{"body": "now", "due_at": "2026-01-01T00:00:00Z"}'
    assert as_json("publish", Q, "--input", "-", given=lines)["published"] == 3

    [view] = queues.inspect(Q).consumers
    assert (view.ready, view.delayed) == (1, 4)
    assert [each.body for each in queues.claim(Q, consumer=A, count=9).messages] == [b"now"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2 cannot be published: it is not JSON"),
        (b"[]", "must be an object with a body"),
        (b'{"order_key": "k"}', "must be an object with a body"),
        (b'{"body": "secret-order", "tll_ms": 1}', "members that are not known: tll_ms"),
        (b'{"body": 1}', "body must be text"),
        (b'{"body": "secret-order", "body_encoding": "base64"}', "body is not base64"),
        (b'{"body": "", "headers": ["a"]}', "headers must be an object"),
        (b'{"body": "", "headers": {"a": 1}}', "header 'a' is 1: it must be text"),
        (b'{"body": "", "ttl_ms": 0}', "ttl_ms is 0: a message must have a life of 1 ms or more"),
        (b'{"body": "", "delay_ms": -1}', "delay_ms is -1: it must be 0 to"),
        (b'{"body": "", "due_at": "soon"}', "due_at must be an instant such as"),
        (b'{"body": "", "due_at": 5}', "due_at must be an instant such as"),
        (b'{"body": "", "due_at": "2026-11-22T09:00"}', "due_at is 2026-11-22T09:00:00: say in which time zone"),
    ],
)
def test_wrong_line_is_named_without_its_content(queues: FanoutQueues, line: bytes, words: str) -> None:
    fails("publish", Q, "--input", "-", given=b'{"body": "v"}\n' + line, code=2, words=words)

    assert not queues.inspect(Q).exists


def test_lines_that_were_published_before_a_failure_are_told(queues: FanoutQueues) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(max_length=130))
    lines = b'{"body": ""}\n' * 200

    fails("publish", Q, "--input", "-", given=lines, code=4, words="billing.*at least the 130 messages before are publ")
    assert queues.size(Q) == 130


def test_what_is_published_before_anybody_registers_is_held(queues: FanoutQueues) -> None:
    assert as_json("publish", Q, "--body", "early")["held"] is True

    report = as_json("register", Q, A, "--start", "held")
    assert (report["created"], report["adopted"]) == (True, 1)
    assert as_json("register", Q, B)["adopted"] == 0
    assert as_json("register", Q, "audit", "--start", "retained")["adopted"] == 1


def test_consumer_is_registered_with_its_options_and_keeps_them(queues: FanoutQueues) -> None:
    options = ("--mode", "ordered", "--lanes", "8", "--when-failed", "halt", "--max-length", "10",
               "--when-full", "drop_oldest", "--dead-retention", "1h30m", "--idle-expiry", "2d")  # fmt: skip
    found = as_json("register", Q, A, *options)["options"]
    assert found == {
        "mode": "ordered", "when_failed": "halt", "lanes": 8, "max_length": 10, "when_full": "drop_oldest",
        "dead_retention_ms": 5_400_000, "idle_expiry_ms": 172_800_000,
    }  # fmt: skip

    again = run("register", Q, A)
    assert "It was registered before, and keeps the options that it has" in again.stdout
    assert as_json("register", Q, A)["options"] == found


def test_options_are_changed_in_parts(queues: FanoutQueues) -> None:
    queues.register(Q, consumer=A, options=ConsumerOptions(idle_expiry_ms=3_600_000, max_length=7))

    report = as_json("configure", Q, A, "--max-length", "0", "--idle-expiry", "none", "--dead-retention", "1d")
    assert (report["before"]["max_length"], report["after"]["max_length"]) == (7, None)
    [view] = queues.inspect(Q).consumers
    assert view.options == ConsumerOptions(dead_retention_ms=86_400_000)

    as_json("configure", Q, "--when-nobody", "refuse", "--max-held", "5")
    assert as_json("configure", Q, "--deduplication-window", "1h")["after"] == {
        "when_nobody": "refuse", "max_held": 5, "deduplication_ms": 3_600_000,
    }  # fmt: skip
    fails("publish", "other", "--body", "x", "--to", A, code=2, words="no consumer 'billing' is registered")
    as_json("unregister", Q, A, "--yes")
    fails("publish", Q, "--body", "x", code=4, words="nobody is registered with the queue")


def test_what_is_consumed_is_acknowledged_once_it_is_written(both: FanoutQueues) -> None:
    fill(both, 9)

    assert [each["id"] for each in consumed(Q, A, "--limit", "7", "--batch", "3")] == list(range(1, 8))
    view = as_json("inspect", Q, A)
    assert (view["ready"], view["leased"], view["counters"]["acked"]) == (5, 0, 7)
    shown = run("consume", Q, A, "--show-bodies")
    assert shown.stdout.count(SECRET) == 5
    assert "5 messages consumed" in shown.stderr
    assert consumed(Q, A) == []


def test_reader_that_leaves_gets_what_it_has_not_read_again(both: FanoutQueues) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from queuekeeper.cli import main; main()", "fanout", "consume", Q, A],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.wait(PATIENCE_S)

    [view, _] = both.inspect(Q).consumers
    assert (view.ready, view.leased) == (3, 0)
    assert consumed(Q, A)[0]["attempt"] == 1, "what was given back has not been attempted"


def test_consumer_that_follows_gets_what_comes_until_it_is_told_to_end(queues: FanoutQueues) -> None:
    queues.register(Q, consumer=A)
    command = (sys.executable, "-c", "from queuekeeper.cli import main; main()", "fanout", "consume", Q, A, "--follow")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for number in (1, 2):
            fill(queues, 1)
            assert process.stdout.readline().split(b"\t")[0] == b"%d" % number
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    assert queues.size(Q) == 0


def test_queue_is_inspected_for_people_and_programs(both: FanoutQueues) -> None:
    consumed(Q, A, "--limit", "1")
    both.claim(Q, consumer=B, count=2)
    both.register(Q, consumer="audit", options=ConsumerOptions(mode=Mode.ORDERED, lanes=4))
    as_json("pause", Q, A)

    view = as_json("inspect", Q)
    assert (view["exists"], view["messages"], view["held"], view["counters"]["published"]) == (True, 3, 0, 3)
    found = {each["consumer"]: each for each in view["consumers"]}
    assert (found[A]["ready"], found[A]["paused"], found[B]["leased"], found["audit"]["ready"]) == (2, True, 2, 0)
    shown = run("inspect", Q).stdout
    assert re.search(r"^billing +fifo +2 +0 +0 +0 .* paused", shown, re.MULTILINE)
    assert "ordered, 4 lanes" in shown
    assert "when nobody" in shown
    alone = run("inspect", Q, B).stdout
    assert re.search(r"^leased +2 *$", alone, re.MULTILINE)
    assert "dead retention" in alone
    assert as_json("inspect", "nobody")["exists"] is False
    fails("inspect", Q, "nobody", code=2, words="no consumer 'nobody' is registered with the queue 'orders'")


def test_what_one_consumer_alone_keeps_is_said(both: FanoutQueues) -> None:
    consumed(Q, A)

    assert "alone holds 3 of 3" in run("inspect", Q).stdout


def test_waiting_messages_are_shown_and_counted_and_stay(both: FanoutQueues) -> None:
    assert [each["order_key"] for each in as_json("peek", Q, A, "--offset", "1")["messages"]] == ["key-2", "key-3"]
    assert "Nothing waits for billing there." in run("peek", Q, A, "--offset", "3").stdout
    assert run("size", Q, A).stdout == "3\n"
    assert as_json("size", Q) == {"queue": Q, "consumer": None, "messages": 3}


def test_dead_letters_are_listed_retried_and_given_up(both: FanoutQueues) -> None:
    first, second, third = bury(both, 3)

    page = as_json("dead", "list", Q, A, "--limit", "2")
    assert (page["total"], page["next_offset"]) == (3, 2)
    assert [(each["id"], each["attempts"]) for each in page["letters"]] == [(first, 1), (second, 1)]
    shown = run("dead", "list", Q, A, "--limit", "2").stdout
    assert "printer on fire" in shown
    assert "\x1b" not in shown
    assert "More: --offset 2" in shown

    assert as_json("dead", "retry", Q, A, str(first), "99") == {"retried": 1, "missing": 1}
    planned = as_json("dead", "purge", Q, A, str(second), "99", "--dry-run")
    assert planned == {"released": 1, "freed": None, "dry_run": True}
    fails("dead", "purge", Q, A, "--all", code=4, words="2 dead letters of billing will be removed.* --yes")
    assert as_json("dead", "purge", Q, A, str(second), "--yes")["released"] == 1
    assert as_json("dead", "retry", Q, A, "--all")["retried"] == 1
    assert [each["id"] for each in consumed(Q, A)] == [first, third]
    assert "There are no dead letters of billing there." in run("dead", "list", Q, A).stdout
    for verb in ("retry", "purge"):
        fails("dead", verb, Q, A, code=2, words="either dead letters by their numbers or --all")
        fails("dead", verb, Q, A, "1", "--all", code=2, words="either dead letters by their numbers or --all")


def test_paused_queue_hands_nothing_out_until_it_is_resumed(both: FanoutQueues) -> None:
    assert as_json("pause", Q) == {"queue": Q, "consumer": None, "paused": True, "changed": True}
    assert "orders was paused before." in run("pause", Q).stdout
    assert consumed(Q, A) == []
    assert "orders is at work now." in run("resume", Q).stdout
    as_json("pause", Q, A)
    assert consumed(Q, A) == []
    assert len(consumed(Q, B)) == 3
    assert as_json("resume", Q, A)["changed"] is True
    assert len(consumed(Q, A)) == 3


def test_purge_says_what_goes_and_asks_first(both: FanoutQueues) -> None:
    both.claim(Q, consumer=A)

    assert as_json("purge", Q, A, "--dry-run") == {"released": 2, "freed": None, "dry_run": True}
    fails("purge", Q, A, code=4, words="2 messages of billing will be removed. Nobody can be asked here")
    fails("purge", Q, code=4, words="5 messages of all consumers will be removed")
    assert both.size(Q) == 3
    assert as_json("purge", Q, A, "--yes")["released"] == 2
    assert as_json("purge", Q, "--yes") == {"released": 3, "freed": 2, "dry_run": False}
    assert both.size(Q, consumer=A) == 1, "what somebody works on stays"


def test_consumer_is_removed_with_all_that_is_its_after_a_question(both: FanoutQueues) -> None:
    claimed = both.claim(Q, consumer=A)

    fails("unregister", Q, A, code=4, words="somebody works on messages")
    fails("unregister", Q, A, "--dry-run", code=4, words="somebody works on messages")
    fails(
        "unregister",
        Q,
        A,
        "--force",
        code=4,
        words="billing will be removed from orders, with 3 messages not acknowledged",
    )
    both.return_claimed(Q, consumer=A, token=claimed.token, ids=[1])
    planned = as_json("unregister", Q, A, "--dry-run")
    assert (planned["dry_run"], planned["consumers"][0]["released"]) == (True, 3)
    assert len(both.inspect(Q).consumers) == 2
    [done] = as_json("unregister", Q, A, "--yes")["consumers"]
    assert (done["released"], done["freed"]) == (3, 0)
    assert [each.consumer for each in both.inspect(Q).consumers] == [B]
    assert both.size(Q, consumer=B) == 3
    fails("unregister", Q, A, "--yes", code=2, words="no consumer of this name")


def test_consumers_of_an_earlier_version_are_named_and_taken_over_after_a_question(
    both: FanoutQueues, client: redis_client.RedisClient
) -> None:
    client.delete(keyspace.fanout_keys(Q).cursors)

    assert as_json("take-over", Q, "--dry-run") == {"queue": Q, "dry_run": True, "consumers": [A, B]}
    asked = run("take-over", Q, given=b"n\n")
    assert f"{A}, {B} of {Q} will read the log." in asked.output
    assert asked.exit_code != 0
    assert as_json("take-over", Q, "--yes")["consumers"] == [A, B]
    assert "Every consumer reads the log" in run("take-over", Q).output


def test_idle_consumers_are_removed_and_those_that_were_seen_stay(both: FanoutQueues) -> None:
    assert "No consumer was unseen" in run("unregister", Q, "--idle").stdout
    both.register(Q, consumer="gone", options=ConsumerOptions(idle_expiry_ms=1))
    both.register(Q, consumer="seen", options=ConsumerOptions(idle_expiry_ms=3_600_000))
    assert as_json("touch", Q, "seen")["last_seen_ms"] > 0

    fails("unregister", Q, "--idle", code=4, words="gone will be removed from orders, with 0 messages")
    assert [each["consumer"] for each in as_json("unregister", Q, "--idle", "--yes")["consumers"]] == ["gone"]
    assert [each.consumer for each in both.inspect(Q).consumers] == [A, "seen", B]


def test_keys_that_disagree_are_found_and_mended(both: FanoutQueues, client: redis_client.RedisClient) -> None:
    assert as_json("verify", Q)["found"] == 0
    client.hset(keyspace.fanout_keys(Q).references, "2", "7")

    found = run("verify", Q, "--json")
    assert found.exit_code == 1
    [finding] = json.loads(found.stdout)["findings"]
    assert finding == {"problem": "wrong_count", "id": 2, "consumer": None, "found": 7, "expected": 2}
    fails(
        "verify", Q, code=1, words="the keys of 'orders' disagree in 1 place: `queuekeeper fanout repair orders` mends"
    )
    assert as_json("repair", Q, "--dry-run")["repaired"] == {"wrong_count": 1}
    fails("repair", Q, code=4, words="1 place in the keys of orders will be put right")
    assert "wrong_count" in run("repair", Q, "--yes").stdout
    assert as_json("verify", Q)["found"] == 0
    assert as_json("repair", Q)["repaired"] == {}, "there is nothing to ask about"


def test_key_prefix_names_other_queues(queues: FanoutQueues, client: redis_client.RedisClient) -> None:
    FanoutQueues(client, prefix="plant:").register(Q, consumer=A)

    assert as_json("inspect", Q)["exists"] is False
    assert as_json("inspect", Q, "--key-prefix", "plant:")["exists"] is True


@pytest.mark.parametrize("command", ["peek", "consume", "unregister", "touch", "pause", "size"])
def test_unknown_queue_and_consumer_are_named(both: FanoutQueues, command: str) -> None:
    fails(command, Q, "nobody", code=2, words="no consumer of this name is registered with the queue")
    fails(command, "nothing", A, code=2, words="there is no queue of this name")
    assert not both.inspect("nothing").exists


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publish", Q), "one of --body, --body-file and --input"),
        (("publish", Q, "--body", "x", "--input", "-"), "one of --body, --body-file and --input"),
        (("publish", Q, "--input", "-", "--order-key", "k"), "go into the lines of the file"),
        (("publish", Q, "--input", "-", "--delay", "1h"), "go into the lines of the file"),
        (("publish", Q, "--body", "x", "--delay", "1h", "--due", "2100-01-01T00:00Z"), "delay_ms and due_at both say"),
        (
            ("publish", Q, "--body", "x", "--due", "2100-01-01T00:00"),
            "--due is '2100-01-01T00:00': it must be date and time with a time zone; write it like 2100-01-31T18:30",
        ),
        (("publish", Q, "--body", "x", "--delay", "soon"), "delay is 'soon': it must be a duration"),
        (("publish", Q, "--input", "absent.jsonl"), "absent.jsonl cannot be read: No such file"),
        (("publish", Q, "--body", "x", "--deduplicate-as", "n"), "is about a file"),
        (("publish", Q, "--body", "x", "--header", "n"), "header 'n' is not NAME=TEXT"),
        (("publish", Q, "--body", "x", "--ttl", "0"), "ttl_ms is 0: a message must have a life"),
        (("publish", Q, "--body", "x", "--ttl", "-1s"), "ttl is '-1s': it must be a duration"),
        (("publish", Q, "--body-file", "large"), "body has 1048577 bytes: at most 1048576"),
        (("publish", "", "--body", "x"), "name of the queue has 0 characters"),
        (("register", Q, "a:b"), "name of the consumer 'a:b' holds ':': it separates parts of a key"),
        (("register", Q, A, "--lanes", "2"), "only an ordered consumer has more than one"),
        (("register", Q, A, "--idle-expiry", "soon"), "idle_expiry is 'soon': it must be a duration"),
        (("unregister", Q), "either a consumer or --idle"),
        (("unregister", Q, A, "--idle"), "either a consumer or --idle"),
        (("unregister", Q, "--idle", "--force"), "--force is for one consumer"),
        (("configure", Q), "a queue is configured by --when-nobody"),
        (("configure", Q, "--mode", "fifo"), "a queue is configured by --when-nobody"),
        (("configure", Q, A, "--max-held", "1"), "a consumer is configured by --mode"),
        (("peek", Q, A, "--limit", "1001"), "limit is 1001"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    queues: FanoutQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "large" in arguments:
        (tmp_path / "large").write_bytes(bytes(1_048_577))

    fails(*arguments, code=2, words=words)
    assert not queues.inspect(Q).exists
