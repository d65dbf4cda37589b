# SPDX-License-Identifier: Apache-2.0
"""The gate of a member: delays (`permission.py`), holds or forwards requests by their `Kind`.

Requests that change state are held or forwarded while this broker is not the master.

While a planned switchover is in progress, such requests are held; afterwards they are either served
here or forwarded to the new master, never both. Producers and consumers keep their connections and
notice only the pause. A slave forwards such requests to the master that it follows, so clients
whose routes are out of date (for up to 30 s after a failover) notice nothing.

A broker that is not the master refuses a forwarded request, and names the last epoch in which it
followed a master. If that epoch is later than the forwarding broker's, the forwarding broker reads
the record, waits until it follows the master of that epoch, and sends the request there.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.broker.copies.gate.permission import Permission, not_the_master, settled
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Peer, Reply, Response
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import Kind
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    CommandError,
    ConnectFailed,
    SystemBusy,
    command_error,
)
from cometmq.remoting.signature import FORWARDED
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.dispatch import Handler, Result

ContextT = TypeVar("ContextT")

FORWARD_MS_MAX: Final = 5_000
FORWARD_PAUSE_STEP_MS: Final = 10
"""Pauses before a request is sent again grow by this step: a new master opens within some ten ms,
and if it never opens, there must be no storm of requests.
"""
LINGER_STEP_MS: Final = 200
HELD_BYTES_MAX: Final = 64 << 20
"""Maximum total size of the bodies of requests that are held or forwarded at one time."""
STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
NOT_SERVED: Final = "cometmqNotServed"
"""Field in the refusal of a forwarded request by a broker that is not the master: the last epoch in
which it followed one, or 0. Such a request was not executed, so it may be sent again.
"""


class Diversion:
    def __init__(
        self,
        client: RemotingClient,
        permission: Permission,
        *,
        epoch_seen: Callable[[int], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`epoch_seen` makes this broker read the record if it does not know this epoch."""
        self._client = client
        self._permission = permission
        self._epoch_seen = epoch_seen
        self._now_ms = now_ms
        self.forward_ms_max = FORWARD_MS_MAX
        self._opened: asyncio.Event | None = None  # while requests are held
        self._held_bytes = 0
        self._counts: Counter[Peer] = Counter()
        self._changed = asyncio.Event()  # set and replaced when requests are diverted or not
        self._target = ""  # where requests are forwarded
        self._epoch = 0  # the last epoch in which they were forwarded
        self._epoch_reported = 0  # the latest epoch known or passed to `epoch_seen`
        self._forwarding_ms = 0  # since when they are forwarded there
        self._handed_over_ms: int | None = None  # None: this broker has not handed over
        self.held_count = 0
        self.forwarded_count = 0

    def hold(self) -> None:
        self._target = ""
        self._handed_over_ms = None
        if self._opened is None:
            self._opened = asyncio.Event()
        self._note_changed()

    def serve_here(self) -> None:
        self._handed_over_ms = None
        self._release("")

    def forward(self, address: str, epoch: int) -> None:
        self._forwarding_ms = self._now_ms()
        self._epoch = self._epoch_reported = epoch
        if self._opened is not None:
            self._handed_over_ms = self._forwarding_ms
        self._release(address)

    def is_diverting(self, peer: Peer) -> bool:
        """Return whether a request of this client is held here or waits for the master's answer."""
        return peer in self._counts

    async def linger(self, duration_ms: int) -> None:
        """Wait until `duration_ms` after this broker handed over, if it did and is not master
        again.
        """
        while self._handed_over_ms is not None:
            left_ms = self._handed_over_ms + duration_ms - self._now_ms()
            if left_ms <= 0:
                return
            await asyncio.sleep(min(left_ms, LINGER_STEP_MS) / 1000)

    def _release(self, target: str) -> None:
        self._target = target
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.set()
        self._note_changed()

    def _note_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def divertible(self, serve: Handler[ContextT]) -> Handler[ContextT]:

        def divertible(context: ContextT, call: Call[Any]) -> Result:
            if self._opened is not None or self._target:
                return self._bounded(serve, context, call)
            if self._is_astray(call):
                return self._not_served()
            return serve(context, call)

        return divertible

    def _is_astray(self, call: Call[Any]) -> bool:
        return (self._permission.confirmation is None or bool(self._target)) and is_forwarded(call)

    def _not_served(self) -> Reply:
        error = not_the_master("it forwards requests itself" if self._target else "")
        return Reply(error.code, remark=error.remark, ext={NOT_SERVED: str(self._epoch)})

    async def _bounded(
        self, serve: Handler[ContextT], context: ContextT, call: Call[Any]
    ) -> Reply | Any:
        """Hold or forward a request if HELD_BYTES_MAX leaves room; otherwise raise SystemBusy."""
        size = len(call.head) + len(call.body)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise SystemBusy("too many requests are waiting for a switchover, or for the master")
        self._held_bytes += size
        self._counts[call.peer] += 1
        try:
            return await self._diverted(serve, context, call)
        finally:
            self._held_bytes -= size
            self._counts[call.peer] -= 1
            if not self._counts[call.peer]:
                del self._counts[call.peer]

    async def _diverted(
        self, serve: Handler[ContextT], context: ContextT, call: Call[Any]
    ) -> Reply | Any:
        """Hold a request during a switchover, then serve or forward it, never both."""
        deadline_ms, pause_ms = self._now_ms() + self.forward_ms_max, 0
        while True:
            if self._opened is not None:
                await self._held(self._opened)
                deadline_ms, pause_ms = self._now_ms() + self.forward_ms_max, 0
            elif self._is_astray(call):
                return self._not_served()
            elif not self._target:
                return await settled(serve(context, call))
            else:
                reply = await self._forwarded(call, self._target, deadline_ms)
                if reply is not None:
                    return reply
                pause_ms += FORWARD_PAUSE_STEP_MS
                await asyncio.sleep(pause_ms / 1000)

    async def _held(self, opened: asyncio.Event) -> None:
        self.held_count += 1
        try:
            await opened.wait()
        finally:
            self.held_count -= 1

    async def _forwarded(self, call: Call[Any], target: str, deadline_ms: int) -> Reply | None:
        """Return the master's answer to a request, or None if it has to be sent again.

        All fields are sent as received, because the client may have signed them. A field of the
        answer makes CometMQ's clients look up the master.
        """
        left_ms = deadline_ms - self._now_ms()
        ext = {**call.ext, FORWARDED: "true"}
        try:
            response = await self._client.invoke(
                target, call.code, None, call.body,
                timeout_ms=max(1, left_ms), ok=(*STORED, ResponseCode.SERVICE_NOT_AVAILABLE),
                ext=ext,
            )  # fmt: skip
        except ConnectFailed as error:
            if self._target == target and not self._may_open(deadline_ms):
                raise not_the_master(f"the master does not accept connections: {error}") from error
            return None
        except AccessDenied as error:  # this broker has allowed the request, perhaps by its address
            raise not_the_master(f"the master refuses the forwarded request: {error}") from error
        except CommandError:
            raise
        except CometError as error:
            raise SystemBusy(f"the master {target} did not answer: {error}") from error
        if response.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            await self._refused(response, target, deadline_ms)
            return None
        self.forwarded_count += 1
        ext = {**response.ext, FORWARDED: "true"}
        return Reply(response.code, None, response.body, response.remark, ext)

    async def _refused(self, response: Response, target: str, deadline_ms: int) -> None:
        """Wait until a refused request may be sent again; raise CommandError if it may not.

        A later epoch in the refusal causes one read of the record, and a wait for its master.
        Otherwise the other broker may be a new master that is not open yet, so only pause.
        """
        error = command_error(response.code, response.remark, target)
        epoch = _epoch_of_refusal(response)
        if epoch is None:
            raise error
        if self._target != target:
            return
        if epoch <= self._epoch:
            if not self._may_open(deadline_ms):
                raise error
            return
        if epoch > self._epoch_reported:
            self._epoch_reported = epoch
            self._epoch_seen(epoch)
        left_ms = max(0, deadline_ms - self._now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            text = f"and does not know the master of epoch {epoch} yet"
            raise not_the_master(text) from error

    def _may_open(self, deadline_ms: int) -> bool:
        """Return whether the broker that refused may be a new master that is not open yet."""
        open_by_ms = min(deadline_ms, self._forwarding_ms + self.forward_ms_max)
        return open_by_ms > self._now_ms()


def _epoch_of_refusal(response: Response) -> int | None:
    try:
        return int(response.ext[NOT_SERVED])
    except (KeyError, ValueError):
        return None


def is_forwarded(call: Call[Any]) -> bool:
    """Return whether another broker has forwarded the request.

    A broker that is not the master refuses it: two brokers could forward it to each other
    endlessly.
    """
    return FORWARDED.encode() in call.head


KINDS: Final = {
    code: command.kind for code, command in COMMANDS.items() if command.kind is not Kind.ALWAYS
}


class Gate(NamedTuple):
    permission: Permission
    diversion: Diversion

    def guarded(self, handlers: Mapping[int, Handler[ContextT]]) -> dict[int, Handler[ContextT]]:
        return {
            code: self._guard(KINDS[code], handler) if code in KINDS else handler
            for code, handler in handlers.items()
        }

    def _guard(self, kind: Kind, handler: Handler[ContextT]) -> Handler[ContextT]:
        permission = self.permission
        serve = {
            Kind.PUT: handler,
            Kind.CHANGE: permission.change(handler),
            Kind.UNLOGGED: permission.unlogged(handler),
            Kind.COMMIT: permission.commit(handler),
            Kind.READ: permission.read(handler),
        }[kind]
        return serve if kind is Kind.READ else self.diversion.divertible(serve)
