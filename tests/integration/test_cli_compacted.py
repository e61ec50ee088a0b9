"""``queuekeeper compacted`` on a real server: filled, consumed, looked at, moved, mended, and refused in words."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import keyspace, redis_client
from queuekeeper.compacted.model import Append, Properties, RetentionPolicy
from queuekeeper.compacted.queue import CompactedQueues
from tests.integration.command_line import CommandLine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

C = "meter-17"
SECRET = "secret-state"

commands = CommandLine(group="compacted", secret=SECRET)
run, as_json, consumed, fails = commands.run, commands.as_json, commands.consumed, commands.fails


@pytest.fixture
def queues(client: redis_client.RedisClient) -> CompactedQueues:
    return CompactedQueues(client)


def fill(queues: CompactedQueues, count: int = 3) -> None:
    queues.append(C, [Append(key=b"valve/%d" % number, value=SECRET.encode()) for number in range(1, count + 1)])


def test_newest_value_of_a_key_is_what_is_there(queues: CompactedQueues) -> None:
    first = as_json("append", C, "valve/1", "--value", "open")
    assert (first["sequence"], first["replaced"], first["live"]) == (1, None, 1)
    second = as_json(
        "append", C, "valve/1", "--value", "shut", "--property", "by=plc=4", "--content-type", "text/plain"
    )
    assert (second["sequence"], second["replaced"], second["live"]) == (2, 1, 1)

    found = as_json("get", C, "valve/1", "--show-values")
    assert (found["sequence"], found["key"], found["value"]) == (2, "valve/1", "shut")
    assert (found["properties"], found["content_type"]) == ({"by": "plc=4"}, "text/plain")
    assert "Appended" in run("append", C, "valve/1", "--value", "open").stdout


@pytest.mark.parametrize("key", ["", "a b/ü/+", "-1", os.fsdecode(b"\xff/1")])
def test_any_key_can_be_written_and_read(queues: CompactedQueues, key: str) -> None:
    assert run("append", C, "--value", os.fsdecode(b"v\xff"), "--", key).exit_code == 0

    assert queues.get(C, key=os.fsencode(key)) is not None
    assert run("get", C, "--raw", "--", key).stdout_bytes == b"v\xff"


def test_bytes_that_are_no_text_go_in_and_come_out_as_they_are(queues: CompactedQueues, tmp_path: Path) -> None:
    value = b"\x00\xff\x1b[31m\n"
    (tmp_path / "value").write_bytes(value)
    as_json("append", C, "/wA=", "--key-encoding", "base64", "--value-file", str(tmp_path / "value"))
    as_json("append", C, "stdin", "--value-file", "-", given=value)

    assert run("get", C, "/wA=", "--key-encoding", "base64", "--raw").stdout_bytes == value
    assert run("get", C, "stdin", "--raw").stdout_bytes == value
    found = as_json("get", C, "/wA=", "--key-encoding", "base64", "--show-values")
    assert (found["key"], found["key_encoding"], found["value_encoding"]) == ("/wA=", "base64", "base64")
    assert b64decode(found["value"]) == value
    shown = run("peek", C, "--show-values").stdout
    assert "base64:/wA=" in shown
    assert "\x1b" not in shown


def test_values_are_shown_only_when_asked_for(queues: CompactedQueues) -> None:
    queues.append(C, [Append(key=b"valve/1", value=SECRET.encode(), properties={"name": SECRET})])

    for command in (("peek", C), ("get", C, "valve/1"), ("inspect", C), ("verify", C)):
        assert SECRET not in run(*command).output + run(*command, "--json").output
    assert SECRET not in run("consume", C, "--json").output
    queues.append(C, [Append(key=b"valve/1", value=SECRET.encode())])
    assert SECRET not in run("consume", C).output
    for command in (("peek", C), ("get", C, "valve/1")):
        assert SECRET in run(*command, "--show-values").stdout
        assert SECRET in run(*command, "--show-values", "--json").stdout


def test_append_under_a_condition_that_does_not_hold_is_refused(queues: CompactedQueues) -> None:
    condition = ("append", C, "valve/1", "--value", SECRET, "--expected-sequence")

    assert as_json(*condition, "0")["sequence"] == 1
    fails(*condition, "0", code=4, words="1")
    assert as_json(*condition, "1")["sequence"] == 2


def test_numbered_append_that_is_repeated_stores_nothing(queues: CompactedQueues) -> None:
    command = ("append", C, "valve/1", "--value", "open", "--producer", "plc-4", "--number", "7")

    assert as_json(*command)["is_replay"] is False
    again = as_json(*command)
    assert (again["is_replay"], again["sequence"]) == (True, 1)
    assert queues.inspect(C).sequence == 1
    older = ("--producer", "plc-4", "--number", "6")
    for first in (("append", C, "valve/1", "--value", SECRET), ("append", C, "--input", "-")):
        fails(
            *first,
            *older,
            given=b'{"key": "k", "value": "v"}',
            code=4,
            words="a greater number since, and nothing was",
        )
    assert queues.inspect(C).sequence == 1


def test_full_queue_rejects_or_drops_as_told(queues: CompactedQueues) -> None:
    fill(queues, 2)
    command = ("append", C, "valve/9", "--value", SECRET, "--max-keys", "2")

    fails(*command, code=4, words="the queue would hold 3 keys .* 2 and 0 are the limits")
    assert queues.inspect(C).live == 2
    dropped = as_json(*command, "--when-full", "drop_oldest")
    assert (dropped["evicted"], dropped["evicted_unacked"], dropped["live"]) == (1, 1, 2)


def test_lines_are_appended_and_a_consumers_output_can_be(queues: CompactedQueues, tmp_path: Path) -> None:
    lines = [json.dumps({"key": f"k/{number}", "value": str(number)}) for number in range(450)]
    lines += ["", json.dumps({"key": "k/0", "tombstone": True}), json.dumps({"key": "/wA=", "key_encoding": "base64",
              "value": "AAE=", "value_encoding": "base64", "properties": [["n", "1"], ["n", "2"]]})]  # fmt: skip
    file = tmp_path / "states.jsonl"
    file.write_text("\n".join(lines))
    command = ("append", C, "--input", str(file), "--producer", "import", "--number", "1")

    report = as_json(*command)
    assert (report["appended"], report["replayed"], report["replaced"], report["live"]) == (452, 0, 1, 451)
    assert (report["last_sequence"], report["next_number"]) == (452, 4)
    again = as_json(*command)
    assert (again["appended"], again["replayed"]) == (0, 452)

    piped = run("consume", C, "--show-values", "--json").stdout_bytes
    assert as_json("append", "copy", "--input", "-", given=piped)["appended"] == 451
    (before, after) = (queues.peek(name, limit=500) for name in (C, "copy"))
    same = [(each.key, each.value, each.tombstone, each.properties) for each in before]
    assert [(each.key, each.value, each.tombstone, each.properties) for each in after] == same
    assert same[-1] == (b"\xff\x00", b"\x00\x01", False, Properties([("n", "1"), ("n", "2")]))


def test_line_without_a_value_never_becomes_an_empty_one(queues: CompactedQueues) -> None:
    fill(queues)
    without_values = run("consume", C, "--json").stdout_bytes

    fails(
        "append", "copy", "--input", "-", given=without_values, code=2, words="line 1 .*must have a value, or be a tomb"
    )
    assert not queues.inspect("copy").exists


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2 cannot be appended: it is not JSON"),
        (b"[]", "must be an object with a key"),
        (b'{"value": "secret-state"}', "must be an object with a key"),
        (b'{"key": "k", "value": "secret-state", "vaule": 1}', "members that are not known: vaule"),
        (b'{"key": "k", "value": 1}', "value must be text"),
        (b'{"key": "k", "value": "secret-state", "value_encoding": "base64"}', "value is not base64"),
        (b'{"key": "k", "value": "", "value_encoding": "hex"}', "must be utf-8 or base64"),
        (b'{"key": "k", "value": "secret-state", "tombstone": true}', "must have a value, or be a tombstone"),
        (b'{"key": "k", "value": "", "properties": {"a": 1}}', "property value is 1: it must be text"),
        (b'{"key": "k", "value": "", "expected_sequence": -1}', "expected_sequence is -1"),
    ],
)
def test_wrong_line_is_named_without_its_content(queues: CompactedQueues, line: bytes, words: str) -> None:
    fails("append", C, "--input", "-", given=b'{"key": "k", "value": "v"}\n' + line, code=2, words=words)

    assert not queues.inspect(C).exists


def test_lines_that_were_stored_before_a_failure_are_told(queues: CompactedQueues) -> None:
    lines = b"".join(b'{"key": "%d", "value": ""}\n' % number for number in range(300)) + b"{"

    fails(
        "append", C, "--input", "-", given=lines, code=2, words="line 301 .*; at least the 200 lines before are stored"
    )
    assert queues.inspect(C).live == 200


def test_large_lines_whose_keys_have_an_expected_sequence_are_stored_portion_by_portion(
    queues: CompactedQueues,
) -> None:
    value = "x" * 400_000
    lines = "".join(f'{{"key": "{n}", "value": "{value}", "expected_sequence": 0}}\n' for n in range(5)).encode()

    assert as_json("append", C, "--input", "-", given=lines)["appended"] == 5
    fails("append", C, "--input", "-", given=lines, code=4, words="has sequence 1, not 0")
    assert queues.inspect(C).live == 5


def test_what_is_consumed_is_acknowledged_once_it_is_written(queues: CompactedQueues) -> None:
    fill(queues, 12)

    assert [each["sequence"] for each in consumed(C, "--limit", "7")] == list(range(1, 8))
    view = queues.inspect(C)
    assert (view.acked, view.lease_left_ms) == (7, 0)
    shown = run("consume", C, "--show-values")
    assert shown.stdout.count(SECRET) == 5
    assert "5 messages" in shown.stderr
    assert queues.inspect(C).acked == 12
    assert consumed(C) == []


def test_consumer_that_follows_gets_what_comes_until_it_is_told_to_end(queues: CompactedQueues) -> None:
    command = (sys.executable, "-c", "from queuekeeper.cli import main; main()", "compacted", "consume", C)
    with subprocess.Popen((*command, "--follow", "--session", "follower"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for number in (1, 2):
            queues.append(C, [Append(key=b"valve/1", value=b"v")])
            assert process.stdout.readline().split(b"\t")[0] == b"%d" % number
        assert queues.inspect(C).session == "follower"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    view = queues.inspect(C)
    assert (view.acked, view.lease_left_ms) == (2, 0)


def test_consumer_at_work_is_left_alone_unless_taken_over(queues: CompactedQueues) -> None:
    fill(queues)
    queues.subscribe(C, session="device")

    fails("consume", C, code=4, words="device")
    assert len(consumed(C, "--takeover")) == 3


def test_queue_is_inspected_for_people_and_programs(queues: CompactedQueues) -> None:
    fill(queues)
    consumed(C, "--limit", "1")

    view = as_json("inspect", C)
    assert (view["exists"], view["live"], view["lag"], view["acked"], view["sequence"]) == (True, 3, 2, 1, 3)
    assert view["oldest_undelivered_age_ms"] >= 0
    assert view["counters"]["appended"] == 3
    shown = run("inspect", C).stdout
    assert re.search(r"^acked +1 *$", shown, re.MULTILINE)
    assert "oldest undelivered age" in shown
    assert as_json("inspect", "nobody")["exists"] is False


def test_peek_goes_on_where_it_stopped(queues: CompactedQueues) -> None:
    fill(queues)

    page = as_json("peek", C, "--limit", "2")
    assert [each["key"] for each in page["messages"]] == ["valve/1", "valve/2"]
    rest = as_json("peek", C, "--after", str(page["next_after"]))
    assert [each["key"] for each in rest["messages"]] == ["valve/3"]
    assert f"More: --after {page['next_after']}" in run("peek", C, "--limit", "2").stdout
    assert "nothing in the queue of meter-17 behind 3" in run("peek", C, "--after", "3").stdout
    assert "More" not in run("peek", C, "--after", "2", "--limit", "1").stdout
    queues.append(C, [Append(key=b"%d" % number, value=b"x" * 600_000) for number in range(2)])
    assert "More: --after 4" in run("peek", C, "--after", "3").stdout, "large ones come a few at a time"


def test_tombstone_is_told_and_its_key_has_no_value(queues: CompactedQueues) -> None:
    fill(queues, 1)
    as_json("append", C, "valve/1", "--tombstone")

    assert as_json("get", C, "valve/1")["tombstone"] is True
    assert "deleted" in run("peek", C).stdout
    fails("get", C, "valve/1", "--raw", code=2, words="holds no value of 'valve/1'")
    (message,) = consumed(C, "--show-values")
    assert message["tombstone"] is True
    assert "value" not in message


def test_value_that_cannot_be_read_is_shown_as_it_is_stored(
    queues: CompactedQueues, client: redis_client.RedisClient
) -> None:
    fill(queues, 2)
    server: Any = client
    server.hset(keyspace.compacted_keys(C).values, "valve/1", b"1 0 ?")

    assert "unreadable" in run("peek", C).stdout
    found = as_json("get", C, "valve/1", "--show-values")
    assert (found["is_readable"], found["value"], found["sequence"]) == (False, "1 0 ?", 1)
    fails("get", C, "valve/1", "--raw", code=1, words="cannot be read")
    fails("verify", C, code=1, words="disagree")


@pytest.mark.parametrize(("to", "first"), [("earliest", 1), ("2", 2), ("1970-01-01T00:00:00Z", 1)])
def test_consumer_begins_again_where_it_is_told(queues: CompactedQueues, to: str, first: int) -> None:
    fill(queues)
    consumed(C)

    report = as_json("rewind", C, to, "--yes")
    assert (report["old_acked"], report["new_acked"], report.get("fence")) == (3, first - 1, None)
    assert [each["sequence"] for each in consumed(C)] == list(range(first, 4))


def test_rewind_asks_and_says_where_nothing_is(queues: CompactedQueues) -> None:
    fill(queues)
    consumed(C)

    fails("rewind", C, "earliest", code=4, words="will begin again at earliest.* Nobody can be asked here: .* --yes")
    assert queues.inspect(C).acked == 3
    assert "nearest place" in run("rewind", C, "99", "--yes").stdout
    assert as_json("rewind", C, "99", "--yes")["is_clamped"] is True
    fails(
        "rewind", "nobody", "earliest", code=2, words="nobody has no compacted queue: there is nothing to begin again"
    )
    fails("rewind", C, "yesterday", code=2, words="write earliest, latest, a sequence number, or an instant")
    fails("rewind", C, "2026-11-22T08:00:00", code=2, words="with its time zone")


def test_message_that_holds_a_consumer_up_is_skipped(queues: CompactedQueues) -> None:
    fill(queues)
    subscription = queues.subscribe(C, session="device")
    queues.fetch(C, fence=subscription.fence)

    fails("skip", C, "1", code=4, words="Message 1 of meter-17 will count as handled")
    report = as_json("skip", C, "1", "--yes")
    assert (report["acked"], report["acked_up_to"], report["in_flight"]) == (1, 1, 2)


@pytest.mark.parametrize(("what", "messages", "unacked"), [("all", 3, 2), ("acked", 1, 0), ("2", 2, 1)])
def test_purge_says_what_goes_and_asks_first(queues: CompactedQueues, what: str, messages: int, unacked: int) -> None:
    fill(queues)
    consumed(C, "--limit", "1")
    counted = "1 message" if messages == 1 else f"{messages} messages"
    question = f"{counted} of meter-17 will be removed, {unacked} of which nobody has acknowledged."

    planned = as_json("purge", C, what, "--dry-run")
    assert (planned["messages"], planned["unacked"], planned["dry_run"]) == (messages, unacked, True)
    for extra in ((), ("--json",)):
        fails("purge", C, what, *extra, code=4, words=re.escape(question) + " Nobody can be asked here")
    assert queues.inspect(C).live == 3
    done = as_json("purge", C, what, "--yes")
    assert (done["messages"], done["dry_run"]) == (messages, False)
    assert queues.inspect(C).live == 3 - messages
    assert queues.inspect(C).sequence == 3, "numbers go on"
    fails("purge", C, "some", code=2, words="write all, acked, or the sequence number")


def test_dropped_queue_leaves_no_key(queues: CompactedQueues, client: redis_client.RedisClient) -> None:
    fill(queues)

    assert as_json("drop", C, "--dry-run")["messages"] == 3
    fails("drop", C, code=4, words=r"The queue of meter-17 will be removed, with 3 messages, 3 of which")
    assert queues.inspect(C).exists
    assert as_json("drop", C, "--yes")["existed"] is True
    assert client.exists(*keyspace.compacted_keys(C)) == 0
    assert as_json("drop", C, "--yes")["existed"] is False


def test_keys_that_disagree_are_found_and_mended(queues: CompactedQueues, client: redis_client.RedisClient) -> None:
    fill(queues)
    assert as_json("verify", C)["found"] == 0
    client.hdel(keyspace.compacted_keys(C).values, b"valve/2")

    found = run("verify", C, "--json")
    assert found.exit_code == 1
    assert "valve/2" in {each.get("key") for each in json.loads(found.stdout)["violations"]}
    fails("verify", C, code=1, words="the keys of 'meter-17' disagree in .* places")
    assert as_json("repair", C, "--dry-run")["dry_run"] is True
    fails("repair", C, code=4, words="will be put right")
    assert as_json("repair", C, "--yes")["remaining"] == 0
    assert as_json("verify", C)["found"] == 0
    assert len(queues.peek(C)) == 2


def test_retention_of_a_queue_is_set_in_parts_and_given_up(queues: CompactedQueues) -> None:
    first = as_json("configure", C, "--policy", "compact", "--tombstone-life", "1h30m")["after"]
    assert first == {"policy": "compact", "retention_ms": 604_800_000, "tombstone_ms": 5_400_000}
    as_json("configure", C, "--retention", "10000")
    found = queues.inspect(C).retention
    assert found is not None
    assert (found.policy, found.retention_ms, found.tombstone_ms) == (RetentionPolicy.COMPACT, 10_000, 5_400_000)
    assert "Retention of its own" in run("inspect", C).stdout

    assert as_json("configure", C, "--inherit")["after"] is None
    assert queues.inspect(C).retention is None
    fails("configure", C, code=2, words="say either")
    fails("configure", C, "--inherit", "--policy", "delete", code=2, words="say either")
    fails("configure", C, "--retention", "-1s", code=2, words="retention is '-1s': it must be a duration")


def test_key_prefix_names_other_queues(queues: CompactedQueues, client: redis_client.RedisClient) -> None:
    CompactedQueues(client, prefix="plant:").append(C, [Append(key=b"k", value=b"v")])

    assert as_json("inspect", C)["exists"] is False
    assert as_json("inspect", C, "--key-prefix", "plant:")["live"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("append", "", "k", "--value", "v"), "client id is empty"),
        (("append", C), "name either a key or a file"),
        (("append", C, "k"), "one of --value, --value-file and --tombstone"),
        (("append", C, "k", "--value", "v", "--tombstone"), "one of --value, --value-file and --tombstone"),
        (("append", C, "--input", "-", "--tombstone"), "go into the lines of the file"),
        (("append", C, "--input", "-", "--expected-sequence", "0"), "go into the lines of the file"),
        (("append", C, "--input", "-", "--value", ""), "go into the lines of the file"),
        (("append", C, "--input", "absent.jsonl"), "absent.jsonl cannot be read: No such file"),
        (("append", C, "k", "--value", "v", "--property", "n"), "property 'n' is not NAME=TEXT"),
        (("append", C, "?", "--value", "v", "--key-encoding", "base64"), "KEY is not base64"),
        (("append", C, "k", "--value", "v", "--max-keys", "-1"), "max_keys is -1"),
        (("get", C, "absent"), "holds no value of 'absent': `queuekeeper compacted peek meter-17` lists what is there"),
        (("get", C, "k", "--raw", "--json"), "both want stdout"),
        (("peek", C, "--limit", "501"), "501"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    queues: CompactedQueues, arguments: tuple[str, ...], words: str
) -> None:
    fails(*arguments, code=2, words=words)
