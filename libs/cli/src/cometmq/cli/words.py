# SPDX-License-Identifier: Apache-2.0
"""Words in tables and errors that depend on a number."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 1,000 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
