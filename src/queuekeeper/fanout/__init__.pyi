"""What brokers import of this store; ``__init__.py`` loads each name when it is asked for."""

from .app import App as App
from .consumer import AsyncFanoutConsumer as AsyncFanoutConsumer, FanoutConsumer as FanoutConsumer
from .consumption import WorkRules as WorkRules
from .handlers import (
    Failed as Failed,
    Handler as Handler,
    Middleware as Middleware,
    RetryRules as RetryRules,
    handler as handler,
)
from .model import (
    AckReport as AckReport,
    Claimed as Claimed,
    ConsumerOptions as ConsumerOptions,
    ConsumerView as ConsumerView,
    DeadLetter as DeadLetter,
    DeadPage as DeadPage,
    ExpireReport as ExpireReport,
    ExtendReport as ExtendReport,
    FanoutMessage as FanoutMessage,
    FanoutRules as FanoutRules,
    Finding as Finding,
    Mode as Mode,
    NackReport as NackReport,
    NewMessage as NewMessage,
    Outcome as Outcome,
    Problem as Problem,
    PublishReport as PublishReport,
    PurgeReport as PurgeReport,
    QueueOptions as QueueOptions,
    QueueView as QueueView,
    ReapReport as ReapReport,
    Registration as Registration,
    RepairReport as RepairReport,
    RetryReport as RetryReport,
    ReturnReport as ReturnReport,
    Start as Start,
    UnregisterReport as UnregisterReport,
    VerifyReport as VerifyReport,
    WhenFailed as WhenFailed,
    WhenFull as WhenFull,
    WhenNobody as WhenNobody,
)
from .producer import AsyncFanoutProducer as AsyncFanoutProducer, FanoutProducer as FanoutProducer
from .queue import AsyncFanoutQueues as AsyncFanoutQueues, FanoutQueues as FanoutQueues
from .records import read_json as read_json
