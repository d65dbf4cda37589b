# SPDX-License-Identifier: Apache-2.0
"""The part of the native lane that the store calls: it supplies each commit with the sends that
`lane.py` has accepted.
"""

from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.broker import Broker
from cometmq.broker.lanes.run_answers import RunAnswers, SendAnswers
from cometmq.broker.lanes.transaction_lane import LaneTransactions
from cometmq.broker.native import Breaker, accel
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.results import PutResult
from cometmq.store.writing.runs import CreateQueue, PlacedRun, Queues

if TYPE_CHECKING:
    from cometmq.accel import SendLane


class SendRuns:
    """The accepted sends, as a source of runs; see `cometmq.store.writing.runs`."""

    def __init__(
        self, broker: Broker, native: "SendLane", transactions: LaneTransactions, breaker: Breaker
    ) -> None:
        self._runs = accel.LaneRuns(native)
        self._transactions = transactions
        self._breaker = breaker
        self._answers = SendAnswers(broker, native, transactions, breaker)
        self.count = 0
        """Number of sends accepted for the next commit: the first ones of all staged sends."""

    def place(  # see RunSource
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        store_timestamp: int,
        queues: Queues,
        create: CreateQueue,
    ) -> PlacedRun:
        """Encode accepted sends at their position in the log."""
        try:
            done, message_count, records, entries, keys, groups = self._runs.place(
                first, count, offset, file_end, store_timestamp, queues, create
            )
        except accel.PanicException as error:
            self._breaker.trip(error)
            # The run counts as placed but writes no byte, so none of its sends is acknowledged.
            failed = partial(self._answers.answer_failed, self._runs.unplaced(first, count))
            return count, 0, b"", [], KeyedRows(), [(False, failed, count)]
        answers = []
        for waits, one in groups:  # usually one: a comprehension would cost a call
            answers.append((waits, RunAnswers(self._answers, one), one.count))
        return done, message_count, records, entries, keys, answers

    def refuse(self, first: int, count: int, result: PutResult) -> None:
        """Answer accepted sends that were not placed."""
        answers = self._runs.unplaced(first, count)
        self._transactions.finish(answers, result)
        self._answers.answer_each(answers, result)

    def release(self) -> None:
        """Forget all sends; the commit now holds their records and answers."""
        self._runs.release()
        self.count = 0
