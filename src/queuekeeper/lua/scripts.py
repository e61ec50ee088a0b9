"""All scripts by name: ``scripts.sessions.ack`` is ``lua/sessions/ack.lua``."""

from __future__ import annotations

from queuekeeper.keyspace import CompactedKeys, FanoutConsumerKeys, FanoutKeys, PackedKeys, SessionKeys
from queuekeeper.lua.bind import Area

sessions = Area("sessions", SessionKeys)
packed = Area("packed", PackedKeys)
compacted = Area("compacted", CompactedKeys)
fanout = Area("fanout", FanoutKeys, FanoutConsumerKeys)
maintenance = Area("maintenance", SessionKeys)
quality = Area("quality", SessionKeys)
