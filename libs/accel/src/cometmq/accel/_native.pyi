# SPDX-License-Identifier: Apache-2.0
"""Types of the native module; the code is in `rust/`."""

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
        """Each row has an access key, a secret, whether no right binds the account, its default
        rights to topics and to groups, and its rights by topic, or by a group's retry topic.
        """

@final
class SendLane:
    """The plain sends of one commit, from their bytes to the commit, which places them."""

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
        """Start without topics.

        `delayed` is the topic of delayed messages, with the delays of its queues in ms; without
        delays, delayed sends are left to Python. `transactions` holds the topics of half and op
        messages, and the properties and tag code of every op message.

        `json` holds the parts of an answer's JSON header around the id, queue id, queue offset and
        opaque; `binary_head`, `flag` and `binary_entries` are the constant parts of the header in
        the other encoding. `plain_json` and `plain_binary` are the parts of headers without fields
        around the opaque. With `accounts`, only sends that these accounts have signed and may make
        are taken, and the ends of transactions are left to Python. Raise ValueError for a
        `store_host` of a wrong size.
        """

    @property
    def staged_count(self) -> int:
        """The number of staged sends."""

    def learn(self, topic: str, queue_count: int) -> bool:
        """Take sends to this topic from now on; return whether it is new."""

    def learn_back(
        self, group: str, topic: str, queue_count: int, count_max: int, version_min: int
    ) -> bool:
        """Take messages that this group sends back from now on; return whether it is new.

        `topic` is its retry topic, `queue_count` the number of queues for retries, `count_max` how
        often a message may be retried, unless a client of `version_min` or later says so.
        """

    def forget_backs(self) -> None:
        """Stop taking messages that each group sends back until it is learned again."""

    def forget(self) -> None:
        """Stop taking sends to each topic, and messages that each group sends back, until they are
        learned again; staged sends remain.
        """

    def take_halves(self, takes_halves: bool) -> None:
        """Take half messages from now on, or leave them to Python, as is the default."""

    def keep_halves(self, answers: LaneAnswers) -> None:
        """Keep the half messages of these answers in memory, where `stage` finds them."""

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
        """Stage the plain sends and pulls among the first `count_max` frames of a chunk, until the
        sends have more than 1 MiB, with a price for each key.

        With `now_ms`, oneway requests that end a half message in memory count as sends; the half
        message is then removed from memory. Return the parts of the chunk in order, each as its
        number of sends (0: frames for Python; negative: pulls and renewals), the bytes of their
        bodies and properties, its begin and its end. Anything after the last part is for Python
        too. Pulls and renewals are staged in `pulls`, until the next call.

        With `backs`, messages sent back count as sends: the number of those before, which selects
        the queue, and a function that returns the record at an offset of the log, or None if it is
        not in memory.
        """

    def drop_from(self, first: int) -> None:
        """Remove the staged sends from this number on."""

@final
class LaneRuns:
    """The store's end of a lane: what a commit stores of its staged sends."""

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
        """Build records of staged sends, as many as fit, starting at an offset of the log.

        Return the number of sends and of messages, the records, each queue's entries and their
        number, the keys, and the answers in groups, each of which waits for the disk or does not.
        A queue that is missing in `queues` is created. Nothing staged changes, so a commit may be
        built again.
        """

    def unplaced(self, first: int, count: int) -> LaneAnswers:
        """Return answers to sends that will not be stored."""

    def release(self) -> None:
        """Remove everything staged, and release its chunks."""

PullEffects: TypeAlias = tuple[
    list[tuple[str, str, int, int, int]], list[tuple[str, str, int, int]], list[Any], int, float
]
"""Topic, group, pulls, messages and bytes of each reader; group, topic, queue id and offset of each
commit; the locks of each renewal; what is left of the filters' budget; the seconds that it took.
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
    """Plain pulls and renewals of queue locks: from their bytes to the bytes of their answers."""

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

        The limits are those of an answer from memory; only the last `memory_bytes` of the log count
        as memory. `json` holds the parts of an answer's JSON header around the four numbers and the
        opaque; `binary_head`, `flag`, `remark` and `names` are the constant parts in the other
        encoding. `plain_json` and `plain_binary` hold the parts around the opaque in the header of
        an answer without fields. `read_log` gets a view, the start of a block of one file, a number
        of known bytes, and a number of bytes: those between the two numbers are wanted.
        `read_entries` gets a queue, an offset and a number of entries. Both return None if the data
        is not in memory. Instead of the bytes, `read_log` may return a file, an object that keeps
        it open, its descriptor, the position, and the place of the block's checksums: an object
        that keeps their file open, its descriptor, the offset of the block, and the number of the
        first entry and of the one behind the last. The bytes are then read if that does not block,
        and must match. If a block has checksums for all its bytes, later reads do not ask for its
        place until `clear`, but call the file's method `descriptor` for the object that keeps it
        open, whose attribute `number` is the descriptor. With `accounts`, only pulls that these
        accounts have signed and may make are taken, and no renewals.
        """

    @property
    def reader_count(self) -> int:
        """The number of readers that are known."""

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
        """Take pulls with the group, topic and subscription of this header from now on.

        The filter is a list of tag codes, or a condition on named properties as
        `cometmq.broker.filters.sql.program` writes it. Return whether the reader is new.
        """

    def forget(self) -> None:
        """Stop taking pulls until they are learned again."""

    def learn_renewal(
        self, serialization: int, head: bytes, body: bytes, answer: bytes, locks: object
    ) -> bool:
        """Take requests to lock queues that have this body from now on.

        `answer` is the body of their answer; `locks` is what `answer` returns for each of them.
        Return whether the request is new.
        """

    def forget_renewals(self) -> None:
        """Stop taking requests to lock queues until they are learned again."""

    def clear(self) -> None:
        """Drop all cached blocks."""

    def frame(self, index: int) -> tuple[int, int]:
        """Return the begin and end of a staged request's frame."""

    def answer(
        self, first: int, count: int, room: int, view: _View, budget: int
    ) -> tuple[bytes, int, int, int, bool, PullEffects]:
        """Answer staged requests until one is for Python, or the answers exceed `room` bytes.

        Filters may take `budget` steps in total, of about 1 ns each; beyond that, a pull with a
        filter ends with what it has found, or is for Python if it has found nothing.

        Return the frames, the number of answered requests, the begin and end of the next request's
        frame (0: none), whether that request is for Python, and the effects.
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

def file_crcs(fd: int, parts: Sequence[tuple[int, int, int]]) -> list[int] | None:
    """Return the CRC-32 of each part of an open file, computed without the interpreter lock.

    A part is its begin, its end, and the CRC of the bytes before it. Return None if some bytes
    cannot be read.
    """

def write_files(pieces: Sequence[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    """Write bytes to open files without the interpreter lock; a piece is a descriptor, the offset,
    and the bytes.

    Return None, or the index of the first piece that failed and its errno.
    """

def sync_files(fds: Sequence[int]) -> tuple[int, int] | None:
    """Bring all written bytes of open files to the disk (fdatasync) without the interpreter lock.

    Return None, or the index of the first file that failed and its errno.
    """

def matches(names: Sequence[str], condition: tuple[Any, ...], record: bytes) -> bool | None:
    """Return whether a record matches a condition; None if only Python can tell."""

def read_range(
    data: bytes,
    position: int,
    base: int,
    *,
    check_crc: bool,
    is_indexing: bool,
    delayed: tuple[str, Sequence[int], int],
) -> tuple[int, int, int, list[tuple[str, int, int, int, bytes]], LaneKeys]:
    """Read plain records, starting at a position in `data`, which begins at log offset `base`.

    Entries of the topic in `delayed` hold delivery times: its queues have the listed delays, and
    its remaining queues have the last of them. Reading ends where no plain record begins.

    Return the bytes and the number of records, the store time of the last one, runs of entries
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

    A time beyond `due_at_most` is due at once. The selection ends before an entry that is not due,
    is due by `copied_until`, or is a filler, and when it reaches `bytes_max`, which the first entry
    may exceed.

    Return the number of entries, whether the next one is not due, and the offset and size of each
    part of the log that has their records; a part lies within one file.
    """

@final
class DueRecords:
    """Delayed messages, from their records to records for their real queues."""

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

        `spans` are the parts of the log that `select_due` named, with their bytes. Messages to
        `delayed_topic` or `half_topic`, or for a time later than `now_ms`, are not plain. Raise
        ValueError for a `store_host` of a wrong size.
        """

    @property
    def count(self) -> int:
        """The number of plain records."""

    @property
    def staged_bytes(self) -> int:
        """The size of their bodies and properties."""

    def targets(self) -> list[tuple[str, int]]:
        """Return each topic with the number of queues that its messages need."""

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
        """Build the messages' records, as many as fit, starting at an offset of the log.

        Return their number, the records, each queue's entries and their number, the keys, and each
        topic with the number and bytes of its messages. A queue that is missing in `queues` is
        created. Nothing else changes, so a commit may be built again.
        """

def follow_headers(
    data: bytes, offset: int, file_size: int, bytes_max: int
) -> tuple[int, int] | None:
    """Follow the headers of whole records in `data`, which begins at this offset of the log.

    Return the bytes of the records and the size of the next one, or 0 if its header is incomplete;
    None if a header is wrong. Stop when `bytes_max` is reached, which the first record may exceed.
    """

class PanicException(BaseException):
    """A bug in the native code; its arguments are unchanged or released."""

@final
class LaneAnswers:
    """Answers to sends of one commit, and its requests without an answer."""

    @property
    def count(self) -> int:
        """The number of requests."""

    @property
    def peer(self) -> object:
        """The first connection; None if there are no answers."""

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
        """Return each topic with its number of sends, of messages, and of bytes in the log; each
        delay level's queue id, number of messages, and bytes in the log; and each topic and group
        whose consumers sent messages back, and their number.
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
        """Write successful answers, as `encode` returns them, to the socket in each connection's
        attribute `direct_fd`, and subtract those written from `in_flight`.

        Return what `LentAnswers.settle` and `counts` return; no row is written if the attribute is
        negative, or `is_dirty` is true. The bytes left of a row that is written in part are
        encrypted, if the socket is secured.
        """

    def lend(self) -> LentAnswers:
        """Encode successful answers for `LogSyncer.lend`, and lend those that nothing else of their
        connections must precede.
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
        """Return each answer as values, for results other than success.

        Connection, opaque, serialization, topic, queue id of the answer, queue id of the delay
        level (None without a delay), number of messages, the place: physical offset, bytes, queue
        offset, ids; and for a message sent back, its topic and group.
        """

@final
class Sockets:
    """Reads and writes of nonblocking sockets; see `remoting.transport.sockets`."""

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
        """Read once from each socket that an epoll object reports as readable, at most `count_max`.

        `epoll` is its descriptor; `peers` holds the connection of each registered socket. Return
        the connections with what they have sent, and the connections whose sockets have ended or
        failed. A read takes at most 256 KiB, and all reads together at most 4 MiB, in equal shares.

        `pulling` is a lane, the view and budget of its `answer`, the maximum number of requests in
        a chunk, the maximum of a connection's attribute `in_flight`, the size above which the
        answers to a chunk, or all of them, end, and whether answers may be sent if their requests
        have no commits and renewals. With it, chunks of pulls and renewals are answered if their
        connection's attribute `habit` is 2; the rest of a chunk that is not answered is returned.
        After such a chunk, no other socket is read. If all answers are sent, and nothing else has
        arrived, sockets are read again until there are 16 answers.

        `sending` is a lane, the time for `SendLane.stage`, and the maximum number of requests in a
        chunk. With it, chunks that contain only plain sends are staged if the attribute is 1.

        Return also None if no chunk could be answered, or the number of requests, the bytes of
        their chunks, what `send_answers` returns for the answers that were sent, whether others are
        kept, the effects, and the error that left the last chunk to Python; and None if no chunk
        could be staged, or the chunks that are, the number of requests, the bytes of their bodies
        and properties, the number of answers to each chunk, and the error that left the other
        chunks to Python.
        """

    def take_rows(
        self,
        rows: list[tuple[_PeerT, bytes]],
        first: int,
        pulling: _Pulling | None = None,
        sending: _Sending | None = None,
    ) -> tuple[int, list[tuple[_PeerT, bytes]], _Answered | None, _StagedRows[_PeerT] | None]:
        """Answer and stage chunks as `receive` does, from a row on, and keep the answers; return
        the number of the next row, what is left, and the same for what is answered and staged.
        """

    def send_answers(self) -> tuple[int, list[_Rest]]:
        """Write the answers that are kept to the sockets in the attribute `direct_fd`, add what is
        taken to `direct_bytes` until that exceeds 64 MiB, and set `has_received`.

        Return the number of bytes taken in total, and the connections to which not everything is
        sent, with the bytes not taken, and whether they are encrypted: None, if there is no socket,
        or the attribute `is_dirty` is true.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Return the number of bytes that the kernel has taken, 0 after an error."""

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
        """Leave encryption to the caller again."""

    def take_overhead(self) -> int:
        """Return how many more bytes `receive` has read than it has returned since the last call;
        negative if it has returned bytes whose records began earlier.
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
        """Start a connection."""

@final
class TlsSession:
    """The server's end of one TLS connection."""

    is_ready: bool
    """Whether the handshake is complete."""
    is_finished: bool
    """Whether the peer has announced the end of its input."""
    is_incompatible: bool
    """Whether the connection has failed because the peer offers nothing that rustls supports."""

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decrypted bytes, and the bytes that TLS itself has to send; raise TlsFault if
        the connection must end.
        """

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes as TLS records; raise TlsFault before the end of the handshake."""

    def alert(self) -> bytes:
        """Return what TLS itself has to send."""

    def close(self) -> bytes:
        """Return the alert that announces the end of the connection."""

class TlsFault(ValueError):
    """A connection must end; the text gives the reason."""

@final
class LogSyncer:
    """A thread that syncs the log, one sync at a time, without the interpreter lock."""

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
        """Write answers, without waiting, as soon as this sync, or the one that replaces it, has
        succeeded, unless any sync has failed before.

        `is_all` says that the loop has no other answers to send after this sync. If all were
        written, the descriptor becomes readable only after a while.
        """

    def take(self) -> list[tuple[int, float, tuple[int, int] | None, float]]:
        """Return the syncs that have ended since the last call, in order.

        Each has its number, its duration in seconds, and None, or how it failed: the index of the
        file (for the folder, the number of files) and the errno. The last item is the number of
        seconds since its end.
        """

@final
class LentAnswers:
    """Answers of a run that another thread writes to nonblocking sockets, one row per connection.

    While a row of a connection is lent, its `direct_fd` is -2. The socket must not be written or
    closed until its `loan` is withdrawn.
    """

    def __new__(cls, rows: Sequence[tuple[object, bytes, int]]) -> LentAnswers:
        """Lend frames, as `LaneAnswers.lend` does: connections, their frames and the number of
        answers.
        """

    def write(self) -> bool:
        """Write all rows that are lent, as the thread does; return whether all are written."""

    def settle(self) -> tuple[int, int, list[tuple[object, bytes, int, bool]]]:
        """Take all rows back, and subtract the written ones from what their connections owe.

        Return the number of answers that were subtracted, the number of bytes written, and the
        other rows: the connection, what it must send, the number of its answers, and whether they
        were written except for these bytes.
        """

@final
class Loan:
    """The newest answers of a connection that were lent."""

    def withdraw(self) -> bytes:
        """Leave the connection's socket to the caller; return the rest of a row that was written in
        part, which must be sent first.
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
        """Append the keys of another object of this class; return False, with nothing changed, for
        other objects, or if there are 256 keys already.
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
        """Link keys into the slots of an index file, numbered from `number` on.

        Mark the pages that change in `dirty`; return the entries and how many slots were empty.
        """
