# SPDX-License-Identifier: Apache-2.0
"""The transactions of the native lane: half messages, and the oneway requests that end them.

The native code keeps the half messages that it stored recently, and builds the committed message
and the op message. Which half messages are open is decided in `Transactions`, for both paths.
"""

from typing import TYPE_CHECKING

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.transactions import answer_end
from cometmq.broker.transactions.transactions import Outcome
from cometmq.remoting.command import Reply
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.store.results import PutResult

if TYPE_CHECKING:
    from cometmq.accel import LaneAnswers, SendLane


class LaneTransactions:
    """Decides which transaction requests the native code may serve, and reports them to
    `Transactions`. An end is a request that commits or rolls back a half message.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transactions = broker.deferred.transactions
        self.takes_ends = False
        """Whether the topics of half messages and op messages exist, so that ends are served."""
        self._clear_count = 0

    def adopt(self, native: "SendLane") -> None:
        """Decide again what the native code serves, after a change of topics or settings."""
        topics = self._broker.tables.topics.table
        has_halves = HALF_TOPIC in topics
        native.take_halves(has_halves and not self._broker.settings.reject_transaction_message)
        self.takes_ends = has_halves and OP_HALF_TOPIC in topics

    def now_ms(self, native: "SendLane") -> int | None:
        """Return the current time, which the staging of ends needs; None if
        handlers must serve them.
        """
        if not self.takes_ends or not self._broker.role.is_master:
            return None
        clear_count = self._transactions.recent.clear_count
        if self._clear_count != clear_count:
            self._clear_count = clear_count
            native.forget_halves()
        return self._broker.clock.now_ms()

    def begin(self, native: "SendLane", first: int, count: int) -> int | None:
        """Register the ends among staged requests and return their number.

        If one of them needs a handler, register nothing and return None.
        """
        half_offsets = native.staged_ends(first, count)
        return len(half_offsets) if self._transactions.begin_ends(half_offsets) else None

    def finish(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Count the half messages of a commit, and complete its ends, once its result is known."""
        is_stored = result.status.is_stored
        if is_stored:
            self._transactions.prepared_count += answers.half_count
        if not answers.end_count:
            return
        if is_stored:
            for topic, count, size in answers.committed():
                self._broker.stats.count_put(topic, count, size, count)
        for half_offsets, outcome in zip(
            answers.ended(), (Outcome.COMMITTED, Outcome.ROLLED_BACK), strict=True
        ):
            known = outcome if is_stored else None
            for waiting in self._transactions.finish_ends(half_offsets, known):
                answer_end(self._broker, waiting, result)

    def fail(self, answers: "LaneAnswers", reply: Reply) -> None:
        """Reopen the half messages whose ends were not stored; answer waiting
        requests with `reply`.
        """
        for half_offsets in answers.ended():
            for waiting in self._transactions.finish_ends(half_offsets, None):
                waiting.answer(reply)
