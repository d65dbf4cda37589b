# SPDX-License-Identifier: Apache-2.0
"""The admin client of a whole cluster; its `broker()` and `namesrv` send single requests."""

from cometmq.client.admin.broker_consumers import END
from cometmq.client.admin.clusters import ClusterAdmin
from cometmq.client.admin.dead_letters import DeadLetterAdmin
from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.admin.messages import MessageAdmin
from cometmq.client.admin.offsets import OffsetAdmin, QueueLag, Rollback
from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.admin.tracks import MessageTrack, TrackAdmin, TrackType

__all__ = ["END", "AdminClient", "MessageTrack", "QueueLag", "Rollback", "TrackType"]


class AdminClient(
    ClusterAdmin, TrackAdmin, GroupAdmin, OffsetAdmin, DeadLetterAdmin, MessageAdmin, TopicAdmin
):
    """Manages topics, groups, offsets, messages and dead letters on all brokers."""
