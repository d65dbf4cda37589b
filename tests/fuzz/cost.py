# SPDX-License-Identifier: Apache-2.0
"""The most expensive inputs: CPU time per byte in decoders, time until the answer at servers."""

import time
from typing import Final, NamedTuple

SMALL_BYTES: Final = 256
"""Smaller inputs count as this: a fixed cost per request is no finding."""
SHOWN: Final = 3


class Cost(NamedTuple):
    """What one input took; costs compare by time per byte."""

    us_per_byte: float
    name: str
    elapsed_ms: float
    size: int

    @classmethod
    def of(cls, name: str, elapsed_s: float, size: int) -> "Cost":
        """Return the cost of an input of this size."""
        per_byte = elapsed_s * 1e6 / max(size, SMALL_BYTES)
        return cls(per_byte, name, elapsed_s * 1e3, size)

    def __str__(self) -> str:
        """Return the cost as a line of the report."""
        return (
            f"{self.name} {self.us_per_byte:.2f} us per byte"
            f" ({self.elapsed_ms:.1f} ms for {self.size} bytes)"
        )


class Worst:
    """The worst cost of each kind of input."""

    def __init__(self) -> None:
        self._worst: dict[str, Cost] = {}

    def note(self, cost: Cost) -> None:
        known = self._worst.get(cost.name)
        if known is None or cost > known:
            self._worst[cost.name] = cost

    def note_input(self, name: str, began_s: float, data: bytes) -> None:
        """Note an input that was answered now; `began_s` is of `time.perf_counter`."""
        self.note(Cost.of(name, time.perf_counter() - began_s, len(data)))

    def costs(self) -> list[Cost]:
        """Return the costs, the worst first."""
        return sorted(self._worst.values(), reverse=True)

    def __str__(self) -> str:
        """Return the worst costs as one line."""
        return "; ".join(map(str, self.costs()[:SHOWN]))
