# SPDX-License-Identifier: Apache-2.0
"""Objects that declare the same entry, and name the same name server differently."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from cometmq.client.admin import AdminClient
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.broker import CLUSTER_NAME
from cometmq.client.testing.cluster import eventually
from cometmq.operator.managed import FINALIZER
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.topics_and_groups.declared_pass import DeclaredObjects
from cometmq.operator.topics_and_groups.item import Claim, Entry, declared_of
from cometmq.testing.operator.api import MemoryApi, context_of

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


class World:
    """A cluster, and an operator whose API server is a dictionary."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.api = MemoryApi()
        self.claims: dict[Entry, set[Claim]] = {}
        context = context_of(self.api, quiet_ms=0, claims=self.claims)
        self.objects = DeclaredObjects(context, OperatorFigures())

    def declare(self, name: str, created: str, name_server: str, **more: Any) -> None:
        metadata = {"uid": name, "creationTimestamp": created, "finalizers": [FINALIZER], **more}
        spec = {
            "name": "same", "clusterName": CLUSTER_NAME, "nameServers": [name_server],
            "deletionPolicy": "Delete",
        }  # fmt: skip
        self.api.put("Topic", name, metadata=metadata, spec=spec)

    def start(self, first: str) -> None:
        """Index the objects as kopf does, and start all passes, those over `first` first."""
        found = [declared_of("Topic", body) for body in self.api.objects.values()]
        for one in found:
            if not one.is_deleting:
                self.claims.setdefault(one.claim.entry, set()).add(one.claim)
        for one in sorted(found, key=lambda one: one.name != first):
            self.objects.changed(one.key, one.claim.entry, ())

    def reason(self, name: str) -> str | None:
        """Return the reason of an object's condition; None before the first pass."""
        work = self.objects.get(("Topic", "mq", name))
        if work is None or work.status is None:
            return None
        return work.status.conditions[0].reason


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryCluster() as cluster:
        world = World(cluster)
        yield world
        await world.objects.close()


def names_of(cluster: MemoryCluster) -> tuple[str, str]:
    """Return two names of the cluster's name server."""
    _, _, port = cluster.namesrv.rpartition(":")
    return f"127.0.0.1:{port}", f"localhost:{port}"


@pytest.mark.parametrize("first", ["old", "new"])
async def test_the_oldest_owns_a_topic_whatever_the_name_server_is_called(world, first):
    one, other = names_of(world.cluster)
    world.declare("old", OLD, one)
    world.declare("new", NEW, other)
    world.declare("elsewhere", OLD, "127.0.0.1:1")
    world.start(first)
    await eventually(lambda: (world.reason("old"), world.reason("new"))
                     == ("AsSpecified", "DeclaredTwice"))  # fmt: skip


@pytest.mark.parametrize("first", ["old", "new"])
async def test_a_topic_that_another_object_declares_is_kept(world, first):
    """Also just after the operator has started, when it knows no brokers yet."""
    one, other = names_of(world.cluster)
    async with AdminClient(world.cluster.namesrv) as admin:
        await admin.create_topic("same", queue_count=1)
    world.declare("old", OLD, one, deletionTimestamp=NEW)
    world.declare("new", NEW, other)
    world.start(first)
    await eventually(lambda: world.reason("new") == "AsSpecified")
    old = world.objects.get(("Topic", "mq", "old"))
    await eventually(lambda: old is not None and old.let_go.is_set())
    async with AdminClient(world.cluster.namesrv) as admin:
        assert "same" in await admin.namesrv.topics()


def test_clusters_of_the_same_name_are_told_apart_by_their_brokers():
    def claim(name, brokers):
        body = {
            "metadata": {"namespace": "mq", "name": name, "uid": name},
            "spec": {"name": "same", "nameServers": [f"{name}:9876"]},
        }
        claim = declared_of("Topic", body).claim
        return msgspec.structs.replace(claim, brokers=brokers)

    a, b = frozenset({"10.0.0.1:10911"}), frozenset({"10.0.0.2:10911"})
    assert claim("one", a).competes(claim("two", a | b))
    assert not claim("one", a).competes(claim("two", b))
    assert not claim("one", None).competes(claim("two", None))
