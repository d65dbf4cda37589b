# SPDX-License-Identifier: Apache-2.0
"""Words whose form depends on a number, in tables and errors."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 1,000 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
