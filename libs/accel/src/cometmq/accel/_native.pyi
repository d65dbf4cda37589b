# SPDX-License-Identifier: Apache-2.0
"""Types of the native module `cometmq.accel`; the code is in `rust/`.

A *plain* request or record has no unusual property, so native code can process it; all others are
left to Python. A *lane* processes plain requests. To *stage* a request is to decode it and keep it
until a commit stores it (`SendLane`), or until it is answered (`PullLane`). A *chunk* is what one
read from a socket has returned: frames of one connection.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, final

from typing_extensions import Buffer

INTERFACE: int
"""The CRC-32 of this file when the module was built."""

class _Queue(Protocol):
    next_offset: int

_QueueT = TypeVar("_QueueT", bound=_Queue)
_PeerT = TypeVar("_PeerT")

@final
class LaneAccounts:
    """The accounts whose requests the lanes may take; Python serves all others."""

    def __new__(
        cls, rows: Sequence[tuple[bytes, bytes, bool, tuple[int, int], dict[bytes, int]]]
    ) -> LaneAccounts:
        """A row has these items:

        - the access key, and the secret
        - whether the account has all rights, as an administrator without explicit ones
        - its default rights to topics, and to groups
        - its rights by topic; a group is named by its retry topic
        """

@final
class SendLane:
    """Stages plain sends until a commit stores them."""

    def __new__(
        cls,
        *,
        store_host: bytes,
        cluster: str,
        frame_bytes_max: int,
        body_bytes_max: int,
        batch_count_max: int,
        request_bytes_max: int,
        json: list[bytes],
        binary_head: bytes,
        flag: int,
        binary_entries: bytes,
        plain_json: list[bytes],
        plain_binary: list[bytes],
        delayed: tuple[str, Sequence[int]],
        transactions: tuple[str, str, str, int],
        accounts: LaneAccounts | None,
    ) -> SendLane:
        """Start without topics; raise ValueError for a `store_host` of a wrong size.

        - `json` holds the parts of an answer's JSON header around the id, queue id, queue offset
          and opaque; `binary_head`, `flag` and `binary_entries` are the constant parts of a binary
          header
        - `plain_json` and `plain_binary` hold the parts around the opaque in the header of an
          answer without fields
        - `delayed` is the topic of delayed messages, with the delays of its queues in ms; without
          delays, delayed sends are left to Python
        - `transactions` holds the topics of half and op messages, and the properties and tag code
          of every op message
        - with `accounts`, only sends that these accounts have signed and may make are taken, and
          the ends of transactions are left to Python
        """

    @property
    def staged_count(self) -> int:
        """The number of staged sends."""

    def learn(self, topic: str, queue_count: int) -> bool:
        """Take sends to this topic from now on; return whether the topic was not known yet."""

    def learn_back(
        self, group: str, topic: str, queue_count: int, count_max: int, version_min: int
    ) -> bool:
        """Take messages that this group sends back from now on; return whether the group was not
        known yet.

        `topic` is its retry topic, and `queue_count` the number of queues for retries. `count_max`
        is the number of retries of a message; clients of `version_min` or later may send another
        number.
        """

    def forget_backs(self) -> None:
        """Forget all groups: messages that a group sends back are left to Python until it is
        learned again.
        """

    def forget(self) -> None:
        """Forget all topics and groups: their requests are left to Python until they are learned
        again. Staged sends remain.
        """

    def take_halves(self, takes_halves: bool) -> None:
        """Choose whether half messages are taken; by default, they are left to Python."""

    def keep_halves(self, answers: LaneAnswers) -> None:
        """Keep the half messages of these answers in memory, so that `stage` can end them."""

    def forget_halves(self) -> None:
        """Forget the half messages in memory."""

    def staged_ends(self, first: int, count: int) -> list[int]:
        """Return the queue offsets of the half messages that these staged requests end."""

    def stage(
        self,
        data: bytes,
        peer: object,
        host: bytes,
        count_max: int,
        *,
        takes_sends: bool = True,
        now_ms: int | None = None,
        pulls: PullLane | None = None,
        backs: tuple[int, Callable[[int], bytes | None]] | None = None,
    ) -> list[tuple[int, int, int, int]]:
        """Stage the plain requests among the first `count_max` frames of a chunk; return its parts.

        A part is a number of consecutive frames: the number of its sends (0 for frames that are
        left to Python, negative for pulls and renewals), the bytes of their bodies and properties
        with 128 for each key, its begin and its end. Bytes after the last part are left to Python.
        Once the sends exceed 1 MiB, the chunk is not examined further.

        - with `now_ms`, oneway requests that end a half message in memory count as sends; the half
          message is then removed from memory
        - with `pulls`, pulls and renewals of locks are staged in it, until the next call
        - with `backs`, messages sent back count as sends; it holds the number of messages sent back
          before, which selects the queue, and a function that returns the record at an offset of
          the log, or None if it is not in memory
        """

    def drop_from(self, first: int) -> None:
        """Remove the staged sends from number `first` on."""

@final
class LaneRuns:
    """Builds what a commit stores of the staged sends of a lane."""

    def __new__(cls, lane: SendLane) -> LaneRuns: ...
    def place(
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        now_ms: int,
        queues: dict[tuple[str, int], _QueueT],
        create: Callable[[str, int], _QueueT],
    ) -> tuple[
        int, int, bytes, list[tuple[_QueueT, bytes, int]], LaneKeys, list[tuple[bool, LaneAnswers]]
    ]:
        """Build the records of staged sends from number `first` on, as many as fit before
        `file_end`; the first record is placed at `offset` of the log.

        Return the number of sends and of messages, the records, the entries of each queue with
        their number, the keys, and two groups of answers: those that wait for the disk, and the
        others. A queue that is missing in `queues` is created. Nothing staged changes, so a commit
        may be built again.
        """

    def unplaced(self, first: int, count: int) -> LaneAnswers:
        """Return the answers to sends that will not be stored; they have no positions."""

    def release(self) -> None:
        """Remove everything staged, and release its chunks."""

PullEffects: TypeAlias = tuple[
    list[tuple[str, str, int, int, int]], list[tuple[str, str, int, int]], list[Any], int, float
]
"""What Python must count and store after pulls were answered:

- for each reader: topic, group, and the number of pulls, messages and bytes
- for each commit: group, topic, queue id and offset
- for each renewal: its locks
- the rest of the filters' budget, and the seconds that the call took
"""

_Place: TypeAlias = tuple[Any, Any, int, int, tuple[Any, int, int, int, int] | None]

class _View(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def file_size(self) -> int: ...
    @property
    def damage(self) -> Sequence[Any]: ...

@final
class PullLane:
    """Stages and answers plain pulls and renewals of queue locks.

    A *reader* is a group with its subscription to a topic. Pulls are taken from readers that Python
    has admitted (`learn`).
    """

    def __new__(
        cls,
        *,
        frame_bytes_max: int,
        cache_bytes: int,
        count_max: int,
        bytes_max: int,
        memory_bytes: int,
        json: list[bytes],
        binary_head: bytes,
        flag: int,
        remark: bytes,
        names: list[bytes],
        plain_json: list[bytes],
        plain_binary: list[bytes],
        queues: dict[tuple[str, int], Any],
        read_log: Callable[[Any, int, int, int], Buffer | _Place | None],
        read_entries: Callable[[Any, int, int], Buffer | None],
        accounts: LaneAccounts | None,
    ) -> PullLane:
        """Start without readers and renewals.

        - the limits are those of an answer from memory; only the last `memory_bytes` of the log
          count as memory
        - `json` holds the parts of an answer's JSON header around the four numbers and the opaque;
          `binary_head`, `flag`, `remark` and `names` are the constant parts of a binary header
        - `plain_json` and `plain_binary` hold the parts around the opaque in the header of an
          answer without fields
        - with `accounts`, only pulls that these accounts have signed and may make are taken, and no
          renewals

        `read_log(view, start, known, count)` returns bytes `known` to `count` of the block that
        begins at log offset `start`, and `read_entries(queue, queue_offset, count)` returns queue
        entries. Both return None if the data is not in memory.

        Instead of bytes, `read_log` may return their place: a file, an object that keeps it open,
        its descriptor, the position, and where the block's checksums are. The latter is an object
        that keeps their file open, its descriptor, the log offset of the block, the number of its
        first entry, and the number after that of its last. The bytes are then read, if that does
        not block, and must match the checksums.

        If checksums cover all bytes of a block, its place is remembered until `clear`. Later reads
        call the file's method `descriptor` for the object that keeps it open; its attribute
        `number` is the descriptor.
        """

    @property
    def reader_count(self) -> int:
        """The number of known readers."""

    @property
    def cached_bytes(self) -> int:
        """The bytes of all cached blocks."""

    def learn(
        self,
        serialization: int,
        head: bytes,
        group: str,
        topic: str,
        *,
        queue_count: int,
        suggested_id: int,
        codes: list[int] | None = None,
        names: Sequence[str] | None = None,
        condition: tuple[Any, ...] | None = None,
    ) -> bool:
        """Admit a reader: take pulls with the group, topic and subscription of this header from now
        on. Return whether the reader was not known yet.

        The filter is a list of tag codes, or a condition on named properties as
        `cometmq.broker.filters.sql.program` writes it.
        """

    def forget(self) -> None:
        """Forget all readers: pulls are left to Python until their readers are learned again."""

    def learn_renewal(
        self, serialization: int, head: bytes, body: bytes, answer: bytes, locks: object
    ) -> bool:
        """Take requests to lock queues that have this body from now on; return whether the body was
        not known yet.

        `answer` is the body of their answer; the effects of `answer()` contain `locks` for each of
        them.
        """

    def forget_renewals(self) -> None:
        """Forget all renewals: requests to lock queues are left to Python until they are learned
        again.
        """

    def clear(self) -> None:
        """Drop all cached blocks and their places, because bytes might have changed."""

    def frame(self, index: int) -> tuple[int, int]:
        """Return the begin and end of a staged request's frame."""

    def answer(
        self, first: int, count: int, room: int, view: _View, budget: int
    ) -> tuple[bytes, int, int, int, bool, PullEffects]:
        """Answer staged requests from number `first` on, until Python must answer one, or the
        answers exceed `room` bytes.

        Filters may take `budget` steps of about 1 ns in total. A pull that exceeds it ends with the
        messages found so far; if there are none, Python must answer it.

        Return the frames of the answers, the number of answered requests, the begin and end of the
        next request's frame (0 if there is none), whether Python must answer that request, and the
        effects.
        """

_Pulling: TypeAlias = tuple[PullLane, _View, int, int, int, int, bool]
_Rest: TypeAlias = tuple[Any, bytes, bool | None]
_Answered: TypeAlias = tuple[
    int, int, int, list[_Rest], bool, PullEffects | None, BaseException | None
]

_Sending: TypeAlias = tuple[SendLane, int | None, int]
_StagedRows: TypeAlias = tuple[
    list[tuple[_PeerT, bytes]], int, int, list[int], BaseException | None
]

def block_sums(
    fd: int, start: int, parts: Sequence[tuple[int, int, int, bytes | None]]
) -> bytes | None:
    """Return the encoded checksums of blocks of an open log file that begins at the offset `start`
    of the log, computed without the interpreter lock; None if some bytes cannot be read.

    A part lies in one block; see `Part` in `cometmq.store.log.checksums`.
    """

def write_files(pieces: Sequence[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    """Write bytes to open files without the interpreter lock; a piece is a descriptor, the offset,
    and the bytes.

    Return None, or the index of the first piece that failed and its errno.
    """

def sync_files(fds: Sequence[int]) -> tuple[int, int] | None:
    """Sync open files (fdatasync) without the interpreter lock.

    Return None, or the index of the first file that failed and its errno.
    """

def matches(names: Sequence[str], condition: tuple[Any, ...], record: bytes) -> bool | None:
    """Return whether a record matches a condition (see `PullLane.learn`); None if only Python can
    decide.
    """

def read_range(
    data: bytes,
    position: int,
    base: int,
    *,
    check_crc: bool,
    is_indexing: bool,
    delayed: tuple[str, Sequence[int], int],
) -> tuple[int, int, int, list[tuple[str, int, int, int, bytes]], LaneKeys]:
    """Read the plain records from `position` of `data` on, up to the first that is not plain;
    `data` begins at offset `base` of the log.

    `delayed` has the topic of delayed messages, whose entries hold delivery times, the delays of
    its queues, and the delay of all others.

    Return the total size and the number of records, the store time of the last one, runs of entries
    (topic, queue id, first queue offset, number, entries), and the keys.
    """

def select_due(
    entries: bytes,
    *,
    now_ms: int,
    due_at_most: int,
    copied_until: int,
    file_size: int,
    bytes_max: int,
) -> tuple[int, bool, list[tuple[int, int]]]:
    """Select the entries of a delay level that are due, from the first one on.

    An entry with a time after `due_at_most` is due at once. The selection ends

    - before an entry that is not due, that is due by `copied_until`, or that is a filler
    - when it reaches `bytes_max`, which the first entry may exceed

    Return the number of entries, whether the next one is not due yet, and the offset and size of
    each range of the log that has their records; a range lies within one file.
    """

@final
class DueRecords:
    """Delayed messages that are due: their records are read here, and built again for their real
    queues.
    """

    def __new__(
        cls,
        entries: bytes,
        spans: Sequence[tuple[int, bytes]],
        *,
        store_host: bytes,
        body_bytes_max: int,
        record_bytes_max: int,
        delayed_topic: str,
        half_topic: str,
        now_ms: int,
    ) -> DueRecords:
        """Read the plain records of selected entries until one is not plain.

        `spans` are the ranges that `select_due` has returned, with their bytes. Messages to
        `delayed_topic` or `half_topic`, or for a time later than `now_ms`, are not plain. Raise
        ValueError for a `store_host` of a wrong size.
        """

    @property
    def count(self) -> int:
        """The number of plain records."""

    @property
    def staged_bytes(self) -> int:
        """The size of the bodies and properties of the plain records."""

    def targets(self) -> list[tuple[str, int]]:
        """Return each topic of these messages, with the number of queues that it must have."""

    def place(
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        now_ms: int,
        queues: dict[tuple[str, int], _QueueT],
        create: Callable[[str, int], _QueueT],
    ) -> tuple[int, bytes, list[tuple[_QueueT, bytes, int]], LaneKeys, list[tuple[str, int, int]]]:
        """Build the messages' records from number `first` on, as many as fit before `file_end`; the
        first record is placed at `offset` of the log.

        Return their number, the records, the entries of each queue with their number, the keys, and
        each topic with the number and bytes of its messages. A queue that is missing in `queues` is
        created. Nothing else changes, so a commit may be built again.
        """

def follow_headers(
    data: bytes, offset: int, file_size: int, bytes_max: int
) -> tuple[int, int] | None:
    """Follow the headers of whole records in `data`, which begins at this offset of the log. Stop
    when `bytes_max` is reached; the first record may exceed it.

    Return the total size of the records, and the size of the next one (0 if its header is
    incomplete); None if a header is wrong.
    """

class PanicException(BaseException):
    """A bug in the native code. The arguments of the call are unchanged or released."""

@final
class LaneAnswers:
    """The answers to the sends of one commit, and its requests without an answer."""

    @property
    def count(self) -> int:
        """The number of requests."""

    @property
    def peer(self) -> object:
        """The connection of the first answer; None if there are no answers."""

    @property
    def peer_count(self) -> int:
        """The number of connections."""

    @property
    def half_count(self) -> int:
        """The number of half messages."""

    @property
    def end_count(self) -> int:
        """The number of requests that end a half message; they get no answer."""

    def ended(self) -> tuple[list[int], list[int]]:
        """Return the queue offsets of committed half messages, and those of rolled-back ones."""

    def counts(
        self,
    ) -> tuple[
        list[tuple[str, int, int, int]], list[tuple[int, int, int]], list[tuple[str, str, int]]
    ]:
        """Return three lists:

        - for each topic: its number of sends, of messages, and of bytes in the log
        - for each delay level: its queue id, number of messages, and bytes in the log
        - for each topic and group whose consumers sent messages back: their number
        """

    def committed(self) -> list[tuple[str, int, int]]:
        """Return each topic with its number of committed messages and the bytes of their half
        messages.
        """

    def encode(self) -> list[tuple[object, bytes, int]]:
        """Return, for each connection, the frames of successful answers, and their number."""

    def send(
        self, sockets: Sockets
    ) -> tuple[
        tuple[int, int, list[tuple[Any, bytes, int, bool]]],
        tuple[
            list[tuple[str, int, int, int]], list[tuple[int, int, int]], list[tuple[str, str, int]]
        ],
    ]:
        """Write the answers of `encode` to the sockets in the connections' attribute `direct_fd`,
        and subtract the written ones from their `in_flight`.

        Return the results of `LentAnswers.settle` and `counts`. Nothing is written for a connection
        whose `direct_fd` is negative or whose `is_dirty` is true. If a row is written in part, and
        its socket is secured, the remaining bytes are encrypted.
        """

    def lend(self) -> LentAnswers:
        """Encode successful answers for `LogSyncer.lend`. An answer is lent, so that the thread may
        write it, unless other output of its connection must be written before.
        """

    def rows(
        self,
    ) -> list[
        tuple[
            object,
            int,
            int,
            str,
            int,
            int | None,
            int,
            tuple[int, int, int, str],
            tuple[str, str] | None,
        ]
    ]:
        """Return the parts of each answer, for results other than success:

        - connection, opaque and serialization
        - topic, queue id in the answer, and queue id of the delay level (None without a delay)
        - number of messages, and their position: physical offset, bytes, queue offset, ids
        - for a message sent back, its topic and group; otherwise None
        """

@final
class Sockets:
    """Reads and writes nonblocking sockets; see `cometmq.remoting.transport.lane`."""

    def __new__(cls) -> Sockets: ...
    def receive(
        self,
        epoll: int,
        peers: dict[int, _PeerT],
        count_max: int,
        pulling: _Pulling | None = None,
        sending: _Sending | None = None,
    ) -> tuple[
        list[tuple[_PeerT, bytes]], list[_PeerT], _Answered | None, _StagedRows[_PeerT] | None
    ]:
        """Read once from each socket that the epoll object with the descriptor `epoll` reports as
        readable, at most `count_max` of them. `peers` holds the connection of each registered
        socket.

        A read takes at most 256 KiB, and all reads together at most 4 MiB, in equal shares.

        With `pulling`, chunks of connections whose attribute `habit` is 2 are answered. After a
        chunk that is not answered completely, no other socket is read. If all answers are sent, and
        nothing else has arrived, sockets are read again until there are 16 answers. `pulling` has

        - a lane, and the view and budget of its `answer`
        - the maximum number of requests in a chunk, and of a connection's attribute `in_flight`
        - the size above which the answers to a chunk, or all of them, end
        - whether answers without commits and renewals may be sent at once

        With `sending`, chunks of connections whose `habit` is 1 are staged, if they contain only
        plain sends. `sending` has a lane, the time for `SendLane.stage`, and the maximum number of
        requests in a chunk.

        Return

        - the chunks, or the rest of chunks, that are neither answered nor staged, with their
          connections
        - the connections whose sockets have ended or failed
        - None, or the number of answered requests, the size of their frames, the result of
          `send_answers` for the answers that were sent, whether others are kept, the effects, and
          the error that left the last chunk to Python
        - None, or the staged chunks, the number of requests, the bytes of their bodies and
          properties, the number of answers to each chunk, and the error that left the other chunks
          to Python
        """

    def take_rows(
        self,
        rows: list[tuple[_PeerT, bytes]],
        first: int,
        pulling: _Pulling | None = None,
        sending: _Sending | None = None,
    ) -> tuple[int, list[tuple[_PeerT, bytes]], _Answered | None, _StagedRows[_PeerT] | None]:
        """Answer and stage the chunks of `rows` from the index `first` on, as `receive` does, and
        keep the answers.

        Return the index of the next row, the chunks that are neither answered nor staged, and the
        last two items that `receive` returns.
        """

    def send_answers(self) -> tuple[int, list[_Rest]]:
        """Write the answers that are kept to the sockets in the attribute `direct_fd`. Add the
        bytes that the kernel takes to `direct_bytes`, until it exceeds 64 MiB, and set
        `has_received`.

        Return the number of bytes taken in total and, for each connection to which not everything
        is sent, the bytes not taken, and whether they are encrypted. The latter is None if nothing
        was written, because there is no socket, or the attribute `is_dirty` is true.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Write to a socket; return the number of bytes that the kernel has taken, 0 after an
        error.
        """

    def send_rows(
        self, rows: Sequence[tuple[Any, bytes, int]]
    ) -> tuple[int, list[tuple[int, bytes | None]]]:
        """Write each row's bytes to the socket in its connection's attribute `direct_fd`.

        Return the number of bytes taken in total, and, for each row that is not sent completely,
        its index and the bytes not taken: None, if the attribute is -1.
        """

    def secure(self, fd: int, session: TlsSession) -> None:
        """Decrypt what a socket receives, and encrypt what `send_rows` writes to it.

        If the session has ended or failed, `receive` reports the socket as ended; the session's
        `decrypt(b"")` then returns its last bytes or raises the reason.
        """

    def release(self, fd: int) -> None:
        """Stop encrypting and decrypting on this socket, because the caller does it from now on."""

    def take_overhead(self) -> int:
        """Return how many bytes TLS has added to the data that `receive` has read since the last
        call; negative if it has returned bytes whose records began earlier.
        """

@final
class TlsContext:
    """The certificate, the key and the rules of a TLS server."""

    def __new__(
        cls, chain: bytes, key: bytes, *, trusted: bytes | None, is_required: bool
    ) -> TlsContext:
        """Read files in PEM form; raise ValueError if they cannot be used.

        With `trusted`, clients are asked for a certificate that these authorities have issued;
        unless one is required, they may also present none.
        """

    def session(self) -> TlsSession:
        """Return the TLS state of a new connection."""

@final
class TlsSession:
    """The server's end of one TLS connection."""

    is_ready: bool
    """Whether the handshake is complete."""
    is_finished: bool
    """Whether the peer has announced the end of its input."""
    is_incompatible: bool
    """Whether `decrypt` has failed because rustls supports nothing that the peer offers."""

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decrypted bytes, and the bytes that TLS itself has to send; raise TlsFault if
        the connection must end.
        """

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes as TLS records; raise TlsFault before the end of the handshake."""

    def alert(self) -> bytes:
        """Return the bytes that TLS itself has to send."""

    def close(self) -> bytes:
        """Return the alert that announces the end of the connection."""

class TlsFault(ValueError):
    """The connection must end; the text gives the reason."""

@final
class LogSyncer:
    """A thread that syncs the log, one sync at a time, without the interpreter lock. After a sync,
    it may write the answers that waited for it (`lend`).
    """

    def __new__(cls) -> LogSyncer:
        """Start the thread, which ends with this object. Raise OSError if it cannot be started."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a sync has ended."""

    def start(self, number: int, files: Sequence[int], folder: int | None) -> bool:
        """Sync files, then the folder, as soon as the running sync has ended.

        The descriptors must stay open until the sync has ended or is replaced. Return whether this
        sync replaces one that had not begun.
        """

    def lend(self, number: int, answers: LentAnswers, is_all: bool) -> None:
        """Write these answers as soon as this sync, or the one that replaces it, has succeeded,
        unless an earlier sync has failed. This call does not wait.

        `is_all` says that the loop has no other answers to send after this sync. If all are written
        then, the descriptor becomes readable only after a while.
        """

    def take(self) -> list[tuple[int, float, tuple[int, int] | None, float]]:
        """Return the syncs that have ended since the last call, in order.

        A sync has its number, its duration in seconds, its failure, and the number of seconds since
        its end. The failure is None, or the index of the file (for the folder, the number of files)
        and the errno.
        """

@final
class LentAnswers:
    """Answers that another thread may write to nonblocking sockets; a row has those of one
    connection.

    While a row is lent, the thread may write it, and the attribute `direct_fd` of its connection is
    -2. The socket must not be written or closed until the connection's `loan` is withdrawn.
    """

    def __new__(cls, rows: Sequence[tuple[object, bytes, int]]) -> LentAnswers:
        """Lend these rows, as `LaneAnswers.lend` does: a row has a connection, its frames and the
        number of answers.
        """

    def write(self) -> bool:
        """Write all rows that are lent, as the thread does; return whether all were written
        completely.
        """

    def settle(self) -> tuple[int, int, list[tuple[object, bytes, int, bool]]]:
        """Take all rows back, so that the thread writes nothing more, and subtract the written
        answers from `in_flight` of their connections.

        Return the number of answers that were subtracted, the number of bytes written, and the
        other rows: the connection, the bytes that it must send, the number of its answers, and
        whether they were written except for these bytes.
        """

@final
class Loan:
    """The newest row on loan of a connection."""

    def withdraw(self) -> bytes:
        """End the loan, so that only the caller writes to the socket. Return the rest of a row that
        was written in part, which must be sent first.
        """

@final
class LaneKeys:
    """Keys of a commit or a range for the index, in the order of the log."""

    @property
    def count(self) -> int:
        """The number of keys."""

    def offset(self, index: int) -> int:
        """Return the physical offset of a key's message."""

    def timestamp(self, index: int) -> int:
        """Return the store time of a key's message."""

    def find(self, topic: str, key: str) -> list[int]:
        """Return the offsets of the messages that may hold a key, newest first."""

    def absorb(self, newer: object) -> bool:
        """Append the keys of another object of this class. Return False and change nothing if it
        has another class, or if there are 256 keys already.
        """

    def link(
        self,
        start: int,
        count: int,
        slots: Buffer,
        dirty: Buffer,
        page_slots: int,
        number: int,
        begin_ms: int,
    ) -> tuple[bytes, int]:
        """Link keys into the slots of an index file; their entries are numbered from `number` on.
        Mark the pages that change in `dirty`.

        Return the entries, and the number of slots that were empty. `begin_ms` is the time of the
        file's first message.
        """
