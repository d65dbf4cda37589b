# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic analyse`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask
from cometmq.cli.output import AsJson, Cell, print_facts, print_json, print_notes, print_rows
from cometmq.client.clock import wall_ms
from cometmq.insight import times
from cometmq.insight.words import lasting, sized

if TYPE_CHECKING:
    from cometmq.insight.sampling.figures import Names, Point
    from cometmq.insight.sampling.reading import Analysis


def analyse_topic(  # one parameter per option
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=100_000, help="Read about so many messages.")
    ] = 5_000,
    since: Annotated[
        str | None, typer.Option("--since", help="Only messages stored since then: 90m, 1d.")
    ] = None,
    bytes_max: Annotated[
        int, typer.Option("--max-mib", min=1, help="Read at most so many MiB.")
    ] = 256,
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Read for at most so many seconds.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what a topic's messages are like: sizes, ages, keys, tags, producers, properties.

    The figures are of a sample, which is spread over all queues and their whole length; a small
    topic is read whole. Nothing is committed.

    \b
    EXAMPLE
      cometmq topic analyse orders --since 1d --sample 20000
    """
    begin_ms = times.parsed(since, now_ms=wall_ms()) if since else None
    count = 0

    def note(read: int) -> None:
        nonlocal count
        count = read

    async def question(admin: CommandAdmin) -> "Analysis":
        # Only this command needs them.
        from cometmq.cli.meter import live  # noqa: PLC0415
        from cometmq.insight.sampling.bounds import Bounds  # noqa: PLC0415
        from cometmq.insight.sampling.reading import analyse  # noqa: PLC0415

        bounds = Bounds(
            count_max=sample,
            bytes_max=bytes_max << 20,
            time_ms=int(seconds * 1_000),
            begin_ms=begin_ms,
        )
        async with live(lambda: f"{count:,} messages read"):
            return await analyse(admin, topic, bounds, progress=note)

    found = ask(namesrv, question, limit_s=seconds)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)
    print_notes([f"the sample is smaller than wanted: {found.ended}"] if found.ended else [])
    print_notes(f"queue {place} was not read: {why}" for place, why in found.unanswered.items())
    if found.unanswered:
        raise typer.Exit(1)


def _print(found: "Analysis") -> None:
    figures = found.figures
    how = "all" if found.is_whole else f"a sample of {figures.messages:,}"
    facts: dict[str, Cell] = {
        "messages": f"{found.messages:,} ({how})",
        "stored": None if found.per_s is None else f"{found.per_s:,.1f}/s on average",
        "mean_size": sized(figures.mean_bytes),
        "damaged": figures.damaged,
    }
    print_facts(facts, as_json=False, title=found.topic)
    if not figures.messages:
        return
    columns = ("Percentile", "Body", "Age", "Keys")
    lines = zip(figures.sizes, figures.ages_s, figures.keys_per_message, strict=True)
    print_rows(
        columns,
        [
            [_percent(size), sized(size.value), lasting(age.value), keys.value]
            for size, age, keys in lines
        ],
        as_json=False,
    )
    kinds = {
        "Key": figures.keys,
        "Tag": figures.tags,
        "Producer": figures.hosts,
        "Property": figures.properties,
    }
    rows = [row for kind, names in kinds.items() for row in _names(kind, names, figures.messages)]
    print_rows(("Kind", "Name", "Messages", "Share"), rows, as_json=False)


def _percent(point: "Point") -> str:
    words = {0: "least", 50: "median", 100: "most"}
    return words.get(int(point.percent), "") or f"{point.percent:g} %"


def _names(kind: str, names: "Names", messages: int) -> Iterator[list[Cell]]:
    """Return the frequent names of a kind, and how many there are."""
    for it in names.top:
        yield [kind, it.name, it.count, f"{it.count / messages:.1%}"]
    rest = names.different - len(names.top)
    if rest > 0:
        yield [kind, f"{rest:,} others" + (" or more" if names.is_cut else ""), None, None]
    if names.messages < messages:
        without = messages - names.messages
        yield [kind, "none", without, f"{without / messages:.1%}"]
