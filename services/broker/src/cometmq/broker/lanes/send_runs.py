# SPDX-License-Identifier: Apache-2.0
"""The part of the native lane that the store calls: it supplies each commit with the sends that
`lane.py` has accepted, and answers them in runs: the sends of one commit that are answered
together.

With a sync flush, the loop may lend the encoded answers to the thread that syncs the log: the
thread writes them to the sockets as soon as the sync has ended.

Of transactions, the native code keeps the half messages that it stored recently, and builds the
committed message and the op message. Which half messages are open is decided in `Transactions`, for
both paths.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.put_answers import answer_back, answer_delayed, answer_put
from cometmq.broker.handlers.transactions import answer_end
from cometmq.broker.native import Breaker, accel
from cometmq.broker.storing.log_syncs import LendableAnswers
from cometmq.broker.transactions.transactions import Outcome
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing.runs import CreateQueue, PlacedRun, Queues

if TYPE_CHECKING:
    from cometmq.accel import LaneAnswers, LentAnswers, SendLane


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
        """Return the time, which the staging of ends needs; None to leave them to handlers."""
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
        """Reopen half messages whose ends were not stored; answer who waits with `reply`."""
        for half_offsets in answers.ended():
            for waiting in self._transactions.finish_ends(half_offsets, None):
                waiting.answer(reply)


_PUT_OK: Final = PutStatus.PUT_OK
LENT_PEERS_MAX: Final = 4
"""Maximum number of connections in a run that the sync thread answers. The loop answers larger runs
while the next sync runs: a write to a socket takes 5 us, and a sync must not wait for many of them.
"""


class SendRuns:
    """The accepted sends, as a source of runs (`cometmq.store.writing.runs`), under the settings
    that the native code was built with.
    """

    def __init__(
        self, broker: Broker, native: "SendLane", transactions: LaneTransactions, breaker: Breaker
    ) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.transactions = transactions
        self.breaker = breaker
        self._native = native
        self._runs = accel.LaneRuns(native)
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
            self.breaker.trip(error)
            # The run counts as placed but writes no byte, so none of its sends is acknowledged.
            failed = partial(self._answer_failed, self._runs.unplaced(first, count))
            return count, 0, b"", [], KeyedRows(), [(False, failed, count)]
        answers = []
        for waits, one in groups:  # usually one: a comprehension would cost a call
            answers.append((waits, RunAnswers(self, one), one.count))
        return done, message_count, records, entries, keys, answers

    def refuse(self, first: int, count: int, result: PutResult) -> None:
        """Answer accepted sends that were not placed."""
        answers = self._runs.unplaced(first, count)
        self.transactions.finish(answers, result)
        self.answer_each(answers, result)

    def release(self) -> None:
        """Forget all sends; the commit now holds their records and answers."""
        self._runs.release()
        self.count = 0

    def keep_halves(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Keep stored half messages in memory for the requests that end them."""
        if not result.status.is_stored:
            return
        with self.breaker:  # otherwise, they will be read from the log
            self._native.keep_halves(answers)

    def answer_each(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Answer each send as a handler would; used if the result is not a plain success."""
        for (
            peer,
            opaque,
            serialization,
            topic,
            queue_id,
            level_id,
            count,
            place,
            back,
        ) in answers.rows():
            offset, size, queue_offset, message_ids = place
            one = PutResult(
                result.status, offset, size, queue_offset, result.store_timestamp, message_ids
            )
            call = _call(peer, opaque, serialization)
            if back is not None:
                answer_back(self.broker, call, back, level_id, one)
            elif level_id is None:
                answer_put(self.broker, call, topic, queue_id, count, one)
            else:
                answer_delayed(self.broker, call, level_id, queue_id, None, one)

    def _answer_failed(self, answers: "LaneAnswers", _result: PutResult) -> None:
        reply = Reply(ResponseCode.SYSTEM_ERROR, remark="the native message path has failed")
        self.transactions.fail(answers, reply)
        for peer, opaque, serialization, *_ in answers.rows():
            _call(peer, opaque, serialization).answer(reply)


class RunAnswers(msgspec.Struct, LendableAnswers, eq=False):
    """Answers a run, of which the sync thread may already have answered sends."""

    runs: SendRuns
    answers: "LaneAnswers"
    lent: "LentAnswers | None" = None

    def __call__(self, result: PutResult) -> None:
        """Answer the sends that the sync thread has not answered."""
        runs, answers = self.runs, self.answers
        if self.lent is not None:
            self._settle(self.lent, result)
            return
        if answers.half_count or answers.end_count:
            runs.transactions.finish(answers, result)
            runs.keep_halves(answers, result)
        is_current = runs.settings is runs.broker.settings  # every answer depends on them
        if result.status is not _PUT_OK or not is_current:
            runs.answer_each(answers, result)
            return
        peer: LanePeer | None = answers.peer  # type: ignore[assignment]
        if peer is None:
            return  # the ends of transactions have no answers
        try:
            counts = None if peer.direct is None else peer.direct.reply(answers)
            encoded = answers.encode() if counts is None else None
        except accel.PanicException as error:
            runs.breaker.trip(error)
            runs.answer_each(answers, result)  # nothing is counted or sent yet
            return
        runs.broker.stats.count_sends(*(counts or answers.counts()))
        if encoded:
            peer.reply_rows(encoded)

    def lend(self) -> "LentAnswers | None":
        """Encode the answers for the sync thread, once; return None if the loop must send them."""
        runs, answers = self.runs, self.answers
        is_plain = not (answers.half_count or answers.end_count)
        is_current = runs.settings is runs.broker.settings
        if self.lent is not None or not (is_plain and is_current):
            return None
        lender: LanePeer | None = answers.peer  # type: ignore[assignment]
        if lender is None or answers.peer_count > LENT_PEERS_MAX or not lender.may_lend_answers():
            return None
        with runs.breaker:
            self.lent = answers.lend()
        return self.lent

    def _settle(self, lent: "LentAnswers", result: PutResult) -> None:
        """Answer those sends of a lent run that the sync thread has not answered; count all."""
        runs, answers = self.runs, self.answers
        peer: LanePeer = answers.peer  # type: ignore[assignment]
        count, _, rest = settled = lent.settle()
        # The thread answers after the sync, so a written answer proves that the run is stored.
        is_proven = count > 0 or any(is_written for *_, is_written in rest)
        if is_proven or result.status is _PUT_OK:
            runs.broker.stats.count_sends(*answers.counts())
            peer.settle(settled)
        else:
            runs.answer_each(answers, result)


def _call(peer: object, opaque: int, serialization: int) -> Call[None]:
    call: Call[None] = Call(RequestCode.SEND_MESSAGE_V2, None, opaque)
    call.peer, call.serialization = peer, serialization
    return call
