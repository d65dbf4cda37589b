# SPDX-License-Identifier: Apache-2.0
"""Plots of the history on a page, for the time that the user chooses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from cometmq.console.web.page import View
from cometmq.insight.plots import Line, line_plot

HOURS: Final = (1, 6, 24, 72, 168, 336)
HOURS_DEFAULT: Final = 6
"""The period that is shown by default, or less if the history is younger."""


class Drawing(NamedTuple):
    """One plot to draw: its title, the format of its values, and the history's key of each line."""

    title: str
    text: Callable[[float], str]
    lines: Mapping[str, str]


class Drawn(NamedTuple):
    """A drawn plot, and the names of its lines."""

    title: str
    svg: Markup
    names: Sequence[str]


async def plots(view: View, drawings: Sequence[Drawing]) -> dict[str, Any]:
    """Return the values for the template `plots.html`."""
    hours = view.number("hours", HOURS_DEFAULT, low=1, high=24 * 366)
    end_ms = view.desk.clock.now_ms()
    begin_ms = end_ms - hours * 3_600_000
    keys = [key for drawing in drawings for key in drawing.lines.values()]
    found = await view.desk.history.lines(keys, begin_ms, end_ms)
    if not view.text("hours"):
        oldest_ms = min((line[0][0] for line in found.values() if line), default=begin_ms)
        if oldest_ms >= end_ms - HOURS[0] * 3_600_000:
            hours, begin_ms = HOURS[0], end_ms - HOURS[0] * 3_600_000
    drawn, empty = [], []
    for it in drawings:
        lines = [Line(name, found[key]) for name, key in it.lines.items()]
        if not any(value is not None for line in lines for _, value in line.points):
            empty.append(it.title)
            continue
        svg = line_plot(lines, begin_ms, end_ms, title=it.title, text=it.text)
        drawn.append(Drawn(it.title, Markup(svg), list(it.lines)))  # noqa: S704  # it is escaped
    kept = {name: text for name, text in view.given().items() if name not in ("hours", "json")}
    return {
        "plots": drawn,
        "empty_plots": empty,
        "hours": hours,
        "hour_choices": HOURS,
        "plot_args": kept,
    }
