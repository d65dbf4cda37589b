# SPDX-License-Identifier: Apache-2.0
"""Asks brokers whether they accept a consumer's SQL92 conditions.

The client finds syntax errors itself. Only a broker knows whether it filters by properties at all,
and whether the values of a condition can be compared.
"""

import asyncio
from typing import Final

from cometmq.client.cluster.heartbeats import RETRY_SOON_MS
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.for_each import for_each
from cometmq.client.subscriptions import ExpressionType
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CometError, TransportError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.remoting.versions import SQL_FILTER_MIN

CHECKS_MAX: Final = 16
"""How many conditions are checked at the same time."""

_ROUTE_CHECK_S: Final = 0.5


class ConditionChecks:
    """Checks the conditions of one consumer: before it starts, and later in the background."""

    def __init__(self, parts: ConsumerParts, log: Log) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._namespace = parts.instance.namespace
        self._subscriptions = parts.subscriptions
        self._timeout_ms = parts.options.api_timeout_ms
        self._log = log
        self._background = TaskSet(log)

    async def close(self) -> None:
        """Stop the background checks."""
        await self._background.close()

    async def check_all(self) -> None:
        """Check all conditions; raise the error of a broker that refuses one.

        Conditions for unknown topics are checked later.
        """
        known: list[SubscriptionData] = []
        for topic, wanted in self._subscriptions.items():
            if self._instance.routes.get(topic) is None:
                self.check_later(topic)
            elif wanted.expression_type == ExpressionType.SQL92:
                known.append(wanted)
        await for_each(known, self._check, running_max=CHECKS_MAX)

    def check_later(self, topic: str) -> None:
        """Check the condition for a topic, if there is one; a refusal is logged."""
        wanted = self._subscriptions.get(topic)
        if wanted is not None and wanted.expression_type == ExpressionType.SQL92:
            self._background.spawn(self._checked(wanted), name="condition-check")

    async def _checked(self, wanted: SubscriptionData) -> None:
        topic = wanted.topic
        while self._subscriptions.get(topic) is wanted:
            if self._instance.routes.get(topic) is None:  # the consumer looks it up, too
                await asyncio.sleep(_ROUTE_CHECK_S)
                continue
            try:
                await self._check(wanted)
            except TransportError:  # logged by others: this broker is unreachable
                await asyncio.sleep(RETRY_SOON_MS / 1000)
                continue
            except CometError as error:
                self._log.warning(
                    "subscription.refused",
                    group=self._namespace.unwrap(self._group),
                    topic=self._namespace.unwrap(topic),
                    expression=wanted.sub_string,
                    error=describe(error),
                    advice="no message of the topic arrives until the subscription is corrected",
                )
            return

    async def _check(self, wanted: SubscriptionData) -> None:
        instance = self._instance
        route = instance.routes.get(wanted.topic)
        for broker_name in sorted(route.brokers) if route is not None else ():
            _, address = instance.routes.brokers.any_of(broker_name)
            body = encode_json(
                ClientConfigCheck(
                    client_id=instance.client_id,
                    group=self._group,
                    namespace=self._namespace.name or None,
                    subscription_data=wanted,
                )
            )
            code = RequestCode.CHECK_CLIENT_CONFIG
            response = await instance.remoting.invoke(
                address, code, None, body, timeout_ms=self._timeout_ms
            )
            if response.version < SQL_FILTER_MIN:
                raise CometError(f"The broker {broker_name} is too old for SQL92 subscriptions")
