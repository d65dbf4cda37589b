# SPDX-License-Identifier: Apache-2.0
"""The answers to a run of sends, as a callback of the store."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cometmq.broker.storing.log_syncs import LoneAnswer, SocketBytes
from cometmq.remoting.transport.loans import Loan
from cometmq.store.results import PutResult

if TYPE_CHECKING:
    from cometmq.accel import LaneAnswers


class Answering(Protocol):
    """The lane that has placed the run."""

    def answer_run(self, answers: "LaneAnswers", result: PutResult) -> None:
        """Answer the sends of a run."""

    def lend_run(self, answers: "LaneAnswers", withdraw: Callable[[], int]) -> Loan | None:
        """Encode the answer to a lone send for another thread; return None if only `answer_run` may
        answer.
        """

    def run_answered(self, answers: "LaneAnswers", loan: Loan) -> None:
        """Count a send whose answer was written by another thread."""


class RunAnswers(LoneAnswer):
    """Answers a run once; the thread that syncs the log may already have answered a lone send."""

    __slots__ = ("_answers", "_lane", "_loan")

    def __init__(self, lane: Answering, answers: "LaneAnswers") -> None:
        self._lane = lane
        self._answers = answers
        self._loan: Loan | None = None

    def __call__(self, result: PutResult) -> None:
        """Answer, unless the thread has."""
        if self._loan is not None and self._loan.end():
            self._lane.run_answered(self._answers, self._loan)
        else:
            self._lane.answer_run(self._answers, result)

    def lend(self, withdraw: Callable[[], int]) -> SocketBytes | None:
        """Encode the answer; return None if it has been lent before."""
        if self._loan is not None:
            return None
        loan = self._loan = self._lane.lend_run(self._answers, withdraw)
        return None if loan is None else (loan.fd, loan.data)
