# SPDX-License-Identifier: Apache-2.0
"""Rebalancing: divides the queues of the subscribed topics among the members of the group."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from cometmq.client.application_calls import Failures, original
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.queues.owned import TOPICS_AT_ONCE
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.turns import decode_answer, for_each
from cometmq.remoting.bodies.queues import ConsumerIdList, MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.clients import GetConsumerListByGroup
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    RemoteProtocolError,
    ServerError,
    TransportError,
)
from cometmq.remoting.transport.tasks import describe

MEMBERS_MAX: Final = 65_536
"""Members of one group; they are sorted, and searched for our own id."""

DUPLICATE_REMIND_MS: Final = 60_000
"""Interval between warnings about a client id that stays duplicated."""


class Assigner:
    """Computes which queues this member owns.

    All members compute the same division from the same sorted lists, so no coordinator is needed.
    While members join and leave, two of them may briefly hold the same queue.
    """

    def __init__(self, parts: ConsumerParts, strategy: AllocateStrategy) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._interval_ms = parts.options.rebalance_interval_ms
        # A broadcasting member takes all queues.
        self._strategy = None if parts.is_broadcasting else strategy
        self._duplicate_since_ms: int | None = None
        self._duplicate_logged_ms: int | None = None

    async def shares(self, topics: Iterable[str]) -> tuple[dict[str, list[MessageQueue]], bool]:
        """Compute our share of each topic; return the shares that are known, and False if a retry
        is needed soon.
        """
        members = _Members(self._members)
        shares: dict[str, list[MessageQueue]] = {}
        is_complete = True

        async def compute(topic: str) -> None:
            nonlocal is_complete
            try:
                mine = await self._mine(topic, members)
            except CometError as error:
                outages = self._instance.outages
                outages.failed("rebalance.failed", error, group=self._group, topic=topic)
                is_complete = is_complete and isinstance(error, AccessDenied)
                return
            if mine is None:
                is_complete = False
            else:
                shares[topic] = mine

        await for_each(sorted(topics), compute, running_max=TOPICS_AT_ONCE)
        return shares, is_complete

    async def _mine(self, topic: str, members: "_Members") -> list[MessageQueue] | None:
        route = self._instance.routes.get(topic)
        if route is None:
            return []  # the instance fetches the route, and wakes us when it has arrived
        queues = sorted(route.subscribe_queues)
        if not queues or self._strategy is None:
            return queues
        client_ids = await members.at_any(route.brokers)
        if not client_ids:
            return None
        if client_ids.count(self._instance.client_id) > 1:
            self._client_id_duplicated()
        else:
            self._duplicate_since_ms = None
        try:
            with Failures():
                mine = self._strategy.allocate(self._instance.client_id, queues, client_ids)
            return self._readable(topic, mine, queues)
        except Exception as error:  # noqa: BLE001  # a strategy may be application code
            self._strategy_failed(topic, describe(original(error)))
            return None

    def _readable(
        self, topic: str, mine: object, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Return the queues that a strategy chose, except unknown ones.

        Queues of other topics, which Java's fixed list returns too, are ignored without an error.
        Raise InvalidArgument for anything but queues.
        """
        if isinstance(mine, str) or not isinstance(mine, Iterable):
            raise InvalidArgument(f"it must return a list of queues, not {shown(mine)}")
        found = list(dict.fromkeys(mine))
        for queue in found:
            if not isinstance(queue, MessageQueue):
                raise InvalidArgument(
                    f"it must return a list of queues, not one with {shown(queue)}"
                )
        known = set(queues)
        unknown = [queue for queue in found if queue.topic == topic and queue not in known]
        if unknown:
            self._strategy_failed(
                topic, f"{len(unknown)} of its queues cannot be read, such as {unknown[0]}"
            )
        return [queue for queue in found if queue in known]

    def _client_id_duplicated(self) -> None:
        """Warn that members with the same client id compute the same share of the queues.

        The warning waits for the next regular round: when this member has reconnected, the broker
        may not have closed its old connection yet.

        Compatibility: the share is computed as in Java, which does not warn.
        """
        now_ms, logged_ms = monotonic_ms(), self._duplicate_logged_ms
        if self._duplicate_since_ms is None:
            self._duplicate_since_ms = now_ms
        if now_ms - self._duplicate_since_ms < self._interval_ms:
            return
        if logged_ms is not None and now_ms - logged_ms < DUPLICATE_REMIND_MS:
            return
        self._duplicate_logged_ms = now_ms
        self._instance.log.warning(
            "client_id.duplicated",
            group=self._group,
            client_id=self._instance.client_id,
            advice="another member of the group has the same client id: both receive the messages "
            "of the same queues, and some queues are not consumed. Give each process an "
            "instance_name of its own; after a lost connection, the old one counts as a member for "
            "up to two minutes",
        )

    def _strategy_failed(self, topic: str, error: str) -> None:
        self._instance.log.error("strategy.failed", group=self._group, topic=topic, error=error)

    async def _members(self, broker_name: str) -> list[str]:
        """Fetch the members of the group; if the broker does not know us yet, send a heartbeat
        first.

        Raise AccessDenied if the broker refuses the heartbeat, because the broker then knows no
        member of the group, and its answer to the query would be misleading.
        """
        instance = self._instance
        _, address = instance.routes.brokers.any_of(broker_name)
        try:
            return await self._ask_members(address)
        except AccessDenied:
            raise
        except ServerError:
            await instance.heartbeats.send()
            if (refusal := instance.heartbeats.refusals.get(address)) is not None:
                raise refusal from None
            return await self._ask_members(address)

    async def _ask_members(self, address: str) -> list[str]:
        instance = self._instance
        response = await instance.remoting.invoke(
            instance.channel(address),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroup(self._group),
            timeout_ms=instance.options.api_timeout_ms,
        )
        ids = (await decode_answer(ConsumerIdList, response.body)).consumer_id_list
        if len(ids) > MEMBERS_MAX:
            raise RemoteProtocolError(
                f"{address} answers that the group {self._group} has {len(ids):,} members, more"
                f" than {MEMBERS_MAX:,}: check this broker"
            )
        return sorted(ids)


class _Members:
    """The members of the group as each broker knows them, asked once per round of rebalancing."""

    def __init__(self, ask: Callable[[str], Awaitable[list[str]]]) -> None:
        self._ask = ask
        self._locks: dict[str, asyncio.Lock] = {}
        self._found: dict[str, list[str] | CometError] = {}

    async def at_any(self, broker_names: Collection[str]) -> list[str]:
        """Return the sorted ids of the clients that at least one broker knows.

        A broker that does not answer is passed over, because all brokers know the same members; if
        none answers, raise the error of the last one.
        """
        names = sorted(broker_names)
        *others, last = random.sample(names, len(names))  # spreads load
        for broker_name in others:
            with suppress(TransportError):
                return await self.at(broker_name)
        return await self.at(last)

    async def at(self, broker_name: str) -> list[str]:
        """Return the sorted client ids that a broker knows; if the first call failed, raise its
        error.
        """
        async with self._locks.setdefault(broker_name, asyncio.Lock()):
            if broker_name not in self._found:
                try:
                    self._found[broker_name] = await self._ask(broker_name)
                except CometError as error:
                    self._found[broker_name] = error
        found = self._found[broker_name]
        if isinstance(found, CometError):
            raise found
        return found
