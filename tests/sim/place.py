# SPDX-License-Identifier: Apache-2.0
"""Simulates the store that holds the record: linearizable, sometimes slow, unreachable or silent.

A write may be answered with UNKNOWN because the request was lost, because the answer was lost, or
because the request takes effect later. A read returns the record as of some moment between the call
and its answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from tests.sim.kernel import ProcessLoop, Scheduler
from tests.sim.network import Network

from cometmq.ha import record as records
from cometmq.ha.port import CONFLICT, UNKNOWN, Outcome, RecordUnreachable, applied
from cometmq.ha.record import Record, Versioned

NAME: Final = "record"
TIMEOUT_S: Final = 0.6
WATCH_S: Final = 0.5


class Place:
    """One record, with the faults that the seed chooses."""

    def __init__(self, scheduler: Scheduler, network: Network, note: Callable[..., None]) -> None:
        self.current: Versioned | None = None
        self.past_holders: list[tuple[int, int]] = []
        """Each epoch with the ordinal of its holder, oldest first."""
        self.unknown_chance = 0.0
        """Probability that a write goes unanswered even though the store is reachable."""
        self.broker_unknown_chance = 0.0
        """The same probability for writes by brokers, throughout the run."""
        self.lands_chance = 0.3
        """Probability that such a write takes effect at once."""
        self.late_s = 3.0
        """Maximum delay after which such a write takes effect."""
        self.is_slow = False
        self._scheduler = scheduler
        self._network = network
        self._note = note
        self._writes = 0
        self._watchers: list[tuple[str, ProcessLoop, asyncio.Event]] = []

    def port(self, loop: ProcessLoop, host: str) -> "SimPort":
        return SimPort(self, self._network, loop, host)

    def delete(self) -> None:
        """Delete the record, as an administrator might; versions may then start over."""
        self.current = None
        if self._scheduler.random.random() < 0.5:
            self._writes = 0
        self._changed()

    def replace(self, base: Versioned, record: Record) -> Outcome:
        if not records.may_replace(self.current, base, record):
            return CONFLICT
        return self._write(record)

    def create(self, record: Record) -> Outcome:
        return CONFLICT if self.current is not None else self._write(record)

    def _write(self, record: Record) -> Outcome:
        self._writes += 1
        outcome = applied(record, str(self._writes))
        before, self.current = self.current, outcome.written
        if before is None or before.record.epoch != record.epoch:
            self.past_holders.append((record.epoch, record.holder.ordinal))
        old = before.record if before is not None else None
        if old is None or (old.epoch, old.in_sync, old.copies) != (
            record.epoch, record.in_sync, record.copies,
        ):  # fmt: skip
            self._note(
                NAME, "written", epoch=record.epoch, holder=record.holder,
                in_sync=record.in_sync, copies=record.copies,
            )  # fmt: skip
            self._changed()  # watchers merge renewals
        return outcome

    def _changed(self) -> None:
        for host, loop, event in self._watchers:
            self._network.send(NAME, host, partial(loop.call_soon, event.set))

    def watch(self, host: str, loop: ProcessLoop, event: asyncio.Event) -> None:
        self._watchers = [one for one in self._watchers if not one[1].is_dead]
        self._watchers.append((host, loop, event))

    def delay(self) -> float:
        """Return the time that the store takes for a request."""
        return self._scheduler.random.random() * (0.8 if self.is_slow else 0.002)


class SimPort:
    """One process's access to the record."""

    def __init__(self, place: Place, network: Network, loop: ProcessLoop, host: str) -> None:
        self._place = place
        self._network = network
        self._loop = loop
        self._host = host
        self._scheduler = place._scheduler

    async def read(self) -> Versioned | None:
        future = self._loop.create_future()

        def answer(found: Versioned | None) -> None:
            if not future.done():
                future.set_result(found)

        def reply() -> None:
            found = self._place.current
            self._network.send(NAME, self._host, partial(self._loop.call_soon, answer), found)

        self._network.send(
            self._host, NAME, lambda: self._scheduler.after(self._place.delay(), reply)
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await future
        except TimeoutError:
            raise RecordUnreachable("the record does not answer") from None

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        return await self._write(lambda: self._place.replace(base, record))

    async def create(self, record: Record) -> Outcome:
        return await self._write(lambda: self._place.create(record))

    async def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the current record, then each change, while the store can be reached."""
        event = asyncio.Event()
        self._place.watch(self._host, self._loop, event)
        last: tuple[Versioned | None] | None = None
        while True:
            found = self._place.current
            if self._is_reachable() and last != (found,):
                last = (found,)
                yield found
            try:
                async with asyncio.timeout(WATCH_S):
                    await event.wait()
            except TimeoutError:
                continue
            event.clear()

    async def close(self) -> None:
        """Do nothing."""

    def _is_reachable(self) -> bool:
        network = self._network
        return network.is_open(self._host, NAME) and network.is_open(NAME, self._host)

    async def _write(self, write: Callable[[], Outcome]) -> Outcome:
        future = self._loop.create_future()
        random, place = self._scheduler.random, self._place
        chance = place.unknown_chance
        if self._host.startswith("b"):
            chance = max(chance, place.broker_unknown_chance)
        is_unknown = bool(chance) and random.random() < chance

        def answer(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def land() -> None:
            outcome = write()
            if not is_unknown:
                arrive = partial(self._loop.call_soon, answer)
                self._network.send(NAME, self._host, arrive, outcome)

        def arrive() -> None:
            delay = place.delay()
            if is_unknown and random.random() >= place.lands_chance:
                if random.random() < 0.4:
                    return
                delay += random.random() * place.late_s
            self._scheduler.after(delay, land)

        self._network.send(self._host, NAME, arrive)
        try:
            async with asyncio.timeout(TIMEOUT_S if not is_unknown else TIMEOUT_S / 4):
                return await future
        except TimeoutError:
            return UNKNOWN
