# SPDX-License-Identifier: Apache-2.0
"""Refuses names of consumer groups that no broker knows, which are usually misspelt."""

from typing import Final

from cometmq.client.admin.scope import AdminBase
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_group
from cometmq.remoting.spelling import did_you_mean

NEW_GROUP: Final = "is_new_group=True sets the first offsets of a new group"


async def check_known(admin: AdminBase, group: str, advice: str = "") -> None:
    """Raise InvalidArgument unless a master has the settings or an offset of the group."""
    check_group(group)
    masters = (await admin.masters()).values()
    known: set[str] = set()
    for _, groups in await admin.ask_each(masters, lambda it: it.groups()):
        known.update(groups)
    if group in known:
        return
    for _, offsets in await admin.ask_each(masters, lambda it: it.consumer_offsets()):
        known.update(place.rpartition("@")[2] for place in offsets.offset_table)
    if group not in known:
        more = f" ({advice})" if advice else ""
        raise InvalidArgument(
            f"no broker knows the consumer group {group}{did_you_mean(group, known)}{more}"
        )
