# SPDX-License-Identifier: Apache-2.0
"""A group never changes foreign objects that have the names of its own objects."""

from unittest.mock import Mock

import pytest

from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.operator.api import ApiRefused
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.owned import OwnedObjects, delete_record
from cometmq.testing.operator.api import MemoryApi
from cometmq.testing.operator.states import group

NOTHING = Live(stateful_set=None, pods={}, claims=[])
NAMES = {
    "ServiceAccount": "orders-broker",
    "Role": "orders-broker",
    "ConfigMap": "orders-config",
    "NetworkPolicy": "orders",
    "StatefulSet": "orders",
    "Lease": "orders",
    "Service": "orders-master",
}


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def owned(api):
    return OwnedObjects(Mock(api=api, image="i", operator_namespace="ops"))


async def applied(owned, live=NOTHING):
    await owned.apply(group(), await owned.wanted(group(), live, 2), live)


@pytest.mark.parametrize(("kind", "name"), NAMES.items())
async def test_an_object_of_another_program_is_left_alone_and_named(api, owned, kind, name):
    """Users choose the name of a group; one could otherwise take over a service account."""
    theirs = api.put(kind, name, metadata={"labels": {"app": "shop"}, "ownerReferences": []})
    with pytest.raises(ApiRefused, match=f"the {kind} {name} exists and is not this group's"):
        await applied(owned)
    assert api.objects[kind, "mq", name] is theirs
    assert kind == "StatefulSet" or ("StatefulSet", "mq", "orders") not in api.objects
    del api.objects[kind, "mq", name]
    await applied(owned)
    assert ("StatefulSet", "mq", "orders") in api.objects


async def test_the_objects_of_the_group_and_of_an_earlier_one_are_applied_again(api, owned):
    await applied(owned)
    for one in api.objects.values():
        one["metadata"]["ownerReferences"] = []  # as after `kubectl delete --cascade=orphan`
    api.put("Lease", "orders", metadata={"annotations": {ANNOTATION: "{}"}})
    again = OwnedObjects(owned._context)
    await applied(again)
    assert api.objects["StatefulSet", "mq", "orders"]["metadata"]["ownerReferences"]


async def test_a_stateful_set_of_another_program_is_not_the_groups(api):
    api.put("StatefulSet", "orders")
    assert (await Live.read(api, group())).stateful_set is None


async def test_only_the_record_is_deleted_with_the_group(api):
    api.put("Lease", "orders")
    await delete_record(api, group())
    assert api.objects
    api.put("Lease", "orders", metadata={"annotations": {ANNOTATION: "{}"}})
    await delete_record(api, group())
    assert not api.objects


async def test_only_the_claims_of_the_groups_pods_are_grown(api, owned):
    """A copy of a claim, such as that of a restored snapshot, has its labels, too."""

    names = ["store-orders-0", "store-orders-0-copy", "store-orders-eu-0", "copy-orders-0", "store"]
    for name in names:
        spec = {"resources": {"requests": {"storage": "1Gi"}}}
        api.put("PersistentVolumeClaim", name, metadata={"labels": group().labels}, spec=spec)
    await applied(owned, await Live.read(api, group()))
    assert api.made("patch") == [("PersistentVolumeClaim", "store-orders-0")]
