"""What whoever writes a job imports of the engine; ``__init__.py`` loads each name when it is asked for."""

from .common import (
    Pacing as Pacing,
    RunParameters as RunParameters,
)
from .counts import Counts as Counts
from .keys import (
    KeyCounts as KeyCounts,
    KeyJob as KeyJob,
    KeyPages as KeyPages,
    Line as Line,
)
from .kinds import Table as Table
from .model import (
    Job as Job,
    NothingBesides as NothingBesides,
    Plan as Plan,
    Step as Step,
    Words as Words,
    World as World,
)
from .parameters import (
    Section as Section,
    days as days,
    minutes as minutes,
    parameter as parameter,
    percent as percent,
    seconds as seconds,
)
from .registry import add_job as add_job
