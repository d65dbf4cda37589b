# SPDX-License-Identifier: Apache-2.0
"""Times in the options of mqadmin's commands."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import wrong_usage
from cometmq.client.admin.broker_consumers import END
from cometmq.client.clock import wall_ms
from cometmq.client.errors import InvalidArgument
from cometmq.insight import times
from cometmq.remoting.integers import whole

FORMS: Final = "milliseconds since 1970, 2026-11-20#10:00:00:000 or 90m (ago)"

FIRST_MS_MAX: Final = 1_000  # a time in the first second of 1970 means the first message

Begin = Annotated[
    str | None,
    typer.Option("-b", "--beginTimestamp", help=f"Only messages stored since this time: {FORMS}."),
]
End = Annotated[
    str | None,
    typer.Option("-e", "--endTimestamp", help=f"Only messages stored before this time: {FORMS}."),
]


def moment(text: str) -> int:
    """Return a time; `now` and -1 stand for the END of a queue.

    Scripts that were written for mqadmin give 0 or 1 for the first message. Larger numbers before
    1973 are rejected, because they are seconds or offsets.
    """
    if text in {"now", "-1"}:
        return END
    number = whole(text)
    if number is not None and number < FIRST_MS_MAX:
        return 0
    try:
        return times.parsed(text, now_ms=wall_ms())
    except InvalidArgument as error:
        raise wrong_usage(str(error)) from error


def past_moment(text: str | None, option: str) -> int | None:
    """Return a time; refuse a time in the future."""
    if text is None:
        return None
    found = moment(text)
    if found > wall_ms():
        raise wrong_usage(f"{option}: {text} is in the future")
    return found
