# SPDX-License-Identifier: Apache-2.0
"""Counts the changes of a table."""


class Saves:
    """Counts how often it is called; pass it as `changed`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
