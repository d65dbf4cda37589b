# SPDX-License-Identifier: Apache-2.0
"""The answers to sends of the native lane. A run is the sends of one commit that
are answered together.

With a sync flush, the loop may lend the encoded answers to the thread that syncs the log: the
thread writes them to the sockets as soon as the sync has ended.
"""

from typing import TYPE_CHECKING, Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.put_answers import answer_back, answer_delayed, answer_put
from cometmq.broker.lanes.transaction_lane import LaneTransactions
from cometmq.broker.native import Breaker, accel
from cometmq.broker.storing.log_syncs import LendableAnswers
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.transport.lane import Staging
from cometmq.store.results import PutResult, PutStatus

if TYPE_CHECKING:
    from cometmq.accel import LaneAnswers, LentAnswers, SendLane

_PUT_OK: Final = PutStatus.PUT_OK
LENT_PEERS_MAX: Final = 4
"""Maximum number of connections in a run that the sync thread answers. The loop answers larger runs
while the next sync runs: a write to a socket takes 5 us, and a sync must not wait for many of them.
"""


class SendAnswers:
    """Answers the sends that native code has placed, under the settings that it was built with."""

    def __init__(
        self, broker: Broker, native: "SendLane", transactions: LaneTransactions, breaker: Breaker
    ) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._native = native
        self._transactions = transactions
        self._breaker = breaker

    def lend_run(self, answers: "LaneAnswers") -> "LentAnswers | None":
        """Return the encoded answers to a run, for the sync thread to write; None if the loop must
        answer, with `answer_run`.
        """
        is_current = self._settings is self._broker.settings
        is_plain = not (answers.half_count or answers.end_count) and is_current
        if not is_plain or answers.peer_count > LENT_PEERS_MAX:
            return None
        lender: Staging | None = answers.peer  # type: ignore[assignment]
        if lender is None or not lender.may_lend_answers():
            return None
        with self._breaker:
            return answers.lend()
        return None

    def settle_run(self, answers: "LaneAnswers", lent: "LentAnswers", result: PutResult) -> None:
        """Answer those sends of a lent run that the sync thread has not answered; count all."""
        peer: Staging = answers.peer  # type: ignore[assignment]
        count, _, rest = settled = lent.settle()
        # The thread answers after the sync, so a written answer proves that the run is stored.
        is_proven = count > 0 or any(is_written for *_, is_written in rest)
        if is_proven or result.status is _PUT_OK:
            self._broker.stats.count_sends(*answers.counts())
            peer.settle(settled)
        else:
            self.answer_each(answers, result)

    def answer_run(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Answer the sends of a run."""
        if answers.half_count or answers.end_count:
            self._transactions.finish(answers, result)
            self._keep_halves(answers, result)
        is_current = self._settings is self._broker.settings  # every answer depends on them
        if result.status is not _PUT_OK or not is_current:
            self.answer_each(answers, result)
            return
        peer: Staging | None = answers.peer  # type: ignore[assignment]
        if peer is None:
            return  # the ends of transactions have no answers
        try:
            counts = None if peer.direct is None else peer.direct.answers.reply(answers)
            encoded = answers.encode() if counts is None else None
        except accel.PanicException as error:
            self._breaker.trip(error)
            self.answer_each(answers, result)  # nothing is counted or sent yet
            return
        self._broker.stats.count_sends(*(counts or answers.counts()))
        if encoded:
            peer.reply_rows(encoded)

    def _keep_halves(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Keep stored half messages in memory for the requests that end them."""
        if not result.status.is_stored:
            return
        with self._breaker:  # otherwise, they will be read from the log
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
                answer_back(self._broker, call, back, level_id, one)
            elif level_id is None:
                answer_put(self._broker, call, topic, queue_id, count, one)
            else:
                answer_delayed(self._broker, call, level_id, queue_id, None, one)

    def answer_failed(self, answers: "LaneAnswers", _result: PutResult) -> None:
        reply = Reply(ResponseCode.SYSTEM_ERROR, remark="the native message path has failed")
        self._transactions.fail(answers, reply)
        for peer, opaque, serialization, *_ in answers.rows():
            _call(peer, opaque, serialization).answer(reply)


class RunAnswers(LendableAnswers):
    """Answers a run, of which the sync thread may already have answered sends."""

    __slots__ = ("_answers", "_lent", "_sends")

    def __init__(self, sends: SendAnswers, answers: "LaneAnswers") -> None:
        self._sends = sends
        self._answers = answers
        self._lent: LentAnswers | None = None

    def __call__(self, result: PutResult) -> None:
        """Answer the sends that the sync thread has not answered."""
        if self._lent is None:
            self._sends.answer_run(self._answers, result)
        else:
            self._sends.settle_run(self._answers, self._lent, result)

    def lend(self) -> "LentAnswers | None":
        """Encode the answers; return None if they have been lent before."""
        if self._lent is not None:
            return None
        self._lent = self._sends.lend_run(self._answers)
        return self._lent


def _call(peer: object, opaque: int, serialization: int) -> Call[None]:
    call: Call[None] = Call(RequestCode.SEND_MESSAGE_V2, None, opaque)
    call.peer, call.serialization = peer, serialization
    return call
