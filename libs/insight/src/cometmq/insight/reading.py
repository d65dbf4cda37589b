# SPDX-License-Identifier: Apache-2.0
"""The admin client that continues without brokers that do not answer.

It sends one request to such a broker, and records it: each page has its own client (`for_page`),
and commands name the broker after their output (`CommandAdmin`). Changes need all brokers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Self, TypeVar

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.log import AnyLog
from cometmq.client.settings import ClientOptions
from cometmq.remoting.errors import CANNOT_SERVE, CometError, TopicNotExist

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE: Final = 16


async def each(
    items: Iterable[K], ask: Callable[[K], Awaitable[T]], at_once: int = AT_ONCE
) -> list[T]:
    """Ask about all items, `at_once` of them at the same time; return the answers in order."""
    room = asyncio.Semaphore(at_once)

    async def asked(item: K) -> T:
        async with room:
            return await ask(item)

    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(asked(it)) for it in items]
    return [it.result() for it in found]


async def each_or_why(
    items: Iterable[K], ask: Callable[[K], Awaitable[T]]
) -> dict[K, T | CometError]:
    """Ask about all items, a few at a time; return each answer, or why there is none."""

    async def asked(item: K) -> T | CometError:
        try:
            return await ask(item)
        except CometError as error:
            return error

    unique = list(dict.fromkeys(items))
    return dict(zip(unique, await each(unique, asked), strict=True))


class ReadingAdmin(AdminClient):
    """An admin client that leaves out brokers that do not answer."""

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: AnyLog = None
    ) -> None:
        super().__init__(namesrv, options=options, log=log)
        self.unanswered: dict[str, str] = {}
        """Names of the brokers that were left out, with the reasons."""
        self._silent: set[str] = set()

    def for_page(self) -> Self:
        """Return a client that shares the connections, and has asked no broker yet."""
        return self.attached(self._running(), self._log)

    async def ask_each(
        self,
        brokers: Iterable[BrokerAdmin],
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        skip: tuple[type[CometError], ...] = (),
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently; skip those that have failed to answer before."""
        asked: list[BrokerAdmin] = []
        for it in brokers:
            if self.is_silent(it):
                self.unanswered.setdefault(_name(it), "it did not answer before")
            else:
                asked.append(it)
        return await super().ask_each(asked, question, skip=skip)

    def is_silent(self, broker: BrokerAdmin) -> bool:
        """Return whether a broker has failed to answer before, so that it is not asked again."""
        return broker.address in self._silent

    def unreachable(self, broker: BrokerAdmin, error: CometError) -> None:
        """Continue without the broker."""
        self._silent.add(broker.address)
        self.unanswered.setdefault(_name(broker), str(error))

    def refused(self, broker: BrokerAdmin, error: CometError) -> None:
        """Continue without a broker that cannot serve now; raise any other error."""
        if type(error) not in CANNOT_SERVE:
            raise error
        ReadingAdmin.unreachable(self, broker, error)  # a command words the two differently

    def without_master(self, _name: str, _slaves: Sequence[str]) -> None:
        """Continue silently, because the snapshot names the broker."""

    def without_topic(self, _broker: BrokerAdmin, _topic: str, error: TopicNotExist) -> None:
        """Continue silently."""


def _name(broker: BrokerAdmin) -> str:
    return broker.name or broker.address
