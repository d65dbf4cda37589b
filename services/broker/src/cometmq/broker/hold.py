# SPDX-License-Identifier: Apache-2.0
"""Held pulls by queue (pure): long polling without a thread or timer per pull.

A pull that finds no messages is held until its filter accepts an arriving message, or until its
deadline. It then moves to `ready`. Ready pulls are run again, a bounded number in each turn of the
loop, and are not held a second time.

A record filter (SQL) needs the message's record; the tag code is not enough. When messages arrive,
pulls with such a filter are added to `unsure`; the caller tests the messages and calls `release`
when one matches.

A pull that waits for a repair ignores arrivals: it wakes up when entries of its queue have been
examined.

Compatibility: a message that the filter rejects leaves the pull held. `sweep` (every 5 s) wakes
every pull whose queue has grown, so that the offset of a filtering consumer advances.

Idle cost: `expire` visits only pulls that are due, and `sweep` only queues with a new message or a
new pull since the last sweep. Held pulls without traffic cost nothing until their deadline.

One connection cannot harm others with its pulls: it holds few per queue, because each message
visits all pulls of its queue; and when there are too many, the pulls of the connection that holds
most are woken, so that their consumers pull again. The pulls that many connections hold on one
queue are visited in parts, one in each turn of the loop (`visit_some`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Final

import msgspec

from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.filters.tags import CODE_BYTES, TagFilter, codes_of
from cometmq.broker.limits import HELD_BYTES_MAX, SAME_QUEUE_MAX
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.store.queues.consume_queue import ConsumeQueue

WOKEN_MAX: Final = 1_000
"""Maximum number of pulls that are woken at once to make room; this takes 3 ms."""
VISITED_MAX: Final = 1_000
"""Maximum number of pulls that are visited in one turn; this takes 1 ms, or 4 ms if all wake up.
Fewer if messages with many tags have arrived.
"""
CODES_PER_VISIT: Final = 64
"""Number of tag codes that are looked up in a filter in the time of a visit."""
HELD_BYTES: Final = 1_024
"""Memory of a held pull, besides the bytes of the request and the codes of its filter."""

Key = tuple[str, int]
"""Topic and queue id."""


class HeldPull(msgspec.Struct, eq=False):
    call: Call[PullMessage]
    deadline_ms: int  # monotonic
    accept: TagFilter | RecordFilter | None
    accounts: object = None  # by which the pull was allowed
    awaits_repair: bool = False  # it waits for an examination, and not for messages
    tested_offset: int = 0  # end of the messages that a record filter has tested
    is_unsure: bool = False
    is_held: bool = False

    @property
    def queue_offset(self) -> int:
        return self.call.header.queue_offset

    @property
    def key(self) -> Key:
        header = self.call.header
        return header.topic, header.queue_id

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the pull takes while it is held. Pulls with the same record
        filter share it; a tag filter belongs to one pull.
        """
        size = HELD_BYTES + len(self.call.head) + len(self.call.body)
        if self.accept is None or isinstance(self.accept, RecordFilter):
            return size
        return size + CODE_BYTES * len(codes_of(self.accept))


MaxOffset = Callable[[str, int], int]


class Visit(msgspec.Struct):
    """A visit of all pulls of a queue that has too many to visit at once.

    Messages that arrive during a visit wait for the next one, because some pulls were visited
    before they arrived.
    """

    todo: deque[HeldPull] = msgspec.field(default_factory=deque)
    codes: set[int | None] = msgspec.field(default_factory=set)
    """The tag codes of the new messages; None if one is unknown."""
    is_sweep: bool = False
    next_codes: set[int | None] = msgspec.field(default_factory=set)
    is_sweep_next: bool = False
    max_offset: int = 0

    def begin(self, pulls: Iterable[HeldPull]) -> bool:
        """Begin the next visit; return False if it is not needed."""
        self.codes, self.next_codes = self.next_codes, set()
        self.is_sweep, self.is_sweep_next = self.is_sweep_next, False
        self.todo.extend(pulls)
        return bool(self.todo and (self.codes or self.is_sweep))


class HoldTable:
    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.ready: deque[HeldPull] = deque()
        self.unsure: deque[HeldPull] = deque()
        self.visits: dict[Key, Visit] = {}
        self._queues: dict[Key, dict[HeldPull, None]] = {}  # the longest held first
        self._peers: dict[object, dict[Key, list[HeldPull]]] = {}
        self._sizes: dict[object, int] = {}  # by peer
        self._due: dict[int, set[HeldPull]] = {}  # by the second of the deadline
        self._unswept: set[Key] = set()

    def hold(self, held: HeldPull, *, count_max: int) -> None:
        """Hold a pull; wake others if `count_max` pulls are already held, if they take too much
        memory, or if too many are of this connection and queue.
        """
        size_bytes = held.size_bytes
        if self.count >= count_max or self.size_bytes + size_bytes > HELD_BYTES_MAX:
            self._wake_half_of_most()
        key, peer = held.key, held.call.peer
        of_peer = self._peers.get(peer)
        if of_peer is None:
            of_peer = self._peers[peer] = {}
        same = of_peer.get(key)
        if same is None:
            of_peer[key] = [held]
        else:
            if len(same) >= SAME_QUEUE_MAX:
                self._wake(same[0])
            same.append(held)
        self._queues.setdefault(key, {})[held] = None
        self._unswept.add(key)  # a message may have arrived since the pull was read
        second = held.deadline_ms // 1000
        due = self._due.get(second)
        if due is None:
            due = self._due[second] = set()
        due.add(held)
        self.count += 1
        self.size_bytes += size_bytes
        self._sizes[peer] = self._sizes.get(peer, 0) + size_bytes
        held.is_held = True
        held.tested_offset = held.queue_offset

    def note_arrivals(self, queues: Iterable[ConsumeQueue], log_offset: int | None) -> None:
        """Wake pulls of queues that got messages; see `cometmq.store.publishing.ArrivalListener`.

        A commit may touch hundreds of queues, few of which have held pulls.
        """
        if not self._queues:
            return
        for queue in queues:
            if (queue.topic, queue.queue_id) in self._queues:
                tag_code = queue.newest_tag_code(log_offset)
                self.arrived(queue.topic, queue.queue_id, queue.max_offset, tag_code)

    def arrived(self, topic: str, queue_id: int, max_offset: int, tag_code: int | None) -> None:
        """Wake a queue's pulls whose filter accepts a message that was just dispatched."""
        key = topic, queue_id
        if key not in self._queues:
            return
        self._unswept.add(key)
        if self._is_visited_later(key):
            visit = self._visit(key, max_offset)
            visit.next_codes.add(tag_code)
        else:
            self._wake_if(key, lambda held: self._accepts(held, max_offset, tag_code))

    def note_examined(self, queue: ConsumeQueue) -> None:
        """Wake the pulls that waited for the examination of entries of this queue."""
        key = queue.topic, queue.queue_id
        if key in self._queues:
            self._wake_if(key, lambda held: held.awaits_repair)

    def _accepts(self, held: HeldPull, max_offset: int, tag_code: int | None) -> bool:
        if held.queue_offset >= max_offset or held.awaits_repair:
            return False
        accept = held.accept
        # Such a filter needs the record, which this call does not have; the pull is tested once, at
        # the end of the commit.
        if isinstance(accept, RecordFilter):
            if not held.is_unsure:
                held.is_unsure = True
                self.unsure.append(held)
            return False
        # If the tag code is unknown, the new messages may have any tag, so the pull must read them.
        return tag_code is None or accept is None or accept(tag_code)

    def sweep(self, now_ms: int, max_offset: MaxOffset) -> None:
        """Wake pulls that are due or whose queue has grown."""
        # Queues that neither grew nor got a pull since the last sweep have nothing to wake, and
        # most held pulls wait on such queues; `expire` handles deadlines.
        keys, self._unswept = self._unswept & self._queues.keys(), set()
        for key in keys:
            if self._is_visited_later(key):
                self._visit(key, max_offset(*key)).is_sweep_next = True
            else:
                self._wake_if(key, partial(_is_stale, max_offset(*key), now_ms))

    def _is_visited_later(self, key: Key) -> bool:
        return len(self._queues[key]) > VISITED_MAX or key in self.visits

    def _visit(self, key: Key, max_offset: int) -> Visit:
        visit = self.visits.setdefault(key, Visit())
        visit.max_offset = max_offset
        return visit

    def visit_some(self) -> None:
        """Visit up to VISITED_MAX pulls of queues with too many; the queues take turns."""
        left = VISITED_MAX
        while left > 0 and self.visits:
            key, visit = next(iter(self.visits.items()))
            del self.visits[key]
            if not visit.todo and not visit.begin(self._queues.get(key, ())):
                continue
            self.visits[key] = visit  # the last one now
            weight = 1 + len(visit.codes) // CODES_PER_VISIT
            count = min(-(-left // weight), len(visit.todo))
            left -= count * weight
            for held in [visit.todo.popleft() for _ in range(count)]:
                if held.is_held and self._is_woken(held, visit):
                    self._wake(held)

    def _is_woken(self, held: HeldPull, visit: Visit) -> bool:
        if visit.is_sweep and _is_stale(visit.max_offset, 0, held):
            return True
        accept, codes = held.accept, visit.codes
        if not codes:
            return False
        if accept is not None and not isinstance(accept, RecordFilter) and None not in codes:
            is_wanted = not codes.isdisjoint(codes_of(accept))
        else:
            is_wanted = True
        return is_wanted and self._accepts(held, visit.max_offset, None)

    def expire(self, now_ms: int) -> None:
        """Wake pulls that are due."""
        # The current second may hold pulls that are not due yet.
        seconds = [second for second in self._due if second <= now_ms // 1000]
        due = [held for second in seconds for held in self._due[second]]
        for held in sorted(
            (it for it in due if it.deadline_ms <= now_ms), key=attrgetter("deadline_ms")
        ):
            self._wake(held)

    def drop(self, peer: object) -> None:
        """Drop the pulls of a closed connection, up to 16,384."""
        for held in self._of_peer(peer):
            self.release(held)

    def wake_all(self) -> None:
        """Wake all pulls because the broker is stopping."""
        for key in list(self._queues):
            self._wake_if(key, lambda _: True)

    def release(self, held: HeldPull) -> bool:
        """Remove a pull that is about to be answered; return False if it is not held."""
        if not held.is_held:
            return False
        held.is_held = False
        self.count -= 1
        size_bytes = held.size_bytes
        self.size_bytes -= size_bytes
        self._sizes[held.call.peer] -= size_bytes
        key, peer, second = held.key, held.call.peer, held.deadline_ms // 1000
        of_queue, of_peer, due = self._queues[key], self._peers[peer], self._due[second]
        del of_queue[held]
        if not of_queue:
            del self._queues[key]
        of_peer[key].remove(held)
        if not of_peer[key]:
            del of_peer[key]
        if not of_peer:
            del self._peers[peer], self._sizes[peer]
        due.discard(held)
        if not due:
            del self._due[second]
        return True

    def is_behind(self, held: HeldPull, max_offset: MaxOffset) -> bool:
        """Return whether the queue has grown since a held pull's filter last tested it."""
        header = held.call.header
        held.is_unsure = held.is_held and held.tested_offset < max_offset(
            header.topic, header.queue_id
        )
        return held.is_unsure

    def take_unsure(self, count_max: int) -> list[HeldPull]:
        """Remove and return up to `count_max` pulls whose filters must test new records."""
        unsure = self.unsure
        taken = [unsure.popleft() for _ in range(min(count_max, len(unsure)))]
        return [held for held in taken if held.is_held]

    def take_ready(self, count_max: int) -> list[HeldPull]:
        """Remove and return up to `count_max` woken pulls, in the order in which they woke up."""
        ready = self.ready
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def _wake_if(self, key: Key, is_woken: Callable[[HeldPull], bool]) -> None:
        for held in [it for it in self._queues[key] if is_woken(it)]:
            self._wake(held)

    def _wake(self, held: HeldPull) -> None:
        self.release(held)
        self.ready.append(held)

    def _wake_half_of_most(self) -> None:
        """Wake half of the pulls, 1 to WOKEN_MAX, of the connection whose pulls take most."""
        sizes = self._sizes
        if sizes:
            pulls = self._of_peer(max(sizes, key=sizes.__getitem__))
            for held in pulls[: min(-(-len(pulls) // 2), WOKEN_MAX)]:
                self._wake(held)

    def _of_peer(self, peer: object) -> list[HeldPull]:
        return [held for pulls in self._peers.get(peer, {}).values() for held in pulls]


def _is_stale(max_offset: int, now_ms: int, held: HeldPull) -> bool:
    has_more = held.queue_offset < max_offset and not held.awaits_repair
    return has_more or held.deadline_ms <= now_ms
