# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of producers, consumers and admin clients: each starts once and closes once."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from cometmq.client.application_calls import refuse_close_inside
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.errors import ClientStateError, InvalidArgument
from cometmq.client.log import AnyLog, LimitedLog, log_of
from cometmq.client.option_checks import parse_addresses


class ClientState(StrEnum):
    """The state of a client; named as in the Java client."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"
    START_FAILED = "START_FAILED"


_UNUSABLE: Final = {
    ClientState.CREATE_JUST: "this {kind} is not started: use it inside `async with {kind}:` (of "
    "cometmq.client.sync: `with {kind}:`), or call `start()` first",
    ClientState.SHUTDOWN_ALREADY: "this {kind} is closed and cannot be used again: "
    "create a new one",
    ClientState.START_FAILED: "this {kind} is still starting, or failed to start: wait for its "
    "start; if that raised an error, fix the cause and create a new one",
}
_ONCE: Final = _UNUSABLE | {
    ClientState.RUNNING: "this {kind} has already been started: `async with` calls "
    "`start()` by itself"
}


def unusable(kind: str, state: ClientState) -> str:
    """Return the error message for a client that is not running, with the remedy."""
    return _UNUSABLE.get(state, "this {kind} has no connections").format(kind=kind)


class Client(ABC):
    """The base of all clients; `async with` starts and closes a client."""

    KIND: str

    def __init__(self, log: AnyLog) -> None:
        """Wrap `log` to limit repeated events."""
        self._log = log if isinstance(log, LimitedLog) else LimitedLog(log_of(log))
        self.state = ClientState.CREATE_JUST
        self._stack = AsyncExitStack()
        self._instance: ClientInstance | None = None
        self._closed: asyncio.Event | None = None
        """Set at the end of the first `close`."""

    async def start(self) -> None:
        """Start the client; it can be started only once."""
        if self.state is not ClientState.CREATE_JUST:
            raise ClientStateError(_ONCE[self.state].format(kind=self.KIND))
        self.state = ClientState.START_FAILED
        async with AsyncExitStack() as stack:
            try:
                self._instance = await self._enter(stack)
            except InvalidArgument:
                self.state = ClientState.CREATE_JUST
                raise
            self._stack = stack.pop_all()
        self.state = ClientState.RUNNING

    async def close(self) -> None:
        """Close the client once the calls in flight have ended; do nothing if it is not running.

        Concurrent callers wait for the same close. Raise ClientStateError if called from a listener
        or callback: `close` would wait for it and deadlock.
        """
        self.check_outside_calls()
        if self.state is not ClientState.RUNNING:
            if self._closed is not None and not self._closed.is_set():
                assert self._instance is not None
                self._instance.check_loop(self.KIND)
                await self._closed.wait()
            return
        self._running()
        self.state = ClientState.SHUTDOWN_ALREADY
        self._closed = asyncio.Event()
        try:
            await self._stack.aclose()
        finally:
            self._log.flush()
            self._closed.set()

    def _check_unstarted(self) -> None:
        if self.state is not ClientState.CREATE_JUST:
            raise ClientStateError(
                "add hooks and callbacks before the start: this "
                f"{self.KIND} has already been started"
            )

    def check_outside_calls(self) -> None:
        """Raise ClientStateError if called from a listener or callback."""
        refuse_close_inside(self)

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client; ClientStateError before `start`."""
        if self._instance is None:
            raise ClientStateError(unusable(self.KIND, self.state))
        return self._instance.client_id

    @property
    def is_running(self) -> bool:
        """Whether the client has started and is not closed."""
        return self.state is ClientState.RUNNING

    def use_namesrv(self, addresses: str) -> None:
        """Switch to the name servers `host:port;host:port`, with all that share connections."""
        self._running().namesrv.replace(parse_addresses(addresses))

    @abstractmethod
    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        """Start the client, pushing the steps of `close` onto the stack in reverse order."""

    def _running(self) -> ClientInstance:
        """Return the instance; ClientStateError if not running, forked, or in another loop."""
        instance = self._instance
        if self.state is not ClientState.RUNNING or instance is None:
            raise ClientStateError(unusable(self.KIND, self.state))
        instance.check_process()
        instance.check_loop(self.KIND)
        return instance

    def __enter__(self) -> Self:
        """Raise an error that asks for `async with` instead of `with`."""
        raise TypeError(
            f"an asynchronous {self.KIND} is started by `async with`; for a plain `with`, use the "
            "class of the same name in cometmq.client.sync"
        )

    def __exit__(self, *_: object) -> None:  # noqa: B027
        """Do nothing; Python looks this method up before it calls `__enter__`."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client, unless this is a forked child: the client goes on in the parent.

        A child that exits leaves the block, too. An error here would hide its exit status.
        """
        if not is_of_parent(self):
            await self.close()


def is_of_parent(client: Client) -> bool:
    """Return whether this process was forked after a client was started."""
    instance = client._instance  # noqa: SLF001  # of this module's class
    return instance is not None and instance.is_of_parent
