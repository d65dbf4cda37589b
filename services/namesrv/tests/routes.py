# SPDX-License-Identifier: Apache-2.0
"""A route table with shorthand for tests."""

from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.route_table import Registration, RouteTable
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.runtime.incremental import finish

SILENCE_MS = 120_000


KEEP_MS = 10_000


def broker(name="broker-a", broker_id=0, address="127.0.0.1:1", cluster="C"):
    return BrokerId(cluster, name, broker_id, address)


def registration(who, topics=(), version=1, filter_servers=(), epoch=None):
    configs = [TopicConfig(topic_name=t) if isinstance(t, str) else t for t in topics]
    version = DataVersion(version, 0)
    return Registration(who, f"ha-{who.address}", version, configs, filter_servers, epoch)


class Routes(RouteTable):
    """A wrapper around a table, with shorthand for tests."""

    def judge(self, name, epoch, *, is_proven=False):
        return self.epochs.judge(name, epoch, is_proven=is_proven, now_ms=0)

    def register(self, registration, **options):
        return finish(self.registering(registration, **options))

    def route(self, topic):
        return finish(self.routing(topic))

    def add(
        self, who, topics=(), version=1, *, connection=None, now_ms=0, filter_servers=(),
        epoch=None,
    ):  # fmt: skip
        return self.register(
            registration(who, topics, version, filter_servers, epoch),
            connection=connection,
            now_ms=now_ms,
            keep_ms=KEEP_MS,
        )

    def lose(self, connection, now_ms=0):
        return self.disconnected(connection, now_ms=now_ms, keep_ms=KEEP_MS)

    def ask(self, address="127.0.0.1:1", version=1, *, connection=None, now_ms=0):
        return self.query_data_version(
            address, DataVersion(version, 0), connection=connection, now_ms=now_ms
        )

    def masters(self, topic="T"):
        """Return the master's address as clients see it, and whether the topic has a route."""
        route = self.route(topic)
        return None if route is None else [g.broker_addrs.get(0) for g in route.broker_datas]


def queue_facts(routes, topic):
    route = routes.route(topic)
    return {q.broker_name: (q.read_queue_nums, q.perm) for q in route.queue_datas}


def check_invariants(routes):
    info = routes.groups.cluster_info()
    addresses = [
        a for group in info.broker_addr_table.values() for a in group.broker_addrs.values()
    ]
    kept = [info.broker_addr_table[name].broker_addrs[0] for name in routes._kept]
    assert set(routes._kept) <= set(routes.epochs.names()) <= set(info.broker_addr_table)
    for address in kept:
        addresses.remove(address)
    assert len(set(addresses)) == len(addresses)
    assert set(addresses) == set(routes.live_brokers())
    assert all(group.broker_addrs for group in info.broker_addr_table.values())
    named = {name for names in info.cluster_addr_table.values() for name in names}
    assert named == set(info.broker_addr_table)
    assert all(info.cluster_addr_table.values())
    for topic in finish(routes.topics.selecting()):
        assert {q.broker_name for q in routes.route(topic).queue_datas} <= named
