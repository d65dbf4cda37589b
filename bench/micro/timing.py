# SPDX-License-Identifier: Apache-2.0
"""Time small operations in many short rounds, and print the best round with its budget."""

import timeit
from collections.abc import Callable, Mapping
from typing import Final

ROUNDS: Final = 300
CALLS: Final = 500

Operation = tuple[Callable[[], object], int | None]


def nanoseconds(operation: Callable[[], object]) -> int:
    """Return the time of one call, minus the time of a call to an empty function."""
    empty = min(timeit.repeat(lambda: None, number=CALLS, repeat=ROUNDS))
    best = min(timeit.repeat(operation, number=CALLS, repeat=ROUNDS))
    return max(0, round((best - empty) / CALLS * 1e9))


def compare_and_print(operations: Mapping[str, Operation]) -> None:
    """Print one line per operation: its name, its time in nanoseconds, and its budget."""
    for name, (operation, budget) in operations.items():
        taken = nanoseconds(operation)
        note = "" if budget is None else f"budget {budget:6d}{'' if taken <= budget else '  OVER'}"
        print(f"{name:32s}{taken:8d} ns  {note}".rstrip())
