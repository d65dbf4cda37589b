# SPDX-License-Identifier: Apache-2.0
"""Bounds the bytes of unfinished frames of all connections; does no I/O itself.

Peers may send most of a frame, which may have 16 MB, and then stop; without a bound, the memory
would grow with their number. Short frames do not count.

Rules
    Above a quarter of the limit, a connection with a long unfinished frame is not read further
    until the total has fallen, or until it gets a turn. Hosts get turns one after the other. The
    frames of the connections that have a turn together lack at most another quarter of the limit,
    so all of them can be completed. A connection is closed if it takes longer than
    FRAME_PATIENCE_MS in its turn, or sends nothing for that time.

    Above the limit, the connections with the longest unfinished frames are closed. The total can
    exceed a quarter of the limit because each connection may send one chunk before it has to wait.

    Sending most of a frame needs no account, so connections of which a request has been served do
    not wait for the others (*strangers*): they have turns of their own, wait only while their own
    frames exceed the quarter, and are closed last.
"""

from collections import deque
from typing import Final, NamedTuple

from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.connected import LONG_FRAME, Connected
from cometmq.remoting.transport.stats import TransportStats

FRAME_PATIENCE_MS: Final = 5_000
"""How long a connection may take in its turn, or send nothing, above a quarter of the limit."""
_OPEN_SHARE: Final = 4
_TURN_SHARE: Final = 4


class _Frame(NamedTuple):
    size: int
    since_ms: int
    """When bytes arrived last or, for a connection that has a turn, when the turn began."""


class _Account:
    """The long unfinished frames of one kind of connections: strangers, or all others."""

    __slots__ = ("frame_bytes", "frames", "turns", "waiting")

    def __init__(self) -> None:
        self.frames: dict[Connected, _Frame] = {}
        self.frame_bytes = 0
        self.waiting: dict[str, deque[Connected]] = {}  # by host; the next one is the first
        self.turns: dict[Connected, int] = {}  # what each one lacked when its turn began


class UnfinishedFrames:
    """Bounds the long unfinished frames of one server, by the rules above."""

    def __init__(self, bytes_max: int | None, *, stats: TransportStats, log: Log) -> None:
        """A `bytes_max` of None means no limit."""
        self._bytes_max = bytes_max
        self._open_bytes = (bytes_max or 0) // _OPEN_SHARE
        self._turn_bytes = (bytes_max or 0) // _TURN_SHARE
        self._stats = stats
        self._log = log
        self._strangers, self._known = self.accounts = _Account(), _Account()

    def note(self, peer: Connected, now_ms: int) -> None:
        """Count the unfinished frame of a connection that has received bytes, or has ended."""
        bytes_max = self._bytes_max
        if bytes_max is None:
            return
        account = self._known if peer.is_served else self._strangers
        before, size = self._forget(peer), peer.connection.buffered_bytes
        has_turn = before is not None and peer in account.turns
        if size <= LARGE_BYTES or not peer.is_open or not has_turn:
            self._end_turn(peer)
        if size > LARGE_BYTES and peer.is_open:
            frame = _Frame(size, before.since_ms if before and has_turn else now_ms)
            account.frames[peer] = frame
            account.frame_bytes += size
            self._stats.frame_bytes += size
            if self._is_tight(account) and not has_turn:
                self._wait(account, peer)
        self._go_on(now_ms)
        if self._stats.frame_bytes > bytes_max:
            self._close_longest(bytes_max)

    def check(self, now_ms: int) -> None:
        """Close the connections that take too long; called by a timer."""
        if self._bytes_max is None:
            return
        for account in self.accounts:
            if self._is_tight(account):
                self._close_late(account, now_ms)
        self._go_on(now_ms)

    def _is_tight(self, account: _Account) -> bool:
        counted = account if account is self._known else self._stats
        return counted.frame_bytes > self._open_bytes

    def _forget(self, peer: Connected) -> _Frame | None:
        """Remove the frame of a connection from the account that has it, and return it."""
        for account in self.accounts:
            frame = account.frames.pop(peer, None)
            if frame is not None:
                account.frame_bytes -= frame.size
                self._stats.frame_bytes -= frame.size
                return frame
        return None

    def _end_turn(self, peer: Connected) -> None:
        for account in self.accounts:
            account.turns.pop(peer, None)

    def _wait(self, account: _Account, peer: Connected) -> None:
        if not peer.reading.pauses & LONG_FRAME:
            self._stats.frames_paused += 1
            peer.reading.pause(LONG_FRAME)
            account.waiting.setdefault(_host(peer), deque()).append(peer)

    def _go_on(self, now_ms: int) -> None:
        for account in self.accounts:
            if account.waiting:
                self._give_turns(account, now_ms)

    def _give_turns(self, account: _Account, now_ms: int) -> None:
        """Give turns to waiting connections, one of each host in turn, while the limit allows:
        resume reading from them.
        """
        left = self._turn_bytes - sum(account.turns.values())
        while account.waiting:
            host, peers = next(iter(account.waiting.items()))
            peer = peers[0]
            frame = account.frames.get(peer)
            if frame is not None and self._is_tight(account):
                missing = peer.connection.missing_bytes
                if missing > left and account.turns:
                    return
                left -= missing
                account.turns[peer] = missing
            del account.waiting[host]
            peers.popleft()
            if peers:
                account.waiting[host] = peers  # behind the other hosts
            if frame is not None:
                account.frames[peer] = _Frame(frame.size, now_ms)
                peer.reading.pauses &= ~LONG_FRAME
                peer.reading.resume()

    def _close_late(self, account: _Account, now_ms: int) -> None:
        for peer, frame in tuple(account.frames.items()):
            if peer.reading.pauses:  # it may send, but this end does not read
                account.frames[peer] = _Frame(frame.size, now_ms)
            elif now_ms - frame.since_ms >= FRAME_PATIENCE_MS:
                self._close(peer)

    def _close_longest(self, bytes_max: int) -> None:
        for account in self.accounts:  # the strangers first
            sizes = sorted(((it.size, peer) for peer, it in account.frames.items()), key=_size)
            while sizes and self._stats.frame_bytes > bytes_max:
                self._close(sizes.pop()[1])

    def _close(self, peer: Connected) -> None:
        frame = self._forget(peer)
        self._end_turn(peer)
        self._stats.frames_closed += 1
        self._log.warning(
            "connection.overflowed", peer=peer.address, bytes=0 if frame is None else frame.size
        )
        peer.abort()


def _host(peer: Connected) -> str:
    return peer.address.rpartition(":")[0]


def _size(row: tuple[int, Connected]) -> int:
    return row[0]
