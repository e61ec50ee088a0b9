"""What brokers import of this store; ``__init__.py`` loads each name when it is asked for."""

from .model import (
    Ack as Ack,
    NewMessage as NewMessage,
    Owner as Owner,
    Release as Release,
    SessionSave as SessionSave,
    StoreRules as StoreRules,
)
from .pages import Layout as Layout
from .reports import (
    AckReport as AckReport,
    ExportPage as ExportPage,
    ImportReport as ImportReport,
    ImportView as ImportView,
    MessageView as MessageView,
    PendingMessage as PendingMessage,
    PendingPage as PendingPage,
    Problem as Problem,
    PurgeProgress as PurgeProgress,
    PurgeReport as PurgeReport,
    Refusal as Refusal,
    SaveReport as SaveReport,
    SessionCounts as SessionCounts,
    SessionView as SessionView,
)
from .owners import AsyncOwnerStore as AsyncOwnerStore, OwnerStore as OwnerStore, Ownership as Ownership
from .postgres_store import (
    AsyncPostgresSessionStore as AsyncPostgresSessionStore,
    PostgresSessionStore as PostgresSessionStore,
)
from .redis_store import (
    AsyncRedisSessionStore as AsyncRedisSessionStore,
    RedisSessionStore as RedisSessionStore,
    layout_of as layout_of,
)
from .router import AsyncSessionRouter as AsyncSessionRouter, SessionRouter as SessionRouter
from .writer import MessageRefused as MessageRefused, SessionWriter as SessionWriter, Stored as Stored
from .judge import Reason as Reason
from .postgres_operations import CleanupReport as CleanupReport
from .snapshot import (
    ApplyReport as ApplyReport,
    Outbox as Outbox,
    SessionSnapshot as SessionSnapshot,
    SourceBatch as SourceBatch,
)
