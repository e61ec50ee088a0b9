"""Public names of this store; ``__init__.py`` loads a name when it is first used."""

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
    ConsumerOptions as ConsumerOptions,
    FanoutRules as FanoutRules,
    Mode as Mode,
    NewMessage as NewMessage,
    QueueOptions as QueueOptions,
    Start as Start,
    WhenFailed as WhenFailed,
    WhenFull as WhenFull,
    WhenNobody as WhenNobody,
)
from .reports import (
    AckReport as AckReport,
    Claimed as Claimed,
    ConsumerView as ConsumerView,
    DeadLetter as DeadLetter,
    DeadPage as DeadPage,
    ExpireReport as ExpireReport,
    ExtendReport as ExtendReport,
    FanoutMessage as FanoutMessage,
    Finding as Finding,
    NackReport as NackReport,
    Outcome as Outcome,
    Problem as Problem,
    PublishReport as PublishReport,
    PurgeReport as PurgeReport,
    QueueView as QueueView,
    ReapReport as ReapReport,
    Registration as Registration,
    RepairReport as RepairReport,
    RetryReport as RetryReport,
    ReturnReport as ReturnReport,
    UnregisterReport as UnregisterReport,
    VerifyReport as VerifyReport,
)
from .producer import AsyncFanoutProducer as AsyncFanoutProducer, FanoutProducer as FanoutProducer
from .queue import AsyncFanoutQueues as AsyncFanoutQueues, FanoutQueues as FanoutQueues
from .records import read_json as read_json
