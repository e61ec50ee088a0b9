"""Public names of this store; ``__init__.py`` loads a name when it is first used."""

from .app import App as App
from .broker import AsyncEventBroker as AsyncEventBroker, EventBroker as EventBroker
from .consumer import AsyncEventConsumer as AsyncEventConsumer, EventConsumer as EventConsumer
from .dispatcher import AsyncDispatcher as AsyncDispatcher, DispatchRules as DispatchRules, Dispatcher as Dispatcher
from .handlers import (
    AsyncListener as AsyncListener,
    Checkpoint as Checkpoint,
    Handler as Handler,
    Listener as Listener,
    Middleware as Middleware,
    RetryRules as RetryRules,
    handler as handler,
)
from .model import (
    DeadLetter as DeadLetter,
    Delivery as Delivery,
    Event as Event,
    FellBehind as FellBehind,
    Interest as Interest,
    LockTimeout as LockTimeout,
    NewEvent as NewEvent,
    Page as Page,
    PageItem as PageItem,
    ReadRules as ReadRules,
    ReleaseReport as ReleaseReport,
    ResumeRefused as ResumeRefused,
    Retry as Retry,
    Splitter as Splitter,
    StatementTimeout as StatementTimeout,
    Subscription as Subscription,
    SubscriptionView as SubscriptionView,
    TransientRefusal as TransientRefusal,
)
from .producer import (
    AsyncEventProducer as AsyncEventProducer,
    EventProducer as EventProducer,
    NotPublished as NotPublished,
)
from .sse import (
    AsyncEventStream as AsyncEventStream,
    EventStream as EventStream,
    StreamRules as StreamRules,
    open_stream as open_stream,
)
from .webhooks import AsyncWebhook as AsyncWebhook, Webhook as Webhook, WebhookRules as WebhookRules
