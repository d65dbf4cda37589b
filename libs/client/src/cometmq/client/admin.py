# SPDX-License-Identifier: Apache-2.0
"""Admin clients: what concerns several brokers; `broker()` and `namesrv` speak to one kind."""

from cometmq.client.admin_groups import GroupAdmin
from cometmq.client.admin_messages import MessageAdmin
from cometmq.client.admin_offsets import OffsetAdmin, QueueLag
from cometmq.client.admin_topics import TopicAdmin

__all__ = ["AdminClient", "QueueLag"]


class AdminClient(TopicAdmin, GroupAdmin, OffsetAdmin, MessageAdmin):
    """Looks after topics, groups, offsets, brokers and name servers."""
