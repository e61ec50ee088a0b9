"""What brokers import of this store; ``__init__.py`` loads each name when it is asked for."""

from .app import App as App
from .consumer import AsyncCompactedConsumer as AsyncCompactedConsumer, CompactedConsumer as CompactedConsumer
from .consumption import ConsumerRules as ConsumerRules, Resubscribe as Resubscribe, WhenUnreadable as WhenUnreadable
from .handlers import (
    CompactedWorker as CompactedWorker,
    Handler as Handler,
    Middleware as Middleware,
    RetryRules as RetryRules,
    handler as handler,
)
from .model import (
    Append as Append,
    Fence as Fence,
    Position as Position,
    Properties as Properties,
    Purge as Purge,
    QueueRules as QueueRules,
    Refill as Refill,
    Retention as Retention,
    RetentionPolicy as RetentionPolicy,
    WhenFull as WhenFull,
)
from .reports import (
    AckReport as AckReport,
    AppendReport as AppendReport,
    CollectReport as CollectReport,
    CompactedMessage as CompactedMessage,
    DropReport as DropReport,
    DuePage as DuePage,
    DueRow as DueRow,
    Fetched as Fetched,
    Heartbeat as Heartbeat,
    PurgeReport as PurgeReport,
    QueueView as QueueView,
    RepairReport as RepairReport,
    RestoreReport as RestoreReport,
    RewindReport as RewindReport,
    Subscription as Subscription,
    VerifyReport as VerifyReport,
    Violation as Violation,
)
from .mqtt import MqttDoor as MqttDoor
from .mqtt_address import BrokerAddress as BrokerAddress
from .producer import (
    Appended as Appended,
    AsyncCompactedProducer as AsyncCompactedProducer,
    CompactedProducer as CompactedProducer,
)
from .queue import AsyncCompactedQueues as AsyncCompactedQueues, CompactedQueues as CompactedQueues
from .settings import EcqSettings as EcqSettings
from .topics import QueueTopic as QueueTopic, TopicKind as TopicKind, Topics as Topics
