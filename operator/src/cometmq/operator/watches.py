# SPDX-License-Identifier: Apache-2.0
"""Watches objects. An event of a BrokerGroup or of an object that belongs to one starts a pass over
the group; an event of a Topic or ConsumerGroup starts a pass over it.

Passes read the current state and do not use the event, so a lost, late or repeated
event does no harm.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from cometmq.operator.api import ApiUnreachable, Body, KubeApi
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.api_types.topics_and_groups import PLURALS
from cometmq.operator.broker_groups.group import GROUP_LABEL
from cometmq.operator.broker_groups.groups import Groups
from cometmq.operator.topics_and_groups.objects import DeclaredObjects
from cometmq.remoting.log import Log

OWNED: Final = (
    "ConfigMap", "EndpointSlice", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Role",
    "RoleBinding", "Service", "ServiceAccount", "StatefulSet",
)  # fmt: skip
"""Kinds of objects that belong to groups, as their labels show."""
RETRY_S: Final = 0.5
"""Pause before a watch that has ended begins again; the server ends each after a while."""

Handle = Callable[[str, Body], None]
"""Takes the type and the object of an event."""


async def watch(
    groups: Groups, objects: DeclaredObjects, api: KubeApi, namespaces: Iterable[str], log: Log
) -> None:
    """Wake `groups` and `objects` on events in these namespaces, or in all, until cancelled."""
    handles: list[tuple[str, str, Handle]] = [
        (KIND, "", partial(_group_event, groups)),
        *((kind, "", partial(_declared_event, objects, kind)) for kind in PLURALS),
        *((kind, GROUP_LABEL, partial(_owned_event, groups, kind)) for kind in OWNED),
    ]
    async with asyncio.TaskGroup() as tasks:
        for namespace in tuple(namespaces) or ("",):
            for kind, selector, handle in handles:
                work = _follow(api, (kind, namespace, selector), handle, log)
                tasks.create_task(work, name=f"watch-{kind}-{namespace}")


async def _follow(api: KubeApi, what: tuple[str, str, str], handle: Handle, log: Log) -> None:
    """Handle the events of one kind; each watch continues where the last one has ended."""
    (kind, namespace, selector), version, is_failing = what, "", False
    while True:
        try:
            async for type_, body in api.watch(kind, namespace, selector=selector, version=version):
                is_failing, version = False, body["metadata"]["resourceVersion"]
                if type_ != "BOOKMARK":
                    handle(type_, body)
        except ApiUnreachable as error:
            if not is_failing:
                log.warning("watch.interrupted", kind=kind, namespace=namespace, error=str(error))
            is_failing, version = True, ""  # which may be the cause: the server forgets old ones
        await asyncio.sleep(RETRY_S)


def _group_event(groups: Groups, _type: str, body: Body) -> None:
    groups.wake((KIND, body["metadata"]["namespace"], body["metadata"]["name"]))


def _declared_event(objects: DeclaredObjects, kind: str, type_: str, body: Body) -> None:
    if type_ == "DELETED":
        objects.deleted(kind, body["metadata"]["namespace"], body["metadata"]["name"])
    else:
        objects.changed(kind, body)


def _owned_event(groups: Groups, kind: str, type_: str, body: Body) -> None:
    metadata = body["metadata"]
    version = "" if type_ == "DELETED" else metadata["resourceVersion"]
    group = metadata["labels"][GROUP_LABEL]
    groups.note(kind, metadata["namespace"], metadata["name"], group, version)
