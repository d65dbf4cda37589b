# SPDX-License-Identifier: Apache-2.0
"""The name server's metric families."""

from typing import Final

from cometmq.namesrv.route_table import RouteStats
from cometmq.runtime.metrics import Family, counter, gauge, labelled_counter

ROUTE_FAMILIES: Final[tuple[Family[RouteStats], ...]] = (
    gauge("cometmq_namesrv_clusters", "Clusters with a live broker.", lambda s: s.cluster_count),
    gauge("cometmq_namesrv_brokers", "Live brokers.", lambda s: s.broker_count),
    gauge("cometmq_namesrv_topics", "Topics with a route.", lambda s: s.topic_count),
    counter(
        "cometmq_namesrv_registrations_total",
        "Accepted registrations of brokers.",
        lambda s: s.registered_count,
    ),
    counter(
        "cometmq_namesrv_registrations_stale_total",
        "Registrations refused because their group has a later epoch.",
        lambda s: s.stale_count,
    ),
    labelled_counter(
        "cometmq_namesrv_brokers_dropped_total",
        "Brokers removed without having unregistered, by reason.",
        ("reason",),
        lambda s: ((("expired",), s.expired_count), (("disconnected",), s.disconnected_count)),
    ),
)
