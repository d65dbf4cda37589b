# SPDX-License-Identifier: Apache-2.0
"""Collects invalid settings, so that a program reports all of them at once."""

from collections.abc import Callable
from typing import TypeVar

from cometmq.remoting.errors import SettingsError

T = TypeVar("T")


class Faults:
    """Faults in settings; each is one line that gives a setting, its value and its origin."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, line: str) -> None:
        """Add a fault, unless the same line has already been added."""
        self._lines[line] = None

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of `step`, or add the faults of its SettingsError and return None."""
        try:
            return step()
        except SettingsError as error:
            for line in str(error).splitlines():
                self.add(line)
            return None

    def raise_all(self) -> None:
        """Raise one SettingsError with a line per fault, if there are any."""
        if self._lines:
            raise SettingsError("\n".join(self._lines))
