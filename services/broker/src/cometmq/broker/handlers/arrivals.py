# SPDX-License-Identifier: Apache-2.0
"""What follows a commit: pending answers are sent, then held pulls that the commit
woke are answered.

Before that, record filters of held pulls are tested against the new messages.
"""

import asyncio
from functools import partial
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.handlers.pull import matching, resume
from cometmq.broker.hold import HeldPull
from cometmq.remoting.transport.flow.writes import Writes
from cometmq.store.results import GetResult, GetStatus

RESUMES_MAX: Final = 64
"""Maximum number of woken pulls answered in one turn of the loop; they take about 5 ms."""
TESTS_MAX: Final = 16
"""Maximum number of pulls whose record filters begin to be tested in one turn."""


class Arrivals:
    """Sends pending answers after each commit, and answers the pulls that the commit woke.

    A message may wake the pulls of thousands of consumers. Each turn of the loop answers at most
    RESUMES_MAX, so that other requests, above all the send itself, need not wait for all pulls.
    """

    def __init__(self, broker: Broker, writes: Writes) -> None:
        """`writes` are the pending answers. Call this on the running loop."""
        self._broker = broker
        self._writes = writes
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        broker.store.publisher.listeners.append(broker.pending.hold.note_arrivals)
        broker.store.pulls.suspects.listeners.append(broker.pending.hold.note_examined)
        broker.driver.turn.wake.connect(self._serve)
        broker.driver.turn.job_ended.connect(self._serve)

    def _serve(self) -> None:
        hold = self._broker.pending.hold
        if hold.visits:
            hold.visit_some()
        if hold.ready:
            # The send's answer leaves before the work on woken pulls begins.
            self._writes.flush()
        if hold.ready or hold.unsure:
            _serve_held(self._broker)
        if self._writes.is_scheduled:
            self._writes.flush()
        if (hold.ready or hold.unsure or hold.visits) and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._serve()


def _serve_held(broker: Broker) -> None:
    """Answer woken pulls, and test new messages against the filters that read records."""
    for held in broker.pending.hold.take_ready(RESUMES_MAX):
        resume(broker, held)
    for held in broker.pending.hold.take_unsure(TESTS_MAX):
        _look(broker, held)


def _look(broker: Broker, held: HeldPull) -> None:
    """Search the messages that arrived since the last search for one that the filter accepts."""
    accept = held.accept
    assert isinstance(accept, RecordFilter)
    lookup = matching(broker, held.call.header, held.tested_offset, 1, accept)
    broker.driver.reads.look_up(
        lookup,
        partial(_looked, broker, held),
        lambda _: _wake(broker, held),  # the pull itself then finds and reports the fault
        call=held.call,
        may_end_early=True,
    )


def _looked(broker: Broker, held: HeldPull, result: GetResult) -> None:
    if result.status is not GetStatus.NO_MATCHED_MESSAGE:
        _wake(broker, held)
        return
    held.tested_offset = result.next_offset
    if broker.pending.hold.is_behind(held, broker.store.reader.max_offset):
        _look(broker, held)


def _wake(broker: Broker, held: HeldPull) -> None:
    if broker.pending.hold.release(held):
        resume(broker, held)
