# SPDX-License-Identifier: Apache-2.0
"""Draws curves and bars as SVG with matplotlib; the same report always yields the same bytes.

Text is not converted to paths; it uses the browser's font. Unreferenced ids are removed, because
several drawings share one page.
"""

import io
import re
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib import dates
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cometmq.insight.words import lasting, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS: Final = {
    "critical": "#b3261e",
    "error": "#c2410c",
    "warn": "#a16207",
    "info": "#1d4ed8",
    "ok": "#15803d",
}
"""Dark enough to read on white; a label always accompanies the color."""
INK: Final = "#1f2933"
FAINT: Final = "#7b8794"
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cometmq",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # names may contain dollar signs
    "axes.edgecolor": "#cbd2d9",
    "axes.labelcolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "path.simplify": True,
}
_NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_dates: Final[Any] = dates  # untyped module
_NAME_CHARACTERS_MAX: Final = 24
_POINTS_MAX: Final = 240
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400

Points = Sequence[tuple[datetime, int]]
"""A curve as (time, value) pairs."""


def lag_curve(points: Points, severity: str, title: str) -> str:
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(4.6, 1.55)
        moments, values = _xy(points)
        axes.fill_between(moments, values, color=COLORS[severity], alpha=0.15, linewidth=0)
        axes.plot(moments, values, color=COLORS[severity], linewidth=1.6)
        axes.set_ylim(bottom=0, top=max(1, *values) * 1.12)
        axes.set_xlim(moments[0], moments[-1])
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: short(y)))
        axes.xaxis.set_major_locator(_dates.AutoDateLocator(minticks=3, maxticks=6))
        axes.xaxis.set_major_formatter(_dates.DateFormatter(_date_form(points), tz=UTC))
        _plain(axes)
        return _svg(figure, title)


def spark_line(points: Points, severity: str, title: str) -> str:
    """Draw a curve without axes, sized for a table row."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(1.5, 0.34)
        moments, values = _xy(points)
        axes.fill_between(moments, values, color=COLORS[severity], alpha=0.15, linewidth=0)
        axes.plot(moments, values, color=COLORS[severity], linewidth=1.4)
        axes.set_ylim(bottom=0, top=max(1, *values) * 1.15)
        axes.set_axis_off()
        return _svg(figure, title)


def loss_bars(rows: Sequence[tuple[str, float, str]], title: str) -> str:
    """Draw the time until data loss per group; rows are (name, seconds, severity)."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(5.4, 0.45 + 0.27 * len(rows))
        places = range(len(rows), 0, -1)
        seconds = [left for _, left, _ in rows]
        scale = _DAY_S if max(seconds) > 2 * _DAY_S else _HOUR_S
        axes.barh(
            places,
            [left / scale for left in seconds],
            height=0.62,
            color=[COLORS[severity] for *_, severity in rows],
        )
        for place, left in zip(places, seconds, strict=True):
            words = lasting(left) if left > 0 else "now"
            axes.annotate(
                words,
                (left / scale, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=INK,
            )
        axes.set_yticks(list(places), [_short(name) for name, *_ in rows])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xlim(0, max(1.0, *(left / scale for left in seconds)) * 1.3)
        axes.set_ylim(0.4, len(rows) + 0.6)
        axes.set_xlabel("days" if scale == _DAY_S else "hours")
        _plain(axes)
        return _svg(figure, title)


def _short(name: str) -> str:
    """Shorten a name in the middle, to leave room for its bar."""
    whole = name if name.isprintable() else ascii(name)[1:-1]
    if len(whole) <= _NAME_CHARACTERS_MAX:
        return whole
    half = _NAME_CHARACTERS_MAX // 2
    return f"{whole[:half]}\N{HORIZONTAL ELLIPSIS}{whole[1 - half :]}"


def _figure(width: float, height: float) -> tuple[Figure, "Axes"]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    return figure, axes


def _xy(points: Points) -> tuple[list[Any], list[int]]:
    drawn = _thinned(points)
    return [when.astimezone(UTC) for when, _ in drawn], [value for _, value in drawn]


def _thinned(points: Points) -> Points:
    """Reduce a curve to about one point per pixel, keeping the peaks and both ends."""
    each = -(-len(points) // _POINTS_MAX)
    if each < 2:
        return points
    inner = points[1:-1]
    parts = (inner[first : first + each] for first in range(0, len(inner), each))
    peaks = [max(part, key=lambda point: point[1]) for part in parts]
    return [points[0], *peaks, points[-1]]


def _date_form(points: Points) -> str:
    length_s = (points[-1][0] - points[0][0]).total_seconds()
    if length_s <= 10 * 60:
        return "%H:%M:%S"
    return "%H:%M" if length_s <= 36 * _HOUR_S else "%d %b"


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2)


def _svg(figure: Figure, title: str) -> str:
    out = io.StringIO()
    with warnings.catch_warnings():
        # Our font only measures the text; the browser has the glyphs that our font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    return text.replace("<svg ", f'<svg role="img" aria-label="{_attribute(title)}" ', 1).strip()


def _attribute(text: str) -> str:
    for mark, name in (("&", "&amp;"), ("<", "&lt;"), ('"', "&quot;")):
        text = text.replace(mark, name)
    return text
