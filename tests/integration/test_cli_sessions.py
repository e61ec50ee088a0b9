"""``queuekeeper sessions`` on real servers: one session is looked at, exported, brought back and removed."""

from __future__ import annotations

import json
import re
import stat
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import assets
from queuekeeper.clock import system_clock
from queuekeeper.embedded import RedisServer
from queuekeeper.keyspace import payload_key
from queuekeeper.sessions.model import NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import SaveReport
from queuekeeper.sessions.transfer import SessionStore
from tests.integration.command_line import CommandLine, Servers

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

C = "meter-17"
STORES = ("redis", "postgres")

commands = CommandLine(group="sessions")
run, as_json, fails = commands.run, commands.as_json, commands.fails


class Stores(Servers):
    """A Redis and a PostgreSQL with TBMQ's tables, and the options that name them."""

    def store(self, name: str, *, layout: Layout = Layout.TBMQ, **rules: Any) -> SessionStore:
        if name == "postgres":
            return PostgresSessionStore(self.connection, rules=StoreRules(**rules))
        return RedisSessionStore(self.client, rules=StoreRules(**rules), layout=layout)


@pytest.fixture
def servers(valkey_url: str, postgres_url: str, control_schema: None) -> Iterator[Stores]:
    found = Stores(valkey_url, postgres_url)
    found.connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
    yield found
    found.close()


def save(store: SessionStore, *payloads: bytes, client_id: str = C, **fields: Any) -> SaveReport:
    values: dict[str, Any] = {"topic": "plant/7", "qos": 1, "time_ms": system_clock(), "expiry_interval_s": 3_600}
    messages = tuple(NewMessage(payload=payload, **(values | fields)) for payload in payloads)
    (report,) = store.save_messages([SessionSave(client_id=client_id, messages=messages)])
    assert report.error is None
    return report


@pytest.mark.parametrize("store", STORES)
def test_peek_shows_the_content_only_when_asked(servers: Stores, store: str) -> None:
    save(
        servers.store(store), b"temperature \xe2\x98\x83 \x0a\xe2\x80\xae reversed",
        correlation_data=b"\xff\x00", user_properties=(("secret-name", "secret-value"),), content_type="text/plain",
    )  # fmt: skip
    command = ("peek", C, "1", "--store", store, *servers.options)

    facts = as_json(*command)
    assert (facts["store"], facts["packet_type"], facts["topic"]) == (store, "PUBLISH", "plant/7")
    assert (facts["payload_bytes"], facts["correlation_data_bytes"], facts["user_property_count"]) == (29, 2, 1)
    assert facts["expires_at_ms"] == facts["time_ms"] + 3_600_000
    plain = run(*command).stdout
    assert "plant/7" in plain
    for secret in ("temperature", "secret-name", "secret-value"):
        assert secret not in json.dumps(facts) + plain

    whole = as_json(*command, "--payload")
    assert whole["payload"] == "temperature ☃ \n\u202e reversed"
    assert whole["payload_encoding"] == "utf-8"
    assert b64decode(whole["correlation_data"]) == b"\xff\x00"
    assert whole["correlation_data_encoding"] == "base64"
    assert whole["user_properties"] == [["secret-name", "secret-value"]]
    shown = run(*command, "--payload").stdout
    assert r"temperature ☃ \n\u202e reversed" in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("payload", [b"\x1b[31mred", b"\xff\xfe", b"a\x00b", "next\x85line".encode()])
def test_payload_that_is_no_plain_text_is_shown_as_base64(servers: Stores, payload: bytes) -> None:
    save(servers.store("redis"), payload)
    command = ("peek", C, "1", "--payload", *servers.options)

    facts = as_json(*command)
    assert facts["payload_encoding"] == "base64"
    assert b64decode(facts["payload"]) == payload
    assert "\x1b" not in run(*command).stdout


@pytest.mark.parametrize("store", STORES)
def test_peek_names_what_is_not_there_or_no_packet_id(servers: Stores, store: str) -> None:
    command = ("peek", "x\x1b[31m", "--store", store, *servers.options)

    failed = fails(*command, "7", code=2, words=r"holds no message of 'x.x1b\[31m' with packet id 7: .* lists those")
    assert failed.stdout == ""
    fails(*command, "65536", code=2, words="packet_id is 65536: it must be 1 to 65535")
    fails(*command, "many", code=2, words="invalid value for 'PACKET_ID'")


@pytest.mark.parametrize("target", STORES)
@pytest.mark.parametrize("source", STORES)
def test_session_goes_through_a_file_and_comes_back_byte_for_byte(
    servers: Stores, tmp_path: Path, source: str, target: str
) -> None:
    origin = servers.store(source)
    save(origin, *(b"%d\xff" % number for number in range(1_203)), user_properties=(("k", "v"),))
    origin.mark_released(C, packet_id=2)
    origin.fetch_pending(C, limit=3, mark_delivered=True)
    file = tmp_path / "session.jsonl"

    exported = as_json("export", C, "--store", source, "--output", str(file), *servers.options)
    assert exported == {
        "client_id": C, "messages": 1_203, "unreadable": 0, "store": source, "output": str(file)
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["session.jsonl"], "no draft is left"
    lines = file.read_bytes().splitlines()
    assert len(lines) == 1_204

    assert as_json("purge", C, "--store", source, "--yes", *servers.options)["messages"] == 1_203
    restored = as_json("import", C, "--store", target, "--input", str(file), *servers.options)
    assert restored == {
        "client_id": C, "stored": 1_203, "expired": 0, "last_packet_id": 1_203, "store": target
    }  # fmt: skip
    again = run("export", C, "--store", target, *servers.options).stdout_bytes.splitlines()
    assert again[1:] == lines[1:]
    fails(
        "import", C, "--store", target, "--input", str(file), *servers.options,
        code=4, words=f"session of '{C}' exists|session '{C}' exists",
    )  # fmt: skip


def test_export_to_stdout_is_the_lines_alone_and_import_reads_them_from_stdin(servers: Stores) -> None:
    save(servers.store("redis"), b"a", b"b")

    piped = run("export", C, *servers.options)
    assert piped.exit_code == 0
    assert set(json.loads(piped.stdout.splitlines()[0])) == {"session"}
    assert len(piped.stdout.splitlines()) == 3
    assert piped.stderr == "2 messages exported\n"

    stored = as_json("import", C, "--store", "postgres", "--input", "-", *servers.options, given=piped.stdout_bytes)
    assert stored["stored"] == 2
    fails("export", C, "--json", *servers.options, code=2, words="both want stdout: name a file by --output")


def test_file_that_is_there_is_replaced_only_when_somebody_agrees(servers: Stores, tmp_path: Path) -> None:
    save(servers.store("redis"), b"a")
    file = tmp_path / "session.jsonl"
    file.write_text("precious")
    command = ("export", C, "--output", str(file), *servers.options)

    fails(*command, code=4, words=r"exists and will be replaced\. Nobody can be asked here: repeat .* with --yes")
    assert file.read_text() == "precious"
    assert run(*command, "--yes").exit_code == 0
    assert len(file.read_bytes().splitlines()) == 2
    fails("export", C, "--output", str(tmp_path), *servers.options, code=2, words="is no file: name one")
    fails(
        "export", C, "--output", str(tmp_path / "no" / "x"), *servers.options,
        code=4, words="cannot be written: No such file or directory; name another file",
    )  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_export_that_fails_leaves_the_old_file_and_no_draft(servers: Stores, tmp_path: Path, store: str) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text("precious")

    fails(
        "export", "nobody", "--store", store, "--output", str(file), "--yes", *servers.options,
        code=2, words=f"{store} holds no session of 'nobody'",
    )  # fmt: skip
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_export_that_is_not_whole_is_written_and_ends_with_1(servers: Stores, tmp_path: Path) -> None:
    save(servers.store("redis"), b"a", b"b", b"c")
    servers.client.set(payload_key(C, 2), "{broken")
    file = tmp_path / "session.jsonl"

    result = fails(
        "export", C, "--output", str(file), "--json", *servers.options,
        code=1, words="the export is not whole: 1 record of 'meter-17' cannot be read and were left out",
    )  # fmt: skip
    assert (json.loads(result.stdout)["messages"], json.loads(result.stdout)["unreadable"]) == (2, 1)
    assert len(file.read_bytes().splitlines()) == 3
    assert servers.store("redis").inspect(C).messages == 3, "an export changes nothing"


@pytest.mark.parametrize("store", STORES)
def test_import_names_the_broken_line_and_stores_nothing(servers: Stores, tmp_path: Path, store: str) -> None:
    save(servers.store("redis"), b"a")
    exported = run("export", C, *servers.options).stdout_bytes
    servers.store("redis").purge_session(C)
    command = ("import", C, "--store", store, *servers.options, "--input")

    fails(*command, "-", given=exported + b"{}\n", code=2, words=f"line 3 is not a line of an export of '{C}'")
    fails(*command, "-", given=b"", code=2, words="there is no line: the first line of an export is the session")
    fails(*command, str(tmp_path / "absent"), code=2, words="absent cannot be read: No such file or directory")
    fails(*command, str(tmp_path), code=2, words="cannot be read: Is a directory")
    fails(
        "import", "other", "--store", store, *servers.options, "--input", "-",
        given=exported, code=2, words="line 1 is not a line of an export of 'other': its client_id is 'meter-17'",
    )  # fmt: skip
    assert not servers.store(store).inspect(C).exists


def test_life_without_an_expiry_is_told_for_a_store_that_cannot_keep_the_instant(servers: Stores) -> None:
    save(servers.store("redis", default_ttl_s=1_000), b"a", expiry_interval_s=None)
    exported = run("export", C, *servers.options).stdout_bytes
    command = ("import", C, "--store", "postgres", "--input", "-", *servers.options)

    fails(*command, given=exported, code=2, words="import into a store with the default_ttl_s of the exporting store")
    assert as_json(*command, "--default-ttl-s", "1000", given=exported)["stored"] == 1


@pytest.mark.parametrize("store", STORES)
def test_purge_says_how_many_messages_go_and_asks_first(servers: Stores, store: str) -> None:
    save(servers.store(store), b"a", b"b", b"c")
    purge = ("purge", C, "--store", store, *servers.options)
    product = {"redis": "Redis", "postgres": "PostgreSQL"}[store]
    question = f"The session of meter-17 will be removed from {product}, with 3 messages."

    assert as_json(*purge, "--dry-run") == {
        "client_id": C, "messages": 3, "kept": 0, "dry_run": True, "store": store
    }  # fmt: skip
    assert "Dry run" in run(*purge, "--dry-run").stdout
    for extra in ((), ("--json",)):
        result = fails(*purge, *extra, code=4, words=re.escape(question) + " Nobody can be asked here")
        assert result.stdout == ""
    assert servers.store(store).inspect(C).messages == 3

    assert as_json(*purge, "--yes")["dry_run"] is False
    assert not servers.store(store).inspect(C).exists
    assert as_json(*purge, "--yes")["messages"] == 0, "to purge what is not there is no error"


def test_no_to_the_question_removes_nothing(servers: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    save(servers.store("redis"), b"a")
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("queuekeeper.cli.command.typer.confirm", confirm)
    monkeypatch.setattr("queuekeeper.cli.command.sys", type("Terminal", (), {"stdin": _Terminal()}))
    fails("purge", C, *servers.options, code=4, words="not confirmed: nothing was written")

    assert asked == ["The session of meter-17 will be removed from Redis, with 1 message."]
    assert servers.store("redis").inspect(C).messages == 1


class _Terminal:
    """Where somebody sits."""

    def isatty(self) -> bool:
        return True


def test_only_the_server_of_the_named_store_has_to_run(servers: Stores) -> None:
    save(servers.store("redis"), b"a")
    redis_only = (*servers.options[:2], "--postgres-url", "postgresql://127.0.0.1:1/x")

    assert as_json("peek", C, "1", *redis_only)["packet_id"] == 1
    fails(
        "peek", C, "1", "--store", "postgres", *redis_only, code=4, words=r"PostgreSQL at 127\.0\.0\.1:1 is not avail"
    )
    fails("peek", C, "1", "--store", "cassandra", *redis_only, code=2, words="invalid value for '--store'")


def test_key_prefix_names_other_sessions(servers: Stores) -> None:
    prefixed = RedisSessionStore(servers.client, "tbmq:")
    save(prefixed, b"a")

    fails("peek", C, "1", *servers.options, code=2, words="holds no message")
    assert as_json("peek", C, "1", "--key-prefix", "tbmq:", *servers.options)["payload_bytes"] == 1
    assert as_json("purge", C, "--key-prefix", "tbmq:", "--yes", *servers.options)["messages"] == 1


@pytest.mark.parametrize("layout", Layout)
def test_inspect_says_what_has_become_of_messages(servers: Stores, layout: Layout) -> None:
    for name in STORES:
        store = servers.store(name, layout=layout, limit=2)
        save(store, b"a", b"b", b"c")
        store.fetch_pending(C, limit=1, mark_delivered=True)

    both = as_json("inspect", C, *servers.options)
    for name in STORES:
        assert both[name]["counts"] == {"trimmed": 1, "expired": 0, "refused": 0, "quarantined": 0}
        assert both[name]["delivered_serial"] == both[name]["page"][0]["serial"]
    shown = run("inspect", C, *servers.options).stdout
    assert re.search(r"trimmed +1 +1 *\n", shown)
    assert re.search(r"delivered serial +\d+ +\d+ *\n", shown)
    assert both["redis"]["layout"] == layout
    assert re.search(rf"layout +– +{layout} *\n|layout +{layout} *\n", shown)
    named = as_json("inspect", C, "--layout", layout, *servers.options)
    assert named == both
    (other,) = {*Layout} - {layout}
    assert as_json("inspect", C, "--layout", other, *servers.options)["redis"]["exists"] is False


def test_packed_session_is_found_for_every_command(servers: Stores, tmp_path: Path) -> None:
    save(servers.store("redis", layout=Layout.PACKED), b"a", b"b")
    assert as_json("peek", C, "1", *servers.options)["payload_bytes"] == 1
    file = tmp_path / "session.jsonl"
    assert as_json("export", C, "--output", str(file), *servers.options)["messages"] == 2
    assert as_json("purge", C, "--yes", *servers.options)["messages"] == 2
    # Where none is there, a new one is in TBMQ's layout unless another is named.
    assert as_json("import", C, "--input", str(file), "--layout", "packed", *servers.options)["stored"] == 2
    assert as_json("inspect", C, *servers.options)["redis"]["layout"] == "packed"


def test_full_redis_can_be_purged_and_refuses_an_import_as_a_whole(
    redis_server_factory: Callable[..., RedisServer], servers: Stores
) -> None:
    save(servers.store("redis"), *([b"x" * 10_000] * 100))
    exported = run("export", C, *servers.options).stdout_bytes
    server = redis_server_factory(maxmemory_policy="noeviction")
    full = ("--redis-url", server.url)
    with server.client() as client:
        save(RedisSessionStore(client), b"a", b"b", client_id="other")
        client.config_set("maxmemory", client.info("memory")["used_memory"])

        fails("import", C, "--input", "-", *full, given=exported, code=1, words="memory")
        assert not RedisSessionStore(client).inspect(C).exists
        assert as_json("purge", "other", "--yes", *full)["messages"] == 2


@pytest.mark.parametrize("layout", Layout)
def test_message_that_was_set_aside_comes_back_in_the_layout_in_which_its_session_is_there(
    servers: Stores, layout: Layout
) -> None:
    source, target = servers.store("postgres"), servers.store("redis", layout=layout)
    save(source, b"aside")
    servers.connection.execute("UPDATE device_publish_msg SET topic = ''")
    assert source.fetch_pending(C).unreadable == 1
    source.purge_session(C)
    servers.connection.execute("UPDATE queuekeeper.session_quarantine SET topic = 'mended'")
    save(target, b"1")

    assert as_json("replay", "--dry-run", *servers.options)["replayed"] == 1
    assert as_json("replay", "--yes", *servers.options)["replayed"] == 1

    assert [each.payload for each in target.fetch_pending(C).messages] == [b"1", b"aside"]
    assert as_json("quarantine", *servers.options[2:])["rows"] == []


def test_what_was_set_aside_is_listed_shown_and_comes_back_after_a_question(servers: Stores) -> None:
    store = servers.store("postgres")
    save(store, b"1", b"secret")
    servers.connection.execute("UPDATE device_publish_msg SET topic = '' WHERE serial_number = 1")
    assert store.fetch_pending(C).unreadable == 1
    there = ("--postgres-url", servers.options[3])

    listed = as_json("quarantine", *there)
    assert listed["counts"] == [{"reason": "topic_empty", "open": 1, "replayed": 0}]
    ((number, fault),) = [(row["quarantine_id"], row["fault"]) for row in listed["rows"]]
    assert fault == "topic is empty: a message needs one (MQTT 5 section 4.7.3)"
    shown = as_json("quarantine", str(number), *there)
    assert (shown["client_id"], shown["payload_bytes"], shown["status"]) == (C, 6, "open")
    for text in (run("quarantine", *there).stdout, run("quarantine", str(number), *there).stdout):
        assert "topic_empty" in text
        assert "secret" not in text
    fails("quarantine", "99", *there, code=2, words="no message 99 was set aside: `queuekeeper sessions quarantine`")
    # Nothing is mended, so nobody is asked.
    kept = as_json("replay", *servers.options)
    assert (kept["not_repaired"], kept["replayed"], kept["why"]) == (1, 0, {str(number): fault})

    servers.connection.execute("UPDATE queuekeeper.session_quarantine SET topic = 'mended'")
    assert as_json("replay", str(number), "--dry-run", *servers.options)["replayed"] == 1
    question = "1 message will be put behind all others of their sessions. Nobody can be asked here"
    fails("replay", "--client", C, *servers.options, code=4, words=question)
    assert [each.payload for each in store.fetch_pending(C).messages] == [b"1"]
    # Neither an owner nor a Redis is needed where the person says which store the broker reads.
    alone = (*there, "--redis-url", "redis://127.0.0.1:1")
    assert as_json("replay", "--reason", "topic_empty", "--store", "postgres", "--yes", *alone)["replayed"] == 1

    assert [each.payload for each in store.fetch_pending(C).messages] == [b"1", b"secret"]
    marked = as_json("quarantine", str(number), *there)
    assert (marked["status"], marked["assigned_packet_id"], marked["assigned_serial_number"]) == ("replayed", 3, 2)
    assert marked["replayed_by"].endswith("(command line)")
    assert as_json("quarantine", *there)["rows"] == []
    assert as_json("quarantine", "--replayed", *there)["rows"] == [marked]
    entries = servers.connection.execute("SELECT action, actor, effect FROM queuekeeper.audit ORDER BY seq").fetchall()
    assert [(action, actor) for action, actor, _ in entries] == [
        ("unanswered", marked["replayed_by"]), ("approve", marked["replayed_by"]), ("apply", marked["replayed_by"]),
    ]  # fmt: skip
    assert {effect["kind"] for _, _, effect in entries} == {"quarantine_replay"}
    assert entries[2][2]["replayed"] == 1
