# SPDX-License-Identifier: Apache-2.0
"""Detects brokers that leave sends unanswered, and ends these sends so that they can be retried.

A frozen machine or a cut cable does not close connections. Sends to such a broker would wait until
they time out, even if another member of its group is already master. The new master may have the
address of the old one: then, only a new connection leads to it.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cometmq.client.cluster.routes import Route
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet

if TYPE_CHECKING:
    from cometmq.client.cluster.instance import ClientInstance

T = TypeVar("T")

TICK_MS: Final = 250
LATE_TICKS: Final = 3
"""Sends are late after this many ticks without an answer. The first tick may follow the send at
once, so at least two whole intervals pass.

Ticks are counted instead of time, so that a client that was itself suspended blames no broker.
"""
SHORT_MS: Final = 2_700
"""Sends with a shorter timeout are late sooner, and probed faster, in proportion to it. The default
of 3 s, less what precedes a send, is not short.
"""
PACE_PER_MS: Final = 0.75 / 3_000
"""Leaves a retry over a new connection a third of a short timeout: several round trips."""
PACE_MIN: Final = 0.1
MOVE_MS: Final = 1_250
"""Sends are not moved to another broker before they are late by this time: a broker that only
stands still for a moment, for example to collect garbage, would store them, too.
"""
PROBE_TIMEOUT_MS: Final = 1_000
AGAIN_TIMEOUT_MS: Final = 750
"""The timeout of a probe after a silent one. A load balancer that forgets an idle connection closes
neither end: the first send over it still has half a second of its default timeout for a retry.
"""
ANEW_TIMEOUT_MS: Final = 500
"""The timeout of a probe over a new connection. The probe over the old one runs at the same time
and has longer, so a broker that continues after a pause still answers there.
"""
LOOKUP_MS: Final = 300
PAUSE_MS_MAX: Final = 5_000
"""Probes and lookups slow down, up to this interval, the longer sends are late."""
_SLOWDOWN: Final = 8  # the interval is an eighth of the lateness


class Flight(msgspec.Struct):
    """The sends to one address that are in flight; the counts change on the hot path."""

    address: str
    broker_name: str
    topic: str
    """The topic of the last send, whose route names the broker."""
    count: int = 0
    ended_count: int = 0
    seen_count: int = 0
    """`ended_count` at the last tick."""
    late_ms: float = 0
    """The total of the ticks since a send last ended."""
    pace: float = 1
    """The factor of all waits, set by the send with the shortest timeout."""
    is_silent: bool = False
    """Whether the last probe went unanswered."""
    is_pursued: bool = False
    movable: dict[asyncio.Task[Any], Route | None] = msgspec.field(default_factory=dict)
    """The route of each send that may be retried, by the task that waits for its answer. None
    instead of the route means that `give_up` has ended the wait.
    """

    def give_up(self, brokers: "ClientInstance") -> RequestTimeout | None:
        """End the waits of sends that another broker can take, and return their error; None if
        there is no such send.

        Closing the connection instead would fail all sends to the broker.
        """
        # Thousands of sends share a few routes, each of which may have thousands of queues.
        routes = {id(route): route for route in self.movable.values() if route is not None}
        others = {key for key, route in routes.items() if self._has_other(route, brokers)}
        moved = [task for task, route in self.movable.items() if id(route) in others]
        for task in moved:
            self.movable[task] = None
            task.cancel()
        return self._silence() if moved else None

    def _silence(self) -> RequestTimeout:
        return RequestTimeout(f"{self.address} answers neither sends nor heartbeats")

    def _has_other(self, route: Route, brokers: "ClientInstance") -> bool:
        queues = brokers.reachable(route.publish_queues)
        return any(queue.broker_name != self.broker_name for queue in queues)

    async def answer(self, response: Awaitable[T], route: Route) -> T:
        """Wait for the answer to a send; raise RequestTimeout if it was given up."""
        task = asyncio.current_task()
        assert task is not None
        self.movable[task] = route
        try:
            return await response
        except asyncio.CancelledError as error:
            if self.movable[task] is not None or task.uncancel():
                raise  # by the caller
            raise self._silence() from error
        finally:
            del self.movable[task]

    @property
    def is_late(self) -> bool:
        """Whether no send has ended for some time."""
        return self.late_ms >= LATE_TICKS * TICK_MS * self.pace

    @property
    def pause_ms(self) -> int:
        """The interval between lookups, and between probes."""
        return min(PAUSE_MS_MAX, max(LOOKUP_MS, int(self.late_ms) // _SLOWDOWN))

    def end(self) -> None:
        self.count -= 1
        self.ended_count += 1

    def hurry(self, timeout_ms: int) -> None:
        """Note a send with a timeout below SHORT_MS."""
        self.pace = min(self.pace, max(PACE_MIN, PACE_PER_MS * timeout_ms))

    def tick(self, tick_ms: float) -> None:
        """Count the time of consecutive ticks during which no send was completed."""
        if self.count and self.ended_count == self.seen_count:
            self.late_ms += tick_ms
        else:
            self.seen_count = self.ended_count
            self.late_ms = 0
            self.is_silent = False


class LateSends:
    """The sends in flight of one client instance."""

    def __init__(self, brokers: "ClientInstance", background: TaskSet, log: Log) -> None:
        self._brokers = brokers
        self._background = background
        self._log = log
        self._flights: dict[str, Flight] = {}
        self._is_ticking = False

    def begin(
        self, address: str, broker_name: str, topic: str, *, timeout_ms: int = SHORT_MS
    ) -> Flight:
        """Record a send; the caller must call `end` of the result exactly once."""
        flight = self._flights.get(address)
        if flight is None:
            flight = self._flights[address] = Flight(address, broker_name, topic)
        flight.count += 1
        flight.topic = topic
        if timeout_ms < SHORT_MS:
            flight.hurry(timeout_ms)
        if not self._is_ticking:
            self._is_ticking = True
            self._background.spawn(self._tick(), name="late-sends")
        return flight

    async def _tick(self) -> None:
        try:
            while any(flight.count for flight in self._flights.values()):
                tick_ms = TICK_MS * min(flight.pace for flight in self._flights.values())
                await asyncio.sleep(tick_ms / 1000)
                for flight in self._flights.values():
                    flight.tick(tick_ms)
                    if flight.is_late and not flight.is_pursued:
                        flight.is_pursued = True
                        self._background.spawn(self._pursue(flight), name="pursue-late-sends")
            self._flights.clear()
        finally:
            self._is_ticking = False

    async def _pursue(self, flight: Flight) -> None:
        """Probe the broker and look up its route, until a send ends or the broker is dropped."""
        flight.is_silent = False
        self._log.debug("sends.late", peer=flight.address, count=flight.count)
        try:
            async with asyncio.TaskGroup() as group:
                steps = [
                    group.create_task(self._probe(flight)),
                    group.create_task(self._replace(flight)),
                ]
                await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
                for step in steps:
                    step.cancel()
        finally:
            flight.is_pursued = False

    async def _probe(self, flight: Flight) -> None:
        """Drop the connection if it stays silent while a new one to the same address is answered.

        New connections are tried once the present one was silent for a whole probe, so brokers
        that answer late do not get them. This second probe follows at once.
        """
        brokers, address = self._brokers, flight.address
        while flight.is_late:
            answers_anew, was_silent = False, flight.is_silent
            pace = flight.pace
            timeout_ms = int(pace * (AGAIN_TIMEOUT_MS if was_silent else PROBE_TIMEOUT_MS))
            async with asyncio.TaskGroup() as group:
                probe = group.create_task(brokers.answers(address, timeout_ms=timeout_ms))
                if was_silent:
                    answers_anew = await brokers.answers_anew(
                        address, timeout_ms=int(pace * ANEW_TIMEOUT_MS)
                    )
            flight.is_silent = not probe.result()
            may_move = flight.is_silent and flight.late_ms >= MOVE_MS
            if may_move and (silence := flight.give_up(brokers)):
                brokers.suspect(address, silence)
            if answers_anew and flight.is_silent and flight.is_late:
                self._log.info("connection.renewed", peer=address, failed_count=flight.count)
                brokers.drop(address, "nothing comes over it, but a new connection is answered")
                return
            if was_silent or not flight.is_silent:
                await asyncio.sleep(flight.pause_ms / 1000)

    async def _replace(self, flight: Flight) -> None:
        """Drop the broker if it does not answer and another one is master.

        A master that is handing over also leaves sends unanswered, but it answers probes, and it
        answers the sends as soon as its successor has their messages.
        """
        await asyncio.sleep(max(0, LATE_TICKS * TICK_MS - flight.late_ms) / 1000)
        while flight.is_late:
            await self._brokers.look_up(flight.topic)
            master = self._brokers.current_master(flight.broker_name)
            if flight.is_silent and master not in (None, flight.address):
                self._log.info(
                    "master.replaced",
                    broker=flight.broker_name,
                    peer=flight.address,
                    master=master,
                    failed_count=flight.count,
                )
                self._brokers.drop(
                    flight.address, f"it does not answer, and {master} is the master now"
                )
                return
            await asyncio.sleep(flight.pause_ms / 1000)
