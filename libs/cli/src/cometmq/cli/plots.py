# SPDX-License-Identifier: Apache-2.0
"""Plots for a terminal: a line of block characters for the newest values of a figure."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = " "
LOOKS_SHOWN: Final = 16


def sparkline(values: Iterable[float | None]) -> str:
    """Return a character for each value; the scale begins at 0, and None is a gap."""
    values = list(values)
    most = max((it for it in values if it is not None), default=0)
    return "".join(GAP if it is None else _block(it, most) for it in values)


def _block(value: float, most: float) -> str:
    share = value / most if most > 0 else 0
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))]


class Trends:
    """The newest `looks_max` values of a figure, by row; a row that the newest snapshot lacks is
    forgotten.
    """

    def __init__(self, looks_max: int = LOOKS_SHOWN) -> None:
        self._looks_max = looks_max
        self._lines: dict[Hashable, deque[float | None]] = {}

    def note(self, figures: Iterable[tuple[Hashable, float | None]]) -> None:
        """Add the values of one snapshot."""
        before, self._lines = self._lines, {}
        for key, value in figures:
            line = before.get(key)
            self._lines[key] = line = deque(maxlen=self._looks_max) if line is None else line
            line.append(value)

    def line(self, key: Hashable) -> str:
        """Return the plot of a row; empty if there is none."""
        return sparkline(self._lines.get(key, ()))
