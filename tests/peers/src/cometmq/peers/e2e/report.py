# SPDX-License-Identifier: Apache-2.0
"""Writes the report of the scenarios: each figure with its limit and result, if it has a limit."""

from pathlib import Path
from typing import Final, NamedTuple

COLUMNS: Final = ("scenario", "figure", "criterion", "result")


class Line(NamedTuple):
    """One measured figure of a scenario; `limit` is the highest value that passes, if any."""

    scenario: str
    figure: str
    value: float
    limit: float | None = None
    unit: str = ""

    def cells(self) -> tuple[str, ...]:
        unit = f" {self.unit}" if self.unit else ""
        figure = f"{self.figure}: {self.value:.3g}{unit}"
        if self.limit is None:
            return self.scenario, figure, "", ""
        criterion = f"at most {self.limit:g}{unit}"
        return self.scenario, figure, criterion, "met" if self.value <= self.limit else "missed"


class Report:
    """The lines in the order of the scenarios; the file is rewritten after each scenario."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []

    def add(
        self,
        scenario: str,
        figure: str,
        value: float,
        *,
        limit: float | None = None,
        unit: str = "",
    ) -> None:
        self._lines.append(Line(scenario, figure, value, limit, unit))
        rows = [COLUMNS, ("---",) * len(COLUMNS), *(one.cells() for one in self._lines)]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join(f"| {' | '.join(row)} |\n" for row in rows))
