"""`make audit` asks for each locked package; here a server of the test's own answers, for CI does not reach osv.dev."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from release.lock import read_lock

ROOT = Path(__file__).parents[2]
ADVISORY = {
    "id": "PYSEC-0-0",
    "summary": "Planted",
    "details": "Planted by a test.",
    "affected": [
        {
            "package": {"name": "orjson", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
    ],
}


class Advisories(ThreadingHTTPServer):
    """Answers as osv.dev does, and knows of one vulnerability at most."""

    def __init__(self) -> None:
        self.vulnerable = ""
        self.asked: set[tuple[str, str]] = set()
        super().__init__(("127.0.0.1", 0), Answers)


class Answers(BaseHTTPRequestHandler):
    server: Advisories

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = asked["package"]["name"]
        self.server.asked.add((name, asked["version"]))
        body = json.dumps({"vulns": [ADVISORY]} if name == self.server.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def advisories() -> Iterator[Advisories]:
    with Advisories() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def audit(advisories: Advisories) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{advisories.server_port}/v1/query"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--silent", "audit", f"ARGS=--osv-url {url}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=outside | {"NO_PROXY": "127.0.0.1"},
    )  # fmt: skip


def test_each_locked_package_is_asked_for_and_none_of_them_is_vulnerable(advisories: Advisories) -> None:
    done = audit(advisories)

    assert done.returncode == 0, done.stderr
    assert "No known vulnerabilities found" in done.stderr
    missing = {
        each.name
        for each in read_lock(ROOT)
        if each.marker is None and (each.name, each.version) not in advisories.asked
    }
    assert missing == set()


def test_a_known_vulnerability_fails_the_audit_and_is_named_with_the_release_that_mends_it(
    advisories: Advisories,
) -> None:
    advisories.vulnerable = "orjson"

    done = audit(advisories)

    assert done.returncode != 0
    assert "Found 1 known vulnerability in 1 package" in done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("orjson")]
    assert line.split()[2:4] == ["PYSEC-0-0", "99.0"]
