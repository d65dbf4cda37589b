# SPDX-License-Identifier: Apache-2.0
"""The analysis of a topic from a sample of its messages, and the cloning of a topic."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.console.login.roles import Role
from cometmq.console.pages.topics import PATH, permission
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import Problem, bad
from cometmq.console.web.tables import Column
from cometmq.insight.words import command, listed

if TYPE_CHECKING:
    from cometmq.insight.sampling.figures import Figures, Names
    from cometmq.insight.sampling.reading import Analysis, QueueShare

SAMPLES: Final = (1_000, 5_000, 20_000)
BYTES_MAX: Final = 128 << 20
TIME_MS: Final = 8_000

QUEUES: "Final[list[Column[QueueShare]]]" = [
    Column("broker", "Broker", lambda it: it.broker),
    Column("queue", "Queue", lambda it: it.queue, "number"),
    Column("messages", "Messages", lambda it: it.messages, "number"),
    Column("sampled", "In the sample", lambda it: it.sampled, "number"),
]


async def analysis(view: View) -> Shown:
    """Read a sample of a topic and show its statistics."""
    from cometmq.insight.sampling.bounds import Bounds  # noqa: PLC0415  # 0.1 MB, rarely needed
    from cometmq.insight.sampling.reading import analyse  # noqa: PLC0415

    name = view.needed("name")
    await view.check_readable(name)
    wanted = view.number("sample", SAMPLES[0], low=1, high=SAMPLES[-1])
    since = view.text("since")
    begin_ms = view.moment("since", now_ms=wall_ms())
    bounds = Bounds(count_max=wanted, bytes_max=BYTES_MAX, time_ms=TIME_MS, begin_ms=begin_ms)
    if view.desk.analyses.locked():
        text = "other samples are being read: try again in a few seconds"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, text, title="The console is busy")
    async with view.desk.analyses:
        found = await analyse(view.admin(), name, bounds)
    options = ["--sample", str(wanted), *(["--since", since] if since else [])]
    return Shown(
        found,
        command("topic analyse", name, options=options),
        wall_ms(),
        found.unanswered,
        extra={
            "found": found,
            "figures": found.figures,
            "lines": _lines(found.figures),
            "kinds": _kinds(found),
            "widest": max((it.count for it in found.figures.bars), default=0),
            "samples": SAMPLES,
            "wanted": wanted,
            "since": since,
            "queues": view.table(
                found.queues, QUEUES, default="broker", search=lambda it: it.broker,
                keep=("name", "sample", "since"), name="queue_",
            ),
        },
        title=f"Messages of {name}",
        refresh_s=60,
    )  # fmt: skip


def _lines(figures: "Figures") -> list[tuple[str, int, int, int]]:
    """Return the percentiles of sizes, ages and keys, side by side."""
    words = {0: "least", 50: "median", 100: "most"}
    return [
        (words.get(int(size.percent), f"{size.percent:g} %"), size.value, age.value, keys.value)
        for size, age, keys in zip(
            figures.sizes, figures.ages_s, figures.keys_per_message, strict=True
        )
    ]


def _kinds(found: "Analysis") -> "list[tuple[str, Names]]":
    figures = found.figures
    return [
        ("Keys", figures.keys), ("Tags", figures.tags), ("Producers", figures.hosts),
        ("Properties", figures.properties),
    ]  # fmt: skip


async def prepare(view: View) -> Form:
    """Plan the clone: a topic with the settings of another one."""
    name, new = view.needed("name"), view.text("to")
    fields = [
        Field("name", "Topic", "hidden", name),
        Field("to", "Name of the new topic", value=new, is_needed=True),
    ]
    if not new:
        return Form(fields, intro=f"Messages and groups of {name} are not copied.")
    from cometmq.insight.definitions.cloning import clone, prepare_clone  # noqa: PLC0415  # as above

    try:
        found = await prepare_clone(view.admin(), name, new)
    except ClientError as error:
        raise bad(str(error)) from error

    async def perform(admin: AdminClient) -> str:
        await clone(admin, found)
        return f"The topic {new} exists now, with the settings of {name}."

    settings = {
        broker: f"{it.read_queue_nums} read, {it.write_queue_nums} written, {permission(it.perm)}"
        for broker, it in sorted(found.configs.items())
    }
    return Form(
        fields,
        Plan(
            what=f"Create the topic {new} like {name}",
            subject=new,
            before={},
            after=settings,
            compared=settings,
            consequences=[Consequence(f"It is created on {listed(sorted(settings))}.")],
            command=command("topic clone", name, new),
            perform=perform,
            leads_to=view.href("/topic", name=new),
        ),
    )


PAGES: Final = (Page("/topic/analysis", "Messages", "analysis.html", analysis, section=PATH),)
ACTIONS: Final = (
    Action("topic.clone", "/topic/clone", "Clone the topic", Role.ADMIN, Risk.LOW, prepare,
           section=PATH),
)  # fmt: skip
