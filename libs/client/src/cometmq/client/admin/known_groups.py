# SPDX-License-Identifier: Apache-2.0
"""Rejects names of consumer groups that no broker knows, which are usually misspelt."""

from collections.abc import Collection
from typing import Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_group
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable
from cometmq.remoting.spelling import did_you_mean

NEW_GROUP: Final = "is_new_group=True sets the first offsets of a new group"


async def check_known(admin: AdminBase, group: str, advice: str = "") -> None:
    """Raise InvalidArgument unless a master stores settings or an offset for the group."""
    check_group(group)
    masters = (await admin.masters()).values()
    known: set[str] = set()
    for _, groups in await admin.ask_each(masters, lambda it: it.groups()):
        known.update(groups)
    if group in known:
        return
    for _, offsets in await admin.ask_each(masters, lambda it: it.consumer_offsets()):
        known.update(_groups_of(offsets))
    if group not in known:
        more = f" ({advice})" if advice else ""
        raise InvalidArgument(
            f"no broker knows the consumer group {group}{did_you_mean(group, known)}{more}"
        )


async def check_deletable(
    admin: AdminBase,
    group: str,
    masters: Collection[BrokerAdmin],
    cluster: str | None,
    *,
    with_offsets: bool,
) -> None:
    """Raise InvalidArgument unless one of the masters stores settings for the group.

    If `with_offsets` is set, a stored offset suffices. Raise an error if a master does not
    answer, because it may know the group.
    """
    check_group(group)
    known: set[str] = set()
    for _, groups in await admin.ask_all(masters, lambda it: it.groups()):
        known.update(groups)
    if group not in known and with_offsets:
        for _, offsets in await admin.ask_all(masters, lambda it: it.consumer_offsets()):
            known.update(_groups_of(offsets))
    if group not in known:
        inside = "" if cluster is None else f" of the cluster {cluster}"
        raise InvalidArgument(
            f"no broker{inside} knows the consumer group {group}: nothing was deleted"
            f"{did_you_mean(group, known)}"
        )


def _groups_of(offsets: ConsumerOffsetTable) -> set[str]:
    return {place.rpartition("@")[2] for place in offsets.offset_table}
