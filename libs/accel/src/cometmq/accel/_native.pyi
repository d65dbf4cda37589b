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

@final
class SendLane:
    """The plain sends of one commit, from their bytes to records and answers."""

    def __new__(
        cls,
        *,
        store_host: bytes,
        cluster: str,
        frame_bytes_max: int,
        body_bytes_max: int,
        request_bytes_max: int,
        json: list[bytes],
        binary_head: bytes,
        flag: int,
        binary_entries: bytes,
        delayed: tuple[str, Sequence[int]],
        transactions: tuple[str, str, str, int],
    ) -> SendLane:
        """Start without topics.

        `delayed` is the topic of delayed messages, with the delays of its queues in ms; without
        delays, delayed sends are left to Python. `transactions` holds the topics of half and op
        messages, and the properties and tag code of every op message.

        `json` surrounds id, queue id, queue offset and opaque in the JSON header of an answer;
        `binary_head`, `flag` and `binary_entries` are its constant parts in the other encoding.
        Raise ValueError for a `store_host` that is not IPv4.
        """

    @property
    def staged_count(self) -> int:
        """The number of staged sends."""

    def learn(self, topic: str, queue_count: int) -> bool:
        """Take sends to this topic from now on; return whether it is new."""

    def forget(self) -> None:
        """Take sends to no topic until it is learned again; what is staged stays."""

    def take_halves(self, takes_halves: bool) -> None:
        """Take half messages from now on, or leave them to Python, as at first."""

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
    ) -> list[tuple[int, int, int, int]]:
        """Stage the plain sends and pulls among the first `count_max` frames of a chunk.

        With `now_ms`, oneway requests that end a half message in memory count as sends; the half
        message then leaves the memory. The parts of the chunk follow one another: number of sends
        (0: frames for Python; negative: pulls and renewals), bytes of their bodies and properties,
        begin, end. What follows the last part is for Python too. Pulls and renewals are staged in
        `pulls`, until the next call.
        """

    def stage_rows(
        self, rows: Sequence[tuple[Any, bytes]], count_max: int, *, now_ms: int | None = None
    ) -> tuple[int, int, list[int]]:
        """Stage the chunks that contain only plain sends, at most `count_max` each.

        A row has a connection, whose `host` is read, and its chunk. Return the number of sends, the
        bytes of their bodies and properties, and for each chunk the number of its answers, or -1 if
        nothing of it is staged. For `now_ms` see `stage`.
        """

    def drop_from(self, first: int) -> None:
        """Remove the staged sends from this number on."""

    def release(self) -> None:
        """Remove everything staged and let go of its chunks."""

    def place(
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        now_ms: int,
        queue_of: Callable[[str, int], _QueueT],
    ) -> tuple[
        int, int, bytes, list[tuple[_QueueT, bytes, int]], LaneKeys, list[tuple[bool, LaneAnswers]]
    ]:
        """Build the records of staged sends from an offset of the log on, as far as they fit.

        Return the number of sends, of messages, the records, entries and their number for each
        queue, the keys, and the answers in groups that do or do not wait for the disk. Nothing
        staged changes, so a commit may be built again.
        """

    def unplaced(self, first: int, count: int) -> LaneAnswers:
        """Return answers to sends that will not be stored."""

PullEffects: TypeAlias = tuple[
    list[tuple[str, str, int, int, int]], list[tuple[str, str, int, int]], list[Any], int
]
"""Topic, group, pulls, messages and bytes of each reader; group, topic, queue id and offset of each
commit; the locks of each renewal; what is left of the budget of filters.
"""

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
        read_log: Callable[[Any, int, int], Buffer | None],
        read_entries: Callable[[Any, int, int], Buffer | None],
    ) -> PullLane:
        """Start without readers and renewals.

        The limits are those of an answer from memory; `memory_bytes` before the log's end, memory
        ends. `json` surrounds the four numbers and the opaque in the JSON header of an answer;
        `binary_head`, `flag`, `remark` and `names` are the constant parts in the other encoding.
        `plain_json` and `plain_binary` surround the opaque in the header of an answer without
        fields.
        `read_log` gets a view, an offset and a number of bytes in one file, `read_entries` a queue,
        an offset and a number of entries; both return None if that is not in memory.
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
        """Take no pulls until they are learned again."""

    def learn_renewal(
        self, serialization: int, head: bytes, body: bytes, answer: bytes, locks: object
    ) -> bool:
        """Take requests to lock queues that have this body from now on.

        `answer` is the body of their answer; `locks` is what `answer` returns for each of them.
        Return whether the request is new.
        """

    def forget_renewals(self) -> None:
        """Take no requests to lock queues until they are learned again."""

    def clear(self) -> None:
        """Drop all cached blocks."""

    def frame(self, index: int) -> tuple[int, int]:
        """Return begin and end of a staged request's frame."""

    def answer(
        self, first: int, count: int, room: int, view: _View, budget: int
    ) -> tuple[bytes, int, int, int, bool, PullEffects]:
        """Answer staged requests until one is for Python, or the answers exceed `room` bytes.

        Filters may examine `budget` entries in all; above that, pulls with filters are for Python.

        Return the frames, the number of answered requests, begin and end of the next one's frame
        (0: none), whether that is for Python, and the effects.
        """

    def answer_rows(
        self,
        rows: list[tuple[Any, bytes]],
        first: int,
        count_max: int,
        room: int,
        bytes_max: int,
        view: _View,
        budget: int,
    ) -> tuple[list[tuple[Any, bytes, int]], int, int, int, PullEffects]:
        """Answer chunks of several connections, as `cometmq.remoting.transport.lane` describes;
        begin no other chunk once all answers exceed `bytes_max`. For `budget` see `answer`.

        What was staged before is forgotten.
        """

def crcs(data: bytes, parts: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the CRC-32 of each part of `data` without the interpreter lock.

    A part has its begin, its end, and the CRC of the bytes before it. Raise IndexError if a part
    lies outside the data.
    """

def matches(names: Sequence[str], condition: tuple[Any, ...], record: bytes) -> bool | None:
    """Return whether a record matches a condition; None if only Python can say."""

def read_range(
    data: bytes,
    position: int,
    base: int,
    *,
    check_crc: bool,
    is_indexing: bool,
    delayed: tuple[str, Sequence[int], int],
) -> tuple[int, int, int, list[tuple[str, int, int, int, bytes]], LaneKeys]:
    """Read the plain records from a position of `data` on; its first byte is at log offset `base`.

    Entries of the topic in `delayed` hold delivery times: its queues have the listed delays, and
    all its other queues the last one. Reading ends where no plain record begins.

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

    A time beyond `due_at_most` is due at once. The selection ends at an entry that is not due, due
    before `copied_until`, or a filler, and before `bytes_max`, but not before the first entry.

    Return the number of entries, whether the next one is not due, and offset and size of the parts
    of the log that have their records; a part lies within one file.
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
    ) -> DueRecords:
        """Read the plain records of selected entries until one is not plain.

        `spans` are the parts of the log that `select_due` named, with their bytes. Messages to
        `delayed_topic` or `half_topic` are not plain. Raise ValueError for a `store_host` that is
        not IPv4.
        """

    @property
    def count(self) -> int:
        """The number of plain records."""

    @property
    def staged_bytes(self) -> int:
        """The size of their bodies and properties."""

    def place(
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        now_ms: int,
        queue_of: Callable[[str, int], _QueueT],
    ) -> tuple[int, bytes, list[tuple[_QueueT, bytes, int]], LaneKeys, list[tuple[str, int, int]]]:
        """Build the messages' records from an offset of the log on, as far as they fit.

        Return their number, the records, entries and their number for each queue, the keys, and
        topic, number and bytes of the messages for each topic. Nothing changes, so a commit may be
        built again.
        """

def follow_headers(
    data: bytes, offset: int, file_size: int, bytes_max: int
) -> tuple[int, int] | None:
    """Follow the headers of whole records in `data`, which begins at this offset of the log.

    Return the bytes of the records and the size of the next one, 0 if its header is not whole;
    None if a header is wrong. Stop before `bytes_max`, but not before the first record.
    """

class PanicException(BaseException):
    """A bug of the native code; what it was called with is unchanged or released."""

@final
class LaneAnswers:
    """Answers to sends of one commit, and its requests without an answer."""

    @property
    def count(self) -> int:
        """The number of requests."""

    @property
    def half_count(self) -> int:
        """The number of half messages."""

    @property
    def end_count(self) -> int:
        """The number of requests that end a half message; they get no answer."""

    def ended(self) -> tuple[list[int], list[int]]:
        """Return the queue offsets of half messages that are committed and rolled back."""

    def totals(self) -> list[tuple[str, int, int, int]]:
        """Return topic, number of sends, of messages, and bytes in the log, for each topic."""

    def committed(self) -> list[tuple[str, int, int]]:
        """Return topic, number of committed messages, and bytes of their half messages."""

    def delays(self) -> list[tuple[int, int, int]]:
        """Return queue id, number of messages, and bytes in the log, for each delay level."""

    def encode(self, lane: SendLane) -> list[tuple[object, bytes, int]]:
        """Return the frames of success, as this lane makes them, and their number, for each
        connection.
        """

    def rows(
        self,
    ) -> list[tuple[object, int, int, str, int, int | None, int, tuple[int, int, int, str]]]:
        """Return each answer as values, for results other than success.

        Connection, opaque, serialization, topic, queue id of the answer, queue id of the delay
        level (None without a delay), number of messages, and the place: physical offset, bytes,
        queue offset, ids.
        """

@final
class Sockets:
    """Reads and writes of nonblocking sockets; see `cometmq.remoting.transport.direct.Sockets`."""

    def __new__(cls) -> Sockets: ...
    def receive(self, fds: list[int]) -> list[bytes | None]:
        """Read once from each socket: no bytes if none have arrived, None at the end of the input
        or after an error.

        A read takes at most 256 KiB, and all reads together at most 4 MiB, in equal shares.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Return the number of bytes that the kernel has taken, 0 after an error."""

    def send_rows(
        self, rows: Sequence[tuple[Any, bytes, int]]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Write the bytes of each row to the socket in the attribute `direct_fd` of its connection.

        Return the number of bytes taken in total, and the index and the number of bytes taken of
        each row that is not sent completely.
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
