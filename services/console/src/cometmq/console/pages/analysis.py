# SPDX-License-Identifier: Apache-2.0
"""The analysis of a topic from a sample of its messages."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cometmq.client.clock import wall_ms
from cometmq.console.pages.topics import PATH
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import Problem
from cometmq.insight.views.view import Column
from cometmq.insight.words import command

if TYPE_CHECKING:
    from cometmq.insight.sampling import Analysis, Figures, Names, QueueShare

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
    # 0.1 MB, rarely needed
    from cometmq.insight.sampling import Bounds, analyse  # noqa: PLC0415

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


PAGES: Final = (Page("/topic/analysis", "Messages", "analysis.html", analysis, section=PATH),)
