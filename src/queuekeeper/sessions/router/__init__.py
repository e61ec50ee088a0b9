"""Sessions that move between PostgreSQL and Redis while they are used: each call goes to the store that owns them.

Who owns a session is what PostgreSQL says (``sessions.owners``). It is kept in mind, and may be out of date: the stores
refuse a writer that is wrong, and the router asks again.
"""

from __future__ import annotations

from queuekeeper.sessions.router.faces import AsyncSessionRouter, SessionRouter
from queuekeeper.sessions.router.routing import RouterOperations

__all__ = ["AsyncSessionRouter", "RouterOperations", "SessionRouter"]
