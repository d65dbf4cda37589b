# SPDX-License-Identifier: Apache-2.0
"""The interface of the native code that reads and writes many sockets with one call each."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from cometmq.remoting.transport.lane_peer import LanePeer

Chunk: TypeAlias = tuple[LanePeer, bytes]
AnswerRow: TypeAlias = tuple[LanePeer, bytes, int]
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

Rest: TypeAlias = tuple[LanePeer, bytes, bool | None]
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
        peers: dict[int, LanePeer],
        count_max: int,
        pulling: Pulling | None,
        sending: Sending | None,
    ) -> tuple[list[Chunk], list[LanePeer], AnsweredChunks | None, Staged | None]:
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
