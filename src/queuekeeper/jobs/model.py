"""A job, and the records of its plan, its work and its outcome, the same for every job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from queuekeeper.clock import Clock
from queuekeeper.errors import UsageError
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.kinds import RunKind, Table
from queuekeeper.jobs.pace import Breaker
from queuekeeper.jobs.parameters import Parameters, describe
from queuekeeper.jobs.undo import changes
from queuekeeper.postgres import Connection
from queuekeeper.report.figures import instant
from queuekeeper.report.files import ReportKind
from queuekeeper.wording import number_of, sentence

if TYPE_CHECKING:
    from queuekeeper.jobs.writer import Writer
    from queuekeeper.redis_client import RedisClient

P = TypeVar("P", bound=Parameters)
C = TypeVar("C", bound=Counts)
F = TypeVar("F")
T = TypeVar("T")

INEXACT = "slots of the cluster moved while keys were looked for; plan again when they stay where they are"


@dataclass(frozen=True, kw_only=True)
class Words:
    """Words for a job, its runs and its changes. Sentences have ``{count}`` in place of the number.

    :param noun: a run, such as "repair of fan-out queues".
    :param title: the same as a heading.
    :param about: what runs work on, in the plural.
    :param command: command that makes a plan; ``run start`` with the job's name where it is empty.
    :param go_on: command that continues a stopped run.
    :param unit: what a run goes through, in the singular.
    :param units: what a run goes through, in the plural.
    :param to_do: how many changes are to be made.
    :param done: how many changes were made.
    :param question: what a person is asked before anything changes.
    :param planned: verdict of a dry run.
    :param nothing: verdict of a run that found nothing to do.
    :param left: verdict when the second look finds something to do.
    :param clean: verdict when the second look finds nothing to do.
    :param broken: sentence on what could not be worked on.
    :param hint: what to do about that.
    :param footer: sentence at the end of a report on the names that it shows.
    """

    noun: str
    title: str
    about: str
    command: str = ""
    go_on: str = "{command} --go-on {run_id}"
    unit: str = "key"
    units: str = "keys"
    to_do: str = "{count:change} to be made"
    done: str = "{count:change} made"
    question: str = "{count:change} to be made. Go on?"
    planned: str = "{count:change} to be made, nothing was changed"
    nothing: str = "healthy: there was nothing to do, and nothing was changed"
    left: str = "{count:change} left to be made"
    clean: str = "clean: a second look finds nothing that was to be done"
    broken: str = "{count:key} cannot be worked on"
    hint: str = "the log of the plan says why"
    footer: str = "No message leaves the server."

    def go_on_with(self, run_id: str) -> str:
        """Return the command that continues a run."""
        return self.go_on.format(command=self.command, run_id=run_id)

    @classmethod
    def of_changes(cls, change: str, **others: str) -> Words:
        """Return the words of a job whose changes have a name.

        :param change: such as "repair".
        """
        return cls(
            to_do=f"{{count:{change}}} to be made",
            done=f"{{count:{change}}} made",
            question=f"{{count:{change}}} to be made. Go on?",
            planned=f"{{count:{change}}} to be made, nothing was changed",
            left=f"{{count:{change}}} left to be made",
            **others,
        )

    @classmethod
    def of_remedy(cls, kind: str, **others: str) -> Words:
        """Return the words of a remedy.

        :param kind: such as "repair_counter".
        """
        return cls(noun=f"remedy {kind}", title=kind, nothing="There is nothing to do.", **others)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A bounded piece of work.

    :param cursor: place behind the step, where a run continues; any text that PostgreSQL can hold.
    :param work: what is to be done, in the job's own form.
    """

    cursor: str
    work: Any


@dataclass(frozen=True, kw_only=True)
class SharePlan(Generic[C]):
    """What there is to do in one share."""

    share: str
    counts: C


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[P, C, F]):
    """What a job would do; nothing was written.

    :param as_of_ms: the instant at which the job judges, however long the run takes.
    :param found: further findings of the job, in a record of its own.
    :param steps: cursors of the steps in which there is something to do, where the job works only through these.
    :param exact: whether everything was counted exactly once; false where slots of a cluster moved all the time.
    """

    parameters: P
    code_version: str
    as_of_ms: int
    shares: tuple[SharePlan[C], ...]
    counts: C
    found: F
    steps: tuple[str, ...]
    seconds: float
    exact: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return bool(self.counts.nothing)

    def share_names(self) -> list[str]:
        """Return the shares of the work."""
        return [each.share for each in self.shares]

    def share(self, name: str) -> SharePlan[C]:
        """Return one share of the work."""
        return next(each for each in self.shares if each.share == name)

    def facts(self) -> dict[str, Any]:
        """Return the plan as JSON values, without its steps."""
        facts: dict[str, Any] = asdict(self)
        del facts["steps"]
        return {**facts, **facts.pop("found")}


@dataclass(frozen=True, kw_only=True)
class ShareReport(Generic[C]):
    """What was done in one share, over all calls of the run.

    :param done: whether the whole share is done; otherwise the run can be continued.
    :param stopped: why the share is not done; empty when it is.
    :param undo_file: path of the undo file; empty when nothing was changed, or the job cannot be undone.
    """

    maintenance_run_id: str
    share: str
    done: bool
    stopped: str
    counts: C
    seconds: float
    undo_file: str


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[P, C, F]):
    """Outcome of a whole run with its second look.

    :param counts: what was done; all 0 in a dry run.
    :param left: what the second look still finds to do; none where there was no second look.
    :param proved: whether the second look took in everything.
    :param open_shares: shares that are not done.
    :param undo_files: undo files of the run that can be found from this machine.
    :param facts: further facts of the job about the whole.
    """

    maintenance_run_id: str
    dry_run: bool
    plan: Plan[P, C, F]
    counts: C
    left: C | None
    proved: bool
    open_shares: tuple[str, ...]
    facts: Mapping[str, Any]
    generated_at_ms: int
    undo_files: tuple[str, ...] = ()

    @property
    def moved_on(self) -> dict[str, int]:
        """What was planned and not done, by name: planned = done + moved on; below 0 where more has come since."""
        return {} if self.dry_run or self.plan.empty else self.plan.counts.moved_on(self.counts)

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do."""
        left = self.plan.counts if self.left is None else self.left
        return not self.open_shares and not left.changes and not self.broken

    @property
    def trouble(self) -> str:
        """What must not wait, from the job's facts; empty for nothing."""
        return str(self.facts.get("trouble") or "")

    @property
    def broken(self) -> int:
        """Number of keys or queues that could not be read or worked on."""
        return max(each.broken for each in (self.plan.counts, self.counts, self.left or self.counts))


@dataclass(frozen=True, kw_only=True)
class Undone:
    """What an undo took back, or in a dry run would take back.

    :param noted: all changes in the undo files; those not taken back were left because somebody has changed them since.
    """

    maintenance_run_id: str
    dry_run: bool
    files: int
    noted: int
    taken_back: int


@dataclass(kw_only=True)
class World(Generic[P]):
    """What a job works with during one pass: a plan, the work on a share, the second look, or an undo.

    :param now_ms: the instant at which the job judges.
    :param clock: clock for the present time during the pass.
    :param writer: changes the store and notes the changes, or only counts.
    :param wait: takes the amount of work done, and returns when more may be done.
    :param rest: raises :class:`RunPaused` while the run is paused and ``stays`` is false. A job calls it within long
        steps, after it has set :attr:`Job.begun`.
    :param name_client: returns the name of a client in reports, a keyed hash of its id.
    :param breaker: makes steps smaller while the server is slow.
    :param planned: the plan that is carried out or looked at again; none while the plan is made.
    :param total: counts of the share so far, earlier calls of the run included; none in a second look.
    :param token: name of run and share, for locks.
    :param database: connection to PostgreSQL, for a job that reads it; none where none was named.
    :param given: values for the job that no record may hold, such as client ids.
    """

    client: RedisClient
    parameters: P
    now_ms: int
    clock: Clock
    writer: Writer
    wait: Callable[[float], None]
    breaker: Breaker
    say: Callable[[str], None]
    rest: Callable[[], None] = lambda: None
    name_client: Callable[[str], str] = lambda _: ""
    planned: Plan[P, Any, Any] | None = None
    total: Any = None
    run_id: str = ""
    token: str = ""
    database: Connection | None = None
    given: Any = None

    @property
    def counts_only(self) -> bool:
        """Whether nothing is changed."""
        return self.writer.counts_only

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Change nothing in the block: a change only tells whether it could be made."""
        writer = self.writer
        self.writer = type(writer)(self.client, counts_only=True)
        try:
            yield
        finally:
            self.writer = writer

    def pace(self, amount: float) -> None:
        """Note how long the last call took, and wait until the next call may be sent.

        :param amount: amount of work of the last call.
        """
        self.breaker.answered()
        self.wait(amount)
        self.breaker.sent()

    def size(self, full: int) -> int:
        """Return the size of the next step: the full size, or less while the server is slow."""
        return self.breaker.size(full)

    def batches(self, items: Iterable[T], full: int) -> Iterator[list[T]]:
        """Cut items into batches, each of the size that :meth:`size` returns when the batch begins."""
        iterator = iter(items)
        while batch := list(islice(iterator, self.size(full))):
            yield batch


@dataclass(frozen=True)
class NothingBesides:
    """Findings of a job whose plan consists of counts alone."""


class Job(ABC, Generic[P, C, F]):
    """Work that changes data in bounded steps. One object makes one pass; the engine does the rest.

    A job names the classes of its parameters, its counts and its findings as type arguments.

    :cvar kind: name of the job in records; also of its DAG, unless ``dag`` names another.
    :cvar dag: DAG that carries the runs out, where it has another name; who may trigger it may also pause runs.
    :cvar report: name of the report's files, and its title; by default made of the job's name.
    :cvar on_redis: whether the job works in Redis; otherwise it works in PostgreSQL alone and gets no client.
    :cvar asks: whether a person has to approve a plan before a task carries it out.
    :cvar undoes: whether the job's changes can be undone.
    :cvar works_when_empty: whether shares are worked on when the plan has found nothing.
    :cvar fact_names: instants among :meth:`facts`, each with its label.
    :cvar keeps_steps: whether work and second look are limited to the steps of the plan.
    :cvar proof_steps: most steps of the second look; none for all.
    :ivar proved: whether the second look has seen everything in its steps.
    :ivar moved: whether keys moved to another server during the search, so that some may be missed or come twice.
    :ivar begun: counts of the present step so far, for a run that is paused, stopped or interrupted within it; none
        where a job does not keep them.
    """

    kind: ClassVar[str]
    dag: ClassVar[str] = ""
    words: ClassVar[Words]
    report: ClassVar[ReportKind]
    Parameters: ClassVar[type[Any]]
    Counts: ClassVar[type[Any]]
    Found: ClassVar[type[Any]] = NothingBesides
    on_redis: ClassVar[bool] = True
    asks: ClassVar[bool] = False
    undoes: ClassVar[bool] = False
    works_when_empty: ClassVar[bool] = False
    fact_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    keeps_steps: ClassVar[bool] = False
    proof_steps: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        """Set the classes that a job names as type arguments, its command, and its kind of reports."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Job):
                # A class between may have given the last type arguments.
                for name, kind in zip(("Parameters", "Counts", "Found"), get_args(base), strict=False):
                    if kind is not Any and not isinstance(kind, TypeVar):
                        setattr(cls, name, kind)
        if "kind" in vars(cls) and not cls.words.command:
            cls.words = replace(cls.words, command=f"run start {cls.kind}")
        if "kind" in vars(cls) and "report" not in vars(cls):
            cls.report = ReportKind(cls.kind, f"Report of the {cls.words.noun}")

    def __init__(self, world: World[P]) -> None:
        self.world = world
        self.proved = True
        self.moved = False
        self.begun: C | None = None

    # --- work ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def shares(self) -> list[str]:
        """Return the names of the shares that tasks work on at the same time."""

    @abstractmethod
    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the steps of a share.

        :param after: cursor of the last step that was done; empty to begin.
        """

    @abstractmethod
    def apply(self, step: Step) -> C:
        """Do one step and return what was done; the store decides again. With a counting writer, only count."""

    def look_again(self) -> Iterator[Step]:
        """Yield the steps of the second look."""
        for share in self.shares():
            yield from self.find(share)

    def found(self) -> F:
        """Return the findings of the pass besides its counts."""
        return self.Found()  # type: ignore[no-any-return]

    def undo(self, run_id: str, files: Sequence[Path]) -> Any:
        """Undo the changes in a run's undo files, or only count them, and return a record of counts."""
        noted = taken_back = 0
        for path in files:
            for line in changes(path, kind=self.kind):
                noted += 1
                taken_back += self.take_back(line)
        return Undone(
            maintenance_run_id=run_id,
            dry_run=self.world.counts_only,
            files=len(files),
            noted=noted,
            taken_back=taken_back,
        )

    def take_back(self, line: Mapping[str, Any]) -> bool:
        """Undo the change of a line and return true; return false where somebody has changed the data since."""
        raise UsageError(f"the {self.words.noun} has no undo")

    @classmethod
    def no_way_back(cls) -> str:
        """Return the sentence that the job cannot be undone; empty where it can."""
        return "" if cls.undoes else f"The {cls.words.noun} has no undo."

    @classmethod
    def run_kind(cls) -> RunKind:
        """Return the record of the job's kind of runs."""
        return RunKind(
            name=cls.kind,
            dag=cls.dag or cls.kind,
            noun=cls.words.noun,
            command=cls.words.command,
            go_on=lambda run: cls.words.go_on_with(run.maintenance_run_id),
            fact_names=cls.fact_names,
            no_undo=lambda _: cls.no_way_back(),
            is_empty=lambda run: cls._is_empty(run.plan),
        )

    @classmethod
    def _is_empty(cls, plan: Mapping[str, Any]) -> bool:
        names = {each.name for each in fields(cls.Counts)}
        # Another release may have counted other things.
        counts = {name: count for name, count in plan.get("counts", {}).items() if name in names}
        return bool(counts) and bool(cls.Counts(**counts).nothing)

    def undo_header(self) -> dict[str, Any]:
        """Return the fields of an undo file's first line besides run and share."""
        return {}

    @classmethod
    def settled(cls, parameters: P, database: Connection | None) -> P:
        """Return the parameters of a plan, completed with values from the database.

        It is not called where :attr:`World.given` says what the job works on.
        """
        return parameters

    @classmethod
    def check(cls, client: RedisClient, parameters: P, *, writing: bool) -> None:
        """Check servers and rights before anything is done.

        :raises RefusedError: when a server or the user's rights on it do not suffice.
        """
        if cls.on_redis:
            from queuekeeper.jobs.shares import check_servers  # noqa: PLC0415 - its client takes a while

            check_servers(client)

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def rule_words(cls, parameters: P) -> str:
        """Return a sentence that says what a run was asked to do."""
        given = ((each.said.title, getattr(parameters, name)) for name, each in describe(type(parameters)).items())
        named = ((title, f"{value:,}" if type(value) is int else value) for title, value in given)
        return "; ".join(f"{title}: {value}" for title, value in named if value not in (None, ""))

    @classmethod
    def question(cls, run_id: str, plan: Plan[P, C, F]) -> str:
        """Return the question that a person is asked before anything changes."""
        return sentence(cls.words.question, count=plan.counts.changes)

    def done_words(self, share: str, counts: C) -> str:
        """Return a sentence that sums up what was done in a share."""
        scanned = f"{counts.scanned:,} {self.words.unit if counts.scanned == 1 else self.words.units}"
        return f"{share}: {sentence(self.words.done, count=counts.changes)}, {scanned}"

    @classmethod
    def undo_words(cls, counted: Any) -> str:
        """Return a sentence that says what an undo would do.

        :param counted: counts that :meth:`undo` has returned.
        """
        return f"{counted.taken_back:,} of {number_of(counted.noted, 'change')} will be undone."

    @classmethod
    def plan_rows(cls, plan: Plan[P, C, F]) -> list[tuple[str, str]]:
        """Return the plan as pairs of name and text, for the person who approves it."""
        throttle = plan.parameters.max_operations_per_s  # type: ignore[attr-defined]
        return [
            ("As of", instant(plan.as_of_ms)),
            ("Shares", ", ".join(plan.share_names())),
            *([] if plan.exact else [("Counts", f"not exact: {INEXACT}")]),
            *plan.counts.rows(),
            ("Throttle", "none" if throttle is None else f"{throttle:,} operations/s"),
        ]

    @classmethod
    def figures(cls, outcome: Outcome[P, C, F]) -> list[tuple[str, str, str]]:
        """Return the main figures of a report: name, text, explanation."""
        return []

    @classmethod
    def tables(cls, plan: Plan[P, C, F]) -> list[Table]:
        """Return the tables of what the plan has found."""
        return []

    @classmethod
    def shown(cls, outcome: Outcome[P, C, F]) -> list[Table]:
        """Return the tables of a report besides its counts."""
        return cls.tables(outcome.plan)

    @classmethod
    def planned(cls, plan: Plan[P, C, F]) -> dict[str, Any]:
        """Return further fields of a plan's JSON."""
        return {}

    @classmethod
    def told(cls, outcome: Outcome[P, C, F]) -> dict[str, Any]:
        """Return further fields of a run's JSON, under the names of earlier releases."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return further facts about a whole run for its report; the fact ``trouble`` must not wait."""
        return {}


AnyJob = Job[Any, Any, Any]
AnyPlan = Plan[Any, Any, Any]
AnyOutcome = Outcome[Any, Any, Any]
