"""The demo as a program: its exit codes, what it says, that its user interface stays, and that it leaves nothing."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from queuekeeper import embedded
from queuekeeper.config import Settings

pytestmark = pytest.mark.integration


@pytest.fixture
def home(server_home: Path) -> Iterator[Path]:
    folder = server_home / "demo"
    folder.mkdir()
    yield folder
    embedded.erase(_settings(folder))
    shutil.rmtree(folder, ignore_errors=True)


def test_a_second_demo_in_the_same_home_is_refused_and_starts_nothing(home: Path) -> None:
    with (home / "demo.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        demo = _demo(home)
        said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 4
    assert "another demo runs in" in said
    assert sorted(path.name for path in home.iterdir()) == ["demo.lock"]


@pytest.mark.timeout(900)
def test_an_interrupted_demo_stops_what_it_started_and_the_next_one_balances_and_stays_until_ctrl_c(home: Path) -> None:
    demo = _demo(home)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "filling PostgreSQL" in line:
            break
    demo.send_signal(signal.SIGTERM)
    said, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert "Stopping the servers." in said
    assert {server.state for server in embedded.status(_settings(home)).servers} == {"stopped"}

    demo = _demo(home)
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if "The user interface stays up. Ctrl-C ends the demo." in line:
            break
    assert "The demo itself answered Approve" in said
    assert re.search(r"copy [\d,]+/[\d,]+ messages \(\d+ %\), [\d,]+/s", said)
    assert "balances to zero; the run ended as success." in said
    report = next(line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("Report "))
    assert "<html" in Path(report).read_text("utf-8")
    shown = re.search(r"^Airflow +(http://127\.0\.0\.1:\d+)/\S+\n +user (\S+), password (\S+)$", said, re.MULTILINE)
    assert shown is not None, said
    address, user, password = shown.groups()
    assert httpx.post(f"{address}/auth/token", json={"username": user, "password": password}).status_code == 201
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=120)
    assert demo.returncode == 0
    assert {server.state for server in embedded.status(_settings(home)).servers} == {"stopped"}


def _demo(home: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "QUEUEKEEPER_HOME": str(home), "DEMO_EXIT": "", "DEMO_MESSAGES": "5000"}
    return subprocess.Popen(
        [sys.executable, "-m", "queuekeeper.demo"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _settings(home: Path) -> Settings:
    return Settings(home=home, postgres_url=None, redis_url=None)
