# SPDX-License-Identifier: Apache-2.0
"""The name server's metric families."""

from typing import Final

from cometmq.namesrv.namesrv import Namesrv
from cometmq.runtime.metrics import Family, counter, gauge, labelled_counter

NAMESRV_FAMILIES: Final[tuple[Family[Namesrv], ...]] = (
    gauge(
        "cometmq_namesrv_clusters",
        "Clusters with a live broker.",
        lambda n: n.routes.groups.cluster_count,
    ),
    gauge("cometmq_namesrv_brokers", "Live brokers.", lambda n: len(n.routes.live_brokers())),
    gauge("cometmq_namesrv_topics", "Topics with a route.", lambda n: n.routes.topics.count),
    counter(
        "cometmq_namesrv_registrations_total",
        "Accepted registrations of brokers.",
        lambda n: n.routes.registered_count,
    ),
    counter(
        "cometmq_namesrv_registrations_stale_total",
        "Registrations refused because their group has a later epoch.",
        lambda n: n.routes.epochs.refused_count,
    ),
    labelled_counter(
        "cometmq_namesrv_brokers_dropped_total",
        "Brokers removed without having unregistered, by reason.",
        ("reason",),
        lambda n: (
            (("expired",), n.routes.expired_count),
            (("disconnected",), n.routes.disconnected_count),
        ),
    ),
)
