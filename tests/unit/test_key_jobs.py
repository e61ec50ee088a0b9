"""Jobs that go through keys: whatever a job's own code asks Redis, what goes wrong there is told as everywhere."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queuekeeper.errors import ServerUnavailable
from queuekeeper.jobs import KeyJob, Line, RunParameters, Step, Words, World
from queuekeeper.jobs.pace import Breaker
from queuekeeper.jobs.writer import Writer

pytestmark = pytest.mark.unit


class Looking(KeyJob[RunParameters]):
    """Asks Redis before a key is changed."""

    kind = "look_at_keys"
    words = Words(noun="look at keys", title="Look", about="keys", command="keys look")

    def pattern(self) -> str:
        return "*"

    def line(self, key: str) -> Line:
        return {"key": key, "ttl": self.client.ttl(key)}

    def change(self, line: Line) -> bool:
        return bool(line)


def test_server_that_goes_away_while_a_job_asks_about_a_key_is_named() -> None:
    client = redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    world = World(
        client=client,
        parameters=RunParameters(),
        now_ms=0,
        clock=lambda: 0,
        writer=Writer(client, counts_only=True),
        wait=lambda _amount: None,
        breaker=Breaker(print),
        say=print,
    )
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1"):
        Looking(world).apply(Step(cursor="", work=[b"a"]))
