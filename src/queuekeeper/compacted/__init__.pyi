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
    AckReport as AckReport,
    Append as Append,
    AppendReport as AppendReport,
    CollectReport as CollectReport,
    CompactedMessage as CompactedMessage,
    DropReport as DropReport,
    DuePage as DuePage,
    DueRow as DueRow,
    Fence as Fence,
    Fetched as Fetched,
    Heartbeat as Heartbeat,
    Position as Position,
    Properties as Properties,
    Purge as Purge,
    PurgeReport as PurgeReport,
    QueueRules as QueueRules,
    QueueView as QueueView,
    Refill as Refill,
    RepairReport as RepairReport,
    RestoreReport as RestoreReport,
    Retention as Retention,
    RetentionPolicy as RetentionPolicy,
    RewindReport as RewindReport,
    Subscription as Subscription,
    VerifyReport as VerifyReport,
    Violation as Violation,
    WhenFull as WhenFull,
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
