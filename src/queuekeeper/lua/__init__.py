"""Lua scripts: bundled from their files, read by their headers, called by digest.

``python -m queuekeeper.lua --bundle DIRECTORY`` writes every bundled script to a directory, for a linter to read.
"""

from queuekeeper.lua.bundle import Script, commands_called, counting, load, load_from, main, names, reading
from queuekeeper.lua.call import REPLICA_TIMEOUT_MS, Call, Replies, Reply, Value, command
from queuekeeper.lua.caller import ScriptCaller
from queuekeeper.lua.header import Line, Parameter
from queuekeeper.redis_client import RETRY_FOR_S

__all__ = [
    "REPLICA_TIMEOUT_MS",
    "RETRY_FOR_S",
    "Call",
    "Line",
    "Parameter",
    "Replies",
    "Reply",
    "Script",
    "ScriptCaller",
    "Value",
    "command",
    "commands_called",
    "counting",
    "load",
    "load_from",
    "main",
    "names",
    "reading",
]
