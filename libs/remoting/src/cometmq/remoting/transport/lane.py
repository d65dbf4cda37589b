# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a lane, a faster path for requests that need no decoding in Python, and of the
native code that reads and writes many sockets with one call each.

A lane may take whole frames of a received chunk. It takes only requests that it answers exactly as
the handlers would, and leaves every other frame to the handlers, so a server behaves the same with
and without a lane.

Another thread may write answers to sockets (`Loan`). While a connection is on loan, its `direct_fd`
is `ON_LOAN`. Before the connection writes itself, or closes its socket, it withdraws the loan.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from cometmq.remoting.transport.flow.connected import LaneConnected

ON_LOAN: Final = -2

Settled: TypeAlias = tuple[int, int, Sequence[tuple[Any, bytes, int, bool]]]
"""The result of a loan:

- the number of answers that another thread has written, which no longer count as in flight
- the number of bytes that it has written
- the other answers: their connection, the bytes that it must send, their number, and whether they
  were written except for these bytes"""


class Loan(Protocol):
    """The newest answers on loan of a connection."""

    def withdraw(self) -> bytes:
        """End the loan, so that only the caller writes to the socket; return the rest of an answer
        that was written in part.
        """


Part: TypeAlias = tuple[int, int, int, int]
"""Consecutive frames of a chunk:

- the number of staged requests; 0 for frames that handlers serve, negative for requests that
  `Lane.answer` serves
- the number of staged bytes, plus a fixed cost for each key
- where the frames begin and end in the chunk"""

CHUNK_BYTES_MAX: Final = 1 << 20
"""Number of staged bytes of a chunk after which its other frames must wait."""

Answered: TypeAlias = tuple[bytes, int, int, int, bool]
"""The result of `Lane.answer`:

- the frames of the answers
- the number of requests answered: in order, from the first
- where the next request's frame begins and ends in the chunk; 0 if all are answered
- whether a handler must serve that request; if not, the answers exceeded `room` bytes
"""


class Lane(Protocol):
    """Takes requests in two steps: first `stage`, then `put`, `answer` or `drop`."""

    def stage(self, peer: LaneConnected, data: bytes, count_max: int) -> list[Part] | None:
        """Stage the plain requests among the first `count_max` frames of a chunk, until more than
        `CHUNK_BYTES_MAX` bytes are staged.

        The parts start at the beginning of the chunk; the caller handles the bytes after the last
        part. Return None, with nothing staged, if handlers must serve the whole chunk.
        """

    def sends(self, count_max: int) -> tuple[Any, int | None, int] | None:
        """Return the arguments with which `Sockets` stages sends of several connections in this
        turn, at most `count_max` of a chunk.

        Return None if handlers must serve them.
        """

    def sends_failed(self, fault: BaseException) -> None:
        """Leave all sends to the handlers, because `Sockets` could not stage some."""

    def put(self, count: int, staged_bytes: int, *, at_once: bool = False) -> int | None:
        """Accept the next staged requests; return how many of them will be answered.

        With `at_once`, these are all staged requests, and no other request was served since `sends`
        was called; they are stored before this call returns, unless other requests are waiting to
        be stored, too. Return None, with nothing accepted, if the server has changed or become busy
        since the requests were staged; handlers then serve them.
        """

    def answer(self, first: int, count: int, room: int) -> Answered:
        """Answer requests of the chunk that was staged last, until the answers exceed `room` bytes.

        `first` is the index of the first request to answer, among all negative parts of the chunk.
        Unanswered requests remain staged, and the caller may ask for them again.
        """

    def frame(self, index: int) -> tuple[int, int]:
        """Return where the frame of a request begins and ends in the chunk; `index` counts as in
        `answer`.
        """

    def pulls(self, count_max: int) -> tuple[Any, Any, int] | None:
        """Return the lane's arguments with which `Sockets` answers at most `count_max` requests of
        several connections in this turn.

        Return None if handlers must serve them.
        """

    def pulled(self, effects: Any, fault: BaseException | None) -> None:
        """Count the requests that `Sockets` has answered, and store their changes, before the
        answers are sent.

        After a `fault`, leave all such requests to the handlers from now on.
        """

    def drop(self) -> None:
        """Forget the staged requests that were not accepted."""

    def begin_turn(self) -> None:
        """Begin to collect accepted requests, which `end_turn` stores."""

    def end_turn(self) -> None:
        """Store the requests accepted since `begin_turn`, now or in a later turn of the loop."""


Chunk: TypeAlias = tuple[Any, bytes]
AnswerRow: TypeAlias = tuple[Any, bytes, int]
"""A connection, the frames of its answers, and their number."""

Pulling: TypeAlias = tuple[Any, Any, int, int, int, int, bool]
"""Arguments for answering pulls:

- the pull lane
- the maximum number of requests in a chunk, and in flight on a connection
- the number of bytes of answers above which no further request is answered
- whether answers may be sent at once if their requests have changed nothing"""

Sending: TypeAlias = tuple[Any, int | None, int]
"""Arguments for staging sends: the send lane, its time, and the maximum number of requests in a
chunk.
"""

Staged: TypeAlias = tuple[list[Chunk], int, int, Sequence[int], BaseException | None]
"""The staged chunks, the number of their requests and of the staged bytes, the number of answers to
each chunk, and the error of the native code, if any."""

Rest: TypeAlias = tuple[Any, bytes, bool | None]
"""A connection, the bytes that the kernel has not taken, and whether they are encrypted already.
None means that they must be sent after the connection's other output."""

AnsweredChunks: TypeAlias = tuple[int, int, int, list[Rest], bool, Any, BaseException | None]
"""The result of answering pulls:

- the number of answered requests, and the size of their frames
- the number of bytes sent, and the bytes not sent
- whether more answers are kept for `Sockets.send_answers`
- what the lane has to count and to store
- the error of the native code, if any"""


class Sockets(Protocol):
    """System calls on nonblocking sockets."""

    def receive(
        self,
        epoll: int,
        peers: dict[int, Any],
        count_max: int,
        pulling: Pulling | None,
        sending: Sending | None,
    ) -> tuple[list[Chunk], list[Any], AnsweredChunks | None, Staged | None]:
        """Read once from each socket that the epoll object with the descriptor `epoll` reports as
        readable, at most `count_max` of them.

        Return the chunks that have arrived and are neither answered nor staged, and the connections
        whose sockets have ended or failed. After an unfinished chunk, the remaining sockets are not
        read.

        - With `pulling`, answer the chunks of connections with the habit PULLS, and read again
          while nothing else arrives, but only so often that other work of the loop is not delayed.
        - With `sending`, stage the chunks of connections with the habit SENDS if they contain only
          plain sends.
        """

    def take_rows(
        self, rows: list[Chunk], first: int, pulling: Pulling | None, sending: Sending | None
    ) -> tuple[int, list[Chunk], AnsweredChunks | None, Staged | None]:
        """Answer and stage the chunks of `rows` from the index `first` on as `receive` does, but
        read nothing. Return the index of the next row, and the chunks that were neither answered
        nor staged.
        """

    def send_answers(self) -> tuple[int, list[Rest]]:
        """Write the answers that were kept; return the number of bytes that the kernel has taken,
        and the bytes that it has not taken.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Write to a socket; return the number of bytes that the kernel has taken, 0 after an
        error.
        """

    def send_rows(self, rows: Sequence[AnswerRow]) -> tuple[int, list[tuple[int, bytes | None]]]:
        """Write the bytes of each row to the `direct_fd` of its connection.

        Return the total number of bytes that the kernel has taken and, for each row that is not
        sent completely, its index and the bytes that were not taken: encrypted ones, if the socket
        is secured; None, if the connection has no socket. After such a row, nothing more is written
        to the same socket.
        """

    def secure(self, fd: int, session: Any) -> None:
        """Decrypt what a socket receives, and encrypt what `send_rows` writes to it.

        A socket whose session has ended or failed is reported as ended.
        """

    def release(self, fd: int) -> None:
        """Stop encrypting and decrypting on this socket, because the caller does it from now on."""

    def take_overhead(self) -> int:
        """Return how many bytes TLS has added to the data received since the last call."""
