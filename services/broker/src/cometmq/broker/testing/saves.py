# SPDX-License-Identifier: Apache-2.0
"""What a table tells its broker, counted."""


class Saves:
    """Counts how often a table says that it changed."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.count = 0

    def __call__(self) -> None:
        """Count a change."""
        self.count += 1
