# SPDX-License-Identifier: Apache-2.0
"""Checks that all members of a group have the same subscriptions, as RocketMQ requires.

A broker keeps one subscription per group and topic, and all members share the queues of a topic
even if only some of them subscribe to it. Members that disagree miss messages without any error.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cometmq.client.clock import wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.admin import GetConsumerConnectionList
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import RETRY_PREFIX
from cometmq.remoting.transport.tasks import describe

SETTLE_MS: Final = 3_000
"""Age from which a subscription is assumed to have reached the brokers in a heartbeat."""

_ADVICE: Final = (
    "members miss messages: give all members of the group the same subscriptions, or groups of "
    "their own"
)


class Agreement:
    """Compares our subscriptions with the group's subscriptions at a broker.

    A broker keeps the subscription of the member that subscribed last, so the others see the
    difference.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        message_model: MessageModel,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._message_model = message_model
        self._compared: Sequence[str] = ()

    async def check(self, address: str, members: Sequence[str]) -> None:
        """Compare with a broker after each change of members, once it has received our
        heartbeat.
        """
        if members == self._compared:
            return
        if len(members) > 1:
            begin_ms = max((s.sub_version for s in self._subscriptions.values()), default=0)
            if wall_ms() - begin_ms < SETTLE_MS:
                return
            await self._compare(address, members)
        self._compared = members

    async def _compare(self, address: str, members: Sequence[str]) -> None:
        instance = self._instance
        try:
            response = await instance.remoting.invoke(
                instance.channel(address),
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                GetConsumerConnectionList(self._group),
                timeout_ms=instance.options.api_timeout_ms,
            )
            theirs = decode_json(ConsumerConnections, response.body)
        except CometError as error:  # some brokers may refuse it; consuming does not depend on it
            instance.log.debug("agreement.unchecked", group=self._group, error=describe(error))
            return
        others = ",".join(member for member in members if member != instance.client_id)
        for topic, ours, other in self._differences(theirs):
            instance.log.warning(
                "subscription.mismatched",
                group=self._group,
                topic=topic,
                client_id=instance.client_id,
                wants=ours,
                other_client_id=others,
                other_wants=other,
                advice=_ADVICE,
            )

    def _differences(self, theirs: ConsumerConnections) -> list[tuple[str, str, str]]:
        """Return each topic whose subscriptions differ, with ours and the broker's as text."""
        table = theirs.subscription_table
        found = [
            (self._instance.namespace.unwrap(topic), ours, other)
            for topic in sorted(self._subscriptions.keys() | table.keys())
            if not topic.startswith(RETRY_PREFIX)
            and (ours := _words(self._subscriptions.get(topic)))
            != (other := _words(table.get(topic)))
        ]
        if theirs.message_model != self._message_model:
            found.append(("*", self._message_model, theirs.message_model))
        return found


def _words(wanted: SubscriptionData | None) -> str:
    """Return a subscription as text; equal filters give equal text."""
    if wanted is None:
        return "nothing"
    tags = " || ".join(sorted(wanted.tags_set)) or wanted.sub_string
    return tags if wanted.expression_type == "TAG" else f"{wanted.expression_type} {tags}"
