# SPDX-License-Identifier: Apache-2.0
"""A group never changes foreign objects that have the names of its own objects."""

from typing import Any
from unittest.mock import Mock

import pytest

from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.operator.api import ApiRefused
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.owned import OwnedObjects, delete_record
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


class Api:
    """Holds objects by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        self.claims: list[Any] = []
        self.grown: list[str] = []

    async def get(self, kind, _namespace, name):
        return self.objects.get((kind, name))

    async def list(self, kind, *_):
        return self.claims if kind == "PersistentVolumeClaim" else []

    async def patch(self, kind, _namespace, name, _patch):
        assert kind == "PersistentVolumeClaim"
        self.grown.append(name)

    async def apply(self, body):
        metadata = {**body["metadata"], "resourceVersion": "1", "generation": 1}
        self.objects[body["kind"], metadata["name"]] = {**body, "metadata": metadata}
        return self.objects[body["kind"], metadata["name"]]

    async def delete(self, kind, _namespace, name, *, uid=""):
        assert uid == self.objects.pop((kind, name))["metadata"]["uid"]


@pytest.fixture
def api() -> Any:
    return Api()


@pytest.fixture
def owned(api):
    return OwnedObjects(Mock(api=api, image="i", operator_namespace="ops"))


async def applied(owned, live=NOTHING):
    await owned.apply(group(), await owned.wanted(group(), live, 2), live)


def foreign(**metadata):
    return {"metadata": {"uid": "x", **metadata}}


@pytest.mark.parametrize(("kind", "name"), NAMES.items())
async def test_an_object_of_another_program_is_left_alone_and_named(api, owned, kind, name):
    """Users choose the name of a group; one could otherwise take over a service account."""
    theirs = api.objects[kind, name] = foreign(labels={"app": "shop"}, ownerReferences=[])
    with pytest.raises(ApiRefused, match=f"the {kind} {name} exists and is not this group's"):
        await applied(owned)
    assert api.objects[kind, name] is theirs
    assert kind == "StatefulSet" or ("StatefulSet", "orders") not in api.objects
    del api.objects[kind, name]
    await applied(owned)
    assert ("StatefulSet", "orders") in api.objects


async def test_the_objects_of_the_group_and_of_an_earlier_one_are_applied_again(api, owned):
    await applied(owned)
    for one in api.objects.values():
        one["metadata"]["ownerReferences"] = []  # as after `kubectl delete --cascade=orphan`
    api.objects["Lease", "orders"] = foreign(annotations={ANNOTATION: "{}"})
    again = OwnedObjects(owned._context)
    await applied(again)
    assert api.objects["StatefulSet", "orders"]["metadata"]["ownerReferences"]


async def test_a_stateful_set_of_another_program_is_not_the_groups(api):
    api.objects["StatefulSet", "orders"] = foreign()
    assert (await Live.read(api, group())).stateful_set is None


async def test_only_the_record_is_deleted_with_the_group(api):
    api.objects["Lease", "orders"] = foreign()
    await delete_record(api, group())
    assert api.objects
    api.objects["Lease", "orders"] = foreign(annotations={ANNOTATION: "{}"})
    await delete_record(api, group())
    assert not api.objects


async def test_only_the_claims_of_the_groups_pods_are_grown(api, owned):
    """A copy of a claim, such as that of a restored snapshot, has its labels, too."""

    def claim(name):
        return {
            "metadata": {"name": name, "labels": group().labels},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        }

    names = ["store-orders-0", "store-orders-0-copy", "store-orders-eu-0", "copy-orders-0", "store"]
    api.claims = [claim(name) for name in names]
    await applied(owned, await Live.read(api, group()))
    assert api.grown == ["store-orders-0"]
