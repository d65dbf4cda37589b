# SPDX-License-Identifier: Apache-2.0
"""Looks up the groups and queues that commands name, and refuses unknown ones."""

from collections.abc import Iterable

from cometmq.cli.outcome import MISSING
from cometmq.client.admin import AdminClient
from cometmq.client.admin.groups import find_group, known_groups
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group
from cometmq.insight.members import is_ours
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import is_system_group
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.visible import command


def check_not_reserved(group: str) -> None:
    """Raise ClientError for a group in which servers and tools store positions of their own."""
    if is_system_group(group):
        raise ClientError(
            f"{group} is a system group, which servers and tools use themselves: it cannot be"
            " created, changed, deleted or used to consume"
        )


def broadcasting_text(group: str) -> str:
    """Return why a group has no progress that could be shown."""
    return (
        f"{group} consumes in broadcasting mode: each member receives every message and keeps its"
        " own offsets, so brokers do not know the progress"
    )


async def known_group(
    admin: AdminClient, group: str, *, other_than: str = ""
) -> SubscriptionGroupConfig:
    """Return the settings of a group; raise ClientError if no broker knows it.

    The error may name a similar group, but not `other_than`, which the command names as well.
    """
    config = await find_group(admin, group)
    if config is None:
        check_not_reserved(group)
    if config is None and MISSING:
        raise ClientError(
            f"the brokers that answer do not know the consumer group {group}; others may know it"
        )
    if config is None:
        raise ClientError(
            f"no broker knows the consumer group {group}{await _advice(admin, group, other_than)}"
        )
    return config


async def _advice(admin: AdminClient, group: str, other: str) -> str:
    """Return what to do about an unknown group."""
    known = [it for it in await known_groups(admin) if is_ours(it) and it != other]
    if hint := did_you_mean(group, known):
        return hint
    try:
        check_group(group)
    except InvalidArgument as error:
        return f", and none can have this name: {error}"
    return f": check the name, or create it: {command('group create', group)}"


def chosen_queues(
    queues: Iterable[MessageQueue], topic: str, wanted: str | None
) -> list[MessageQueue]:
    """Return all queues, or only the requested one; raise ClientError if it does not exist."""
    if wanted is None:
        return list(queues)
    found = [queue for queue in queues if wanted == f"{queue.broker_name}:{queue.queue_id}"]
    if not found:
        names = " ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
        if not wanted.rpartition(":")[2].isdecimal() or ":" not in wanted:
            raise InvalidArgument(f"--queue {wanted}: must be BROKER:NUMBER; {topic} has {names}")
        raise ClientError(f"the topic {topic} has no queue {wanted}; it has {names}")
    return found
