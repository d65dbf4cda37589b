# SPDX-License-Identifier: Apache-2.0
"""The options that select dead letters."""

from typing import Annotated

import typer

from cometmq.cli.option_sets import OptionSet
from cometmq.client.clock import wall_ms
from cometmq.insight import times
from cometmq.insight.dead_letters import Choice


class Selection(OptionSet, frozen=True, kw_only=True):
    """The options that select some of a group's dead letters."""

    tag: Annotated[str | None, typer.Option("--tag", help="Only messages with this tag.")] = None
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key.")] = None
    origin: Annotated[
        str | None, typer.Option("--origin", help="Only messages originally sent to this topic.")
    ] = None
    message_id: Annotated[
        str | None, typer.Option("--id", help="Only the message with this original message id.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Only messages dead-lettered since 2026-11-20T10:00Z, or 90m (ago)."
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Only messages dead-lettered before this time.")
    ] = None


def chosen(options: Selection, count_max: int | None) -> Choice:
    """Return the choice that these options make; relative times count from now."""
    now_ms = wall_ms()
    begin_ms = None if options.since is None else times.parsed(options.since, now_ms=now_ms)
    end_ms = None if options.until is None else times.parsed(options.until, now_ms=now_ms)
    return Choice(
        options.tag, options.key, options.origin, options.message_id, begin_ms, end_ms, count_max
    )
