# SPDX-License-Identifier: Apache-2.0
"""Test files that share a server leave it as they found it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import CHECK_GROUP, ORDER_NAMESPACE, is_system_topic

DEADLINE_S: Final = 60.0
"""Time for the broker to remove the files of deleted topics, and for members to leave."""
OWN_FILES: Final = {"commitlog", "index", "journal", "config", "floors", "kvConfig", "namesrv"}
"""What servers make in their folders as they need it."""
State: TypeAlias = dict[str, set[str]]


@contextmanager
def left_as_found(
    namesrv: str, broker: str, data: Path, options: ClientOptions | None = None
) -> Iterator[None]:
    """Delete the topics and groups that appear in the block, then compare all that a suite keeps.

    Raise AssertionError if topics, orders, groups, offsets, settings, accounts or files differ.
    """

    async def see(before: State | None = None) -> State:
        async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
            if before is not None:
                await _tidy(admin, broker, before, await _state(admin, broker, data))
            return await _state(admin, broker, data)

    before = asyncio.run(see())
    yield
    end = monotonic() + DEADLINE_S
    while (after := asyncio.run(see(before))) != before and monotonic() < end:
        pass
    left = {kind: after[kind] ^ before[kind] for kind in before if after[kind] != before[kind]}
    assert left == {}, f"the tests of this file leave something behind, or remove it: {left}"


async def _state(admin: AdminClient, address: str, data: Path) -> State:
    broker = admin.broker(address)
    topics = {*await broker.topics(), *await admin.namesrv.topics()}
    orders = await admin.namesrv.kv_list(ORDER_NAMESPACE)
    settings = {**await broker.config(), **await admin.namesrv.config()}
    has_accounts = settings["aclEnable"] == "true"
    accounts = (await broker.acl_config()).plain_access_configs if has_accounts else []
    places = {place.partition("@")[::2] for place in (await broker.consumer_offsets()).offset_table}
    return {
        "topics": {it for it in topics if not is_system_topic(it)},
        "groups": {*await broker.groups()},
        "offsets": {f"{topic}@{it}" for topic, it in places if it != CHECK_GROUP},
        "orders": {f"{topic}={order}" for topic, order in orders.items()},
        "settings": {f"{name}={value}" for name, value in settings.items()},
        "accounts": {repr(it) for it in accounts},
        "files": {str(it) for it in _files(data) if it.name not in topics},
    }


async def _tidy(admin: AdminClient, address: str, before: State, now: State) -> None:
    broker = admin.broker(address)
    for order in now["orders"] - before["orders"]:
        await admin.namesrv.delete_kv(ORDER_NAMESPACE, order.partition("=")[0])
    for topic in now["topics"] - before["topics"]:
        await broker.delete_topic(topic)
        await admin.namesrv.delete_topic(topic)
    offsets = {it.partition("@")[2] for it in now["offsets"] - before["offsets"]}
    configs = await broker.groups()
    for group in (now["groups"] - before["groups"]) | offsets:
        await broker.delete_group(group, remove_offsets=True)
        if group in before["groups"]:
            await broker.create_group(configs[group])


def _files(data: Path) -> Iterator[Path]:
    """Yield the files and folders that tests make, and those of topics."""
    for path in data.glob("*/*"):
        if path.name.partition(".")[0] not in OWN_FILES:
            yield path.relative_to(data)
    for path in data.glob("store/consumequeue/*"):
        yield path.relative_to(data)
