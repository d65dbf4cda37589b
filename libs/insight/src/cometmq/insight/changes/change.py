# SPDX-License-Identifier: Apache-2.0
"""What a change is: arguments, a plan that shows its consequences, and the change itself.

A subclass of `Change` declares one: its fields are the arguments, its docstring is the help, and
`_plan` checks everything and says what would happen. The verb of the command line, the form of the
console, the tool of MCP and the entry of the audit log are derived from it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import InvalidArgument
from cometmq.insight.words import command

C = TypeVar("C")
Cell = str | int | float | bool | None | list[str] | list[int]
"""A value that a table shows."""
Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What the command line prints after a change: one object, or one per row."""


class Risk(StrEnum):
    """What a change can cost."""

    LOW = "low"
    """It can be undone by another change; the command line does not ask before it."""
    MEDIUM = "medium"
    """Messages are delivered again, or clients reconnect."""
    HIGH = "high"
    """Messages can be lost; the user of the console types the subject's name."""


class Only(StrEnum):
    """Where an argument is offered, if not everywhere."""

    COMMANDS = "commands"
    FORMS = "forms"
    """The confirmation of a plan gives its value; it is never in an address."""


class Consequence(NamedTuple):
    """One sentence about what a change does."""

    text: str
    tone: str = ""
    """`good`, `warn`, `bad` or empty."""


def bad(text: str) -> Consequence:
    """Return a consequence that the user of the command line confirms."""
    return Consequence(text, "bad")


def warn(text: str) -> Consequence:
    """Return a consequence that may surprise."""
    return Consequence(text, "warn")


class Link(msgspec.Struct, frozen=True):
    """A link to a page of the console; a struct, because JSON has no names of a tuple's fields."""

    text: str
    href: str


class Done(NamedTuple):
    """The outcome of a change in one sentence, and what the command line prints instead of it."""

    text: str
    rows: Rows | None = None
    """None for the state after the change, as planned."""
    is_whole: bool = True
    """Whether all was done; the exit status of the command is 1 otherwise."""


class Plan(NamedTuple):
    """A change that is ready to be made."""

    what: str
    """The change, as a verb with its objects: create the topic orders."""
    subject: str
    """The name of the changed topic, group or other subject, for the audit log."""
    before: Any
    """The state that the change replaces; it must be the same when the change is made, unless
    `compared` is given.
    """
    after: Any
    perform: Callable[[AdminClient], Awaitable[Done]]
    """Make the change, with a client whose account may differ from the one that planned."""
    consequences: Sequence[Consequence] = ()
    notes: Sequence[str] = ()
    """Remarks that matter after the change, too."""
    refusal: str = ""
    """Why the change cannot be made now; empty if it can be made."""
    remedy: Link | None = None
    """The page where the user can remove the reason for the refusal."""
    idle: str = ""
    """Why there is nothing to do, which only the command line does not refuse."""
    doubt: str = ""
    """What the command line refuses without --force."""
    at: Sequence[str] = ()
    """The names of the brokers that change."""
    preview: Mapping[str, Cell] = {}
    """Further facts that a dry run prints."""
    resume: str = ""
    """What to do after a failure halfway, if not the same at the brokers that are left."""
    compared: Any = None
    """The state to compare instead of `before`, if `before` changes all the time."""
    details: Any = None
    """Further data for templates and JSON; a mapping is shown before a question."""
    confirms: Mapping[str, str] = {}
    """The values of the arguments that confirm this plan."""
    labels: Mapping[str, str] = {}
    """The arguments that the user gives with the confirmation, such as secrets, with labels."""
    topic: str = ""
    """The topic of a message that the user has named by its id or position."""
    job: Any = None
    """The work itself, if `perform` may take longer than a request."""
    command: str = ""
    leads_to: str = ""
    """The page of the console that shows the outcome."""
    asks: Sequence[Any] = ()
    """Inputs of a form that are sent only with the confirmation, such as secrets."""


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for; its fields are the arguments.

    The first paragraph of its docstring describes its form and its tool, the whole its verb.
    """

    name: ClassVar[str] = ""
    """The name in the audit log, `topic.create`; the tool is `create_topic`."""
    verb: ClassVar[str] = ""
    """The command without `cometmq`, if it does not follow from the name."""

    @classmethod
    def about(cls) -> str:
        """Return the first paragraph of the help."""
        return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())

    @classmethod
    def tool(cls) -> str:
        """Return the name of the tool: `create_topic`."""
        noun, _, verb = cls.name.replace("-", "_").partition(".")
        return f"{verb}_{noun}" if verb else noun

    @classmethod
    def words(cls) -> str:
        """Return the command without `cometmq`."""
        return cls.verb or cls.name.replace(".", " ")

    def command(self, **others: Any) -> str:
        """Return the command that does this, with some other arguments."""
        words: list[str] = []
        options: list[str] = []
        for it in arguments(type(self)):
            value = others.get(it.name, getattr(self, it.name))
            if it.only not in {None, Only.COMMANDS} or value == it.default:
                continue
            if it.is_positional:
                words.append(str(value))
            elif it.is_switches:
                options.append(f"--{value}")
            elif isinstance(value, bool):
                options.append(it.flag if value else it.opposite)
            else:
                many = value if isinstance(value, tuple) else [value]
                options += [word for one in many for word in (it.flag, _text(one))]
        return command(self.words(), *words, options=options)


class Change(Declared, frozen=True, kw_only=True):
    """A kind of change; its fields are its arguments."""

    risk: ClassVar[Risk] = Risk.MEDIUM
    needs: ClassVar[str] = "admin"
    """The least role of the user: `operator` or `admin`."""
    asks_if_bad: ClassVar[bool] = False
    """Whether the command line asks for confirmation only of bad consequences."""
    forced: ClassVar[str] = ""
    """The help of --force; empty if the verb has no such option."""
    is_new: ClassVar[bool] = False
    """Whether the form asks for the first argument; otherwise links give it."""
    either: ClassVar[tuple[str, ...]] = ()
    """Arguments of which at least one must be given."""
    has_form: ClassVar[bool] = True
    is_long: ClassVar[bool] = False
    """Whether the inputs are too long for an address."""

    async def plan(self, admin: AdminClient) -> Plan:
        """Check everything and return the plan; raise CometError for arguments that cannot be."""
        self.check()
        found = await self._plan(admin)
        return found._replace(command=self.command())

    def check(self) -> None:
        """Raise InvalidArgument if no argument says what to change."""
        if self.either and all(getattr(self, it) is None for it in self.either):
            flags = [it.flag for it in arguments(type(self)) if it.name in self.either]
            raise InvalidArgument(f"nothing to change: give {' or '.join(flags)}")

    async def _plan(self, admin: AdminClient) -> Plan:
        raise NotImplementedError

    @classmethod
    async def suggested(
        cls, admin: AdminClient, given: Mapping[str, str]
    ) -> Mapping[str, str | Sequence[str]]:
        """Return what a form shows for arguments that are not given: a text, or choices."""
        return {}


def _text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


class Argument(NamedTuple):
    """One argument of a change."""

    name: str
    kind: type
    """str, int, float, bool, or tuple for several texts."""
    default: Any
    """`msgspec.NODEFAULT` if it must be given."""
    help: str
    label: str
    choices: Mapping[str, str]
    """The accepted texts, each with its label; empty if all are accepted."""
    low: float | None
    high: int | None
    flags: Sequence[str]
    only: Only | None
    is_file: bool
    is_word: bool
    """Whether the command line takes it without an option although it has a default."""
    hint: Any
    """Its annotation."""

    @property
    def is_needed(self) -> bool:
        """Whether it must be given."""
        return self.default is msgspec.NODEFAULT

    @property
    def is_positional(self) -> bool:
        """Whether the command line takes it without an option."""
        return (self.is_needed or self.is_word) and not self.flags

    @property
    def is_switches(self) -> bool:
        """Whether the command line has an option for each choice."""
        return bool(self.choices) and len(self.flags) == len(self.choices)

    @property
    def flag(self) -> str:
        """The long option on the command line."""
        longs = [it for it in self.flags if it.startswith("--")]
        return longs[0] if longs else f"--{self.name.replace('_', '-')}"

    @property
    def opposite(self) -> str:
        """The option for False, if True is the default."""
        is_named = len(self.flags) > 1 and self.kind is bool
        return self.flags[1] if is_named else f"--no-{self.flag.removeprefix('--')}"


def arg(
    text: str,
    label: str = "",
    *,
    flags: str = "",
    only: Only | None = None,
    labels: Sequence[str] = (),
    is_file: bool = False,
    is_word: bool = False,
    **bounds: Any,
) -> msgspec.Meta:
    """Return the annotation of an argument: its help, its label in forms, its options.

    `flags` are the options of the command line, if they do not follow from the name.
    """
    extra = {
        "flags": flags.split(), "only": only, "labels": labels, "is_file": is_file,
        "is_word": is_word,
    }  # fmt: skip
    return msgspec.Meta(title=label or None, description=text, extra=extra, **bounds)


@cache
def arguments(kind: type[msgspec.Struct]) -> tuple[Argument, ...]:
    """Return the arguments of a change, in order."""
    return tuple(_argument(it) for it in msgspec.structs.fields(kind))


def _argument(field: Any) -> Argument:
    kind, meta = get_args(field.type)
    hint = field.type
    if get_origin(kind) in {UnionType, Union}:
        (kind,) = (it for it in get_args(kind) if it is not NoneType)
        hint = Annotated[kind, meta] | None  # msgspec takes no bounds of a union
    extra, words = meta.extra, get_args(kind) if get_origin(kind) is Literal else ()
    choices = dict(zip(words, extra["labels"] or words, strict=True))
    label = meta.title or field.name.replace("_", " ").capitalize()
    kind = str if words else get_origin(kind) or kind
    return Argument(
        field.name, kind, field.default, meta.description, label, choices, meta.ge, meta.le,
        extra["flags"], extra["only"], extra["is_file"], extra["is_word"], hint,
    )  # fmt: skip


NAME: Final = {"min_length": 1, "max_length": 255}
Topic = Annotated[str, arg("Name of the topic.", "Topic", **NAME)]
Group = Annotated[str, arg("Name of the consumer group.", "Group", **NAME)]
OnlyCluster = Annotated[
    str | None,
    arg("Only the brokers of this cluster.", flags="-c --cluster", only=Only.COMMANDS),
]
OnlyBrokers = Annotated[
    tuple[str, ...],
    arg("Only this broker; may be repeated.", flags="-b --broker", only=Only.COMMANDS),
]


async def configs_at(
    admin: AdminClient,
    masters: Mapping[str, BrokerAdmin],
    name: str,
    table_of: Callable[[BrokerAdmin], Awaitable[Mapping[str, C]]],
) -> dict[str, C]:
    """Return the settings of a topic or group on each broker that has it; all must answer."""
    tables = await admin.ask_all(masters.values(), table_of)
    return {broker.name: table[name] for broker, table in tables if name in table}
