# SPDX-License-Identifier: Apache-2.0
"""The follower's side of the stream between members of a broker group.

A follower connects to the master of the epoch that it has promised. After the handshake, its copy
is prepared (`replica.py`); then it copies (`master_stream.py`).

Whenever a connection ends, the follower reconnects, until it is stopped. A log that cannot be
followed is reported once for each reason, with the action to take.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.handshake import DAMAGE_COUNT_MAX, Hello, Welcome
from cometmq.broker.copies.streams.master_stream import MasterRefused, MasterStream
from cometmq.broker.copies.streams.proving import ProofDeclined, ProofInitiator, Proving
from cometmq.broker.copies.streams.replica import MemberReplica
from cometmq.broker.copies.streams.session import Pace, Session
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.tasks import TaskSet, due_on_grid
from cometmq.store.errors import StoreError

CONNECT_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S: Final = 5.0
PACE: Final = Pace(first_ms=50, max_ms=2_000, unknown_ms=100)
TICK_INTERVAL_MS: Final = 100

BRIEF_MS: Final = 3_000
"""How long a follower may be without its master before a warning; a switchover takes a while."""


class Follower:
    def __init__(self, replica: MemberReplica, proving: Proving) -> None:
        self.replica = replica
        self._proving = proving
        self._is_declined = False  # the master has just declined a proof
        self._following = TaskSet(replica.log)
        self._stream: MasterStream | None = None
        self._session = Session(replica.status, PACE, now_ms=replica.now_ms, log=replica.log)
        self._lost_ms: int | None = None  # when the master was lost
        replica.driver.turn.job_ended.connect(self._relieved)

    def follow(self, epoch: int, master: int, address: Callable[[], str]) -> None:
        """Follow the master of a promised epoch (R3), after `stop`; `address` may return ""."""
        assert not len(self._following), "a master is already being followed"
        self.replica.begin()
        self._session.forget()
        self._lost_ms = None

        def where() -> str:
            found = address()
            if not found:
                self.replica.status.state = FollowState.CONNECTING
            return found

        run = self._session.run(where, partial(self._try, epoch, master))
        self._following.spawn(run, name="follow-master", is_endless=True)

    async def stop(self) -> None:
        """Close the connection. From then on, nothing is appended, truncated or saved."""
        await self._following.close()
        if self._stream is not None:
            self._stream.end(ConnectionLost("this broker stopped following"))
        await self.replica.finish()
        self._stream = None
        self.replica.status.state = FollowState.IDLE

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether reading from the master is paused because checkpoints cannot keep up."""
        return self._stream is not None and self._stream.is_waiting_for_disk

    def _relieved(self) -> None:
        if self._stream is not None:
            self._stream.resume()

    async def leave(self) -> None:
        """Tell the master that this broker is stopping, so that no send waits for it; then stop."""
        if self._stream is not None and self.replica.status.state is FollowState.FOLLOWING:
            self._stream.refuse(UnfitLog(Unfit.STOPPING, "this broker stops"))
            self._stream.end(ConnectionLost("this broker stops"))
        await self.stop()

    # Connections

    async def _try(self, epoch: int, master: int, where: str) -> None:
        replica = self.replica
        began_ms, connect_count = replica.now_ms(), replica.status.connect_count
        try:
            await self._follow(epoch, master, where)
        except (CometError, OSError) as error:
            has_lasted = replica.now_ms() - began_ms > PACE.max_ms
            was_following = replica.status.connect_count > connect_count
            is_brief = self._is_brief(has_recovered=has_lasted and was_following)
            self._note(error, where, is_brief=is_brief)

    def _is_brief(self, *, has_recovered: bool) -> bool:
        """Return whether the current outage is brief; `has_recovered`: a new one begins."""
        now_ms = self.replica.now_ms()
        if self._lost_ms is None or has_recovered:
            self._lost_ms = now_ms
        return now_ms - self._lost_ms < BRIEF_MS

    async def _follow(self, epoch: int, master: int, where: str) -> None:
        host, port = parse_address(where)
        hello = self._hello(epoch, master)
        proving, is_declined = self._proving, self._is_declined
        self._is_declined = False
        is_plain = not proving.keys() or (is_declined and proving.admits_unproven)
        opening = frames.encode_opening() if is_plain else b""
        stream = self._stream = MasterStream(self.replica, hello, where, opening)
        protocol = stream if is_plain else ProofInitiator(proving, master, stream)
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await loop.create_connection(lambda: protocol, host, port)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                welcome = await stream.welcome
            await self.replica.prepare(stream, hello, welcome)
            self._note_following(where, welcome)
            stream.begin(welcome)
            while not stream.ended.done():
                now_s = loop.time()
                rest_s = due_on_grid(now_s, TICK_INTERVAL_MS / 1000) - now_s
                await asyncio.wait([stream.ended], timeout=rest_s)
                stream.tick()
            await stream.ended
        except TimeoutError as error:
            raise ConnectionLost("the master does not answer") from error
        except ProofDeclined as error:
            raise self._declined(error) from error
        except UnfitLog as error:
            stream.refuse(error)
            raise
        finally:
            stream.end(ConnectionLost("closed"))
            if transport is not None and not transport.is_closing():
                transport.close()  # it was not proven, so the stream has not begun

    def _declined(self, error: ProofDeclined) -> CometError:
        """Return the error for a declined proof; the next connection may do without one."""
        proving = self._proving
        if error.is_unprovable and proving.admits_unproven:
            self._is_declined = True
            return ConnectionLost(f"the other side cannot prove itself and is trusted: {error}")
        text = f"the broker declines the proof ({proving.shown}): {error}"
        return UnfitLog(Unfit.UNPROVEN, text)

    def _hello(self, epoch: int, master: int) -> Hello:
        replica = self.replica
        extent, tables = replica.epochs.extent(), replica.tables.received(epoch)
        damage = tuple(replica.commit_log.damage[-DAMAGE_COUNT_MAX:])
        return Hello(self._proving.identity, epoch, epoch, master, extent, tables, damage)

    # Status for operators

    def _note_following(self, where: str, welcome: Welcome) -> None:
        self._session.note_following()
        status = self.replica.status
        status.ha_address = where
        status.connect_count += 1
        status.master_min_offset = welcome.log.first
        status.master_max_offset = welcome.log.end
        self.replica.log.info(
            "replica.following", master=where, epoch=welcome.epoch, offset=welcome.start
        )

    def _note(self, error: Exception, where: str, *, is_brief: bool) -> None:
        status = self.replica.status
        is_usual = isinstance(error, ConnectionLost | OSError)
        if isinstance(error, MasterRefused):
            if error.refused.epoch:
                self.replica.events.epoch_seen(error.refused.epoch)
            reasons = {reason.value: reason for reason in Unfit}
            reason = reasons.get(error.refused.reason, Unfit.REFUSED)
            error = UnfitLog(reason, error.refused.text)
            is_usual = error.is_passing
        is_failed = isinstance(error, StoreError)
        status.state = FollowState.FAILED if is_failed else FollowState.CONNECTING
        if isinstance(error, UnfitLog) and not error.is_passing:
            self._session.note_unfit(error)
        else:
            self._session.note_lost(where, error, is_alarm=not (is_brief and is_usual))
