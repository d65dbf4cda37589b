# SPDX-License-Identifier: Apache-2.0
"""Admin clients: what concerns several brokers; `broker()` and `namesrv` speak to one kind."""

from cometmq.client.admin_clusters import ClusterAdmin
from cometmq.client.admin_dead_letters import DeadLetterAdmin
from cometmq.client.admin_offsets import QueueLag, Rollback
from cometmq.client.admin_topics import TopicAdmin
from cometmq.client.admin_tracks import MessageTrack, TrackAdmin, TrackType

__all__ = ["AdminClient", "MessageTrack", "QueueLag", "Rollback", "TrackType"]


class AdminClient(ClusterAdmin, TopicAdmin, TrackAdmin, DeadLetterAdmin):
    """Looks after topics, groups, offsets, brokers and name servers."""
