# SPDX-License-Identifier: Apache-2.0
"""What a run says, and what it found."""

import sys
from collections.abc import Iterable
from typing import Final

SHOWN_MAX: Final = 20


class Findings:
    """What is wrong: all of it is counted, the first of it is kept."""

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self.count = 0
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Take a finding."""
        self.count += 1
        if len(self.texts) < SHOWN_MAX:
            self.texts.append(text)

    def add_all(self, texts: Iterable[str]) -> None:
        """Take several."""
        for text in texts:
            self.add(text)

    def show(self) -> None:
        """Print them."""
        for text in self.texts:
            say(f"FOUND: {text}")
        if self.count > len(self.texts):
            say(f"FOUND: {self.count - len(self.texts)} more")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
