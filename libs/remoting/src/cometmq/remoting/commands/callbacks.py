# SPDX-License-Identifier: Apache-2.0
"""Headers of the requests that a broker sends to its clients."""

from cometmq.remoting.integers import Int64
from cometmq.remoting.types import Header


class NotifyConsumerIdsChanged(Header, frozen=True):
    """Notify a consumer that its group has gained or lost a member."""

    consumer_group: str


class ResetConsumerClientOffset(Header, frozen=True):
    """Make a consumer continue from the offsets in the body."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool


class GetConsumerStatusFromClient(Header, frozen=True):
    """Ask a consumer for its offsets in a topic."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Header, frozen=True):
    """Ask a consumer for its running info; brokers forward the request to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectly(Header, frozen=True):
    """Make one consumer process one message now; brokers forward the request."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
