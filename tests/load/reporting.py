# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of a run and collects its findings."""

import sys
from collections.abc import Iterable
from typing import Final

SHOWN_MAX: Final = 20


class Findings:
    """Counts all findings, and keeps the first SHOWN_MAX of them."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.texts) < SHOWN_MAX:
            self.texts.append(text)

    def add_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.add(text)

    def show(self) -> None:
        for text in self.texts:
            say(f"FOUND: {text}")
        if self.count > len(self.texts):
            say(f"FOUND: {self.count - len(self.texts)} more")


def say(text: str) -> None:
    """Print a line and flush, so that the progress of long runs is visible."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
