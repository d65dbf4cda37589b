# SPDX-License-Identifier: Apache-2.0
"""A large unit of messages that is placed in steps; between two steps, its caller can do other
work.

Until the unit is stored, nothing else is placed, because its records must be contiguous. Other puts
are staged meanwhile.
"""

from collections.abc import Generator, Iterator
from typing import Final, TypeAlias

from cometmq.store.writing.append import Batch

WRITE_BYTES: Final = 1 << 20
"""As soon as the collected records have this size, a step writes them, which takes 2 to 4 ms."""

StoreSteps: TypeAlias = Generator[None, None, Batch | None]


class Placing:
    """A unit that is being placed."""

    __slots__ = ("_steps", "batch", "is_done")

    def __init__(self, steps: StoreSteps) -> None:
        self._steps = steps
        self.is_done = False
        self.batch: Batch | None = None
        """The commit that contains the unit; None before it is done, or if nothing was stored."""

    def step(self) -> None:
        """Place some of the messages; the last step stores all of them."""
        if self.is_done:
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self.is_done, self.batch = True, end.value
        except BaseException:
            self.is_done = True
            raise

    def finish(self) -> None:
        """Run all remaining steps."""
        while not self.is_done:
            self.step()


def parts_to_write(batch: Batch) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the records of each write, with the physical offset of the first."""
    for segment_offset, records in batch.segments:
        offset, part, size = segment_offset, [], 0
        for record in records:
            part.append(record)
            size += len(record)
            if size >= WRITE_BYTES:
                yield offset, part
                offset, part, size = offset + size, [], 0
        if part:
            yield offset, part
