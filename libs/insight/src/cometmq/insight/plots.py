# SPDX-License-Identifier: Apache-2.0
"""Line plots as SVG for the console and for reports: no script, colours from the style sheet."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from math import isfinite
from typing import Final, NamedTuple

from cometmq.insight.words import lasting
from cometmq.remoting.visible import visible

WIDTH: Final = 480
HEIGHT: Final = 170
_LEFT: Final = 64
_RIGHT: Final = 10
_TOP: Final = 12
_BOTTOM: Final = 24
_MINUTE_MS: Final = 60_000
_STEPS_MS: Final = tuple(
    minutes * _MINUTE_MS
    for minutes in (1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400)
)
_NICE_MAX: Final = 1e300
_DAY_S: Final = 86_400
_DURATIONS_S: Final = (
    2, 10, 20, 60, 120, 600, 1_200, 3_600, 7_200, 14_400, 43_200, _DAY_S, 2 * _DAY_S,
)  # fmt: skip
LINES_MAX: Final = 6
"""The most lines of a plot; the style sheet has this number of colours."""


class Line(NamedTuple):
    """One line: its name and its points (time in ms, value); a value of None interrupts it."""

    name: str
    points: Sequence[tuple[int, float | None]]


def line_plot(
    lines: Sequence[Line],
    begin_ms: int,
    end_ms: int,
    *,
    title: str,
    text: Callable[[float], str],
) -> str:
    """Draw lines over time, of which one has a value; `text` writes one of the vertical axis."""
    lines = [Line(line.name, _finite(line.points)) for line in lines[:LINES_MAX]]
    values = [value for line in lines for _, value in line.points if value is not None]
    nice = _nice_duration if text is lasting else _nice
    top = nice(max(values, default=0.0))
    span_ms = max(1, end_ms - begin_ms)

    def x(at_ms: int) -> float:
        return _LEFT + (at_ms - begin_ms) / span_ms * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    newest = "; ".join(f"{line.name}: {text(_newest(line))}" for line in lines if line.points)
    label = f"{title}. Newest values: {newest}"
    box, label = f"0 0 {WIDTH} {HEIGHT}", _escaped(label)
    parts = [f'<svg class="plot" viewBox="{box}" role="img" aria-label="{label}">']
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">'
            f"{_escaped(text(top * share))}</text>"
        )
    parts += [
        f'<text x="{x(at_ms):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{label_}</text>'
        for at_ms, label_ in _ticks(begin_ms, end_ms)
    ]
    for number, line in enumerate(lines):
        path = _path(line.points, x, y)
        parts.append(f'<path class="line line{number}" d="{path}"><title>{_escaped(line.name)}')
        parts.append("</title></path>")
    parts.append("</svg>")
    return "".join(parts)


def spark_line(values: Sequence[float], title: str) -> str:
    """Draw a line without axes, for a cell of a table."""
    top, step = max(1.0, *values) * 1.15, WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{HEIGHT * (1 - value / top):.1f}" for at, value in enumerate(values)
    )
    return (
        f'<svg class="plot small" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
        f' role="img" aria-label="{_escaped(title)}"><polyline class="line line0"'
        f' points="{points}"/></svg>'
    )


def _escaped(text: str) -> str:
    return escape(visible(text))


def _finite(points: Sequence[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Replace NaN and infinity, which Prometheus may return, by None, which interrupts the line."""
    return [
        (at_ms, value if value is not None and isfinite(value) else None) for at_ms, value in points
    ]


def _path(
    points: Sequence[tuple[int, float | None]],
    x: Callable[[int], float],
    y: Callable[[float], float],
) -> str:
    parts = []
    is_drawn = False
    for at_ms, value in points:
        if value is not None:
            parts.append(f"{'L' if is_drawn else 'M'}{x(at_ms):.1f} {y(value):.1f}")
            if not is_drawn:
                parts.append("h0.1")  # a lone point is visible too
        is_drawn = value is not None
    return "".join(parts)


def _newest(line: Line) -> float:
    return next((value for _, value in reversed(line.points) if value is not None), 0.0)


def _nice(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, if there is such a number."""
    if not 0 < value < _NICE_MAX:
        return max(value, 0.0) or 1.0
    scale = 1.0
    while scale < value:
        scale *= 10
    while scale / 10 >= value:
        scale /= 10
    return next(scale * share for share in (0.1, 0.2, 0.5, 1.0) if scale * share >= value)


def _nice_duration(seconds: float) -> float:
    """Round up to a time whose half is also short to write, such as an hour or ten minutes."""
    if seconds <= 1:
        return _nice(seconds)
    days = 2 * _nice(seconds / (2 * _DAY_S))
    return next((it for it in _DURATIONS_S if it >= seconds), days * _DAY_S)


def _ticks(begin_ms: int, end_ms: int) -> list[tuple[int, str]]:
    span_ms = end_ms - begin_ms
    step_ms = next((step for step in _STEPS_MS if span_ms / step <= 5), _STEPS_MS[-1])
    form = "%H:%M" if span_ms <= 1440 * _MINUTE_MS else "%d %b %H:%M"
    first_ms = -(-begin_ms // step_ms) * step_ms
    return [
        (at_ms, datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(form))
        for at_ms in range(first_ms, end_ms, step_ms)
    ]
