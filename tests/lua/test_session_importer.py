"""The importer of a copy, where Redis refuses a session."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import unchanged

from queuekeeper.errors import RefusedError
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.offline.importer import Chunk, SessionImporter
from queuekeeper.migration.offline.undo import keys_of
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.pages import Layout

pytestmark = pytest.mark.lua


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("owner", ["postgres", "redis"])
def test_copy_with_the_broker_stopped_refuses_a_session_that_was_moved_with_devices_connected_and_names_the_way(
    client: RedisClient, owner: str, layout: Layout
) -> None:
    # What a migration leaves that was rolled back and disarmed, or committed.
    moved: dict[Any, Any] = {"owner": owner, "epoch": 1_796_022_318_720_899, "import": "done"}
    client.hset(keys_of("meter-7", prefix="", layout=layout).session, mapping=moved)
    session = Chunk(client_id="meter-7", cohort=5, number=0, count=0, keys=b"", args=b"", last=True)

    def copied(mode: Mode) -> SessionImporter:
        importer = SessionImporter(client, plan_id="plan-a", prefix="", pace=lambda _: None, mode=mode, layout=layout)
        importer.add(session)
        importer.finish()
        return importer

    with unchanged(client), pytest.raises(RefusedError) as refused:
        copied(Mode.OFFLINE)
    assert str(refused.value) == (
        "a session of cohort 5 was moved with devices connected before, and a copy with the broker stopped does not "
        "take it: plan again with mode online, which needs no device (queuekeeper migrate plan --mode online)"
    )
    # An online copy leaves it to the move of its client.
    assert copied(Mode.ONLINE).counts[5].sessions_moved_on == 1
