"""Sends each call to the store that owns the session, while sessions move between PostgreSQL and Redis.

PostgreSQL records the owners (``sessions.owners``). The router caches them; when an entry is out of date, the store
refuses the call, and the router looks the owner up again.
"""

from __future__ import annotations

from queuekeeper.sessions.router.faces import AsyncSessionRouter, SessionRouter
from queuekeeper.sessions.router.routing import RouterOperations

__all__ = ["AsyncSessionRouter", "RouterOperations", "SessionRouter"]
